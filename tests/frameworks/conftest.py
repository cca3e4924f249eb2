"""The daemon and the ranks are those of the tests of the Python package, and the command line that
of its own tests."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "integrations/python/tests"), str(ROOT / "tests/python")]

import cli_testing  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "short: what continuous integration runs")


@pytest.fixture
def clis(monkeypatch, tmp_path):
    """Two jobs of programs that find no GPU, for one that is killed and one that is not."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    made = [cli_testing.Cli(), cli_testing.Cli()]
    yield made
    for cli in made:
        cli.close()
