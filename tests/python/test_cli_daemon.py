"""`unreft up` and `down`, and the daemon they are about, killed in every state."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

import cli_testing
from cli_testing import BIN_DIR, NO_DAEMON, is_alive, wait_until


class TestUpAndDown:
    def test_up_is_idempotent(self, cli):
        first = cli.json("up")
        again = cli.json("up")
        assert not first["already_up"] and again["already_up"]
        assert first["pid"] == again["pid"] and is_alive(first["pid"])
        assert pathlib.Path(first["socket"]).parent == cli.run_dir
        assert first["environment"]["UNREFT_SOCKET"] == first["socket"]
        assert first["environment"]["UNREFT_JOB"] == cli.job

    def test_a_run_directory_that_was_removed_is_said(self, cli):
        """By what cleans /tmp up, for one: its daemon runs on, and nobody reaches it."""
        pid = cli.json("up", "--supervise")["pid"]
        shutil.rmtree(cli.run_dir)
        said = cli("status", code=NO_DAEMON)
        assert f"unreftd (pid {pid}) runs" in said and "was removed" in said
        cli("up", code=cli_testing.TOO_LATE)
        assert "`unreft down --keep-memory`" in cli.stderr and is_alive(pid)
        cli("down", "--keep-memory")
        assert not is_alive(pid)
        assert cli.json("up")["pid"] != pid

    def test_environment_is_for_a_shell(self, cli):
        exports = cli("up", "--print-env")
        script = f'{exports}\n[ "$UNREFT_JOB" = {cli.job} ] && [ -S "$UNREFT_SOCKET" ]'
        assert subprocess.run(["sh", "-c", script], timeout=10).returncode == 0

    def test_daemon_survives_a_kill_of_the_callers_group(self, cli):
        command = subprocess.list2cmdline(cli.command("up"))
        caller = subprocess.Popen(["sh", "-c", f"{command} && sleep 60"], start_new_session=True,
                                  stdout=subprocess.DEVNULL)
        wait_until("the daemon", lambda: "pid" in cli.status_or_nothing())
        os.killpg(caller.pid, signal.SIGKILL)
        caller.wait()
        assert is_alive(cli.daemon_pid())

    def test_daemon_that_cannot_start_says_why(self, cli):
        for words in ([], ["--supervise"]):
            begin = time.monotonic()
            cli("up", *words, "--", "--no-such-option", code=1)
            assert "no-such-option" in cli.stderr and str(cli.run_dir) in cli.stderr
            assert time.monotonic() - begin < 30  # it does not wait for an answer
        assert not cli.segments()

    def test_takes_as_many_descriptors_as_it_may_have(self, cli):
        command = subprocess.list2cmdline(cli.command("up"))
        subprocess.run(["sh", "-c", f"ulimit -S -n 256 && {command}"], check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
        limits = pathlib.Path(f"/proc/{cli.daemon_pid()}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        soft, hard = line.split()[3:5]
        assert soft == hard != "256"

    def test_blocks_that_no_other_node_could_read_are_refused(self, cli):
        done = subprocess.run(
            [BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", cli.run_dir, "--nodes", "4",
             "--block-bytes", str(128 << 20)], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "67108864 bytes of each other, found 134217728" in done.stdout + done.stderr

    def test_down_removes_everything(self, cli):
        pid = cli.json("up")["pid"]
        cli.train_to_end(1)
        # Each session has a segment until the daemon has noticed its end.
        wait_until("the sessions' end", lambda: not cli.json("status")["ranks"])
        held = len(cli.segments())
        assert held > 2
        down = cli.json("down")
        assert down["daemon_pid"] == pid and not is_alive(pid)
        assert down["segments_removed"] == held and down["bytes_removed"] > 2 * 3 << 20
        assert not cli.segments()
        assert not (cli.run_dir / "unreftd.sock").exists()
        assert not (cli.run_dir / "records").exists()

    def test_down_after_kill_9_removes_everything(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 1)
        pid = cli.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        # It holds its lock until the kernel has taken its memory down.
        wait_until("the daemon's end", lambda: not is_alive(pid))
        pids = job.pids()
        job.process.kill()  # its ranks die with it
        job.wait()
        wait_until("the ranks' end", lambda: not any(map(is_alive, pids)))
        assert cli.segments()
        down = cli.json("down")
        assert down["daemon_pid"] is None and down["segments_removed"] > 2
        assert not cli.segments()
        assert cli.json("down")["segments_removed"] == 0

    def test_down_under_running_ranks(self, cli):
        cli("up", "--supervise")
        job = cli.train()
        cli.wait_committed(job, 1)
        cli("down", "--force")
        assert not cli.segments()
        assert job.process.poll() is None

    def test_down_can_keep_the_memory(self, cli):
        cli("up")
        cli.train_to_end(3)
        committed, kept = cli.committed(), cli.segments()
        assert cli.json("down", "--keep-memory")["segments_kept"] == len(kept)
        assert cli.segments() == kept
        cli("up")
        assert cli.committed() == committed

    def test_down_spares_what_another_run_dir_serves(self, cli):
        pid = cli.json("up")["pid"]
        with tempfile.TemporaryDirectory(prefix="unreft-") as other:
            cli("--run-dir", other, "down", code=1)
        assert f"pid {pid}" in cli.stderr and "--run-dir" in cli.stderr
        assert cli.segments()

    @pytest.mark.parametrize("words", [[], ["--supervise"]])
    def test_down_after_the_run_dir_was_cleaned_away(self, cli, words):
        up = cli.json("up", *words)
        shutil.rmtree(cli.run_dir)
        down = cli.json("down")
        assert down["supervisor_pid"] == up["supervisor_pid"]
        for pid in (up["pid"], up["supervisor_pid"]):
            assert pid is None or not is_alive(pid)
        assert not cli.segments()
        cli.run_dir.mkdir()

    def test_down_stops_a_daemon_that_does_not_listen(self, cli):
        pid = cli.json("up")["pid"]
        os.kill(pid, signal.SIGSTOP)
        assert cli.json("down", "--timeout-ms", 300)["killed"]
        assert not is_alive(pid) and not cli.segments()

    def test_stale_lock_file_hits_nobody(self, cli):
        cli("up")
        cli("down")
        bystander = subprocess.Popen(["sleep", "60"])
        (cli.run_dir / "unreftd.lock").write_text(f"{bystander.pid}\n")
        assert cli.json("down")["daemon_pid"] is None
        cli("inject", "kill-daemon", code=NO_DAEMON)
        assert bystander.poll() is None
        bystander.kill()
        bystander.wait()


class TestDaemon:
    def test_second_daemon_is_refused(self, cli):
        pid = cli.json("up")["pid"]
        command = [BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", cli.run_dir]
        second = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert second.returncode != 0
        assert str(cli.run_dir) in second.stderr and str(pid) in second.stderr
        assert cli.daemon_pid() == pid

    def test_memory_has_one_daemon_whatever_the_run_dirs(self, cli):
        pid = cli.json("up")["pid"]
        with tempfile.TemporaryDirectory(prefix="unreft-") as other:
            second = subprocess.run([BIN_DIR / "unreftd", "--job", cli.job, "--run-dir", other],
                                    capture_output=True, text=True, timeout=60)
        assert second.returncode != 0
        assert f"unreft.{cli.job}.0.node is served by another process" in second.stderr
        assert cli.daemon_pid() == pid

    def test_killed_daemon_goes_on_without_its_records(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 3)
        cli("inject", "kill-daemon")
        (cli.run_dir / "records" / "CURRENT").write_text("garbage")
        cli("up")
        assert cli.committed() >= 3
        cli.wait_committed(job, cli.committed() + 2)
        job.interrupt()
        log = (cli.run_dir / "unreftd.log").read_text()
        assert "CURRENT" in log and "going on with what the memory says" in log
        status = cli.json("status", code=1)
        assert status["counters"]["record_writes_failed"] > 0
        assert "CURRENT" in status["problem"]

    def test_without_memory_and_records_nobody_guesses(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 1)
        job.interrupt()
        cli("down", "--keep-memory")
        for segment in cli.segments():
            segment.unlink()
        current = cli.run_dir / "records" / "CURRENT"
        good = current.read_text()
        current.write_text("garbage")
        cli("up", code=1)
        assert "what was committed" in cli.stderr and str(cli.run_dir) in cli.stderr
        current.write_text(good)
        cli("up")
        assert cli.committed() >= 1

    def test_killed_daemon_adopts_its_memory(self, cli):
        cli("up")
        cli.train_to_end(3)
        before = cli.json("status")
        assert cli.json("inject", "kill-daemon")["pid"] == before["pid"]
        cli("status", code=NO_DAEMON)
        cli("up")
        after = cli.json("status")
        assert after["committed"] == before["committed"]
        assert after["incarnation"] == before["incarnation"]
        assert after["session"] > before["session"]

    def test_supervisor_starts_it_again(self, cli):
        first = cli.json("up", "--supervise")
        assert is_alive(first["supervisor_pid"])
        cli("inject", "kill-daemon")
        wait_until("another daemon",
                   lambda: cli.status_or_nothing().get("pid", first["pid"])
                   != first["pid"])
        second = cli.daemon_pid()
        down = cli.json("down")
        assert down["supervisor_pid"] == first["supervisor_pid"]
        for pid in (first["supervisor_pid"], second):
            assert not is_alive(pid)
        assert "killed by signal 9" in (cli.run_dir / "unreftd.log").read_text()

    def test_supervisor_tries_again_when_the_binary_is_away(self, cli, tmp_path, monkeypatch):
        for name in ("unreft", "unreftd"):
            shutil.copy(BIN_DIR / name, tmp_path)
        monkeypatch.setattr(cli_testing, "BIN_DIR", tmp_path)
        first = cli.json("up", "--supervise")
        away = (tmp_path / "unreftd").rename(tmp_path / "away")
        cli("inject", "kill-daemon")
        log = cli.run_dir / "unreftd.log"
        wait_until("a start that fails", lambda: "trying again in" in log.read_text())
        away.rename(tmp_path / "unreftd")
        wait_until("another daemon",
                   lambda: cli.status_or_nothing().get("pid", first["pid"])
                   != first["pid"])

    def test_orderly_stop_ends_the_supervisor(self, cli):
        first = cli.json("up", "--supervise")
        os.kill(first["pid"], signal.SIGTERM)
        wait_until("the supervisor's end", lambda: not is_alive(first["supervisor_pid"]))
