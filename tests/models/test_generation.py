import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import generation
from models.generation import (
    Generated,
    Sampling,
    advance,
    draw_noise,
    pack,
    packed_shapes,
    sample,
    start,
    unpack,
)
from tests.models.small_decoder import CONFIG, LENGTHS, SIZE, TOLERANCE, WIDER, assert_same
from training.step import jitted

# Standard deviations that a frequency of independent draws may be off; one in 10^6 is.
BOUND = 5
NUM_DRAWS = 20_000
# A part that the window is a multiple of.
PART = 3


@jax.jit
def compiled_sample(logits, first, how):
    """What the first of a few draws gives."""
    return sample(logits, draw_noise(how, first, PART, logits.shape[1])[:, 0], how)


@pytest.fixture(scope="module")
def generate(small_decoder):
    return jitted(small_decoder, generation.generate)


def sampling(temperature, top_p=1.0, seeds=(1, 2, 3)):
    size = len(seeds)
    return Sampling(
        jnp.full(size, temperature, jnp.float32),
        jnp.full(size, top_p, jnp.float32),
        jnp.array(seeds, jnp.uint32),
    )


GREEDY, WARM = sampling(0.0), sampling(1.0)


def continuations(generated, limits, lengths=LENGTHS):
    """What was generated for each row, as far as it means anything."""
    sizes = np.minimum(limits, WIDER + 1 - lengths)
    tokens, log_probs = np.asarray(generated.tokens), np.asarray(generated.log_probs)
    return [(tokens[row, :size], log_probs[row, :size]) for row, size in enumerate(sizes)]


def assert_same_continuations(expected, got):
    for (tokens, log_probs), (other_tokens, other_log_probs) in zip(expected, got, strict=True):
        np.testing.assert_array_equal(tokens, other_tokens)
        assert_same(log_probs, other_log_probs)


def run_again(forward, prompts, limits):
    """Greedy continuations that run the whole prefix through the model at every step."""
    lengths, tokens = LENGTHS.copy(), prompts.copy()
    found = [([], []) for _ in LENGTHS]
    for _ in range(WIDER):
        logits = np.asarray(forward(tokens, lengths))
        for row, (chosen, log_probs) in enumerate(found):
            if len(chosen) == min(limits[row], WIDER + 1 - LENGTHS[row]):
                continue
            last = logits[row, lengths[row] - 1]
            chosen.append(last.argmax())
            log_probs.append(jax.nn.log_softmax(last))
            if lengths[row] < WIDER:
                tokens[row, lengths[row]] = chosen[-1]
                lengths[row] += 1
    return [(np.array(tokens), np.array(log_probs)) for tokens, log_probs in found]


@pytest.mark.parametrize("limits", [(12, 12, 12), (3, 1, 5)], ids=["to the end", "shorter"])
def test_cached_generation_equals_running_the_whole_prefix_again(
    forward, generate, prompts, limits
):
    limits = np.array(limits, np.int32)
    generated = generate(prompts[:, :SIZE], LENGTHS, limits, GREEDY)
    got, expected = continuations(generated, limits), run_again(forward, prompts, limits)
    assert_same_continuations(expected, got)
    assert len({token for tokens, _ in got for token in tokens}) > 1, "all tokens are the same"


def test_temperature_zero_takes_the_likeliest_token(generate, prompts):
    limits = np.full(len(LENGTHS), 5, np.int32)
    for tokens, log_probs in continuations(generate(prompts, LENGTHS, limits, GREEDY), limits):
        np.testing.assert_array_equal(tokens, log_probs.argmax(axis=-1))


def test_a_tiny_nucleus_is_greedy_at_any_temperature(generate, prompts):
    limits = np.full(len(LENGTHS), WIDER, np.int32)
    expected = continuations(generate(prompts, LENGTHS, limits, GREEDY), limits)
    tiny = sampling(2.0, top_p=1e-6)
    got = continuations(generate(prompts, LENGTHS, limits, tiny), limits)
    assert_same_continuations(expected, got)


