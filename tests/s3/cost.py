"""What durable copies cost a node in processor time: into a directory, and on a server of S3.

    cost.py --out DIR [--mib 512] [--scratch DIR]

For each place a daemon of its own, whose job has one rank. A copy is written by `unreft export`;
then the daemon is killed with all its memory, and a new one restores from that copy. Counted is the
processor time (user and system) of the drain, which is the process that a daemon starts to write
and to read copies, per GB of the state. The server is SeaweedFS on this host, by HTTP and by TLS;
its own time is not counted.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "integrations/python/tests"), str(ROOT / "integrations/python/bench")]

import unreft.torch  # noqa: E402
from protect import GB, record  # noqa: E402
from real_store import BIN_DIR, Store  # noqa: E402
from s3_server import KEY, LOOPBACK, REGION, SECRET, Bucket, free_ports, start  # noqa: E402

BUCKET = "unreft-cost"
READY_S = 60
TENSOR_BYTES = 8 << 20
FLAGS = ["--log-level", "error", "--pins", "1"]
VALUE = 3.0


def drain_cpu_s(daemon: int) -> float:
    """Of the processes that a daemon has started: they may live, or have ended."""
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if stat.parent.name == str(daemon):
            ticks += sum(map(int, fields[13:15]))
        elif fields[1] == str(daemon):
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def model_of(mib: int, value: float) -> nn.Module:
    count = (mib << 20) // TENSOR_BYTES
    model = nn.ParameterList(torch.full((TENSOR_BYTES // 4,), value) for _ in range(count))
    return model.requires_grad_(False)


def attach(store: Store, model: nn.Module, attempt: int) -> unreft.torch.Checkpointer:
    place = {"socket": store.socket, "job": store.job, "rank": 0, "world": 1}
    return unreft.torch.attach(model, **place, attempt=attempt)


def commit(store: Store, model: nn.Module) -> None:
    checkpointer = attach(store, model, attempt=1)
    checkpointer.restore()
    deadline = time.monotonic() + READY_S
    while not checkpointer.snapshot(1):  # slots are being populated
        if time.monotonic() > deadline:
            raise RuntimeError(f"no snapshot has started: {checkpointer.status.last_problem}")
        time.sleep(0.1)
    if not checkpointer.wait(1):
        raise RuntimeError(f"no commit: {checkpointer.status.last_problem}")
    checkpointer.close()


def export(store: Store, place: str) -> None:
    words = ["export", f"{place}/copy", "--job", store.job, "--run-dir", store.directory]
    subprocess.run([BIN_DIR / "unreft", *words], stdout=subprocess.DEVNULL, check=True)


def forget_memory(store: Store) -> None:
    store.kill()
    for segment in pathlib.Path("/dev/shm").glob(f"unreft.{store.job}.*"):
        segment.unlink()


def measure(place: str, mib: int) -> tuple[float, float]:
    """CPU seconds per GB written, and per GB read."""
    store = Store(*FLAGS)
    try:
        commit(store, model_of(mib, VALUE))
        export(store, place)
        written = drain_cpu_s(store.process.pid)
        forget_memory(store)
        store.flags = (*FLAGS, "--export-dir", place, "--export-every-s", "3600")
        store.start()
        model = model_of(mib, 0.0)
        checkpointer = attach(store, model, attempt=2)
        step = checkpointer.restore()
        read = drain_cpu_s(store.process.pid)
        checkpointer.close()
        if step != 1 or not all(bool((tensor == VALUE).all()) for tensor in model):
            raise RuntimeError(f"{place}: other bytes were restored than were copied")
    finally:
        store.close()
    return written / (mib * 2**20 / GB), read / (mib * 2**20 / GB)


def make_certificate(directory: pathlib.Path) -> list[pathlib.Path]:
    """A certificate that signs itself, and its key."""
    pem, key = directory / "server.pem", directory / "server.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    words += ["-addext", f"subjectAltName=IP:{LOOPBACK}", "-out", pem, "-keyout", key]
    subprocess.run(words, check=True, capture_output=True)
    return [pem, key]


def wait_ready(process: subprocess.Popen, bucket: Bucket) -> None:
    deadline = time.monotonic() + READY_S
    while not bucket.make():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not come up within {READY_S} s")
        time.sleep(0.1)


def measure_s3(scratch: pathlib.Path, mib: int) -> dict[str, tuple[float, float]]:
    pem, key = make_certificate(scratch)
    (port,) = free_ports(1)
    tls = [f"-s3.cert.file={pem}", f"-s3.key.file={key}", f"-s3.port.https={port}"]
    process, endpoint = start(scratch, tls)
    try:
        wait_ready(process, Bucket(endpoint, BUCKET))
        os.environ |= {"AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": KEY, "no_proxy": LOOPBACK,
                       "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_CA_BUNDLE": str(pem)}
        found = {}
        for name, url in (("s3", endpoint), ("s3_tls", f"https://{LOOPBACK}:{port}")):
            os.environ["AWS_ENDPOINT_URL"] = url
            found[name] = measure(f"s3://{BUCKET}/{name}", mib)
        return found
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build" / "bench")
    args = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    args.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="s3-", dir=args.scratch) as scratch:
        directory = pathlib.Path(scratch, "copies")
        directory.mkdir()
        measured = {"directory": measure(str(directory), args.mib)}
        measured |= measure_s3(pathlib.Path(scratch), args.mib)
    rows = [
        record(f"{what}_{name}", costs[at], f"CPU s per GB {unit}", measured["directory"][at],
               "a directory")
        for at, (what, unit) in enumerate((("export", "written"), ("restore", "read")))
        for name, costs in measured.items()
    ]
    pathlib.Path(args.out, "s3_cost.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{args.mib} MiB, one node, one copy written and read at each place")
    for row in rows:
        print(f"{row['name']:<18} {row['value']:6.2f} {row['unit']:<22} "
              f"{row['reference_name']} {row['reference']:.2f}   ratio {row['ratio']:.2f}")


if __name__ == "__main__":
    main()
