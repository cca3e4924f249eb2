"""The callback, which stands in for some methods of the loops."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

import unreft
import unreft.torch
from unreft.lightning import program
from unreft.lightning.generators import draw_from, drawn, drawn_of
from unreft.lightning.logged import metrics_of, on_device, parts_of, results_of, take_results
from unreft.lightning.position import Position
from unreft.lightning.refusals import check, check_loader, check_module, refused
from unreft.lightning.validation import Validation
from unreft.torch import ranks, trainers
from unreft.torch.attaching import options_of_peek

_log = logging.getLogger("unreft")

_LOGGED = (
    "_progress_bar_metrics",
    "_logged_metrics",
    "_callback_metrics",
    "_current_fx",
    "_first_loop_iter",
)


class Unreft(Callback):
    """Has `Trainer.fit` save every `every`-th step in memory, and go on from the last one.

    A checkpoint that is given to `fit(ckpt_path=...)` is loaded when nothing is in memory.

    Args:
      every: optimizer steps between two snapshots.
      extras: as of `unreft.torch.attach`, beside what the Trainer has.
      options: of `unreft.torch.attach`.

    `fit` raises `unreft.FailedPrecondition` for what would not go on as it was, by name, and what
    `unreft.torch.attach` and `peek` raise.
    """

    def __init__(self, *, every: int = 1, extras: Mapping[str, Any] | None = None, **options: Any):
        if every < 1:
            raise unreft.InvalidArgument(f"every: needed a number of steps above 0, found {every}")
        if not options.get("rng", True):
            raise unreft.InvalidArgument("rng: the position in the data needs the generators")
        self._every = every
        self._extras = dict(extras or {})
        self._options = options
        self._trainer: Trainer | None = None
        self._checkpointer: unreft.torch.Checkpointer | None = None
        self._step: int | None = None  # that memory has when `fit` begins
        self._snapped: int | None = None  # the step of the last snapshot
        self._resumed: dict[str, Any] | None = None  # until the first batch
        self._now: dict[str, Any] | None = None  # generators as they were restored
        self._held: program.HeldExtras | None = None  # extras as they were restored
        self._position: Position | None = None
        self._validation: Validation | None = None
        self._ended = False  # as the next snapshot says of the run
        self._own: dict[str, Any] = {}  # the methods that this stands in for
        self._owners: dict[str, Any] = {}  # whose they are, while it does

    # --- what the Trainer calls ---

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if self._trainer is not None:
            raise unreft.FailedPrecondition(
                "fit() was called before in this process: a process trains one attempt of a job"
            )
        check(trainer, pl_module)
        self._trainer = trainer
        # Before others, which may count a step: a new list, since this one is gone through.
        trainer.callbacks = [self, *(other for other in trainer.callbacks if other is not self)]
        self._options |= {"rank": trainer.global_rank, "world": trainer.world_size}
        self._step = unreft.torch.peek(**options_of_peek(unreft.torch.attach, self._options))
        fit_loop, epoch_loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._position, self._validation = Position(trainer), Validation(trainer)
        self._stand_in(trainer._checkpoint_connector, "resume_start", self._resume_start)
        self._stand_in(fit_loop, "_load_combined_loader_states", self._begin_data)
        self._stand_in(fit_loop, "on_run_end", self._end_run)
        self._stand_in(epoch_loop, "on_run_start", self._begin_epoch)
        self._stand_in(epoch_loop, "advance", self._advance)
        self._stand_in(epoch_loop.val_loop, "setup_data", self._validation.set_up)
        self._stand_in(trainer, "_run_sanity_check", self._validation.check)

    def _stand_in(self, owner: Any, name: str, method: Any) -> None:
        self._own[name] = getattr(owner, name)
        self._owners[name] = owner
        setattr(owner, name, method)

    def _resume_start(self, checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> None:
        if self._step is not None and checkpoint_path:
            _log.warning(
                "step %d is in memory: ckpt_path=%r is not loaded", self._step, checkpoint_path
            )
            checkpoint_path = None
        self._own["resume_start"](checkpoint_path, *args, **kwargs)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_module(pl_module)
        state = unreft.torch.Reshard(self._state, trainers.refuse_ranks)
        extras = {**self._extras, "lightning": state}
        for index, config in enumerate(trainer.lr_scheduler_configs):
            extras[f"lightning/scheduler{index}"] = config.scheduler
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            extras["lightning/scaler"] = scaler
        self._checkpointer = unreft.torch.attach(
            trainer.strategy.model, trainer.optimizers, extras=extras, **self._options
        )
        before = drawn([])
        if self._checkpointer.restore() is None:
            return
        # Until the loop goes on: a train_dataloader() that splits data at random does it as in the
        # first attempt.
        self._now = drawn([])
        draw_from(before, [])
        self._held = program.HeldExtras(self._extras)
        stored = self._checkpointer.extras["lightning"]
        program.check_form(stored)
        self._take(stored)
        if not stored["ended"]:
            self._resumed = stored
            self._validation.resume(stored["validation"])
            # The loader cannot resume, but is iterated over again up to the position.
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")
        elif trainer.fit_loop.done:
            # The check of the validation before a run would take what is logged away.
            trainer.fit_loop.epoch_loop.val_loop._restarting = True
            _log.info("step %d is in memory, the end of the run: nothing is trained", self._step)
        else:
            raise unreft.FailedPrecondition(
                f"what is committed is the end of a run, at step {self._step}, and this one is to "
                "go on: what a run does at its end cannot be taken back. Give the state up with "
                "'unreft fresh-start', and begin with a checkpoint on disk"
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer is self._trainer and trainer.state.fn == "fit":
            for loader in self._validation.loaders:
                check_loader(loader)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._now is not None:  # of a run that had ended, and has not trained
            draw_from(self._now, [])

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, error: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
        # To test or to predict begins with a checkpoint on disk, whatever memory has.
        for name, owner in self._owners.items():
            setattr(owner, name, self._own[name])
        self._owners.clear()

    # --- in place of the loops' ---

    def _begin_data(self) -> None:
        """Of the fit loop: it has a new loader, and iterates over it next."""
        loaders = self._position.loaders
        if len(loaders) != 1:
            raise refused("several dataloaders to train with")
        check_loader(loaders[0])
        self._own["_load_combined_loader_states"]()
        self._position.begin(drawn(loaders))

    def _begin_epoch(self, fetcher: Any) -> None:
        """Of the epoch loop: it iterates over the data again, except in the first epoch."""
        before = fetcher.combined_loader._iterator
        begun = drawn(self._position.loaders)
        self._own["on_run_start"](fetcher)
        if fetcher.combined_loader._iterator is not before:
            self._position.begin(begun)

    def _advance(self, fetcher: Any) -> None:
        """Of the epoch loop: trains a batch, with all of the last one done: logged, evaluated."""
        loop = self._trainer.fit_loop.epoch_loop
        if "DataLoaderIter" in type(fetcher).__name__:
            raise refused("a training_step that takes dataloader_iter")
        if self._resumed is not None:
            self._go_on(fetcher)
        else:
            self._position.note_first()
        # Where a checkpoint on disk was loaded the loop may first have something to make up for.
        if not loop.restarting and not loop._should_accumulate():
            self._snapshot()
        total = loop.batch_progress.total
        before = total.ready
        try:
            self._own["advance"](fetcher)
        finally:
            self._position.advance(total.ready - before)

    def _end_run(self) -> None:
        """Of the fit loop: with all that callbacks do at the end of the run done."""
        self._own["on_run_end"]()
        if self._has_ended():
            self._snapshot(ended=True)
            return
        # The loops have ended an epoch as if its data had, which nothing can go on from.
        _log.warning(
            "training was stopped at step %d, before its end: started again, it goes on from the "
            "last snapshot before it", self._trainer.global_step
        )

    def _has_ended(self) -> bool:
        """Whether it is for good, and not for a time limit of the program's own, say, that the run
        has stopped."""
        trainer = self._trainer
        if not trainer.should_stop:
            return True
        # Only the rank that has found the reason knows of it.
        over = any(map(_is_over, trainer.callbacks))
        if any(of_rank for (of_rank,) in ranks.gather([over])):
            return True
        trainer.should_stop = False
        try:
            # An epoch that was cut short counts among the others.
            return trainer.fit_loop.done and trainer.fit_loop.epoch_loop._is_training_done
        finally:
            trainer.should_stop = True

    def _snapshot(self, ended: bool = False) -> None:
        step = self._trainer.global_step
        if step == 0 or step == self._snapped or self._checkpointer is None:
            return
        if ended or step % self._every == 0:
            self._ended = ended
            self._checkpointer.snapshot(step)
            self._snapped = step

    # --- the state beside tensors ---

    def _state(self) -> dict[str, Any]:
        trainer, module = self._trainer, self._trainer.lightning_module
        connector = trainer._logger_connector
        return {
            "ended": self._ended,
            "position": self._position.state(),
            "validation": self._validation.state(),
            "generators": drawn_of(self._all_loaders()),
            "loops": trainer.fit_loop.state_dict(),
            "should_stop": trainer.should_stop,
            "program": program.state_of(trainer),
            "logged": {name: getattr(connector, name) for name in _LOGGED},
            "results": results_of(trainer.fit_loop.epoch_loop._results),
            "metrics": {name: parts_of(metric) for name, metric in metrics_of(module).items()},
        }

    def _take(self, stored: dict[str, Any]) -> None:
        """What has to be there before the fit loop runs."""
        program.take_callbacks(self._trainer, stored["program"])
        program.take_data(self._trainer, stored["program"])
        self._trainer.fit_loop.load_state_dict(stored["loops"])
        self._take_logged(stored)

    def _take_logged(self, stored: dict[str, Any]) -> None:
        trainer, device = self._trainer, self._trainer.strategy.root_device
        trainer.should_stop = stored["should_stop"]
        for name, value in stored["logged"].items():
            setattr(trainer._logger_connector, name, on_device(device, value))
        found = metrics_of(trainer.lightning_module)
        if found.keys() != stored["metrics"].keys():
            differ = ", ".join(sorted(found.keys() ^ stored["metrics"].keys()))
            raise unreft.FailedPrecondition(f"metrics: not the same as what is committed: {differ}")
        for name, parts in stored["metrics"].items():
            for part, value in parts.items():
                setattr(found[name], part, on_device(device, value))

    def _go_on(self, fetcher: Any) -> None:
        """With the loops where they were, at rest; their own way of restarting skips and repeats
        parts of a batch."""
        stored, self._resumed = self._resumed, None
        trainer, fit_loop = self._trainer, self._trainer.fit_loop
        epoch_loop, val_loop = fit_loop.epoch_loop, fit_loop.epoch_loop.val_loop
        fit_loop.load_state_dict(stored["loops"])
        inner = (epoch_loop.automatic_optimization, epoch_loop.manual_optimization)
        for loop in (fit_loop, epoch_loop, val_loop, *inner):
            loop.on_iteration_done()  # it is no longer restarting
        self._validation.go_on()
        self._position.go_to(stored["position"], fetcher)
        # Fetching the batches again has changed these once more.
        self._held.load()
        program.take_data(trainer, stored["program"])
        program.take_require_grad(trainer.lightning_module, stored["program"]["require_grad"])
        self._take_logged(stored)
        take_results(trainer, stored["results"])
        own = stored["generators"]
        draw_from({**own, "global": self._now["global"]}, self._all_loaders())
        self._now, self._held, self._snapped = None, None, self._step

    def _all_loaders(self) -> list[Any]:
        return [*self._position.loaders, *self._validation.loaders]


def _is_over(callback: Callback) -> bool:
    """Whether it has stopped the run, and would stop it again."""
    if isinstance(callback, Timer):
        left = callback.time_remaining()
        return left is not None and left <= 0
    return isinstance(callback, EarlyStopping) and (
        callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED or callback.stopped_epoch > 0
    )
