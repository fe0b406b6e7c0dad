import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.blocks import TransformerConfig
from models.decoder import CausalLanguageModel, Sampling, sample
from training.step import jitted

# Sums of a few dozen float32 products, taken in another order.
TOLERANCE = 1e-5
# Standard deviations that a frequency of independent draws may be off; one in 10^6 is.
BOUND = 5
NUM_DRAWS = 20_000
SIZE, WIDER = 6, 12
LENGTHS = np.array([6, 1, 4], np.int32)
CONFIG = TransformerConfig(vocab_size=7, embed_dim=16, num_heads=2, num_layers=2, max_seq_len=WIDER)

compiled_sample = jax.jit(sample)


@pytest.fixture(scope="module")
def model():
    """A model whose answers differ by position, because its embeddings are large."""
    model = CausalLanguageModel(CONFIG, rngs=nnx.Rngs(0))
    for table, factor in ((model.token_embedding, 10.0), (model.position_embedding, 50.0)):
        table.embedding[...] = table.embedding[...] * factor
    return model


@pytest.fixture(scope="module")
def forward(model):
    return jitted(model, CausalLanguageModel.__call__)


@pytest.fixture(scope="module")
def generate(model):
    return jitted(model, CausalLanguageModel.generate)


@pytest.fixture(scope="module")
def prompts():
    """Prompts behind <bos>, with garbage behind each row's length."""
    tokens = np.random.default_rng(0).integers(0, 8, (len(LENGTHS), WIDER), dtype=np.int32)
    tokens[:, 0] = CONFIG.special_id
    return tokens


def sampling(temperature, top_p=1.0, seeds=(1, 2, 3)):
    size = len(seeds)
    return Sampling(
        jnp.full(size, temperature, jnp.float32),
        jnp.full(size, top_p, jnp.float32),
        jnp.array(seeds, jnp.uint32),
    )


GREEDY, WARM = sampling(0.0), sampling(1.0)


def assert_same(expected, got):
    np.testing.assert_allclose(expected, got, atol=TOLERANCE)


def continuations(generated, limits, lengths=LENGTHS):
    """What was generated for each row, as far as it means anything."""
    sizes = np.minimum(limits, WIDER + 1 - lengths)
    tokens, log_probs = np.asarray(generated.tokens), np.asarray(generated.log_probs)
    return [(tokens[row, :size], log_probs[row, :size]) for row, size in enumerate(sizes)]


def assert_same_continuations(expected, got):
    for (tokens, log_probs), (other_tokens, other_log_probs) in zip(expected, got, strict=True):
        np.testing.assert_array_equal(tokens, other_tokens)
        assert_same(log_probs, other_log_probs)


def test_padding_does_not_change_an_answer(forward, prompts):
    short, wide = forward(prompts[:, :SIZE], LENGTHS), forward(prompts, LENGTHS)
    for row, length in enumerate(LENGTHS):
        assert_same(short[row, :length], wide[row, :length])


def test_a_batch_of_one_equals_a_batch_of_many(forward, prompts):
    together = forward(prompts, LENGTHS)
    for row, length in enumerate(LENGTHS):
        alone = forward(prompts[row : row + 1], LENGTHS[row : row + 1])
        assert_same(together[row, :length], alone[0, :length])


def test_no_output_depends_on_the_future(forward, prompts):
    full = np.full(len(LENGTHS), WIDER, np.int32)
    expected = np.asarray(forward(prompts, full))
    for position in (1, 5, WIDER - 1):
        changed = prompts.copy()
        changed[:, position:] = (changed[:, position:] + 1) % CONFIG.vocab_size
        got = np.asarray(forward(changed, full))
        assert_same(expected[:, :position], got[:, :position])
        assert (np.abs(expected - got)[:, position].max(axis=-1) > TOLERANCE).all()


def test_every_output_depends_on_the_past(forward, prompts):
    full = np.full(len(LENGTHS), WIDER, np.int32)
    changed = prompts.copy()
    changed[:, 1] = (changed[:, 1] + 1) % CONFIG.vocab_size
    change = np.abs(np.asarray(forward(prompts, full)) - np.asarray(forward(changed, full)))
    assert (change[:, 1:].max(axis=-1) > TOLERANCE).all()


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


def test_bos_is_never_generated(generate, prompts):
    limits = np.full(len(LENGTHS), WIDER, np.int32)
    generated = generate(prompts, LENGTHS, limits, sampling(100.0))
    assert generated.log_probs.shape[-1] == CONFIG.vocab_size
    drawn = np.concatenate([tokens for tokens, _ in continuations(generated, limits)])
    assert ((drawn >= 0) & (drawn < CONFIG.special_id)).all()


PROBS = np.array([0.4, 0.25, 0.2, 0.1, 0.05])


def frequencies(temperature, top_p, index=0):
    """How often each token is drawn by as many seeds."""
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(PROBS, jnp.float32)), (NUM_DRAWS, len(PROBS)))
    drawn = compiled_sample(
        logits, jnp.array(index), sampling(temperature, top_p, seeds=range(NUM_DRAWS))
    )
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
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(PROBS, jnp.float32)), (NUM_DRAWS, len(PROBS)))
    plain = sampling(1.0, seeds=range(NUM_DRAWS))
    first, second = (np.asarray(compiled_sample(logits, jnp.array(i), plain)) for i in (0, 1))
    expected = (PROBS**2).sum()
    deviation = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
    assert abs((first == second).mean() - expected) <= BOUND * deviation


def test_the_nucleus_is_the_smallest_set_with_that_much_probability():
    generator = np.random.default_rng(0)
    # No token is so rare that it might not be drawn at all.
    weights = generator.uniform(0.1, 1.0, (6, 8))
    probs = weights / weights.sum(axis=1, keepdims=True)
    for top_p in (0.1, 0.5, 0.9):
        for row in probs:
            order = np.argsort(-row)
            needed = int(np.searchsorted(np.cumsum(row[order]), top_p)) + 1
            rows = jnp.broadcast_to(jnp.log(jnp.asarray(row, jnp.float32)), (NUM_DRAWS, 8))
            kept = compiled_sample(rows, jnp.array(0), sampling(1.0, top_p, range(NUM_DRAWS)))
            assert set(np.unique(kept)) == set(order[:needed])


def test_rows_of_one_batch_may_draw_in_different_ways():
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(PROBS, jnp.float32)), (NUM_DRAWS, len(PROBS)))
    even = jnp.arange(NUM_DRAWS) % 2 == 0
    plain = sampling(1.0, seeds=range(NUM_DRAWS))
    mixed = plain._replace(temperature=jnp.where(even, 0.0, 1.0).astype(jnp.float32))
    drawn = np.asarray(compiled_sample(logits, jnp.array(0), mixed))
    assert (drawn[::2] == 0).all()
    np.testing.assert_array_equal(
        drawn[1::2], np.asarray(compiled_sample(logits, jnp.array(0), plain))[1::2]
    )
