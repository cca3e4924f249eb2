"""What optimizers and modules hold beside tensors, in another world: of all ranks that stored it.

It is the optimizers', not the ranks': so it has to be alike on all of them, except that a plain
value in the state of a parameter is known where that parameter has state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unreft.errors import FailedPrecondition
from unreft.torch import listing
from unreft.torch.alike import unlike_first


def join(stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record of that kind, from the `scalars` of each rank."""
    optimizers = [scalars["optimizers"] for scalars in stored]
    _check_alike("the number of optimizers", list(map(len, optimizers)))
    return {
        "optimizers": [
            _join_optimizer(f"optimizer {index}", each)
            for index, each in enumerate(zip(*optimizers))
        ],
        "modules": _join_modules([scalars["modules"] for scalars in stored]),
    }


def _join_optimizer(subject: str, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    groups = [each["groups"] for each in stored]
    _check_alike(f"{subject}: the number of its parameter groups", list(map(len, groups)))
    for index, group in enumerate(zip(*groups)):
        place = f"{subject}, group {index}"
        names = [each["params"] for each in group]
        _check_alike(f"{place}: the order of its parameters", names)
        _check_items(place, "", [{**each, "params": None} for each in group])
    shards = {name: keys for each in stored for name, keys in each.get("shards", {}).items()}
    return {"groups": groups[0], "states": _join_states(subject, stored), "shards": shards}


def _join_states(subject: str, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    joined = {}
    for name in dict.fromkeys(name for each in stored for name in each["states"]):
        having = [rank for rank, each in enumerate(stored) if name in each["states"]]
        states = [stored[rank]["states"][name] for rank in having]
        _check_items(subject, f" of parameter '{name}'", states, having)
        joined[name] = states[0]
    return joined


def _join_modules(stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for name in dict.fromkeys(name for each in stored for name in each):
        values = [(each[name],) if name in each else () for each in stored]
        if different := unlike_first(values):
            raise FailedPrecondition(
                f"module '{name}': its extra state needs to be alike on all {len(stored)} ranks "
                f"that stored this version: on {listing.ranks(different)} it is not what it is on "
                f"rank 0. Restart with {len(stored)} ranks"
            )
    return dict(stored[0])


def _check_items(
    subject: str,
    of: str,
    stored: Sequence[Mapping[str, Any]],
    ranks: Sequence[int] | None = None,
) -> None:
    for key in dict.fromkeys(key for each in stored for key in each):
        values = [each.get(key, _NONE) for each in stored]
        _check_alike(f"{subject}: '{key}'{of}", values, ranks)


def _check_alike(subject: str, values: Sequence[Any], ranks: Sequence[int] | None = None) -> None:
    """`ranks`: whose the values are, if not of all."""
    different = unlike_first(values)
    if not different:
        return
    of = range(len(values)) if ranks is None else ranks
    first = different[0]
    raise FailedPrecondition(
        f"{subject} needs to be alike on all ranks that stored this version, whose number is "
        f"another now: rank {of[0]} has {listing.short(values[0])}, rank {of[first]} "
        f"{listing.short(values[first])}; {listing.ranks([of[i] for i in different])} differ. "
        "Restart with as many ranks as before, or have a snapshot taken in which it is alike"
    )


class _None:
    def __repr__(self) -> str:
        return "none"


_NONE = _None()
