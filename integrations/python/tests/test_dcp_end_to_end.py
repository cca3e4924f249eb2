"""torch.distributed.checkpoint over a real daemon: saved, killed, and loaded on any layout."""

import dataclasses
import pathlib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from real_store import Store
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

import unreft.dcp

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


class ByRows(DefaultSavePlanner):
    """Saves a matrix as so many boxes as it has rows, all of them this rank's."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        items = [row for item in plan.items for row in self._rows(item)]
        return dataclasses.replace(plan, items=items)

    @staticmethod
    def _rows(item):
        data = item.tensor_data
        for row in range(data.size[0]):
            offsets, sizes = torch.Size([row, 0]), torch.Size([1, data.size[1]])
            yield dataclasses.replace(
                item,
                index=MetadataIndex(item.index.fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=dataclasses.replace(data, chunk=ChunkStorageMetadata(offsets, sizes)),
            )

    def lookup_object(self, index):
        return self.state_dict[index.fqn].narrow(0, index.offset[0], 1)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_several_boxes_of_one_tensor_per_rank(store, monkeypatch):
    monkeypatch.setenv("UNREFT_SOCKET", store.socket)
    monkeypatch.setenv("UNREFT_JOB", store.job)
    monkeypatch.setenv("UNREFT_ATTEMPT", "0")
    state = {"a": torch.arange(12.0).view(4, 3), "b": torch.arange(6.0).view(2, 3)}
    dcp.save(state, storage_writer=unreft.dcp.Writer(7), planner=ByRows())
    unreft.dcp.close()
    monkeypatch.setenv("UNREFT_ATTEMPT", "1")
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(found, storage_reader=unreft.dcp.Reader(7))
    unreft.dcp.close()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
