"""Training by Megatron-Core: killed, restored, equal, also under other sizes; what is refused."""

import json
import os
import pathlib
import re
import sys

import cli_testing
import pytest
from example_runs import EXAMPLE_S, as_it_is, check_killed_and_started_again
from real_store import FORK_SERVER, Store

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

SCRIPT = pathlib.Path(__file__).with_name("mcore_trainer.py")
# Before the server starts, which is that of all tests: also of others that were asked for.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ["PYTHONPATH"]])
FORK_SERVER.set_forkserver_preload(
    ["preloaded", *(["deepspeed_preloaded"] if "test_deepspeed" in sys.modules else []),
     "mcore_preloaded"]
)
BOTH = ("state", "own")


@pytest.fixture
def stores():
    made = [Store("--restore-wait-s", "20") for _ in range(2)]
    yield made
    for store in made:
        store.close()


def sizes(tp, pp):
    return ["--tp", tp, "--pp", pp]


def named(value):
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize(
    "world, tp, pp, words",
    [
        pytest.param(4, 2, 1, [], marks=pytest.mark.short),
        (4, 1, 2, []),
        (2, 1, 1, ["--fp32"]),
        (2, 2, 1, ["--swiglu"]),
        (4, 2, 2, ["--untied", "--fp32"]),
        (4, 1, 2, ["--plain-optimizer"]),
        (2, 1, 1, ["--plain-optimizer", "--fp32"]),
        (4, 1, 2, ["--overlap"]),
        (2, 1, 1, ["--overlap", "--fp32"]),
        (2, 1, 1, ["--move-at", 2]),
        (2, 1, 2, ["--every", 3, "--freeze"]),
        (4, 2, 2, ["--virtual", 2]),
        (4, 1, 2, ["--virtual", 2, "--overlap", "--untied"]),
        (4, 2, 2, ["--fused-adam"]),
        (2, 1, 1, ["--fused-adam", "--plain-optimizer", "--fp32"]),
        (2, 2, 1, ["--sequence-parallel"]),
        (4, 2, 2, ["--sequence-parallel", "--llama", "--swiglu", "--untied"]),
    ],
    ids=named,
)
def test_killed_and_resumed_is_as_if_it_had_not_been(stores, world, tp, pp, words):
    words = [*sizes(tp, pp), *words]
    undisturbed = stores[0].train(world, *words, script=SCRIPT)
    before = stores[1].train(world, *words, "--die-after", 3, script=SCRIPT, killed=True)
    after = stores[1].train(world, *words, script=SCRIPT)
    for was, died, now in zip(undisturbed, before, after, strict=True):
        begun, state, *rest = now
        assert died[-1]["problem"] == ""
        assert begun == {"restored": died[-1]["died"], "reshaped_from": None, "log": []}
        assert state == {name: died[-1][name] for name in BOTH}
        # Losses, learning rates, and all that the end has, with no problem.
        assert rest == was[-len(rest):] and 1 < len(rest) < len(was) - 1
        assert rest[-1]["problem"] == "" and rest[-1]["final"]["adam_steps"] == [6]


def test_it_changes_nothing_of_a_run(stores):
    attached = stores[0].train(4, *sizes(1, 2), script=SCRIPT)
    alone = stores[1].train(4, *sizes(1, 2), "--alone", script=SCRIPT)
    assert [records[1:] for records in attached] == alone


# --- other sizes ---


