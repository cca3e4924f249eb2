"""The whole job from any node of a cluster, where no file says what it consists of."""

import json
import os
import signal
import subprocess

import pytest

from cli_testing import BIN_DIR, CORRUPT, NO_DAEMON, wait_until
from cluster_testing import NODES, train, up_nodes, wait_protected, wait_status


class Node:
    """`unreft` on the host of one node: it knows that daemon's run directory, and nothing else."""

    def __init__(self, cli, node):
        self.run_dir = cli.run_dir / f"node{node}"

    def __call__(self, *words, code=0):
        done = subprocess.run([BIN_DIR / "unreft", "--run-dir", self.run_dir, *map(str, words)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def json(self, *words, code=0):
        return json.loads(self("--json", *words, code=code))

    def status_when(self, what, accept):
        def ready():
            done = subprocess.run([BIN_DIR / "unreft", "--run-dir", self.run_dir, "--json",
                                   "status"], capture_output=True, text=True, timeout=60)
            self.code = done.returncode
            status = json.loads(done.stdout) if done.returncode in (0, 1) else None
            return status if status and accept(status) else None

        return wait_until(what, ready, 60)


@pytest.fixture
def stored(cli):
    up_nodes(cli)
    cli.train_to_end(3, NODES)
    return cli


def test_status_is_the_same_from_every_node(cli):
    up_nodes(cli)
    job = train(cli)
    wait_protected(cli, job, 3)
    for node in range(NODES):
        status = Node(cli, node).json("status")
        assert status["job"] == cli.job and status["problems"] == []
        assert [member["slot"] for member in status["members"]] == list(range(NODES))
        for member in status["members"]:
            assert member["present"] and not member["lost"] and member["address"]
            (rank,) = member["status"]["ranks"]
            assert rank["rank"] == member["slot"] and member["status"]["pid"] == member["pid"]
        (group,) = status["groups"]
        assert (group["slots"], group["k"], group["m"], group["stands"]) == ([0, 1, 2, 3], 2, 2, 2)
        assert (status["data_chunks"], status["parity_chunks"], status["pins"]) == (2, 2, 0)
        assert status["leader"] in range(NODES) and status["store"]["ready"]
        assert status["restorable"]["step"] >= 3
        assert status["peers_wire"] == status["store_wire"] == "a socket file"
        assert Node(cli, node).json("status", "--check")["protected"]
    text = Node(cli, 2)("status")
    assert text.count("present") == NODES and "2 losses" in text and "s ago" in text
    assert "groups of 2 + 2" in text and "peers by a socket file" in text
    own = Node(cli, 2).json("status", "--own")
    assert own["node"] == 2 and [rank["rank"] for rank in own["ranks"]] == [2]


def test_versions_are_those_of_all_nodes(stored):
    for node in (0, 3):
        versions = Node(stored, node).json("versions")["versions"]
        (committed,) = [version for version in versions if version["committed"]]
        assert committed["whole"] and committed["ranks"] == committed["nodes"] == [0, 1, 2, 3]
    own = Node(stored, 3).json("versions", "--own")["versions"]
    assert [v["ranks"] for v in own if v["committed"]] == [[3]]


def test_verify_reads_slots_and_guards_of_all_nodes(stored):
    here = Node(stored, 1)
    for node in here.json("verify")["nodes"]:
        assert node["slots_checked"] >= 1 and node["guards_checked"] >= 1 and node["bad"] == []
    flip = stored.json("inject", "flip-bit", "--node", 2)
    bad = {node["node"]: node["bad"] for node in here.json("verify", code=CORRUPT)["nodes"]}
    assert [slot["slot"] for slot in bad[2]] == [flip["slot"]]
    assert bad[0] == bad[1] == bad[3] == []


def test_a_guard_that_is_wrong_is_found(stored):
    guards = [path for path in stored.segments() if f".{stored.job}.3.guard" in path.name]
    assert guards
    for path in guards:  # in the parities, which are most of it
        with open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
    bad = {node["node"]: node["bad"]
           for node in Node(stored, 0).json("verify", code=CORRUPT)["nodes"]}
    assert bad[3] and all("guard of version" in entry["problem"] for entry in bad[3])
    assert bad[0] == bad[1] == bad[2] == []


def test_what_stands_in_the_way_is_said_and_the_exit_code(stored):
    here = Node(stored, 0)
    pid = stored.json("inject", "kill-daemon", "--node", 2)["pid"]
    here.status_when("the loss", lambda s: s["members"][2]["lost"])
    assert here.code == 1 and pid
    text = here("status", code=1)
    assert "problem: node 2 is lost" in text and "a daemon takes its slot" in text
    assert "node 2 does not answer" in here("versions")
    here("verify", code=NO_DAEMON)
    stored("up", "--node", 2)
    here.status_when("its return", lambda s: not s["problems"])
    assert here.code == 0
    stored("inject", "kill-meta")
    here.status_when("the loss of the store",
                     lambda s: "the meta store does not answer" in " ".join(s["problems"]))
    assert here.code == 1


def test_a_node_that_hangs_is_named(stored):
    here = Node(stored, 0)
    pid = here.json("status")["members"][3]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        status = here.json("status", code=1)
        assert any("node 3" in problem for problem in status["problems"])
        assert [member["running"] for member in status["members"]] == [True, True, True, False]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_spare_says_that_it_waits(cli):
    up_nodes(cli, up_words=("--spares", 1))
    wait_status(cli, "the spare", lambda s: len(s["spares"]) == 1)
    spare = Node(cli, NODES)
    assert "waits for the slot of a lost node" in spare("status")
    # It knows nothing of the job, so nothing good either.
    error = json.loads(spare("--json", "status", "--check", code=3))["error"]
    assert "does not know whether the job is protected" in error
