"""Snapshots beside `torch.distributed.checkpoint.async_save`, to disk and to /dev/shm, in one run.

    against_dcp.py --out DIR [--mib 256] [--rounds 5] [--disk DIRECTORY]

The same tensors in host memory, saved by each method in turn, round after round. Of each method:

  blocked     what a snapshot keeps a training step waiting: the call itself and, a while of
              computing later, the wait before the tensors may change
  a process   from the call until the loss of the process that made it loses nothing
  a node      the same for the loss of a node with its memory and disks
  restore     from nothing to the bytes in place, compared with what was saved

Unreft on one node, and on four with RS(2,2) whose daemons all share this machine. async_save as it
comes and `staged`: copied by a thread of its own into memory that is kept, written by four threads.
It flushes its files; before a restore from disk they are dropped from the page cache.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import torch

import protect
import unreft

sys.path.insert(0, str(pathlib.Path(__file__).with_name("training")))

import loop  # noqa: E402
import modes  # noqa: E402

TENSORS = 64
COMPUTE_S = 0.5  # between a snapshot and the change of the tensors
TRIES_MAX = 1000
NEVER = "never"
REMOTE = "if not its disk"


class State:
    """What is saved, as the methods of the training comparison take it."""

    def __init__(self, mib):
        self._tensors = {f"w{i}": torch.zeros((mib << 18) // TENSORS) for i in range(TENSORS)}
        self.bytes = sum(tensor.nbytes for tensor in self._tensors.values())

    def tensors(self):
        return self._tensors

    def change(self, step):
        for number, tensor in enumerate(self._tensors.values()):
            tensor.fill_(step * 1000 + number)

    def is_of(self, step):
        return all(
            bool((tensor == step * 1000 + number).all())
            for number, tensor in enumerate(self._tensors.values())
        )


class Unreft:
    """One daemon, one rank."""

    name = "unreft"
    survives_node = NEVER

    def __init__(self, state):
        self._state = state
        self._daemon = modes.Daemon(f"againstdcp{os.getpid()}")
        self._attempt = -1
        self._open()
        self._client.register(self._described())

    def _described(self):
        return [unreft.Tensor.of_array(n, t.numpy()) for n, t in self._state.tensors().items()]

    def _open(self):
        self._attempt += 1
        self._client = unreft.Client(
            socket=self._daemon.socket, job=self._daemon.job, rank=0, world=1,
            attempt=self._attempt,
        )
        return self._client.restore_begin()

    def get_ready(self):
        """A slot is free; between two steps of a job the daemon has the time for it."""
        until(lambda: self._client.status().ready, "a free slot")

    def snapshot(self, step):
        self._step = step
        if not (taken := self._client.snapshot(step)):
            raise RuntimeError(f"the snapshot of step {step} did not start: {taken.reason}")

    def fence(self):
        self._client.fence()

    def wait(self):
        until(lambda: self._client.status().last_captured_step == self._step, "the capture")

    def drain(self):
        self._client.wait_committed(self._step)

    def restore(self):
        self._client.close()
        begin = time.perf_counter()
        self._open()
        self._client.restore_read(self._described())
        took = time.perf_counter() - begin
        self._client.register(self._described())
        return took

    def close(self):
        self._client.close()
        self._daemon.close()


class AsyncSave(modes.AsyncSave):
    """To a directory, as it comes or `staged`."""

    def __init__(self, state, directory, where, staged):
        super().__init__(state, directory, pinned=staged, on_device=False)
        self.name = f"dcp_{where}_staged" if staged else f"dcp_{where}"
        self.survives_node = NEVER if where == "shm" else REMOTE
        self._drops_cache = where != "shm"
        self.attach()

    def get_ready(self):
        self.drain()

    def wait(self):
        self.drain()

    def restore(self):
        for path in self._directory.iterdir() if self._drops_cache else ():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        return super().restore()["restore_s"]


def until(ready, what):
    deadline = time.monotonic() + modes.COMMIT_TIMEOUT_S
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no {what} within {modes.COMMIT_TIMEOUT_S} s")


def compute(seconds):
    matrix = torch.ones(512, 512)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix @ matrix


class Measured:
    """What was measured of one method, in seconds."""

    def __init__(self, method):
        self.method = method
        self.blocked, self.process, self.restore = [], [], []

    def round(self, state, step):
        """One step that computes, one that waits, one restore; the next step's number."""
        method = self.method
        state.change(step)
        method.get_ready()
        begin = time.perf_counter()
        method.snapshot(step)
        called = time.perf_counter()
        compute(COMPUTE_S)
        computed = time.perf_counter()
        method.fence()
        self.blocked.append(called - begin + time.perf_counter() - computed)

        method.drain()
        state.change(step + 1)
        method.get_ready()
        begin = time.perf_counter()
        method.snapshot(step + 1)
        method.wait()
        self.process.append(time.perf_counter() - begin)

        method.fence()
        method.drain()
        state.change(0)
        self.restore.append(method.restore())
        if not state.is_of(step + 1):
            raise RuntimeError(f"{method.name}: other bytes were restored than were saved")
        return step + 2


