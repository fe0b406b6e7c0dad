"""The Perceiver of ``benchmarks.latents`` in PyTorch, and its blocks over the whole input instead.

Runs in the environment ``torch``.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers.torch_encoder import RMSNorm, blocks_of, linear
from benchmarks.peers.worker import answer_calls, memory_of, num_cores, time_calls


class Perceiver(nn.Module):
    """Latents that read the input once, then each other."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.num_heads = int(arrays["num_heads"])
        epsilon = float(arrays["epsilon"])
        for name in ("latents", "absolute_wavelengths", "relative_wavelengths"):
            self.register_buffer(name, torch.from_numpy(arrays[name]))
        for name in ("query_norm", "final_norm"):
            setattr(self, name, RMSNorm(arrays[name], epsilon))
        for name in ("query", "key_value", "read_out"):
            setattr(self, name, linear(arrays[name]))
        self.blocks = blocks_of(arrays)

    def features(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Sines and cosines of positions, in characters and relative to the length."""
        relative = (positions + 0.5) * len(self.latents) / length
        absolute_angles = 2 * math.pi * positions[:, None] / self.absolute_wavelengths
        relative_angles = 2 * math.pi * relative[:, None] / self.relative_wavelengths
        angles = (absolute_angles, relative_angles)
        return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=-1)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """The latents of one row."""
        size, count = len(vectors), len(self.latents)
        inputs = vectors + self.features(torch.arange(size, dtype=torch.float32), size)
        centres = (torch.arange(count, dtype=torch.float32) + 0.5) * size / count - 0.5
        x = self.latents + self.features(centres, size)
        query = self._heads(self.query(self.query_norm(x)))
        key, value = map(self._heads, self.key_value(inputs).chunk(2, dim=-1))
        read = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.read_out(read[0].transpose(0, 1).reshape(count, -1))
        return self.final_norm(self.blocks(x[None]))[0]

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(1, len(x), self.num_heads, -1).transpose(1, 2)


class Reader:
    """One row of vectors at a time, in float32 or under autocast."""

    def __init__(self, *, weights: str, is_perceiver: bool, dtype: str) -> None:
        torch.set_num_threads(num_cores())
        self.is_narrow = dtype != "float32"
        arrays = dict(np.load(weights))
        self.width = arrays["latents"].shape[1]
        if is_perceiver:
            self._model = Perceiver(arrays).eval()
        else:
            blocks = blocks_of(arrays).eval()
            self._model = lambda vectors: blocks(vectors[None])[0]

    def version(self) -> str:
        """The library's."""
        return torch.__version__

    def output(self, vectors: list[list[float]]) -> list[list[float]]:
        """What a row becomes."""
        return self._run(np.array(vectors, np.float32)).tolist()

    def memory(self, length: int) -> float:
        """By how much a call makes this process grow, in MiB."""
        vectors = self._draw(length)
        self._run(vectors)
        return memory_of(lambda: self._run(vectors))

    def turn(self, length: int, num_calls: int, num_warm: int) -> list[float]:
        """Milliseconds of each of some calls, from numpy to numpy."""
        vectors = self._draw(length)
        return time_calls(lambda: self._run(vectors), num_calls, num_warm)

    def _run(self, vectors: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.is_narrow):
            return self._model(torch.from_numpy(vectors)).float().numpy()

    def _draw(self, length: int) -> np.ndarray:
        return np.random.default_rng(length).normal(size=(length, self.width)).astype(np.float32)


if __name__ == "__main__":
    answer_calls(Reader)
