import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint import Bundle, ModelCard
from models.vocabulary import Vocabulary
from service.engine import Engine, Program, Ragged, Slot, make_grid
from service.errors import NonFiniteOutput, TooLarge

GRID = make_grid(16, batch_sizes=(2, 4), shortest=4, factor=2, max_tokens=32)
# Sums over padding differ in the order of additions and in nothing else.
RTOL = 1e-6


class Averager(nnx.Module):
    """Scales the mean of every row; counts how often it is traced."""

    num_traces = 0

    def __init__(self):
        self.scale = nnx.Param(jnp.array(2.0))

    def __call__(self, values, lengths, shift):
        type(self).num_traces += 1
        real = jnp.arange(values.shape[1])[None] < lengths[:, None]
        mean = jnp.where(real, values, 0).sum(axis=1) / lengths.astype(jnp.float32)
        return {"mean": self.scale[...] * mean + shift, "values": values}


def make_engine(model=None):
    card = ModelCard(
        name="averager",
        version=1,
        created=0,
        wiring="none",
        config={},
        vocabulary=Vocabulary(symbols=("a",), specials=()),
        limits={},
    )
    program = Program(
        name="average",
        function=lambda model, *arrays: model(*arrays),
        ragged=Ragged(name="values", dtype=np.float32),
        scalars=(("shift", np.float32(0)),),
        grid=GRID,
    )
    return Engine(Bundle(card, model or Averager()), [program])


@pytest.fixture(scope="module")
def engine():
    engine = make_engine()
    engine.warm_up(lambda shape: None)
    return engine


def draw_rows(generator, count, longest=16):
    return [
        {
            "values": generator.normal(size=generator.integers(1, longest + 1)).astype(np.float32),
            "shift": generator.normal(),
        }
        for _ in range(count)
    ]


def expected(row):
    return 2 * row["values"].mean() + row["shift"]


def test_padded_rows_give_what_unpadded_ones_would(engine):
    rows = draw_rows(np.random.default_rng(0), 100)
    for row in rows:
        (result,) = engine.run("average", [row])
        np.testing.assert_allclose(result["mean"], expected(row), rtol=RTOL, atol=RTOL)


def test_a_batch_of_many_gives_what_batches_of_one_do(engine):
    generator = np.random.default_rng(1)
    for count in (1, 2, 3, 4) * 5:
        rows = draw_rows(generator, count, longest=8)
        together = engine.run("average", rows)
        assert len(together) == count
        for row, result in zip(rows, together, strict=True):
            (alone,) = engine.run("average", [row])
            np.testing.assert_allclose(result["mean"], alone["mean"], rtol=RTOL, atol=RTOL)
            np.testing.assert_array_equal(result["values"][: len(row["values"])], row["values"])


def test_nothing_is_traced_or_compiled_after_warm_up(engine):
    compiled = []

    def note(event, duration_s, **_):
        if "compile" in event:
            compiled.append(event)

    num_traces = Averager.num_traces
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        jax.jit(lambda x: x * 3)(np.float32(1))
        assert compiled, "expected the listener to notice a compilation"
        compiled.clear()
        generator = np.random.default_rng(2)
        for count in (1, 2, 3, 4, 1, 2) * 10:
            engine.run("average", draw_rows(generator, count, longest=8))
            engine.run("average", draw_rows(generator, 1))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == []
    assert Averager.num_traces == num_traces


def test_warm_up_compiles_every_shape_of_the_grid_once_and_tells_of_each():
    told = []
    num_traces = Averager.num_traces
    engine = make_engine()
    engine.warm_up(told.append)
    assert told == [f"average {batch}x{length}" for batch, length in GRID]
    assert set(engine._compiled) == {("average", batch, length) for batch, length in GRID}
    assert Averager.num_traces - num_traces == len(GRID)


def test_nan_in_parameters_is_found_in_every_row():
    model = Averager()
    model.scale[...] = jnp.array(jnp.nan)
    engine = make_engine(model)
    engine.warm_up(lambda shape: None)
    outcomes = engine.run("average", draw_rows(np.random.default_rng(3), 2, longest=4))
    assert [type(outcome) for outcome in outcomes] == [NonFiniteOutput, NonFiniteOutput]
    assert str(outcomes[0]) == "average: mean holds NaN or infinity"


def test_a_row_that_overflows_does_not_spoil_those_beside_it(engine):
    fine = {"values": np.ones(3, np.float32), "shift": 0.0}
    wild = {"values": np.full(3, 3e38, np.float32), "shift": 0.0}
    first, second, third = engine.run("average", [fine, wild, fine])
    assert first["mean"] == third["mean"] == 2.0
    assert isinstance(second, NonFiniteOutput)


def test_a_row_longer_than_every_bucket_is_too_large(engine):
    program = engine.programs["average"]
    assert [program.bucket(length) for length in (0, 1, 4, 5, 8, 9, 16)] == [4, 4, 4, 8, 8, 16, 16]
    with pytest.raises(TooLarge, match="at most 16 tokens, got 17"):
        program.bucket(17)
    with pytest.raises(TooLarge):
        engine.run("average", [{"values": np.zeros(17, np.float32), "shift": 0.0}])


def test_a_slot_takes_as_many_rows_as_the_largest_batch_of_its_length(engine):
    slots = [Slot(engine, "average", bucket) for bucket in (4, 8, 16)]
    assert [slot.capacity() for slot in slots] == [4, 4, 2]
    for slot in slots:
        rows = draw_rows(np.random.default_rng(4), slot.capacity(), longest=slot.bucket)
        assert len(slot.run(rows)) == len(rows)


@given(
    max_len=st.integers(1, 10_000),
    batch_sizes=st.lists(st.integers(1, 64), max_size=4),
    shortest=st.integers(1, 512),
    factor=st.integers(2, 8),
    max_tokens=st.integers(1, 10_000),
)
def test_a_grid_covers_every_length_once_within_its_budget(
    max_len, batch_sizes, shortest, factor, max_tokens
):
    grid = make_grid(
        max_len,
        batch_sizes=batch_sizes,
        shortest=shortest,
        factor=factor,
        max_tokens=max_tokens,
    )
    lengths = sorted({length for _, length in grid})
    assert len(set(grid)) == len(grid)
    assert lengths[-1] == max_len
    assert all(long <= short * factor for short, long in itertools.pairwise(lengths))
    for length in lengths:
        batches = [batch for batch, size in grid if size == length]
        assert batches == sorted(batches)
        assert batches[0] == 1
        wanted = {batch for batch in batch_sizes if batch * length <= max_tokens}
        assert set(batches) == {1, *wanted}
