"""The random generators from which the position in the data follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from unreft.torch.rng import Rng


def _generators(loaders: Iterable[Any]) -> list[torch.Generator]:
    """Those that loaders have of their own, each once."""
    found: dict[int, torch.Generator] = {}
    for loader in loaders:
        for holder in (loader, loader.sampler):
            if isinstance(own := getattr(holder, "generator", None), torch.Generator):
                found[id(own)] = own
    return list(found.values())


def drawn(loaders: Iterable[Any]) -> dict[str, Any]:
    own = [generator.get_state() for generator in _generators(loaders)]
    return {"global": Rng().state_dict(), "loaders": own}


def draw_from(state: dict[str, Any], loaders: Iterable[Any]) -> None:
    Rng().load_state_dict(state["global"])
    for generator, stored in zip(_generators(loaders), state["loaders"], strict=True):
        generator.set_state(stored)
