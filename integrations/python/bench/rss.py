"""Memory of trainer and daemon over many snapshots: it must not grow.

    rss.py --out DIR [--snapshots 1000]

Starts a daemon of its own. The daemon's anonymous memory and the trainer's are read after a tenth
of the snapshots and at the end; the slots themselves are shared memory and have a fixed size.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import numpy as np

import unreft

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
MIB = 1 << 20
GROWTH_MAX_MIB = 1.0  # allocators keep a little more as they go


def anonymous_mib(pid):
    """RssAnon: what a process has of its own, without shared memory and files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) / 1024


def start_daemon(job, directory):
    command = [BIN_DIR / "unreftd", "--job", job, "--run-dir", directory, "--log-level", "error"]
    daemon = subprocess.Popen([str(part) for part in command])
    deadline = time.monotonic() + 20
    while not os.path.exists(f"{directory}/unreftd.sock"):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"unreftd did not come up within 20 s (exit {daemon.poll()})")
        time.sleep(0.05)
    return daemon


def run(client, daemon, snapshots):
    arrays = [np.zeros(MIB // 4, np.float32) for _ in range(16)]
    tensors = [unreft.Tensor.of_array(f"w{i}", array) for i, array in enumerate(arrays)]
    client.restore_begin()
    client.register(tensors, 64)
    early = None
    step = taken = 0
    while taken < snapshots:
        client.fence()
        step += 1
        arrays[step % 16][:] = step
        if not client.snapshot(step, f"step {step}".encode()):
            time.sleep(0.001)  # the first slots are still being populated
            continue
        client.wait_committed(step)
        taken += 1
        if taken == snapshots // 10:
            early = anonymous_mib(os.getpid()), anonymous_mib(daemon.pid)
    late = anonymous_mib(os.getpid()), anonymous_mib(daemon.pid)
    return early, late, client.status()


def record(name, early, late):
    growth = late - early
    return {
        "name": name,
        "value": round(growth, 3),
        "unit": "MiB grown",
        "reference": round(early, 3),
        "reference_name": "RssAnon after a tenth of the snapshots, MiB",
        "ratio": round(late / early, 4),
        "target": GROWTH_MAX_MIB,
        "met": growth <= GROWTH_MAX_MIB,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--snapshots", type=int, default=1000)
    args = parser.parse_args()
    job = f"rss{os.getpid()}"
    directory = tempfile.mkdtemp(prefix="unreft-")
    daemon = start_daemon(job, directory)
    try:
        with unreft.Client(
            socket=f"{directory}/unreftd.sock", job=job, rank=0, world=1, attempt=0
        ) as client:
            early, late, status = run(client, daemon, args.snapshots)
    finally:
        daemon.kill()
        daemon.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{job}.*"):
            segment.unlink()
        shutil.rmtree(directory)
    records = [
        record("trainer_rss_growth", early[0], late[0]),
        record("daemon_rss_growth", early[1], late[1]),
    ]
    pathlib.Path(args.out, "rss.json").write_text(json.dumps(records, indent=2) + "\n")
    done = f"{status.started} committed, {status.skipped} skipped"
    print(f"{args.snapshots} snapshots of 16 MiB: {done}")
    for row in records:
        met = "met" if row["met"] else "MISSED"
        print(
            f"{row['name']:<22} {row['value']:+.2f} MiB from {row['reference']:.1f} MiB   "
            f"target {row['target']:.1f} {met}"
        )


if __name__ == "__main__":
    main()
