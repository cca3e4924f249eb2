"""State on a CUDA device with the real daemon and the real library, on the fake CUDA runtime."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from real_store import BIN_DIR, RUN_TIMEOUT_S, Store

TRAINER = pathlib.Path(__file__).with_name("device_trainer.py")
DERIVED_TRAINER = TRAINER.with_name("derived_device_trainer.py")

pytestmark = pytest.mark.skipif(
    not (BIN_DIR.parent / "fakecuda/libcudart.so.13").exists(), reason="built without CUDA"
)


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def train(store, attempt, script=TRAINER):
    """The records of one process, which has no PyTorch: that may bring a real runtime."""
    environment = {
        "UNREFT_SOCKET": store.socket,
        "UNREFT_JOB": store.job,
        "UNREFT_ATTEMPT": str(attempt),
        "UNREFT_BIN_DIR": str(BIN_DIR),
    }
    ended = subprocess.run(
        [sys.executable, script],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_device_state_survives_its_process(store):
    (first,) = train(store, attempt=0)
    assert (first["committed"], first["given_up"], first["violations"]) == (3, 0, "")
    assert first["copier"].startswith("CUDA device 0, ")
    restored, second = train(store, attempt=1)
    assert restored["restored"] == 3
    names = ["w", "bias", "mean", "offloaded", "step"]
    assert restored["values"] == {name: [3] for name in names}
    assert (second["committed"], second["given_up"], second["violations"]) == (6, 0, "")


def test_weights_that_are_not_captured_survive_their_process(store):
    """By the C ABI alone: a digest of theirs comes back with what they follow from."""
    (first,) = train(store, 0, DERIVED_TRAINER)
    assert (first["committed"], first["given_up"], first["violations"]) == (3, 0, "")
    masters = 4 * 3_000_000
    assert 3 * masters <= first["bytes"] < 3 * (masters + 4096)
    restored, made, second = train(store, 1, DERIVED_TRAINER)
    assert restored == {"restored": 3, "verified": True, "other": False}
    assert made["weights"] == first["weights"]
    assert (second["committed"], second["given_up"], second["violations"]) == (6, 0, "")
