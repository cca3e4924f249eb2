"""State that comes back cut otherwise than it was saved: real daemons, every element looked at."""

import pathlib
import sys

import cli_testing
from cluster_testing import NODES, up_nodes, wait_status

TRAINER = pathlib.Path(__file__).parent / "recut_trainer.py"
SHARDED_TRAINER = cli_testing.ROOT / "integrations/python/tests/sharded_trainer.py"


def launch(cli, ranks, *args):
    return cli.launch("--ranks", ranks, "--max-restarts", 0, "--", sys.executable, TRAINER, *args)


def run(cli, cut, ranks, source_world=None):
    """The step that all ranks restored, and the one that they committed. `source_world`: how many
    ranks have saved what there is, if it is not as many."""
    job = launch(cli, ranks, "--cut", cut)
    assert job.wait() == 0, job.output()
    lines = [line for line in job.lines() if "committed" in line]
    assert sorted(line["rank"] for line in lines) == list(range(ranks))
    (restored,) = {line["restored"] for line in lines}
    (committed,) = {line["committed"] for line in lines}
    if restored is not False:
        assert {line["source_world"] for line in lines} == {source_world or ranks}
    return restored, committed


def replace(nodes, lost):
    """Nodes that are lost with their memory, once their loss can be borne, and new ones."""
    wait_status(nodes, "protection", lambda s: [group["stands"] for group in s["groups"]] == [2])
    for node in lost:
        nodes.json("inject", "kill-node", "--node", node)
    for node in lost:
        nodes.json("up", "--node", node)
    wait_status(nodes, "the new nodes", lambda s: not any(
        member["lost"] or not member["present"] for member in s["members"]))


def test_rows_columns_and_ranges_on_one_node(cli):
    cli("up")
    committed = None
    for cut in ("columns", "rows", "columns", "columns", "ranges", "ranges", "columns", "ranges"):
        restored, newest = run(cli, cut, ranks=3)
        assert restored == (committed or False)
        committed = newest


def test_rows_and_columns_of_two_nodes_that_are_lost(cli):
    """Each rank's bytes lie on all nodes, and what the lost ones had is decoded."""
    nodes = up_nodes(cli)
    committed = run(nodes, "columns", NODES)[1]
    for lost in ([1, 3], [0, 2]):
        replace(nodes, lost)
        restored, newest = run(nodes, "rows" if lost == [1, 3] else "columns", NODES)
        assert restored == committed
        committed = newest


def test_other_numbers_of_ranks_on_one_node(cli):
    cli("up")
    committed, world = run(cli, "rows", 4)[1], 4
    for ranks, cut in ((3, "rows"), (5, "columns"), (1, "rows"), (2, "rows"), (3, "ranges"),
                       (5, "ranges"), (2, "columns")):
        restored, newest = run(cli, cut, ranks, source_world=world)
        assert restored == committed
        committed, world = newest, ranks


def test_other_numbers_of_ranks_of_two_nodes_that_are_lost(cli):
    """For more nodes than ranks, too, and for fewer."""
    nodes = up_nodes(cli)
    committed, world = run(nodes, "columns", NODES)[1], NODES
    for lost, ranks, cut in (([1, 3], NODES - 1, "ranges"), ([0, 2], NODES + 2, "ranges"),
                             ([1, 2], NODES, "rows")):
        replace(nodes, lost)
        restored, newest = run(nodes, cut, ranks, source_world=world)
        assert restored == committed
        committed, world = newest, ranks


def test_a_program_that_takes_no_other_number_of_ranks_is_told_both(cli):
    cli("up")
    committed = run(cli, "rows", 2)[1]
    job = launch(cli, 3, "--cut", "rows", "--same-world")
    assert job.wait() != 0
    assert "was saved by 2 ranks" in job.output()
    assert "is one of 3 and takes only what as many have saved" in job.output()
    # Nothing is lost by it.
    assert run(cli, "rows", 2)[0] == committed


def run_sharded(cli, ranks, *args):
    """What the ranks say of whole tensors, by step: once for all of them."""
    job = cli.launch("--ranks", ranks, "--max-restarts", 0, "--", sys.executable, SHARDED_TRAINER,
                     *args)
    job.wait()
    states = [line for line in job.lines() if "state" in line]
    assert len(states) >= ranks, job.output()
    found = {}
    for state in states:
        assert found.setdefault(state["step"], state) == state
    return found


def test_fully_sharded_training_on_fewer_and_more_ranks_of_lost_nodes(cli):
    nodes = up_nodes(cli)
    before = run_sharded(nodes, NODES, "--die-after", 2)[2]
    replace(nodes, [0, 2])
    on_fewer = run_sharded(nodes, NODES - 1, "--die-after", 4)
    assert on_fewer[2] == before
    replace(nodes, [1, 3])
    assert run_sharded(nodes, NODES + 1, "--steps", 6)[4] == on_fewer[4]
