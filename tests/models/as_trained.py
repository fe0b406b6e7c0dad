"""Models whose numbers are such as training leaves them, for tests of their packed forms."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Model = TypeVar("Model", bound=nnx.Module)


def as_trained(model: Model) -> Model:
    """``model``, with norms that have scales of their own and answers that differ by position."""
    generator = np.random.default_rng(1)

    def scaled(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        noise = generator.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        # Embeddings are drawn small, and a head may be tied to them.
        return leaf * jnp.asarray(20 * noise if "embedding" in str(path) else noise)

    nnx.update(model, jax.tree_util.tree_map_with_path(scaled, nnx.state(model)))
    return model
