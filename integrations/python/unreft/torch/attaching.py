"""What every `attach` does, whatever it is that a framework trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from unreft.torch import attempt, ranks
from unreft.torch.patience import Patience

Parts = TypeVar("Parts")
Made = TypeVar("Made")


def options_of_peek(attach: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of such an `attach` that `peek` takes, too: the client's."""
    own = set(inspect.signature(attach).parameters) - {"required"}
    return {name: value for name, value in options.items() if name not in own}


def attach(
    caller: str,
    prepare: Callable[[int, int], Parts],
    make: Callable[..., Made],
    *,
    required: bool,
    unprotected_after: float | None,
    options: Mapping[str, Any],
) -> Made:
    """Takes this process's connection, and returns the checkpointer that `make` has made of it.

    Args:
      caller: its name, as users know it.
      prepare: of this rank and the number of ranks: all that may be refused. If it raises on one
        rank, all raise.
      make: of the client (None: training runs unprotected), of what `prepare` has returned, and of
        `decision`, `rank` and `patience` as of `Checkpointer`, by name.
      required, unprotected_after, options: as of `unreft.torch.attach`.
    """
    rank, world = ranks.rank_and_world(options.get("rank"), options.get("world"))
    patience: Patience | None = None
    parts: list[Parts] = []

    def prepare_all() -> None:
        nonlocal patience
        parts.append(prepare(rank, world))
        patience = None if unprotected_after is None else Patience(unprotected_after)

    joined = attempt.take(caller, prepare_all, required, {**options, "rank": rank, "world": world})
    made = make(joined.client, parts[0], decision=joined.decision, rank=rank, patience=patience)
    attempt.keep(joined, made, caller)
    return made
