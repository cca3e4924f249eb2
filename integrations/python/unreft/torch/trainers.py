"""What frameworks that own the loop must agree with: the Trainers of Hugging Face and Lightning."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from unreft.errors import FailedPrecondition


def check_position(step: int) -> None:
    """Raises `FailedPrecondition` inside a loop of transformers.Trainer that is at another step.

    It reads its data by its own count: with another step than the state's it would silently train
    on other data, and count to another end.
    """
    trainer = _running_trainer()
    if trainer is None or trainer.state.global_step == step:
        return
    raise FailedPrecondition(
        f"restore() inside {type(trainer).__name__}.train(): step {step} is stored, but the "
        f"trainer's global_step is {trainer.state.global_step}: it would begin its data anew. "
        "unreft.transformers.attach(trainer) has it begin there; unreft.torch.peek() says the step "
        "before the trainer is made"
    )


def check_counted_in(stored: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Of what a Trainer's position in the data is counted in, such as the size of a batch: raises
    `FailedPrecondition` for the first that is not as it was stored."""
    for name, needed in stored.items():
        if found.get(name) != needed:
            raise _counted_otherwise(name, needed, found.get(name))


def refuse_ranks(states: Sequence[Any], rank: int, world: int) -> Any:
    """What a `Reshard` of a Trainer's position makes of it: it is one for that many ranks alone."""
    raise _counted_otherwise("ranks", len(states), world)


def _counted_otherwise(name: str, needed: Any, found: Any) -> FailedPrecondition:
    return FailedPrecondition(
        f"{name}: what is committed was trained with {needed}, found {found}: the data would go on "
        f"at another place. Restart with {needed}, or give the state up with 'unreft fresh-start'"
    )


def _running_trainer() -> Any:
    """The transformers.Trainer that called us, if one did."""
    module = sys.modules.get("transformers.trainer")
    frame = sys._getframe() if module is not None else None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, module.Trainer):
            return owner
        frame = frame.f_back
    return None
