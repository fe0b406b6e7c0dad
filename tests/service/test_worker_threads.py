import asyncio
import threading
import time

from service.worker_threads import WorkerThreads
from tests.service.fakes import PATIENCE_S


def test_work_is_done_in_a_thread_and_what_follows_in_that_of_the_loop():
    seen = {}

    async def main():
        done = asyncio.Event()
        threads = WorkerThreads(1)

        def then():
            seen["then"] = threading.current_thread()
            done.set()

        threads.run(lambda: seen.update(work=threading.current_thread().name), then)
        await done.wait()
        await asyncio.to_thread(threads.stop)

    asyncio.run(main())
    assert seen == {"work": "engine_0", "then": threading.main_thread()}


def test_every_thread_prepares_itself_once_and_what_was_asked_for_first_begins_first():
    prepared, begun = [], []

    async def main():
        threads = WorkerThreads(2, lambda: prepared.append(threading.current_thread().name))
        both = threading.Barrier(2)

        def work(index):
            begun.append(index)
            # So that neither thread takes all.
            both.wait(PATIENCE_S)

        for index in range(6):
            threads.run(lambda index=index: work(index), lambda: None)
        await asyncio.to_thread(threads.stop)

    asyncio.run(main())
    assert sorted(prepared) == ["engine_0", "engine_1"]
    assert [sorted(begun[i : i + 2]) for i in (0, 2, 4)] == [[0, 1], [2, 3], [4, 5]]


def test_the_thread_that_was_the_last_to_work_goes_first():
    names, gates = [], [threading.Event() for _ in range(3)]

    async def main():
        threads = WorkerThreads(3)
        for gate in gates:
            threads.run(lambda gate=gate: gate.wait(PATIENCE_S), lambda: None)
        for gate in gates:
            gate.set()
        for _ in range(6):
            # The loop is told before a thread is free again.
            await asyncio.to_thread(all_free, threads)
            threads.run(lambda: names.append(threading.current_thread().name), lambda: None)
        await asyncio.to_thread(threads.stop)

    def all_free(threads):
        deadline = time.monotonic() + PATIENCE_S
        while len(threads._free) < len(gates):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    asyncio.run(main())
    assert len(names) == 6
    assert len(set(names)) == 1


def test_threads_start_again_after_they_were_stopped():
    done = []

    async def main():
        threads = WorkerThreads(2)
        for index in range(2):
            threads.run(lambda index=index: done.append(index), lambda: None)
            await asyncio.to_thread(threads.stop)

    asyncio.run(main())
    assert done == [0, 1]


def test_stopping_waits_for_all_that_was_asked_for_and_threads_start_with_the_first_work():
    done = []

    async def main():
        threads = WorkerThreads(1)
        threads.stop()
        gate = threading.Event()
        threads.run(lambda: gate.wait(PATIENCE_S), lambda: None)
        threads.run(lambda: done.append("second"), lambda: None)
        stopping = asyncio.create_task(asyncio.to_thread(threads.stop))
        await asyncio.sleep(0)
        assert done == []
        gate.set()
        await stopping

    before = threading.active_count()
    asyncio.run(main())
    assert done == ["second"]
    assert threading.active_count() == before


def test_work_that_outlives_its_loop_harms_nobody():
    gate = threading.Event()
    threads = WorkerThreads(1)

    async def main():
        threads.run(lambda: gate.wait(PATIENCE_S), lambda: None)

    asyncio.run(main())
    gate.set()
    threads.stop()