@pytest.mark.parametrize(
    "words",
    [[], ["--fp32"], ["--swiglu"], ["--untied", "--freeze"], ["--overlap"], ["--plain-optimizer"],
     ["--llama", "--swiglu", "--untied"], ["--sequence-parallel"], ["--fused-adam", "--freeze"]],
    ids=named,
)
def test_it_goes_on_under_other_sizes(stores, words):
    # The vocabulary of 37 is padded to 40 rows, and to 48 under 4.
    shapes = [(4, 2, 1), (4, 1, 2), (4, 4, 1), (1, 1, 1)]
    if "--llama" in words:  # whose groups of queries are 2
        shapes[2] = (4, 2, 2)
    died, before = None, None
    for step, (world, tp, pp) in enumerate(shapes, 1):
        dies = ["--die-after", 2 * step] if world > 1 else []
        kinds = [*sizes(tp, pp), *words, *dies, "--steps", 9]
        now = stores[0].train(world, *kinds, script=SCRIPT, killed=world > 1)
        for rank, records in enumerate(now) if died else ():
            assert records[0]["restored"] == died["died"] == died["state"]["adam_steps"][0]
            assert records[0]["reshaped_from"] == before
            assert len(records[0]["log"]) == (rank == 0)
            # Whole tensors, moments, weights and hyperparameters: as others had them.
            assert records[1]["state"] == died["state"]
        ends = [records[-1].get("state", records[-1].get("final")) for records in now]
        assert all(end == ends[0] for end in ends)
        died, before = now[0][-1], world


@pytest.mark.short
def test_as_many_ranks_may_have_other_sizes(stores):
    died = stores[0].train(2, *sizes(2, 1), "--die-after", 2, script=SCRIPT, killed=True)
    step = died[0][-1]["died"]
    for sizes_now in (sizes(1, 2), sizes(1, 1)):
        now = stores[0].train(2, *sizes_now, "--steps", step, script=SCRIPT)
        for records in now:
            assert records[0]["restored"] == step and records[0]["reshaped_from"] == 2
            assert records[1]["state"] == died[0][-1]["state"]


def test_sequence_parallelism_may_be_switched(stores):
    words = [*sizes(2, 1), "--steps", 5]
    dies = ["--sequence-parallel", "--die-after", 2]
    died = stores[0].train(2, *words, *dies, script=SCRIPT, killed=True)
    now = stores[0].train(2, *words, script=SCRIPT)
    for was, records in zip(died, now, strict=True):
        assert records[0] == {"restored": was[-1]["died"], "reshaped_from": None, "log": []}
        assert records[1] == {name: was[-1][name] for name in BOTH}
        assert records[-1]["final"]["adam_steps"] == [5]


def test_virtual_stages_may_be_others(stores):
    layers = ["--layers", 8, "--die-after"]
    words = [*sizes(1, 2), "--virtual", 2, *layers, 2]
    died = stores[0].train(2, *words, script=SCRIPT, killed=True)
    for then in (sizes(1, 2), [*sizes(1, 2), "--virtual", 4], sizes(2, 1)):
        step = died[0][-1]["died"]
        words = [*then, "--steps", step + 1, *layers, step + 1]
        now = stores[0].train(2, *words, script=SCRIPT, killed=True)
        for was, records in zip(died, now, strict=True):
            assert records[0]["restored"] == step
            assert records[1]["state"] == was[-1]["state"]
            assert records[1]["own"] == was[-1]["own"] or then == sizes(2, 1)
        died = now


def test_streams_stay_with_their_place_under_another_number_of_replicas(stores):
    died = stores[0].train(4, *sizes(2, 1), "--die-after", 2, script=SCRIPT, killed=True)
    now = stores[0].train(2, *sizes(2, 1), "--steps", 3, script=SCRIPT)
    for was, records in zip(died, now):  # ranks of tensor parallelism come first
        assert records[0] == {"restored": was[-1]["died"], "reshaped_from": 4, "log": []}
        assert records[1] == {name: was[-1][name] for name in BOTH}
    assert now[0][1]["own"] != now[1][1]["own"]


