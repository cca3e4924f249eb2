"""Parts of tensors that lie in flat memory: what sharded optimizers have of parameters.

Such an optimizer lays parameters one behind the other and cuts them for the ranks, without regard
to rows. So what a rank has of a parameter is a run of its elements.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from unreft.torch.shards import Bound, Holders, bind
from unreft.torch.watch import Watch

_ALONE = Holders("", 0, 1)


@dataclasses.dataclass(frozen=True)
class Part:
    """Of a box of the tensor called `name` the elements [begin, end), numbered in row-major order
    within the box, which lie one behind the other from `start` on in flat memory.

    `shape` is the whole tensor's. The box begins at `offset` and has `extent`; without them it is
    the whole. `allow_shape_mismatch`: as of `unreft.Tensor`.
    """

    name: str
    shape: tuple[int, ...]
    begin: int
    end: int
    start: int
    offset: tuple[int, ...] | None = None
    extent: tuple[int, ...] | None = None
    allow_shape_mismatch: bool = False


def bind_part(prefix: str, flat: torch.Tensor, part: Part, key: str = "") -> Bound:
    """`part` in `flat`, of shape (elements,), as what is called `<prefix>/<name>[/<key>]` in the
    store."""
    name = "/".join(filter(None, (prefix, part.name, key)))
    bound = bind(name, flat.narrow(0, part.start, part.end - part.begin), _ALONE)
    spec = dataclasses.replace(
        bound.spec,
        global_shape=part.shape,
        offset=part.offset or (0,) * len(part.shape),
        extent=part.extent or part.shape,
        range=(part.begin, part.end),
        allow_shape_mismatch=part.allow_shape_mismatch,
    )
    return dataclasses.replace(bound, spec=spec)


def box(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape by which a tensor is stored: that of a scalar has a dimension, for ranges."""
    return tuple(shape) or (1,)


def is_elementwise(value: object, like: torch.Tensor) -> bool:
    """Whether it is state of each element of what an optimizer steps on, such as a moment."""
    return isinstance(value, torch.Tensor) and value.shape == like.shape and value.dim() > 0


@dataclasses.dataclass(frozen=True)
class Stepped:
    """`memory` is what `optimizer` steps on in its parameter group number `group`: of shape
    (elements,), or of a parameter's.

    `shapes`: of all whole tensors of which some rank has a part in its own such memory, by name.
    `parts`: those that this rank has in this; `captured`: those of them that it captures itself.
    """

    optimizer: torch.optim.Optimizer
    group: int
    memory: torch.Tensor
    shapes: dict[str, tuple[int, ...]]
    parts: list[Part]
    captured: list[Part]

    @property
    def state(self) -> dict[str, Any]:
        """What the optimizer has of it; nothing before its first step."""
        return self.optimizer.state.get(self.memory) or {}

    def scalars(self) -> dict[str, Any]:
        """What is in that beside state of each element: the count of steps."""
        return {k: v for k, v in self.state.items() if not is_elementwise(v, self.memory)}


class WatchOfWholes(Watch):
    """Of flat memory, whole, in place of the parts in it."""

    def follow(self) -> None:
        """Not possible: where a part lies is not known of the whole. It is bound again instead."""
        return None
