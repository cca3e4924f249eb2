"""Commands that cost protection ask first, and `down` knows whose memory it removes."""

import contextlib
import os
import pathlib
import signal
import subprocess

import pytest

from cli_testing import BIN_DIR, Cli, is_alive, wait_until
from cluster_testing import train, up_nodes, wait_protected
from small_shm import SmallCli, small_cli


@pytest.fixture
def by_hand(cli):
    """A daemon that no `unreft up` has started, with a number of its own."""
    command = [BIN_DIR / "unreftd", "--job", cli.job, "--node", "3", "--run-dir", cli.run_dir]
    with open(cli.run_dir / "by_hand.log", "wb") as log:
        cli.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    wait_until("the daemon", lambda: cli.status_or_nothing().get("running"))
    yield cli
    cli.daemon.kill()
    cli.daemon.wait()


def unreft(*words):
    """Without any option that says which daemon."""
    return subprocess.run([BIN_DIR / "unreft", *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)


def test_down_under_ranks_asks(cli):
    pid = cli.json("up")["pid"]
    job = cli.train()
    cli.wait_committed(job, 1)
    cli("down", code=1)
    assert "2 ranks are attached" in cli.stderr and "--force" in cli.stderr
    assert all(f"pid {rank}" in cli.stderr for rank in job.pids())
    assert is_alive(pid) and cli.committed() >= 1
    # The daemon is dead, the ranks would go on with its memory.
    os.kill(pid, signal.SIGKILL)
    wait_until("the daemon's end", lambda: not is_alive(pid))
    held = cli.segments()
    cli("down", code=1)
    assert "2 ranks are attached" in cli.stderr and cli.segments() == held
    cli("down", "--keep-memory")
    cli("down", "--force")
    assert not cli.segments()


def test_down_of_all_nodes_asks_before_any_goes(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 1)
    cli("down", code=1)
    assert "--force" in cli.stderr
    assert all(member["running"] for member in cli.json("status")["members"])


def test_inject_is_for_daemons_that_allow_it(by_hand):
    for fault in (["kill-daemon"], ["kill-node", "--node", "3"], ["flip-bit"]):
        by_hand("inject", *fault, code=1)
        assert "--allow-inject" in by_hand.stderr and "--force" in by_hand.stderr
    assert by_hand.daemon.poll() is None
    by_hand("inject", "kill-daemon", "--force")
    assert by_hand.daemon.wait(30) == -signal.SIGKILL


def test_fresh_start_under_ranks_asks_and_tells_the_timeline_that_opens(cli):
    cli("up")
    job = cli.train()
    cli.wait_committed(job, 2)
    cli("fresh-start", code=1)
    assert "needed 0, found 2" in cli.stderr and "--force" in cli.stderr
    committed = cli.committed()
    cli.wait_committed(job, committed + 1)
    opens = cli.json("fresh-start", "--force")["timeline"]
    assert "an order to node 0" in (cli.run_dir / "unreftd.log").read_text()
    job.interrupt()
    job = cli.train()
    cli.wait_committed(job, 1)
    assert cli.json("status")["timeline"] == opens


def test_fresh_start_of_several_nodes_tells_the_timeline_that_opens(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 1)
    cli("fresh-start", code=1)
    assert "--force" in cli.stderr
    opens = cli.json("fresh-start", "--force")["timeline"]
    job.interrupt()
    job = train(cli)
    wait_protected(cli, job, 1)
    assert cli.json("status")["timeline"] == opens


def test_the_run_directory_knows_its_node(by_hand):
    run_dir = by_hand.run_dir
    held = by_hand.segments()
    assert held
    for wrong in (["--node", 0], ["--node", 2], ["--job", "another"]):
        done = unreft("--run-dir", run_dir, *wrong, "down")
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"job {by_hand.job}, node 3" in done.stderr
    assert by_hand.daemon.poll() is None and by_hand.segments() == held
    done = unreft("--run-dir", run_dir, "down")
    assert done.returncode == 0 and f"job {by_hand.job}, node 3" in done.stdout
    assert by_hand.daemon.wait(30) == 0 and not by_hand.segments()
    # It is nobody's any more.
    other = unreft("--run-dir", run_dir, "--job", by_hand.job, "--node", 1, "status")
    assert other.returncode == 3


def test_a_daemon_leaves_the_run_directory_of_another_alone(by_hand):
    by_hand.daemon.kill()
    by_hand.daemon.wait()
    second = subprocess.run(
        [BIN_DIR / "unreftd", "--job", by_hand.job, "--node", "4", "--run-dir", by_hand.run_dir],
        capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert "node 3" in second.stderr and "unreft down --run-dir" in second.stderr


def test_down_of_a_spare_that_took_a_slot_removes_its_memory(cli):
    up_nodes(cli, up_words=("--spares", 1))
    wait_until("the spare", lambda: len(cli.json("status")["spares"]) == 1)
    cli("inject", "kill-node", "--node", 2)
    wait_until("the takeover", lambda: [
        member["place"] for member in cli.status_or_nothing().get("members", [])] == [0, 1, 4, 3])
    spare_dir = cli.run_dir / "node4"
    wait_until("its memory", lambda: [s for s in cli.segments() if ".4." in s.name])
    done = unreft("--run-dir", spare_dir, "down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [segment for segment in cli.segments() if f"{cli.job}.4." in segment.name]


def test_memory_of_all_jobs_is_listed(cli):
    pid = cli.json("up")["pid"]
    dead = Cli()
    try:
        dead("up")
        dead("inject", "kill-daemon")
        listed = {entry["job"]: entry for entry in cli.json("memory")["memory"]}
        assert listed[cli.job]["served"] and listed[cli.job]["pid"] == pid
        assert not listed[dead.job]["served"] and listed[dead.job]["pid"] is None
        for one in (cli, dead):
            assert listed[one.job]["node"] == 0
            assert listed[one.job]["segments"] == len(one.segments())
            sizes = [pathlib.Path(segment).stat().st_size for segment in one.segments()]
            assert listed[one.job]["bytes"] == sum(sizes)
        text = dead("memory")
        row = next(line for line in text.splitlines() if line.startswith(dead.job))
        assert row.split()[-1] == "none"
        assert "`unreft down --job JOB --node NODE` frees it" in text
    finally:
        dead.close()


def test_a_refusal_for_memory_names_what_dead_jobs_hold():
    # In a /dev/shm of its own: others may have dead jobs on this host, and more than are named.
    with small_cli("256m") as cli, contextlib.closing(SmallCli(cli.shm)) as dead:
        dead("up")
        dead("inject", "kill-daemon")
        cli("up", "--", "--memory-bytes-max", "1MiB")
        job = cli.train()
        log = cli.run_dir / "unreftd.log"
        wait_until("the refusal", lambda: "is refused: " in log.read_text())
        line = next(x for x in log.read_text().splitlines() if "is refused: " in x)
        held = sum(segment.stat().st_size for segment in dead.segments())
        assert f"{held} bytes are held by what no unreftd serves any more: " in line
        assert f"job {dead.job}, node 0 ({held} bytes); `unreft memory`" in line
        job.process.kill()


def test_mistyped_variables_are_said(cli):
    environment = dict(os.environ, UNREFT_RUNDIR="/x")
    done = subprocess.run(cli.command("memory"), env=environment, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0
    assert "UNREFT_RUNDIR is no variable of Unreft" in done.stderr
    assert "UNREFT_RUN_DIR" in done.stderr
