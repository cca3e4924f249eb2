"""Tensor: the shard of a logical tensor that this process holds, as the C ABI sees it."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from unreft.errors import InvalidArgument


class Dtype(enum.IntEnum):
    """Element types: `unreft_dtype` of <unreft/c.h>."""

    BOOL = 1
    UINT8 = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    FLOAT16 = 7
    BFLOAT16 = 8
    FLOAT32 = 9
    FLOAT64 = 10
    FLOAT8_E4M3 = 11
    FLOAT8_E5M2 = 12
    COMPLEX64 = 13
    COMPLEX128 = 14
    UINT16 = 15
    UINT32 = 16
    UINT64 = 17

    @classmethod
    def parse(cls, name: str, subject: str) -> "Dtype":
        """The type called `name` by NumPy or PyTorch; `subject` is named when there is none."""
        name = {"float8_e4m3fn": "float8_e4m3"}.get(name, name)
        try:
            return cls[name.upper()]
        except KeyError:
            raise InvalidArgument(f"tensor '{subject}': dtype {name} is not supported") from None


class Device(enum.IntEnum):
    """Where bytes are: `unreft_device_kind` of <unreft/c.h>."""

    CPU = 1
    CUDA = 2


@dataclasses.dataclass(slots=True)
class Tensor:
    """The box [offset, offset + extent) of a tensor of `global_shape`, dense at `data`.

    Of `replica_count` ranks that hold the same elements with the same bytes, this is the
    `replica_index`-th. A `volatile` tensor changes outside the optimizer step: it is copied before
    `Client.snapshot` returns. What owns the memory is the caller's business.

    `memory_order` names the dimensions as they lie in memory, from the slowest to the fastest, the
    same on all ranks: (0, 2, 3, 1) is channels_last. None: row-major. A restore into another order
    than the stored one raises `FailedPrecondition`.

    `range` is a begin and an end: of the elements of the box, numbered in row-major order within
    it, those from `begin` to `end` - 1 are this shard, one behind the other, the first at `data`:
    what a rank has of a flat buffer that is cut without regard to rows. An empty range says that
    this rank has nothing of the tensor, and `data` may be 0. None: the whole box. The store knows
    boxes alone, so what it describes of a range are several tensors of this name, 2 * dims - 1 at
    most. What was saved as ranges is restored into any boxes and ranges, and what was saved as
    boxes into ranges. `InvalidArgument` unless the range lies within the box, and for a range of a
    tensor whose `memory_order` is not row-major.

    With `allow_shape_mismatch` it is restored from a tensor of another global shape, too, of as
    many dimensions, as for a vocabulary that is padded to a multiple of the ranks: elements that
    both have, by their place in the tensor, are restored, and the others stay as they are. Else
    that is refused.
    """

    name: str
    dtype: Dtype
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    data: int = 0  # address; 0 in what the store describes
    device: Device = Device.CPU
    device_index: int = 0
    replica_index: int = 0
    replica_count: int = 1
    volatile: bool = False
    memory_order: tuple[int, ...] | None = None
    range: tuple[int, int] | None = None
    allow_shape_mismatch: bool = False

    @classmethod
    def of_array(
        cls,
        name: str,
        array: Any,
        *,
        global_shape: Sequence[int] | None = None,
        offset: Sequence[int] | None = None,
        replica_index: int = 0,
        replica_count: int = 1,
        volatile: bool = False,
    ) -> "Tensor":
        """Of a C-contiguous NumPy array, by default the whole of a tensor."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise InvalidArgument(
                f"tensor '{name}': needs a writeable C-contiguous array, found strides "
                f"{array.strides} of shape {array.shape}, writeable={array.flags.writeable}"
            )
        return cls(
            name=name,
            dtype=Dtype.parse(array.dtype.name, name),
            global_shape=tuple(array.shape if global_shape is None else global_shape),
            offset=tuple(offset or (0,) * array.ndim),
            extent=tuple(array.shape),
            data=array.ctypes.data,
            replica_index=replica_index,
            replica_count=replica_count,
            volatile=volatile,
        )
