"""What a trainer asks at steps that are committed: whether a test holds it there, so that a fault
finds all ranks at the same step."""

import os
import pathlib
import time

DIRECTORY = "UNREFT_TEST_HOLDS"  # where the test's files are; without it nothing is held


def hold_of(attempt, step):
    """The file that holds the ranks of that attempt from that step on, while it is there."""
    return f"attempt{attempt}.hold{step}"


def is_held(step):
    directory, prefix = os.environ.get(DIRECTORY), hold_of(os.environ["UNREFT_ATTEMPT"], "")
    files = pathlib.Path(directory).glob(prefix + "*") if directory else ()
    return any(int(file.name.removeprefix(prefix)) <= step for file in files)


def wait_released(step):
    while is_held(step):
        time.sleep(0.01)
