"""Reshaped: what a version has for this rank, where another number of ranks stored it.

Tensors that all ranks knew by one name are read by the boxes that ranks have now. The rest was
stored rank by rank, and each part of it has its own rule for how one rank's comes from all ranks'.
Whatever has none is refused by name, before anything that lives is overwritten: to go on with
parts of one rank's state for that of all would be a silent error.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any

import unreft
from unreft.errors import FailedPrecondition
from unreft.torch import joined_scalars, listing, rng, safe_pickle, streams
from unreft.torch.captured_state import CapturedState
from unreft.torch.device_extras import DeviceExtras
from unreft.torch.extras import Extras
from unreft.torch.mesh_place import Place, stored_places
from unreft.torch.own_tensors import OwnTensors
from unreft.torch.shards import Bound, own_of
from unreft.torch.stored_state import read_record

_OF_A_SET = re.compile(r"group\d+/")


class Reshaped:
    """`tensors` and `record` as of a `StoredState`, made from those of all source ranks."""

    level = logging.INFO

    def __init__(
        self,
        client: Any,
        decision: unreft.Decision,
        state: CapturedState,
        extras: Extras,
        *,
        with_rng: bool,
        buffers: str,
    ):
        """`buffers`: "equal", or "first": those of rank 0 where they differ."""
        self._client = client
        self._decision = decision
        self._state = state
        self._buffers = buffers
        self._of_rank_0: list[str] = []  # buffers
        self.reshaped_from = decision.source_world
        _refuse_sets([tensor.name for tensor in decision.tensors], "stored", self.reshaped_from)
        _refuse_sets(state.names(), "live", self.reshaped_from)
        records = [self._record_of(rank, extras) for rank in range(self.reshaped_from)]
        _refuse_derived(records, decision.step)
        places = stored_places([record.get("mesh") for record in records])
        self._own = OwnTensors(
            decision.tensors, self.reshaped_from, state.world, state.own, places, state.place
        )
        self.tensors = self._own.as_own()
        self._streams = _join_streams(records, state, places) if with_rng else None
        scalars = joined_scalars.join([record["scalars"] for record in records])
        stored = [record["extras"] for record in records]
        joined, self._by_function = extras.join(stored, state.rank, state.world)
        self.record = {
            "scalars": scalars,
            "extras": joined,
            "rng": self._streams.state if self._streams else None,
        }

    def to_read(self, bounds: list[Bound]) -> list[Bound]:
        """The live tensors, with the names by which they are read, after the last checks."""
        self._of_rank_0 = self._own.check_alike(self._client, bounds, self._buffers)
        return self._own.to_read(bounds)

    @property
    def summary(self) -> str:
        """After `to_read`: what was done, in one line."""
        world, source_world = self._state.world, self.reshaped_from
        parts = []
        if self._streams and self._streams.shared:
            parts.append(f"random streams that all ranks share: {', '.join(self._streams.shared)}")
        if self._streams and self._streams.by_rank:
            by_rank = f"random streams by rank: {', '.join(self._streams.by_rank)}"
            new = list(range(source_world, world))
            parts.append(by_rank + (f", begun anew on {listing.ranks(new)}" if new else ""))
        if self._streams:
            for said, by_mesh in self._streams.by_mesh.items():
                parts.append(f"random streams by the mesh: {', '.join(by_mesh)}, {said}")
        if self._own.by_mesh:
            parts.append(f"tensors of ranks' own by the mesh: {listing.names(self._own.by_mesh)}")
        if self._of_rank_0:
            parts.append(f"buffers of rank 0: {listing.names(self._of_rank_0)}")
        if self._by_function:
            parts.append(f"extras by their functions: {listing.names(self._by_function)}")
        step = self._decision.step
        return "; ".join([f"step {step} of {source_world} ranks is restored by {world}", *parts])

    def _record_of(self, rank: int, extras: Extras) -> dict[str, Any]:
        decision = self._decision
        without = (
            f"step {decision.step}: nothing but tensors is stored of rank {rank} of "
            f"{decision.source_world}, whose extras are needed too"
        )
        data = self._client.restore_extras(rank)
        aside = DeviceExtras(own_of(rank))
        return read_record(self._client, decision, data, without, aside, extras)


def _join_streams(
    records: Sequence[dict[str, Any]], state: CapturedState, places: Sequence[Place] | str
) -> streams.Streams | None:
    now = streams.Now(state.rank, rng.current_device(), state.place)
    joined = streams.join([record["rng"] for record in records], now, places)
    if joined:
        rng.check_devices(joined.state)
    return joined


def _refuse_sets(names: Sequence[str], side: str, source_world: int) -> None:
    if found := [name for name in names if _OF_A_SET.match(name)]:
        raise FailedPrecondition(
            f"of the {side} tensors, {len(found)} are those of a set of ranks that are not all: "
            f"{listing.names(found)}. Which sets hold what (stages of a pipeline, groups of tensor "
            "parallelism or of DistributedDataParallel) is known in a world of as many ranks "
            f"alone: restart with {source_world} ranks, or give that state up with "
            "`unreft fresh-start`"
        )


def _refuse_derived(records: Sequence[dict[str, Any]], step: int) -> None:
    for rank, record in enumerate(records):
        data = record.get("derived", b"")
        if found := list(safe_pickle.loads(data)) if data else []:
            raise FailedPrecondition(
                f"step {step}: {len(found)} tensors were declared derived on rank {rank} of "
                f"{len(records)}: {listing.names(found)}. Their digests are of the parts that "
                f"{len(records)} ranks had. Restart with {len(records)} ranks; for another number, "
                "have them take one snapshot without the declaration before"
            )
