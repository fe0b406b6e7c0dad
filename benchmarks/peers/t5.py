"""``generate`` of transformers on a T5 of our size, for ``benchmarks.decode``.

Runs in the environment ``torch``. Its parameters are random, which changes nothing about the work:
exactly as many tokens as are asked for are generated.
"""

import torch
import transformers

from benchmarks.peers.worker import answer_calls, num_cores, time_calls


class Generator:
    """A T5 with nothing but its shape in common with ours."""

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_layers: int,
        is_threaded: bool,
    ) -> None:
        torch.set_num_threads(num_cores() if is_threaded else 1)
        torch.manual_seed(0)
        config = transformers.T5Config(
            vocab_size=vocab_size,
            d_model=embed_dim,
            d_kv=embed_dim // num_heads,
            d_ff=mlp_dim,
            num_layers=num_layers,
            num_decoder_layers=num_layers,
            num_heads=num_heads,
            feed_forward_proj="gated-silu",
            tie_word_embeddings=False,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=None,
        )
        self.model = transformers.T5ForConditionalGeneration(config).eval()

    def decoded(self, sources: list[list[int]]) -> list[list[int]]:
        """What every source becomes, without the token that every target starts from."""
        return self._generate(torch.tensor(sources))[:, 1:].tolist()

    def num_params(self) -> int:
        """How many parameters there are."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def versions(self) -> dict[str, str]:
        """The libraries'."""
        return {"torch": torch.__version__, "transformers": transformers.__version__}

    def turn(self, sources: list[list[int]], num_calls: int) -> list[float]:
        """Milliseconds of each of some calls."""
        rows = torch.tensor(sources)
        return time_calls(lambda: self._generate(rows), num_calls)

    def _generate(self, sources: torch.Tensor) -> torch.Tensor:
        count = sources.shape[1]
        with torch.inference_mode():
            return self.model.generate(
                sources,
                attention_mask=torch.ones_like(sources),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                num_beams=1,
                use_cache=True,
            )


if __name__ == "__main__":
    answer_calls(Generator)
