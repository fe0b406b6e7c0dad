import asyncio
import contextlib
import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batcher import Batcher
from service.batches import Ticket
from service.errors import DeadlineExceeded, NotReady, Overloaded, TooLarge
from tests.service.fakes import PATIENCE_S, Gate, Recorder

CAPACITY = 4
LONG_S = 60.0


@contextlib.asynccontextmanager
async def running(run, *, capacity=CAPACITY, max_rows=1000, num_workers=1):
    batcher = Batcher(
        run,
        lambda key, num_rows: min(num_rows, capacity),
        max_rows=max_rows,
        num_workers=num_workers,
    )
    await batcher.start()
    try:
        yield batcher
    finally:
        await batcher.stop()


@contextlib.asynccontextmanager
async def occupied(gate, *, run=None, **options):
    """A batcher of which one worker is held up inside ``gate`` by one row of the key "held"."""
    async with running(run or gate, **options) as batcher:
        held = asyncio.create_task(batcher.submit([("held", "first")], Ticket.within(LONG_S)))
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        try:
            yield batcher
        finally:
            gate.opened.set()
            with contextlib.suppress(NotReady):
                await held


def submit(batcher, key, rows, seconds=LONG_S):
    groups = [(key, row) for row in rows]
    return asyncio.create_task(batcher.submit(groups, Ticket.within(seconds)))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_concurrent_requests_of_mixed_sizes_each_get_exactly_their_own_rows(num_workers):
    generator = random.Random(0)
    requests = [
        [(generator.choice("abc"), (request, row)) for row in range(generator.randint(1, 11))]
        for request in range(400)
    ]
    run = Recorder()

    async def main():
        async with running(run, max_rows=10_000, num_workers=num_workers) as batcher:

            async def late(groups):
                for _ in range(generator.randint(0, 3)):
                    await asyncio.sleep(0)
                return await batcher.submit(groups, Ticket.within(LONG_S))

            return await asyncio.gather(*map(late, requests))

    answers = asyncio.run(main())
    assert answers == requests
    assert sorted(run.rows) == sorted(row for groups in requests for _, row in groups)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), min_size=1, max_size=8),
    st.integers(1, 5),
)
def test_every_batch_holds_one_key_and_no_more_rows_than_fit(requests, capacity):
    run = Recorder()
    groups = [[(key, (i, j)) for j, key in enumerate(keys)] for i, keys in enumerate(requests)]

    async def main():
        async with running(run, capacity=capacity) as batcher:
            tasks = [batcher.submit(group, Ticket.within(LONG_S)) for group in groups]
            return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == groups
    assert all(1 <= len(rows) <= capacity for _, rows in run.batches)
    assert sorted(run.rows) == sorted(row for group in groups for _, row in group)
    keys = {row: key for group in groups for key, row in group}
    assert all(keys[row] == key for key, rows in run.batches for row in rows)


def test_requests_that_wait_together_share_batches_of_their_key():
    gate = Gate()

    async def main():
        async with occupied(gate) as batcher:
            waiting = [
                submit(batcher, "a", [1]),
                submit(batcher, "b", [2]),
                submit(batcher, "a", [3, 4]),
                submit(batcher, "b", [5]),
            ]
            await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(*waiting)

    asyncio.run(main())
    assert gate.batches == [("held", ["first"]), ("a", [1, 3, 4]), ("b", [2, 5])]


def test_workers_that_are_free_share_what_waits_and_compute_side_by_side():
    both = threading.Barrier(2)

    def run(key, rows):
        both.wait(PATIENCE_S)
        return [(key, row, len(rows)) for row in rows]

    async def main():
        async with running(run, capacity=16, num_workers=2) as batcher:
            return await submit(batcher, "a", range(7))

    assert asyncio.run(main()) == [("a", row, 4 if row < 4 else 3) for row in range(7)]


def test_rows_come_back_in_order_though_the_batch_of_the_first_ends_last():
    second = threading.Event()

    def run(key, rows):
        if rows[0] == 0:
            assert second.wait(PATIENCE_S)
        return [(key, row) for row in rows]

    async def main():
        async with running(run, capacity=16, num_workers=2) as batcher:
            whole = submit(batcher, "a", range(7))
            await submit(batcher, "b", ["after the second half"])
            second.set()
            return await whole

    assert asyncio.run(main()) == [("a", row) for row in range(7)]


