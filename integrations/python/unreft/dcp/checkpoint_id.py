"""The step that an id of a checkpoint names."""

import os
import re

import unreft

STEP_MAX = 2**53 - 1


def step_of(checkpoint_id: int | str | os.PathLike) -> int:
    """120 of 120, "120", "runs/step_120" and Path("step-120").

    `InvalidArgument` for an id whose last component does not end in digits.
    """
    if isinstance(checkpoint_id, bool) or not isinstance(checkpoint_id, (int, str, os.PathLike)):
        raise _no_step(checkpoint_id)
    if isinstance(checkpoint_id, int):
        step = checkpoint_id
    else:
        found = re.search(r"([0-9]+)/*$", os.fspath(checkpoint_id))
        if found is None:
            raise _no_step(checkpoint_id)
        step = int(found[1])
    if not 0 <= step <= STEP_MAX:
        raise _no_step(checkpoint_id)
    return step


def is_id(checkpoint_id: object) -> bool:
    """Whether it names a step."""
    try:
        step_of(checkpoint_id)
    except unreft.InvalidArgument:
        return False
    return True


def _no_step(checkpoint_id: object) -> unreft.InvalidArgument:
    return unreft.InvalidArgument(
        f"checkpoint_id: needed a step from 0 to {STEP_MAX}, or a name that ends in its digits, "
        f"as 'step_120' does, found {checkpoint_id!r}"
    )
