"""TrainingState: the tensors of a model and its optimizers by name, and what else they hold."""

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from unreft.errors import FailedPrecondition, InvalidArgument
from unreft.tensor import Tensor
from unreft.torch import listing, own_keys, refusals
from unreft.torch.buffers import Buffers
from unreft.torch.mesh_place import Place
from unreft.torch.module_extras import ModuleExtras
from unreft.torch.names import clean
from unreft.torch.optimizer_tensors import bind_value, is_sharded, make_plain, make_value
from unreft.torch.same_program import check_names
from unreft.torch.scalars import OptimizerScalars, load_group
from unreft.torch.shards import (
    Bound,
    DTensor,
    Holders,
    Replicas,
    bind,
    uncompiled,
)
from unreft.torch.watch import Watch

_OF_A_SET = re.compile(r"(rank|group)\d+/")
_FOREIGN = "not a parameter of the model"
_GATHERED = "FSDP2 keeps those of the root gathered after a forward pass until reshard()"
_SAME_PROGRAM = (
    "Attach the same model and optimizers as the run that stored it, or give that state up with "
    "`unreft fresh-start`"
)


class TrainingState:
    """Of `model`, which may be wrapped (DDP, torch.compile, FSDP2), and of its optimizers.

    Tied parameters are one tensor. Buffers are each rank's own and volatile: the forward pass
    writes them. Buffers that are not persistent are left out, as in `state_dict`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        replicas: Replicas,
        masters: Mapping[str, torch.Tensor] | None = None,
        volatile: Sequence[str] = (),
    ):
        """`masters`: what the optimizers step on instead of parameters, by their names.

        `volatile`: names, or patterns as of a shell, of what is written between steps.
        """
        refusals.check_model(model)
        replicas.check()
        self._model = _unwrap(model)
        self._optimizers = refusals.as_optimizers(optimizers)
        self._replicas = replicas
        self._buffers = Buffers(self._model)
        self._masters = {clean(name): master for name, master in (masters or {}).items()}
        self._names: dict[torch.Tensor, str] = {}  # of the parameters
        self._stepped: dict[torch.Tensor, str] = {}  # of what the optimizers may step on
        self._groups: dict[torch.optim.Optimizer, list[list[str]]] = {}  # names, as seen last
        self._scalars: dict[torch.optim.Optimizer, OptimizerScalars] = {}
        self._module_extras = ModuleExtras(self._model)
        self._volatile = [volatile] if isinstance(volatile, str) else list(volatile)
        self._name_parameters()  # now, so that attach() may refuse
        for optimizer in self._optimizers:
            self._named_groups(optimizer)
            refusals.check_state(optimizer, self._names)
            own_keys.warn_of_optimizer(optimizer)
        self._check_volatile()

    def steps_on(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer changes a tensor that is captured when it steps."""
        return optimizer in self._optimizers or any(
            parameter in self._stepped or parameter in self._names
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def lacking(self, stepped: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        # A wrapper that is attached may have the state of the one that steps.
        attached = {id(optimizer.state) for optimizer in self._optimizers}
        return [
            optimizer
            for optimizer in stepped
            if id(optimizer.state) not in attached
            and any(
                (parameter in self._stepped or parameter in self._names)
                and optimizer.state.get(parameter)
                for group in optimizer.param_groups
                for parameter in group["params"]
            )
        ]

    def trained(self) -> list[torch.Tensor]:
        """The parameters that require a gradient."""
        return [parameter for parameter in self._names if parameter.requires_grad]

    @property
    def rank(self) -> int:
        return self._replicas.rank

    @property
    def world(self) -> int:
        return self._replicas.world

    @property
    def place(self) -> Place | None:
        return self._replicas.place

    @property
    def own(self) -> Holders:
        """Of what no other rank has."""
        return self._replicas.own()

    @torch.no_grad()
    def live(self) -> list[Bound]:
        """Everything, where it lies now."""
        return self._bind(self._buffers.live())

    def without_state(self) -> set[str]:
        """The parameters, as `optim/<parameter>`, that have no optimizer state yet."""
        return {
            f"{self._prefix(optimizer)}/{name}"
            for optimizer in self._optimizers
            for names, group in zip(self._named_groups(optimizer), optimizer.param_groups)
            for name, parameter in zip(names, group["params"])
            if not optimizer.state.get(parameter)
        }

    # --- capture ---

    def bind(self) -> list[Bound]:
        """Everything that a snapshot captures, as it is now."""
        self._replicas.check()
        self._name_parameters()
        self._module_extras.find()
        with torch.no_grad():
            return self._bind(self._buffers.stable())

    def watch(self, bounds: Sequence[Bound]) -> Watch:
        """Of what the last `bind` returned."""
        containers = []
        for module in self._model.modules():
            containers += [module._parameters, module._modules]
        for optimizer in self._optimizers:
            containers += [optimizer.state, *optimizer.state.values()]
        return Watch(
            sized=[*containers, *(module._buffers for module in self._model.modules())],
            containers=containers,
            slots=self._buffers.watched(),
            # load_state_dict makes another dict; conversions of a model, and FSDP2, other parts.
            attributes=[
                *((optimizer, "state") for optimizer in self._optimizers),
                *((bound.owner, "_local_tensor") for bound in bounds if bound.owner is not None),
            ],
            bounds=bounds,
        )

    def remember_buffers(self) -> None:
        """Before the loop: then the first `bind` knows which buffers the forward pass replaces."""
        self._buffers.remember()

    def steps_on_known(self) -> bool:
        """Whether the optimizers step on what they did; False when that needs another `bind`."""
        return not self._masters or all(
            map(
                self._stepped.__contains__,
                itertools.chain.from_iterable(
                    group["params"] for o in self._optimizers for group in o.param_groups
                ),
            )
        )

    def refresh(self) -> bool:
        """To be called before each snapshot; False when it needs another `bind`."""
        return self._buffers.refresh()

    def module_extras(self) -> dict[str, Any]:
        """What modules give of themselves, by name; of the modules that the last `bind` found."""
        return self._module_extras.values()

    def optimizer_scalars(self, known: bool) -> list[dict[str, Any]]:
        """Hyperparameters and plain values of the states, of each optimizer.

        `known`: the watch of the last `bind` says that nothing has changed since the last call, so
        that of thousands of states only those with plain values are looked at.
        """
        if not known:
            self._scalars = {}
        for optimizer in self._optimizers:
            scalars = self._scalars.get(optimizer)
            if scalars is None or not scalars.fits():
                self._scalars[optimizer] = OptimizerScalars(
                    optimizer, self._named_groups(optimizer), self._states(optimizer)
                )
        return [self._scalars[optimizer].values() for optimizer in self._optimizers]

    # --- dry run ---

    @torch.no_grad()
    def live_without_optimizers(self) -> list[Bound]:
        return [*self._parameters(), *self._bind_buffers(self._buffers.live())]

    @torch.no_grad()
    def places_of_optimizer_state(self) -> list[Bound]:
        """Of each parameter that an optimizer steps on, as `optim/<parameter>/*`, what lies there
        of its shape; what is stored beneath that name and has another shape is not cut."""
        places = []
        for optimizer in self._optimizers:
            for names, group in zip(self._named_groups(optimizer), optimizer.param_groups):
                for name, parameter in zip(names, group["params"]):
                    every = f"{self._prefix(optimizer)}/{name}/*"
                    places.append(bind(every, parameter, self._holders(parameter, name)))
                    if is_sharded(parameter):
                        places.append(bind(every, torch.zeros(1, device="cpu"), self.own))
        return places

    # --- restore ---

    def names(self) -> list[str]:
        """Those of everything that lives now."""
        self._name_parameters()
        return [bound.spec.name for bound in self.live()]

    def bind_for_restore(self, stored: Sequence[Tensor]) -> list[Bound]:
        """The live tensors for what is stored; optimizer state that is not there yet is made.

        Fails, naming them, when a tensor lacks or differs on either side.
        """
        self._name_parameters()
        with torch.no_grad():
            self._make_optimizer_state(stored)
            self._buffers.make(f"{self.own.prefix}buffer/", stored)
        bounds = self.live()
        self._check_same(bounds, {tensor.name: tensor for tensor in stored})
        return bounds

    def check_scalars(self, scalars: dict[str, Any]) -> None:
        """Fails when what is stored of optimizers, or modules, is of others than these."""
        if len(scalars["optimizers"]) != len(self._optimizers):
            raise FailedPrecondition(
                f"{len(scalars['optimizers'])} optimizers were stored, "
                f"{len(self._optimizers)} are attached"
            )
        for optimizer, stored in zip(self._optimizers, scalars["optimizers"]):
            groups = self._named_groups(optimizer)
            needed = [group["params"] for group in stored["groups"]]
            if needed != groups:
                raise FailedPrecondition(
                    f"{type(optimizer).__name__}: the parameter groups differ from the stored "
                    f"ones, needed {_sizes(needed)}, found {_sizes(groups)}. {_SAME_PROGRAM}"
                )
        self._module_extras.check(scalars["modules"], _SAME_PROGRAM)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        """Of the optimizers and modules that `check_scalars` has compared."""
        for optimizer, stored in zip(self._optimizers, scalars["optimizers"]):
            self._load_optimizer_scalars(optimizer, stored)
        self._module_extras.load(scalars["modules"])

    # --- the model ---

    def _name_parameters(self) -> None:
        names = {}
        for name, parameter in self._model.named_parameters():
            names[parameter] = clean(name)
            self._bind_parameter(parameter, names[parameter])
        self._names = names
        self._follow_masters()
        self._stepped = {p: name for p, name in names.items() if name not in self._masters}
        for name, master in self._masters.items():
            if name not in names.values():
                raise InvalidArgument(f"masters: '{name}' is {_FOREIGN}")
            if master in names:
                raise InvalidArgument(
                    f"masters: that of '{name}' is the parameter '{names[master]}' itself"
                )
            self._bind_master(master, name)
            self._stepped[master] = name

    def _follow_masters(self) -> None:
        """Takes what an optimizer steps on now in a master's place for it, if it is of its kind."""
        for optimizer, known in self._groups.items():
            for names, group in zip(known, optimizer.param_groups):
                for name, parameter in zip(names, group["params"]):
                    master = self._masters.get(name)
                    if master is None or parameter is master or parameter in self._names:
                        continue
                    if _kind_of(parameter) != _kind_of(master):
                        raise FailedPrecondition(
                            f"masters: that of '{name}' was replaced by another kind of tensor, "
                            f"needed {_kind_of(master)}, found {_kind_of(parameter)}"
                        )
                    self._masters[name] = parameter

    def _check_volatile(self) -> None:
        if not self._volatile:
            return
        known = {_OF_A_SET.sub("", bound.spec.name, count=1) for bound in self.live()}
        for pattern in self._volatile:
            if pattern.startswith("optim") or any(map(self._is_meant(pattern), known)):
                continue  # an optimizer makes its state when it steps
            some = listing.names(sorted(known)[: listing.NAMES_MAX])
            raise InvalidArgument(
                f"volatile: nothing is called '{pattern}'; names are such as {some}"
            )

    @staticmethod
    def _is_meant(pattern: str):
        return lambda name: fnmatch.fnmatchcase(name, pattern) or (
            fnmatch.fnmatchcase(name, f"model/{pattern}")
        )

    def _bind(self, buffers: Iterable[tuple[str, torch.Tensor]]) -> list[Bound]:
        bounds = [*self._parameters(), *self._bind_buffers(buffers), *self._optimizer_tensors()]
        for meant in map(self._is_meant, self._volatile):
            for index, bound in enumerate(bounds):
                if meant(_OF_A_SET.sub("", bound.spec.name, count=1)):
                    spec = dataclasses.replace(bound.spec, volatile=True)
                    bounds[index] = dataclasses.replace(bound, spec=spec)
        return bounds

    def _bind_parameter(self, parameter: torch.Tensor, name: str) -> Bound:
        return bind(f"model/{name}", parameter, self._holders(parameter, name))

    def _bind_master(self, master: torch.Tensor, name: str) -> Bound:
        return bind(f"master/{name}", master, self._holders(master, name))

    def _holders(self, parameter: torch.Tensor, name: str):
        if isinstance(parameter, DTensor):
            return self._replicas.of_mesh(parameter.device_mesh)
        return self._replicas.of_plain(name)

    def _parameters(self) -> Iterator[Bound]:
        for parameter, name in self._names.items():
            yield self._bind_parameter(parameter, name)
        for name, master in self._masters.items():
            yield self._bind_master(master, name)

    def _bind_buffers(self, buffers: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Bound]:
        for name, buffer in buffers:
            # distribute_module makes them DTensors, of which each rank has its own all the same.
            local = buffer._local_tensor if isinstance(buffer, DTensor) else buffer
            bound = bind(f"buffer/{clean(name)}", local, self.own, volatile=True)
            owner = None if local is buffer else buffer
            yield dataclasses.replace(bound, owner=owner)

    # --- the optimizers ---

    def _prefix(self, optimizer: torch.optim.Optimizer) -> str:
        if len(self._optimizers) == 1:
            return "optim"
        return f"optim{self._optimizers.index(optimizer)}"

    def _named_groups(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """The names of the parameters of each group."""
        groups = []
        for index, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter not in self._stepped:
                    place = f"{type(optimizer).__name__}: parameter {position} of group {index}"
                    self._refuse_parameter(f"{place}, shape {tuple(parameter.shape)},", parameter)
            groups.append([self._stepped[parameter] for parameter in group["params"]])
        self._groups[optimizer] = groups
        return groups

    def _refuse_parameter(self, subject: str, parameter: torch.Tensor) -> None:
        if known := self._names.get(parameter):
            raise InvalidArgument(
                f"{subject} is '{known}', of which `masters` has a copy: the optimizer steps on "
                "one of the two, pass the master to it or leave it out of `masters`"
            )
        if isinstance(parameter, DTensor):
            raise FailedPrecondition(f"{subject} is {_FOREIGN} now: {_GATHERED}")
        raise InvalidArgument(
            f"{subject} is {_FOREIGN}. Attach the model that has it, as it is "
            "trained; make the optimizer after the model was wrapped, converted or moved; of fp32 "
            "copies of its parameters tell by masters={'<name of the parameter>': tensor}"
        )

    def _states(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any, dict]]:
        """Name, parameter and state of every parameter of the optimizer."""
        for names, group in zip(self._named_groups(optimizer), optimizer.param_groups):
            for name, parameter in zip(names, group["params"]):
                if parameter in optimizer.state:
                    yield name, parameter, optimizer.state[parameter]

    def _optimizer_tensors(self) -> Iterator[Bound]:
        for optimizer in self._optimizers:
            refusals.check_state(optimizer, self._names)
            prefix = self._prefix(optimizer)
            for name, parameter, state in self._states(optimizer):
                head, holders = f"{prefix}/{name}", self._holders(parameter, name)
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        bound = bind_value(head, key, value, parameter, holders, self.own)
                        yield dataclasses.replace(bound, replaceable=True)

    def _load_optimizer_scalars(self, optimizer: torch.optim.Optimizer, stored: dict) -> None:
        for group, values in zip(optimizer.param_groups, stored["groups"]):
            load_group(group, values)
        parameters = {self._stepped[p]: p for g in optimizer.param_groups for p in g["params"]}
        for name, values in stored["states"].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    values[key] = value.to(parameters[name].device)
            optimizer.state[parameters[name]].update(values)
        for name, keys in stored.get("shards", {}).items():
            make_plain(optimizer.state[parameters[name]], keys)

    def _make_optimizer_state(self, stored: Sequence[Tensor]) -> None:
        """Gives every parameter exactly the state tensors that are stored, kept where they fit."""
        for optimizer in self._optimizers:
            wanted: dict[str, dict[str, Tensor]] = {}
            for tensor in stored:
                head, _, key = tensor.name.rpartition("/")
                wanted.setdefault(head, {})[key] = tensor
            for names, group in zip(self._named_groups(optimizer), optimizer.param_groups):
                for name, parameter in zip(names, group["params"]):
                    head = f"{self._prefix(optimizer)}/{name}"
                    state = {
                        key: make_value(optimizer, group, parameter, key, tensor, is_own=is_own)
                        for prefix, is_own in self._prefixes(parameter, name).items()
                        for key, tensor in wanted.get(f"{prefix}{head}", {}).items()
                    }
                    # In place, so that a reference to the optimizer's own dict stays good.
                    if state or parameter in optimizer.state:
                        optimizer.state[parameter].clear()
                        optimizer.state[parameter].update(state)

    def _prefixes(self, parameter: torch.Tensor, name: str) -> dict[str, bool]:
        """Of the names of its state, and whether what is called so is this rank's alone, of a
        parameter of which others have parts."""
        prefixes = {self.own.prefix: True} if is_sharded(parameter) else {}
        return {**prefixes, self._holders(parameter, name).prefix: False}

    # --- both sides of a restore ---

    def _check_same(self, bounds: Sequence[Bound], stored: dict[str, Tensor]) -> None:
        live = {bound.spec.name: bound.spec for bound in bounds}
        # Of a tensor without elements here, others may have stored theirs, or there may be none.
        filled = [bound.spec.name for bound in bounds if bound.local.numel()]
        missing = [name for name in filled if name not in stored]
        ours = {f"rank{self._replicas.rank}", *(name.partition("/")[0] for name in live)}
        unknown = [
            name
            for name in stored
            if name not in live
            and (_OF_A_SET.match(name) is None or name.partition("/")[0] in ours)
        ]
        check_names(missing, unknown, _SAME_PROGRAM)
        for name, spec in live.items():
            other = stored.get(name, spec)
            if (spec.dtype, spec.global_shape) != (other.dtype, other.global_shape):
                raise FailedPrecondition(
                    f"tensor '{name}': {_kind(other)} was stored, found {_kind(spec)}. "
                    f"{_SAME_PROGRAM}"
                )


def _unwrap(model: nn.Module) -> nn.Module:
    model = uncompiled(model)
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = uncompiled(model.module)
    return model


def _kind_of(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} on {tensor.device}"


def _kind(spec: Tensor) -> str:
    return f"{spec.dtype.name.lower()}{list(spec.global_shape)}"


def _sizes(groups) -> str:
    return f"groups of {[len(group) for group in groups]} parameters"
