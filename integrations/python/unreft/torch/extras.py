"""Extras: the part of a rank's state that is not tensors of the model or the optimizer.

One pickle per snapshot, a few KB. It is made and read by the training process alone: to the daemon
it is opaque bytes. A tensor inside it is stored as type, shape and bytes, without torch's pickling.
"""

import ctypes
import io
import logging
import pickle
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from unreft.errors import FailedPrecondition, InvalidArgument

_log = logging.getLogger("unreft")


def dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    return pickle.loads(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any):
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if is_traceable_wrapper_subclass(value) or value.layout != torch.strided:
            raise InvalidArgument(
                f"extras: a {type(value).__name__} of shape {tuple(value.shape)} and layout "
                f"{value.layout} is not supported: store its parts, such as to_local()"
            )
        whole = value.detach().to("cpu").contiguous()
        data = ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""
        return _tensor, (str(whole.dtype).removeprefix("torch."), tuple(whole.shape), data)


def _tensor(dtype: str, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    """The tensor that was stored, in CPU memory."""
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    ctypes.memmove(tensor.data_ptr(), data, len(data))
    return tensor


class Rng:
    """The global generators of Python, PyTorch (CPU and CUDA) and, where imported, NumPy."""

    def state_dict(self) -> dict[str, Any]:
        state = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            state["numpy"] = sys.modules["numpy"].random.get_state(legacy=False)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            import numpy

            numpy.random.set_state(state["numpy"])
        if "cuda" in state:
            if torch.cuda.device_count() != len(state["cuda"]):
                raise FailedPrecondition(
                    f"random state of {len(state['cuda'])} CUDA devices was stored, "
                    f"this process has {torch.cuda.device_count()}"
                )
            torch.cuda.set_rng_state_all(state["cuda"])


class Extras:
    """The user's `extras`, by name: each an object with `state_dict` and `load_state_dict`, or with
    `get_state` and `set_state` (a torch.Generator), or a callable that returns a value, or a value.

    What a callable or a value was is in `restored` after a restore, by name.
    """

    def __init__(self, extras: Mapping[str, Any]):
        self._extras = dict(extras)
        self.restored: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        return {name: _state_of(extra) for name, extra in self._extras.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        if missing := sorted(self._extras.keys() - state.keys()):
            raise FailedPrecondition(
                f"extras: {', '.join(missing)} not in what was stored, which has: "
                f"{', '.join(sorted(state)) or 'none'}"
            )
        if unused := sorted(state.keys() - self._extras.keys()):
            _log.warning("extras: stored but not attached, so not restored: %s", ", ".join(unused))
        for name, extra in self._extras.items():
            if hasattr(extra, "load_state_dict"):
                extra.load_state_dict(state[name])
            elif hasattr(extra, "set_state"):
                extra.set_state(state[name])
            else:
                self.restored[name] = state[name]


def _state_of(extra: Any) -> Any:
    if hasattr(extra, "state_dict"):
        return extra.state_dict()
    if hasattr(extra, "get_state"):
        return extra.get_state()
    return extra() if callable(extra) else extra
