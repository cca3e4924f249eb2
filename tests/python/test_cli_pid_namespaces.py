"""Trainers and daemons in pid namespaces of their own, as containers have them.

The daemon knows a trainer by the pid that the kernel tells it, whatever the trainer calls itself.
"""

import json
import os
import subprocess
import sys

import pytest
from cli_testing import BIN_DIR, TRAINER, wait_until


def _missing():
    words = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    try:
        tried = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        return "lacks unshare"
    return tried.stderr.strip() if tried.returncode else None


pytestmark = pytest.mark.skipif(_missing() is not None, reason=f"pid namespaces: {_missing()}")

APART = ["unshare", "--pid", "--fork", "--kill-child"]


class Rank:
    """A trainer in a container of its own, if `apart` says so."""

    def __init__(self, cli, rank, world, attempt, *words, apart=()):
        self._out = cli.run_dir / f"rank{rank}.{attempt}.out"
        environment = {**os.environ, "UNREFT_SOCKET": str(cli.run_dir / "unreftd.sock"),
                       "UNREFT_JOB": cli.job, "UNREFT_ATTEMPT": str(attempt), "RANK": str(rank),
                       "WORLD_SIZE": str(world)}
        with open(self._out, "wb") as out:
            self.process = subprocess.Popen(
                [*apart, sys.executable, str(TRAINER), *words], env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def lines(self):
        text = self._out.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def output(self):
        return self._out.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(cli):
    ranks = []

    def start_one(*words, **options):
        ranks.append(Rank(cli, *words, **options))
        return ranks[-1]

    yield start_one
    for rank in ranks:
        rank.kill()


@pytest.mark.parametrize("proc", [["--mount-proc"], []], ids=["own-proc", "host-proc"])
def test_trainers_in_containers(cli, start, proc):
    cli("up")
    first = [start(rank, 2, 0, apart=[*APART, *proc]) for rank in range(2)]
    wait_until("a commit", lambda: cli.committed() >= 3)
    told = {rank["rank"]: rank["pid"] for rank in cli.status()["ranks"]}
    assert sorted(told) == [0, 1] and min(told.values()) > 2, "as the daemon knows them"
    first[0].kill()
    wait_until("the daemon to notice", lambda: len(cli.status()["ranks"]) == 1)
    first[1].kill()
    committed = cli.committed()
    second = [start(rank, 2, 1, "--commits", "2", apart=[*APART, *proc]) for rank in range(2)]
    for rank in second:
        assert rank.process.wait(60) == 0, rank.output()
        assert rank.lines()[0]["restored"] == committed


def test_one_in_a_container_beside_one_that_is_in_none(cli, start):
    cli("up")
    ranks = [start(0, 2, 0, "--commits", "3", apart=APART), start(1, 2, 0, "--commits", "3")]
    for rank in ranks:
        assert rank.process.wait(60) == 0, rank.output()
    assert cli.committed() >= 3


def test_a_daemon_that_cannot_see_the_trainer_says_what_to_do(cli, start):
    daemon = subprocess.Popen(
        [*APART, "--mount-proc", BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", cli.run_dir],
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("the daemon", lambda: (cli.run_dir / "unreftd.sock").exists())
        rank = start(0, 1, 0)
        assert rank.process.wait(60) != 0
        assert "hostPID: true" in rank.output(), rank.output()
    finally:
        daemon.kill()
        daemon.wait()
