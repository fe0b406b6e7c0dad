import importlib.util

import pytest

from training import tensorboard
from training.run_directory import RunDirectory
from training.tensorboard import DIRECTORY, scalars

RECORDS = [
    {"step": step, "loss": 3.0 - step, "steps_per_s": 10.0, "share_of_matmul_peak": 0.5}
    for step in (1, 2)
]


def events_of(directory):
    """What the files of events hold: (step, tag, value)."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(directory.glob("events.*")):
        content = path.read_bytes()
        position = 0
        while position < len(content):
            # A length of 8 bytes, its checksum, the event, its checksum.
            size = int.from_bytes(content[position : position + 8], "little")
            event = Event.FromString(content[position + 12 : position + 12 + size])
            position += size + 16
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboardX") is None, reason="needs the tensorboard extra"
)
def test_every_number_of_a_record_is_a_scalar_of_its_step(tmp_path):
    with scalars(tmp_path, 0, enabled=True) as write:
        for record in RECORDS:
            write(record)
    expected = [
        (record["step"], name, value)
        for record in RECORDS
        for name, value in record.items()
        if name != "step"
    ]
    assert sorted(events_of(tmp_path / DIRECTORY)) == sorted(expected)


def test_without_the_extra_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda name: None)
    with scalars(tmp_path, 0, enabled=True) as write:
        write(RECORDS[0])
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_keeps_no_metrics_writes_none(tmp_path):
    with scalars(tmp_path, 0, enabled=False) as write:
        write(RECORDS[0])
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_drops_the_scalars_of_the_one_before(tmp_path):
    (tmp_path / DIRECTORY).mkdir(parents=True)
    (tmp_path / DIRECTORY / "events.old").write_text("")
    RunDirectory(tmp_path, {}, resume=False, replace=False).close()
    assert not (tmp_path / DIRECTORY).exists()
