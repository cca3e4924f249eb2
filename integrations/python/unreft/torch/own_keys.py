"""Warnings of what modules and optimizers add to their `state_dict` by code of their own.

That is not captured: to read it would run their code at every snapshot.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from unreft.torch import listing
from unreft.torch.names import clean

_log = logging.getLogger("unreft")

_EXTRA_STATE = "_extra_state"  # torch's key of what modules give by get_extra_state


def warn_of_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if _saves_by_itself(module):
            known = {*module._parameters, *module._buffers, _EXTRA_STATE}
            _warn_of_module(name, module, _saved_by(module) - known)
    is_hooked = any(
        type(module).state_dict is not nn.Module.state_dict or module._state_dict_hooks
        for module in model.modules()
    )
    # Hooks before it may change the model, as FSDP2's do.
    if is_hooked and not any(module._state_dict_pre_hooks for module in model.modules()):
        _warn_of_module("", model, _added(model))


def warn_of_optimizer(optimizer: torch.optim.Optimizer) -> None:
    is_hooked = getattr(optimizer, "_optimizer_state_dict_post_hooks", None)
    if type(optimizer).state_dict is torch.optim.Optimizer.state_dict and not is_hooked:
        return
    # A wrapper may well give what torch's own does.
    saved = _state_dict_of(optimizer)
    if own := sorted(saved.keys() - {"state", "param_groups"}):
        _log.warning(
            "%s: it adds %s to its state_dict: that is not captured. Give it as an extra, such as "
            "extras={'%s': lambda: ...}",
            type(optimizer).__name__,
            listing.names(own),
            own[0],
        )


def _added(model: nn.Module) -> set[str]:
    """The keys of what an overridden `state_dict`, or a hook, adds; not of what it renames."""
    known = dict(model.named_parameters(remove_duplicate=False))
    known.update(model.named_buffers(remove_duplicate=False))
    names, places = set(map(clean, known)), set(map(_place, known.values())) - {None}
    named_before = {name for name, module in model.named_modules() if _saves_by_itself(module)}
    return {
        key
        for key, value in _state_dict_of(model).items()
        if clean(key) not in names
        and _place(value) not in places
        and not key.endswith(_EXTRA_STATE)
        and key.rpartition(".")[0] not in named_before
    }


def _place(value: Any) -> int | None:
    """Where it lies; None if that is nowhere, or in no one place."""
    try:
        return getattr(value, "_local_tensor", value).data_ptr() or None
    except (AttributeError, RuntimeError):
        return None


def _saves_by_itself(module: nn.Module) -> bool:
    return type(module)._save_to_state_dict is not nn.Module._save_to_state_dict


def _saved_by(module: nn.Module) -> set[str]:
    saved: dict[str, Any] = {}
    try:
        module._save_to_state_dict(saved, "", True)
    except Exception:  # it is the program's own code
        return set()
    return set(saved)


def _state_dict_of(owner: nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    try:
        return {str(key): value for key, value in owner.state_dict().items()}
    except Exception:  # it is the program's own code
        return {}


def _warn_of_module(name: str, module: nn.Module, own: Iterable[str]) -> None:
    if own := sorted(map(str, own)):
        _log.warning(
            "module '%s', a %s, saves %s in its state_dict by code of its own: that is not "
            "captured. Give it as an extra, or by get_extra_state",
            name,
            type(module).__name__,
            listing.names(own),
        )
