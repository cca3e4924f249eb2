"""Training under accelerate and the Trainer of Hugging Face: killed, restored, equal."""

import pathlib

import pytest
from real_store import Store

SCRIPT = pathlib.Path(__file__).with_name("wrapped_trainer.py")


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def final(records):
    return next(record["final"] for record in records if "final" in record)


@pytest.mark.parametrize("kind", ["accelerate", "trainer"])
@pytest.mark.parametrize("die_after", [3, 5], ids=["in an epoch", "at its end"])
def test_killed_and_resumed_is_as_if_it_had_not_been(store, kind, die_after):
    reference = Store()
    try:
        (undisturbed,) = reference.train(1, kind, script=SCRIPT)
    finally:
        reference.close()
    (before,) = store.train(1, kind, "--die-after", die_after, script=SCRIPT, killed=True)
    (after,) = store.train(1, kind, script=SCRIPT)
    assert before[-1]["died"] >= die_after
    assert final(after) == final(undisturbed)


def test_a_restore_inside_the_trainer_that_it_does_not_know_of_is_refused(store):
    (before,) = store.train(1, "callback", "--die-after", 3, script=SCRIPT, killed=True)
    (after,) = store.train(1, "callback", script=SCRIPT)
    assert after[-1]["error"] == "FailedPrecondition"
    assert f"step {before[-1]['died']} is stored" in after[-1]["message"]
    assert "unreft.torch.peek()" in after[-1]["message"]