def test_a_worker_that_is_busy_leaves_the_others_all_that_comes():
    gate = Gate(lambda key, rows: [len(rows)] * len(rows))

    def run(key, rows):
        return gate(key, rows) if key == "held" else [len(rows)] * len(rows)

    async def main():
        async with occupied(gate, run=run, capacity=16, num_workers=2) as batcher:
            sizes = await submit(batcher, "a", range(7))
            assert batcher.busy_s > 0
            return sizes

    assert asyncio.run(main()) == [7] * 7


def test_workers_are_idle_that_neither_compute_nor_will_once_what_waits_is_handed_out():
    gate = Gate()

    async def main():
        async with occupied(gate, num_workers=3) as batcher:
            idle = [batcher.num_idle]
            for row in range(3):
                task = submit(batcher, "a", [row])
                await asyncio.sleep(0)
                idle.append(batcher.num_idle)
            gate.opened.set()
            await task
            return idle

    assert asyncio.run(main()) == [2, 1, 0, 0]


def test_workers_for_whose_rows_there_is_no_room_are_not_idle():
    async def main():
        async with running(Recorder(), max_rows=2, num_workers=4) as batcher:
            return batcher.num_idle

    assert asyncio.run(main()) == 2


def test_when_one_of_several_workers_dies_the_others_are_replaced_with_it(monkeypatch):
    monkeypatch.setattr("service.batcher.RESTART_DELAY_S", 0.01)
    gate = Gate()

    async def main():
        async with running(gate, num_workers=3) as batcher:
            under_way = submit(batcher, "a", [1])
            assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            drop_abandoned = batcher._drop_abandoned
            monkeypatch.setattr(batcher, "_drop_abandoned", lambda: 1 / 0)
            dead = submit(batcher, "b", [2])
            for task in (under_way, dead):
                with pytest.raises(NotReady, match="the worker has stopped"):
                    await task
            monkeypatch.setattr(batcher, "_drop_abandoned", drop_abandoned)
            gate.opened.set()
            while not batcher.is_alive:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert batcher.busy_s == 0
            return await submit(batcher, "a", [3])

    assert asyncio.run(main()) == [("a", 3)]


def test_an_oversize_request_is_split_in_order_and_leaves_room_to_the_next_one():
    gate = Gate()

    async def main():
        async with occupied(gate) as batcher:
            waiting = [submit(batcher, "a", range(10)), submit(batcher, "a", [10, 11, 12])]
            await asyncio.sleep(0)
            gate.opened.set()
            return await asyncio.gather(*waiting)

    big, small = asyncio.run(main())
    assert big == [("a", row) for row in range(10)]
    assert small == [("a", row) for row in (10, 11, 12)]
    assert [rows for _, rows in gate.batches[1:]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12],
    ]


def test_a_full_queue_refuses_at_once_and_takes_requests_again_when_it_has_room():
    gate = Gate()

    async def main():
        async with occupied(gate, max_rows=5) as batcher:
            waiting = submit(batcher, "a", range(4))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="4 of 5 rows wait"):
                await submit(batcher, "a", [8, 9])
            fitting = submit(batcher, "a", [10])
            await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(waiting, fitting)
            return await submit(batcher, "a", range(5))

    assert asyncio.run(main()) == [("a", row) for row in range(5)]


def test_rows_that_nobody_waits_for_take_no_room_in_the_queue():
    gate = Gate()

    async def main():
        async with occupied(gate, max_rows=5) as batcher:
            left = submit(batcher, "a", range(5))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            fitting = submit(batcher, "a", range(10, 15))
            await asyncio.sleep(0)
            gate.opened.set()
            return await fitting

    assert asyncio.run(main()) == [("a", row) for row in range(10, 15)]


def test_a_request_that_the_queue_can_never_hold_is_too_large():
    async def main():
        async with running(Recorder(), max_rows=5) as batcher:
            with pytest.raises(TooLarge, match="at most 5 rows a request, got 6"):
                await submit(batcher, "a", range(6))
            return await submit(batcher, "a", range(5))

    assert len(asyncio.run(main())) == 5


def test_a_request_past_its_deadline_fails_and_its_rows_never_run():
    gate = Gate()

    async def main():
        async with occupied(gate) as batcher:
            with pytest.raises(DeadlineExceeded):
                await submit(batcher, "a", ["late"] * 6, seconds=0.02)
            gate.opened.set()
            await submit(batcher, "a", ["next"])

    asyncio.run(main())
    assert gate.rows == ["first", "next"]


