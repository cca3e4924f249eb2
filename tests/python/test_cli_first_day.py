"""What an operator mistypes and meets on the first day: each is refused or said, in words."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from cli_testing import BIN_DIR, TRAINER, is_alive, wait_until

UNREFTD = BIN_DIR / "unreftd"


def log_of(cli):
    return (cli.run_dir / "unreftd.log").read_text()


def run(*words, **variables):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env={**os.environ, **variables})


def test_version():
    done = run(UNREFTD, "--version")
    assert done.returncode == 0 and re.fullmatch(r"unreftd \S+\n", done.stdout), done
    assert done.stdout.split()[1] == run(BIN_DIR / "unreft", "--version").stdout.split()[-1]


class TestVariables:
    def start(self, cli, **variables):
        """A daemon that is refused ends; one that is not has a job that it cannot serve."""
        return run(UNREFTD, "--run-dir", cli.run_dir, "--node", 7, "--nodes", 2,
                   "--meta-endpoints", "unix:/x", **variables)

    @pytest.mark.parametrize("name, nearest", [
        ("UNREFT_PARITY_CHUNK", "UNREFT_PARITY_CHUNKS"),
        ("UNREFT_SLOT_PER_RANKS", "UNREFT_SLOTS_PER_RANK"),
        ("UNREFT_DEVICE_CHEKSUM", "UNREFT_DEVICE_CHECKSUM"),
        ("UNREFT_META_ENDPOINT", "UNREFT_META_ENDPOINTS"),
        ("UNREFT_META_TLS_CERTS", "UNREFT_META_TLS_CERT"),
    ])
    def test_mistyped_is_refused(self, cli, name, nearest):
        done = self.start(cli, **{name: "2"})
        assert done.returncode == 1
        assert f"{name} is no variable of Unreft" in done.stderr
        assert f"{nearest} is one: correct it or unset it" in done.stderr

    def test_those_of_other_programs_are_known(self, cli):
        others = ["ATTEMPT", "SOCKET", "DEVICE_CHECKSUM", "PYTHON", "SIM_SEEDS", "BIN_DIR"]
        done = self.start(cli, **{f"UNREFT_{name}": "x" for name in others})
        assert "is no variable" not in done.stderr
        assert "for 2 nodes, found 7" in done.stderr

    def test_a_stranger_is_said_and_not_refused(self, cli):
        """As Kubernetes makes them from the name of a service."""
        os.environ["UNREFT_META_SERVICE_HOST"] = "10.0.0.1"
        try:
            cli("up")
        finally:
            del os.environ["UNREFT_META_SERVICE_HOST"]
        said = " warning .*UNREFT_META_SERVICE_HOST is no variable of Unreft"
        assert re.search(said, log_of(cli))


@pytest.mark.parametrize("words", [
    ["--role=meta", "--insecure", "--meta-listen={address}"],
    ["--nodes=2", "--parity-chunks=1", "--meta-endpoints=127.0.0.1:1", "--insecure",
     "--transport-listen={address}"],
])
def test_cannot_listen_says_why(cli, words):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        done = run(UNREFTD, "--job", cli.job, "--run-dir", cli.run_dir,
                   *(word.format(address=address) for word in words))
    assert done.returncode == 1
    assert f"cannot listen on {address}: Address already in use" in done.stderr
    elsewhere = [word.format(address="192.0.2.1:4400") for word in words]
    done = run(UNREFTD, "--job", cli.job, "--run-dir", cli.run_dir, *elsewhere)
    assert "cannot listen on 192.0.2.1:4400: Cannot assign requested address" in done.stderr


class TestSighup:
    @pytest.mark.parametrize("role", ["node", "meta"])
    def test_reopens_the_log(self, cli, role):
        log, moved = cli.run_dir / "own.log", cli.run_dir / "moved.log"
        daemon = subprocess.Popen([UNREFTD, f"--role={role}", "--job", cli.job, "--run-dir",
                                   cli.run_dir, "--log-file", log])
        try:
            wait_until("the log", lambda: log.exists() and "serv" in log.read_text())
            log.rename(moved)
            daemon.send_signal(signal.SIGHUP)
            wait_until("a new log", lambda: log.exists() and "signal 1: " in log.read_text())
            assert daemon.poll() is None
            assert "signal 1: " not in moved.read_text()
        finally:
            daemon.terminate()
            assert daemon.wait(20) == 0
        assert "signal 15: leaving" in log.read_text()

    def test_of_the_supervisor_reaches_the_daemon(self, cli):
        up = cli.json("up", "--supervise")
        daemon = cli.daemon_pid()
        os.kill(up["supervisor_pid"], signal.SIGHUP)
        wait_until("it in the daemon's log", lambda: "signal 1: " in log_of(cli))
        assert is_alive(up["supervisor_pid"]) and cli.daemon_pid() == daemon


def test_kill_node_is_of_the_node_that_is_named(cli):
    cli("up")
    cli("inject", "kill-node", code=2)
    assert "Name it by --node I" in cli.stderr
    pid = cli.daemon_pid()
    cli("inject", "kill-node", "--node", 1, code=2)
    assert f"is of job {cli.job}, node 0" in cli.stderr
    assert cli.daemon_pid() == pid
    assert cli.json("inject", "kill-node", "--node", 0)["pid"] == pid
    assert not is_alive(pid)
    assert not cli.segments()
    cli.run_dir.mkdir(mode=0o700, exist_ok=True)  # it went with the node


def test_status_after_a_quarantine_says_what_would_be_restored(cli):
    cli("up")
    cli.train_to_end(4)
    committed = cli.json("status")["committed"]["step"]
    text = cli("status")
    assert f":{committed} of 2 ranks" in text and "not whole" not in text
    flip = cli.json("inject", "flip-bit", "--rank", 1)
    assert flip["step"] == committed
    cli("verify", code=5)
    status = cli.json("status")
    assert status["committed"]["step"] == committed
    older = status["restorable"]["step"]
    assert older < committed
    assert re.search(rf"committed \d+:{committed} of 2 ranks, which is not whole any more: "
                     rf"\d+:{older} would be restored", cli("status"))
    job = cli.train()
    wait_until("the restore", lambda: [r for r in job.lines() if r.get("restored") == older])
    job.interrupt()


def test_verify_names_a_slot_once(cli):
    cli("up")
    cli.train_to_end(2)
    slot = cli.json("inject", "flip-bit", "--rank", 0)["slot"]
    text = cli("verify", code=5)
    assert f"slot {slot}: " in text and f"slot {slot}: slot {slot}: " not in text


def test_a_registration_that_is_refused_is_in_the_log(cli):
    cli("up", "--", "--memory-bytes-max", "4MiB")
    job = cli.train(ranks=1)
    (refused,) = wait_until("the refusal", lambda: [r for r in job.lines() if "why" in r])
    (line,) = [line for line in log_of(cli).splitlines()
               if "the registration of rank 0 (pid " in line]
    assert " error " in line and "memory" in refused["why"]
    assert refused["why"].split(": ", 1)[-1][-40:] in line
    job.interrupt()


def test_a_changed_model_is_told_what_helps(cli):
    cli("up")
    cli.train_to_end(2)
    job = cli.launch("--ranks", 2, "--max-restarts", 2, "--", sys.executable, TRAINER, "--bytes",
                     1 << 20)
    assert job.wait() != 0
    assert "or give that state up with 'unreft fresh-start'" in job.output()
    log = log_of(cli)
    assert len(re.findall("is to be restored", log)) == 1, log
    assert "again, since nothing was committed after it" in log
    assert 1 <= len(re.findall("rank [01] does not restore: ", log)) <= 2, log
    assert not [line for line in job.lines() if "restored" in line]
