"""Writer: saves a checkpoint of torch.distributed.checkpoint in the daemons' memory."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from torch.distributed.checkpoint import (
    DefaultSavePlanner,
    Metadata,
    SavePlan,
    SavePlanner,
    StorageWriter,
)
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

import unreft
from unreft.dcp import catalogue, pieces, session
from unreft.dcp.checkpoint_id import is_id, step_of
from unreft.dcp.stager import Stager


# Of a planner, what may make other bytes of the state dict that was staged.
_MAKE_OTHERS = (
    "set_up_planner",
    "create_local_plan",
    "resolve_data",
    "lookup_object",
    "transform_object",
)


class Writer(StorageWriter, AsyncStager):
    """A `StorageWriter`, and the stager of `dcp.async_save` if that is given no other.

    Args:
      checkpoint_id: the step, or a name that ends in its digits. It may come with `dcp.save`
        instead; `async_save` needs it here, since it stages before it tells the writer.
      fresh: whether to save although something is committed that was not loaded in this attempt,
        and which is given up thereby.
      commit_timeout_s: for how long to wait until all ranks have saved and every node has its part
        of the protection.
      options: of `unreft.Client`: socket, job, rank, world, attempt and timeouts.

    Steps ascend within an attempt. All ranks of the job save every checkpoint. With a process group
    they make it together.
    """

    def __init__(
        self,
        checkpoint_id: int | str | os.PathLike | None = None,
        *,
        fresh: bool = False,
        commit_timeout_s: float = 300.0,
        **options: Any,
    ):
        self.checkpoint_id = checkpoint_id
        self._fresh = fresh
        self._commit_timeout_s = commit_timeout_s
        self._options = options
        self._session = session.join(options)

    # --- the stager ---

    should_synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies the state dict into the daemon's memory; returns when its tensors may change."""
        stager = Stager(self.checkpoint_id, fresh=self._fresh, **self._options)
        staged = stager.stage(state_dict)
        self._session.staged[self._step()].writer = self
        return staged

    def synchronize_staging(self) -> None:
        self._session.fence()

    def close(self) -> None:
        """There is nothing to let go: the next writer goes on with the connection."""

    # --- the writer ---

    def reset(self, checkpoint_id: int | str | os.PathLike | None = None) -> None:
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._session.check_staged(self._step())

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._session.check_may_save(self._step(), self._fresh)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if not all(plan.usable for plan in plans):
            raise self._no_caching()
        if len(plans) != self._session.world:
            raise unreft.InvalidArgument(
                f"save of step {self._step()}: needed the plans of all {self._session.world} ranks "
                f"of the job, found {len(plans)}: save without process_group, no_dist and "
                "use_collectives=False"
            )
        shared = catalogue.merged(
            pieces.entries_of(plan, rank) for rank, plan in enumerate(plans)
        )
        return [
            dataclasses.replace(plan, storage_data=shared if rank == 0 else None)
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        own = self._session
        staged = own.take_staged(self._step(), self)
        if getattr(planner, "_enable_plan_caching", False):
            raise self._no_caching()
        if staged is not None:
            self._check_staged(staged, plan, planner)
        else:
            captured = pieces.of_items(plan.items, planner.resolve_data)
            extras = catalogue.RankExtras(captured.values, plan.storage_data)
            own.capture(self._step(), captured, extras)
            own.fence()
        results = [
            WriteResult(
                index=item.index,
                size_in_bytes=pieces.bytes_of(item),
                storage_data=None,
            )
            for item in plan.items
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Waits for the commit."""
        self._session.client.wait_committed(self._step(), self._commit_timeout_s)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return is_id(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=str(self.checkpoint_id))

    def __reduce__(self) -> Any:
        raise unreft.FailedPrecondition(
            "async_save: the daemon's memory is this process's connection: it goes to no other "
            "process. Use async_checkpointer_type=AsyncCheckpointerType.THREAD, the default"
        )

    def _step(self) -> int:
        if self.checkpoint_id is None:
            raise unreft.InvalidArgument(
                "save: needed a step: pass checkpoint_id, or make the writer with it, "
                "unreft.dcp.Writer(step)"
            )
        return step_of(self.checkpoint_id)

    def _check_staged(
        self, staged: session.Staged, plan: SavePlan, planner: SavePlanner
    ) -> None:
        """That what is written is what was staged: a planner may have made something else of it."""
        converts = [
            name
            for name in _MAKE_OTHERS
            if getattr(type(planner), name, None) is not getattr(DefaultSavePlanner, name)
        ]
        if converts:
            raise self._other_than_staged(
                staged, f"the planner {type(planner).__name__} has a {converts[0]} of its own"
            )
        other = [item for item in plan.items if pieces.kind_of(item) not in staged.kinds]
        if other:
            names = ", ".join(sorted({f"'{item.index.fqn}'" for item in other})[:10])
            raise self._other_than_staged(
                staged, f"{len(other)} of {len(plan.items)} items of the plan were not: {names}"
            )

    def _no_caching(self) -> unreft.InvalidArgument:
        return unreft.InvalidArgument(
            f"save of step {self._step()}: a planner with enable_plan_caching is not supported, "
            "since it does not say again what has not changed: leave it out"
        )

    @staticmethod
    def _other_than_staged(staged: session.Staged, what: str) -> unreft.FailedPrecondition:
        return unreft.FailedPrecondition(
            f"save of step {staged.step}: what was staged is to be saved, and {what}. It was "
            "captured as it was staged, and a load gives that back. A planner "
            "that renames or converts what it saves needs a stager that keeps the state dict: pass "
            "async_stager=DefaultStager(...) beside the writer"
        )
