"""The random generators from which the position in the data follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DistributedSampler

import unreft
from unreft.lightning.loaders import sampler_of
from unreft.torch.rng import Rng


def _generators(loaders: Iterable[Any]) -> list[torch.Generator]:
    """Those that loaders have of their own, each once."""
    found: dict[int, torch.Generator] = {}
    for loader in loaders:
        for holder in (loader, sampler_of(loader)):
            if isinstance(own := getattr(holder, "generator", None), torch.Generator):
                found[id(own)] = own
    return list(found.values())


def _samplers(loaders: Iterable[Any]) -> list[DistributedSampler]:
    """Those that draw from no generator, but from their epoch."""
    found = map(sampler_of, loaders)
    return [sampler for sampler in found if isinstance(sampler, DistributedSampler)]


def drawn_of(loaders: Iterable[Any]) -> dict[str, Any]:
    """What loaders have of their own."""
    loaders = list(loaders)
    return {
        "loaders": [generator.get_state() for generator in _generators(loaders)],
        "epochs": [sampler.epoch for sampler in _samplers(loaders)],
    }


def drawn(loaders: Iterable[Any]) -> dict[str, Any]:
    """That, and the global generators."""
    return {"global": Rng().state_dict(), **drawn_of(loaders)}


def draw_from(state: Mapping[str, Any], loaders: Iterable[Any]) -> None:
    """Raises `unreft.FailedPrecondition` where the loaders are not those of the state."""
    loaders = list(loaders)
    generators, samplers = _generators(loaders), _samplers(loaders)
    found = {"loaders": len(generators), "epochs": len(samplers)}
    for name, what in (("loaders", "generators"), ("epochs", "DistributedSamplers")):
        if found[name] != len(state[name]):
            raise unreft.FailedPrecondition(
                f"{what} of the loaders: {len(state[name])} were stored, found {found[name]}: the "
                "data would go on at another place. Restart with the loaders that there were, or "
                "give the state up with 'unreft fresh-start'"
            )
    Rng().load_state_dict(state["global"])
    for generator, stored in zip(generators, state["loaders"], strict=True):
        generator.set_state(stored)
    for sampler, epoch in zip(samplers, state["epochs"], strict=True):
        sampler.set_epoch(epoch)
