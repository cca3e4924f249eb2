"""`unreft resize`: a job goes on with fewer of its nodes, and with more, while it trains."""

import pytest
from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, up_nodes, wait_status
from recut_testing import launch

FAILED = 1
LEAST = 2


class Training:
    """Ranks that train until they are ended, and check each element when they restore."""

    def __init__(self, nodes, *words):
        self.nodes = nodes
        self.job = launch(nodes, NODES, "--cut", "rows", "--train",
                          words=words or ["--nodes", f"{LEAST}:{NODES}"])
        self.attempt_has(0, NODES)

    def attempt_has(self, attempt, world):
        """Once so many ranks of that attempt train; the step that they have restored."""
        def ready():
            assert self.job.process.poll() is None, f"the job ended: {self.job.output()}"
            lines = [line for line in self.job.lines()
                     if line.get("attempt") == attempt and "restored" in line]
            return lines if len(lines) == world else None

        lines = wait_until(f"attempt {attempt}", ready, PATIENCE_S)
        (restored,) = {line["restored"] for line in lines}
        return restored

    def trains(self, commits=3):
        """It goes on in the attempt that there is."""
        attempts = len(self.job.events("attempt-start"))
        self.nodes.wait_committed(self.job, self.nodes.committed() + commits)
        assert len(self.job.events("attempt-start")) == attempts

    def moves(self, attempt, world, which):
        """The attempt before ends after a commit, for that one."""
        restored = self.attempt_has(attempt, world)
        end = self.job.events("attempt-end")[-1]
        assert end["why"] == "moved" and end["attempt"] == attempt - 1
        assert self.job.events("resized")[-1] == {"event": "resized", "nodes": which,
                                                  "ranks": world}
        return restored


@pytest.fixture
def training(cli):
    return Training(up_nodes(cli))


def wait_groups(nodes, which):
    """Until what is committed is of one group of these, and stands two losses."""
    wait_status(nodes, "the groups", lambda s: [
        (group["slots"], group["stands"]) for group in s["groups"]] == [(which, 2)])


def test_a_job_goes_on_with_fewer_nodes_and_with_more_again(training):
    nodes, job = training.nodes, training.job
    assert nodes.json("resize")["order"] is None
    assert "nothing is wished" in nodes("resize")
    training.trains()
    before = nodes.committed()
    ordered = nodes.json("resize", "--nodes", 3)
    assert ordered["order"]["nodes"] == 3 and ordered["met"] is False
    assert ordered["running"] == [0, 1, 2, 3]
    # No more is lost than what came after a commit that is newer than the wish.
    first = training.moves(1, 3, [0, 1, 2])
    assert first > before
    (waited,) = job.events("resize")
    assert waited["state"] == "waiting" and waited["nodes"] == [0, 1, 2]
    wait_until("the wish is met", lambda: nodes.json("resize")["met"])
    said = nodes("resize")
    assert "wished: 3 nodes, ordered at" in said
    assert "ranks run on node 0, 1, 2: as is wished" in said
    assert "wished by 'unreft resize': 3 nodes" in nodes("status")
    # The host may be taken away: nothing waits for it.
    wait_groups(nodes, [0, 1, 2])
    nodes("down", "--node", 3)
    training.trains()
    # The wish stands, and cannot be met before the node is there.
    nodes.json("resize", "--nodes", NODES)
    wait_until("why it cannot", lambda: any(
        "needed 4 nodes that have a daemon, found 3: 0, 1, 2" in event["text"]
        for event in job.events("resize")))
    training.trains()
    nodes.json("up", "--node", 3)
    assert training.moves(2, NODES, [0, 1, 2, 3]) > first
    wait_groups(nodes, [0, 1, 2, 3])
    # None of that was a restart after a failure, of which it may have none.
    assert [event["why"] for event in job.events("attempt-end")] == ["moved", "moved"]


def test_a_node_is_left_out_by_its_number(training):
    nodes = training.nodes
    training.trains()
    nodes.json("resize", "--without", 1)
    training.moves(1, 3, [0, 2, 3])
    wait_groups(nodes, [0, 2, 3])
    # Taken back, nothing moves before the job restarts.
    assert nodes.json("resize", "--cancel")["order"] is None
    training.trains()
    nodes("resize", "--cancel", code=FAILED)
    assert "nothing is ordered" in nodes.stderr


def test_what_cannot_be_met_disturbs_nobody(training):
    nodes, job = training.nodes, training.job
    for words, why in ((("--nodes", 0), "0 nodes: needed 1 to 4"),
                       (("--nodes", 5), "5 nodes: needed 1 to 4"),
                       (("--without", 4), "needed one of 0 to 3"),
                       (("--without", "0,1,2,3"), "all 4 nodes of the job are left out"),
                       (("--nodes", 4, "--without", 0), "needed 4 others, found 3")):
        nodes("resize", *words, code=2)
        assert why in nodes.stderr
    nodes("resize", "--nodes", 3, "--cancel", code=2)
    nodes.json("resize", "--nodes", 1)
    (said,) = wait_until("what is said", lambda: job.events("resize"))
    assert said["state"] == "cannot"
    assert "needed 2 to 4 nodes, by --nodes of `unreft run`, found 1" in said["text"]
    training.trains(commits=10)
    assert len(job.events("resize")) == 1


def test_a_launcher_without_a_range_says_so_once_and_goes_on(cli):
    training = Training(up_nodes(cli), "--grace-ms", 500)
    cli.json("resize", "--nodes", 3)
    (said,) = wait_until("what is said", lambda: training.job.events("resize"))
    assert "without --nodes MIN:MAX" in said["text"]
    training.trains(commits=10)
    assert len(training.job.events("resize")) == 1
    assert cli.json("resize", "--wait")["running"] == [0, 1, 2, 3]


def test_a_job_of_one_node_has_nothing_to_resize(cli):
    cli("up")
    cli("resize", "--nodes", 1, code=FAILED)
    assert "a job of several nodes is needed" in cli.stderr and "has 1" in cli.stderr
