"""torchrun that may have three to four nodes: one is lost for good, and the others go on."""

import pytest
from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes, wait_status
from torchrun_testing import Agent, free_port

STEPS = 120


@pytest.fixture
def agents(cli, tmp_path):
    up_nodes(cli)
    port = free_port()
    started = [Agent(cli, node, port, tmp_path, f"{NODES - 1}:{NODES}", "--steps", STEPS)
               for node in range(NODES)]
    yield started
    for agent in started:
        agent.kill()


def test_torchrun_goes_on_with_three_of_four_nodes(cli, agents):
    wait_status(cli, "some commits", lambda s: s["committed"] and s["committed"]["step"] >= 10)
    lost = agents.pop()
    cli.json("inject", "kill-node", "--node", NODES - 1)
    lost.kill()
    for agent in agents:
        assert agent.process.wait(PATIENCE_S) == 0, agent.said()
    restored = set()
    for agent in agents:
        (end,) = [line for line in agent.lines() if "committed" in line]
        assert end["committed"] == end["step"] == STEPS
        # Of a start that was no restart by its count torchrun keeps the newest log.
        restored |= {(line["restored"], line["reshaped_from"]) for line in agent.lines()
                     if line.get("restored")}
    ((step, reshaped_from),) = restored
    assert 10 <= step < STEPS and reshaped_from == NODES
    status = wait_until("the groups", lambda: cli.status_or_nothing())
    assert [(group["slots"], group["m"]) for group in status["groups"]] == [([0, 1, 2], 2)]