def test_log_probabilities_are_the_models_own_and_normalised(forward, generate, prompts):
    limits = np.full(len(LENGTHS), 5, np.int32)
    narrow = sampling(0.5, top_p=0.5)
    generated = generate(prompts, LENGTHS, limits, narrow)
    logits = forward(prompts, LENGTHS)
    for row, (_, log_probs) in enumerate(continuations(generated, limits)):
        np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=TOLERANCE)
        assert_same(jax.nn.log_softmax(logits[row, LENGTHS[row] - 1]), log_probs[0])


def test_the_same_seed_draws_the_same_whatever_else_is_in_the_batch(generate, prompts):
    limits = np.full(len(LENGTHS), WIDER, np.int32)
    together = continuations(generate(prompts, LENGTHS, limits, WARM), limits)
    order = np.array([2, 0, 1])
    mixed = jax.tree.map(lambda values: values[order], WARM)
    moved = continuations(
        generate(prompts[order], LENGTHS[order], limits, mixed), limits, LENGTHS[order]
    )
    assert_same_continuations([together[row] for row in order], moved)
    for row, expected in enumerate(together):
        one = slice(row, row + 1)
        own = jax.tree.map(lambda values, one=one: values[one], WARM)
        alone = generate(prompts[one], LENGTHS[one], limits[one], own)
        assert_same_continuations([expected], continuations(alone, limits[one], LENGTHS[one]))


def test_another_seed_draws_another_text(generate, prompts):
    same = np.repeat(prompts[:1], 3, axis=0)
    lengths, limits = np.full(3, 1, np.int32), np.full(3, WIDER, np.int32)
    tokens = np.asarray(generate(same, lengths, limits, WARM).tokens)
    assert len({tuple(row) for row in tokens}) == 3


@pytest.mark.parametrize("how", [GREEDY, WARM], ids=["greedy", "drawn"])
def test_generation_in_parts_is_generation_in_one_go_even_where_rows_change_company(
    small_decoder, generate, prompts, how
):
    limits = np.full(len(LENGTHS), WIDER, np.int32)
    expected = continuations(generate(prompts, LENGTHS, limits, how), limits)
    begin = jitted(small_decoder, lambda *arrays: pack(start(*arrays)))

    @functools.partial(jitted, small_decoder)
    def go_on(model, packed, how):
        state, generated = advance(model, unpack(model, packed), how, PART)
        return pack(state), generated

    packed, parts = begin(prompts, LENGTHS), []
    order = np.arange(len(LENGTHS))
    for _ in range(WIDER // PART):
        # Rows come back in another order, as those of a service may.
        order = np.roll(order, 1)
        packed, how = jax.tree.map(lambda rows: np.roll(np.asarray(rows), 1, 0), (packed, how))
        packed, generated = go_on(packed, how)
        back = np.argsort(order)
        parts.append(jax.tree.map(lambda rows, back=back: np.asarray(rows)[back], generated))
    got = Generated(*(np.concatenate(part, axis=1) for part in zip(*parts, strict=True)))
    assert_same_continuations(expected, continuations(got, limits))


def test_a_packed_state_has_the_shapes_that_are_told_without_a_model(small_decoder, prompts):
    packed = jitted(small_decoder, lambda *arrays: pack(start(*arrays)))(prompts[:1], LENGTHS[:1])
    told = packed_shapes(CONFIG)
    assert {name: (array.shape, array.dtype) for name, array in packed.items()} == {
        name: (shape.shape, shape.dtype) for name, shape in told.items()
    }


def test_bos_is_never_generated(generate, prompts):
    limits = np.full(len(LENGTHS), WIDER, np.int32)
    generated = generate(prompts, LENGTHS, limits, sampling(100.0))
    assert generated.log_probs.shape[-1] == CONFIG.vocab_size
    drawn = np.concatenate([tokens for tokens, _ in continuations(generated, limits)])
    assert ((drawn >= 0) & (drawn < CONFIG.special_id)).all()


PROBS = np.array([0.4, 0.25, 0.2, 0.1, 0.05])


def draw(probs, how, index=0):
    """The tokens that as many rows of these probabilities draw at their ``index``."""
    logits = jnp.log(jnp.asarray(probs, jnp.float32))
    rows = jnp.broadcast_to(logits, (NUM_DRAWS, len(probs)))
    return np.asarray(compiled_sample(rows, jnp.full(NUM_DRAWS, index, jnp.int32), how))


def frequencies(temperature, top_p):
    """How often each token is drawn by as many seeds."""
    drawn = draw(PROBS, sampling(temperature, top_p, seeds=range(NUM_DRAWS)))
    return np.bincount(drawn, minlength=len(PROBS)) / NUM_DRAWS


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, PROBS),
        (0.5, 1.0, PROBS**2),
        (2.0, 1.0, PROBS**0.5),
        (1.0, 0.6, [0.4, 0.25, 0, 0, 0]),
        (1.0, 0.7, [0.4, 0.25, 0.2, 0, 0]),
        (0.5, 0.8, [0.4**2, 0.25**2, 0, 0, 0]),
    ],
    ids=["plain", "cold", "hot", "nucleus of 2", "nucleus of 3", "cold nucleus"],
)
def test_draws_follow_the_distribution(temperature, top_p, expected):
    expected = np.asarray(expected) / np.sum(expected)
    found = frequencies(temperature, top_p)
    deviation = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
    assert (np.abs(found - expected) <= BOUND * deviation).all(), (found, expected)


