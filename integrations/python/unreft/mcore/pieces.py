"""Where parameters lie in whole tensors, as a model chunk's `sharded_state_dict` says it.

A parameter is mostly one box of one tensor: its part of a tensor-parallel weight, say, or one layer
of a stack of all layers. Some are several: SwiGLU's first weight is a part of the gate over a part
of the rest, which are two boxes of one tensor.
"""

import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    LocalNonpersistentObject,
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
)
from megatron.core.utils import unwrap_model

from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.torch.parts import Part, box


@dataclasses.dataclass(frozen=True)
class Piece:
    """Of a parameter the elements from `first` on, in row-major order, which are the box of
    `extent` at `offset` of the tensor called `name`, of `shape`.

    `replica`: this rank's number among those of the pipeline stages and of tensor parallelism that
    hold the same box, and among data-parallel ranks.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    first: int
    replica: tuple[int, ...]
    allow_shape_mismatch: bool

    def part(self, begin: int, end: int) -> Part | None:
        """What it has of the parameter's elements [begin, end), which lie in flat memory that
        begins with the first of these."""
        low = max(begin, self.first)
        high = min(end, self.first + math.prod(self.extent))
        if low >= high:
            return None
        return Part(
            self.name,
            self.shape,
            low - self.first,
            high - self.first,
            low - begin,
            self.offset,
            self.extent,
            self.allow_shape_mismatch,
        )


def pieces_of(chunks: Sequence[Any]) -> dict[torch.Tensor, list[Piece]]:
    """By parameter. Raises `FailedPrecondition` for what else than these would be in a checkpoint.
    """
    metadata = {
        "singleton_local_shards": False,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    found: dict[torch.Tensor, list[Piece]] = {}
    for chunk in chunks:
        model = unwrap_model(chunk)
        parameters = set(model.parameters())
        for value in nested_values(model.sharded_state_dict(metadata=metadata)):
            if isinstance(value, LocalNonpersistentObject) or _is_empty(value):
                continue
            data = getattr(value, "data", None)
            if not isinstance(data, torch.Tensor) or data not in parameters:
                raise FailedPrecondition(
                    f"'{getattr(value, 'key', value)}', a {type(value).__name__} of the model, is "
                    "no parameter: extra states, of Transformer Engine's FP8, say, and persistent "
                    "buffers are not supported"
                )
            found[data] = list(_pieces(value))
        if missing := [name for name, p in model.named_parameters() if p not in found]:
            raise FailedPrecondition(
                f"parameter '{missing[0]}' is not in the sharded_state_dict of its model "
                f"({len(missing)} are not): where it belongs is not known"
            )
    return found


def _pieces(value: ShardedTensor | ShardedTensorFactory) -> Iterator[Piece]:
    parameter = value.data
    for each in _sharded(value):
        # A view, such as a factory makes: its place in the parameter's memory.
        first = (each.data.data_ptr() - parameter.data_ptr()) // parameter.element_size()
        extent = (1,) * each.prepend_axis_num + tuple(each.local_shape)
        if not _is_view(each.data, parameter):
            raise InvalidArgument(
                f"parameter '{value.key}': needed boxes each of whose elements lie one behind the "
                f"other in it, found one of shape {tuple(each.local_shape)} that does not"
            )
        replica = each.replica_id
        yield Piece(
            each.key,
            box(each.global_shape),
            tuple(each.global_offset) or (0,),
            box(extent),
            first,
            replica if isinstance(replica, tuple) else (replica,),
            value.allow_shape_mismatch if isinstance(value, ShardedTensor) else False,
        )


def _sharded(value: ShardedTensor | ShardedTensorFactory) -> list[ShardedTensor]:
    if isinstance(value, ShardedTensor):
        return [value]
    built = value.build_fn(value.key, value.data, value.replica_id, value.flattened_range)
    return list(nested_values({"": built})) if isinstance(built, (dict, list)) else [built]


def _is_view(data: torch.Tensor, parameter: torch.Tensor) -> bool:
    same = data.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
    return same and data.is_contiguous() and parameter.is_contiguous()


def _is_empty(value: Any) -> bool:
    """Whether it is an extra state of a module that has none."""
    if not isinstance(value, ShardedObject):
        return False
    data = value.data
    if isinstance(data, io.BytesIO):
        return not data.getbuffer().nbytes
    return data is None or isinstance(data, torch.Tensor) and not data.numel()
