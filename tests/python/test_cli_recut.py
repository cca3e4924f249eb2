"""State that comes back cut otherwise than it was saved: real daemons, every element looked at."""

import pathlib
import sys

from cluster_testing import NODES, up_nodes, wait_status

TRAINER = pathlib.Path(__file__).parent / "recut_trainer.py"


def run(cli, cut, ranks):
    """The step that all ranks restored, and the one that they committed."""
    job = cli.launch("--ranks", ranks, "--max-restarts", 0, "--", sys.executable, TRAINER,
                     "--cut", cut)
    assert job.wait() == 0, job.output()
    lines = [line for line in job.lines() if "committed" in line]
    assert sorted(line["rank"] for line in lines) == list(range(ranks))
    (restored,) = {line["restored"] for line in lines}
    (committed,) = {line["committed"] for line in lines}
    return restored, committed


def test_rows_and_columns_on_one_node(cli):
    cli("up")
    committed = None
    for cut in ("columns", "rows", "columns", "columns"):
        restored, newest = run(cli, cut, ranks=3)
        assert restored == (committed or False)
        committed = newest


def test_rows_and_columns_of_two_nodes_that_are_lost(cli):
    """Each rank's bytes lie on all nodes, and what the lost ones had is decoded."""
    nodes = up_nodes(cli)
    committed = run(nodes, "columns", NODES)[1]
    for lost in ([1, 3], [0, 2]):
        wait_status(nodes, "protection",
                    lambda s: [group["stands"] for group in s["groups"]] == [2])
        for node in lost:
            nodes.json("inject", "kill-node", "--node", node)
        for node in lost:
            nodes.json("up", "--node", node)
        wait_status(nodes, "the new nodes", lambda s: not any(
            member["lost"] or not member["present"] for member in s["members"]))
        restored, newest = run(nodes, "rows" if lost == [1, 3] else "columns", NODES)
        assert restored == committed
        committed = newest