def test_rows_of_an_expired_ticket_are_not_taken_even_before_the_loop_notices():
    run = Recorder()

    async def main():
        async with running(run) as batcher:
            with pytest.raises(DeadlineExceeded):
                await batcher.submit([("a", "late")], Ticket(deadline=time.monotonic() - 1))
            await submit(batcher, "a", ["next"])

    asyncio.run(main())
    assert run.rows == ["next"]


def test_a_deadline_that_passes_while_the_batch_runs_does_not_harm_the_next_request():
    gate = Gate()

    async def main():
        async with running(gate) as batcher:
            with pytest.raises(DeadlineExceeded):
                await submit(batcher, "a", ["late"], seconds=0.02)
            gate.opened.set()
            return await submit(batcher, "a", ["next"])

    assert asyncio.run(main()) == [("a", "next")]


def test_rows_of_a_caller_that_left_never_run():
    gate = Gate()

    async def main():
        async with occupied(gate) as batcher:
            left = submit(batcher, "a", ["left"] * 9)
            stayed = submit(batcher, "a", ["stayed"])
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            gate.opened.set()
            return await stayed

    assert asyncio.run(main()) == [("a", "stayed")]
    assert gate.rows == ["first", "stayed"]


def test_the_rest_of_a_split_request_does_not_run_when_its_caller_leaves_in_between():
    gate = Gate()

    async def main():
        async with running(gate) as batcher:
            left = submit(batcher, "a", range(10))
            assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            gate.opened.set()
            await submit(batcher, "b", ["next"])

    asyncio.run(main())
    assert gate.batches == [("a", [0, 1, 2, 3]), ("b", ["next"])]


def test_a_failing_batch_fails_its_own_requests_and_the_next_one_works():
    def run(key, rows):
        if "poison" in rows:
            raise ArithmeticError("no such row")
        return [(key, row) for row in rows]

    gate = Gate(run)

    async def main():
        async with occupied(gate) as batcher:
            outcomes = [
                submit(batcher, "a", ["poison"]),
                submit(batcher, "a", ["bystander"]),
                submit(batcher, "b", ["other"]),
            ]
            await asyncio.sleep(0)
            gate.opened.set()
            settled = await asyncio.gather(*outcomes, return_exceptions=True)
            assert batcher.is_alive
            return settled, await submit(batcher, "a", ["next"])

    (poisoned, bystander, other), following = asyncio.run(main())
    assert isinstance(poisoned, ArithmeticError)
    assert isinstance(bystander, ArithmeticError)
    assert other == [("b", "other")]
    assert following == [("a", "next")]


def test_a_row_whose_result_is_an_exception_fails_its_own_request_alone():
    def run(key, rows):
        return [ArithmeticError(row) if row == "poison" else row for row in rows]

    gate = Gate(run)

    async def main():
        async with occupied(gate) as batcher:
            outcomes = [
                submit(batcher, "a", ["fine", "poison", *range(6)]),
                submit(batcher, "a", ["bystander"]),
            ]
            await asyncio.sleep(0)
            gate.opened.set()
            return await asyncio.gather(*outcomes, return_exceptions=True)

    poisoned, bystander = asyncio.run(main())
    assert isinstance(poisoned, ArithmeticError)
    assert bystander == ["bystander"]


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [*rows, 0]])
def test_a_wrong_number_of_results_is_an_error_and_not_a_mix_up(change):
    def run(key, rows):
        return change(list(rows)) if key == "wrong" else list(rows)

    async def main():
        async with running(run) as batcher:
            both = [submit(batcher, "wrong", [1, 2]), submit(batcher, "wrong", [3])]
            settled = await asyncio.gather(*both, return_exceptions=True)
            return settled, await submit(batcher, "right", [4])

    failed, following = asyncio.run(main())
    assert all(isinstance(error, RuntimeError) for error in failed)
    assert all("results" in str(error) for error in failed)
    assert following == [4]


def test_a_key_without_a_capacity_fails_its_own_request_and_the_worker_goes_on():
    capacities = {"a": 1}

    async def main():
        batcher = Batcher(Recorder(), lambda key, num_rows: capacities[key], max_rows=10)
        await batcher.start()
        with pytest.raises(KeyError):
            await submit(batcher, "b", [1])
        answer = await submit(batcher, "a", [1])
        await batcher.stop()
        return answer

    assert asyncio.run(main()) == [("a", 1)]


