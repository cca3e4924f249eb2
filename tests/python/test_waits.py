"""What waits in a rank answers signals, and no step waits for a daemon that is stopped or dead."""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from cli_testing import BIN_DIR, wait_until

TRAINER = pathlib.Path(__file__).with_name("waiting_trainer.py")
HANG_S = 30  # a hang, whatever the machine's load


class Place:
    """A daemon and ranks of a job of its own."""

    def __init__(self):
        self.job = f"waits{os.getpid()}-{secrets.token_hex(4)}"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.socket = self.directory / "unreftd.sock"
        self.daemon = None
        self.trainers = []

    def start(self):
        command = [BIN_DIR / "unreftd", "--job", self.job, "--run-dir", self.directory]
        self.daemon = subprocess.Popen([*command, "--log-level", "error"])

        def answers():
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.socket)) == 0

        wait_until("the daemon", answers)

    def run(self, what):
        command = [sys.executable, TRAINER, self.socket, self.job, what]
        trainer = Trainer(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True))
        self.trainers.append(trainer)
        return trainer

    def close(self):
        for process in [trainer.process for trainer in self.trainers] + [self.daemon]:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"):
            segment.unlink()
        shutil.rmtree(self.directory)


class Trainer:
    def __init__(self, process):
        self.process = process
        self.pid = int(process.stdout.readline())

    def expect(self, text):
        """The next line, which has `text`; before it, it may say again what it waits for."""
        while text not in (line := self.process.stdout.readline()):
            assert "still waiting" in line, line + self.process.stdout.read()
        return line

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self):
        """Its exit status and the rest of its output."""
        output, _ = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, output


@pytest.fixture
def place():
    made = Place()
    yield made
    made.close()


class TestInterrupt:
    def test_while_it_connects(self, place):
        trainer = place.run("open_nobody")
        trainer.expect("still waiting for the daemon")
        sent = time.monotonic()
        trainer.process.send_signal(signal.SIGINT)
        trainer.expect("raised KeyboardInterrupt")
        assert time.monotonic() - sent < 5
        assert trainer.ends() == (0, "")

    def test_in_restore_begin(self, place):
        place.start()
        trainer = place.run("restore")
        trainer.expect("still waiting for the decision what to restore")
        trainer.process.send_signal(signal.SIGINT)
        trainer.expect("raised KeyboardInterrupt")
        trainer.expect("closed")
        assert trainer.ends() == (0, "")

    def test_in_restore_begin_with_a_stopped_daemon(self, place):
        place.start()
        trainer = place.run("restore")
        trainer.expect("still waiting for the decision what to restore")
        place.daemon.send_signal(signal.SIGSTOP)
        trainer.process.send_signal(signal.SIGINT)
        trainer.expect("raised KeyboardInterrupt")
        trainer.expect("closed")
        assert trainer.ends() == (0, "")

    def test_says_what_it_waits_for(self, place):
        place.start()
        trainer = place.run("restore")
        line = trainer.expect("unreft WARNING still waiting for the decision what to restore")
        assert "all 2 ranks must ask (" in line and line.endswith(" s)\n")

    def test_in_restore_read_while_it_copies(self, place):
        place.start()
        trainer = place.run("restore_read")
        trainer.expect("reads")
        place.daemon.send_signal(signal.SIGSTOP)  # so that it waits, until it says so
        trainer.go_on()
        trainer.expect("still waiting for where the bytes of the version lie")
        place.daemon.send_signal(signal.SIGCONT)
        trainer.expect("still waiting for the tensors to be copied from memory")
        trainer.expect("raised KeyboardInterrupt")
        trainer.expect("closed")
        assert trainer.ends() == (0, "")

    def test_is_no_matter_of_another_thread(self, place):
        place.start()
        trainer = place.run("restore_thread")
        trainer.expect("still waiting for the decision what to restore")
        trainer.process.send_signal(signal.SIGINT)
        trainer.expect("raised Cancelled the caller ended the wait for the decision")
        assert trainer.ends() == (0, "")


class TestClose:
    def test_ends_the_wait_of_another_thread(self, place):
        place.start()
        trainer = place.run("restore_closed")
        trainer.expect("raised Cancelled the caller ended the wait")
        trainer.expect("raised FailedPrecondition the client is closed")
        assert trainer.ends() == (0, "")

    def test_in_a_handler_ends_the_wait_it_interrupts(self, place):
        place.start()
        trainer = place.run("restore_closed_by_handler")
        trainer.expect("still waiting for the decision what to restore")
        trainer.process.send_signal(signal.SIGTERM)
        trainer.expect("raised Cancelled")
        trainer.expect("raised FailedPrecondition the client is closed")
        assert trainer.ends() == (0, "")

    def test_lets_another_open(self, place):
        place.start()
        trainer = place.run("several")
        trainer.expect("raised FailedPrecondition rank 0 of job waits")
        trainer.expect("after close True")
        assert trainer.ends() == (0, "")

    def test_is_not_needed_to_end(self, place):
        place.start()
        trainer = place.run("no_close")
        trainer.expect("ends")
        assert trainer.ends() == (0, "")


class TestFork:
    def test_a_child_holds_nothing_and_does_nothing(self, place):
        place.start()
        trainer = place.run("forks")
        trainer.expect("trainer 1 True False")
        trainer.expect("children [0]")
        trainer.expect("with the lock held 0")
        trainer.expect("captures True True")
        assert trainer.ends() == (0, "")


class TestSteps:
    @pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGKILL])
    def test_go_on_without_the_daemon(self, place, stop):
        """Also steps that register other tensors."""
        place.start()
        trainer = place.run("stopped_daemon")
        trainer.expect("registered")
        place.daemon.send_signal(stop)
        if stop == signal.SIGKILL:
            place.daemon.wait()
        trainer.go_on()
        for _ in range(3):
            trainer.expect("raised DeadlineExceeded")
            trainer.expect("snapshot False the daemon has not taken over the tensors yet")
        trainer.expect("steps done")
        if stop == signal.SIGKILL:
            place.start()
        else:
            place.daemon.send_signal(signal.SIGCONT)
        trainer.go_on()
        trainer.expect("captures again")
        assert trainer.ends() == (0, "")