@pytest.mark.parametrize(
    "words, then",
    [([], (4, 1, 2)), (["--swiglu"], (2, 1, 1)), (["--untied"], (2, 2, 1)),
     (["--fp32"], (4, 1, 2)), (["--sequence-parallel"], (4, 2, 2)), (["--fused-adam"], (4, 1, 2))],
    ids=named,
)
def test_it_goes_on_as_from_its_own_checkpoint(stores, words, then, tmp_path):
    words = [*words, "--dropout", 0]
    world, *shape = then
    saves = ["--die-after", 3, "--save", tmp_path]
    saved = stores[0].train(4, *sizes(2, 1), *words, *saves, script=SCRIPT)
    (step,) = [record["died"] for record in saved[0] if "died" in record]
    ends = ["--steps", step + 2, "--seed-anew"]
    restored = stores[0].train(world, *sizes(*shape), *words, *ends, script=SCRIPT)
    loads = ["--load", tmp_path, "--alone"]
    loaded = stores[1].train(world, *sizes(*shape), *words, *ends, *loads, script=SCRIPT)
    for mine, theirs in zip(restored, loaded, strict=True):
        assert mine[0]["restored"] == step
        assert losses(mine) == losses(theirs)
        assert mine[1]["state"] == theirs[0]["state"]
        assert mine[-1]["final"] == theirs[-1]["final"]
        assert mine[-1]["final"]["adam_steps"] == [step + 2]


def losses(records):
    return [record["losses"] for record in records if "losses" in record]


def test_what_is_loaded_from_files_is_what_the_next_snapshot_has(stores, tmp_path):
    words = [*sizes(1, 1), "--dropout", 0, "--steps", 9]
    saves = ["--die-after", 3, "--save", tmp_path]
    saved = stores[0].train(2, *words, *saves, script=SCRIPT)
    (step,) = [record["died"] for record in saved[0] if "died" in record]
    # Beside a state that was restored, and moments that are captured already.
    dies = ["--load-at", step + 2, "--load", tmp_path, "--die-after", step + 3]
    before = stores[0].train(2, *words, *dies, script=SCRIPT, killed=True)
    after = stores[0].train(2, *words, script=SCRIPT)
    for was, now in zip(before, after, strict=True):
        assert [r["state"]["adam_steps"] for r in was if "loaded" in r] == [[step]]
        assert was[-1]["died"] == now[0]["restored"] >= step + 3
        assert now[1] == {name: was[-1][name] for name in BOTH}
        assert now[1]["state"]["adam_steps"] == [now[0]["restored"] - 2]


# --- what it costs ---


def test_a_snapshot_describes_no_tensors_anew(stores):
    # Of 2,316 tensors the least that a call took was 0.6 ms, on cores that nothing else used.
    words = [*sizes(1, 1), "--layers", 64, "--steps", 30, "--alone", "--time"]
    (records,) = stores[0].train(1, *words, script=SCRIPT)
    assert records[-1]["tensors"] >= 2000
    # Before there is optimizer state, and with it.
    assert records[-1]["registrations"] <= 2, records[-1]


# --- megatron.training ---

PRETRAIN = SCRIPT.with_name("mcore_pretrain.py")
SCHEDULE = "--step-batch-size-schedule"  # of samples, from numbers of tokens on: 8 each
FROM_CHECKPOINT = "--use-checkpoint-opt_param-scheduler"


@pytest.mark.parametrize(
    "world, tp, pp, words",
    [(4, 2, 1, []), (4, 1, 2, ["--every", 2]), (2, 1, 1, [SCHEDULE, "0:4 128:8"])],
    ids=named,
)
def test_pretrain_killed_and_resumed(stores, world, tp, pp, words):
    words = [*sizes(tp, pp), *words]
    alone = stores[0].train(world, *words, "--alone", script=PRETRAIN)
    before = stores[1].train(world, *words, "--die-after", 3, script=PRETRAIN, killed=True)
    # The first attempt of a job has one seed, the next another.
    undisturbed = Store()
    try:
        attached = undisturbed.train(world, *words, script=PRETRAIN)
    finally:
        undisturbed.close()
    after = stores[1].train(world, *words, script=PRETRAIN)
    assert attached == alone
    for was, died, now in zip(attached, before, after, strict=True):
        begun, *rest = now
        end = died[-1]
        assert begun["begins"] == end["died"] >= 3 and end["problem"] == ""
        assert {name: begun[name] for name in BOTH} == {name: end[name] for name in BOTH}
        # Losses, samples consumed and operations, and all that the end has.
        assert rest == was[-len(rest):] and 1 < len(rest) < len(was) - 1


