import numpy as np

from benchmarks import report, train
from benchmarks.ours.training import read_batches


def test_all_batches_are_masked_at_the_rate_and_differ_from_their_targets_there_alone():
    batches = train.draw()
    assert batches["inputs"].shape == (train.NUM_BATCHES, train.ROWS, train.LENGTH)
    hidden = batches["inputs"] == train.VOCAB_SIZE
    np.testing.assert_array_equal(hidden, batches["masked"])
    assert abs(hidden.mean() - train.MASK_RATE) < 0.01
    np.testing.assert_array_equal(batches["inputs"][~hidden], batches["targets"][~hidden])


def test_ours_reads_the_same_batches_and_asks_at_every_mask(tmp_path):
    drawn = train.draw()
    np.savez(tmp_path / "batches.npz", allow_pickle=False, **drawn)
    read = read_batches(str(tmp_path / "batches.npz"))
    assert len(read) == train.NUM_BATCHES
    for index, batch in enumerate(read):
        np.testing.assert_array_equal(batch["inputs"], drawn["inputs"][index])
        asked = np.take_along_axis(drawn["masked"][index], batch["positions"], axis=1)
        assert asked.sum() == drawn["masked"][index].sum() == batch["weights"].sum()


def test_the_table_tells_steps_a_second_and_the_speed_beside_the_faster_peer():
    taken = {
        "ours": [[100.0], [100.0]],
        "torch.compile": [[120.0]] * 2,
        "torch eager": [[200.0]] * 2,
    }
    taken |= {train.OURS_NARROW: [[50.0]] * 2, train.PEER_NARROW: [[150.0]] * 2}
    told = train.table(report.compare_widths(taken, train.OURS, train.PEERS))
    assert "| ours | 100 (100..100) | 10 |" in told
    assert "| ours bfloat16 | 50 (50..50) | 20 |" in told
    assert told.endswith(
        "Speed: 1.2 (1.2..1.2), target >= 1.0; in bfloat16 2.4 (2.4..2.4), against torch.compile"
    )
