"""The shape of the decoder that its own tests and those of generation share, and of its prompts."""

import numpy as np

from models.blocks import TransformerConfig

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
SIZE, WIDER = 6, 12
LENGTHS = np.array([6, 1, 4], np.int32)
CONFIG = TransformerConfig(vocab_size=7, embed_dim=16, num_heads=2, num_layers=2, max_seq_len=WIDER)


def assert_same(expected, got):
    np.testing.assert_allclose(expected, got, atol=TOLERANCE)
