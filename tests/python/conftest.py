"""Fixtures of the tests of the command line."""

import pytest

from cli_testing import Cli


@pytest.fixture
def cli():
    cli = Cli()
    yield cli
    cli.close()
