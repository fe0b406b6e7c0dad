import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint import Bundle, ModelCard
from models.products import multiplied_in, product
from models.vocabulary import Vocabulary
from service.engine import Engine, Slot
from service.errors import NonFiniteOutput, TooLarge
from service.programs import Grid, Program, Ragged, collate, longest_of, make_grid
from service.tasks import PROGRAMS
from tests.jaxprs import products_of
from tests.service import tiny

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


def make_engine(model=None, dtype="float32"):
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
    return Engine(Bundle(card, model or Averager()), [program], dtype)


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


def test_a_model_that_gives_nan_does_not_pass_its_warm_up():
    model = Averager()
    model.scale[...] = jnp.array(jnp.nan)
    with pytest.raises(NonFiniteOutput, match="average: mean holds NaN or infinity"):
        make_engine(model).warm_up(lambda shape: None)


def test_warm_up_runs_every_shape_full_as_requests_would(monkeypatch):
    ran = []
    engine = make_engine()
    run = engine.run

    def note(name, rows):
        ran.append((len(rows), len(rows[0]["values"])))
        return run(name, rows)

    monkeypatch.setattr(engine, "run", note)
    engine.warm_up(lambda shape: None)
    assert ran == list(GRID)
    assert engine.num_shapes == len(GRID)


def test_rows_on_trial_take_the_values_that_give_them_something_to_do():
    seen = []

    def function(model, values, lengths, shift):
        return {"shift": shift}

    program = replace(make_engine().programs["average"], function=function, trial={"shift": 7})
    engine = Engine(Bundle(tiny.cards()[0], Averager()), [program])
    run = engine.run
    engine.run = lambda name, rows: seen.extend(run(name, rows)) or []
    engine.warm_up(lambda shape: None)
    assert [float(result["shift"]) for result in seen] == [7.0] * sum(batch for batch, _ in GRID)


def test_arrays_of_a_row_stand_at_the_start_of_what_padding_rows_hold():
    def arrays(length):
        return {"table": np.full((length, 2), 7, np.float32), "count": np.array(3, np.int32)}

    program = replace(make_engine().programs["average"], grid=((4, 4),), arrays=arrays)
    row = {"values": np.ones(3, np.float32), "shift": 1.0}
    tables = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = [
        row | {"table": tables, "count": 5},
        row | {"table": tables[:1], "count": np.int32(6)},
        row | {"table": tables[:0], "count": np.array(0)},
    ]
    *_, table, count = collate(program, rows, 4, 4).views
    np.testing.assert_array_equal(table[0], tables)
    np.testing.assert_array_equal(table[1], [[0, 1], [7, 7], [7, 7], [7, 7]])
    np.testing.assert_array_equal(table[2:], np.full((2, 4, 2), 7))
    assert (table.dtype, count.dtype) == (np.float32, np.int32)
    assert count.tolist() == [5, 6, 0, 3]


def test_arrays_reach_the_program_behind_the_scalars_and_each_row_gets_its_own():
    def function(model, values, lengths, shift, table):
        return {"sum": table.sum(axis=1) + shift}

    def arrays(length):
        return {"table": np.zeros(length, np.float32)}

    average = make_engine().programs["average"]
    program = replace(average, function=function, arrays=arrays, grid=((1, 4), (2, 4)))
    engine = Engine(Bundle(tiny.cards()[0], Averager()), [program])
    engine.warm_up(lambda shape: None)
    row = {"values": np.ones(1, np.float32)}
    tables = [np.array([1, 2], np.float32), np.array([4], np.float32)]
    rows = [
        row | {"table": table, "shift": shift}
        for table, shift in zip(tables, (10, 20), strict=True)
    ]
    assert [float(result["sum"]) for result in engine.run("average", rows)] == [13.0, 24.0]


def test_in_half_the_width_only_what_is_multiplied_is_rounded():
    third = np.float32(1 / 3)

    class Scaling(Averager):
        def __call__(self, values, lengths, shift):
            ones = jnp.ones((values.shape[1], 1))
            return {"sum": product("BT,TD->BD", values, ones), "shift": shift}

    engine = make_engine(Scaling(), "bfloat16")
    engine.warm_up(lambda shape: None)
    (result,) = engine.run("average", [{"values": np.full(3, third), "shift": third}])
    assert result["sum"].dtype == result["shift"].dtype == np.float32
    assert float(result["shift"]) == third
    np.testing.assert_allclose(result["sum"], 3 * jnp.bfloat16(third).astype(np.float32))
    # Eight bits of mantissa.
    assert 0 < abs(float(result["sum"][0]) - 1) < 2**-8


