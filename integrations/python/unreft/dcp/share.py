"""Share: of what several ranks have alike, one captures it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan

from unreft.dcp import catalogue, pieces
from unreft.dcp.pieces import Key
from unreft.torch import ranks


class Share:
    """Which items of its plan a rank captures: of what several have, one does.

    The ranks tell each other what they have, when that has changed on any of them: what has one
    name, and begins at one place in the tensor, is saved once, as the planner of `dcp.save` does.
    """

    def __init__(self, rank: int, world: int):
        self._rank = rank
        self._world = world
        self._group: Any = None
        self._known: tuple[frozenset, dict[str, Any]] | None = None
        self._mine: set[Key] = set()
        self._catalogue: dict[str, catalogue.Entry] | None = None

    def of(self, plan: SavePlan) -> tuple[list, dict[str, catalogue.Entry] | None]:
        """The items to capture, and the catalogue on rank 0."""
        kinds = frozenset(map(pieces.kind_of, plan.items))
        known = (kinds, dict(plan.planner_data or {}))
        if self._is_changed(known):
            self._agree(plan)
            self._known = known
        items = [item for item in plan.items if pieces.key_of(item) in self._mine]
        return items, self._catalogue

    def _is_changed(self, known: tuple[frozenset, dict[str, Any]]) -> bool:
        changed = known != self._known
        if self._world == 1 or not ranks.connected():
            return changed
        if self._group is None:
            # Its own: the save before may use the default one on another thread.
            self._group = dist.new_group(backend="gloo")
        flags: list[Any] = [None] * self._world
        dist.all_gather_object(flags, changed, group=self._group)
        return any(flags)

    def _agree(self, plan: SavePlan) -> None:
        mine = {pieces.key_of(item) for item in plan.items}
        if self._world == 1 or not ranks.connected():
            self._mine = mine
            self._catalogue = pieces.entries_of(plan, self._rank) if self._rank == 0 else None
            return
        sizes = {pieces.key_of(item): pieces.bytes_of(item) for item in plan.items}
        plans: list[Any] | None = [None] * self._world if self._rank == 0 else None
        told = (sizes, pieces.entries_of(plan, self._rank))
        dist.gather_object(told, plans, group=self._group, group_dst=0)
        owned: list[Any] = [None]
        shares = None
        if self._rank == 0:
            shares = shared_out([of_rank[0] for of_rank in plans])
            self._catalogue = catalogue.merged(of_rank[1] for of_rank in plans)
            for rank, keys in enumerate(shares):
                for name, _ in keys:
                    if self._catalogue[name].value_of is not None:
                        self._catalogue[name].value_of = rank
        dist.scatter_object_list(owned, shares, group=self._group, group_src=0)
        self._mine = owned[0]


def shared_out(sizes: list[dict[Key, int]]) -> list[set[Key]]:
    """For each rank which of its items it captures: each is captured by one that has it.

    What one rank alone has comes first, then the largest, by the rank with the fewest bytes so far.
    """
    holders: dict[Key, list[int]] = {}
    for rank, of_rank in enumerate(sizes):
        for key in of_rank:
            holders.setdefault(key, []).append(rank)
    load = [0] * len(sizes)
    mine: list[set[Key]] = [set() for _ in sizes]

    def place(key: Key) -> tuple:
        first = holders[key][0]
        return len(holders[key]) > 1, -sizes[first][key], key[0], key[1] or ()

    for key in sorted(holders, key=place):
        rank = min(holders[key], key=lambda rank: (load[rank], rank))
        load[rank] += sizes[rank][key]
        mine[rank].add(key)
    return mine
