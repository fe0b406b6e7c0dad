"""A contestant: says what it was set up with, what it is told, and fails when asked to."""

import os
import sys

from benchmarks.peers.worker import answer_calls, forget_peak, peak_mib, time_calls

told = {}


def set_up(**setting):
    told.update(setting)


def say(what):
    sys.stdout.write("this goes to standard error\n")
    sys.stdout.flush()
    return [what, told, os.environ.get("ECHO")]


def fail():
    raise ValueError("as asked")


def leave():
    os._exit(3)


def grow(num_mib):
    forget_peak()
    before = peak_mib()
    held = bytearray(num_mib * 2**20)
    return peak_mib() - before + 0 * len(held)


def count_calls(num_calls, num_warm):
    calls = []
    taken = time_calls(lambda: calls.append(None), num_calls, num_warm)
    return [len(calls), len(taken)]


if __name__ == "__main__":
    answer_calls(
        {
            "set_up": set_up,
            "say": say,
            "fail": fail,
            "leave": leave,
            "grow": grow,
            "count_calls": count_calls,
        }
    )
