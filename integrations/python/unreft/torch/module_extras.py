"""ModuleExtras: what modules give of themselves beside tensors (`get_extra_state`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from unreft.errors import FailedPrecondition
from unreft.torch import listing, own_keys
from unreft.torch.names import clean_module


class ModuleExtras:
    """Of a model, by the names of its modules without those of wrappers."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._found: dict[str, nn.Module] = {}
        self._has_warned = False

    def find(self) -> None:
        """Which modules have some now."""
        self._found = dict(self._with_extra_state())
        if not self._has_warned:
            self._has_warned = True
            own_keys.warn_of_model(self._model)

    def values(self) -> dict[str, Any]:
        """Of the modules that the last `find` has found."""
        return {name: module.get_extra_state() for name, module in self._found.items()}

    def check(self, stored: Mapping[str, Any], advice: str) -> None:
        """Fails unless what is stored is of the modules that have some now."""
        needed, found = set(map(clean_module, stored)), {n for n, _ in self._with_extra_state()}
        if needed != found:
            raise FailedPrecondition(
                "the extra state of modules (get_extra_state) was stored of "
                f"{_names(needed - found)} that have none here, and lacks of "
                f"{_names(found - needed)} that have some. {advice}"
            )

    def load(self, stored: Mapping[str, Any]) -> None:
        """Of what `check` has compared."""
        modules = dict(self._with_extra_state())
        for name, value in stored.items():
            modules[clean_module(name)].set_extra_state(value)

    def _with_extra_state(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self._model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield clean_module(name), module


def _names(names: set[str]) -> str:
    return f"{len(names)} modules ({listing.names(sorted(names))})" if names else "no modules"
