"""The job that the tests share, one after the other: whoever breaks it has it to themselves.

A test gets a job that is protected, and leaves it so. After each one every step that was logged is
compared with an undisturbed run. One that fails takes its lab along: the next gets a new one.
"""

import signal

import pytest

import namespaces
from job import Job
from training import Undisturbed


def interrupt(number, _):
    raise KeyboardInterrupt(f"signal {number}")


def pytest_configure(config):
    signal.signal(signal.SIGTERM, interrupt)  # fixtures end what they made
    config.addinivalue_line("markers", "short: what continuous integration runs")


def pytest_collection_modifyitems(items):
    """Without a lab each test that needs one is skipped by its name."""
    if reason := namespaces.missing():
        for item in items:
            if "job" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason=f"no lab: {reason}"))


class Shared:
    job = None

    def close(self):
        if self.job is not None:
            self.job.close()
            self.job = None


@pytest.fixture(scope="session")
def shared():
    shared = Shared()
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def undisturbed():
    undisturbed = Undisturbed()
    yield undisturbed
    undisturbed.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.passed = report.passed
        job = item.funcargs.get("job")
        if job is not None and report.failed:
            report.sections.append(("the lab", job.describe()))
    return report


@pytest.fixture
def job(request, shared, undisturbed):
    """A protected job of four hosts."""
    if shared.job is None:
        shared.job = Job()
        shared.job.start()
    job = shared.job
    job.wait_protected()
    yield job
    is_kept = False
    try:
        if getattr(request.node, "passed", False):  # neither failed nor interrupted
            if not job.spent:
                job.wait_protected()
            job.check_exact(undisturbed)
            is_kept = not job.spent
    finally:
        if not is_kept:
            shared.close()
