"""All memory is lost: the job goes on from its newest durable copy, by itself."""

import json
import os
import re
import shutil

import pytest

from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_protected, wait_restored
from export_testing import read
from test_cli_export import FAILED, expected, exported
from test_cli_export_policy import complete, policy, wait_newer


@pytest.fixture
def shelf(tmp_path):
    directory = tmp_path / "copies"
    directory.mkdir()
    return directory


def train_past_a_copy(cli, shelf, start=None):
    """A job that is ended some steps after its newest copy, as (step of the copy, committed)."""
    job = start() if start else cli.train()
    copy = wait_newer(shelf, 0)
    cli.wait_committed(job, copy + 3)
    # Whoever leads has let go of its pin by then.
    wait_until("the end of the copy", lambda: "is unpinned by 'export-policy'" in cli.log(),
               PATIENCE_S)
    job.interrupt()
    job.wait()
    return max(complete(shelf)), cli.committed()


def forget_memory(cli):
    """Of a single node, as a host that has started anew."""
    os.kill(cli.daemon_pid(), 9)
    wait_until("the daemon to end", lambda: not cli.status_or_nothing())
    for segment in cli.segments():
        segment.unlink()


def forget_all(cli):
    """Also what is recorded on disk, as where a job is moved to other hosts."""
    forget_memory(cli)
    for left in cli.run_dir.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        elif not left.name.startswith("run"):
            left.unlink()


def exported_after_loading(cli, directory):
    """As `exported`, once the process that has loaded a copy has ended."""
    def ready():
        copy = json.loads(cli("--json", "export", directory, code=(0, FAILED)))
        if copy.get("state") == "done":
            return copy
        assert "is at work on a copy" in copy["error"], copy
        return None

    return wait_until("the export", ready, PATIENCE_S)


def restored(job, ranks):
    def ready():
        assert job.process.poll() is None, f"the job ended: {job.output()}"
        steps = [record["restored"] for record in job.lines() if "restored" in record]
        return steps if len(steps) == ranks else None

    return wait_until("the ranks to restore", ready, PATIENCE_S)


def test_memory_that_is_lost_comes_back_from_the_copy(cli, shelf, tmp_path):
    cli("up", "--", *policy(shelf, every_s=3600))
    copy, committed = train_past_a_copy(cli, shelf)
    assert committed > copy
    forget_memory(cli)
    cli("up", "--", *policy(shelf, every_s=3600))
    job = cli.train()
    assert restored(job, 2) == [copy, copy]
    told = {record.get("durable_copy") for record in job.lines() if "restored" in record}
    assert len(told) == 1 and told.pop().startswith(f"{shelf}/")
    cli.wait_committed(job, copy + 3)
    job.interrupt()
    job.wait()
    log = cli.log()
    assert re.search(rf"version \d+:{copy} comes out of the durable copy {shelf}/", log)
    assert f"what came after step {copy} is lost" in log
    again = exported_after_loading(cli, tmp_path / "again")
    assert again["step"] >= copy + 3
    for rank in range(2):
        assert read(tmp_path / "again", "digest", f"weights{rank}") == expected(rank, again["step"])


def test_a_newer_copy_of_the_weights_alone_is_not_what_a_job_goes_on_from(cli, shelf):
    cli("up", "--", *policy(shelf, every_s=3600))
    copy, committed = train_past_a_copy(cli, shelf)
    weights = exported(cli, shelf / "weights", "--format", "safetensors")
    assert weights["step"] == committed > copy
    forget_memory(cli)
    cli("up", "--", *policy(shelf, every_s=3600))
    job = cli.train()
    assert restored(job, 2) == [copy, copy]
    job.interrupt()
    job.wait()
    assert "a durable copy is not loaded" not in cli.log()
    assert (shelf / "weights" / "model.safetensors.index.json").exists()


def test_four_nodes_that_are_lost_come_back_from_the_copy(cli, shelf):
    words = policy(shelf, every_s=3600)
    up_nodes(cli, *words)
    copy, committed = train_past_a_copy(cli, shelf, lambda: train(cli))
    assert committed > copy
    for node in range(NODES):
        cli("inject", "kill-node", "--node", node)
    up_nodes(cli, *words)
    job = train(cli)
    assert restored(job, NODES) == [copy] * NODES
    wait_protected(cli, job, copy + 3)
    job.interrupt()
    job.wait()


def test_a_damaged_copy_is_refused_and_the_one_before_is_taken(cli, shelf):
    cli("up", "--", *policy(shelf, every_s=1, keep=2))
    job = cli.train()
    first = wait_newer(shelf, 0)
    wait_newer(shelf, first)
    job.interrupt()
    job.wait()
    wait_until("the last copy", lambda: cli.committed() in complete(shelf), PATIENCE_S)
    newest, before = sorted(complete(shelf), reverse=True)[:2]
    forget_memory(cli)
    items = complete(shelf)[newest] / "__1_0.distcp"
    data = bytearray(items.read_bytes())
    data[len(data) // 2] ^= 1
    items.write_bytes(data)
    cli("up", "--", *policy(shelf, every_s=3600))
    job = cli.train()
    assert restored(job, 2) == [before, before]
    job.interrupt()
    job.wait()
    assert re.search(r"a durable copy is not loaded: .*__1_0.distcp", cli.log())


def test_without_any_record_copies_of_two_runs_are_refused(cli, shelf):
    cli("up", "--", *policy(shelf, every_s=3600))
    train_past_a_copy(cli, shelf)
    aside = shelf.parent / "aside"
    shutil.move(next(iter(complete(shelf).values())), aside)
    forget_all(cli)
    cli("up", "--", *policy(shelf, every_s=3600))
    copy, _ = train_past_a_copy(cli, shelf)
    forget_all(cli)
    shutil.move(aside, shelf / "aside-of-step-1")
    cli("up", "--", *policy(shelf, every_s=3600))
    job = cli.train("--max-restarts", 0)
    assert job.wait() != 0
    assert "its durable copies are of several runs" in cli.log()
    shutil.rmtree(shelf / "aside-of-step-1")
    job = cli.train()
    assert restored(job, 2) == [copy, copy]
    job.interrupt()
    job.wait()


def test_a_fresh_start_ends_the_search(cli, shelf):
    cli("up", "--", *policy(shelf, every_s=3600))
    train_past_a_copy(cli, shelf)
    forget_memory(cli)
    cli("up", "--", *policy(shelf, every_s=3600))
    cli("fresh-start")
    job = cli.train()
    assert restored(job, 2) == [0, 0]
    job.interrupt()
    job.wait()
