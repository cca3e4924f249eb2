"""What training by Megatron-Core has beside tensors and parameter groups, as extras of a snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import rerun_state_machine, tensor_parallel

from unreft.errors import FailedPrecondition
from unreft.torch.alike import alike
from unreft.torch.mesh_place import Place, read_place
from unreft.torch.reshard import Reshard
from unreft.torch.rng import Rng

_log = logging.getLogger("unreft")

# What a scheduler reads of each parameter group, before what it has itself.
_BOUNDS = ("max_lr", "min_lr", "start_wd", "end_wd")
_OWN_DEVICE = "cuda_own"


def extras_of(scheduler: Any, place: Place, rng: bool) -> dict[str, Any]:
    """`scheduler`: an OptimizerParamScheduler or None. The generators come last: nothing may draw
    after they are restored."""
    found: dict[str, Any] = {"rerun_state_machine": RerunMachine()}
    if scheduler is not None:
        found["opt_param_scheduler"] = Scheduler(scheduler)
    if rng:
        generators = Generators(place)
        found["generators"] = Reshard(generators, generators.of_others)
    return {f"mcore/{name}": extra for name, extra in found.items()}


class RerunMachine:
    """The one that Megatron-Core checks results with, by running a step again. Where it is at rest,
    as it is between steps, there is nothing of it to be kept."""

    def state_dict(self) -> dict[str, Any]:
        """Raises `FailedPrecondition` while it checks a step: training could not go on there."""
        machine = rerun_state_machine._GLOBAL_RERUN_STATE_MACHINE
        if machine is not None and machine.state != rerun_state_machine.RerunState.NOT_RUNNING_YET:
            raise FailedPrecondition(
                "the rerun state machine of Megatron-Core is checking a step (it is in state "
                f"{machine.state.name}): snapshots go on when it has done so"
            )
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Scheduler:
    """An OptimizerParamScheduler, whose `load_state_dict` adds to the steps that it has made.

    The parameter groups have the stored bounds by then. Where it is to override what is stored,
    they get those again that this program was started with; where it is not told to take what is
    stored either, these have to be alike.
    """

    def __init__(self, scheduler: Any):
        self._scheduler = scheduler
        groups = scheduler.optimizer.param_groups
        self._bounds = [{key: group[key] for key in _BOUNDS if key in group} for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_bounds()
        self._scheduler.num_steps = 0
        try:
            self._scheduler.load_state_dict(state)
        except AssertionError as error:
            raise FailedPrecondition(f"opt_param_scheduler: {error}") from error
        if self._scheduler.override_opt_param_scheduler:
            for group, bounds in zip(self._scheduler.optimizer.param_groups, self._bounds):
                group.update(bounds)
        self._scheduler.step(increment=0)  # once more, by all that was loaded

    def _check_bounds(self) -> None:
        scheduler = self._scheduler
        if scheduler.override_opt_param_scheduler or scheduler.use_checkpoint_opt_param_scheduler:
            return
        groups = scheduler.optimizer.param_groups
        for number, (group, bounds) in enumerate(zip(groups, self._bounds)):
            for key, found in bounds.items():
                if (needed := group.get(key)) != found:
                    raise FailedPrecondition(
                        f"opt_param_scheduler: {key} of parameter group {number} differs from the "
                        f"stored one, needed {needed}, found {found}: start with the stored one, "
                        "or make the scheduler with override_opt_param_scheduler or "
                        "use_checkpoint_opt_param_scheduler"
                    )


class Generators:
    """Those of Python, NumPy and torch, and of Megatron-Core's tracker; on a GPU that of the device
    that this rank draws from.

    What they draw belongs to a place in tensor and pipeline parallelism. Under other sizes of these
    they are left as they are, as by Megatron-Core's own checkpoints.
    """

    def __init__(self, place: Place):
        self._place = place
        self._rng = Rng()

    def state_dict(self) -> dict[str, Any]:
        return {
            "place": self._place.record(),
            "rng": _of_own_device(self._rng.state_dict()),
            "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        rng = _of_own_device(state["rng"])
        own = rng.pop(_OWN_DEVICE, None)
        if own is not None and not torch.cuda.is_available():
            raise FailedPrecondition(
                "random state of a CUDA device was stored, this process has none"
            )
        tracker = tensor_parallel.get_cuda_rng_tracker()
        if state["tracker"]:
            tracker.set_states(state["tracker"])
        self._rng.load_state_dict(rng)
        if own is not None:
            torch.cuda.set_rng_state(own)

    def of_others(self, states: Sequence[dict[str, Any]], rank: int, _: int) -> Any:
        """The state for this rank, from those of all ranks of another mesh; None where there is
        none for it. A replica that there was not draws as the others, if these draw alike."""
        places = [read_place(state["place"]) for state in states]
        found = {
            place.index("dp"): {**state, "place": None, "rng": _of_own_device(state["rng"])}
            for state, place in zip(states, places)
            if self._is_at(place)
        }
        if not found:
            if rank == 0:
                self._say_left(places[0], "")
            return None
        first, own = next(iter(found.values())), found.get(self._place.index("dp"))
        if own is None and all(alike(first, other) for other in found.values()):
            own = first
        if own is None:
            self._say_left(places[0], " as another replica, of which there are more now")
        return own

    def _say_left(self, place: Place, how: str) -> None:
        _log.warning(
            "random streams that ranks in a mesh of %s stored are not restored by one of %s%s: the "
            "generators go on as they were seeded", place, self._place, how
        )

    def _is_at(self, place: Place) -> bool:
        return all(
            place.size(name) == self._place.size(name)
            and place.index(name) == self._place.index(name)
            for name in ("pp", "tp")
        )


def _of_own_device(rng: dict[str, Any]) -> dict[str, Any]:
    """Of streams as `Rng` has them, with that of the device which their rank draws from in the
    place of all devices'. The others are other ranks', at other places, or nobody's."""
    found = dict(rng)
    device = found.pop("cuda_device", 0)
    if "cuda" in found:
        found[_OWN_DEVICE] = found.pop("cuda")[device]
    return found
