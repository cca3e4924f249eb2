"""A durable copy of what PyTorch trains: loaded without Unreft, it trains on as from memory."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch.distributed.checkpoint as dcp
from nested_state import state_dict
from real_store import BIN_DIR, Store

import unreft.dcp

HERE = pathlib.Path(__file__).parent
TIMEOUT_S = 120


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20", "--pins", "1")
    yield made
    made.close()


def export(store, directory, *words):
    command = [BIN_DIR / "unreft", "--json", "export", directory, "--job", store.job, "--run-dir"]
    done = subprocess.run(
        [str(word) for word in [*command, store.directory, *words]],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def run_without_unreft(script, *words):
    """The lines that it prints, in an interpreter that cannot import unreft."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and "UNREFT" not in k}
    done = subprocess.run(
        [sys.executable, "-s", HERE / script, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# Of the models of copy_trainer.py, by its options.
WEIGHTS_OF = {
    (): ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"),
    ("--tensor-parallel",): ("0.weight", "0.bias", "2.weight", "2.bias"),
}


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
    words = ("copy_trainer.py", "--copy", tmp_path / "copy")
    from_copy = run_without_unreft(*words, *model)
    assert from_copy[0] == {"state": before["state"], "lr": before["lr"]}
    weights = export(store, tmp_path / "weights", "--format", "safetensors")
    assert (weights["step"], weights["tensors"]) == (3, len(WEIGHTS_OF[model]))
    assert run_without_unreft(*words, "--weights", tmp_path / "weights", *model) == from_copy
    ((*_, after),) = store.train(1, *model, script=HERE / "copy_trainer.py")
    assert from_copy[-1] == after
    assert after["state"] != before["state"]


# Of trainer.py.
PARAMETERS = ("layers.0.weight", "layers.0.bias", "layers.3.weight", "layers.3.bias")
BUFFERS = ("mean",)


@pytest.mark.parametrize("ranks", [1, 3], ids=["alone", "ddp"])
def test_weights_are_read_by_safetensors_and_by_torch(store, tmp_path, ranks):
    saved = store.train(ranks, "--steps", 9, "--die-after", 3, killed=True)
    before = saved[0][-1]
    copy = export(store, tmp_path / "weights", "--format", "safetensors")
    assert (copy["step"], copy["tensors"]) == (3, 5)
    assert copy["has_index"] == (ranks == 1)
    for keys, truth in ((PARAMETERS, before["weights"]), (BUFFERS, before["buffers"])):
        (found,) = run_without_unreft("weights_reader.py", tmp_path / "weights", *keys)
        assert set(found["shapes"]) == {*PARAMETERS, *BUFFERS}
        assert {found[way] for way in ("dcp", "safetensors", "consolidated")} == {truth}
    if ranks == 1:
        assert set(found["index"]) == {*PARAMETERS, *BUFFERS}
    # Cut in the middle of a row, so that a rank has several boxes of a tensor.
    assert any((tmp_path / "weights").glob("*-part2.safetensors")) == (ranks == 3)


def test_weights_keep_their_prefix_where_a_map_says_so(store, tmp_path):
    store.train(1, "--steps", 9, "--die-after", 3, killed=True)
    export(store, tmp_path / "weights", "--format", "safetensors", "--map", "model.=model.")
    (found,) = run_without_unreft("weights_reader.py", tmp_path / "weights", "model.mean")
    assert set(found["shapes"]) == {f"model.{key}" for key in (*PARAMETERS, *BUFFERS)}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_dcp_saved_is_loaded_whole(store, tmp_path, monkeypatch):
    monkeypatch.setenv("UNREFT_SOCKET", store.socket)
    monkeypatch.setenv("UNREFT_JOB", store.job)
    monkeypatch.setenv("UNREFT_ATTEMPT", "0")
    dcp.save(state_dict(), storage_writer=unreft.dcp.Writer(7))
    unreft.dcp.close()
    copy = export(store, tmp_path / "copy")
    assert (copy["step"], copy["left_out"]) == (7, [])
    (said,) = run_without_unreft("dcp_copy_reader.py", tmp_path / "copy")
    assert said == {"loaded": True, "whole": True}
