"""The examples of frameworks: each is run as it is, killed, started again, and compared."""

import signal
import sys

import cli_testing
from cluster_testing import PATIENCE_S

KILLED_AT = cli_testing.ROOT / "tests/python/killed_at.py"
EXAMPLE_S = 4 * PATIENCE_S  # nothing is imported beforehand here


def as_it_is(before):
    """The words that run a program as it is, but for what these statements do beforehand."""
    program = (
        f"{before}; import runpy, sys; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return [sys.executable, "-c", program]


def check_killed_and_started_again(clis, python, program, lines):
    """`python`: of as_it_is; `lines`: that a run says which nobody has killed."""
    words = ["--up", "--ranks", 2, "--", *python]
    undisturbed = clis[0].launch(*words, *program)
    assert undisturbed.process.wait(EXAMPLE_S) == 0, undisturbed.output()
    job = clis[1].launch(*words, KILLED_AT, 4, *program)
    assert job.process.wait(EXAMPLE_S) == 0, job.output()
    killed, *others = job.events("attempt-end")
    assert len(others) == 1, job.output()
    assert (killed["rank"], killed["signal"]) == (1, signal.SIGKILL)
    said, expected = job.lines(), undisturbed.lines()
    (died,) = [line["died"] for line in said if "died" in line]
    assert [line["restored"] for line in said if "restored" in line] == [None] * 2 + [died] * 2
    assert len(expected) == lines
    assert [line for line in said if not line.keys() & {"restored", "died"}] == expected
