"""`unreft plan-memory` says before a job what its daemons print when it has registered."""

import re

from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_protected

TOGETHER = re.compile(r"memory budget: .*: (\d+) bytes together")


def printed(log):
    found = wait_until("the budget", lambda: TOGETHER.findall(log.read_text()), PATIENCE_S)
    return int(found[-1])


def test_of_a_node_of_one(cli):
    cli("up")
    job = cli.train(ranks=3)
    cli.wait_committed(job, 1)
    plan = cli.json("plan-memory", "--ranks", 3, "--bytes-per-rank", "3MiB",
                    "--tensors-per-rank", 1)
    assert plan["bytes"] == printed(cli.run_dir / "unreftd.log")
    assert plan["staging_bytes"] == plan["guard_bytes"] == 0
    job.interrupt()


def test_of_a_group(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 1)
    plan = cli.json("plan-memory", "--ranks", NODES, "--nodes", NODES, "--data-chunks", 2,
                    "--parity-chunks", 2, "--bytes-per-rank", "3MiB", "--tensors-per-rank", 1)
    assert plan["staging_bytes"] == 3 << 20
    for node in range(NODES):
        log = cli.run_dir / f"node{node}" / "unreftd.log"
        assert plan["bytes"] == printed(log)
        assert f"coding takes up to {plan['scratch_bytes']} of" in log.read_text()
    job.interrupt()


def test_the_example_of_the_readme(cli):
    words = ["plan-memory", "--parameters", "70B", "--ranks", 96, "--nodes", 12,
             "--data-chunks", 4, "--parity-chunks", 2]
    plan = cli.json(*words)
    assert plan["ranks_per_node"] == 8
    assert 367.5e9 < plan["slot_bytes"] + plan["guard_bytes"] < 369e9
    assert plan["staging_bytes"] == 256 << 20
    assert "together" in cli(*words) and str(plan["bytes"]) in cli(*words)


def test_replicas_share_what_is_captured(cli):
    plan = cli.json("plan-memory", "--bytes-per-rank", "40GiB", "--replicas", 4, "--ranks", 8)
    assert plan["captured_bytes_per_rank"] == 10 << 30
    assert plan["state_bytes_per_rank"] == 40 << 30


def test_what_makes_no_job_is_refused_by_name(cli):
    for words, why in [
        ((), "needed one of --bytes-per-rank and --parameters"),
        (("--bytes-per-rank", "1GiB", "--parameters", "1B"), "found both or none"),
        (("--bytes-per-rank", "1GiB", "--ranks", 4, "--replicas", 3), "needed a divisor of"),
        (("--bytes-per-rank", "1GiB", "--ranks", 2, "--nodes", 3), "--nodes: needed at most"),
        (("--bytes-per-rank", "1GiB", "--ranks", 4, "--nodes", 4, "--data-chunks", 4,
          "--parity-chunks", 2), "4 + 2 need 6 nodes, found 4"),
    ]:
        cli("plan-memory", *words, code=2)
        assert why in cli.stderr, cli.stderr
