"""State that comes back cut otherwise than it was saved: real daemons, every element looked at."""

import sys
import time

import cli_testing
from cli_testing import wait_until
from cluster_testing import NODES, up_nodes
from recut_testing import bring_up, launch, lose, replace, run

SHARDED_TRAINER = cli_testing.ROOT / "integrations/python/tests/sharded_trainer.py"


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


def crash_before_a_commit(cli, ranks, never):
    """All ranks have restored and registered, and are killed."""
    job = launch(cli, ranks, "--cut", "rows", "--snapshot-when", never)
    wait_until("all ranks", lambda: sum("registered" in line for line in job.lines()) == ranks)
    job.process.kill()
    job.process.wait()
    wait_until("their end", lambda: not cli.status()["ranks"])


def bytes_held(cli):
    """Once nothing is made or removed any more."""
    sizes = None
    while sizes != (now := [segment.stat().st_size for segment in cli.segments()]):
        sizes = now
        time.sleep(1)
    return sum(sizes)


def test_after_five_crashed_worlds_memory_is_what_it_was_after_one(cli, tmp_path):
    cli("up")
    committed, never = run(cli, "rows", 4)[1], tmp_path / "never"
    crash_before_a_commit(cli, 3, never)
    after_one = bytes_held(cli)
    for ranks in (5, 2, 1, 6, 3):
        crash_before_a_commit(cli, ranks, never)
    assert bytes_held(cli) <= after_one
    assert run(cli, "columns", 3, source_world=4)[0] == committed


def test_a_program_that_takes_no_other_number_of_ranks_is_told_both(cli):
    cli("up")
    committed = run(cli, "rows", 2)[1]
    job = launch(cli, 3, "--cut", "rows", "--same-world")
    assert job.wait() != 0
    assert "was saved by 2 ranks" in job.output()
    assert "is one of 3 and takes only what as many have saved" in job.output()
    # Nothing is lost by it.
    assert run(cli, "rows", 2)[0] == committed


def run_sharded(cli, ranks, *args, words=()):
    """What the ranks say of whole tensors, by step: once for all of them. `words` are more options
    of `unreft run`."""
    job = cli.launch("--ranks", ranks, "--max-restarts", 0, *words, "--", sys.executable,
                     SHARDED_TRAINER, *args)
    job.wait()
    states = [line for line in job.lines() if "state" in line]
    assert len(states) >= min(ranks, job.events("attempt-start")[0]["ranks"]), job.output()
    found = {}
    for state in states:
        assert found.setdefault(state["step"], state) == state
    return found


def check_goes_on(before, now):
    """Where the ranks had ended, once a step was committed, they have begun."""
    step = max(before)
    assert now[step] == before[step]


def test_fully_sharded_training_on_fewer_and_more_ranks_of_lost_nodes(cli):
    nodes = up_nodes(cli)
    before = run_sharded(nodes, NODES, "--die-after", 2)
    replace(nodes, [0, 2])
    on_fewer = run_sharded(nodes, NODES - 1, "--die-after", 4)
    check_goes_on(before, on_fewer)
    replace(nodes, [1, 3])
    check_goes_on(on_fewer, run_sharded(nodes, NODES + 1, "--steps", 9))


def test_meshes_of_other_shapes_on_fewer_nodes(cli):
    """Tensor parallel 2 x FSDP2 2 on four nodes, two sets of replicas on two of them, tensor
    parallel again on all."""
    nodes = up_nodes(cli)
    mesh = ["--tensor-parallel", 2]
    before = run_sharded(nodes, NODES, *mesh, "--die-after", 2)
    lose(nodes, [1, 2])
    hybrid = ["--tensor-parallel", 1, "--replicas", 2]
    on_two = run_sharded(nodes, NODES, *hybrid, "--die-after", 4, words=["--nodes", f"2:{NODES}"])
    check_goes_on(before, on_two)
    bring_up(nodes, [1, 2])
    check_goes_on(on_two, run_sharded(nodes, NODES, *mesh, "--steps", 9))
