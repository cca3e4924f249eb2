"""Runs a program as it is, and kills it once: when a step is committed, in the first attempt.

    killed_at.py STEP PROGRAM [WORDS...]

The step is STEP, or a later one where its snapshot was skipped. The last rank is killed by SIGKILL;
the others take no further step, and wait for the launcher. What was restored and where it died is
said in JSON lines.
"""

import json
import os
import runpy
import signal
import sys

from unreft.torch import Checkpointer

COMMIT_TIMEOUT_S = 20


def say(**record):
    # One write, beside what another rank prints.
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), (json.dumps(record) + "\n").encode())


def die(step):
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        say(died=step)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def watch(die_at):
    restore, snapshot = Checkpointer.restore, Checkpointer.snapshot

    def restore_and_say(ck, **options):
        step = restore(ck, **options)
        say(restored=step)
        return step

    def snapshot_and_die(ck, step):
        started = snapshot(ck, step)
        # Each step waits: with others under way its snapshot would be skipped.
        is_first = os.environ["UNREFT_ATTEMPT"] == "0"
        if is_first and ck.wait(step, COMMIT_TIMEOUT_S) and step >= die_at:
            die(step)
        return started

    Checkpointer.restore, Checkpointer.snapshot = restore_and_say, snapshot_and_die


if __name__ == "__main__":
    watch(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
