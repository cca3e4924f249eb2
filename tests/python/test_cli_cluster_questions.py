"""`versions`, `verify` and `metrics` of all nodes at once, with nodes that are down or hang."""

import os
import re
import signal

import pytest

from cli_testing import CORRUPT, NO_DAEMON
from cluster_testing import NODES, up_nodes

COMMITS = 3


@pytest.fixture
def stored(cli):
    """Four nodes that hold what one job has committed; it has ended, and nothing changes."""
    up_nodes(cli)
    cli.train_to_end(COMMITS, NODES)
    return cli


def running(document):
    assert [node["node"] for node in document["nodes"]] == list(range(NODES))
    for node in document["nodes"]:
        assert node["running"] != ("error" in node)
        assert node["run_dir"].endswith(f"node{node['node']}")
    return [node["running"] for node in document["nodes"]]


def samples(text):
    """(family, node) -> value; every family once, with its head before its samples."""
    found, families, family = {}, [], None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            families.append(family)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
        else:
            name, group, job, node, state, value = re.fullmatch(
                r'(\w+){(group="\d+",)?job="([\w-]+)",node="(\d)"(,state="\w+")?} (\S+)',
                line).groups()
            more = group or state
            assert name == family and job and (name, int(node), more) not in found
            found[name, int(node), more] = float(value)
    assert len(families) == len(set(families))
    return {(name, node): value for (name, node, more), value in found.items() if not more}


class TestAllUp:
    def test_versions(self, stored):
        document = stored.json("versions")
        assert running(document) == [True] * NODES
        (committed,) = [v for v in document["versions"] if v["committed"]]
        assert committed["whole"] and committed["live"] and committed["world"] == NODES
        assert committed["ranks"] == committed["nodes"] == list(range(NODES))
        status = stored.status()["committed"]
        assert (committed["timeline"], committed["step"]) == (status["timeline"], status["step"])
        for node in document["nodes"]:
            own = stored.json("versions", "--node", node["node"])["versions"]
            assert own == node["versions"]
            assert [v["ranks"] for v in own if v["committed"]] == [[node["node"]]]
        order = [(v["timeline"], v["step"]) for v in document["versions"]]
        assert order == sorted(order, reverse=True)
        assert "0,1,2,3" in stored("versions")

    def test_verify_names_the_node_with_the_bad_slot(self, stored):
        document = stored.json("verify")
        assert running(document) == [True] * NODES
        for node in document["nodes"]:
            assert node["slots_checked"] >= 1 and node["bytes"] >= 3 << 20 and node["bad"] == []
        flip = stored.json("inject", "flip-bit", "--node", 2)
        document = stored.json("verify", code=CORRUPT)
        bad = {node["node"]: [slot["slot"] for slot in node["bad"]] for node in document["nodes"]}
        assert bad == {0: [], 1: [], 2: [flip["slot"]], 3: []}
        lines = stored("verify", code=CORRUPT).splitlines()
        assert [line.split(":")[0] for line in lines if line.startswith("node")] == [
            f"node {node}" for node in range(NODES)]
        assert lines[3].startswith(f"slot {flip['slot']}: ") and lines[2].endswith("1 bad")

    def test_metrics(self, stored):
        document = stored.json("metrics")
        assert running(document) == [True] * NODES
        found = samples(document["text"])
        step = stored.status()["committed"]["step"]
        for node in range(NODES):
            assert found["unreft_node_up", node] == 1
            assert found["unreft_committed_step", node] == step
            assert found["unreft_slots_sealed_total", node] >= COMMITS
        assert samples(stored("metrics")).keys() == found.keys()


class TestOneDown:
    def test_is_shown(self, stored):
        stored("inject", "kill-daemon", "--node", 1)
        up = [True, False, True, True]

        versions = stored.json("versions")
        assert running(versions) == up
        (committed,) = [v for v in versions["versions"] if v["committed"]]
        assert committed["nodes"] == committed["ranks"] == [0, 2, 3] and not committed["whole"]
        text = stored("versions")
        assert "node 1 does not answer" in text and "0,2,3" in text

        verify = stored.json("verify", code=NO_DAEMON)
        assert running(verify) == up and "slots_checked" not in verify["nodes"][1]
        assert "node 1 does not answer" in stored("verify", code=NO_DAEMON)

        metrics = stored.json("metrics")
        assert running(metrics) == up
        found = samples(metrics["text"])
        assert [found["unreft_node_up", node] for node in range(NODES)] == up
        assert {node for name, node in found if name == "unreft_timeline"} == {0, 2, 3}

    def test_wrong_bytes_matter_more(self, stored):
        stored("inject", "flip-bit", "--node", 0)
        stored("inject", "kill-daemon", "--node", 1)
        stored("verify", code=CORRUPT)

    def test_hangs(self, stored):
        pid = stored.status()["members"][3]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            document = stored.json("versions", "--timeout-ms", 15000)
            assert running(document) == [True, True, True, False]
            assert document["nodes"][3]["error"]
        finally:
            os.kill(pid, signal.SIGCONT)


def test_all_down(cli):
    up_nodes(cli)
    for node in range(NODES):
        cli("inject", "kill-daemon", "--node", node)
    for verb in ("versions", "verify", "metrics"):
        answer = cli.json(verb, code=NO_DAEMON)
        assert answer["code"] == "UNAVAILABLE" and "node0" in answer["error"]
