"""What a recipe of any length draws from: one text that counts, others beside it, buckets.

The masked and the causal recipe share it.
"""

from dataclasses import dataclass

import numpy as np

from training.corpus import Corpus
from training.ragged import draw_bucket, draw_lengths, draw_windows


@dataclass(frozen=True, kw_only=True, slots=True)
class TextMixture:
    """Windows of any length from several texts.

    ``main_share`` of the rows are from ``main``, the others from ``others`` in equal parts.
    ``buckets`` are the longest lengths of a step, ``bucket_weights`` how often each is drawn: once
    for ``steps_per_bucket`` steps in a row, so that those can be sent to the device together.
    """

    main: Corpus
    others: tuple[Corpus, ...]
    main_share: float
    buckets: tuple[int, ...]
    bucket_weights: tuple[int, ...]
    steps_per_bucket: int
    seed: int

    def draw(
        self, generator: np.random.Generator, step: int, num_longest: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The windows of a step and their lengths.

        There are ``num_longest`` rows of the longest bucket, or as many characters of another.
        """
        kept = self.steps_per_bucket
        bucket_generator = (
            generator if kept == 1 else np.random.default_rng((self.seed, step // kept, 0))
        )
        size = draw_bucket(bucket_generator, self.buckets, self.bucket_weights)
        num_rows = num_longest * max(self.buckets) // size
        lengths = draw_lengths(generator, self.buckets, size, num_rows)
        return draw_windows(generator, self._weighted(), size, num_rows), lengths

    def _weighted(self) -> list[tuple[Corpus, float]]:
        if not self.others:
            return [(self.main, 1.0)]
        share = (1.0 - self.main_share) / len(self.others)
        return [(self.main, self.main_share), *((other, share) for other in self.others)]
