"""`unreft up --nodes`: several nodes and a meta store on one machine, killed one by one."""

import os
import pathlib
import signal
import subprocess

import pytest

from cli_testing import BIN_DIR, NO_DAEMON, is_alive, wait_until
from cluster_testing import (NODES, pids_of, train, up_nodes, wait_protected, wait_restored,
                             wait_status)


@pytest.fixture
def nodes(cli):
    return up_nodes(cli)


def memories(status):
    return [member["incarnation"] for member in status["members"]]


class TestUp:
    def test_up_and_status(self, nodes):
        up = nodes.up
        status = wait_status(nodes, "all of them", lambda s: s["leader"] in range(NODES)
                             and all(member["present"] for member in s["members"]))
        assert status["running"] and status["view"] == 1
        assert [member["slot"] for member in status["members"]] == list(range(NODES))
        assert not any(member["lost"] for member in status["members"])
        assert pids_of(status) == [node["pid"] for node in up["nodes"]]
        (group,) = status["groups"]
        assert (group["slots"], group["k"], group["m"]) == ([0, 1, 2, 3], 2, 2)
        assert group["stands"] is None and status["committed"] is None
        assert status["meta"]["pid"] == up["meta"]["pid"]
        text = nodes("status")
        assert "view 1" in text and text.count("present") == NODES

    def test_up_again_starts_what_is_missing(self, nodes):
        again = nodes.json("up")
        assert again["meta"]["pid"] == nodes.up["meta"]["pid"]
        assert all(node["already_up"] for node in again["nodes"])
        nodes.json("inject", "kill-daemon", "--node", 2)
        third = nodes.json("up")
        assert [node["already_up"] for node in third["nodes"]] == [True, True, False, True]

    def test_it_is_not_made_into_something_else(self, nodes):
        nodes("up", "--nodes", 3, code=1)
        assert "4 nodes" in nodes.stderr and "unreft down" in nodes.stderr
        nodes("up", "--nodes", NODES, "--node", 1, code=2)
        nodes("status", "--node", NODES, code=2)

    def test_more_chunks_than_nodes(self, cli):
        cli("up", "--nodes", 3, "--data-chunks", 3, "--parity-chunks", 1, code=2)
        assert "4 nodes" in cli.stderr and "found 3" in cli.stderr
        assert not (cli.run_dir / "cluster.json").exists()

    def test_one_node_is_asked_by_its_number(self, nodes):
        assert nodes.json("status", "--node", 3)["pid"] == nodes.up["nodes"][3]["pid"]
        assert nodes.json("versions", "--node", 0) == {"versions": []}
        nodes("inject", "flip-bit", code=2)
        assert "--node" in nodes.stderr

    def test_down_leaves_nothing(self, nodes):
        job = train(nodes)
        wait_protected(nodes, job, 1)
        job.interrupt()
        everyone = [*pids_of(nodes.status()), nodes.up["meta"]["pid"]]
        down = nodes.json("down")
        assert len(down["nodes"]) == NODES and down["meta_pid"] == everyone[-1]
        assert not nodes.segments() and not any(is_alive(pid) for pid in everyone)
        left = {path.name for path in nodes.run_dir.iterdir()}
        assert left <= {"meta.log", "run0.out", "run0.err"}, left

    def test_down_can_keep_the_memory(self, nodes):
        job = train(nodes)
        wait_protected(nodes, job, 2)
        job.interrupt()
        committed = nodes.committed()
        before = memories(nodes.status())
        nodes("down", "--keep-memory")
        assert nodes.segments()
        nodes("up")
        status = wait_status(nodes, "the group",
                             lambda s: [group["stands"] for group in s["groups"]] == [2])
        assert status["committed"]["step"] >= committed
        assert memories(status) == before


