"""What of torch.distributed.checkpoint this package is written against, looked at on import."""

import inspect

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, StorageReader, StorageWriter
from torch.distributed.checkpoint.staging import AsyncStager

TRIED = "2.15"  # the torch that the tests run with

_BOTH = {"reset", "prepare_local_plan", "prepare_global_plan", "validate_checkpoint_id"}
_ABSTRACT = {
    StorageWriter: _BOTH | {"set_up_storage_writer", "write_data", "finish"},
    StorageReader: _BOTH | {"read_metadata", "set_up_storage_reader", "read_data"},
}
_CALLED = {
    AsyncStager: ("stage", "should_synchronize_after_execute", "close"),
    DefaultSavePlanner: ("set_up_planner", "create_local_plan", "resolve_data"),
}


def check() -> None:
    """Raises ImportError, by name, if another torch would call or answer differently."""
    unknown = []
    for base, methods in _ABSTRACT.items():
        for method in sorted(getattr(base, "__abstractmethods__", frozenset()) ^ methods):
            unknown.append(f"{base.__name__}.{method}")
    for base, methods in _CALLED.items():
        unknown += [f"{base.__name__}.{name}" for name in methods if not hasattr(base, name)]
    given = inspect.signature(DefaultSavePlanner.set_up_planner).parameters
    if "is_coordinator" not in given:
        unknown.append("DefaultSavePlanner.set_up_planner(is_coordinator)")
    if unknown:
        raise ImportError(
            f"unreft.dcp was tried with torch {TRIED}, and torch {torch.__version__} differs in "
            f"{', '.join(unknown)}: use that one, or unreft.torch.attach, which does without"
        )
