"""`unreft export`: a committed version becomes files that PyTorch reads, while training goes on."""

import hashlib
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

from cli_testing import COMMAND_TIMEOUT_S, Cli, wait_until
from cluster_testing import NODES, train, up_nodes, wait_protected
from export_testing import read

FAILED = 1


def expected(rank, step, size=3 << 20):
    """Of what cli_trainer.py has at that step."""
    values = (rank + 1) * 2.0**32 + np.arange(size // 8) + step * 2.0**24
    text = f"torch.float64 ({size // 8},)".encode()
    return hashlib.sha256(text + values.tobytes()).hexdigest()


def exported(cli, directory, *words):
    copy = cli.json("export", directory, *words)
    assert copy["state"] == "done", copy
    return copy


@pytest.fixture
def job(cli):
    cli("up", "--", "--pins", 1)
    job = cli.train()
    cli.wait_committed(job, 3)
    return job


def test_a_job_of_one_node(cli, job, tmp_path):
    copy = exported(cli, tmp_path / "copy")
    assert copy["world"] == 2 and copy["tensors"] == 2
    keys = read(tmp_path / "copy", "keys")
    assert keys["weights0"] == [3 << 17] and keys["weights1"] == [3 << 17]
    for rank in range(2):
        found = read(tmp_path / "copy", "digest", f"weights{rank}")
        assert found == expected(rank, copy["step"])
    whole = read(tmp_path / "copy", "torch_save")
    assert whole["weights0"] == expected(0, copy["step"])
    # Training goes on, and nothing is pinned any more.
    cli.wait_committed(job, copy["step"] + 10)
    assert not any(v["pinned_by"] for v in cli.json("versions")["versions"])
    again = exported(cli, tmp_path / "again", "--map", "weights=w.")
    assert again["step"] > copy["step"]
    assert "w.0" in read(tmp_path / "again", "keys")


def test_every_node_writes_its_part(cli, tmp_path):
    up_nodes(cli, "--pins", 1)
    job = train(cli)
    wait_protected(cli, job, 2)
    said = cli("export", tmp_path / "copy")
    assert f"of {NODES} ranks is complete in {tmp_path}/copy: {NODES} tensors" in said
    keys = read(tmp_path / "copy", "keys")
    step = cli.json("export", "--status")["step"]
    for rank in range(NODES):
        assert read(tmp_path / "copy", "digest", f"weights{rank}") == expected(rank, step)
    assert len([key for key in keys if key.endswith(".extras")]) == NODES


def test_what_is_lost_with_two_of_four_nodes_is_decoded(cli, tmp_path):
    """The last thing before an allocation ends: no spare, nobody trains any more."""
    up_nodes(cli, "--pins", 1)
    job = train(cli, "--max-restarts", 0)
    wait_protected(cli, job, 2)
    job.interrupt()
    job.wait()
    for node in (1, 2):
        cli("inject", "kill-node", "--node", node)
    copy = exported(cli, tmp_path / "copy")
    assert copy["world"] == NODES and copy["nodes"] == 2
    for rank in range(NODES):
        assert read(tmp_path / "copy", "digest", f"weights{rank}") == expected(rank, copy["step"])
    assert not [segment for segment in cli.segments() if "decoded" in segment.name]


def test_every_node_writes_its_weights(cli, tmp_path):
    up_nodes(cli, "--pins", 1)
    job = train(cli)
    wait_protected(cli, job, 2)
    said = cli("export", tmp_path / "weights", "--format", "safetensors")
    assert f"of {NODES} ranks is complete in {tmp_path}/weights: {NODES} tensors" in said
    assert "it has the weights alone: 0 other tensors" in said
    status = cli.json("export", "--status")
    assert (status["format"], status["has_index"]) == ("safetensors", True)
    found = read(tmp_path / "weights", "weights")
    assert found == {f"weights{rank}": expected(rank, status["step"]) for rank in range(NODES)}
    index = json.loads((tmp_path / "weights" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        f"weights{rank}": f"model-rank{rank:05}-of-{NODES:05}-part1.safetensors"
        for rank in range(NODES)}
    left = {path.name for path in (tmp_path / "weights").iterdir()}
    assert left == {".unreft", "model.safetensors.index.json", *index["weight_map"].values()}


def test_what_stands_in_the_way_is_told_and_nothing_is_written(cli, job, tmp_path):
    def refused(*words, code=FAILED):
        cli("export", *words, code=code)
        return cli.stderr

    full = tmp_path / "full"
    full.mkdir()
    (full / ".metadata").write_bytes(b"of another")
    assert "it has a checkpoint already" in refused(full)
    assert (full / ".metadata").read_bytes() == b"of another"
    assert [path.name for path in full.iterdir()] == [".metadata"]
    assert "No such file" in refused(tmp_path / "not" / "there")
    (tmp_path / "file").write_text("")
    assert "directory" in refused(tmp_path / "file")
    assert "999999" in refused(tmp_path / "x", "--version", 999999)
    assert not (tmp_path / "x").exists()
    assert "needed FROM=TO" in refused(tmp_path / "y", "--map", "nothing")
    assert "{dcp,safetensors}" in refused(tmp_path / "z", "--format", "pickle", code=2)
    assert "needed the directory" in refused(code=(1, 2))
    # Two keys that would be one: noticed when all is written, and then nothing is left.
    message = refused(tmp_path / "w", "--map", "weights0=w", "--map", "weights1=w")
    assert "would both be 'w'" in message
    assert not (tmp_path / "w").exists()
    message = refused(tmp_path / "w", "--map", "weights0=w", "--map", "weights1=w", "--format",
                      "safetensors")
    assert "would both be 'w'" in message
    assert not (tmp_path / "w").exists()
    assert "'__metadata__'" in refused(
        tmp_path / "w", "--map", "weights0=__metadata__", "--format", "safetensors")
    assert not (tmp_path / "w").exists()
    cli.wait_committed(job, cli.committed() + 5)


def test_without_room_for_its_pin_nothing_is_exported(cli, tmp_path):
    cli("up")
    job = cli.train()
    cli.wait_committed(job, 3)
    cli("export", tmp_path / "copy", code=FAILED)
    assert "--pins" in cli.stderr and not (tmp_path / "copy").exists()


def begun(cli, directory, *words):
    """One that takes long, whose files are being written."""
    process = subprocess.Popen(
        cli.command("export", directory, "--bytes-per-s", 100_000, *words),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until("its parts", lambda: (pathlib.Path(directory) / ".unreft/go").exists())
    return process


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_cancelled_it_leaves_nothing(cli, job, tmp_path, form):
    process = begun(cli, tmp_path / "copy", "--format", form)
    cli("export", tmp_path / "other", code=FAILED)
    assert str(tmp_path / "copy") in cli.stderr
    cli("export", "--cancel")
    said, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == FAILED and "it was cancelled" in said
    wait_until("its end", lambda: not (tmp_path / "copy").exists())
    wait_until("another", lambda: cli.json("export", tmp_path / "copy",
                                           code=(0, FAILED)).get("state") == "done")
    cli.wait_committed(job, cli.committed() + 5)


def test_its_process_has_a_name_and_the_lowest_priority(cli, job, tmp_path):
    process = begun(cli, tmp_path / "copy")
    daemon = cli.daemon_pid()
    children = pathlib.Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    (drain,) = (
        child for child in children
        if pathlib.Path(f"/proc/{child}/comm").read_text() == "unreft-drain\n"
    )
    assert os.getpriority(os.PRIO_PROCESS, int(drain)) == 19
    assert os.getpriority(os.PRIO_PROCESS, daemon) == os.getpriority(os.PRIO_PROCESS, 0)
    cli("export", "--cancel")
    process.communicate(timeout=COMMAND_TIMEOUT_S)


def test_a_daemon_that_dies_takes_its_export_along(cli, job, tmp_path):
    process = begun(cli, tmp_path / "copy")
    os.kill(cli.daemon_pid(), 9)
    said, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode != 0, said
    cli("up", "--", "--pins", 1)
    wait_until("its end", lambda: not (tmp_path / "copy").exists())
    exported(cli, tmp_path / "copy")
    cli.wait_committed(job, cli.committed() + 5)


def test_a_node_that_dies_in_mid_export_ends_it(cli, tmp_path):
    up_nodes(cli, "--pins", 1)
    job = train(cli)
    wait_protected(cli, job, 2)
    process = begun(cli, tmp_path / "copy")
    cli.json("inject", "kill-daemon", "--node", NODES - 1)
    said, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
    assert process.returncode == FAILED and f"node {NODES - 1}" in said
    assert not (tmp_path / "copy" / ".metadata").exists()
    cli.json("up")
    wait_protected(cli, job, cli.committed() + 3)
