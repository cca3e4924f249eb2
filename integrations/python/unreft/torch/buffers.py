"""Buffers: the persistent buffers of a model, also those that the model replaces.

A buffer that is written in place is captured where it lies. One that the model replaces
(`self.mean = 0.9 * self.mean + ...`) lies elsewhere at every step; from the first time that this is
seen its value is copied to memory that stays, and captured there.
"""

import copy
import logging
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from unreft.tensor import Tensor
from unreft.torch.names import clean
from unreft.torch.shards import torch_dtype


_log = logging.getLogger("unreft")


class Buffers:
    def __init__(self, model: nn.Module):
        self._model = model
        self._seen: dict[str, torch.Tensor] = {}
        self._staged: dict[str, torch.Tensor] = {}
        self._copies: list[tuple[dict, str, torch.Tensor]] = []  # from container[key] to the tensor

    def slots(self) -> Iterator[tuple[str, dict, str]]:
        """(name, container, key) of every persistent buffer, None or not."""
        for name, module, key in self._places():
            yield name, module._buffers, key

    def _places(self) -> Iterator[tuple[str, nn.Module, str]]:
        for prefix, module in self._model.named_modules():
            for key in module._buffers:
                if key not in module._non_persistent_buffers_set:
                    yield (f"{prefix}.{key}" if prefix else key), module, key

    def live(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each once, also if it is known by several names."""
        seen = set()
        for name, container, key in self.slots():
            buffer = container[key]
            if buffer is not None and buffer not in seen:
                seen.add(buffer)
                yield name, buffer

    def make(self, prefix: str, stored: Iterable[Tensor]) -> None:
        """Those that are None, or have no elements, and that some pass of the run that stored them
        had filled, and those of another shape than stored that their module would load."""
        places = {f"{prefix}{clean(name)}": (m, key) for name, m, key in self._places()}
        for tensor in stored:
            if tensor.name in places:
                self._make(*places[tensor.name], tensor)

    def _make(self, module: nn.Module, key: str, stored: Tensor) -> None:
        buffer, dtype = module._buffers[key], torch_dtype(stored.dtype)
        if buffer is None:
            device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
            module._buffers[key] = torch.zeros(stored.extent, dtype=dtype, device=device)
            return
        if tuple(buffer.shape) == stored.extent or buffer.dtype != dtype:
            return
        made = torch.zeros(stored.extent, dtype=dtype, device=buffer.device)
        if buffer.numel() == 0 or _would_load(module, key, made):
            found = tuple(buffer.shape)
            _log.info("tensor '%s' is made of shape %s, found %s", stored.name, made.shape, found)
            module._buffers[key] = made

    def remember(self) -> None:
        """Where they are now, to be compared with by the next `stable`."""
        self._seen = dict(self.live())

    def stable(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `live`, but memory that stays for those that have moved since they were seen last."""
        where = {name: (container, key) for name, container, key in self.slots()}
        self._copies = []
        for name, buffer in self.live():
            known = self._seen.pop(name, None)
            if name in self._staged or known is not None and known is not buffer:
                if not _fits(self._staged.get(name), buffer):
                    with torch.inference_mode(False):  # else nothing might write to it later
                        self._staged[name] = torch.empty_like(
                            buffer, memory_format=torch.contiguous_format
                        )
                self._copies.append((*where[name], self._staged[name]))
                self._staged[name].copy_(buffer)
                buffer = self._staged[name]
            else:
                self._seen[name] = buffer  # not one that is staged: it may hold a graph
            yield name, buffer

    def watched(self) -> list[tuple[dict, str]]:
        """The slots whose value must stay the same object."""
        return [(c, key) for name, c, key in self.slots() if name not in self._staged]

    @torch.no_grad()  # one that is made of parameters would hold the graph of its step
    def refresh(self) -> bool:
        """Copies what is staged; False when a buffer no longer fits its place."""
        for container, key, staged in self._copies:
            buffer = container.get(key)
            if not _fits(staged, buffer):
                return False
            staged.copy_(buffer)
        return True


@torch.no_grad()
def _would_load(module: nn.Module, key: str, value: torch.Tensor) -> bool:
    """Whether the module has code of its own that takes a buffer of another shape, as the fake
    quantization of torch has. Tries it on a copy of what the module itself holds."""
    if type(module)._load_from_state_dict is nn.Module._load_from_state_dict:
        return False
    errors: list[str] = []
    try:
        probe = copy.copy(module)
        for kind in ("_parameters", "_buffers"):
            probe.__dict__[kind] = {
                name: None if tensor is None else tensor.detach().clone()
                for name, tensor in getattr(module, kind).items()
            }
        saved = {**probe._parameters, **probe._buffers, key: value}
        saved = {name: tensor for name, tensor in saved.items() if tensor is not None}
        probe._load_from_state_dict(saved, "", {"version": probe._version}, True, [], [], errors)
        return not errors and probe._buffers[key].shape == value.shape
    except Exception:  # it is the program's own code
        return False


def _fits(staged: torch.Tensor | None, buffer: torch.Tensor | None) -> bool:
    return (
        staged is not None
        and buffer is not None
        and (staged.shape, staged.dtype) == (buffer.shape, buffer.dtype)
        and staged.device == buffer.device
    )
