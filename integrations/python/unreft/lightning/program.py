"""The state that a program's own parts have: callbacks, data module, module and extras."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden

import unreft
from unreft.torch import listing
from unreft.torch.extras import Extras
from unreft.torch.reshard import Reshard

_log = logging.getLogger("unreft")

# What it decides by, and does not have in its state_dict.
_OF_A_MODEL_CHECKPOINT = (
    "_defer_save_until_validation",
    "_last_global_step_saved",
    "_last_checkpoint_saved",
)


def state_of(trainer: Trainer) -> dict[str, Any]:
    module, saved = trainer.lightning_module, {}
    if is_overridden("on_save_checkpoint", module):
        module.on_save_checkpoint(saved)
    return {
        "callbacks": {of.state_key: of.state_dict() for of in trainer.callbacks},
        "model_checkpoints": {
            of.state_key: {name: getattr(of, name) for name in _OF_A_MODEL_CHECKPOINT}
            for of in trainer.callbacks
            if isinstance(of, ModelCheckpoint)
        },
        "datamodule": trainer.datamodule.state_dict() if trainer.datamodule else {},
        "saved": saved,
        "require_grad": _require_grad(module),
    }


def check_form(stored: Mapping[str, Any]) -> None:
    """Raises `unreft.FailedPrecondition` for a state of a release that stored another."""
    if missing := [part for part in ("program", "position", "validation") if part not in stored]:
        raise unreft.FailedPrecondition(
            f"what is committed lacks {', '.join(missing)}: another release of Unreft has stored "
            "it. Go on with that one, or give the state up with 'unreft fresh-start'"
        )


def take_callbacks(trainer: Trainer, stored: Mapping[str, Any]) -> None:
    states = dict(stored["callbacks"])
    for callback in trainer.callbacks:
        if state := states.pop(callback.state_key, None):
            _load_callback(callback, state)
        for name, value in stored["model_checkpoints"].get(callback.state_key, {}).items():
            setattr(callback, name, value)
    if absent := sorted(key for key, state in states.items() if state):
        _log.warning("callbacks whose state is stored are not there: %s", ", ".join(absent))


def _load_callback(callback: Any, state: Any) -> None:
    try:
        callback.load_state_dict(state)
    except Exception as error:
        raise unreft.FailedPrecondition(
            f"the callback {callback.state_key}: given what its state_dict was, its "
            f"load_state_dict raised {error!r}. Have it load that, and start again, or give the "
            "state up with 'unreft fresh-start'"
        ) from error


def take_data(trainer: Trainer, stored: Mapping[str, Any]) -> None:
    """What the data module and the module have stored, which fetching a batch may change: it is
    taken before they make their loaders, and again when batches have been fetched."""
    module = trainer.lightning_module
    if stored["datamodule"]:
        if trainer.datamodule is None:
            raise unreft.FailedPrecondition(
                "the state of a data module is stored, and fit() is given none: give it the "
                "datamodule that there was, or give the state up with 'unreft fresh-start'"
            )
        trainer.datamodule.load_state_dict(copy.deepcopy(stored["datamodule"]))
    if all(is_overridden(f"on_{what}_checkpoint", module) for what in ("load", "save")):
        load_into(module, copy.deepcopy(stored["saved"]))


def load_into(module: LightningModule, saved: dict[str, Any]) -> None:
    has = sorted(map(str, saved))
    try:
        module.on_load_checkpoint(saved)
    except Exception as error:
        raise unreft.FailedPrecondition(
            f"on_load_checkpoint: given what on_save_checkpoint had added, {has}, it raised "
            f"{error!r}. A checkpoint's other entries, such as 'state_dict', are not in it: "
            "have it do without them, and start again"
        ) from error


def take_require_grad(module: LightningModule, stored: bytes) -> None:
    """A module may freeze parameters in mid-run, in a hook that is not called again."""
    changed = []
    for (name, parameter), needed in zip(module.named_parameters(), stored, strict=True):
        if parameter.requires_grad != bool(needed):
            parameter.requires_grad_(bool(needed))
            changed.append(name)
    if changed:
        _log.info("requires_grad is set as it was stored: %s", listing.names(changed))


def _require_grad(module: LightningModule) -> bytes:
    """Whether each of its parameters requires a gradient, in their order: one byte for each, since
    their names at every step would be many."""
    return bytes(parameter.requires_grad for parameter in module.parameters())


class HeldExtras:
    """The states of extras as they are now, to load them again: of a dataset's generator, say,
    which fetching a batch draws from."""

    def __init__(self, extras: Mapping[str, Any]):
        self._extras = Extras({name: of for name, of in extras.items() if _has_state(of)})
        self._states = copy.deepcopy(self._extras.state())

    def load(self) -> None:
        self._extras.load(self._states)


def _has_state(extra: Any) -> bool:
    of = extra.extra if isinstance(extra, Reshard) else extra
    return hasattr(of, "load_state_dict") or hasattr(of, "set_state")
