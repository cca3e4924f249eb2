"""What frameworks that own the loop must agree with: transformers.Trainer."""

import sys
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
