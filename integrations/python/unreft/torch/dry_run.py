"""A dry run: this rank says which tensors it would restore, and ends (`unreft run --dry-run`).

What a restore finds out from the store alone is said by patterns, docs/formats/layout_file.md.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from unreft.tensor import Tensor
from unreft.torch import ranks
from unreft.torch.captured_state import CapturedState
from unreft.torch.derived import Derived, short
from unreft.torch.shards import Bound, bind, not_empty

# Of each rank's own, beside the state: what extras have on a device, digests of what is derived.
_BESIDE = ("extras/*", "derived/*")


def is_asked_for() -> bool:
    return bool(os.environ.get("UNREFT_DRY_RUN"))


def end(client: Any, state: CapturedState, rules: Sequence[Derived]) -> NoReturn:
    """Ends the process by SystemExit, once all ranks have said what they would restore."""
    beside = torch.zeros(1, dtype=torch.uint8)
    wanted = [*_wanted(state, rules), *(bind(name, beside, state.own) for name in _BESIDE)]
    try:
        client.restore_read([_of_each_rank(spec, state) for spec in not_empty(wanted)])
    except SystemExit:
        # Another may need this one until then, as the host of the store of the process group.
        ranks.gather([state.rank])
        raise
    raise AssertionError("a dry run ends with the first tensors that it is given")


def _wanted(state: CapturedState, rules: Sequence[Derived]) -> Iterator[Bound]:
    """The state as a restore finds it: that of optimizers is made as it is stored."""
    for bound in state.live_without_optimizers():
        if any(rule.sources_of(short(bound)) is not None for rule in rules):
            bound = _renamed(bound, bound.spec.name + "?")  # captured only if it did not follow
        yield bound
    yield from state.places_of_optimizer_state()


def _renamed(bound: Bound, name: str) -> Bound:
    return dataclasses.replace(bound, spec=dataclasses.replace(bound.spec, name=name))


def _of_each_rank(spec: Tensor, state: CapturedState) -> Tensor:
    """By the name of what each rank stores for itself, if it is that."""
    own = spec.name.removeprefix(state.own.prefix)
    return spec if own == spec.name else dataclasses.replace(spec, name=f"rank*/{own}")
