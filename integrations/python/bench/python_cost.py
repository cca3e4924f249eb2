"""What the Python side of a snapshot costs the training thread, against reading all addresses.

    python_cost.py --out DIR [--repeats N]

One step's calls are the hook before the optimizer's step, and `snapshot`. Measured in turns with
`list(map(torch.Tensor.data_ptr, tensors))` on the same tensors, of a model with Adam's state. The
first pair of records has a client that does nothing: what Python costs. The second has libunreft
and a daemon, and counts the call into the library alone: its bookkeeping, and the samples that tell
whether a tensor is written while it is copied.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import torch
from torch import nn

import unreft
from unreft.torch.checkpointer import Checkpointer
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import rss  # noqa: E402

SIZES = {1_936: 400, 133_328: 20}  # tensors: repeats
TARGET = 4.0


class NoClient:
    """Answers at once, as if every snapshot had been taken."""

    def __init__(self):
        self._status = unreft.Status(connected=True, protecting=True)

    def restore_begin(self, at_or_before=None):
        return unreft.Decision(False, 0, 0, 1, [], None)

    def register(self, tensors, extras_bytes=0, timeout_s=None):
        pass

    def wait_ready(self, timeout_s):
        pass

    def snapshot(self, step, extras=b"", stream=0):
        return unreft.Snapshot(True)

    def fence(self, stream=0):
        pass

    def status(self):
        return self._status

    def close(self):
        pass


class TimedClient(unreft.Client):
    """Keeps how long each snapshot took that was started."""

    def __init__(self, **options):
        super().__init__(**options)
        self.times = []

    def snapshot(self, step, extras=b"", stream=0):
        begin = time.perf_counter()
        snapshot = super().snapshot(step, extras, stream)
        if snapshot.started:
            self.times.append(time.perf_counter() - begin)
        return snapshot


class Layers(nn.Module):
    """Of four small parameters each; with Adam's state each is four tensors."""

    def __init__(self, parameters):
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(parameters // 4))
        for layer in self.layers:
            for index in range(4):
                layer.register_parameter(f"w{index}", nn.Parameter(torch.zeros(64)))


def make_job(tensors):
    model = Layers(tensors // 4)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = TrainingState(model, [optimizer], Replicas(model, 0, 1))
    local = [bound.local for bound in state.live()]
    assert len(local) == tensors
    return state, optimizer, local


def reading(local):
    begin = time.perf_counter()
    list(map(torch.Tensor.data_ptr, local))
    return time.perf_counter() - begin


def python_alone(tensors, repeats):
    state, optimizer, local = make_job(tensors)
    checkpointer = Checkpointer(NoClient(), state, Extras({}), rng=True)
    checkpointer.restore()
    checkpointer.snapshot(1)
    own, reference = [], []
    for step in range(2, repeats + 2):
        begin = time.perf_counter()
        checkpointer.before_step(optimizer)
        started = checkpointer.snapshot(step)
        own.append(time.perf_counter() - begin)
        assert started
        reference.append(reading(local))
    checkpointer.close()
    return own, reference


def in_library(tensors, repeats, daemon):
    state, optimizer, local = make_job(tensors)
    client = TimedClient(**daemon, rank=0, world=1, attempt=tensors)
    checkpointer = Checkpointer(client, state, Extras({}), rng=True)
    checkpointer.restore()
    reference = []
    for step in range(1, 10**6):
        checkpointer.before_step(optimizer)
        if checkpointer.snapshot(step):
            reference.append(reading(local))
            checkpointer.wait(step)
        if len(client.times) > repeats:
            break
    times = client.times[1:]  # without the first, which is measured beside the registration
    checkpointer.close()
    return times, reference


@contextlib.contextmanager
def daemon_of(job):
    directory = tempfile.mkdtemp(prefix="unreft-")
    daemon = rss.start_daemon(job, directory)
    try:
        yield {"socket": f"{directory}/unreftd.sock", "job": job}
    finally:
        daemon.kill()
        daemon.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"):
            segment.unlink()
        shutil.rmtree(directory)


def record(name, own, reference):
    value, base = statistics.median(own), statistics.median(reference)
    return {
        "name": name,
        "value": round(1e3 * value, 4),
        "unit": "ms of the training thread",
        "reference": round(1e3 * base, 4),
        "reference_name": "list(map(torch.Tensor.data_ptr, tensors)), ms",
        "ratio": round(value / base, 3),
        "target": TARGET,
        "met": value / base <= TARGET,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--repeats", type=int, help="instead of each size's own number")
    args = parser.parse_args()
    records = []
    for tensors, repeats in SIZES.items():
        measured = python_alone(tensors, args.repeats or repeats)
        records.append(record(f"python_snapshot_{tensors}", *measured))
    for tensors, repeats in SIZES.items():
        with daemon_of(f"cost{os.getpid()}-{tensors}") as place:
            measured = in_library(tensors, min(50, args.repeats or repeats), place)
        records.append(record(f"library_snapshot_{tensors}", *measured))
    pathlib.Path(args.out, "python_cost.json").write_text(json.dumps(records, indent=2) + "\n")
    for row in records:
        met = "met" if row["met"] else "MISSED"
        print(
            f"{row['name']:<26} {row['value']:9.3f} ms   reference {row['reference']:.3f} ms   "
            f"ratio {row['ratio']:.2f}  target {row['target']:.1f} {met}"
        )


if __name__ == "__main__":
    main()