def measure_cluster(mib, rounds):
    """From the call to the commit on four nodes, and the restore of a node that was destroyed."""
    cluster = protect.Cluster(2, 2)
    try:
        trainers = [protect.Trainer(cluster, rank, 1, mib // 4) for rank in range(4)]
        protect.register(trainers)
        seconds, step = [], 0
        while len(seconds) < rounds:
            step += 1
            if step > TRIES_MAX:
                raise RuntimeError(f"{len(seconds)} commits in {TRIES_MAX} snapshots")
            begin = time.monotonic()
            if protect.snapshot_all(trainers, step) is not None:
                seconds.append(time.monotonic() - begin)
        rebuilt_s, _, _ = protect.measure_rebuild(cluster, trainers, step, mib // 4)
        return loop.median(seconds), rebuilt_s
    finally:
        cluster.close()


def records(measured, node_s, rebuilt_s):
    """Each with the quickest of async_save as the reference."""
    ours = measured[0]
    rows = []
    for what, unit, scale in (("blocked", "ms", 1e3), ("process", "s", 1), ("restore", "s", 1)):
        medians = {m.method.name: scale * loop.median(getattr(m, what)) for m in measured}
        best = min((name for name in medians if name != ours.method.name), key=medians.get)
        value, reference = medians[ours.method.name], medians[best]
        rows.append({
            "name": f"against_dcp_{what}", "value": round(value, 4), "unit": unit,
            "reference": round(reference, 4), "reference_name": best,
            "ratio": round(value / reference, 4),
            "all": {name: round(median, 4) for name, median in medians.items()},
        })
    rows.append({"name": "against_dcp_node", "value": round(node_s, 4), "unit": "s"})
    rows.append({"name": "against_dcp_node_restore", "value": round(rebuilt_s, 4), "unit": "s"})
    return rows


def show(measured, mib, node_s, rebuilt_s, rounds):
    print(f"{mib} MiB in {TENSORS} tensors of host memory, medians of {rounds}; survives: seconds "
          "until the loss of it loses nothing")
    print(f"{'':<18} {'blocked ms':>10} {'a process':>10} {'a node':>16} {'restore s':>10}")
    for one in measured:
        blocked, process, restore = map(loop.median, (one.blocked, one.process, one.restore))
        print(f"{one.method.name:<18} {1e3 * blocked:>10.1f} {process:>10.3f} "
              f"{one.method.survives_node:>16} {restore:>10.3f}")
    print(f"{'unreft, RS(2,2)':<18} {'the same':>10} {'the same':>10} {node_s:>16.3f} "
          f"{rebuilt_s:>10.3f} (on the node that was replaced)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disk", default="/var/tmp", help="where a disk is")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a core is left for what works beside the training
    state = State(args.mib)
    places = {
        where: pathlib.Path(tempfile.mkdtemp(prefix="unreft-dcp-", dir=parent))
        for where, parent in (("shm", "/dev/shm"), ("disk", args.disk))
    }
    methods = []
    try:
        methods.append(Unreft(state))
        for where, place in places.items():
            for staged in (False, True):
                methods.append(AsyncSave(state, place / f"{staged}", where, staged))
        measured = [Measured(method) for method in methods]
        step = 1
        for number in range(args.rounds + 1):
            if number == 1:  # the first round made what is kept
                measured = [Measured(method) for method in methods]
            for one in measured:
                step = one.round(state, step)
    finally:
        for method in methods:
            method.close()
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)
    node_s, rebuilt_s = measure_cluster(args.mib, args.rounds)
    rows = records(measured, node_s, rebuilt_s)
    pathlib.Path(args.out, "against_dcp.json").write_text(json.dumps(rows, indent=2) + "\n")
    show(measured, args.mib, node_s, rebuilt_s, args.rounds)


if __name__ == "__main__":
    main()
