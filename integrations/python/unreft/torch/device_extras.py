"""DeviceExtras: tensors on a device among the extras, captured without waiting for the device.

To pickle such a tensor would mean to wait until the device has come to it, at every snapshot: of a
GradScaler, of a learning rate that is a tensor. Instead the pickle refers to a buffer on the device
into which they are copied in stream order, and which is captured as a volatile tensor.
"""

import math
from typing import Any

import torch

from unreft.tensor import Tensor
from unreft.torch.shards import Bound, Holders, bind

NAME = "extras/device"
_ALIGN = 16  # bytes
_ROOM_MAX = 1 << 20  # bytes, beyond what there is


def is_on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


class DeviceExtras:
    """Of one device, the first that is met; of others tensors are pickled as those of the host."""

    def __init__(self, own: Holders):
        self._own = own
        self._buffer: torch.Tensor | None = None
        self._device: torch.device | None = None
        self._tensors: list[tuple[int, torch.Tensor]] = []  # of the record, with their offsets
        self._bytes = 0

    # --- capture ---

    def begin(self) -> None:
        """Another record is to be pickled."""
        self._tensors, self._bytes = [], 0

    def take(self, value: Any) -> tuple[str, tuple[int, ...], int] | None:
        """What stands for the tensor in the pickle: dtype, shape, offset. None: nothing does."""
        if not isinstance(value, torch.Tensor) or not is_on_device(value):
            return None
        if value.layout != torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return None
        self._device = self._device or value.device
        if value.device != self._device:
            return None
        offset = self._bytes
        self._tensors.append((offset, value.detach()))
        self._bytes += -(-value.nbytes // _ALIGN) * _ALIGN
        return str(value.dtype).removeprefix("torch."), tuple(value.shape), offset

    def fits(self) -> bool:
        """Whether what is registered has room for the record's tensors: also for fewer than there
        were, since to register others would end the copies that are under way."""
        return self._bytes <= (0 if self._buffer is None else len(self._buffer))

    def make(self) -> list[Bound]:
        """What is to be registered for the record that was pickled last."""
        self._buffer = None
        if self._bytes:
            # For some that are added later.
            room = min(1 << (self._bytes - 1).bit_length(), self._bytes + _ROOM_MAX)
            self._buffer = torch.zeros(room, dtype=torch.uint8, device=self._device)
        return self.bounds()

    def bounds(self) -> list[Bound]:
        return [] if self._buffer is None else [self._bind(self._buffer)]

    @torch.no_grad()
    def copy(self) -> None:
        """Enqueues the copies of the record's tensors, before the snapshot that has it."""
        for offset, tensor in self._tensors:
            if tensor.nbytes:
                # Also one element may have a stride.
                whole = tensor.resolve_conj().resolve_neg()
                flat = whole.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
                self._buffer[offset : offset + len(flat)].copy_(flat)
        self._tensors = []

    # --- restore ---

    def is_ours(self, stored: Tensor) -> bool:
        return stored.name == self._own.prefix + NAME

    def target(self, stored: Tensor) -> Bound:
        """Memory of the host, to read the stored buffer into."""
        size = math.prod(stored.global_shape)
        return self._bind(torch.empty(size, dtype=torch.uint8, device="cpu"))

    def _bind(self, buffer: torch.Tensor) -> Bound:
        return bind(NAME, buffer, self._own, volatile=True)


def tensor_of(staged: torch.Tensor, dtype: str, shape: tuple[int, ...], offset: int):
    """The tensor that `take` has put there, in memory of its own on the host."""
    kind = getattr(torch, dtype)
    size = math.prod(shape) * kind.itemsize
    return staged[offset : offset + size].clone().view(kind).view(shape)