@pytest.mark.parametrize(
    ("wiring", "index"), [(w, 0) for w in sorted(PROGRAMS)] + [("encoder-decoder", 4)]
)
def test_every_wiring_computes_in_half_the_width(wiring, index):
    card = next(card for card in tiny.cards() if card.wiring == wiring)
    program = PROGRAMS[wiring](card)[index]
    program = replace(program, grid=((1, min(n for _, n in program.grid)),))
    engine = Engine(Bundle(card, tiny.model(card)), [program], "bfloat16")
    engine.warm_up(lambda shape: None)
    function = program.function
    form = engine._forms[program.pack]

    def run(leaves, *arrays):
        return function(form.rebuild(leaves), *arrays)

    arguments = collate(program, [], *program.grid[0]).views
    with multiplied_in("bfloat16"):
        found = list(products_of(jax.make_jaxpr(run)(form.leaves, *arguments).jaxpr))
    widths = {is_batched: set() for is_batched in (False, True)}
    for each in found:
        is_batched = each.params["dimension_numbers"][1] != ((), ())
        widths[is_batched] |= {operand.aval.dtype.name for operand in each.invars}
    assert widths[False] == {"bfloat16"}
    # Products of many small matrices at once are the attention's, and a Perceiver's reading, which
    # is folded at this length.
    assert widths[True] == {"float32"} | ({"bfloat16"} if wiring == "perceiver" else set())
    # Matrices are kept in it; what is looked up is not, and neither are states.
    assert {leaf.dtype for leaf in form.leaves} == {jnp.dtype("bfloat16"), jnp.dtype("float32")}


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


def test_a_slot_takes_no_more_rows_than_the_largest_batch_of_its_length(engine):
    slots = [Slot(engine, "average", bucket) for bucket in (4, 8, 16)]
    assert [slot.fit(100) for slot in slots] == [4, 4, 2]
    for slot in slots:
        rows = draw_rows(np.random.default_rng(4), slot.fit(100), longest=slot.bucket)
        assert len(slot.run(rows)) == len(rows)


@pytest.mark.parametrize(
    ("call_cost_rows", "taken"),
    [
        # As good as nothing: no row of padding is worth it, the larger batch is by a little.
        (0.01, [1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 16, 16]),
        # As long as a row: padding is worth it where it is a small part.
        (1.0, [1, 1, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 14, 15, 16, 16]),
        # As long as many: everything that waits goes at once.
        (64.0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 16]),
    ],
)
def test_padding_is_taken_for_what_a_call_costs_by_itself(call_cost_rows, taken):
    program = replace(make_engine().programs["average"], grid=((1, 4), (4, 4), (16, 4)))
    bundle = Bundle(tiny.cards()[0], Averager())
    engine = Engine(bundle, [program], call_cost_rows=call_cost_rows)
    assert [engine.fit("average", 4, num_rows) for num_rows in range(1, 18)] == taken


def test_threads_that_run_one_engine_at_once_each_get_their_own_results(engine):
    def averages(value):
        row = {"values": np.full(3, value, np.float32), "shift": 0.0}
        return [float(engine.run("average", [row] * 2)[1]["mean"]) for _ in range(50)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(averages, (1, 2, 3, 4)))
    assert found == [[2.0 * value] * 50 for value in (1, 2, 3, 4)]


def test_shapes_compiled_side_by_side_are_those_compiled_in_turn():
    engine, told = make_engine(), []
    engine.warm_up(told.append, 3)
    assert sorted(told) == sorted(f"average {batch}x{length}" for batch, length in GRID)
    row = {"values": np.ones(3, np.float32), "shift": 0.5}
    assert [float(result["mean"]) for result in engine.run("average", [row] * 4)] == [2.5] * 4


def test_what_stops_one_shape_stops_those_beside_it():
    def progress(shape):
        if len(told) == 2:
            raise InterruptedError(shape)
        told.append(shape)

    told: list[str] = []
    with pytest.raises(InterruptedError):
        make_engine().warm_up(progress, 2)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("grid", "shapes"),
    [
        (Grid(), [(1, 4), (2, 4), (4, 4), (1, 8), (2, 8), (4, 8), (1, 16), (2, 16), (4, 16)]),
        (Grid(max_tokens=16), [(1, 4), (2, 4), (4, 4), (1, 8), (2, 8), (1, 16)]),
        (Grid(batch_sizes=(3,), lengths=()), [(1, 16), (3, 16)]),
        (Grid(batch_sizes=(), lengths=(5, 40)), [(1, 5), (1, 16)]),
    ],
)
def test_a_program_takes_the_shapes_that_are_chosen_for_it(grid, shapes):
    program = make_engine().programs["average"]
    assert list(grid.apply(program).grid) == shapes
    assert program.grid == GRID


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
        # A batch that would hold too many tokens is made as small as need be.
        assert all(batch == 1 or batch * length <= max_tokens for batch in batches)
        assert max(batches) == max([1, *(min(b, max_tokens // length) for b in batch_sizes)])
        assert {b for b in batch_sizes if b * length <= max_tokens} <= set(batches)


def test_what_is_seldom_asked_for_has_the_longest_shapes_alone():
    assert longest_of(GRID, 2) == ((1, 16), (2, 16))
