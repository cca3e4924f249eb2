"""Accumulation: notices snapshots in the midst of an accumulation of gradients.

These are not captured, so that a restore would lose the batches that they were made of.
"""

import logging

import torch

_log = logging.getLogger("unreft")

_ELEMENTS_MAX = 4096  # of the parameter that is looked at, whose gradient is kept for a while


class Accumulation:
    """Looks at one parameter alone: whether its gradient has changed since the last snapshot.

    That it has one says nothing: a program may clear gradients only before the next backward pass,
    and take two snapshots after one step. Where steps are not seen, nothing is known.
    """

    def __init__(self) -> None:
        self._parameter: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None  # at the last snapshot, with its version
        self._version = 0
        self._is_over = False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Of one that steps on what is captured."""
        if self._is_over or self._parameter is not None:
            return
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        trained = (p for p in parameters if p.grad is not None)
        self._parameter = next((p for p in trained if p.numel() <= _ELEMENTS_MAX), None)
        self._is_over = self._parameter is None

    def at_snapshot(self, has_stepped: bool) -> None:
        """`has_stepped`: an optimizer has, since the last snapshot. Warns once."""
        if self._is_over or self._parameter is None:
            return
        gradient = self._parameter.grad
        version = 0 if gradient is None else gradient._version
        is_known = gradient is self._gradient and version == self._version
        self._gradient, self._version = gradient, version
        if gradient is not None and not is_known and not has_stepped:
            self._is_over, self._gradient = True, None
            _log.warning(
                "a snapshot is taken after a backward pass, with no step of an optimizer since the "
                "last snapshot: gradients are not captured, so that a restore would lose what is "
                "accumulated. Call snapshot() after a step"
            )
