"""The encoder of ``benchmarks.forward`` in PyTorch, written as its users would write it.

Runs in the environment ``torch``; also exports the model to ONNX.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers.worker import answer_calls, num_cores, time_calls

NUM_CANDIDATES = 5


def linear(matrix: np.ndarray) -> nn.Linear:
    """A layer without a bias whose matrix is given as [inputs, outputs]."""
    layer = nn.Linear(*matrix.shape, bias=False)
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T))
    return layer


class RMSNorm(nn.Module):
    """RMSNorm with its scale."""

    def __init__(self, scale: np.ndarray, epsilon: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.from_numpy(scale))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scales ``x`` to a mean square of 1."""
        return functional.rms_norm(x, self.scale.shape, self.scale, self.epsilon)


class Block(nn.Module):
    """Pre-norm self-attention, one matrix for queries, keys and values, and a SwiGLU."""

    def __init__(self, arrays: dict[str, np.ndarray], num_heads: int, epsilon: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        for name in ("attention_norm", "mlp_norm"):
            setattr(self, name, RMSNorm(arrays[name], epsilon))
        for name in ("qkv", "out", "gate", "up", "down"):
            setattr(self, name, linear(arrays[name]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Lets every position read every other."""
        batch, size, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, size, 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(read.transpose(1, 2).reshape(batch, size, width))
        normed = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def blocks_of(arrays: dict[str, np.ndarray]) -> nn.Sequential:
    """All blocks among ``arrays``."""
    count = sum(name.endswith(".qkv") for name in arrays)
    heads, epsilon = int(arrays["num_heads"]), float(arrays["epsilon"])
    prefixed = [
        {n.partition(".")[2]: a for n, a in arrays.items() if n.startswith(f"{index}.")}
        for index in range(count)
    ]
    return nn.Sequential(*(Block(own, heads, epsilon) for own in prefixed))


class Encoder(nn.Module):
    """Embeddings, blocks and a head tied to the embedding."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        table = torch.from_numpy(arrays["token_embedding"])
        self.token_embedding = nn.Embedding.from_pretrained(table)
        self.position_embedding = nn.Parameter(torch.from_numpy(arrays["position_embedding"]))
        self.blocks = blocks_of(arrays)
        self.final_norm = RMSNorm(arrays["final_norm"], float(arrays["epsilon"]))
        self.head = linear(arrays["token_embedding"][: arrays["vocab_size"]].T)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits over the symbols at every position."""
        x = self.token_embedding(tokens) + self.position_embedding[: tokens.shape[1]]
        return self.head(self.final_norm(self.blocks(x)))


class Contestant:
    """The encoder, compiled or not, in float32 or under autocast."""

    def __init__(
        self, *, weights: str, is_compiled: bool, dtype: str, batch_sizes: list[int], length: int
    ) -> None:
        torch.set_num_threads(num_cores())
        self.is_narrow = dtype != "float32"
        self.model = Encoder(dict(np.load(weights))).eval()
        self.forward: Any = self.model
        if is_compiled:
            # Weights become constants of the compiled function, laid out for its products.
            torch._inductor.config.freezing = True  # noqa: SLF001 - the documented switch
            self.forward = torch.compile(self.model, dynamic=False)
        for batch in batch_sizes:
            self._logits(np.zeros((batch, length), np.int64))

    def logits(self, tokens: list[list[int]]) -> list[list[list[float]]]:
        """Logits at every position of every row."""
        return self._whole(np.array(tokens)).tolist()

    def candidates(self, tokens: list[list[int]], positions: list[int]) -> list[list[int]]:
        """The ids of the likeliest symbols at one mask of every row, the likeliest first."""
        return [[token for token, _ in row] for row in self._fill(np.array(tokens), positions)]

    def version(self) -> str:
        """The library's."""
        return torch.__version__

    def _logits(self, tokens: np.ndarray) -> torch.Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.is_narrow):
            return self.forward(torch.from_numpy(tokens)).float()

    def _whole(self, tokens: np.ndarray) -> np.ndarray:
        """Logits at every position."""
        return self._logits(tokens).numpy()

    def _fill(self, tokens: np.ndarray, positions: list[int]) -> list[list[tuple[int, float]]]:
        """The likeliest symbols at one mask of every row, from all logits, as pipelines do."""
        logits = self._logits(tokens)
        with torch.inference_mode():
            probs = logits[torch.arange(len(tokens)), torch.tensor(positions)].softmax(-1)
            scores, ids = probs.topk(NUM_CANDIDATES)
        return [
            list(zip(*row, strict=True)) for row in zip(ids.tolist(), scores.tolist(), strict=True)
        ]

    def turn(
        self, work: str, tokens: list[list[int]], positions: list[int], num_calls: int
    ) -> list[float]:
        """Milliseconds of each of some calls."""
        rows = np.array(tokens)
        if work == "whole":
            return time_calls(lambda: self._whole(rows), num_calls)
        return time_calls(lambda: self._fill(rows, positions), num_calls)

    def export(self, path: str, length: int) -> None:
        """Writes the model as ONNX, for batches of any size."""
        example = (torch.zeros(2, length, dtype=torch.int64),)
        torch.onnx.export(
            self.model,
            example,
            path,
            dynamo=True,
            external_data=False,
            dynamic_shapes={"tokens": {0: "batch"}},
        )


if __name__ == "__main__":
    answer_calls(Contestant)
