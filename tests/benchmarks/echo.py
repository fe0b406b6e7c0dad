"""A contestant: says what it was set up with, what it is told, and fails when asked to."""

import os
import sys

from benchmarks.peers.worker import answer_calls, memory_of, time_calls


class Echo:
    def __init__(self, **setting):
        self.setting = setting

    def say(self, what):
        sys.stdout.write("this goes to standard error\n")
        sys.stdout.flush()
        return [what, self.setting, os.environ.get("ECHO")]

    def fail(self):
        raise ValueError("as asked")

    def leave(self):
        os._exit(3)

    def grow(self, num_mib):
        return memory_of(lambda: len(bytearray(num_mib * 2**20)))

    def count_calls(self, num_calls, num_warm):
        calls = []
        taken = time_calls(lambda: calls.append(None), num_calls, num_warm)
        return [len(calls), len(taken)]


if __name__ == "__main__":
    answer_calls(Echo)
