"""What writing a durable copy costs the training beside it, on one machine.

    export.py --out DIR [--mib 256] [--steps 40] [--rounds 5] [--scratch DIR]

One daemon, one rank that changes its state and takes a snapshot of it at each step. Three kinds of
rounds take turns: without an export; with one copy after the other being written, at full rate, to
`--scratch`, a directory on a disk; and with dd writing as many bytes there in the same time. What
the third kind costs is the disk's price, which anything pays that writes so much. Measured of each
round: the median of a step, and of the time from a snapshot to its commit. What the machine itself
varies by is the spread of the rounds of the third kind.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

import numpy as np

import unreft

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
GB = 1e9
WRITE_BYTES = 2 << 20  # at a time, as a drain does
START_TIMEOUT_S = 20

ALONE, PLAIN, EXPORT = "alone", "plain", "export"  # the kinds of rounds


class Node:
    """A daemon that has room for a pin, in a directory of its own."""

    def __init__(self):
        self.job = f"export{os.getpid()}"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.socket = str(self.directory / "unreftd.sock")
        words = ["--log-level", "error", "--pins", "1"]
        self.process = subprocess.Popen([str(BIN_DIR / "unreftd"), *self.place(), *words])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not os.path.exists(self.socket):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the daemon did not come up within {START_TIMEOUT_S} s")
            time.sleep(0.05)

    def place(self):
        return ["--job", self.job, "--run-dir", str(self.directory)]

    def export(self, directory):
        """What the command says of the copy; None if none was made."""
        command = [str(BIN_DIR / "unreft"), "--json", "export", str(directory), *self.place()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def close(self):
        self.process.kill()
        self.process.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"):
            segment.unlink()
        shutil.rmtree(self.directory)


class Beside(threading.Thread):
    """Makes one thing after the other until it is ended; each is removed when it is complete."""

    def __init__(self, make, scratch):
        super().__init__()
        self.made = []
        self._make, self._scratch = make, scratch
        self._ended = threading.Event()

    def run(self):
        while not self._ended.is_set():
            directory = self._scratch / f"made{len(self.made)}"
            if made := self._make(directory):
                self.made.append(made)
            shutil.rmtree(directory, ignore_errors=True)

    def end(self):
        self._ended.set()
        self.join()
        return self.made


class PlainWriter:
    """Writes what is like a copy, in bytes and in time, and takes nothing from anybody's memory."""

    def __init__(self, copy):
        self._bytes, self._seconds = copy["copy_bytes"], copy["seconds"]

    def __call__(self, directory):
        began = time.monotonic()
        directory.mkdir()
        count = math.ceil(self._bytes / WRITE_BYTES)
        words = ["if=/dev/zero", f"of={directory / 'plain'}", f"bs={WRITE_BYTES}", f"count={count}"]
        subprocess.run(["nice", "-n", "19", "dd", *words, "oflag=direct", "conv=fdatasync"],
                       check=True, capture_output=True)
        time.sleep(max(0.0, self._seconds - (time.monotonic() - began)))
        return True


class Trainer:
    def __init__(self, node, mib):
        self.client = unreft.Client(socket=node.socket, job=node.job, rank=0, world=1, attempt=1)
        self._array = np.zeros(mib << 18, np.float32)
        self._tensors = [unreft.Tensor.of_array("w", self._array)]
        self._step = 0
        self.client.restore_begin()
        self.client.register(self._tensors, 64)
        while not self.client.snapshot(self._next(), b"extras"):  # slots are being populated
            time.sleep(0.2)
        self.client.wait_committed(self._step)

    def _next(self):
        self._step += 1
        return self._step

    def steps(self, count):
        """Medians, in seconds: of a step, and from a snapshot to its commit."""
        steps, commits = [], []
        for _ in range(count):
            began = time.monotonic()
            self.client.fence()
            np.add(self._array, 1, out=self._array)
            taken = self.client.snapshot(self._next(), b"extras")
            asked = time.monotonic()
            steps.append(asked - began)
            if taken:
                self.client.wait_committed(self._step)
                commits.append(time.monotonic() - asked)
        return statistics.median(steps), statistics.median(commits)


def spread_of(rounds):
    """The least and the most, of their median."""
    return min(rounds) / statistics.median(rounds), max(rounds) / statistics.median(rounds)


def record(name, unit, measured):
    """Of a quantity's rounds, by their kind."""
    medians = {kind: statistics.median(rounds) for kind, rounds in measured.items()}
    value, reference = medians[EXPORT], medians[PLAIN]
    low, high = spread_of(measured[PLAIN])
    low_alone, high_alone = spread_of(measured[ALONE])
    return {
        "name": name,
        "value": round(value, 5),
        "unit": unit,
        "reference": round(reference, 5),
        "reference_name": f"beside dd; its rounds are {low:.2f} to {high:.2f} of that",
        "ratio": round(value / reference, 3),
        "target": round(high, 3),
        "met": value / reference <= high,
        "alone": round(medians[ALONE], 5),
        "alone_rounds": [round(low_alone, 3), round(high_alone, 3)],
        "export_to_alone": round(value / medians[ALONE], 3),
        "plain_to_alone": round(reference / medians[ALONE], 3),
    }


def rounds_of(trainer, node, args, scratch):
    """The medians of each kind's rounds, and what is known of each copy."""
    measured = {ALONE: [], PLAIN: [], EXPORT: []}
    first = node.export(scratch / "first")
    shutil.rmtree(scratch / "first")
    if first is None:
        raise RuntimeError("no copy could be made")
    makers = {PLAIN: PlainWriter(first), EXPORT: node.export}
    copies = []
    for _ in range(args.rounds):
        for kind, rounds in measured.items():
            beside = Beside(makers[kind], scratch) if kind in makers else None
            if beside:
                beside.start()
            rounds.append(trainer.steps(args.steps))
            made = beside.end() if beside else []
            copies += made if kind == EXPORT else []
    if not copies:
        raise RuntimeError("no copy was made meanwhile")
    return measured, copies


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build" / "bench")
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="export-", dir=args.scratch))
    node = Node()
    try:
        trainer = Trainer(node, args.mib)
        trainer.steps(args.steps)
        measured, copies = rounds_of(trainer, node, args, scratch)
        trainer.client.close()
    finally:
        node.close()
        shutil.rmtree(scratch)
    quantities = [
        ("export_step", "s of a step, with an export beside it"),
        ("export_commit", "s from a snapshot to its commit, with an export beside it"),
    ]
    rows = [
        record(name, unit, {kind: [m[part] for m in rounds] for kind, rounds in measured.items()})
        for part, (name, unit) in enumerate(quantities)
    ]
    rates = [copy["copy_bytes"] / GB / copy["seconds"] for copy in copies]
    rows.append(
        {
            "name": "export_rate",
            "value": round(statistics.median(rates), 3),
            "unit": f"GB/s of a copy, {len(copies)} copies, {min(rates):.2f} to {max(rates):.2f}",
        }
    )
    pathlib.Path(args.out, "export.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(f"{row['name']:<16} {row['value']:>10} {row['unit']}")
        if "ratio" in row:
            met = "met" if row["met"] else "MISSED"
            print(f"{'':<16} {row['ratio']:>10} x {row['reference_name']} {met}")
            low, high = row["alone_rounds"]
            print(f"{'':<16} {row['export_to_alone']:>10} x without anything beside it; its rounds "
                  f"are {low:.2f} to {high:.2f} of that; beside dd it is {row['plain_to_alone']} x")


if __name__ == "__main__":
    main()
