"""Whether a job is protected, by `unreft status --check` and a client's status, and whether
anything was ever committed, by a question that decides nothing."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
import unreft

from cli_testing import NO_DAEMON, wait_until

UNPROTECTED = 1
OBSTACLE_TIMEOUT_S = 60


def client(cli, rank=0, world=1, **options):
    socket = str(cli.run_dir / "unreftd.sock")
    return unreft.Client(socket=socket, job=cli.job, rank=rank, world=world, attempt=0, **options)


def begin(clients):
    """All ranks ask for the decision, which waits for all."""
    threads = [threading.Thread(target=one.restore_begin) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TestCheck:
    def test_a_job_from_its_begin_to_its_end(self, cli):
        cli("status", "--check", code=NO_DAEMON)
        cli("up")
        assert cli("status", "--check", code=UNPROTECTED).startswith("not begun: ")
        job = cli.train()
        cli.wait_committed(job, 3)
        assert cli("status", "--check").startswith("protected: the newest commit is ")
        assert cli.json("status", "--check") == {"protected": True, "state": "protected", "why": "",
                                                 "exposure": ""}
        assert "\nprotected: " in cli("status")
        job.interrupt()
        ended = cli.json("status", "--check", code=UNPROTECTED)
        assert ended["state"] == "ended" and "no rank is connected" in ended["why"]

    def test_several_nodes(self, cli):
        cli("up", "--nodes", 2)
        assert cli("status", "--check", code=UNPROTECTED).startswith("node 0: not begun: ")
        job = cli.train()
        cli.wait_committed(job, 3)
        assert cli.json("status", "--check")["protected"]
        assert cli.json("--node", 1, "status", "--check")["protected"]

    def test_a_rank_that_registers_nothing_is_named_by_all(self, cli):
        # So long a version that the other has not completed keeps memory that the next one needs.
        cli("up", "--", "--version-deadline-s", 5)
        weights = np.zeros(1 << 16)
        with client(cli, 0, 2) as one, client(cli, 1, 2) as other:
            begin([one, other])
            one.register([unreft.Tensor.of_array("weights", weights)])
            step = 0

            def why():
                nonlocal step
                step += 1
                one.fence()
                one.snapshot(step)
                found = one.status()
                assert not found.protecting and found.seconds_since_commit is None
                return "not registered" in found.why_unprotected and found.why_unprotected

            said = wait_until("the rank's name", why, OBSTACLE_TIMEOUT_S)
            expected = (
                f"rank 1 of 2: it is connected (pid {os.getpid()}) but has not registered its "
                "tensors"
            )
            assert said.startswith("nothing is committed yet, ") and expected in said
            assert "unreft status" in said
            checked = cli("status", "--check", code=UNPROTECTED)
            assert checked.startswith("unprotected: nothing is committed yet")
            assert expected in checked
            status = cli.json("status")
            assert [rank["registered"] for rank in status["ranks"]] == [True, False]
            assert status["ranks"][1]["problem"] == "not registered yet"
            first = status["ranks"][0]
            assert first["tensors"] == 1 and first["bytes"] == first["captured_bytes"] == 8 << 16
            assert "not registered yet" in cli("status")
            # It comes after all.
            other.register([unreft.Tensor.of_array("others", weights)])

            def committed():
                nonlocal step
                step += 1
                one.fence()
                other.fence()
                if one.snapshot(step) and other.snapshot(step):
                    with contextlib.suppress(unreft.Aborted):
                        one.wait_committed(step)
                return one.status().protecting

            wait_until("a commit", committed)
            assert one.status().why_unprotected == "" and one.status().seconds_since_commit < 60
            wait_until("the daemon's word", lambda: cli("status", "--check"))


class TestEverCommitted:
    def test_what_was_committed_and_given_up(self, cli):
        cli("up")
        with client(cli, 0, 2) as alone:
            assert alone.ever_committed() is False
        assert cli.json("status")["timeline"] == 0, "it decides nothing"
        cli.train_to_end(2)
        timeline = cli.json("status")["timeline"]
        with client(cli, 1, 7) as another:
            assert another.ever_committed() is True
        assert cli.json("status")["timeline"] == timeline
        cli("fresh-start", "--force")  # this process lives on, and was rank 1
        with client(cli) as last:
            assert last.ever_committed() is False

    def test_several_nodes(self, cli):
        cli("up", "--nodes", 2)
        socket = str(cli.run_dir / "node1" / "unreftd.sock")
        options = {"socket": socket, "job": cli.job, "rank": 1, "world": 2, "attempt": 0}
        with unreft.Client(**options) as alone:
            assert alone.ever_committed() is False
        cli.train_to_end(2)
        with unreft.Client(**options) as alone:
            assert alone.ever_committed() is True

    def test_a_daemon_that_does_not_answer(self, cli):
        pid = cli.json("up")["pid"]
        with client(cli, connect_timeout_s=0.5) as asks:
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(unreft.Unavailable, match="within 500 ms"):
                    asks.ever_committed()
            finally:
                os.kill(pid, signal.SIGCONT)
            assert asks.ever_committed() is False
