"""A durable copy of what PyTorch trains: loaded without Unreft, it trains on as from memory."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from real_store import BIN_DIR, Store

HERE = pathlib.Path(__file__).parent
TIMEOUT_S = 120


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20", "--pins", "1")
    yield made
    made.close()


def export(store, directory):
    command = [BIN_DIR / "unreft", "--json", "export", directory, "--job", store.job, "--run-dir"]
    done = subprocess.run(
        [str(word) for word in [*command, store.directory]],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def taken_up(directory, *words):
    """What copy_trainer.py says of it, in an interpreter that cannot import unreft."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and "UNREFT" not in k}
    done = subprocess.run(
        [sys.executable, "-s", HERE / "copy_trainer.py", "--copy", directory, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ((), ()),
        (("--replicas", 2), ()),
        (("--tensor-parallel", 2), ("--tensor-parallel",)),
    ],
    ids=["fsdp", "hsdp", "fsdp-tp"],
)
def test_a_copy_trains_on_as_memory_does(store, tmp_path, layout, model):
    ranks = 4
    saved = store.train(
        ranks, "--steps", 9, "--die-after", 3, *layout,
        script=HERE / "sharded_trainer.py", killed=True,
    )
    before = saved[0][-1]
    copy = export(store, tmp_path / "copy")
    assert (copy["step"], copy["world"], copy["left_out"]) == (3, ranks, [])
    from_copy = taken_up(tmp_path / "copy", *model)
    assert from_copy[0] == {"state": before["state"], "lr": before["lr"]}
    ((*_, after),) = store.train(1, *model, script=HERE / "copy_trainer.py")
    assert from_copy[-1] == after
    assert after["state"] != before["state"]
