"""Unreft keeps the state of a training job alive in the host memory of the node that trains it.

`unreft.torch.attach` is what a PyTorch job uses. `unreft.Client` is the layer below it, for state
that is not PyTorch's: it takes tensors as addresses and boxes and needs no framework.
"""

from unreft import errors
from unreft.client import Client, Decision, Snapshot, Status, version
from unreft.errors import *  # noqa: F403
from unreft.tensor import Device, Dtype, Tensor

__version__ = version()

__all__ = [
    "Client",
    "Decision",
    "Device",
    "Dtype",
    "Snapshot",
    "Status",
    "Tensor",
    "version",
    *errors.__all__,
]
