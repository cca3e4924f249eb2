"""`unreft run`: ranks that fail, are killed or do not end, and a launcher that is."""

import os
import signal
import sys
import time

import pytest

from cli_testing import TRAINER, is_alive, wait_until


class TestRun:
    SHOW = "import os, json; os.write(1, (json.dumps(dict(os.environ)) + chr(10)).encode())"

    def test_environment_of_the_ranks(self, cli):
        job = cli.launch("--ranks", 3, "--", sys.executable, "-c", self.SHOW)
        assert job.wait() == 0
        ranks = sorted(job.lines(), key=lambda environment: int(environment["RANK"]))
        assert [rank["RANK"] for rank in ranks] == ["0", "1", "2"]
        assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"]
        for rank in ranks:
            assert rank["WORLD_SIZE"] == rank["LOCAL_WORLD_SIZE"] == "3"
            assert rank["MASTER_ADDR"] == "127.0.0.1"
            assert 1024 < int(rank["MASTER_PORT"]) < 65536
            assert rank["UNREFT_ATTEMPT"] == "0" and rank["UNREFT_JOB"] == cli.job
            assert rank["UNREFT_SOCKET"] == str(cli.run_dir / "unreftd.sock")
        assert len({rank["MASTER_PORT"] for rank in ranks}) == 1

    def test_the_port_is_kept_for_who_binds_it_by_number(self, cli):
        """Else another process has it before rank 0 does, which imports for seconds."""
        program = """
import errno, os, socket
port = int(os.environ["MASTER_PORT"])
for address in ("127.0.0.1", "0.0.0.0"):
    try:
        socket.socket().bind((address, port))
    except OSError as error:
        assert error.errno == errno.EADDRINUSE, error
    else:
        raise SystemExit(f"{address}:{port} is anybody's")
for family in (socket.AF_INET, socket.AF_INET6):
    with socket.create_server(("", port), family=family, dualstack_ipv6=family != socket.AF_INET):
        socket.create_connection(("127.0.0.1", port)).close()
"""
        job = cli.launch("--max-restarts", 0, "--", sys.executable, "-c", program)
        assert job.wait() == 0, job.output()

    def test_users_thread_count_is_kept(self, cli, monkeypatch):
        for given, seen in ((None, "1"), ("5", "5")):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if given:
                monkeypatch.setenv("OMP_NUM_THREADS", given)
            job = cli.launch("--", sys.executable, "-c", self.SHOW)
            assert job.wait() == 0
            assert job.lines()[0]["OMP_NUM_THREADS"] == seen

    def test_failure_of_a_rank_starts_the_next_attempt(self, cli):
        fail_first = '[ $UNREFT_ATTEMPT != 0 ] && exit 0; [ $RANK = 1 ] && exit 7; sleep 60'
        job = cli.launch("--ranks", 3, "--", "sh", "-c", fail_first)
        assert job.wait() == 0
        starts, ends = job.events("attempt-start"), job.events("attempt-end")
        assert [start["attempt"] for start in starts] == [0, 1]
        assert starts[0]["port"] != starts[1]["port"]
        assert (ends[0]["why"], ends[0]["rank"], ends[0]["exit_code"]) == ("failed", 1, 7)
        assert ends[0]["pid"] == starts[0]["pids"][1]
        assert ends[1]["why"] == "done"
        assert not any(is_alive(pid) for pid in starts[0]["pids"])

    def test_killed_rank_is_the_cause(self, cli):
        job = cli.launch("--ranks", 3, "--max-restarts", 0, "--", "sleep", 60)
        pids = job.pids()
        os.kill(pids[2], signal.SIGKILL)
        assert job.wait() == 128 + signal.SIGKILL
        (end,) = job.events("attempt-end")
        assert (end["rank"], end["pid"], end["signal"]) == (2, pids[2], signal.SIGKILL)

    def test_restarts_have_a_limit(self, cli):
        job = cli.launch("--max-restarts", 2, "--", "sh", "-c", "exit 9")
        assert job.wait() == 9
        assert [end["attempt"] for end in job.events("attempt-end")] == [0, 1, 2]

    def test_rank_that_ignores_sigterm_is_killed(self, cli):
        script = 'trap "" TERM; [ $RANK = 0 ] && { sleep 0.3; exit 1; }; while :; do sleep 1; done'
        begin = time.monotonic()
        job = cli.launch("--ranks", 2, "--max-restarts", 0, "--grace-ms", 200, "--", "sh", "-c",
                         script)
        assert job.wait() == 1
        assert time.monotonic() - begin < 30
        assert not any(is_alive(pid) for pid in job.pids())

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signal_stops_ranks_and_their_children(self, cli, number):
        # The child of a rank, like a data loader's worker, belongs to its group.
        script = "sleep 60 & echo '{\"child\": '$!'}'; wait"
        job = cli.launch("--ranks", 2, "--", "sh", "-c", script)
        children = wait_until("the children", lambda: len(job.lines()) == 2 and job.lines())
        job.process.send_signal(number)
        assert job.wait() == 128 + number
        assert [end["why"] for end in job.events("attempt-end")] == ["stopped"]
        everyone = [*job.pids(), *(line["child"] for line in children)]
        wait_until("their end", lambda: not any(is_alive(pid) for pid in everyone))

    def test_ranks_die_with_the_launcher(self, cli):
        job = cli.launch("--ranks", 2, "--", "sleep", 60)
        pids = job.pids()
        job.process.kill()
        wait_until("the end of the ranks", lambda: not any(is_alive(pid) for pid in pids))

    def test_output_is_prefixed(self, cli):
        out = cli("run", "--ranks", 2, "--prefix-output", "--", "sh", "-c",
                  "echo hello $RANK; printf 'no end'")
        assert sorted(out.splitlines()) == ["[0] hello 0", "[0] no end", "[1] hello 1",
                                            "[1] no end"]

    def test_command_that_does_not_exist(self, cli):
        cli("run", "--", "/no/such/program", code=127)
        assert "/no/such/program" in cli.stderr
        cli("run", code=2)

    def test_next_launcher_goes_on(self, cli):
        cli("up")
        newest = 0
        for last in (20, 40):
            job = cli.launch("--ranks", 2, "--", sys.executable, TRAINER, "--steps", last)
            assert job.wait() == 0, job.output()
            restored = [line["restored"] for line in job.lines() if "restored" in line]
            assert restored == [newest] * 2, job.output()
            # The last steps may have been skipped, but not all.
            newest = max(line.get("committed", 0) for line in job.lines())
            assert restored[0] < newest == cli.committed(), job.output()

    def test_next_launcher_counts_on_while_ranks_live(self, cli):
        cli("up")
        first = cli.train("--first-attempt", 6)
        cli.wait_committed(first, 1)
        second = cli.train()
        wait_until("its start", lambda: second.events("attempt-start"))
        assert second.events("attempt-start")[0]["attempt"] == 7

    @pytest.mark.parametrize("number", [0, 6, 7])
    def test_a_second_launcher_changes_nothing(self, cli, number):
        cli("up")
        first = cli.train("--first-attempt", 6)
        cli.wait_committed(first, 1)
        alone = ["--max-restarts", 0, "--first-attempt", number]
        second = cli.launch("--ranks", 2, *alone, "--", sys.executable, TRAINER)
        assert second.wait() != 0
        # Of one number each rank is refused by its own, and the first to say so ends the others.
        refusals = ("all ranks of attempt 6 live", "rank 0 of attempt 6 is pid",
                    "rank 1 of attempt 6 is pid")
        assert any(refusal in second.output() for refusal in refusals), second.output()
        assert not [line for line in second.lines() if "restored" in line]
        cli.wait_committed(first, cli.committed() + 5)
        assert len(first.events("attempt-start")) == 1
        assert {rank["pid"] for rank in cli.status()["ranks"]} == set(first.pids())

    def test_another_launcher_goes_on_once_a_rank_of_the_first_has_ended(self, cli):
        cli("up")
        first = cli.train("--max-restarts", 0)
        cli.wait_committed(first, 1)
        second = cli.train()
        os.kill(first.pids()[1], signal.SIGKILL)
        assert first.wait() == 128 + signal.SIGKILL
        cli.wait_committed(second, cli.committed() + 1)

    def test_up_with_run(self, cli):
        job = cli.train("--up")
        wait_until("the daemon", lambda: "pid" in cli.status_or_nothing())
        cli.wait_committed(job, 1)
        assert cli.json("up")["supervisor_pid"] is not None
        job.interrupt()
        assert cli.json("status")["running"]  # the memory outlives the launcher
