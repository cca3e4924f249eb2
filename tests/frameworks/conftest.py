"""The daemon and the ranks are those of the tests of the Python package, and the command line that
of its own tests."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "integrations/python/tests"), str(ROOT / "tests/python")]


def pytest_configure(config):
    config.addinivalue_line("markers", "short: what continuous integration runs")