def test_successive_draws_of_a_seed_are_independent():
    """The share of seeds that draw a token twice is the sum of the squared probabilities."""
    plain = sampling(1.0, seeds=range(NUM_DRAWS))
    first, second = (draw(PROBS, plain, index) for index in (0, 1))
    expected = (PROBS**2).sum()
    deviation = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
    assert abs((first == second).mean() - expected) <= BOUND * deviation


def test_every_draw_is_that_of_a_generator_of_its_own():
    """Whatever else is drawn at once, and at however many steps."""
    how = sampling(0.7, seeds=[3, 3, 2**32 - 1])
    logits = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)
    first = np.array([0, 4, 9], np.int32)
    noise = jax.jit(draw_noise, static_argnums=(2, 3))(how, first, PART, 5)
    for step in range(PART):
        drawn = jax.jit(sample)(logits, noise[:, step], how)
        for row in range(3):
            key = jax.random.fold_in(jax.random.key(how.seed[row]), first[row] + step)
            assert drawn[row] == jax.random.categorical(key, logits[row] / how.temperature[row])


def test_nothing_is_drawn_where_every_row_takes_the_likeliest():
    first = jnp.zeros(2, jnp.int32)
    draws = jax.jit(draw_noise, static_argnums=(2, 3))
    assert not draws(sampling(0.0, seeds=[1, 2]), first, PART, 5).any()
    mixed = sampling(0.0, seeds=[1, 2])._replace(temperature=jnp.array([0.0, 1.0]))
    assert draws(mixed, first, PART, 5).all()


def test_the_nucleus_is_the_smallest_set_with_that_much_probability():
    generator = np.random.default_rng(0)
    # No token is so rare that it might not be drawn at all.
    weights = generator.uniform(0.1, 1.0, (6, 8))
    probs = weights / weights.sum(axis=1, keepdims=True)
    for top_p in (0.1, 0.5, 0.9):
        for row in probs:
            order = np.argsort(-row)
            needed = int(np.searchsorted(np.cumsum(row[order]), top_p)) + 1
            kept = draw(row, sampling(1.0, top_p, range(NUM_DRAWS)))
            assert set(np.unique(kept)) == set(order[:needed])


def test_rows_of_one_batch_may_draw_in_different_ways():
    even = np.arange(NUM_DRAWS) % 2 == 0
    plain = sampling(1.0, seeds=range(NUM_DRAWS))
    mixed = plain._replace(temperature=jnp.where(even, 0.0, 1.0).astype(jnp.float32))
    drawn = draw(PROBS, mixed)
    assert (drawn[::2] == 0).all()
    np.testing.assert_array_equal(drawn[1::2], draw(PROBS, plain)[1::2])
