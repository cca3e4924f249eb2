"""State on a CUDA device with the real daemon and the real library, on the fake CUDA runtime."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import unreft
from real_store import BIN_DIR, RUN_TIMEOUT_S, Store

TRAINER = pathlib.Path(__file__).with_name("device_trainer.py")
DERIVED_TRAINER = TRAINER.with_name("derived_device_trainer.py")
RANGES_TRAINER = TRAINER.with_name("device_ranges_trainer.py")

pytestmark = pytest.mark.skipif(
    not (BIN_DIR.parent / "fakecuda/libcudart.so.13").exists(), reason="built without CUDA"
)


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def train(store, attempt, script=TRAINER, **more):
    """The records of one process, which has no PyTorch: that may bring a real runtime."""
    environment = {
        "UNREFT_SOCKET": store.socket,
        "UNREFT_JOB": store.job,
        "UNREFT_ATTEMPT": str(attempt),
        "UNREFT_BIN_DIR": str(BIN_DIR),
        **more,
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
    assert "without nvcc" in first["unsampled"] or has_kernel()
    assert first["unsampled"] == "" or not has_kernel()
    restored, second = train(store, attempt=1)
    assert restored["restored"] == 3
    names = ["w", "bias", "mean", "offloaded", "step"]
    assert restored["values"] == {name: [3] for name in names}
    assert (second["committed"], second["given_up"], second["violations"]) == (6, 0, "")


def has_kernel():
    try:
        unreft.Client(socket="/nonexistent", connect_timeout_s=0, device_checksum=True)
    except unreft.FailedPrecondition:
        return False
    except unreft.Unavailable:
        return True


@pytest.mark.skipif(not has_kernel(), reason="built without nvcc")
def test_checksums_on_the_device(store):
    """A bit that flips on the way to host memory, and one that does on the way back."""
    checked = {"UNREFT_DEVICE_CHECKSUM": "1"}
    abandoned, first = train(store, 0, **checked, FLIP_AT="2")
    assert abandoned["abandoned"] == 2
    # 5,000,001 bytes into w, which comes first in a slab of blocks of 1 MiB.
    assert "block 4 (tensor w) has CRC" in abandoned["error"]
    assert "device_checksum" in abandoned["error"]
    assert first["committed"] == 3
    assert first["copier"].endswith("checksums on the device")
    assert store.metric("unreft_device_checksum_mismatches_total") == 1
    (failed,) = train(store, 1, **checked, FLIP_AT="restore")
    assert failed["restored"] is None
    assert "tensor w: bytes" in failed["error"]
    assert "after they were copied there" in failed["error"]
    restored, second = train(store, 2, **checked)
    assert restored["restored"] == 3
    assert set(map(tuple, restored["values"].values())) == {(3,)}
    assert (second["committed"], second["given_up"], second["violations"]) == (6, 0, "")
    assert store.metric("unreft_device_checksum_mismatches_total") == 1


def test_without_checksums_the_flipped_bit_is_not_seen(store):
    (first,) = train(store, 0, FLIP_AT="2")
    assert (first["committed"], first["given_up"], first["violations"]) == (3, 0, "")
    assert "checksums" not in first["copier"]


@pytest.mark.parametrize("checked", ["0", "1"])
def test_ranges_on_a_device_come_back_as_other_ranges(store, checked):
    if checked == "1" and not has_kernel():
        pytest.skip("built without nvcc")
    committed = 0
    for attempt, cuts in enumerate(["1000001,1234567", "7,8,1925202", "962601"]):
        records = train(store, attempt, RANGES_TRAINER, CUTS=cuts, UNREFT_DEVICE_CHECKSUM=checked)
        assert records[:-1] == ([{"restored": committed, "right": True}] if attempt else [])
        committed += 3
        last = records[-1]
        assert (last["committed"], last["given_up"], last["violations"]) == (committed, 0, "")
        assert ("checksums on the device" in last["copier"]) == (checked == "1")


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
