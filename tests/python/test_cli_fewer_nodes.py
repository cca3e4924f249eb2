"""A job that goes on without nodes that are lost for good, and with them again."""

from cli_testing import wait_until
from cluster_testing import NODES, up_nodes, wait_status
from recut_testing import bring_up, launch, lose, result_of, run

FEWER = NODES - 1


def groups_of(nodes, accept):
    """Once what is committed is of groups like these; by the slots of each."""
    status = wait_status(nodes, "the groups", lambda s: accept(s["groups"]))
    return status, [(group["slots"], group["k"], group["m"]) for group in status["groups"]]


def run_on_three(nodes, cut, source_world):
    job = launch(nodes, NODES, "--cut", cut, words=["--nodes", f"{FEWER}:{NODES}"])
    result = result_of(job, FEWER, source_world)
    assert [event["ranks"] for event in job.events("resized")] == [FEWER]
    return result


def test_a_job_goes_on_with_three_of_four_nodes_and_with_four_again(cli):
    nodes = up_nodes(cli)
    first = run(nodes, "rows", NODES)[1]
    lose(nodes, [2])
    restored, second = run_on_three(nodes, "columns", NODES)
    assert restored == first
    status, groups = groups_of(nodes, lambda g: [group["stands"] for group in g] == [2])
    assert groups == [([0, 1, 3], 1, 2)]
    assert [member["left_out"] for member in status["members"]] == [False, False, True, False]
    assert status["members"][2]["lost"] and status["exposure"] == ""
    said = nodes("status")  # which has no problem
    assert "node 2 is left out: it was lost, and the job goes on without it" in said
    assert said.count("lost, left out") == 1
    # As many more as the group stands, and they hold all that there is.
    lose(nodes, [0, 3])
    bring_up(nodes, [0, 3])
    restored, third = run_on_three(nodes, "ranges", FEWER)
    assert restored == second
    # What comes back is in again with the next restart.
    bring_up(nodes, [2])
    assert "node 2 is left out: it is there, and in a group once the job restarts" in nodes(
        "status")
    restored, _ = run(nodes, "rows", NODES, source_world=FEWER)
    assert restored == third
    status, groups = groups_of(nodes, lambda g: [group["stands"] for group in g] == [2])
    assert groups == [([0, 1, 2, 3], 2, 2)]
    assert not any(member["left_out"] for member in status["members"])


def test_two_of_four_nodes_are_left_with_less_protection_which_is_said(cli):
    nodes = up_nodes(cli)
    first = run(nodes, "rows", NODES)[1]
    lose(nodes, [1, 2])
    job = launch(nodes, NODES, "--cut", "rows", words=["--nodes", f"2:{NODES}"])
    assert result_of(job, 2, NODES)[0] == first
    status, groups = groups_of(nodes, lambda g: [group["stands"] for group in g] == [1])
    assert groups == [([0, 3], 1, 1)]
    said = "2 of 4 nodes are left, in groups that stand the loss of 1: 2 was asked for"
    assert status["exposure"] == said and said in nodes("status")


def test_where_memory_is_short_the_group_has_one_parity_less(cli):
    """A rank of three has 5 MiB: three slots, and guards of two data and one parity, are 23 MiB,
    of one and two 46."""
    nodes = up_nodes(cli, "--memory-bytes-max", 38 << 20)
    first = run(nodes, "rows", NODES)[1]
    lose(nodes, [2])
    restored, second = run_on_three(nodes, "rows", NODES)
    assert restored == first
    status, groups = groups_of(nodes, lambda g: [group["stands"] for group in g] == [1])
    assert groups == [([0, 1, 3], 2, 1)]
    said = ("3 of 4 nodes are left, in groups that stand the loss of 1: 2 was asked for, and "
            "memory is short for more")
    assert status["exposure"] == said and said in nodes("status")
    logs = [nodes.run_dir / f"node{node}" / "unreftd.log" for node in (0, 1, 3)]
    assert any("too little memory for 2 parities" in log.read_text() for log in logs)
    assert run_on_three(nodes, "columns", FEWER)[0] == second


def test_one_node_that_is_left_protects_nothing_and_says_so(cli):
    nodes = up_nodes(cli)
    first = run(nodes, "rows", NODES)[1]
    lose(nodes, [1, 2])
    words = ["--nodes", f"1:{NODES}"]
    restored, second = result_of(launch(nodes, NODES, "--cut", "rows", words=words), 2, NODES)
    assert restored == first
    wait_status(nodes, "the loss that they stand",
                lambda s: [group["stands"] for group in s["groups"]] == [1])
    nodes.json("inject", "kill-node", "--node", 3)
    restored, third = result_of(launch(nodes, NODES, "--cut", "columns", words=words), 1, 2)
    assert restored == second
    said = "1 of 4 nodes is left, in groups that stand the loss of 0: 2 was asked for"
    assert said in nodes("status") and said in nodes("status", "--check", code=1)
    bring_up(nodes, [1, 2, 3])
    assert run(nodes, "rows", NODES, source_world=1)[0] == third
    groups_of(nodes, lambda g: [group["stands"] for group in g] == [2])


def test_the_next_attempt_leaves_a_node_out_that_was_lost(cli, tmp_path):
    nodes = up_nodes(cli)
    first = run(nodes, "rows", NODES)[1]
    go_on = tmp_path / "go on"
    job = launch(nodes, NODES, "--cut", "rows", "--snapshot-when", go_on, restarts=1,
                 words=["--nodes", f"{FEWER}:{NODES}"])
    wait_until("all ranks", lambda: sum("registered" in line for line in job.lines()) == NODES)
    lose(nodes, [2])  # and its rank with it
    go_on.touch()
    assert result_of(job, FEWER, NODES)[0] == first
    (resized,) = job.events("resized")
    assert resized["nodes"] == [0, 1, 3] and resized["ranks"] == FEWER


def test_below_the_least_an_attempt_waits_and_says_for_what(cli):
    nodes = up_nodes(cli)
    first = run(nodes, "rows", NODES)[1]
    lose(nodes, [2, 3])
    job = launch(nodes, NODES, "--cut", "rows", words=["--nodes", f"{FEWER}:{NODES}"])
    (waiting,) = wait_until("what it waits for", lambda: job.events("waiting"))
    assert "waiting for 1 more of them: node 2, 3 has no daemon" in waiting["text"]
    bring_up(nodes, [3])
    assert result_of(job, FEWER, NODES)[0] == first


def test_ranges_that_are_none_are_refused_with_what_is_needed(cli):
    cli("up")
    words = ["--", "true"]
    cli("run", "--nodes", "1:2", *words, code=2)
    assert "is for a job of several nodes" in cli.stderr
    cli("run", "--nodes", "4:3", *words, code=(2, 105, 106))
    assert "MIN:MAX" in cli.stderr
    cli("down")
    up_nodes(cli)
    cli("run", "--ranks", 4, "--nodes", "3:5", *words, code=2)
    assert "the job has 4 nodes" in cli.stderr
    cli("run", "--ranks", 3, "--nodes", "4", "--ranks-multiple", 4, *words, code=2)
    assert "3 ranks on 4 nodes are 3 on 4, and at least 4 are needed" in cli.stderr