def test_pretrain_goes_on_under_other_sizes_and_over_files(stores, tmp_path):
    stores[0].train(4, *sizes(2, 1), "--save", tmp_path, "--alone", script=PRETRAIN)
    loads = ["--load", tmp_path]
    died = stores[1].train(4, *sizes(2, 1), *loads, "--die-after", 4, script=PRETRAIN, killed=True)
    assert [records[0]["begins"] for records in died] == [2] * 4
    now = stores[1].train(2, *sizes(1, 2), *loads, script=PRETRAIN)
    for records in now:
        assert records[0]["begins"] == died[0][-1]["died"] >= 4
        assert records[0]["consumed"] == 4 * records[0]["begins"]
        assert records[0]["state"] == died[0][-1]["state"]
    lines = [line for records in now for line in records[0]["log"]]
    assert len(lines) == 2 and "in memory replaces iteration 2, which was loaded from" in lines[-1]


def test_pretrain_goes_on_from_files_that_are_newer(stores, tmp_path):
    stores[0].train(2, *sizes(1, 1), "--save", tmp_path, "--alone", script=PRETRAIN)
    loads = ["--load", tmp_path]
    stores[1].train(2, *sizes(1, 1), "--die-after", 1, script=PRETRAIN, killed=True)
    newer = stores[1].train(2, *sizes(1, 1), *loads, "--die-after", 4, script=PRETRAIN, killed=True)
    for records in newer:
        assert (records[0]["begins"], records[0]["consumed"]) == (2, 8)
    lines = [line for records in newer for line in records[0]["log"]]
    assert len(lines) == 1 and "is newer than iteration 1 in memory: training goes" in lines[0]
    after = stores[1].train(2, *sizes(1, 1), *loads, script=PRETRAIN)
    for died, records in zip(newer, after, strict=True):
        assert records[0]["begins"] == died[-1]["died"] >= 4
        assert records[0]["state"] == died[-1]["state"]


def test_pretrain_goes_on_with_more_replicas_than_its_first_batch_suffices_for(stores):
    words = [*sizes(1, 1), "--steps", 9, SCHEDULE, "0:1 32:4", FROM_CHECKPOINT]

    def refused(store, consumed):
        for (record,) in store.train(2, *words, script=PRETRAIN):
            assert record["error"] == "FailedPrecondition"
            expected = (
                f"the global batch size at {consumed} samples consumed: needed at least "
                "micro_batch_size (1) * data_parallel_size (2), found 1: start fewer replicas"
            )
            assert record["message"] == expected

    def died(step):
        (records,) = stores[1].train(1, *words, "--die-after", step, script=PRETRAIN, killed=True)
        return records[-1]

    refused(stores[0], 0)
    refused(stores[1], died(1)["died"])
    end = died(6)
    for records in stores[1].train(2, *words, script=PRETRAIN):
        begun, *_, final = records
        assert begun["begins"] == end["died"] and begun["state"] == end["state"]
        assert begun["consumed"] == 4 + 4 * (end["died"] - 4)
        assert final["final"]["adam_steps"] == [9]


def test_pretrain_begins_once_more_in_a_process_in_which_it_failed(stores, tmp_path):
    words, loads = sizes(1, 1), ["--load", tmp_path]
    stores[0].train(1, *words, "--save", tmp_path, "--alone", script=PRETRAIN)
    (alone,) = stores[0].train(1, *words, *loads, "--alone", script=PRETRAIN)
    stores[1].train(1, *words, "--die-after", 1, script=PRETRAIN, killed=True)
    # It has restored iteration 1 before, with its random streams, and goes on from iteration 2.
    (again,) = stores[1].train(1, *words, *loads, "--again", script=PRETRAIN)
    assert "is newer than iteration 1 in memory" in again[0].pop("log")[0]
    assert alone[0].pop("log") == [] and again == alone


