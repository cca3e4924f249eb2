"""A StatefulDataLoader as an extra: no sample is trained twice or left out."""

import pathlib

import pytest
from real_store import Store

SCRIPT = pathlib.Path(__file__).with_name("loader_trainer.py")


def trained(records):
    return {record["step"]: record["numbers"] for record in records if "step" in record}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("die_after", [3, 5, 7])
def test_killed_and_resumed_is_as_if_it_had_not_been(workers, die_after):
    stores = [Store(), Store()]
    try:
        words = ["--workers", workers]
        (undisturbed,) = stores[0].train(1, *words, script=SCRIPT)
        dies = [*words, "--die-after", die_after]
        (before,) = stores[1].train(1, *dies, script=SCRIPT, killed=True)
        (after,) = stores[1].train(1, *words, script=SCRIPT)
    finally:
        for store in stores:
            store.close()
    died = before[-1]["step"]
    assert after[0] == {"restored": died}
    expected = {step: of for step, of in trained(undisturbed).items() if step > died}
    assert trained(after) == expected
    assert after[-1] == undisturbed[-1]
