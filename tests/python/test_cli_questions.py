"""`unreft inject` and what `status`, `versions`, `verify` and the others then answer."""

import os
import pathlib
import signal

import pytest

from cli_testing import CORRUPT, NO_DAEMON, wait_until


class TestInject:
    def test_killed_trainer_comes_back_with_its_state(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 3)
        before = cli.committed()
        pids = job.pids()  # now: soon there is another attempt
        killed = cli.json("inject", "kill-trainer", "--rank", 1)
        assert killed["rank"] == 1 and killed["pid"] == pids[1]
        wait_until("the next attempt", lambda: any(r.get("attempt") == 1 for r in job.lines()))
        restored = [r["restored"] for r in job.lines() if r.get("attempt") == 1]
        assert all(step >= before for step in restored)
        (end,) = job.events("attempt-end")
        assert end["signal"] == signal.SIGKILL
        cli.wait_committed(job, restored[0] + 1)

    def test_nobody_to_kill(self, cli):
        cli("up")
        cli("inject", "kill-trainer", code=1)
        cli("down")
        cli("inject", "kill-trainer", code=NO_DAEMON)
        cli("inject", "kill-daemon", code=NO_DAEMON)

    @pytest.mark.parametrize("region", ["data", "extras", "manifest"])
    def test_flipped_bit_is_found(self, cli, region):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 3)
        job.interrupt()
        assert cli.json("verify")["bad"] == []
        flip = cli.json("inject", "flip-bit", "--rank", 1, "--region", region)
        assert flip["rank"] == 1 and flip["region"] == region
        assert flip["step"] >= cli.committed()
        assert flip["before"] ^ flip["after"] == 1 << flip["bit"]
        segment = pathlib.Path("/dev/shm" + flip["segment"]).read_bytes()
        assert segment[flip["segment_offset"]] == flip["after"]
        bad = cli.json("verify", code=CORRUPT)["bad"]
        assert [slot["slot"] for slot in bad] == [flip["slot"]]

    def test_flip_bit_needs_a_sealed_slot(self, cli):
        cli("up")
        cli("inject", "flip-bit", code=1)
        assert "no sealed slot" in cli.stderr
        cli("inject", "flip-bit", "--region", "nonsense", code=2)


class TestQuestions:
    def test_shapes(self, cli):
        cli("up")
        job = cli.train(ranks=2)
        cli.wait_committed(job, 3)
        status = cli.json("status")
        assert status["running"] and status["job"] == cli.job and status["node"] == 0
        assert set(status["committed"]) == {"timeline", "step", "world"}
        assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
        assert [rank["pid"] for rank in status["ranks"]] == job.pids()
        assert len(status["slots"]) == 6
        assert {slot["segment"] for slot in status["slots"]} <= {
            "/" + segment.name for segment in cli.segments()}
        job.interrupt()
        versions = cli.json("versions")["versions"]
        committed = [version for version in versions if version["committed"]]
        assert len(committed) == 1 and committed[0]["whole"] and committed[0]["live"]
        assert committed[0]["ranks"] == [0, 1] and committed[0]["world"] == 2
        verified = cli.json("verify")
        assert verified["slots_checked"] >= 2 and verified["bytes"] >= 2 * 3 << 20
        assert "unreft_" in cli.json("metrics")["text"]

    def test_tables(self, cli):
        cli("up")
        job = cli.train(ranks=2)
        cli.wait_committed(job, 1)
        job.interrupt()
        assert "sealed" in cli("status") and "committed" in cli("versions")
        assert " 0 bad" in cli("verify") and "# TYPE" in cli("metrics")

    def test_fresh_start(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 1)
        job.interrupt()
        assert cli.fresh_start()["timeline"] > 0
        job = cli.train()
        wait_until("the restart", lambda: len(job.lines()) >= 2)
        assert [line["restored"] for line in job.lines() if "restored" in line] == [0, 0]

    def test_no_daemon(self, cli):
        status = cli.json("status", code=NO_DAEMON)
        assert status["running"] is False and status["segments"] == 0
        for verb in ("versions", "verify", "fresh-start", "metrics"):
            answer = cli.json(verb, code=NO_DAEMON)
            assert answer["code"] == "UNAVAILABLE" and str(cli.run_dir) in answer["error"]

    def test_daemon_that_does_not_answer(self, cli):
        pid = cli.json("up")["pid"]
        os.kill(pid, signal.SIGSTOP)
        answer = cli.json("versions", "--timeout-ms", 300, code=4)
        assert str(cli.run_dir) in answer["error"] and "in time" in answer["error"]
        os.kill(pid, signal.SIGCONT)

    def test_bad_usage(self, cli):
        cli(code=2)
        cli("no-such-command", code=2)
        cli("status", "--no-such-option", code=2)
        cli("--job", "a.b", "status", code=2)
        assert "torchrun" in cli("--help") and "torchrun" in cli("run", "--help")