def test_files_are_written_before_pretrain_ends_unprotected(stores, tmp_path):
    words = [*sizes(1, 1), "--save", tmp_path, "--unprotected-at", 2]
    (records,) = stores[0].train(1, *words, script=PRETRAIN)
    assert records[-1]["error"] == "Unprotected"
    assert (tmp_path / "iter_0000002").is_dir()


@pytest.mark.parametrize("word", ["--skip-train", "--freeze-all-layers"])
def test_nothing_is_attached_where_nothing_is_trained(stores, word):
    (records,) = stores[0].train(1, *sizes(1, 1), word, script=PRETRAIN)
    assert not any("error" in record or "begins" in record for record in records)


LOGITS = ["--logits-save-dir", "/none", "--logits-save-top-k", 2, "--async-save",
          "--use-persistent-ckpt-worker", "--async-strategy", "mcore"]


@pytest.mark.parametrize(
    "words, error, message",
    [
        (["--twice"], "FailedPrecondition", "unreft.megatron.install() was called in this process"),
        (["--every=0"], "InvalidArgument", "every: needed a number of iterations above 0, found 0"),
        (["--another"], "FailedPrecondition", "needed a function 'train', found none"),
        (["--dataloader-type", "external"], "FailedPrecondition", "where such a loader was is not"),
        (LOGITS, "FailedPrecondition", "--logits-save-dir: logits wait in the process"),
    ],
    ids=named,
)
def test_what_install_is_given(stores, words, error, message):
    (records,) = stores[0].train(1, *sizes(1, 1), *words, script=PRETRAIN)
    (found,) = [record for record in records if "error" in record]
    assert found["error"] == error and message in found["message"]


# --- the example ---

EXAMPLE = cli_testing.ROOT / "examples/megatron/train.py"
AS_IT_IS = as_it_is("import mcore_cpu; mcore_cpu.install()")


@pytest.mark.short
def test_the_example_killed_and_started_again(clis):
    check_killed_and_started_again(clis, AS_IT_IS, [EXAMPLE, "--tp", 1, "--steps", 8], lines=8)


def test_a_dry_run_of_the_example_says_what_it_would_restore(clis, tmp_path):
    file = tmp_path / "layout.json"
    words = ["--ranks", 2, "--dry-run", file, "--", *AS_IT_IS]
    job = clis[0].launch(*words, EXAMPLE, "--tp", 2)
    assert job.process.wait(EXAMPLE_S) == 0, job.output()
    layout = json.loads(file.read_text())
    tensors = {name: (dtype, shape) for name, dtype, shape in layout["tensors"]}
    weight = "decoder.layers.mlp.linear_fc2.weight"
    assert tensors[f"master/{weight}"] == tensors[f"optim/{weight}/*"] == (
        "float32", [4, 32, 128]
    )
    padded = {layout["tensors"][index][0] for index in layout["allow_shape_mismatch"]}
    embedding = "embedding.word_embeddings.weight"
    assert padded == {f"master/{embedding}", f"optim/{embedding}/*"}
    assert [rank["rank"] for rank in layout["ranks"]] == [0, 1]


# --- what is refused ---


