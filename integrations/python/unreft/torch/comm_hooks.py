"""CommHooks: how DistributedDataParallel communicates, as far as it matters to what is captured."""

import logging

import torch.distributed as dist
from torch import nn

from unreft.errors import InvalidArgument

_log = logging.getLogger("unreft")


class CommHooks:
    """Those of a DistributedDataParallel; a program may register one after `attach`."""

    def __init__(self, model: nn.parallel.DistributedDataParallel, are_alike: bool):
        """`are_alike`: its ranks' parameters are captured as replicas of each other."""
        self._model = model
        self._are_alike = are_alike
        self._warned: set[str] = set()

    def check(self) -> None:
        """Raises `InvalidArgument` for a hook with which ranks train apart, though they are taken
        for alike; warns once of the state of others, which is not captured."""
        for _, state in getattr(self._model, "_comm_hooks", ()):
            kind = type(state).__name__
            if kind == "PostLocalSGDState" and self._are_alike:
                raise InvalidArgument(
                    f"model: its communication hook has a {kind}, with which ranks have different "
                    "parameters from one averaging to the next, though DistributedDataParallel "
                    "says that they are alike: attach with replicas='none', so that each captures "
                    "its own"
                )
            # Hooks without state are given a process group; torch's own wrappers are private.
            if state is None or isinstance(state, dist.ProcessGroup) or kind.startswith("_"):
                continue
            if kind not in self._warned:
                self._warned.add(kind)
                _log.warning(
                    "model: what its communication hook keeps in a %s is not captured: after a "
                    "restore the hook begins anew",
                    kind,
                )
