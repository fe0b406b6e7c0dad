import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.blocks import BlockConfig, TransformerConfig
from models.checkpoint import flatten
from models.decoding import decode
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.perceiver import PerceiverConfig
from models.wirings import WIRINGS

NAMES = ["masked-lm", "reversal", "perceiver", "causal-lm"]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(recipes, tiny_models, name):
    recipe = recipes[name]
    graph, params = nnx.split(tiny_models[name], nnx.Param)

    def loss(params, batch):
        return recipe.loss(nnx.merge(graph, params), batch).mean

    grads = flatten(jax.jit(jax.grad(loss))(params, recipe.batch(0)))
    assert grads.keys() == flatten(params).keys()
    unreached = [leaf for leaf, grad in grads.items() if not np.any(grad)]
    assert unreached == []
    assert all(np.isfinite(grad).all() for grad in grads.values())


def test_every_wiring_is_trained_by_a_recipe(recipes):
    assert {recipe.identity().wiring for recipe in recipes.values()} == set(WIRINGS)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_names_the_config_of_its_wiring(recipes, name):
    identity = recipes[name].identity()
    assert isinstance(identity.config, WIRINGS[identity.wiring].config)


CONFIGS = {
    "encoder": TransformerConfig.debug(6),
    "decoder": TransformerConfig.debug(6),
    "encoder-decoder": EncoderDecoderConfig.debug(6, 5),
    "perceiver": PerceiverConfig.debug(6),
}


def build_and_run(wiring, config):
    model = WIRINGS[wiring].model(config, rngs=nnx.Rngs(0))
    tokens, lengths = jnp.zeros((1, 4), jnp.int32), jnp.array([4], jnp.int32)
    if isinstance(model, EncoderDecoder):
        return decode(model, tokens, lengths, lengths)
    return model(tokens, lengths)


@pytest.mark.parametrize("wiring", CONFIGS)
def test_every_field_of_a_config_is_read_by_its_model(recording, wiring):
    """No dead knobs: a field that nothing reads would promise what is not done."""
    config = CONFIGS[wiring]
    recording_class = recording(type(config))
    recorded = recording_class(**dataclasses.asdict(config))
    recording_class.read = set()
    jax.eval_shape(lambda: build_and_run(wiring, recorded))
    fields = {field.name for field in dataclasses.fields(config)}
    assert fields - recording_class.read == set()


def test_every_field_of_a_block_config_is_read_by_its_sizes(recording):
    recorded = recording(BlockConfig)
    config = recorded(embed_dim=8, num_heads=2)
    recorded.read = set()
    assert (config.head_dim, config.mlp_dim) == (4, 21)
    assert {field.name for field in dataclasses.fields(BlockConfig)} <= recorded.read