def test_a_state_of_another_model_is_refused_and_kept(stores):
    died = stores[0].train(2, *sizes(1, 1), "--die-after", 2, script=SCRIPT, killed=True)
    others = {
        "stored of Adam or AdamW of torch, and this is FusedAdam": ["--fused-adam"],
        "stored of bfloat16 weights, and this is one of float32 weights": ["--fp32"],
        r"14 were stored .* another shape or type: 'master/.* and 4 more; 'master/\S+' is "
        r"float32\[\d.*\] there, found float32": ["--width", 32],
        r"12 were stored with another shape .*\[4, 16\] there, found float32\[2": ["--layers", 2],
        "lacks 1 of this program: 'master/output_layer.weight'. Attach the same": ["--untied"],
        r"of the stored tensors, \d+ are none .*bias": ["--swiglu"],
    }
    for expected, other in others.items():
        refused = stores[0].train(2, *sizes(1, 1), *other, script=SCRIPT)
        errors = [records[0]["error"] for records in refused]
        assert "FailedPrecondition" in errors and set(errors) <= {"FailedPrecondition", "Aborted"}
        first = refused[errors.index("FailedPrecondition")][0]
        assert re.search(expected, first["message"]), first["message"]
    after = stores[0].train(2, *sizes(1, 1), script=SCRIPT)
    assert [records[0]["restored"] for records in after] == [died[0][-1]["died"]] * 2


@pytest.fixture(scope="module")
def told():
    store = Store()
    try:
        (records,) = store.train(1, script=SCRIPT.with_name("mcore_refusals.py"))
    finally:
        store.close()
    return {record.pop("name"): record for record in records}


@pytest.mark.short
@pytest.mark.parametrize(
    "name",
    [
        "a GPTModel as model chunk", "a Linear", "mixture of experts",
        "expert parallelism", "context parallelism", "{'tp': 1, 'pp': 1, 'dp': 2} of 1 ranks",
        "multi-token prediction", "fp8", "fp4", "quant_recipe", "use_kitchen",
        "use_kitchen_attention", "an optimizer that steps on nothing", "fp16", "Megatron-FSDP",
        "tensor_parallel_num_weight_shards", "qk_clip",
        "num_distributed_optimizer_instances", "use_layer_wise_distributed_optimizer",
        "optimizer_cpu_offload", "optimizer_cuda_graph", "overlap_param_gather_with_optimizer_step",
        "use_precision_aware_optimizer", "the optimizer SGD", "use_cudagraphable_rng",
        "the optimizers Other",
    ],
)
def test_what_was_not_tried_is_refused_by_name(told, name):
    assert told[name]["error"] == "FailedPrecondition"
    expected = f"training with {name} is not supported: tried are a GPTModel"
    assert expected in told[name]["message"]


@pytest.mark.short
@pytest.mark.parametrize(
    "name, error, message",
    [
        ("a version", "FailedPrecondition", "tried with megatron-core 0.19, .* this is 0.20.1"),
        ("a model", "InvalidArgument", "model_chunks: needed the list .* found a Distributed"),
        ("an optimizer", "InvalidArgument", "get_megatron_optimizer returns, .* found a AdamW"),
        ("other insides", "FailedPrecondition", "what it steps on was not found: AttributeError"),
        ("bf16 main parameters", "FailedPrecondition", "steps on bfloat16 .*, needed float32"),
        ("fp16 of the optimizer", "FailedPrecondition", "training with fp16 is not supported"),
        ("frozen", "FailedPrecondition", "it steps on 1 parameters that require no gradient: 'emb"),
        ("weights cast by Float16Module", None, "^bfloat16$"),
        ("a buffer", "FailedPrecondition", "'mean', a ShardedTensor of the model, is no parameter"),
        ("an extra state", "FailedPrecondition", "_extra_state', a ShardedObject of the model"),
        ("of torch", "InvalidArgument", r"is Megatron's.* unreft.mcore.attach\(model_chunks, opt"),
        ("twice", "FailedPrecondition", "attached in this process already: a process trains one"),
        ("beside", "FailedPrecondition", "uses unreft.mcore.attach in this process"),
        ("rerun", "FailedPrecondition", "is checking a step .* RERUNNING_IN_PLACE"),
        ("after close", None, ""),
        ("counts", "FailedPrecondition", r"needed one count of steps in all .* found \[3, 4\]"),
    ],
)
def test_what_attach_is_given(told, name, error, message):
    assert told[name]["error"] == error
    assert re.search(message, told[name]["message"]), told[name]["message"]
