"""Reader: loads a checkpoint of torch.distributed.checkpoint out of the daemons' memory."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, StorageReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

import unreft
from unreft.dcp import session
from unreft.dcp.catalogue import Entry, RankExtras, is_ours
from unreft.dcp.checkpoint_id import is_id, step_of
from unreft.tensor import Tensor
from unreft.torch.shards import device_of, torch_dtype


class Reader(StorageReader):
    """A `StorageReader` of what memory gives back in this attempt, on any number of ranks.

    Args:
      checkpoint_id: the step, or a name that ends in its digits, that must be the one; None:
        whichever it is.
      options: of `unreft.Client`, as of `Writer`.

    With a process group all ranks make it together. `step` is known once something was loaded.
    """

    def __init__(
        self, checkpoint_id: int | str | os.PathLike | None = None, **options: Any
    ):
        self.checkpoint_id = checkpoint_id
        self._session = session.join(options)
        self._extras: dict[int, RankExtras] = {}
        self._catalogue: dict[str, Entry] = {}

    @property
    def step(self) -> int | None:
        """Of the checkpoint that memory gives back; None if nothing was ever committed."""
        decision = self._session.decision()
        return decision.step if decision.restored else None

    def reset(self, checkpoint_id: int | str | os.PathLike | None = None) -> None:
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """`NotFound` when nothing is committed, or another step than is asked for."""
        self._session.check_may_load()
        decision = self._session.decision()
        self._check_step(decision)
        # Every rank of a version has extras, and the catalogue is rank 0's.
        first = self._session.client.restore_extras(0)
        if not is_ours(first):
            raise unreft.FailedPrecondition(
                f"load of step {decision.step}: it was not saved by unreft.dcp: restore it as it "
                "was saved, with unreft.torch.attach, or give it up with 'unreft fresh-start'"
            )
        self._extras = {0: RankExtras.decode(first, 0)}
        if self._extras[0].catalogue is None:
            raise unreft.DataLoss(f"load of step {decision.step}: rank 0 has no catalogue")
        self._catalogue = self._extras[0].catalogue
        kinds = {tensor.name: tensor for tensor in decision.tensors}
        return Metadata(
            state_dict_metadata={
                name: _storage_metadata(name, entry, kinds.get(name))
                for name, entry in self._catalogue.items()
            },
            planner_data={
                name: entry.path
                for name, entry in self._catalogue.items()
                if entry.path is not None
            },
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @torch.no_grad()
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads into the tensors of the planner where they lie, each block verified."""
        kinds = {tensor.name: tensor for tensor in self._session.decision().tensors}
        targets: list[Tensor] = []
        loaded: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._value(item.storage_index.fqn)))
                continue
            stored = kinds[item.storage_index.fqn]
            target = planner.resolve_tensor(item).detach()
            memory = _memory_for(target, stored)
            targets.append(_target(item, stored, memory))
            loaded.append((item, target, memory))
        self._session.client.restore_read(targets)
        for item, target, memory in loaded:
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)
        self._session.loaded()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return is_id(checkpoint_id)

    def _check_step(self, decision: unreft.Decision) -> None:
        wanted = None if self.checkpoint_id is None else step_of(self.checkpoint_id)
        if not decision.restored:
            raise unreft.NotFound(
                f"load{'' if wanted is None else f' of step {wanted}'}: nothing is committed in "
                "this job's memory"
            )
        if wanted is not None and wanted != decision.step:
            raise unreft.NotFound(
                f"load of step {wanted}: memory gives back step {decision.step} in this attempt. "
                "An older one that is pinned can be had with "
                f"'unreft rewind --to {wanted}' before the job is started"
            )

    def _value(self, name: str) -> bytes:
        rank = self._catalogue[name].value_of
        if rank not in self._extras:
            extras = self._session.client.restore_extras(rank)
            self._extras[rank] = RankExtras.decode(extras or b"", rank)
        try:
            return self._extras[rank].values[name]
        except KeyError:
            raise unreft.DataLoss(f"value '{name}': rank {rank} has not stored it") from None


def _storage_metadata(name: str, entry: Entry, stored: Tensor | None):
    """A tensor is one chunk, whoever has it: what is read of it is any box."""
    if entry.value_of is not None:
        return BytesStorageMetadata()
    if entry.empty is not None:
        dtype, shape = getattr(torch, entry.empty[0]), torch.Size(entry.empty[1])
    elif stored is not None:
        dtype, shape = torch_dtype(stored.dtype), torch.Size(stored.global_shape)
    else:
        raise unreft.DataLoss(f"tensor '{name}': it is in the catalogue, and nobody stored it")
    chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype), size=shape, chunks=[chunk]
    )


def _memory_for(target: torch.Tensor, stored: Tensor) -> torch.Tensor:
    """The target itself, or what is copied to it: of another type, or not in one piece."""
    is_plain = (
        target.dtype == torch_dtype(stored.dtype)
        and target.is_contiguous()
        and target.device.type in ("cpu", "cuda")
    )
    if is_plain:
        return target
    device = target.device if target.device.type in ("cpu", "cuda") else "cpu"
    return torch.empty(target.shape, dtype=torch_dtype(stored.dtype), device=device)


def _target(item: ReadItem, stored: Tensor, memory: torch.Tensor) -> Tensor:
    device, index = device_of(memory)
    return Tensor(
        name=stored.name,
        dtype=stored.dtype,
        global_shape=stored.global_shape,
        offset=tuple(item.storage_offsets),
        extent=tuple(item.lengths),
        data=memory.data_ptr(),
        device=device,
        device_index=index,
    )
