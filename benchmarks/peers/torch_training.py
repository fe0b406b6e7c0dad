"""The training step of ``benchmarks.train`` in PyTorch, written as its users would write it.

Runs in the environment ``torch``.
"""

import itertools
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers.torch_encoder import Encoder
from benchmarks.peers.worker import answer_calls, num_cores, time_calls


class MaskedEncoder(Encoder):
    """The encoder with its head tied to the embedding, asked at some positions."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__(arrays)
        self.num_symbols = int(arrays["vocab_size"])
        self.token_embedding.weight.requires_grad_(requires_grad=True)
        del self.head

    def forward(self, tokens: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """Logits over the symbols at ``where`` among all positions of all rows."""
        table = self.token_embedding.weight
        x = self.token_embedding(tokens) + self.position_embedding[: tokens.shape[1]]
        states = self.final_norm(self.blocks(x)).flatten(0, 1)
        return functional.linear(states[where], table[: self.num_symbols])


class Contestant:
    """Model, optimiser and batches; the step's forward and backward pass compiled or not.

    In another width than float32, the forward pass runs under autocast.
    """

    def __init__(
        self,
        *,
        weights: str,
        batches: str,
        optimization: dict[str, float],
        is_compiled: bool,
        dtype: str,
    ) -> None:
        torch.set_num_threads(num_cores())
        self.is_narrow = dtype != "float32"
        self.model = MaskedEncoder(dict(np.load(weights)))
        self.forward: Any = torch.compile(self.model) if is_compiled else self.model
        self.max_grad_norm = optimization["max_grad_norm"]
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimization["learning_rate"],
            weight_decay=optimization["weight_decay"],
            fused=True,
        )
        with np.load(batches) as file:
            arrays = [torch.from_numpy(file[name]) for name in ("inputs", "targets", "masked")]
        self.batches = itertools.cycle(list(zip(*arrays, strict=True)))

    def step(self) -> float:
        """Takes a step; gives its loss, in nats."""
        inputs, targets, masked = next(self.batches)
        where = masked.flatten().nonzero().squeeze(1)
        # How many are masked differs from batch to batch, and is not to be compiled anew for.
        torch._dynamo.maybe_mark_dynamic(where, 0)  # noqa: SLF001 - the documented function
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_narrow):
            logits = self.forward(inputs.long(), where)
        loss = functional.cross_entropy(logits.float(), targets.flatten()[where].long())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return loss.item()

    def losses(self, num_steps: int) -> list[float]:
        """The losses of the next steps."""
        return [self.step() for _ in range(num_steps)]

    def turn(self, num_calls: int) -> list[float]:
        """Milliseconds of each of the next steps, after one that is not counted."""
        return time_calls(self.step, num_calls)

    def version(self) -> str:
        """The library's."""
        return torch.__version__


if __name__ == "__main__":
    answer_calls(Contestant)
