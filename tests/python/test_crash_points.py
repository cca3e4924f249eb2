"""Daemons that die between what they have recorded and what follows from it."""

from cli_testing import wait_until
from cluster_testing import NODES, PATIENCE_S, train, up_nodes, wait_status


def restored(job, ranks):
    """The steps that the ranks restored, once all have."""
    def ready():
        assert job.process.poll() is None, f"the job ended: {job.output()}"
        steps = [line["restored"] for line in job.lines() if "restored" in line]
        return steps if len(steps) == ranks else None

    return wait_until("all ranks to restore", ready, PATIENCE_S)


def has_committed(status, step):
    return status.get("committed") and status["committed"]["step"] >= step


def died(status):
    """The nodes whose daemon is not the first."""
    return [member for member in status["members"] if (member.get("session") or 1) > 1]


class TestOneNode:
    def test_dies_at_commits_and_training_goes_on(self, cli):
        cli("up", "--supervise", "--", "--fault-points", "leader.commit=crash:3")
        job = cli.train()
        status = wait_status(cli, "ten commits of several processes",
                             lambda s: has_committed(s, 10) and s["session"] > 2)
        assert status["session"] > 2
        job.interrupt()
        again = cli.train()
        assert min(restored(again, 2)) >= status["committed"]["step"]

    def test_dies_at_a_decision_and_the_next_process_answers(self, cli):
        cli("up", "--", "--fault-points", "leader.decision=crash:2")
        cli.train_to_end(3)
        committed = cli.committed()
        job = cli.train()
        wait_until("the daemon's end", lambda: not cli.status_or_nothing())
        cli("up")
        assert restored(job, 2) == [committed] * 2


class TestLeader:
    def test_dies_at_commits_and_another_leads(self, cli):
        up_nodes(cli, "--fault-points", "leader.commit=crash:4", up_words=["--supervise"])
        job = train(cli)

        def accept(status):
            assert job.process.poll() is None, f"the job ended: {job.output()}"
            return has_committed(status, 10) and len(died(status)) > 1

        wait_status(cli, "commits of several leaders", accept)

    def test_dies_at_a_decision_and_another_decides(self, cli):
        up_nodes(cli, "--fault-points", "leader.decision=crash:2", up_words=["--supervise"])
        cli.train_to_end(3, NODES)
        committed = cli.committed()
        job = train(cli)
        assert restored(job, NODES) == [committed] * NODES
        # It answers its rank before it has told the others that it is another process.
        status = wait_status(cli, "its next process", died)
        assert len(died(status)) == 1
