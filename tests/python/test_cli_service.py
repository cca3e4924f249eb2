"""unreftd as a service: what systemd hears of it, and with which status it ends."""

import os
import signal
import socket
import subprocess

import pytest

from cli_testing import BIN_DIR, wait_until


class Manager:
    """The socket of a service manager, and the daemon that it started."""

    def __init__(self, run_dir, *words):
        self.heard = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(run_dir / "notify"))
        self._socket.setblocking(False)
        environment = {**os.environ, "NOTIFY_SOCKET": str(run_dir / "notify"),
                       "WATCHDOG_USEC": "400000"}
        with open(run_dir / "err", "wb") as err:
            self.process = subprocess.Popen(
                list(map(str, [BIN_DIR / "unreftd", "--run-dir", run_dir, *words])),
                env=environment, stdin=subprocess.DEVNULL, stdout=err, stderr=err)

    def listen(self):
        try:
            while True:
                self.heard.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return self.heard

    def wait(self, start, count=1):
        wait_until(start, lambda: sum(h.startswith(start) for h in self.listen()) >= count)

    def close(self):
        self.process.kill()
        self.process.wait()
        self._socket.close()


@pytest.fixture
def start(cli):
    managers = []

    def start_one(*words):
        managers.append(Manager(cli.run_dir, "--job", cli.job, *words))
        return managers[-1]

    yield start_one
    for manager in managers:
        manager.close()


@pytest.mark.parametrize("role, status", [("node", "node 0 of job"), ("meta", "meta store at")])
def test_states(cli, start, role, status):
    manager = start("--role", role)
    manager.wait(f"READY=1\nSTATUS={status}")
    if role == "node":
        assert cli.json("status")["pid"] == manager.process.pid, "ready is who answers"
    manager.wait("WATCHDOG=1", count=3)
    manager.process.send_signal(signal.SIGHUP)
    manager.wait("RELOADING=1\nMONOTONIC_USEC=")
    manager.wait("READY=1", count=2)
    assert not [heard for heard in manager.heard if heard.startswith("STOPPING")]
    manager.process.terminate()
    assert manager.process.wait(30) == 0
    manager.wait("STOPPING=1")


def test_a_daemon_that_is_refused_is_never_ready(cli, start):
    cli("up")
    manager = start()
    assert manager.process.wait(30) == 1
    assert not [heard for heard in manager.listen() if "READY" in heard]
    assert "unreftd: " in (cli.run_dir / "err").read_text()