def test_stop_fails_what_is_queued_and_what_is_under_way_with_not_ready():
    gate = Gate()

    async def main():
        batcher = Batcher(gate, lambda key, num_rows: min(num_rows, CAPACITY), max_rows=10)
        await batcher.start()
        under_way = submit(batcher, "a", [1])
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        queued = submit(batcher, "b", [2])
        await asyncio.sleep(0)
        stopping = asyncio.create_task(batcher.stop())
        settled = await asyncio.gather(under_way, queued, return_exceptions=True)
        gate.opened.set()
        await stopping
        return settled

    assert [type(error) for error in asyncio.run(main())] == [NotReady, NotReady]
    assert gate.rows == [1]


def test_is_alive_tells_whether_rows_are_taken():
    async def main():
        batcher = Batcher(Recorder(), lambda key, num_rows: min(num_rows, CAPACITY), max_rows=10)
        states = [batcher.is_alive]
        with pytest.raises(NotReady):
            await submit(batcher, "a", [1])
        await batcher.start()
        states.append(batcher.is_alive)
        await batcher.stop()
        states.append(batcher.is_alive)
        with pytest.raises(NotReady):
            await submit(batcher, "a", [1])
        return states

    assert asyncio.run(main()) == [False, True, False]


def test_a_worker_that_dies_fails_what_is_queued_and_is_replaced(monkeypatch, caplog):
    monkeypatch.setattr("service.batcher.RESTART_DELAY_S", 0.05)
    gate = Gate()

    async def main():
        async with occupied(gate, max_rows=5) as batcher:
            queued = submit(batcher, "a", range(5))
            await asyncio.sleep(0)
            drop_abandoned = batcher._drop_abandoned
            monkeypatch.setattr(batcher, "_drop_abandoned", lambda: 1 / 0)
            gate.opened.set()
            with pytest.raises(NotReady, match="the worker has stopped"):
                await queued
            assert not batcher.is_alive
            assert batcher.num_rows == 0
            with pytest.raises(NotReady):
                await submit(batcher, "a", [2])
            monkeypatch.setattr(batcher, "_drop_abandoned", drop_abandoned)
            while not batcher.is_alive:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert batcher.num_restarts == 1
            return await submit(batcher, "a", range(5))

    assert len(asyncio.run(main())) == 5
    assert "the worker has died" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_observer_is_told_of_every_batch_even_of_one_that_failed():
    told = []

    def run(key, rows):
        if key == "bad":
            raise ArithmeticError
        return list(rows)

    gate = Gate(run)

    async def main():
        batcher = Batcher(
            gate, lambda key, num_rows: min(num_rows, 4), max_rows=100, observe=told.append
        )
        await batcher.start()
        first = submit(batcher, "held", [0])
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
        waiting = [submit(batcher, "a", range(6)), submit(batcher, "bad", [7])]
        await asyncio.sleep(0.02)
        assert batcher.busy_s > 0
        assert batcher.num_rows == 7
        gate.opened.set()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert batcher.busy_s == 0
        await batcher.stop()

    asyncio.run(main())
    assert [(b.key, list(b.rows), b.results) for b in told] == [
        ("held", [0], [0]),
        ("a", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("a", [4, 5], [4, 5]),
        ("bad", [7], None),
    ]
    assert all(len(batch.waited_s) == 1 for batch in told)
    assert told[1].waited_s[0] >= 0.02
    assert all(batch.compute_s > 0 for batch in told)


def test_an_observer_that_fails_costs_no_request_its_answer(caplog):
    async def main():
        batcher = Batcher(
            Recorder(),
            lambda key, num_rows: min(num_rows, 4),
            max_rows=9,
            observe=lambda batch: 1 / 0,
        )
        await batcher.start()
        answers = [await submit(batcher, "a", [row]) for row in (1, 2)]
        assert batcher.num_restarts == 0
        await batcher.stop()
        return answers

    assert asyncio.run(main()) == [[("a", 1)], [("a", 2)]]
    assert "could not be counted" in caplog.text


def test_a_ticket_notes_when_its_rows_waited_and_were_computed():
    ticket = Ticket.within(LONG_S)

    async def main():
        async with running(Recorder()) as batcher:
            await batcher.submit([("a", row) for row in range(6)], ticket)

    asyncio.run(main())
    (first, second) = ticket.batches
    assert first[0] <= first[1] <= first[2] == second[0] <= second[1] <= second[2]


def test_an_idle_worker_takes_a_row_without_any_delay_of_its_own():
    run = Recorder()
    timers = []

    async def main():
        loop = asyncio.get_running_loop()
        async with running(run) as batcher:
            call_at = loop.call_at
            loop.call_at = lambda when, *args, **kwargs: (
                timers.append(when - loop.time()) or call_at(when, *args, **kwargs)
            )
            await submit(batcher, "a", [1])

    asyncio.run(main())
    # The one timer is the deadline of the request.
    assert len(timers) == 1
    assert timers[0] > LONG_S / 2
    assert run.batches == [("a", [1])]


def test_no_rows_at_all_are_answered_with_no_results():
    async def main():
        async with running(Recorder()) as batcher:
            return await batcher.submit([], Ticket.within(LONG_S))

    assert asyncio.run(main()) == []


def test_a_ticket_accounts_for_waiting_and_computing_without_counting_twice():
    gate = Gate()
    ticket = Ticket.within(LONG_S)

    async def main():
        async with occupied(gate) as batcher:
            started = time.monotonic()
            groups = [(key, row) for key in "abc" for row in range(6)]
            waiting = asyncio.create_task(batcher.submit(groups, ticket))
            await asyncio.sleep(0.01)
            gate.opened.set()
            await waiting
            return time.monotonic() - started

    elapsed_s = asyncio.run(main())
    assert ticket.queue_s >= 0.01
    assert ticket.compute_s > 0
    assert ticket.queue_s + ticket.compute_s <= elapsed_s


def test_a_full_batch_lies_ready_for_the_worker_and_others_wait_for_what_may_come():
    gate = Gate()

    async def main():
        async with occupied(gate) as batcher:
            full = submit(batcher, "a", range(CAPACITY))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # It still waits, and takes nobody else with it.
            assert batcher.num_rows == CAPACITY
            late = [submit(batcher, "a", [10]), submit(batcher, "a", [11])]
            await asyncio.sleep(0)
            gate.opened.set()
            await asyncio.gather(full, *late)
            assert batcher.num_rows == 0

    asyncio.run(main())
    assert gate.batches[1:] == [("a", [0, 1, 2, 3]), ("a", [10, 11])]


def test_what_lies_ready_begins_without_the_loop():
    """A thread must not wait for a loop that is busy with other requests."""
    second = threading.Event()

    def run(key, rows):
        if rows[0] == "last":
            second.set()
        return list(rows)

    gate = Gate(run)

    async def main():
        async with occupied(gate) as batcher:
            ready = submit(batcher, "a", ["last"] * CAPACITY)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gate.opened.set()
            # The loop does nothing meanwhile.
            assert second.wait(PATIENCE_S)
            return await ready

    assert asyncio.run(main()) == ["last"] * CAPACITY


def test_what_lies_ready_is_left_out_once_nobody_waits_for_it():
    gate = Gate()

    async def main():
        async with occupied(gate, max_rows=8) as batcher:
            left = submit(batcher, "a", ["left"] * 2)
            stays = submit(batcher, "a", ["stays"] * 2)
            gone = submit(batcher, "b", ["gone"] * 4)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in (left, gone):
                task.cancel()
            await asyncio.gather(left, gone, return_exceptions=True)
            # There is room for them, too.
            more = submit(batcher, "a", range(6))
            await asyncio.sleep(0)
            gate.opened.set()
            return await asyncio.gather(stays, more)

    stays, more = asyncio.run(main())
    assert stays == [("a", "stays")] * 2
    assert more == [("a", row) for row in range(6)]
    assert "left" not in gate.rows
    assert "gone" not in gate.rows


def test_what_lies_ready_for_several_workers_fails_with_what_is_under_way_when_all_is_stopped():
    gate = Gate()

    async def main():
        async with running(gate, num_workers=2) as batcher:
            tasks = [submit(batcher, key, range(CAPACITY)) for key in "abcde"]
            assert await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            await asyncio.sleep(0)
            # The workers share the first; two lie ready, and two wait behind them.
            assert batcher.num_rows == 4 * CAPACITY
            stopping = asyncio.create_task(batcher.stop())
            settled = await asyncio.gather(*tasks, return_exceptions=True)
            gate.opened.set()
            await stopping
            return settled

    assert [type(error) for error in asyncio.run(main())] == [NotReady] * 5
    assert {key for key, _ in gate.batches} == {"a"}


@pytest.mark.parametrize("raised", [StopIteration(), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_batch_raises_its_request_fails_and_the_thread_goes_on(raised):
    def run(key, rows):
        if key == "odd":
            raise raised
        return list(rows)

    async def main():
        async with running(run) as batcher:
            with pytest.raises(RuntimeError, match="the batch raised"):
                await submit(batcher, "odd", [1])
            return await submit(batcher, "a", [2])

    assert asyncio.run(main()) == [2]
