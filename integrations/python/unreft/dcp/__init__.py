"""Unreft under torch.distributed.checkpoint: checkpoints in memory, by the calls you have.

    dcp.save(state_dict, storage_writer=unreft.dcp.Writer(step))
    future = dcp.async_save(state_dict, storage_writer=unreft.dcp.Writer(step))
    dcp.load(state_dict, storage_reader=unreft.dcp.Reader())

A step, or an id that ends in its digits ("runs/step_120"), names a checkpoint. `save`, and the
future of `async_save`, end when it is committed: when it outlives the loss of this process, and of
as many nodes as the job is protected against. docs/dcp.md is the page about it.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "unreft.dcp needs PyTorch, which this Python does not have: pip install 'unreft[torch]', "
        "or torch as your machine has it"
    ) from error

from unreft.dcp import interface

interface.check()

from unreft.dcp.reader import Reader  # noqa: E402
from unreft.dcp.session import close  # noqa: E402
from unreft.dcp.stager import Stager  # noqa: E402
from unreft.dcp.writer import Writer  # noqa: E402

__all__ = ["Reader", "Stager", "Writer", "close"]
