"""The example training job resumes bit for bit, before any checkpoint method of ours is involved.

Each run is a few real processes on the loopback interface. Three ranks, because a sum of two does
not depend on the order, and because the tiny model's parameters do not divide by three: the
padding of the gradient exchange is tested, too.
"""

import json
import os
import pathlib
import random
import socket
import sys
import time

import numpy as np
import pytest
import torch
from real_store import Rank

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import train_gpt  # noqa: E402

WORLD = 3
STEPS = 8
RUN_TIMEOUT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_ranks(args):
    """Starts all ranks of one attempt."""
    port = free_port()
    ranks = []
    for rank in range(WORLD):
        environment = dict(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(WORLD),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            OMP_NUM_THREADS="1",
        )
        script = EXAMPLES / "train_gpt.py"
        ranks.append(Rank(script, ["--size", "tiny", *args], environment, os.devnull))
    return ranks


def kill(ranks):
    # All before waiting for one: a survivor would only report that its peers are gone.
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.wait()


def train(*args):
    """Runs one attempt to its end and fails if a rank fails or hangs."""
    ranks = start_ranks([*map(str, args)])
    deadline = time.monotonic() + RUN_TIMEOUT_S
    try:
        codes = [rank.wait(timeout=deadline - time.monotonic()) for rank in ranks]
    finally:
        kill(ranks)
    assert codes == [0] * WORLD


class Run:
    """Where one run leaves its results, which later attempts of the same run continue."""

    def __init__(self, directory):
        self.log = directory / "steps.jsonl"
        self.outputs = ["--steps", STEPS, "--log", self.log, "--final", directory / "final"]
        self.checkpoints = ["--checkpoint", "torch-save", "--checkpoint-dir", directory / "saved"]
        self._directory = directory

    def final(self):
        """Per rank: the digests of its final state."""
        files = [self._directory / f"final.rank{rank}.json" for rank in range(WORLD)]
        return [json.loads(file.read_text())["parts"] for file in files]

    def losses(self):
        return train_gpt.StepLog.losses(self.log)

    def restored_steps(self):
        records = train_gpt.StepLog.read(self.log)
        return [record["restored_step"] for record in records if record["event"] == "start"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run without any checkpoint."""
    run = Run(tmp_path_factory.mktemp("reference"))
    train(*run.outputs)
    return run


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def assert_equal(run, reference):
    assert run.final() == reference.final()
    assert run.losses() == reference.losses()
    assert sorted(run.losses()) == list(range(1, STEPS + 1))


def test_ranks_agree_where_they_must(reference):
    ranks = reference.final()
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)
    assert all(rank["optimizer"] == ranks[0]["optimizer"] for rank in ranks)
    # Otherwise their restoration would not be tested: each rank has its own.
    for part in ("buffers", "rng_torch", "rng_numpy", "rng_python"):
        assert len({rank[part] for rank in ranks}) == WORLD


def test_resumed_run_equals_uninterrupted_run(reference, run):
    every_two = ["--checkpoint-every", 2]
    train(*run.outputs, *run.checkpoints, *every_two, "--stop-after", 5)
    assert not list(run.log.parent.glob("final*"))
    train(*run.outputs, *run.checkpoints, *every_two)
    assert run.restored_steps() == [None, 4]  # Step 5 was lost and is repeated.
    assert_equal(run, reference)


def test_killed_run_equals_uninterrupted_run(reference, run):
    ranks = start_ranks([*map(str, [*run.outputs, *run.checkpoints])])
    deadline = time.monotonic() + RUN_TIMEOUT_S
    try:
        while not run.log.exists() or len(run.losses()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        kill(ranks)
    train(*run.outputs, *run.checkpoints)
    assert run.restored_steps()[1] >= 1  # Step 2 was logged, so every rank had saved step 1.
    assert_equal(run, reference)


def test_bucket_layout_changes_nothing(reference, run):
    train(*run.outputs, "--bucket-cap-mb", 0.01)
    assert_equal(run, reference)


def test_digest_sees_every_kind_of_value():
    def digest(value):
        sha = train_gpt.hashlib.sha256()
        train_gpt.hash_value(sha, value)
        return sha.hexdigest()

    values = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.int32),
        torch.tensor([0.0, 0.0, 0.0, -0.0]),
        {"lr": 0.1},
        {"lr": 0.1 + 2e-17},
        [1, 2],
        [[1], 2],
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_global_generators_are_restored():
    rng = train_gpt.GlobalRng()

    def draw():
        # An odd number of normal draws leaves a cached second one behind in NumPy and Python.
        return torch.rand(3).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1)

    draw()
    state = rng.state_dict()
    first = draw()
    rng.load_state_dict(state)
    assert draw() == first


def test_log_survives_a_torn_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    whole = {"event": "step", "step": 1, "loss_hex": "0x1p+0"}
    path.write_text(json.dumps(whole) + "\n" + '{"event": "step", "st')
    log = train_gpt.StepLog(path)
    log.write({**whole, "step": 2})
    log.write({**whole, "loss_hex": "0x1p+1"})
    log.close()
    assert train_gpt.StepLog.losses(path) == {1: "0x1p+1", 2: "0x1p+0"}
