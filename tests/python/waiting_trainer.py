"""A rank that waits, for test_waits.py: what it does is named by its argument, what it met printed.

    waiting_trainer.py SOCKET JOB WHAT
"""

import logging
import os
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
    """As `raised`, for a call that a signal ends."""
    raised(lambda: (say("waits"), function()))


def open_nobody():
    """No daemon there: interrupted while it connects."""
    waits(lambda: client(connect_timeout_s=600))


def restore():
    """The other rank of two never asks."""
    used = client(world=2)
    waits(used.restore_begin)
    used.close()
    say("closed")


def restore_logged():
    """As above, with what is logged, more often than otherwise."""
    _waiting.LOG_EVERY_S = 0.3
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
    restore()


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
        raised(used.restore_begin)
        ended.set()

    threading.Thread(target=run).start()
    try:
        say("waits")
        ended.wait()
    except KeyboardInterrupt:
        used.close()
    ended.wait()


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


def no_close():
    """Ends without closing, in the middle of all."""
    used = client()
    registered(used)
    used.snapshot(1)
    say("ends")
    globals()["kept"] = used


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say(os.getpid())
    globals()[sys.argv[3]]()
