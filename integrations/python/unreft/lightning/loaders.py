"""What Lightning's loops have loaded their data with, and what that draws samples by."""

from __future__ import annotations

from typing import Any


def loaders_of(loop: Any) -> list[Any]:
    """Of the fit loop or one that evaluates; none before it has set up its data."""
    return [] if loop._combined_loader is None else loop._combined_loader.flattened


def sampler_of(loader: Any) -> Any:
    """The one it draws by: beside a batch sampler, `loader.sampler` is one that nothing reads."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def batch_size_of(loader: Any) -> int | None:
    """In samples; None of a loader that does not batch them."""
    return getattr(loader.batch_sampler, "batch_size", loader.batch_size)
