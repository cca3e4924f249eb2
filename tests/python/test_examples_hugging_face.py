"""examples/hugging_face as they are: killed and started again they end as if nobody had touched
them."""

import importlib.util
import signal
import sys

import cli_testing
import pytest
from cluster_testing import PATIENCE_S

EXAMPLES = cli_testing.ROOT / "examples/hugging_face"
KILLED_AT = cli_testing.ROOT / "tests/python/killed_at.py"


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.chdir(tmp_path)  # where the Trainer makes a directory


@pytest.fixture
def other_cli():
    cli = cli_testing.Cli()
    yield cli
    cli.close()


@pytest.fixture
def check(cli, other_cli):
    """Has a rank of an example killed at a step; the step at which it was."""
    def launch(cli, ranks, *words):
        return cli.launch("--up", "--ranks", ranks, "--", sys.executable, *words)

    def check(at, name, *words, ranks=1):
        program = EXAMPLES / name, *words
        undisturbed = launch(other_cli, ranks, *program)
        job = launch(cli, ranks, KILLED_AT, at, *program)
        for launched in (undisturbed, job):
            assert launched.process.wait(PATIENCE_S) == 0, launched.output()
        lines = job.lines()
        begins = [line["restored"] for line in lines if "restored" in line]
        (died,) = [line["died"] for line in lines if "died" in line]
        assert begins == [None] * ranks + [died] * ranks
        killed, done = job.events("attempt-end")
        assert (killed["rank"], killed["signal"]) == (ranks - 1, signal.SIGKILL)
        assert done["why"] == "done"
        expected = undisturbed.lines()
        assert sum("weights" in line for line in expected) == 1  # the ranks train one model
        # No step is trained twice, and none otherwise.
        assert [line for line in lines if not line.keys() & {"restored", "died"}] == expected
        return died

    return check


def test_a_trainer_killed_in_its_second_epoch(check):
    assert 16 < check(18, "trainer.py") < 24  # where it ends


def test_an_accelerate_loop_killed_in_its_second_epoch(check):
    assert 8 < check(11, "accelerate_loop.py", ranks=2) < 16


@pytest.mark.skipif(importlib.util.find_spec("torchdata") is None,
                    reason="no torchdata here: make test-frameworks")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.short)])
@pytest.mark.parametrize("at", [3, 5, 7], ids=["in an epoch", "at its end", "in the second epoch"])
def test_a_stateful_loader_killed(check, at, workers):
    check(at, "stateful_loader.py", "--workers", workers)
