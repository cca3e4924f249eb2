"""How fast a daemon of one node is back and commits, before and after a change.

    restart_against.py --before BIN_DIR --after BIN_DIR [--rounds 20]

Runs the daemons of two builds in turns. Of each round: from the start of a daemon on the memory of
one that was killed until its trainer has the decision, and the median of 200 commits of a small
state, from the snapshot until the trainer knows. Prints medians, extremes and the ratio. Needs the
Python package of one of the builds.
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np

import unreft

COMMITS = 200
MEASURED = {"restart": "from start to decision", "commit": "from snapshot to commit"}


class Daemon:
    """Of a job of its own; leaves neither process nor memory behind."""

    def __init__(self, bin_dir, run_dir):
        self.job = f"bench-{pathlib.Path(run_dir).name}"
        self.place = ["--job", self.job, "--run-dir", run_dir]
        self._bin_dir = bin_dir
        self._socket = str(pathlib.Path(run_dir) / "unreftd.sock")
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *raised):
        self.kill()
        subprocess.run([self._bin_dir / "unreft", *self.place, "down", "--force"], check=True,
                       capture_output=True)

    def start(self):
        self._process = subprocess.Popen([self._bin_dir / "unreftd", *self.place],
                                         stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def client(self, attempt):
        return unreft.Client(socket=self._socket, job=self.job, rank=0, world=1, attempt=attempt)


def commit_times(client):
    """Of each commit; and the last one's step."""
    times = []
    step = 0
    while len(times) < COMMITS:
        client.fence()
        step += 1
        begin = time.perf_counter()
        if not client.snapshot(step):
            continue  # no slot is free yet
        client.wait_committed(step, 60)
        times.append(time.perf_counter() - begin)
    return times, step


def measure(bin_dir):
    weights = np.arange(8192.0)
    tensors = [unreft.Tensor.of_array("weights", weights)]
    with tempfile.TemporaryDirectory() as run_dir, Daemon(bin_dir, run_dir) as daemon:
        with daemon.client(1) as client:
            client.restore_begin()
            client.register(tensors)
            times, last = commit_times(client)
        daemon.kill()
        begin = time.perf_counter()
        daemon.start()
        with daemon.client(2) as client:
            decision = client.restore_begin()
            restart = time.perf_counter() - begin
            assert decision.restored and decision.step == last
    return {"restart": restart, "commit": statistics.median(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    builds = {"before": args.before, "after": args.after}
    values = {(name, build): [] for name in MEASURED for build in builds}
    for _ in range(args.rounds):
        for build, bin_dir in builds.items():
            for name, seconds in measure(bin_dir.resolve()).items():
                values[name, build].append(seconds * 1000)
    for name, what in MEASURED.items():
        medians = {build: statistics.median(values[name, build]) for build in builds}
        said = [
            f"{build} {medians[build]:.3f} ({min(values[name, build]):.3f} to"
            f" {max(values[name, build]):.3f})"
            for build in builds
        ]
        print(f"{what}, ms: {', '.join(said)}, ratio {medians['after'] / medians['before']:.2f}")


if __name__ == "__main__":
    main()
