"""Rng: the global random generators as part of the state."""

import array
import random
import sys
from typing import Any

import torch

from unreft.errors import FailedPrecondition


class Rng:
    """The global generators of Python, PyTorch (CPU and CUDA) and, where imported, NumPy."""

    def __init__(self):
        # Which ranks share a stream, as far as it was found out by restores in other worlds.
        self._apart: dict[str, dict[str, bool]] = {}

    def state_dict(self) -> dict[str, Any]:
        state = {"python": packed_python(random.getstate()), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            numpy = sys.modules["numpy"].random.get_state(legacy=False)
            state["numpy"] = packed_numpy(numpy)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
            # Which of these this rank draws from: in another world only that one says who shares
            # a stream, since the others lie where other ranks draw.
            state["cuda_device"] = torch.cuda.current_device()
        if self._apart:
            state["apart"] = self._apart
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(array.array("I", words)), gauss))
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            import numpy

            stored = state["numpy"]
            if isinstance(stored["state"].get("key"), bytes):
                key = numpy.frombuffer(stored["state"]["key"], dtype=numpy.uint32)
                stored = {**stored, "state": {**stored["state"], "key": key}}
            numpy.random.set_state(stored)
        if "cuda" in state:
            check_devices(state)
            torch.cuda.set_rng_state_all(state["cuda"])
        self._apart = state.get("apart", {})


def check_devices(state: dict[str, Any]) -> None:
    """Raises `FailedPrecondition` if the state is not of as many devices as there are here."""
    if "cuda" in state and torch.cuda.device_count() != len(state["cuda"]):
        raise FailedPrecondition(
            f"random state of {len(state['cuda'])} CUDA devices was stored, "
            f"this process has {torch.cuda.device_count()}"
        )


def packed_python(state: tuple) -> tuple[int, bytes, float | None]:
    """With its numbers as bytes: to pickle hundreds of numbers one by one takes longer."""
    version, words, gauss = state
    return version, array.array("I", words).tobytes(), gauss


def packed_numpy(state: dict[str, Any]) -> dict[str, Any]:
    if state["bit_generator"] != "MT19937":
        return state
    key = state["state"]["key"].tobytes()
    return {**state, "state": {"key": key, "pos": state["state"]["pos"]}}


def current_device() -> int:
    """The CUDA device that this process draws from, 0 where it has none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else 0
