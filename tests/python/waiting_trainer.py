"""A rank that waits, for test_waits.py: what it does is named by its argument, what it met printed.

    waiting_trainer.py SOCKET JOB WHAT
"""

import logging
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np
import unreft
from unreft import _waiting


def say(*words):
    print(*words, flush=True)


def client(world=1, **more):
    socket, job = sys.argv[1:3]
    return unreft.Client(socket=socket, job=job, rank=0, world=world, attempt=0, **more)


def tensors(count=2):
    arrays = [np.full(4096, index, np.float32) for index in range(count)]
    return [unreft.Tensor.of_array(f"t{index}", array) for index, array in enumerate(arrays)]


def raised(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        say("raised", type(error).__name__, error)
    else:
        say("returned")


def waits(function):
    """As `raised`, for a call that a signal ends: says what it waits for, again and again."""
    _waiting.LOG_EVERY_S = 0.2
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
    raised(function)


def open_nobody():
    """No daemon there: interrupted while it connects."""
    waits(lambda: client(connect_timeout_s=600))


def restore():
    """The other rank of two never asks."""
    used = client(world=2)
    waits(used.restore_begin)
    used.close()
    say("closed")


def restore_closed():
    """Another thread closes."""
    used = client(world=2)
    closer = threading.Timer(0.5, used.close)
    closer.start()
    raised(used.restore_begin)
    closer.join()
    raised(used.fence)


def restore_closed_by_handler():
    """A signal's handler closes, in the thread that waits."""
    used = client(world=2)
    signal.signal(signal.SIGTERM, lambda *_: used.close())
    waits(used.restore_begin)
    raised(used.restore_begin)


def restore_thread():
    """Not the main thread: signals go to that, which may close."""
    used = client(world=2)
    ended = threading.Event()  # a join that a signal ends takes the thread for ended

    def run():
        waits(used.restore_begin)
        ended.set()

    threading.Thread(target=run).start()
    try:
        ended.wait()
    except KeyboardInterrupt:
        used.close()
    ended.wait()


def restore_read():
    """Interrupted while it copies: what it says of that is answered by a signal."""
    used = client()
    state = tensors()
    registered(used)
    used.wait_ready(60)
    used.snapshot(1)
    used.wait_committed(1, 60)
    used.restore_begin()

    class Interrupts(logging.Handler):
        def emit(self, record):
            say(record.getMessage())
            if "to be copied" not in record.getMessage():
                time.sleep(0.2)  # it asks in slices of 0.1 s: so the copying asks as it begins
                return
            os.kill(os.getpid(), signal.SIGINT)
            while not used._core._waits._ended:
                time.sleep(0.01)

    _waiting.LOG_EVERY_S = 0.0
    logging.getLogger("unreft").addHandler(Interrupts())
    say("reads")
    sys.stdin.readline()
    raised(used.restore_read, state)
    used.close()
    say("closed")


def registered(used):
    used.restore_begin()
    used.register(tensors())


def stopped_daemon():
    """Steps with a registration each, while the daemon is stopped or dead."""
    used = client()
    registered(used)
    say("registered")
    sys.stdin.readline()
    for step in range(1, 4):
        used.fence()
        raised(lambda: used.register(tensors(2 + step), timeout_s=0.2))
        snapshot = used.snapshot(step)
        say("snapshot", snapshot.started, snapshot.reason)
    say("steps done")
    sys.stdin.readline()
    deadline = time.monotonic() + 60
    step = 10
    while not used.snapshot(step).started:
        used.fence()
        step += 1
        assert time.monotonic() < deadline, used.status()
        time.sleep(0.05)
    say("captures again")


def child(check):
    """What `check` returns in a forked child, as its exit status; a hang is killed by its alarm."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            signal.alarm(20)
            status = check()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def descriptors():
    """Of this process: what they stand for."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass  # the directory's own
    return found


def ours():
    """Of this process: descriptors and mappings that hold memory or connections of Unreft's."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    held = [what for what in descriptors() if what.startswith(("socket:", "/dev/shm/unreft."))]
    return [what for what in held if what not in BEFORE], maps.count("/dev/shm/unreft.")


def forks():
    """Children of a data loader, while another thread trains, and while a call has the lock."""
    used = client()
    registered(used)
    used.wait_ready(60)
    sockets, mapped = ours()
    say("trainer", len(sockets), mapped > 0, any("shm" in what for what in sockets))
    stop = threading.Event()

    def train():
        step = 0
        while not stop.is_set():
            step += 1
            used.fence()
            used.snapshot(step)

    def inert():
        if ours() != ([], 0):
            return 1
        for call in (used.fence, used.status, lambda: used.snapshot(10**9)):
            try:
                call()
            except unreft.Forked:
                continue
            return 2
        used.close()
        used.__del__() if hasattr(used, "__del__") else None
        return 0

    trainer = threading.Thread(target=train)
    trainer.start()
    say("children", sorted({child(inert) for _ in range(100)}))
    stop.set()
    trainer.join()
    with used._core._turn:
        say("with the lock held", child(inert))
    say("captures", used.status().started > 0, used.status().connected)
    used.close()


def several():
    """One after the other in one process, and two at a time for one rank."""
    first = client()
    registered(first)
    raised(client)
    first.close()
    second = client()
    registered(second)
    second.wait_ready(60)
    say("after close", second.snapshot(1).started)
    second.close()


def no_close():
    """Ends without closing, in the middle of all."""
    used = client()
    registered(used)
    used.snapshot(1)
    say("ends")
    globals()["kept"] = used


if __name__ == "__main__":
    BEFORE = descriptors()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say(os.getpid())
    globals()[sys.argv[3]]()
