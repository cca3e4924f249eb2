"""ForeignSteps: notices that an optimizer that is not attached trains the model all the same.

It steps on captured parameters and keeps state of them, or on tensors that are not captured, fp32
masters, say, from which somebody then copies to the model. A restore would bring the model back
without either: silently another training.
"""

import weakref
from collections.abc import Callable, Iterable

import torch

from unreft.errors import FailedPrecondition
from unreft.torch.accumulation import Accumulation
from unreft.torch.captured_state import CapturedState
from unreft.torch.derived_tensors import capturing, later

_TENSORS_MAX = 8
_ELEMENTS_MAX = 64  # of each


class ForeignSteps:
    """Compares some elements of the model before such a step and at the next snapshot."""

    def __init__(self, state: CapturedState, in_extras: Iterable[torch.optim.Optimizer] = ()):
        """`in_extras`: the optimizers whose state is stored with the extras."""
        self._state = state
        self._in_extras = list(in_extras)
        self._stepped: list[str] = []  # the classes of the optimizers, since the samples were taken
        self._samples: list[tuple[torch.Tensor, torch.Tensor]] = []  # place and value
        self._answers: list[tuple[str, Callable[[], torch.Tensor | None]]] = []
        # That stepped on captured tensors since the last snapshot.
        self._on_captured: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._accumulation = Accumulation()

    @torch.no_grad()
    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Of an optimizer that steps on nothing that is captured."""
        if not self._stepped:
            self._samples = [(place, place.clone()) for place in self._places()]
        if (name := type(optimizer).__name__) not in self._stepped:
            self._stepped.append(name)

    def own_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Of one that steps on what is captured: from then on the model changes by right."""
        self._on_captured.add(optimizer)
        self._accumulation.before_step(optimizer)
        self._forget_samples()

    @torch.no_grad()
    def check(self) -> None:
        """To be called before a snapshot; raises if the model has changed so. Waits for nothing: on
        a device the answer of what was compared comes at a later snapshot."""
        stepped, self._on_captured = list(self._on_captured), weakref.WeakSet()
        self._accumulation.at_snapshot(bool(stepped))
        stored = {id(optimizer.state) for optimizer in self._in_extras}
        for optimizer in self._state.lacking(o for o in stepped if id(o.state) not in stored):
            name = type(optimizer).__name__
            raise FailedPrecondition(
                f"{name} steps on captured parameters, and what it keeps of them is not captured: "
                "a restore would bring them back without it. Attach that optimizer, too"
            )
        if self._stepped and not any(capturing(place.device) for place, _ in self._samples):
            names = ", ".join(self._stepped)
            differs = [(place != value).any() for place, value in self._samples]
            self._answers += [(names, later(each)) for each in differs]
            self._forget_samples()
        waiting, found = [], None
        for names, answer in self._answers:
            value = answer()
            if value is None:
                waiting.append((names, answer))
            elif bool(value):
                found = names
        self._answers = waiting
        if found:
            raise FailedPrecondition(
                f"{found} stepped on tensors that are not captured, and the model changed with it: "
                "a restore would bring the model back without them. Attach that optimizer too, and "
                "copies of parameters that it steps on as masters={'<parameter>': tensor}"
            )

    def _forget_samples(self) -> None:
        self._stepped.clear()
        self._samples.clear()

    def _places(self) -> list[torch.Tensor]:
        parameters = self._state.trained()
        chosen = parameters[:: max(1, len(parameters) // _TENSORS_MAX)][:_TENSORS_MAX]
        local = [getattr(p, "_local_tensor", p).detach() for p in chosen]
        return [t.view(-1)[:_ELEMENTS_MAX] for t in local if t.numel() and t.is_contiguous()]
