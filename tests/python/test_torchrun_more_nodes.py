"""torchrun that may have three to five nodes: three begin, and two come while they train."""

import pytest
from cluster_testing import PATIENCE_S, wait_status
from torchrun_testing import Agent, free_port

FEW, MANY = 3, 5
STEPS = 20  # of all five


@pytest.fixture
def start(cli, tmp_path):
    """Starts the agents of those nodes, whose daemons are up."""
    cli.up = cli.json("up", "--nodes", f"{FEW}:{MANY}", "--data-chunks", 2, "--parity-chunks", 2,
                      "--", "--version-deadline-s", 3600)
    port = free_port()
    started = []

    def start(nodes):
        started.extend(Agent(cli, node, port, tmp_path, f"{FEW}:{MANY}", "--steps", STEPS,
                             "--until-world", MANY) for node in nodes)
        return started

    yield start
    for agent in started:
        agent.kill()


def test_torchrun_begins_with_three_nodes_and_goes_on_with_five(cli, start):
    start(range(FEW))
    status = wait_status(cli, "some commits", lambda s: s["committed"] and (
        s["committed"]["step"] >= 10))
    assert [(group["slots"], group["m"]) for group in status["groups"]] == [([0, 1, 2], 2)]
    cli("up")
    agents = start(range(FEW, MANY))
    for agent in agents:
        assert agent.process.wait(PATIENCE_S) == 0, agent.said()
    ends = [line for agent in agents for line in agent.lines() if "committed" in line]
    assert len(ends) == MANY
    (last,) = {end["committed"] for end in ends}
    assert {end["step"] for end in ends} == {last}
    # They have restored what fewer had saved, all the same, and trained on from there.
    restored = {line["restored"] for agent in agents[FEW:] for line in agent.lines()
                if line.get("restored")}
    assert max(restored) == last - STEPS >= 10
    status = cli.status_or_nothing()
    assert [(group["slots"], group["k"], group["m"]) for group in status["groups"]] == [
        ([0, 1, 2, 3, 4], 3, 2)]
