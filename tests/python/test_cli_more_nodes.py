"""A job that begins with three nodes and goes on with five."""

import pytest
from cluster_testing import wait_status
from recut_testing import bring_up, launch, lose, result_of, run

FEW, MANY = 3, 5
CHUNKS = ("--data-chunks", 2, "--parity-chunks", 2)


@pytest.fixture
def three(cli):
    """Three nodes of a job of up to five. No clock gives up what stands still."""
    cli.up = cli.json("up", "--nodes", f"{FEW}:{MANY}", *CHUNKS, "--", "--version-deadline-s", 3600)
    return cli


def run_on(nodes, which, cut, source_world=None):
    """On those nodes, the only ones that have a daemon."""
    job = launch(nodes, MANY, "--cut", cut, words=["--nodes", f"{FEW}:{MANY}"])
    result = result_of(job, len(which), source_world)
    assert [event["nodes"] for event in job.events("resized")] == [which]
    return result


def groups_of(nodes, stands):
    """Once what is committed stands so many losses; by the slots of each."""
    status = wait_status(nodes, "the groups", lambda s: [
        group["stands"] for group in s["groups"]] == [stands])
    return status, [(group["slots"], group["k"], group["m"]) for group in status["groups"]]


def test_a_job_begins_with_three_nodes_and_goes_on_with_five(three):
    assert [node["node"] for node in three.up["nodes"]] == list(range(FEW))
    restored, first = run_on(three, [0, 1, 2], "rows")
    assert restored is False
    status, groups = groups_of(three, 2)
    assert groups == [([0, 1, 2], 1, 2)] and status["exposure"] == ""
    assert [member["to_come"] for member in status["members"]] == [False] * FEW + [True] * 2
    said = three("status")
    assert "node 3 is left out: it has not come yet, and the job has begun without it" in said
    assert said.count("not come, left out") == MANY - FEW
    # They are there, and in the groups with the restart that runs on them.
    bring_up(three, [3])
    three("up")
    status = wait_status(three, "all nodes", lambda s: all(
        member["present"] and not member["lost"] for member in s["members"]))
    assert [member["left_out"] for member in status["members"]] == [False] * FEW + [True] * 2
    said = three("status")
    assert "node 4 is left out: it is there, and in a group once the job restarts" in said
    restored, second = run(three, "columns", MANY, source_world=FEW)
    assert restored == first
    status, groups = groups_of(three, 2)
    assert groups == [([0, 1, 2, 3, 4], 3, 2)]
    assert not any(member["left_out"] or member["to_come"] for member in status["members"])
    # One that was there from the beginning and one that came later go, with all that they hold.
    lose(three, [0, 3])
    bring_up(three, [0, 3])
    restored, _ = run(three, "ranges", MANY)
    assert restored == second


def test_what_was_begun_with_three_outlives_two_of_them(three):
    """Among the nodes that are yet to come nothing of it lies."""
    first = run_on(three, [0, 1, 2], "rows")[1]
    lose(three, [0, 2])
    three("up")
    bring_up(three, range(MANY))
    restored, second = run(three, "columns", MANY, source_world=FEW)
    assert restored == first
    assert groups_of(three, 2)[1] == [([0, 1, 2, 3, 4], 3, 2)]
    lose(three, [1, 4])
    assert run_on(three, [0, 2, 3], "rows", source_world=MANY)[0] == second


def test_a_spare_takes_no_slot_of_a_node_that_is_to_come(cli):
    cli.up = cli.json("up", "--nodes", f"{FEW}:{MANY}", *CHUNKS, "--spares", 1)
    status = wait_status(cli, "the spare", lambda s: len(s["spares"]) == 1)
    assert [member["to_come"] for member in status["members"]] == [False] * FEW + [True] * 2
    bring_up(cli, [4])
    assert len(wait_status(cli, "the nodes", lambda s: s["view"])["spares"]) == 1
    assert run_on(cli, [0, 1, 2, 4], "rows")[0] is False
    cli.json("inject", "kill-node", "--node", 1)
    status = wait_status(cli, "the takeover", lambda s: s["members"][1]["place"] == MANY)
    assert status["members"][3]["to_come"]


def test_ranges_that_are_none_are_refused_with_what_is_needed(cli):
    for wrong, why in (("5:3", "MIN:MAX"), ("0:3", "MIN:MAX"), ("3:65", "at most 64 nodes")):
        cli("up", "--nodes", wrong, code=(2, 105, 106))
        assert why in cli.stderr
    cli("up", "--nodes", "2:3", "--data-chunks", 2, "--parity-chunks", 2, code=2)
    assert "need 4 nodes, found 3" in cli.stderr


def test_another_range_is_another_job(three):
    three("up", "--nodes", f"2:{MANY}", code=1)
    assert f"{FEW}:{MANY} nodes" in three.stderr and "unreft down" in three.stderr
    again = three.json("up", "--nodes", f"{FEW}:{MANY}")
    assert len(again["nodes"]) == FEW and all(node["already_up"] for node in again["nodes"])
    assert len(three.json("up", "--nodes", MANY)["nodes"]) == MANY
