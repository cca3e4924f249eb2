"""What protecting a snapshot on other nodes costs, on one machine.

    protect.py --out DIR [--mib 64] [--snapshots 12] [--data-chunks 2] [--parity-chunks 2]
               [--rounds 3]

Starts the meta store and k + m daemons, captures from one rank per node and measures: bytes on the
wire per protected byte, counted at the transport; time from the last captured byte to the commit;
CPU seconds of the daemons per GB moved; and a node that is destroyed and rebuilt. The daemons talk
by socket files, as `unreft up` has it; the CPU seconds are also measured by TCP without TLS and by
TLS, in turns, `--rounds` times each. Everything shares this machine's cores, so the times are upper
bounds.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

import numpy as np

import unreft

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
GB = 1e9


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


WIRES = ("unix", "tcp", "tls")


class Cluster:
    """A meta process and one daemon per node, in a directory of their own."""

    def __init__(self, k, m, wire="unix"):
        self.wire = wire
        self.job = f"protect{os.getpid()}"
        self.nodes = k + m
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.endpoint = f"127.0.0.1:{free_port()}"
        if wire == "unix":
            self.endpoint = f"unix://{self.directory}/meta.sock"
        if wire == "tls":
            command = [BIN_DIR / "unreft", "--job", self.job, "certs", self.directory / "certs"]
            subprocess.check_output([str(part) for part in [*command, "--nodes", self.nodes]])
        self.shape = ["--data-chunks", str(k), "--parity-chunks", str(m)]
        self.processes = {}
        self._start("meta", ["--role=meta", "--meta-listen", self.endpoint])
        for node in range(self.nodes):
            self.start_node(node)

    def _start(self, name, arguments):
        (self.directory / name).mkdir(exist_ok=True)
        command = [BIN_DIR / "unreftd", "--job", self.job, "--run-dir", self.directory / name]
        command += ["--log-level", "error", *arguments, *self._wire_words(name)]
        self.processes[name] = subprocess.Popen([str(part) for part in command])

    def _wire_words(self, name):
        if self.wire == "unix":
            return []
        words = ["--transport-listen=127.0.0.1:0"]
        if self.wire == "tcp":
            return [*words, "--insecure"]
        for side in ("meta", "transport"):
            for kind, file in (("ca", "ca.pem"), ("cert", f"{name}.pem"), ("key", f"{name}.key")):
                words.append(f"--{side}-tls-{kind}={self.directory / 'certs' / file}")
        return words

    def start_node(self, node):
        several = ["--node", str(node), "--nodes", str(self.nodes), *self.shape]
        self._start(f"node{node}", [*several, "--meta-endpoints", self.endpoint])
        deadline = time.monotonic() + 20
        while not os.path.exists(self.socket(node)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the daemon of node {node} did not come up within 20 s")
            time.sleep(0.05)

    def socket(self, node):
        return str(self.directory / f"node{node}" / "unreftd.sock")

    def destroy_node(self, node):
        process = self.processes.pop(f"node{node}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(self.directory / f"node{node}")
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.{node}.*"):
            segment.unlink()

    def counters(self):
        """The daemons' counters, added up."""
        total = {}
        for node in range(self.nodes):
            run_dir = self.directory / f"node{node}"
            command = [BIN_DIR / "unreft", "status", "--own", "--json", "--run-dir", run_dir]
            status = json.loads(subprocess.check_output([str(part) for part in command]))
            for name, value in status["counters"].items():
                total[name] = total.get(name, 0) + value
        return total

    def cpu_s(self):
        total = 0.0
        for process in self.processes.values():
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"):
            segment.unlink()
        shutil.rmtree(self.directory)


class Trainer:
    """One rank with `mib` MiB that nobody else has."""

    def __init__(self, cluster, rank, attempt, mib):
        self.client = unreft.Client(
            socket=cluster.socket(rank),
            job=cluster.job,
            rank=rank,
            world=cluster.nodes,
            attempt=attempt,
        )
        self.rank = rank
        self.array = np.zeros(mib << 18, np.float32)
        self.tensors = [unreft.Tensor.of_array(f"w{rank}", self.array)]


def on_all(trainers, action):
    with concurrent.futures.ThreadPoolExecutor(len(trainers)) as pool:
        return list(pool.map(action, trainers))


def register(trainers):
    def one(trainer):
        trainer.client.restore_begin()
        trainer.client.register(trainer.tensors, 64)

    on_all(trainers, one)


def snapshot_all(trainers, step):
    """Seconds from the last captured byte to the commit; None when a rank skipped."""

    def one(trainer):
        trainer.array[:] = step * 100 + trainer.rank
        if not trainer.client.snapshot(step, b"extras"):
            return None
        trainer.client.fence()
        return time.monotonic()

    captured = on_all(trainers, one)
    if None in captured:
        time.sleep(0.2)  # the first slots and guards are still being populated
        return None
    try:
        on_all(trainers, lambda trainer: trainer.client.wait_committed(step))
    except unreft.Error:
        return None
    return time.monotonic() - max(captured)


