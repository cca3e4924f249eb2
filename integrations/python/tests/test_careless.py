"""Programs that forget the fence: no version is torn, and none goes unsaid."""

import pathlib

import pytest
from real_store import Store

SCRIPT = pathlib.Path(__file__).with_name("careless_trainer.py")


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def lived_and_restored(store, kind, *more):
    (before,) = store.train(1, kind, "--die", *more, script=SCRIPT, killed=True)
    (after,) = store.train(1, kind, script=SCRIPT)
    restored = after[-1]
    # Every element has the value of the step: of what was waited for at the end, of the last one.
    assert len(restored["values"]) == 1, restored
    return before, restored


@pytest.mark.parametrize("kind", ["sgd", "sgd foreach", "sgd fused", "own optimizer"])
def test_steps_of_torch_need_no_fence(store, kind):
    before, restored = lived_and_restored(store, kind)
    assert before[-1] == {"committed": True}
    assert restored["restored"] >= 30 and restored["values"] == [30.0]
    assert not any("line" in record for record in before), before


@pytest.mark.parametrize("kind", ["plain", "data", "copy", "thread", "replaced step"])
def test_what_is_written_by_hand_is_noticed(store, kind):
    before, restored = lived_and_restored(store, kind)
    assert restored["values"] == [float(restored["restored"])]
    said = [record["line"] for record in before if "line" in record]
    assert any("fence()" in line for line in said), said
    assert not next(r for r in before if "protecting" in r)["protecting"]


@pytest.mark.parametrize("kind", ["plain", "thread"])
def test_a_fence_before_it_protects(store, kind):
    before, restored = lived_and_restored(store, kind, "--fence")
    assert before[-1] == {"committed": True}
    assert restored["values"] == [30.0]
    assert not any("line" in record for record in before), before
