"""torch.distributed.checkpoint over a real daemon: saved, killed, and loaded on any layout."""

import pathlib

import pytest
from real_store import Store

TRAINER = pathlib.Path(__file__).with_name("dcp_trainer.py")


@pytest.fixture
def store():
    made = Store("--restore-wait-s", "20")
    yield made
    made.close()


def test_a_job_that_is_killed_goes_on_as_if_it_were_not(store):
    undisturbed = store.train(2, "--steps", 4, "--fresh", "--no-load", script=TRAINER)
    digests = {record["step"]: record["digest"] for record in undisturbed[0] if "step" in record}
    other = Store("--restore-wait-s", "20")
    try:
        other.train(2, "--steps", 9, "--die-after", 2, script=TRAINER, killed=True)
        for records in other.train(2, "--steps", 4, script=TRAINER):
            assert records[0] == {"loaded": 2, "digest": digests[2]}
            assert records[-1] == {"step": 4, "digest": digests[4]}
    finally:
        other.close()


@pytest.mark.parametrize("how", ["save", "async", "stager", "default"])
@pytest.mark.parametrize("layout", ["fsdp", "ddp"])
def test_each_way_to_save(store, how, layout):
    flags = ["--how", how, "--layout", layout]
    before = store.train(
        2, "--steps", 9, "--die-after", 3, *flags, script=TRAINER, killed=True
    )
    for rank, records in enumerate(store.train(2, "--steps", 5, *flags, script=TRAINER)):
        assert records[0] == {"loaded": 3, "digest": before[rank][-1]["digest"]}
        assert records[-1]["step"] == 5


@pytest.mark.parametrize("how", ["save", "async"])
@pytest.mark.parametrize(
    "layouts",
    [
        ((4,), (2,), (3,)),
        ((2, "--layout", "ddp"), (3, "--layout", "ddp")),
        ((4, "--tensor-parallel", 2), (4, "--tensor-parallel", 4), (2, "--tensor-parallel", 2)),
    ],
    ids=["fsdp", "ddp", "tensor"],
)
def test_another_layout(store, how, layouts):
    before = None
    for number, (world, *layout) in enumerate(layouts, 1):
        dies = ["--die-after", 2 * number, "--steps", 2 * number + 4, "--how", how]
        records = store.train(world, *dies, *layout, script=TRAINER, killed=True)
        for of_rank in records if before else ():
            assert of_rank[0] == {"loaded": before["step"], "digest": before["digest"]}
        before = records[0][-1]


def test_what_is_committed_is_loaded_or_given_up_by_name(store):
    store.train(2, "--steps", 9, "--die-after", 2, script=TRAINER, killed=True)
    for records in store.train(2, "--steps", 4, "--no-load", script=TRAINER):
        assert records[-1]["error"] == "CheckpointException"
        assert "step 2 is committed, and was not loaded" in records[-1]["message"]
        assert "fresh=True" in records[-1]["message"]
    # It is still there.
    for records in store.train(2, "--steps", 3, script=TRAINER):
        assert records[0]["loaded"] == 2
    begun = ["--no-load", "--fresh"]
    store.train(2, "--steps", 9, "--die-after", 1, *begun, script=TRAINER, killed=True)
    for records in store.train(2, "--steps", 2, script=TRAINER):
        assert records[0]["loaded"] == 1


def test_one_rank_alone_is_refused(store):
    first, second = store.train(2, "--steps", 1, "--rank-0-alone", script=TRAINER)
    assert "needed the plans of all 2 ranks of the job, found 1" in first[-1]["message"]
    assert second[-1]["step"] == 1
