"""A snapshot's record as bytes: docs/formats/extras.md.

What Unreft understands itself is in the plain encoding, and the user's part, which may be of
classes that the user names, in pickles of `safe_pickle`. A record of format 4 was one pickle.
"""

import struct
from collections.abc import Mapping
from typing import Any

import torch

from unreft.errors import DataLoss, FailedPrecondition
from unreft.torch import plain, safe_pickle
from unreft.torch.device_extras import DeviceExtras
from unreft.torch.safe_pickle import Classes

FORMAT = 5
_MIN_READER = 5
_PICKLED = 4  # the format that was one pickle
_MAGIC = b"UNRFXTRA"
_OF_DCP = b"UNRFTDCP"  # what unreft.dcp.catalogue begins with
_HEADER = struct.Struct("<8sHHI")  # magic, format, min_reader, 0


def dumps(record: Mapping[str, Any], aside: DeviceExtras | None, classes: Classes) -> bytes:
    """Raises `InvalidArgument` for what cannot be stored."""
    parts = {name: part for name, part in record.items() if name not in ("scalars", "extras")}
    parts["optimizers"] = record["scalars"]["optimizers"]
    parts["modules"] = safe_pickle.dumps(record["scalars"]["modules"], aside, classes)
    parts["extras"] = safe_pickle.dumps(record["extras"], aside, classes)
    return _HEADER.pack(_MAGIC, FORMAT, _MIN_READER, 0) + plain.dumps(parts, aside)


def loads(data: bytes, staged: torch.Tensor | None, classes: Classes) -> dict[str, Any]:
    """Raises `DataLoss` for other bytes, `FailedPrecondition` for a format that is not known, and
    what `safe_pickle.loads` raises."""
    if data.startswith(_OF_DCP):
        raise FailedPrecondition(
            "extras: what is committed was saved by unreft.dcp: load it with unreft.dcp.Reader, or "
            "give it up with 'unreft fresh-start'"
        )
    if data[: len(_MAGIC)] != _MAGIC:
        return _of_pickle(safe_pickle.loads(data, staged, classes))
    if len(data) < _HEADER.size:
        raise DataLoss(f"extras: the {len(data)} bytes that are stored end within their header")
    _, stored, needed, _ = _HEADER.unpack_from(data)
    if needed > FORMAT:
        raise _other_format(stored)
    record = plain.loads(data[_HEADER.size :], staged)
    _check_parts(record)
    scalars = {
        "optimizers": record.pop("optimizers"),
        "modules": safe_pickle.loads(record.pop("modules"), staged, classes),
    }
    extras = safe_pickle.loads(record.pop("extras"), staged, classes)
    return {**record, "scalars": scalars, "extras": extras}


def _of_pickle(record: Any) -> dict[str, Any]:
    try:
        stored = record["format"]
        if stored == _PICKLED:
            for optimizer in record["scalars"]["optimizers"]:
                for group in optimizer["groups"]:
                    group["params"] = safe_pickle.loads(group["params"])
    except (KeyError, TypeError) as error:
        raise DataLoss("extras: what is stored is no record") from error
    if stored != _PICKLED:
        raise _other_format(stored)
    return record


def _other_format(stored: Any) -> FailedPrecondition:
    return FailedPrecondition(
        f"extras have format {stored}: this release reads formats {_PICKLED} to {FORMAT}"
    )


_KINDS = {"optimizers": list, "modules": bytes, "extras": bytes}


def _check_parts(record: Any) -> None:
    if type(record) is not dict:
        raise DataLoss("extras: what is stored is no record")
    for name, kind in _KINDS.items():
        if type(record.get(name)) is not kind:
            raise DataLoss(f"extras: the part '{name}' of what is stored is no {kind.__name__}")
    if not hasattr(record.get("step"), "__index__"):
        raise DataLoss("extras: the part 'step' of what is stored is no whole number")
    if "rng" not in record:
        raise DataLoss("extras: what is stored says nothing of random streams")
    for optimizer in record["optimizers"]:
        if not _is_optimizer(optimizer):
            raise DataLoss("extras: what is stored of an optimizer is none")


def _is_optimizer(stored: Any) -> bool:
    return (
        type(stored) is dict
        and type(groups := stored.get("groups")) is list
        and all(type(group) is dict and type(group.get("params")) is list for group in groups)
        and type(states := stored.get("states")) is dict
        and all(type(n) is str and type(state) is dict for n, state in states.items())
        and type(shards := stored.get("shards", {})) is dict
        and all(type(n) is str and type(keys) is list for n, keys in shards.items())
    )
