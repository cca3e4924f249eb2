"""Unreft for megatron.training: one line above `pretrain`.

    import unreft.megatron

    unreft.megatron.install(every=10)
    pretrain(...)

The model and the optimizer are attached as `unreft.mcore.attach` does it, once `pretrain` has made
them, and go on where the job was killed. A snapshot is taken at the end of an iteration.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core.num_microbatches_calculator import (
    get_current_global_batch_size,
    get_num_microbatches,
    update_num_microbatches,
)
from megatron.training import get_args
from megatron.training import training as _training

import unreft
import unreft.torch
from unreft import mcore
from unreft.mcore.place import place_of
from unreft.mcore.training_extras import Generators
from unreft.torch.attaching import options_of_peek

_log = logging.getLogger("unreft")

# What a loop of megatron.training counts in its arguments, as its own checkpoints have it.
_COUNTS = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")
_FLOPS = "num_floating_point_operations_so_far"
_STANDS_FOR = ("setup_model_and_optimizer", "checkpoint_and_decide_exit", "train")
_installed: Installed | None = None


def install(*, every: int = 1, **options: Any) -> None:
    """Has `pretrain` of this process restore what is in memory, and take snapshots.

    Args:
      every: iterations between two snapshots.
      options: of `unreft.mcore.attach`, without the scheduler.

    To be called before `pretrain`, once. What is in memory is restored after what `--load` has
    loaded, if anything, and replaces it, unless that is of a later iteration.

    Raises `unreft.InvalidArgument` for `every`, `unreft.FailedPrecondition` where it was called
    before, or where megatron.training has no such functions as it stands for; `pretrain` then
    raises what `unreft.mcore.attach` and `Checkpointer.restore` raise, and `FailedPrecondition` for
    arguments with which more than that would have to be restored, and for a batch too small for the
    replicas that there are.
    """
    global _installed
    if every < 1:
        raise unreft.InvalidArgument(f"every: needed a number of iterations above 0, found {every}")
    if _installed is not None:
        raise unreft.FailedPrecondition("unreft.megatron.install() was called in this process")
    needed = (*_STANDS_FOR, "get_num_microbatches")
    missing = [name for name in needed if not callable(getattr(_training, name, None))]
    if missing:
        raise unreft.FailedPrecondition(
            f"megatron.training.training: needed a function '{missing[0]}', found none: "
            f"unreft.megatron was tried with megatron-core {mcore.refusals.TRIED}"
        )
    _installed = Installed(every, options)


class Installed:
    """Stands for functions that `pretrain` calls."""

    def __init__(self, every: int, options: dict[str, Any]):
        self._every = every
        self._options = options
        self._ck: mcore.ModelCheckpointer | None = None
        self._flops = 0.0  # so far
        self._drawn: dict[str, Any] | None = None  # the generators, as restored
        self._own: dict[str, Callable] = {}
        for name in _STANDS_FOR:
            self._own[name] = getattr(_training, name)
            setattr(_training, name, getattr(self, f"_{name}"))

    def _setup_model_and_optimizer(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        if self._ck is not None:  # of a run before in this process, which has failed
            self._ck.close()
        self._ck = self._drawn = None
        _check(get_args())
        with _any_batch_size():
            model, optimizer, scheduler = self._own["setup_model_and_optimizer"](*args, **kwargs)
        if optimizer is not None and not optimizer.is_stub_optimizer:  # something is trained
            self._attach(model, optimizer, scheduler)
        _check_batch_size()
        return model, optimizer, scheduler

    def _attach(self, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Restores what is in memory, if that is to be gone on with."""
        given = {**self._options, "opt_param_scheduler": scheduler}
        extras = {**(given.pop("extras", None) or {}), "megatron/counts": self._counts}
        are_newer = self._are_files_newer()
        self._ck = mcore.attach(model, optimizer, extras=extras, **given)
        if are_newer:
            self._ck.pass_over()
        elif (step := self._ck.restore()) is not None:
            self._go_on(step)
            if self._options.get("rng", True):
                self._drawn = Generators(place_of()).state_dict()
        self._flops = getattr(get_args(), _FLOPS)

    def _checkpoint_and_decide_exit(
        self, model: Any, optimizer: Any, scheduler: Any, iteration: int, flops: float, *args: Any
    ) -> bool:
        """Called when all that an iteration counts is counted."""
        self._flops = flops
        unprotected = None
        if self._ck is not None and iteration % self._every == 0:
            try:
                self._ck.snapshot(iteration)
            except unreft.Unprotected as error:  # all the more are files to be written
                unprotected = error
        own = self._own["checkpoint_and_decide_exit"]
        is_last = own(model, optimizer, scheduler, iteration, flops, *args)
        if unprotected is not None:
            raise unprotected
        return is_last

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        # Data iterators that were made since have drawn from them, as those of the run before had
        # done before its first iteration.
        if self._drawn is not None:
            Generators(place_of()).load_state_dict(self._drawn)
        try:
            return self._own["train"](*args, **kwargs)
        finally:
            if self._ck is not None:
                self._ck.close()

    def _counts(self) -> dict[str, Any]:
        args = get_args()
        return {**{name: getattr(args, name) for name in _COUNTS}, _FLOPS: self._flops}

    def _are_files_newer(self) -> bool:
        """Whether `--load` has loaded a later iteration than what is in memory, as it does where
        nothing was committed for some time."""
        loaded = get_args().iteration
        if not loaded:
            return False
        step = unreft.torch.peek(**options_of_peek(mcore.attach, self._options))
        if step is None or step >= loaded:
            return False
        if get_args().rank == 0:
            _log.warning("iteration %d, which was loaded from %s, is newer than iteration %d in "
                         "memory: training goes on from the files", loaded, get_args().load, step)
        return True

    def _go_on(self, iteration: int) -> None:
        """Sets what a load of files sets of the arguments."""
        args = get_args()
        if args.iteration and args.rank == 0:
            _log.warning("iteration %d in memory replaces iteration %d, which was loaded from %s",
                         iteration, args.iteration, args.load)
        args.iteration = iteration
        for name, value in self._ck.extras["megatron/counts"].items():
            setattr(args, name, value)
        update_num_microbatches(args.consumed_train_samples, consistency_check=False, verbose=True)


