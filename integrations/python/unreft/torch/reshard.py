"""The user's extras in another world: what one rank takes of what several have stored."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, Sampler

from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.torch import listing
from unreft.torch.alike import unlike_first

_log = logging.getLogger("unreft")


@dataclasses.dataclass(frozen=True)
class Reshard:
    """Among the `extras` of `attach`: says what becomes of one when the number of ranks changes.

    `extra` is captured, and restored by the same number of ranks, as it would be by itself. Only
    in a world of another size `load(states, rank, world)` is called, on every rank: `states` are
    what all ranks had stored, by rank, `rank` and `world` are those of now. What it returns is
    restored as if it had been stored: by `load_state_dict` or `set_state` of `extra`, or as
    `Checkpointer.extras`.
    """

    extra: Any
    load: Callable[[list[Any], int, int], Any]

    def __post_init__(self):
        if not callable(self.load):
            raise InvalidArgument(f"Reshard: `load` needs to be a function, found {self.load!r}")
        if isinstance(self.extra, Reshard):
            raise InvalidArgument("Reshard: needed an extra, found another Reshard")


def join(
    stored: Sequence[Mapping[str, Any]], attached: Mapping[str, Any], rank: int, world: int
) -> tuple[dict[str, Any], list[str]]:
    """What this rank restores by name, and the names that functions of the user's have made.

    `stored`: of every rank that stored this version; `attached`: as given, with each Reshard.
    """
    _check_names(stored, attached)
    kept = {name: extra for name, extra in attached.items() if not isinstance(extra, Reshard)}
    _check_positions(kept, len(stored), world)
    joined = {name: _of_all(name, stored, world) for name in kept}
    by_function = [name for name in attached if name not in kept]
    for name in by_function:
        states = [state[name] for state in stored]
        joined[name] = attached[name].load(states, rank, world)
    return joined, by_function


def _check_names(stored: Sequence[Mapping[str, Any]], attached: Mapping[str, Any]) -> None:
    for rank, state in enumerate(stored):
        if missing := sorted(attached.keys() - state.keys()):
            raise FailedPrecondition(
                f"extras: {', '.join(missing)} not in what rank {rank} of {len(stored)} stored, "
                f"which has: {', '.join(sorted(state)) or 'none'}"
            )
    if unused := sorted(set().union(*stored) - attached.keys()):
        _log.warning("extras: stored but not attached, so not restored: %s", ", ".join(unused))


def _check_positions(kept: Mapping[str, Any], source_world: int, world: int) -> None:
    """What counts samples counts those of one rank: alike on all, it is wrong on others all the
    same."""
    if found := [name for name, extra in kept.items() if _counts_samples(extra)]:
        raise FailedPrecondition(
            f"extras: {listing.names(found)} counts the samples of one of {source_world} ranks (a "
            f"{type(kept[found[0]]).__name__}): on {world} ranks samples would be repeated or left "
            f"out in silence. {_advice(found[0], source_world)}"
        )


def _counts_samples(extra: Any) -> bool:
    return (
        isinstance(extra, (Sampler, DataLoader))
        or hasattr(extra, "num_replicas")
        or any(kind.__name__ == "StatefulDataLoader" for kind in type(extra).__mro__)
    )


def _of_all(name: str, stored: Sequence[Mapping[str, Any]], world: int) -> Any:
    states = [state[name] for state in stored]
    if different := unlike_first(states):
        raise FailedPrecondition(
            f"extras: '{name}' needs to be alike on all {len(stored)} ranks that stored it, to be "
            f"restored on {world}: on {listing.ranks(different)} it is not what it is on rank 0. "
            f"{_advice(name, len(stored))}"
        )
    return states[0]


def _advice(name: str, source_world: int) -> str:
    return (
        f"Attach it as unreft.torch.Reshard({name}, load), whose load(states, rank, world) makes "
        f"what a rank goes on with from what all {source_world} stored, or restart with "
        f"{source_world} ranks"
    )
