"""What several of these tests share; ``models`` is imported inside, tests/conftest.py says why."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_decoder():
    """A model whose answers differ by position, because its embeddings are large."""
    from flax import nnx

    from models.decoder import CausalLanguageModel
    from tests.models.small_decoder import CONFIG

    model = CausalLanguageModel(CONFIG, rngs=nnx.Rngs(0))
    for table, factor in ((model.token_embedding, 10.0), (model.position_embedding, 50.0)):
        table.embedding[...] = table.embedding[...] * factor
    return model


@pytest.fixture(scope="session")
def forward(small_decoder):
    """All logits of the small decoder."""
    from training.step import jitted

    return jitted(small_decoder, type(small_decoder).__call__)


@pytest.fixture(scope="session")
def prompts():
    """Prompts for it behind <bos>, with garbage behind each row's length; not to be written to."""
    from tests.models.small_decoder import CONFIG, LENGTHS, WIDER

    tokens = np.random.default_rng(0).integers(0, 8, (len(LENGTHS), WIDER), dtype=np.int32)
    tokens[:, 0] = CONFIG.special_id
    tokens.flags.writeable = False
    return tokens
