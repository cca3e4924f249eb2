"""ForkedRanks: ranks of `unreft run`, by the server that has imported their framework."""

import contextlib
import os
import pathlib
import runpy
import socket
import sys
import threading
from multiprocessing.connection import Client, Connection, wait

from real_store import FORK_SERVER

STAND_IN = pathlib.Path(__file__).with_name("forked_rank.py")


class ForkedRanks:
    """Runs `program` for each process that `command` has started, in its environment.

    What it prints goes to DIRECTORY/attempt<A>.rank<R>.
    """

    def __init__(self, directory, program, words, environment):
        self._address = str(directory / "socket")
        self._directory, self._environment = directory, environment
        self._program = [str(word) for word in [program, *words]]
        self.pids = {}  # by attempt and rank
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def command(self):
        return [sys.executable, "-S", STAND_IN, self._address]

    def close(self):
        with Client(self._address, "AF_UNIX") as stop:
            stop.send(None)
        self._thread.join()
        self._listener.close()

    def _serve(self):
        # One thread: only one may ask how a process has ended.
        ranks = {}  # by their connection
        while True:
            ended = {process.sentinel: stand_in for stand_in, process in ranks.items()}
            for ready in wait([self._listener, *ranks, *ended]):
                if ready is self._listener:
                    stand_in = Connection(self._listener.accept()[0].detach())
                    if (environment := stand_in.recv()) is None:
                        stand_in.close()
                        return _end(ranks.values())
                    ranks[stand_in] = self._start(environment)
                    continue
                stand_in = ended.get(ready, ready)
                if (process := ranks.pop(stand_in, None)) is None:
                    continue  # both were ready
                if ready is stand_in:  # which says nothing, but ends
                    process.kill()
                process.join()
                with contextlib.suppress(OSError):
                    stand_in.send(process.exitcode)
                stand_in.close()

    def _start(self, environment):
        at = (int(environment["UNREFT_ATTEMPT"]), int(environment["RANK"]))
        output = self._directory / "attempt{}.rank{}".format(*at)
        process = FORK_SERVER.Process(
            target=_run,
            args=(self._program, {**environment, **self._environment}, str(output)),
        )
        process.start()
        self.pids[at] = process.pid
        return process


def _end(processes):
    for process in processes:
        process.kill()
        process.join()


def _run(program, environment, output):
    os.environ.update(environment)
    os.chdir(os.path.dirname(output))  # where a framework may leave files of its own
    sys.stdout = open(output, "w", buffering=1)
    sys.argv = program
    sys.path.insert(0, os.path.dirname(program[0]))
    runpy.run_path(program[0], run_name="__main__")
