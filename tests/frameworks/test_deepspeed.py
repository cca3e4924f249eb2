"""Training by DeepSpeed's ZeRO: killed, restored, equal, also on other ranks; what is refused."""

import os
import pathlib
import re
import subprocess
import sys

import cli_testing
import pytest
from example_runs import as_it_is, check_killed_and_started_again
from real_store import FORK_SERVER, Store

pytest.importorskip("deepspeed", reason="deepspeed is not installed")

SCRIPT = pathlib.Path(__file__).with_name("deepspeed_trainer.py")
# Before the server starts, which is that of all tests.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ["PYTHONPATH"]])
FORK_SERVER.set_forkserver_preload(["preloaded", "deepspeed_preloaded"])


@pytest.fixture
def stores():
    made = [Store("--restore-wait-s", "20") for _ in range(2)]
    yield made
    for store in made:
        store.close()


@pytest.mark.parametrize(
    "stage, dies, words",
    [
        (1, 3, []),
        pytest.param(2, 3, ["--accumulated", 2], marks=pytest.mark.short),
        (3, 3, []),
        # What was made by a step before it is replaced.
        (1, 3, ["--warm-up"]),
        (3, 3, ["--warm-up"]),
        (2, 3, ["--late-buffer"]),
        (1, 3, ["--fp32", "--one-group"]),
        (2, 4, ["--fp32", "--every", 2, "--move-at", 3]),
        (3, 3, ["--fp32", "--zero-init", "--accumulated", 2]),
        # Of a step that is skipped the optimizer has no state yet.
        (2, 1, ["--overflow-at", 1]),
        (3, 3, ["--overflow-at", 2]),
        # What no optimizer steps on is another object at each step.
        (1, 3, ["--replace", "module"]),
        pytest.param(2, 3, ["--replace", "tensor"], marks=pytest.mark.short),
        (2, 3, ["--replace", "new"]),
        (3, 3, ["--replace", "new"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_killed_and_resumed_is_as_if_it_had_not_been(stores, stage, dies, words):
    words = ["--stage", stage, *words]
    undisturbed = stores[0].train(2, *words, script=SCRIPT)
    before = stores[1].train(2, *words, "--die-after", dies, script=SCRIPT, killed=True)
    after = stores[1].train(2, *words, script=SCRIPT)
    first = 2 if {"--every", "--warm-up"} & set(words) else 1
    every = 2 if "--every" in words else 1
    for was, died, now in zip(undisturbed, before, after, strict=True):
        begun, state, *rest = now
        last = died[-1]["died"]
        assert died[-1]["numbers"] == [*([0] if every == 2 else []), *range(first, last + 1, every)]
        assert begun == {"restored": last, "reshaped_from": None}
        assert state == {name: died[-1][name] for name in ("state", "own")}
        assert 1 < len(rest) < len(was) - 1
        # Losses, learning rates, and all that the end has, with no problem.
        assert rest == was[-len(rest):]
        assert rest[-1]["problem"] == ""
        assert rest[-1]["final"]["counts"] == [6, int("--overflow-at" in words)]


@pytest.mark.parametrize("stage", [1, 3])
def test_it_changes_nothing_of_a_run(stores, stage):
    words = ["--stage", stage]
    attached = stores[0].train(2, *words, script=SCRIPT)
    alone = stores[1].train(2, *words, "--alone", script=SCRIPT)
    assert [records[1:] for records in attached] == alone


@pytest.mark.parametrize("stage, words", [(1, []), (2, ["--fp32"]), (3, [])])
def test_it_goes_on_with_another_number_of_ranks(stores, stage, words):
    words = ["--stage", stage, *words]
    died = None
    for world, last in [(4, 2), (2, 4), (3, 6)]:
        dies = ["--die-after", last] if world != 3 else []
        steps = ["--steps", last + 3] if world != 3 else ["--steps", last]
        after = stores[0].train(world, *words, *dies, *steps, script=SCRIPT, killed=bool(dies))
        for records in after if died else ():
            assert records[0] == {"restored": died["died"], "reshaped_from": before}
            # Whole tensors, moments, weights and all that is no tensor: as other ranks had them.
            assert records[1]["state"] == died["state"]
            assert records[1]["own"]["buffer"] == died["own"]["buffer"]
        assert len({repr(of[-1].get("final", of[-1].get("state"))) for of in after}) == 1
        died, before = after[0][-1], world


def test_another_number_of_micro_batches_begins_with_a_whole_round(stores):
    words = ["--stage", 2]
    died = stores[0].train(2, *words, "--die-after", 3, script=SCRIPT, killed=True)
    (now,) = stores[0].train(1, *words, "--accumulated", 2, script=SCRIPT)
    begun, state, *rest = now
    last = died[0][-1]["died"]
    assert begun == {"restored": last, "reshaped_from": 2}
    assert state["state"] == died[0][-1]["state"]
    assert state["own"]["samples"] == [6 * last, 0]  # of a round none is made
    steps = [line["step"] for line in rest if "step" in line]
    assert steps == [step for before in range(last, 6) for step in (before, before + 1)]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_goes_on_as_from_a_universal_checkpoint(stores, stage, tmp_path):
    # In stage 3 DeepSpeed's own gives all groups the hyperparameters of the first, and all
    # partitions one count of steps, which each of them then counts up.
    words = ["--stage", stage, "--one-group"]
    files = ["--files", tmp_path]
    dies = ["--die-after", 3, "--save-at", 3, *files]
    died = stores[0].train(4, *words, *dies, script=SCRIPT, killed=True)
    assert died[0][-1]["died"] == died[0][-2]["saved"] == 3
    convert(tmp_path / "global_step3", tmp_path / "global_step3_universal")
    restored = stores[0].train(2, *words, "--seed-anew", script=SCRIPT)
    loads = ["--load", "--universal", *files, "--seed-anew"]
    loaded = stores[1].train(2, *words, *loads, script=SCRIPT)
    assert restored[0][0] == {"restored": 3, "reshaped_from": 4}
    assert loaded[0][1]["loaded"]
    for mine, theirs in zip(restored, loaded, strict=True):
        assert [line["loss"] for line in mine if "loss" in line] == [
            line["loss"] for line in theirs if "loss" in line
        ]
        for part in ("master", "moments", "weights", "adam_steps"):
            assert final(mine)[part] == final(theirs)[part], part


def convert(saved, universal):
    words = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--num_extract_workers",
             "1", "--num_merge_workers", "1", "--inject_missing_state", "--input_folder", saved,
             "--output_folder", universal]
    subprocess.run(words, check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})


def final(records):
    (found,) = [record["final"] for record in records if "final" in record]
    return found


@pytest.mark.parametrize("stage", [1, 3])
def test_files_beside_it(stores, stage, tmp_path):
    words = ["--stage", stage, "--files", tmp_path]
    saving = ["--save-at", 3, "--die-after", 4]
    before = stores[0].train(2, *words, *saving, script=SCRIPT, killed=True)
    (saved,) = [record["state"] for record in before[0] if "saved" in record]

    # Where nothing is in memory they are loaded, and what was is what the next snapshot has.
    loads = ["--load", "--die-after", 5]
    loaded = stores[1].train(2, *words, *loads, script=SCRIPT, killed=True)
    after = stores[1].train(2, *words, script=SCRIPT)
    for records, again in zip(loaded, after, strict=True):
        assert records[:2] == [{"restored": None, "reshaped_from": None}, {"loaded": True}]
        assert records[2]["state"] == saved
        assert records[-1]["died"] == 5 and records[-1]["log"] == []
        assert again[0]["restored"] == 5
        assert again[1] == {name: records[-1][name] for name in ("state", "own")}

    # What a load puts in place of what was restored is said, and an earlier step is kept, too.
    replaced = stores[0].train(2, *words, "--load", "--die-after", 4, script=SCRIPT, killed=True)
    after = stores[0].train(2, *words, script=SCRIPT)
    for records, again in zip(replaced, after, strict=True):
        assert records[0]["restored"] == 4
        assert records[2]["state"] == saved
        assert again[0]["restored"] == records[-1]["died"] == 4
        assert records[-1]["numbers"] == [5]
        assert again[1] == {name: records[-1][name] for name in ("state", "own")}
    said, numbers = replaced[0][-1]["log"]
    assert said.startswith("load_checkpoint: step 3 of ")
    assert said.endswith(" replaces step 4, which restore() has put in place")
    assert "snapshots go on with number 5" in numbers
    assert replaced[1][-1]["log"] == []


# --- the example ---

EXAMPLE = cli_testing.ROOT / "examples/deepspeed/train.py"
AS_IT_IS = as_it_is("import deepspeed_preloaded")


@pytest.mark.short
def test_the_example_killed_and_started_again(clis):
    check_killed_and_started_again(clis, AS_IT_IS, [EXAMPLE, "--stage", 3, "--steps", 8], lines=9)


# --- what is moved ---


@pytest.fixture(scope="module")
def moved():
    return told_by("deepspeed_moves.py")


@pytest.mark.short
def test_nothing_keeps_the_memory_that_states_are_offloaded_from(moved):
    found = moved["offload"]
    assert found["copying"] == [False]
    assert found["kept"] == found["kept of offloaded"] == []
    assert found["committed"] and found["registrations"] == 1
    assert not found["replaced"]


@pytest.mark.short
@pytest.mark.parametrize(
    "name, problem",
    [
        ("a trained parameter", "needed the parameter 'bias', which ZeRO trains, found it no"),
        ("a random stream", "needed no random streams, .* found 'model-parallel-rng'"),
        ("bfloat16 weights", "needed ZeRO stage 2 of float32 .* found ZeRO stage 2 of bfloat16"),
    ],
)
def test_a_change_that_has_no_place_in_a_snapshot_is_named(moved, name, problem):
    assert re.search(problem, moved[name]["problem"]), moved[name]["problem"]


# --- what is refused ---


def test_a_state_of_another_engine_is_refused_and_kept(stores):
    words = ["--stage", 1]
    stores[0].train(2, *words, "--die-after", 2, script=SCRIPT, killed=True)
    others = {
        "needed ZeRO stage 1 of bfloat16 weights, .* found ZeRO stage 2 of bfl": ["--stage", 2],
        r"'model/frozen.weight' is bfloat16\[9, 11\] there, found float32\[9, 11\]": ["--fp32"],
        r"needed groups of \[3, 3\] parameters, found \[6\]": ["--one-group"],
        r"13 were stored .*'master/body.weight'.* and 3 more; 'master/body.weight' is "
        r"float32\[11, 9\] there, found float32\[12, 9\]": ["--width", 12],
        "lacks 3 of this program: 'master/head.bias', 'optim/head.bias/exp_avg'": ["--bias"],
    }
    for expected, other in others.items():
        refused = stores[0].train(2, *words, *other, script=SCRIPT)
        errors = [records[0]["error"] for records in refused]
        assert "FailedPrecondition" in errors and set(errors) <= {"FailedPrecondition", "Aborted"}
        first = refused[errors.index("FailedPrecondition")][0]
        assert re.search(expected, first["message"]), first["message"]
    after = stores[0].train(2, *words, script=SCRIPT)
    assert [records[0]["restored"] for records in after] == [2, 2]


@pytest.fixture(scope="module")
def told():
    return told_by("deepspeed_refusals.py")


def told_by(script):
    store = Store()
    try:
        (records,) = store.train(1, script=SCRIPT.with_name(script))
    finally:
        store.close()
    return {record.pop("name"): record for record in records}


@pytest.mark.short
@pytest.mark.parametrize(
    "name",
    [
        "offload_optimizer to nvme", "offload_param to cpu", "ZeRO stage 0",
        "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients", "round_robin_gradients", "parameter_alignment", "fp16",
        "torch_autocast", "mixture of experts", "autotp_size", "2 of 1 ranks data parallel",
        "managed_gradient_accumulation false", "bf16_optimizer_states", "data_efficiency",
        "curriculum_learning", "random_ltd", "float16 weights", "deepcompile",
        "the optimizer NoneType", "a PipelineModule", "base_weight_sharding",
        "bf16_master_weights_and_grads", "an mpu", "its class Derived",
        "DeepSpeed's DeepSpeedCPUAdam", "DeepSpeed's FusedAdam", "DeepSpeed's MuonWithAuxAdam",
    ],
)
def test_what_was_not_tried_is_refused_by_name(told, name):
    assert told[name]["error"] == "FailedPrecondition"
    assert f"an engine with {name} is not supported: tried are ZeRO" in told[name]["message"]


@pytest.mark.short
@pytest.mark.parametrize(
    "name, error, message",
    [
        ("a version", "FailedPrecondition", "tried with deepspeed 0.19, .* this is 0.20.1"),
        ("a model", "InvalidArgument", r"needed what deepspeed.initialize\(\).* found a Linear"),
        ("groups in one, stage 2", "FailedPrecondition", "of 2 parameter groups, .* steps on 1: "),
        ("groups in one, stage 3", "FailedPrecondition", "of 2 parameter groups, .* steps on 1: "),
        ("a parameter replaced", "FailedPrecondition", "needed the parameter 'bias', .* no more; "),
        ("a random stream", "FailedPrecondition", "needed no random .* found 'model-parallel-rng'"),
        ("every", "InvalidArgument", "every: needed .* above 0, found 0"),
        ("of torch", "InvalidArgument", r"is an engine.* unreft.deepspeed.attach\(engine\)"),
        ("twice", "FailedPrecondition", "attached in this process already: a process trains one"),
        ("beside", "FailedPrecondition", "uses unreft.deepspeed.attach in this process"),
        ("after close", None, ""),
    ],
)
def test_what_attach_is_given(told, name, error, message):
    assert told[name]["error"] == error
    assert re.search(message, told[name]["message"]), told[name]["message"]