class TestDaemonOptions:
    @pytest.mark.parametrize("words, says", [
        (["--nodes=4"], "meta_endpoints"),
        (["--nodes=4", "--meta-endpoints=127.0.0.1:1", "--data-chunks=4", "--parity-chunks=2"],
         "4 + 2 need 6 nodes, found 4"),
        (["--nodes=4", "--meta-endpoints=127.0.0.1:1", "--node=4"], "found 4"),
        (["--transport-tls-ca=ca.pem"], "found 1"),
    ])
    def test_refusals(self, cli, words, says):
        command = [BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", cli.run_dir, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and says in done.stderr, done.stderr


class TestRun:
    def test_ranks_are_spread_in_blocks(self, nodes):
        script = 'echo "{\\"rank\\": $RANK, \\"socket\\": \\"$UNREFT_SOCKET\\"}"'
        job = nodes.launch("--ranks", 6, "--", "sh", "-c", script)
        assert job.wait() == 0
        sockets = {line["rank"]: pathlib.Path(line["socket"]) for line in job.lines()}
        assert [sockets[rank].parent.name for rank in range(6)] == [
            f"node{rank * NODES // 6}" for rank in range(6)]

    def test_killed_trainer_comes_back_with_its_state(self, nodes):
        job = train(nodes)
        before = wait_protected(nodes, job, 2)["committed"]["step"]
        assert nodes.json("inject", "kill-trainer", "--rank", 2)["rank"] == 2
        restored = wait_restored(job, attempt=1)
        assert min(restored) == max(restored) >= before
        wait_protected(nodes, job, restored[0] + 1)

    def test_fresh_start_gives_up_what_was_committed(self, nodes):
        nodes.train_to_end(2, NODES)
        nodes.fresh_start()
        wait_status(nodes, "nothing to be committed", lambda s: s["committed"] is None)


class TestWithoutParity:
    """Nodes that guard nothing of each other's: a trainer's end costs nothing, a node's all."""

    @pytest.fixture
    def bare(self, cli):
        cli("up", "--nodes", 2, "--data-chunks", 2, "--parity-chunks", 0)
        return cli

    def test_a_killed_trainer_comes_back_with_its_state(self, bare):
        job = train(bare)
        before = wait_status(bare, "a commit", lambda s: s["committed"])["committed"]["step"]
        bare("inject", "kill-trainer", "--rank", 1)
        restored = wait_restored(job, attempt=1)
        assert min(restored) == max(restored) >= before
        wait_status(bare, "another commit", lambda s: s["committed"]["step"] > restored[0])

    def test_all_daemons_may_end_with_all_trainers(self, bare):
        job = train(bare)
        wait_status(bare, "a commit", lambda s: s["committed"])
        job.interrupt()
        committed = bare.committed()
        bare("down", "--keep-memory")
        bare("up")
        job = train(bare)
        assert min(wait_restored(job, attempt=0)) >= committed

    def test_a_lost_node_is_said_to_be_lost(self, bare):
        job = train(bare)
        wait_status(bare, "a commit", lambda s: s["committed"])
        job.interrupt()
        bare("inject", "kill-node", "--node", 1)
        bare("up", "--node", 1)
        job = train(bare, "--max-restarts", 0)
        assert job.wait() != 0
        assert "no version is whole" in job.output()


class TestFaults:
    def test_killed_daemon_comes_back(self, nodes):
        job = train(nodes)
        wait_protected(nodes, job, 2)
        killed = nodes.json("inject", "kill-daemon", "--node", 1)["pid"]
        assert killed == nodes.up["nodes"][1]["pid"]
        incarnation = nodes.status()["members"][1]["incarnation"]
        up = nodes.json("up", "--node", 1)
        assert up["pid"] != killed
        status = wait_status(nodes, "node 1", lambda s: s["members"][1]["present"]
                             and s["members"][1]["pid"] == up["pid"])
        assert status["members"][1]["incarnation"] == incarnation
        wait_protected(nodes, job, status["committed"]["step"] + 2)
        assert not job.events("attempt-end")  # training went on

    def test_killed_leader_is_succeeded(self, nodes):
        job = train(nodes)
        step = wait_protected(nodes, job, 2)["committed"]["step"]
        leader = nodes.status()["leader"]
        nodes.json("inject", "kill-daemon", "--node", leader)
        wait_status(nodes, "another leader", lambda s: s.get("leader") not in (None, leader))
        nodes.json("up", "--node", leader)
        wait_protected(nodes, job, step + 2)
        assert not job.events("attempt-end")

    def test_killed_meta_store_comes_back(self, nodes):
        job = train(nodes)
        wait_protected(nodes, job, 2)
        assert nodes.json("inject", "kill-meta")["pid"] == nodes.up["meta"]["pid"]
        wait_until("its end", lambda: nodes.status()["meta"]["pid"] is None)
        nodes("inject", "kill-meta", code=NO_DAEMON)
        steps = len(job.lines())
        again = nodes.json("up")["meta"]
        assert again["pid"] != nodes.up["meta"]["pid"]
        assert again["address"] == nodes.up["meta"]["address"]
        status = nodes.status()
        wait_protected(nodes, job, status["committed"]["step"] + 2)
        assert not job.events("attempt-end") and len(job.lines()) > steps

    def test_supervisors_start_all_again(self, cli):
        up = cli.json("up", "--nodes", NODES, "--supervise")
        everyone = [up["meta"], *up["nodes"]]
        for process in everyone:
            assert is_alive(process["supervisor_pid"])
            os.kill(process["pid"], signal.SIGKILL)
        old = {process["pid"] for process in everyone}
        wait_status(cli, "all to be back", lambda s: s["meta"]["pid"] not in old | {None}
                    and all(pid not in old | {None} for pid in pids_of(s))
                    and all(member["present"] for member in s["members"]))
        cli("down")
        assert not any(is_alive(process["supervisor_pid"]) for process in everyone)
        assert not cli.segments()

    def test_destroyed_node_leaves_nothing_and_is_replaced(self, nodes):
        job = train(nodes, "--max-restarts", 0)
        wait_protected(nodes, job, 2)
        trainers = job.pids()
        before = nodes.status()["members"][2]
        killed = nodes.json("inject", "kill-node", "--node", 2)
        assert killed["pid"] == before["pid"] and killed["trainers"] == [trainers[2]]
        assert killed["segments_removed"] > 2
        assert not [s for s in nodes.segments() if s.name.startswith(f"unreft.{nodes.job}.2.")]
        assert not (nodes.run_dir / "node2").exists()
        assert job.wait() == 128 + signal.SIGKILL
        wait_status(nodes, "its loss", lambda s: s["members"][2]["lost"]
                    and [group["stands"] for group in s["groups"]] == [1])
        new = nodes.json("up", "--node", 2)
        status = wait_status(nodes, "the new node", lambda s: s["members"][2]["present"]
                             and s["members"][2]["pid"] == new["pid"])
        assert status["members"][2]["incarnation"] != before["incarnation"]
        wait_status(nodes, "the next view",
                    lambda s: s["view"] > 1 and not s["members"][2]["lost"])

    def test_nobody_to_destroy(self, cli):
        cli("inject", "kill-node", "--node", 1, code=2)
        cli("inject", "kill-meta", code=NO_DAEMON)