@contextlib.contextmanager
def _any_batch_size() -> Iterator[None]:
    """Puts off what `setup_model_and_optimizer` asserts of the batch size: at the samples consumed
    where training goes on it may be larger than at the first."""
    own = _training.get_num_microbatches
    _training.get_num_microbatches = lambda: max(1, own())
    try:
        yield
    finally:
        _training.get_num_microbatches = own


def _check_batch_size() -> None:
    """Raises `FailedPrecondition` where it is too small for the replicas that there are."""
    args = get_args()
    if get_num_microbatches() < 1:
        raise unreft.FailedPrecondition(
            f"the global batch size at {args.consumed_train_samples} samples consumed: needed at "
            f"least micro_batch_size ({args.micro_batch_size}) * data_parallel_size "
            f"({args.data_parallel_size}), found {get_current_global_batch_size()}: start fewer "
            "replicas"
        )


def _check(args: Any) -> None:
    """Raises `FailedPrecondition` where a run does not go on by what it has counted."""
    if args.dataloader_type == "external":
        raise unreft.FailedPrecondition(
            "--dataloader-type external: where such a loader was is not restored, its data would "
            "begin anew. Use single or cyclic, or unreft.mcore.attach in a loop of your own, with "
            "the loader among extras"
        )
    if getattr(args, "logits_save_dir", None) is not None:
        raise unreft.FailedPrecondition(
            "--logits-save-dir: logits wait in the process for the next files of a checkpoint, and "
            "those of iterations before the last snapshot would be missing after a restart"
        )
    if getattr(args, "perform_rl_step", False):
        raise unreft.FailedPrecondition(
            "--perform-rl-step: its loop loads weights and counts of its own, which was not tried"
        )
