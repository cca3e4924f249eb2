"""Calls everything of unreft._core, on a daemon of its own, and prints what came of it as JSON.

    core_probe.py UNREFTD

test_gpu_bundle.py compares what it prints with the library of the build and of the bundle.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import unreft
from unreft import _abi, _core

TIMEOUT_S = 60
found = {}


def note(name, function, *args, **kwargs):
    """What a call returns, or the type, code and text of what it raises."""
    try:
        result = function(*args, **kwargs)
    except unreft.Error as error:
        result = [type(error).__name__, error.code, str(error)]
    except TypeError:
        result = "TypeError"
    found[name] = result
    return result


def plain(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def plain_decision(decision):
    """Without the ids of the timelines, which are others each time."""
    numbers = {
        name: _abi.timeline_number(decision[name]) for name in ("timeline", "new_timeline")
    }
    return {name: plain(value) for name, value in (decision | numbers).items()}


def start(unreftd, directory, job):
    command = [unreftd, "--job", job, "--run-dir", directory, "--restore-wait-s", "20"]
    daemon = subprocess.Popen([*command, "--log-level", "error"])
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(f"{directory}/unreftd.sock") == 0:
                return daemon
        assert daemon.poll() is None and time.monotonic() < deadline, "no daemon"
        time.sleep(0.02)


def wait_until(ready):
    deadline = time.monotonic() + TIMEOUT_S
    while not ready():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


def client(directory, job, attempt, **more):
    options = {"socket": f"{directory}/unreftd.sock", "job": job, "rank": 0, "world": 1,
               "attempt": attempt, "connect_timeout_ms": 20_000, "restore_timeout_ms": 60_000,
               "fence_timeout_ms": 60_000, "device_checksum": 0, "any_world": 0}
    return _core.Client(**{**options, **more})


def tensors(arrays):
    return [unreft.Tensor.of_array(name, array) for name, array in arrays.items()]


def status_of(used):
    fields = used.status()
    times = [fields.pop(name) for name in ("last_fence_wait_s", "total_fence_wait_s")]
    assert all(isinstance(seconds, float) for seconds in times)
    since = fields.pop("seconds_since_commit")
    assert since is None or isinstance(since, float)
    fields.pop("ready")  # the next slot's grant, which may come at any time
    return fields


def refused(directory, job):
    note("no daemon", client, "/nonexistent", job, 0, connect_timeout_ms=0)
    note("a job's name", client, directory, "a/b", 0)
    note("a rank beyond the world", client, directory, job, 0, rank=3)
    note("a timeout below 0", client, directory, job, 0, fence_timeout_ms=-5)
    note("a checksum that is neither", client, directory, job, 0, device_checksum=2)
    note("a checksum of too many bits", client, directory, job, 0, device_checksum=2**31)
    note("a rank that is text", client, directory, job, 0, rank="1")
    note("a socket that is a number", client, directory, job, 0, socket=5)
    note("a rank of too many bits", client, directory, job, 0, rank=2**63)


def first_life(directory, job):
    arrays = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "n": np.array(5)}
    used = client(directory, job, 0)
    begun = used.restore_begin()
    found["a fresh start"] = plain_decision(begun)
    note("a snapshot without tensors", used.snapshot, 1, b"", 0)
    good = tensors(arrays)
    for name, field, value in (
        ("offset", "offset", (0,)), ("extent", "extent", (4, 3, 1)), ("box", "offset", (1, 0)),
        ("data", "data", 0), ("a negative address", "data", -1), ("a large one", "data", 2**64),
        ("shape", "global_shape", ("4", "3")), ("negative shape", "global_shape", (-4, 3)),
        ("dtype", "dtype", 77), ("replicas", "replica_count", 0), ("name", "name", 5),
        ("device", "device", 9), ("text for data", "data", "x"),
    ):
        bad = unreft.Tensor.of_array("w", arrays["w"])
        setattr(bad, field, value)
        note(f"a tensor's {name}", used.register, [bad], 0)
    note("extras below 0", used.register, good, -1)
    note("rebound without tensors", used.rebind, [0], [good[0].data])
    note("registered", used.register, good, 64)
    note("rebound", used.rebind, [0], [good[0].data])
    note("rebound beyond the last tensor", used.rebind, [0, 2], [good[0].data] * 2)
    note("rebound to nothing", used.rebind, [1], [0])
    note("rebound to a text", used.rebind, [1], ["x"])
    note("rebound by halves", used.rebind, [0, 1], [good[0].data])
    wait_until(lambda: used.status()["ready"])
    note("extras that are text", used.snapshot, 7, "text", 0)
    note("a step below 0", used.snapshot, -1, b"", 0)
    found["a snapshot"] = list(used.snapshot(7, b"ex\0tras", 0))
    note("a fence", used.fence, 0)
    note("committed", used.wait_committed, 7, 60_000)
    note("an earlier step", used.snapshot, 6, b"", 0)
    note("a wait for what was not begun", used.wait_committed, 900, 1)
    found["its status"] = status_of(used)
    note("ever committed", used.ever_committed)
    child = os.fork()
    if child == 0:
        try:
            used.fence(0)
        except unreft.Forked as error:
            os._exit(0 if "forked child" in str(error) else 1)
        os._exit(2)
    found["a forked child"] = os.waitpid(child, 0)[1]
    used.close()
    used.close()
    note("closed", used.fence, 0)
    note("its status, closed", used.status)


def second_life(directory, job):
    arrays = {"w": np.zeros((4, 3), np.float32), "n": np.array(0)}
    used = client(directory, job, 1)
    begun = used.restore_begin()
    found["restored"] = plain_decision(begun)
    note("extras of the rank that saved it", lambda: used.restore_extras(0).hex())
    note("extras of a rank that there was not", used.restore_extras, 1)
    note("read", used.restore_read, tensors(arrays))
    found["the bytes"] = {name: array.tolist() for name, array in arrays.items()}
    strange = unreft.Tensor.of_array("strange", arrays["w"])
    note("read what is not stored", used.restore_read, [strange])
    note("ended", used.restore_end)
    used.register(tensors(arrays), 64)
    # Nobody waits for the daemon between these, so at some point no slot is free.
    outcomes = (used.snapshot(step, b"", 0) for step in range(8, 1_000_000))
    skipped = next(outcome for outcome in outcomes if not outcome[0])
    found["a skipped one"] = [skipped[0], skipped[1] != ""]
    del used  # closes it
    found["version"] = _abi.version()


def main():
    directory = tempfile.mkdtemp(prefix="unreft-")
    job = f"probe{os.getpid()}"
    daemon = start(sys.argv[1], directory, job)
    try:
        refused(directory, job)
        first_life(directory, job)
        second_life(directory, job)
    finally:
        daemon.kill()
        daemon.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"):
            segment.unlink()
        shutil.rmtree(directory)
    text = json.dumps(found).replace(directory, "DIR").replace(job, "JOB")
    print(text)


if __name__ == "__main__":
    main()
