"""Calls run where they are made, so that those of several threads run side by side.

Were they to go on in XLA's pool, which has one thread, they would wait for each other.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models import cores

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
# In a process of its own, as a service has it: what tests set for themselves hold for all of it.
SHARES = """
import dataclasses
import sys
import time
from pathlib import Path

from models import cores

assert cores.run_calls_side_by_side()

from models.checkpoint import load_model
from service.engine import Engine
from service.programs import trial_rows
from service.tasks import PROGRAMS

path, batch, length, *names = sys.argv[1:]
bundle, shape = load_model(Path(path)), (int(batch), int(length))
chosen = [
    dataclasses.replace(program, grid=(shape,))
    for program in PROGRAMS[bundle.card.wiring](bundle.card)
    if program.name in names
]
assert {program.name for program in chosen} == set(names)
engine = Engine(bundle, chosen)
engine.warm_up(lambda shape: None)
for program in chosen:
    rows = trial_rows(program, *shape)
    before = time.thread_time(), time.process_time()
    while time.process_time() < before[1] + 0.2:
        engine.run(program.name, rows)
    mine, everybodys = time.thread_time() - before[0], time.process_time() - before[1]
    assert mine > 0.9 * everybodys, (program.name, mine, everybodys)
"""


@pytest.mark.parametrize(
    ("bundle", "shape", "names"),
    [
        ("masked-lm/1", (1, 64), ["fill-mask", "embed"]),
        ("reversal/1", (1, 16), ["decode"]),
        ("causal-lm/1", (4, 16), ["generate"]),
        ("perceiver/1", (1, 128), ["latents"]),
        (
            "perceiver/1",
            (1, 2048),
            [
                "latents",
                "latents-of-vectors",
                "latents+part-of-tokens",
                "latents+part-of-vectors",
                "latents+part-of-reconstruction",
            ],
        ),
    ],
)
def test_a_call_is_computed_by_the_thread_that_makes_it(bundle, shape, names):
    own = (cores.POOL_SIZE, "XLA_FLAGS")
    done = subprocess.run(
        [sys.executable, "-c", SHARES, str(CHECKPOINTS / bundle), *map(str, shape), *names],
        env={name: value for name, value in os.environ.items() if name not in own},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
