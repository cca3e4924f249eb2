"""The command line with real processes: daemons that are killed, ranks that fail, memory that goes.

Each test has a job and a run directory of its own and leaves neither process nor segment behind.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
TRAINER = pathlib.Path(__file__).with_name("cli_trainer.py")
COMMAND_TIMEOUT_S = 60

NO_DAEMON = 3
CORRUPT = 5


def wait_until(what, ready, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not (result := ready()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
    return result


def is_alive(pid):
    """Whether it runs: one that ended and that nobody waited for does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class Cli:
    """`unreft` for one job; remembers what it launched."""

    def __init__(self):
        self.job = f"cli{os.getpid()}-{secrets.token_hex(4)}"
        # Short: the path of a socket has 107 bytes at most.
        self.run_dir = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.launched = []

    def command(self, *words):
        place = ["--job", self.job, "--run-dir", self.run_dir]
        return [str(word) for word in [BIN_DIR / "unreft", *place, *words]]

    def __call__(self, *words, code=0):
        """Runs a command to its end; its standard output."""
        done = subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=COMMAND_TIMEOUT_S)
        assert done.returncode == code, done.stdout + done.stderr
        self.stderr = done.stderr
        return done.stdout

    def json(self, *words, code=0):
        return json.loads(self("--json", *words, code=code))

    def launch(self, *words):
        """`unreft run` in the background, its ranks' and its own lines in files."""
        number = len(self.launched)
        out, err = (self.run_dir / f"run{number}.{name}" for name in ("out", "err"))
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(self.command("--json", "run", *words), stdout=out_file,
                                       stderr=err_file, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        launched = Launched(process, out, err)
        self.launched.append(launched)
        return launched

    def train(self, *words, ranks=2):
        return self.launch("--ranks", ranks, *words, "--", sys.executable, TRAINER)

    def segments(self):
        return sorted(pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"))

    def committed(self):
        committed = self.json("status")["committed"]
        return committed["step"] if committed else 0

    def wait_committed(self, job, step):
        def ready():
            assert job.process.poll() is None, f"the job ended: {job.output()}"
            return self.committed() >= step

        wait_until(f"the commit of step {step}", ready)

    def close(self):
        for launched in self.launched:
            launched.process.kill()
            launched.process.wait()
        with contextlib.suppress(AssertionError):
            self("down")
        for segment in self.segments():
            segment.unlink()
        shutil.rmtree(self.run_dir)


class Launched:
    def __init__(self, process, out, err):
        self.process, self._out, self._err = process, out, err

    def wait(self):
        return self.process.wait(COMMAND_TIMEOUT_S)

    def lines(self):
        """What the ranks printed, as far as it is JSON."""
        return self._parse(self._out)

    def events(self, name):
        return [event for event in self._parse(self._err) if event.get("event") == name]

    def pids(self):
        started = wait_until("an attempt", lambda: self.events("attempt-start"))
        return started[-1]["pids"]

    def output(self):
        return self._out.read_text() + self._err.read_text()

    @staticmethod
    def _parse(path):
        records = []
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return records


@pytest.fixture
def cli():
    cli = Cli()
    yield cli
    cli.close()


def daemon_pid(cli):
    return cli.json("status")["pid"]


class TestUpAndDown:
    def test_up_is_idempotent(self, cli):
        first = cli.json("up")
        again = cli.json("up")
        assert not first["already_up"] and again["already_up"]
        assert first["pid"] == again["pid"] and is_alive(first["pid"])
        assert pathlib.Path(first["socket"]).parent == cli.run_dir
        assert first["environment"]["UNREFT_SOCKET"] == first["socket"]
        assert first["environment"]["UNREFT_JOB"] == cli.job

    def test_environment_is_for_a_shell(self, cli):
        exports = cli("up", "--print-env")
        script = f'{exports}\n[ "$UNREFT_JOB" = {cli.job} ] && [ -S "$UNREFT_SOCKET" ]'
        assert subprocess.run(["sh", "-c", script], timeout=10).returncode == 0

    def test_daemon_survives_a_kill_of_the_callers_group(self, cli):
        command = subprocess.list2cmdline(cli.command("up"))
        caller = subprocess.Popen(["sh", "-c", f"{command} && sleep 60"], start_new_session=True,
                                  stdout=subprocess.DEVNULL)
        wait_until("the daemon", lambda: "pid" in self.status_or_nothing(cli))
        os.killpg(caller.pid, signal.SIGKILL)
        caller.wait()
        assert is_alive(daemon_pid(cli))

    @staticmethod
    def status_or_nothing(cli):
        with contextlib.suppress(AssertionError):
            return cli.json("status")
        return {}

    def test_daemon_that_cannot_start_says_why(self, cli):
        for words in ([], ["--supervise"]):
            begin = time.monotonic()
            cli("up", *words, "--", "--no-such-option", code=1)
            assert "no-such-option" in cli.stderr and str(cli.run_dir) in cli.stderr
            assert time.monotonic() - begin < 10
        assert not cli.segments()

    def test_down_removes_everything(self, cli):
        pid = cli.json("up")["pid"]
        job = cli.train()
        cli.wait_committed(job, 1)
        job.process.send_signal(signal.SIGINT)
        job.wait()
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
        os.kill(daemon_pid(cli), signal.SIGKILL)
        job.process.kill()  # its ranks die with it
        job.wait()
        assert cli.segments()
        down = cli.json("down")
        assert down["daemon_pid"] is None and down["segments_removed"] > 2
        assert not cli.segments()
        assert cli.json("down")["segments_removed"] == 0

    def test_down_under_running_ranks(self, cli):
        cli("up", "--supervise")
        job = cli.train()
        cli.wait_committed(job, 1)
        cli("down")
        assert not cli.segments()
        assert job.process.poll() is None

    def test_down_can_keep_the_memory(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 3)
        job.process.send_signal(signal.SIGINT)
        job.wait()
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
        assert daemon_pid(cli) == pid

    def test_killed_daemon_adopts_its_memory(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 3)
        job.process.send_signal(signal.SIGINT)
        job.wait()
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
                   lambda: TestUpAndDown.status_or_nothing(cli).get("pid", first["pid"])
                   != first["pid"])
        second = daemon_pid(cli)
        down = cli.json("down")
        assert down["supervisor_pid"] == first["supervisor_pid"]
        for pid in (first["supervisor_pid"], second):
            assert not is_alive(pid)
        assert "killed by signal 9" in (cli.run_dir / "unreftd.log").read_text()

    def test_orderly_stop_ends_the_supervisor(self, cli):
        first = cli.json("up", "--supervise")
        os.kill(first["pid"], signal.SIGTERM)
        wait_until("the supervisor's end", lambda: not is_alive(first["supervisor_pid"]))


class TestRun:
    SHOW = "import os, json; print(json.dumps(dict(os.environ)))"

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
        assert time.monotonic() - begin < 10
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
        for restored, last in ((0, 3), (3, 5)):
            job = cli.launch("--ranks", 2, "--", sys.executable, TRAINER, "--steps", last)
            assert job.wait() == 0, job.output()
            assert [r["restored"] for r in job.lines() if "restored" in r] == [restored] * 2

    def test_next_launcher_counts_on_while_ranks_live(self, cli):
        cli("up")
        first = cli.train("--first-attempt", 6)
        cli.wait_committed(first, 1)
        second = cli.train()
        wait_until("its start", lambda: second.events("attempt-start"))
        assert second.events("attempt-start")[0]["attempt"] == 7

    def test_up_with_run(self, cli):
        job = cli.train("--up")
        wait_until("a commit", lambda: self.is_up(cli) and cli.committed() > 0)
        assert cli.json("up")["supervisor_pid"] is not None
        job.process.send_signal(signal.SIGINT)
        job.wait()
        assert cli.json("status")["running"]  # the memory outlives the launcher

    @staticmethod
    def is_up(cli):
        return "pid" in TestUpAndDown.status_or_nothing(cli)


class TestInject:
    def test_killed_trainer_comes_back_with_its_state(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 3)
        before = cli.committed()
        killed = cli.json("inject", "kill-trainer", "--rank", 1)
        assert killed["rank"] == 1 and killed["pid"] == job.pids()[1]
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
        job.process.send_signal(signal.SIGINT)
        job.wait()
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
        job.process.send_signal(signal.SIGINT)
        job.wait()
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
        job.process.send_signal(signal.SIGINT)
        job.wait()
        assert "sealed" in cli("status") and "committed" in cli("versions")
        assert " 0 bad" in cli("verify") and "# TYPE" in cli("metrics")

    def test_fresh_start(self, cli):
        cli("up")
        job = cli.train()
        cli.wait_committed(job, 1)
        job.process.send_signal(signal.SIGINT)
        job.wait()
        assert cli.json("fresh-start")["timeline"] > 0
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
        assert str(cli.run_dir) in answer["error"] and "versions" in answer["error"]
        os.kill(pid, signal.SIGCONT)

    def test_bad_usage(self, cli):
        cli(code=2)
        cli("no-such-command", code=2)
        cli("status", "--no-such-option", code=2)
        cli("--job", "a.b", "status", code=2)
        assert "torchrun" in cli("--help") and "torchrun" in cli("run", "--help")
