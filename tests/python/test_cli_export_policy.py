"""`unreftd --export-dir`: durable copies are written by themselves, and old ones removed."""

import os
import re

import pytest

from cli_testing import wait_until
from cluster_testing import train, up_nodes, wait_protected
from export_testing import read
from test_cli_export import expected

FAILED = 1
PATIENCE_S = 120


def complete(directory):
    """Those that are copies, by step."""
    found = {}
    for copy in directory.iterdir() if directory.exists() else ():
        if (copy / ".metadata").exists():
            found[int(copy.name.split("-")[3])] = copy
    return found


def policy(directory, every_s=1, keep=2):
    return ["--pins", 1, "--export-dir", directory, "--export-every-s", every_s,
            "--export-keep", keep]


def wait_newer(directory, step):
    def newer():
        return max((s for s in complete(directory) if s > step), default=None)

    return wait_until(f"a copy after step {step}", newer, PATIENCE_S)


def durable(cli):
    return cli.status()["durable"]


@pytest.fixture
def shelf(tmp_path):
    directory = tmp_path / "copies"
    directory.mkdir()
    return directory


def test_copies_are_made_and_old_ones_go(cli, shelf):
    (shelf / "notes.txt").write_text("mine")
    cli("up", "--", *policy(shelf))
    job = cli.train()
    first = wait_newer(shelf, 0)
    wait_until("the first to go", lambda: first not in complete(shelf), PATIENCE_S)
    assert len(complete(shelf)) <= 3 and (shelf / "notes.txt").exists()
    os.kill(cli.daemon_pid(), 9)
    cli("up", "--", *policy(shelf))
    after = wait_newer(shelf, max(complete(shelf)))
    cli.wait_committed(job, after + 5)
    job.interrupt()
    job.wait()
    # What is committed does not change any more, and is copied when it is due.
    newest = cli.committed()
    wait_until("the last copy", lambda: newest in complete(shelf), PATIENCE_S)
    assert read(complete(shelf)[newest], "digest", "weights1") == expected(1, newest)
    said = durable(cli)
    assert said["leads"] and said["error"] == "" and said["keep"] == 2
    assert said["newest"]["step"] >= newest and said["age_s"] >= 0
    assert "durable copy: version" in cli("status")
    values = dict(re.findall(r"^(unreft_[a-z_]+)\S* (\S+)$", cli("metrics"), re.MULTILINE))
    assert float(values["unreft_exports_total"]) >= 1
    assert float(values["unreft_durable_copy_age_seconds"]) >= 0


def test_the_time_counts_from_the_copy_that_is_there(cli, shelf):
    cli("up", "--", *policy(shelf, every_s=3600))
    job = cli.train()
    step = wait_newer(shelf, 0)
    os.kill(cli.daemon_pid(), 9)
    cli("up", "--", *policy(shelf, every_s=3600))
    cli.wait_committed(job, cli.committed() + 10)
    wait_until("what there is", lambda: durable(cli)["newest"])
    assert durable(cli)["newest"]["step"] == step and list(complete(shelf)) == [step]


def test_another_node_goes_on_when_the_leader_dies(cli, shelf):
    up_nodes(cli, *policy(shelf))
    job = train(cli)
    wait_protected(cli, job, 2)
    before = wait_newer(shelf, 0)
    leader = cli.json("status")["leader"]
    cli.json("inject", "kill-daemon", "--node", leader)
    cli.json("up")
    assert wait_newer(shelf, before) > before
    wait_protected(cli, job, cli.committed() + 3)


def test_a_directory_that_is_gone_is_said_and_harms_nothing(cli, shelf):
    cli("up", "--", *policy(shelf))
    job = cli.train()
    cli.wait_committed(job, 5)
    shelf.rename(shelf.with_name("unmounted"))
    error = wait_until("the error", lambda: durable(cli)["error"])
    assert str(shelf) in error and str(shelf) in cli("status")
    cli.wait_committed(job, cli.committed() + 5)


def test_a_job_begins_beside_a_directory_that_is_not_there_by_order_alone(cli, tmp_path):
    """Whether it has copies to go on with is not known."""
    cli("up", "--", *policy(tmp_path / "not-mounted"))
    job = cli.train("--max-restarts", 0)
    assert job.wait() != 0
    assert "not-mounted" in job.output() and "unreft fresh-start" in job.output()
    cli.fresh_start()
    job = cli.train()
    cli.wait_committed(job, 5)
    assert "durable copy: none yet" in cli("status") and "not-mounted" in cli("status")


def test_what_cannot_be_is_refused_at_the_start(cli, tmp_path):
    cli("up", "--", "--export-dir", tmp_path, code=FAILED)
    assert "--pins of 1 or more" in cli.stderr
    cli("up", "--", "--export-dir", "relative", "--pins", 1, code=FAILED)
    assert "absolute path" in cli.stderr