def measure_protection(cluster, trainers, snapshots):
    step = 0
    while snapshot_all(trainers, step := step + 1) is None:
        if step > 200:
            raise RuntimeError("no snapshot was committed in 200 tries")
    before, cpu = cluster.counters(), cluster.cpu_s()
    times = []
    while len(times) < snapshots:
        if (taken := snapshot_all(trainers, step := step + 1)) is not None:
            times.append(taken)
    after = cluster.counters()
    moved = {name: after[name] - before[name] for name in after}
    return step, times, moved, cluster.cpu_s() - cpu


def cpu_s_per_gb(k, m, wire, mib, snapshots):
    cluster = Cluster(k, m, wire)
    try:
        trainers = [Trainer(cluster, rank, 1, mib) for rank in range(cluster.nodes)]
        register(trainers)
        _, _, moved, cpu = measure_protection(cluster, trainers, snapshots)
        for trainer in trainers:
            trainer.client.close()
    finally:
        cluster.close()
    return cpu / ((moved["node_read_bytes"] + moved["node_read_bytes_lost"]) / GB)


def measure_wires(k, m, mib, snapshots, rounds):
    """CPU s per GB by wire, of each round; in turns, so that what else runs is the same to all."""
    by_wire = {wire: [] for wire in WIRES}
    for _ in range(rounds):
        for wire in WIRES:
            by_wire[wire].append(cpu_s_per_gb(k, m, wire, mib, snapshots))
    return by_wire


def measure_rebuild(cluster, trainers, step, mib):
    for trainer in trainers:
        trainer.client.close()
    cluster.destroy_node(1)
    cluster.start_node(1)
    before = cluster.counters()
    again = [Trainer(cluster, rank, 2, mib) for rank in range(cluster.nodes)]

    def restore(trainer):
        began = time.monotonic()
        trainer.client.restore_begin()
        trainer.client.restore_read(trainer.tensors)
        return time.monotonic() - began

    times = on_all(again, restore)
    for trainer in again:
        if not np.all(trainer.array == step * 100 + trainer.rank):
            raise RuntimeError(f"rank {trainer.rank} has wrong bytes after the rebuild")
    read = cluster.counters()["node_read_bytes"] - before["node_read_bytes"]
    for trainer in again:
        trainer.client.close()
    return times[1], max(t for rank, t in enumerate(times) if rank != 1), read


def record(name, value, unit, reference, reference_name, target=None, less_is_better=True):
    row = {"name": name, "value": round(value, 4), "unit": unit}
    row |= {"reference": round(reference, 4), "reference_name": reference_name}
    row["ratio"] = round(value / reference, 4)
    if target is not None:
        met = row["ratio"] <= target if less_is_better else row["ratio"] >= target
        row |= {"target": target, "met": met}
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--snapshots", type=int, default=12)
    parser.add_argument("--data-chunks", type=int, default=2)
    parser.add_argument("--parity-chunks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    k, m = args.data_chunks, args.parity_chunks
    cluster = Cluster(k, m)
    try:
        trainers = [Trainer(cluster, rank, 1, args.mib) for rank in range(cluster.nodes)]
        register(trainers)
        step, times, moved, cpu = measure_protection(cluster, trainers, args.snapshots)
        rebuild_s, others_s, rebuild_read = measure_rebuild(cluster, trainers, step, args.mib)
    finally:
        cluster.close()
    by_wire = measure_wires(k, m, args.mib, args.snapshots, args.rounds)
    tcp = statistics.median(by_wire["tcp"])
    wire = moved["node_read_bytes"] + moved["node_read_bytes_lost"]
    own = args.mib << 20
    rows = [
        record(
            "protect_wire_bytes",
            wire / moved["bytes_sealed"],
            "bytes moved per protected byte",
            (k + m - 1) / k,
            "(k+m-1)/k",
            target=1.05,
        ),
        record(
            "protect_commit_delay",
            statistics.median(times),
            "s from the last captured byte to the commit",
            own * cluster.nodes / GB,
            f"GB of the {cluster.nodes} nodes' slabs",
        ),
        record(
            "protect_cpu",
            cpu / (wire / GB),
            "CPU s of all daemons per GB moved",
            1.0,
            "1 s",
        ),
        *(
            record(
                f"protect_cpu_{name}",
                statistics.median(values),
                f"CPU s per GB moved, {min(values):.2f} to {max(values):.2f}",
                tcp,
                "TCP without TLS",
            )
            for name, values in by_wire.items()
        ),
        record(
            "rebuild_restore",
            rebuild_s,
            "s until the rank of the rebuilt node has its bytes",
            others_s,
            "s of the slowest rank whose bytes were local",
        ),
        record(
            "rebuild_read_bytes",
            rebuild_read,
            "bytes read from others by then",
            own,
            "the lost node's bytes",
        ),
    ]
    pathlib.Path(args.out, "protect.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"RS({k},{m}), {cluster.nodes} nodes of {args.mib} MiB, {args.snapshots} snapshots")
    for row in rows:
        met = "" if "met" not in row else "met" if row["met"] else "MISSED"
        print(
            f"{row['name']:<22} {row['value']:>14} {row['unit']}\n"
            f"{'':<22} {row['ratio']:>14} x {row['reference_name']} ({row['reference']}) {met}"
        )


if __name__ == "__main__":
    main()
