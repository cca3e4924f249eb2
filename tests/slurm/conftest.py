"""One Slurm for all tests, and for each a job with a name of its own.

After each test every step that its ranks have done is compared with an undisturbed run.
"""

import re
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "cluster"))

import machines as slurm  # noqa: E402
from batch import RANKS, BatchJob  # noqa: E402
from training import Undisturbed  # noqa: E402


def interrupt(number, _):
    raise KeyboardInterrupt(f"signal {number}")


def pytest_configure(config):
    signal.signal(signal.SIGTERM, interrupt)  # fixtures end what they made


def pytest_collection_modifyitems(items):
    """Without Slurm each test is skipped by its name."""
    if reason := slurm.missing():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"no Slurm: {reason}"))


@pytest.fixture(scope="session")
def machines():
    machines = slurm.Machines()
    yield machines
    machines.close()


@pytest.fixture(scope="session")
def undisturbed():
    undisturbed = Undisturbed(RANKS)
    yield undisturbed
    undisturbed.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.passed = report.passed
        if report.failed and "job" in item.funcargs:
            report.sections.append(("the job", item.funcargs["job"].describe()))
    return report


@pytest.fixture
def job(request, machines, undisturbed):
    """Not submitted yet."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).strip("-")
    job = BatchJob(machines, name)
    try:
        yield job
        if getattr(request.node, "passed", False):
            job.check_exact(undisturbed)
    finally:
        job.close()
        machines.mend()
