"""Training under accelerate and the Trainer of Hugging Face: killed, restored, equal."""

import json
import pathlib
import re
import shutil

import pytest
from real_store import Store

SCRIPT = pathlib.Path(__file__).with_name("wrapped_trainer.py")


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def final(records):
    return next(record for record in records if "final" in record)


def begins_after(records):
    """The step, if it trains at all."""
    return next((each["begins_after"] for each in records if "begins_after" in each), None)


@pytest.mark.parametrize(
    "die_after",
    [3, 5, 11],
    ids=["trainer in an epoch", "trainer at its end", "trainer before its last"],
)
def test_killed_and_resumed_is_as_if_it_had_not_been(store, die_after):
    reference = Store()
    try:
        (undisturbed,) = reference.train(1, "attached", script=SCRIPT)
    finally:
        reference.close()
    (before,) = store.train(1, "attached", "--die-after", die_after, script=SCRIPT, killed=True)
    (after,) = store.train(1, "attached", script=SCRIPT)
    assert before[-1]["died"] >= die_after
    assert (begins_after(undisturbed), begins_after(after)) == (0, before[-1]["died"])
    assert final(after) == final(undisturbed)


def test_a_run_that_has_ended_is_not_trained_on(store):
    (ended,) = store.train(1, "attached", script=SCRIPT)
    (again,) = store.train(1, "attached", script=SCRIPT)
    assert final(again)["final"] == final(ended)["final"]
    assert begins_after(again) == 12 and len(again) == len(ended)


def test_a_run_that_was_stopped_before_its_end_goes_on(store):
    reference = Store()
    try:
        (undisturbed,) = reference.train(1, "attached", script=SCRIPT)
    finally:
        reference.close()
    store.train(1, "attached", "--stop-at", 7, script=SCRIPT)
    (after,) = store.train(1, "attached", script=SCRIPT)
    assert begins_after(after) == 7
    assert final(after) == final(undisturbed)


def test_checkpoints_on_disk_go_on_beside_it(store, tmp_path):
    saved = ["--save-in", tmp_path / "saved"]
    reference = Store()
    try:
        (undisturbed,) = reference.train(1, "attached", "--save-in", tmp_path, script=SCRIPT)
    finally:
        reference.close()
    store.train(1, "attached", *saved, "--die-after", 5, script=SCRIPT, killed=True)
    (after,) = store.train(1, "attached", *saved, script=SCRIPT)
    assert begins_after(after) >= 5
    assert final(after) == final(undisturbed)
    states = [
        json.loads((top / "checkpoint-12/trainer_state.json").read_text())
        for top in (tmp_path, tmp_path / "saved")
    ]
    # As if nobody had killed it, but for how long it took.
    timed = re.compile("runtime|per_second")
    for state in states:
        for entry in state["log_history"]:
            for name in filter(timed.search, list(entry)):
                del entry[name]
    assert states[0] == states[1]


def test_a_checkpoint_on_disk_that_is_newer_is_gone_on_from(store, tmp_path):
    saved = tmp_path / "saved"
    reference = Store()
    try:
        (undisturbed,) = reference.train(1, "attached", "--save-in", tmp_path, script=SCRIPT)
    finally:
        reference.close()
    store.train(1, "attached", "--die-after", 1, script=SCRIPT, killed=True)
    shutil.copytree(tmp_path / "checkpoint-4", saved / "checkpoint-4")
    words = ["--save-in", saved, "--resume"]
    (after,) = store.train(1, "attached", *words, "--die-after", 7, script=SCRIPT, killed=True)
    assert begins_after(after) == 4
    shutil.rmtree(saved / "checkpoint-6")  # what is left is older than what is in memory
    (last,) = store.train(1, "attached", *words, script=SCRIPT)
    assert begins_after(last) == after[-1]["died"] >= 7
    assert final(last)["final"][0] == final(undisturbed)["final"][0]


def test_another_number_of_ranks_is_refused(store):
    store.train(2, "attached", "--die-after", 3, script=SCRIPT, killed=True)
    (after,) = store.train(1, "attached", script=SCRIPT)
    assert after[-1]["error"] == "FailedPrecondition"
    assert "ranks: what is committed was trained with 2, found 1" in after[-1]["message"]


def test_a_position_in_other_batches_is_refused(store):
    store.train(1, "attached", "--die-after", 3, script=SCRIPT, killed=True)
    (after,) = store.train(1, "attached", "--accumulated", 2, script=SCRIPT)
    assert after[-1]["error"] == "FailedPrecondition"
    assert "gradient_accumulation_steps: what is committed was trained with 1, found 2" in (
        after[-1]["message"]
    )


def test_a_trainer_of_several_ranks(store):
    reference = Store()
    try:
        undisturbed = reference.train(2, "attached", script=SCRIPT)
    finally:
        reference.close()
    store.train(2, "attached", "--die-after", 4, script=SCRIPT, killed=True)
    after = store.train(2, "attached", script=SCRIPT)
    assert [begins_after(records) >= 4 for records in after] == [True, True]
    assert [final(records) for records in after] == [final(records) for records in undisturbed]


@pytest.mark.parametrize("kind", ["accelerate", "accelerate-fsdp2"])
def test_accelerate_goes_on_with_another_number_of_ranks(store, kind):
    batch, epoch_size = 4, 48
    trained, repeated, before, source = {}, 0, None, None
    # Mostly the first is killed in an epoch and the second at its end, where the batches of one
    # number of ranks are those of the next; after a skipped snapshot it is elsewhere.
    for world, *dies in [(4, "--die-after", 4), (2, "--die-after", 8), (3,)]:
        after = store.train(world, kind, *dies, script=SCRIPT, killed=bool(dies))
        for begun, *steps, ended in after:
            if before:
                assert begun == {"restored": before, "reshaped_from": source}
            assert ended == after[0][-1]
            for step in steps:
                trained.setdefault(step["epoch"], []).extend(step["numbers"])
        repeated += before["seen"] % (batch * world) if before else 0
        before, source = ended.get("state"), world
    assert ended["final"]["step"] == 12
    assert sum(len(of) - len(set(of)) for of in trained.values()) == repeated
    assert all(len(set(trained[epoch])) == epoch_size for epoch in range(max(trained)))


def test_a_restore_inside_the_trainer_that_it_does_not_know_of_is_refused(store):
    (before,) = store.train(1, "callback", "--die-after", 3, script=SCRIPT, killed=True)
    (after,) = store.train(1, "callback", script=SCRIPT)
    assert after[-1]["error"] == "FailedPrecondition"
    assert f"step {before[-1]['died']} is stored" in after[-1]["message"]
    assert "unreft.torch.peek()" in after[-1]["message"]
