"""Fixtures of the tests of the command line."""

import pytest

from cli_testing import Cli


def pytest_configure(config):
    config.addinivalue_line("markers", "short: what continuous integration runs of the frameworks")


@pytest.fixture
def cli():
    cli = Cli()
    yield cli
    cli.close()
