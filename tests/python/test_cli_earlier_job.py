"""A host that was in an earlier job of the same name: real daemons, a real meta store."""

import contextlib
import os
import shutil
import signal

from cli_testing import Cli, is_alive, wait_until
from cluster_testing import NODES, PATIENCE_S, pids_of, wait_status

OLD = NODES - 1
UP = ("up", "--nodes", f"{OLD}:{NODES}", "--data-chunks", 2, "--parity-chunks", 1, "--",
      "--version-deadline-s", 3600)


def wait_committed(cli, job, step):
    def accept(status):
        assert job.process.poll() is None, f"the job ended: {job.output()}"
        return status["committed"] and status["committed"]["step"] >= step

    return wait_status(cli, f"the commit of step {step}", accept)


def lose_store(cli):
    """It is written anew from what the nodes have kept."""
    view = cli.status()["view"]
    cli.json("inject", "kill-meta")
    wait_until("its end", lambda: cli.status()["meta"]["pid"] is None)
    shutil.rmtree(cli.run_dir / "meta")
    cli.json("up")
    wait_status(cli, "another view", lambda s: s["view"] > view)


def lose_power(cli):
    status = wait_status(cli, "all daemons", lambda s: all(pids_of(s)))
    pids = [*pids_of(status), status["meta"]["pid"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until("their ends", lambda: not any(map(is_alive, pids)), PATIENCE_S)
    for segment in cli.segments():
        segment.unlink()


def test_it_follows_the_job_that_runs(tmp_path):
    """It gave the store its own job's records, and the one that ran had no commit any more."""
    with contextlib.closing(Cli()) as cli:
        cli.json(*UP)
        cli.json("up")
        earlier = cli.train(ranks=NODES)
        wait_committed(cli, earlier, 2)
        lose_store(cli)
        earlier.process.kill()
        earlier.process.wait()
        lose_power(cli)
        old = cli.run_dir / f"node{OLD}"
        shutil.move(old, tmp_path)
        for node in range(OLD):
            shutil.rmtree(cli.run_dir / f"node{node}")
        shutil.rmtree(cli.run_dir / "meta")

        cli.json(*UP)
        job = cli.train(ranks=OLD)
        before = wait_committed(cli, job, 2)
        assert before["committed"]["world"] == OLD
        shutil.move(tmp_path / old.name, old)
        cli.json("up", "--node", OLD)
        status = wait_status(cli, "the old host's memory in the view",
                             lambda s: s["view"] > before["view"] and s["members"][OLD]["pid"])
        later = wait_committed(cli, job, status["committed"]["step"] + 5)["committed"]
        assert (later["timeline"], later["world"]) == (before["committed"]["timeline"], OLD)
        log = (old / "unreftd.log").read_text()
        assert "which this node has kept as committed, is of another job of this name" in log
        assert "it gets a new id" not in log
