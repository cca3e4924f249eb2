"""The callback, which stands in for some methods of the loops."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.utilities.model_helpers import is_overridden

import unreft
import unreft.torch
from unreft.lightning.generators import draw_from, drawn
from unreft.lightning.logged import metrics_of, on_device, parts_of, results_of, take_results
from unreft.lightning.refusals import TRIED, check, check_loader, check_module, refused
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
        self._begun: dict[str, Any] = {}  # before the epoch's data were iterated over
        self._first: dict[str, Any] = {}  # before its first batch
        self._fetched = 0  # batches of the epoch's data
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
        self._stand_in(trainer._checkpoint_connector, "resume_start", self._resume_start)
        self._stand_in(fit_loop, "_load_combined_loader_states", self._begin_data)
        self._stand_in(fit_loop, "on_run_end", self._end_run)
        self._stand_in(epoch_loop, "on_run_start", self._begin_epoch)
        self._stand_in(epoch_loop, "advance", self._advance)

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
        if self._checkpointer.restore() is None:
            return
        self._now = drawn([])
        stored = self._checkpointer.extras["lightning"]
        self._take(stored)
        if not stored["ended"]:
            self._resumed = stored
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
            for loader in self._loaders(trainer.fit_loop.epoch_loop.val_loop):
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
        loaders = self._loaders(self._trainer.fit_loop)
        if len(loaders) != 1:
            raise refused("several dataloaders to train with")
        check_loader(loaders[0])
        self._own["_load_combined_loader_states"]()
        self._begun, self._fetched = drawn(loaders), 0

    def _begin_epoch(self, fetcher: Any) -> None:
        """Of the epoch loop: it iterates over the data again, except in the first epoch."""
        before = fetcher.combined_loader._iterator
        begun = drawn(self._loaders(self._trainer.fit_loop))
        self._own["on_run_start"](fetcher)
        if fetcher.combined_loader._iterator is not before:
            self._begun, self._fetched = begun, 0

    def _advance(self, fetcher: Any) -> None:
        """Of the epoch loop: trains a batch, with all of the last one done: logged, evaluated."""
        loop = self._trainer.fit_loop.epoch_loop
        if "DataLoaderIter" in type(fetcher).__name__:
            raise refused("a training_step that takes dataloader_iter")
        if self._resumed is not None:
            self._go_on(fetcher)
        elif self._fetched == 0:
            self._first = drawn(self._loaders(self._trainer.fit_loop))
        # Where a checkpoint on disk was loaded the loop may first have something to make up for.
        if not loop.restarting and not loop._should_accumulate():
            self._snapshot()
        total = loop.batch_progress.total
        before = total.ready
        try:
            self._own["advance"](fetcher)
        finally:
            self._fetched += total.ready - before

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
        val_loop = trainer.fit_loop.epoch_loop.val_loop
        has_validated = val_loop._combined_loader is not None
        connector = trainer._logger_connector
        saved: dict[str, Any] = {}
        if is_overridden("on_save_checkpoint", module):
            module.on_save_checkpoint(saved)
        return {
            "ended": self._ended,
            "position": self._position(),
            "loops": trainer.fit_loop.state_dict(),
            "should_stop": trainer.should_stop,
            "validated": dict(val_loop._seen_batches_per_dataloader) if has_validated else None,
            "begun": self._begun,
            "first": self._first,
            "fetched": self._fetched,
            "generators": drawn(self._all_loaders())["loaders"],
            "callbacks": {of.state_key: of.state_dict() for of in trainer.callbacks},
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule else {},
            "saved": saved,
            "logged": {name: getattr(connector, name) for name in _LOGGED},
            "results": results_of(trainer.fit_loop.epoch_loop._results),
            "metrics": {name: parts_of(metric) for name, metric in metrics_of(module).items()},
        }

    def _take(self, stored: dict[str, Any]) -> None:
        """What has to be there before the fit loop runs."""
        trainer, module = self._trainer, self._trainer.lightning_module
        states = dict(stored["callbacks"])
        for callback in trainer.callbacks:
            if state := states.pop(callback.state_key, None):
                callback.load_state_dict(state)
        if absent := sorted(key for key, state in states.items() if state):
            _log.warning("callbacks whose state is stored are not there: %s", ", ".join(absent))
        if stored["datamodule"]:
            trainer.datamodule.load_state_dict(stored["datamodule"])
        if is_overridden("on_load_checkpoint", module) and is_overridden(
            "on_save_checkpoint", module
        ):
            self._load_into(module, stored["saved"])
        trainer.fit_loop.load_state_dict(stored["loops"])
        self._take_logged(stored)

    @staticmethod
    def _load_into(module: LightningModule, saved: dict[str, Any]) -> None:
        has = sorted(map(str, saved))
        try:
            module.on_load_checkpoint(saved)
        except Exception as error:
            raise unreft.FailedPrecondition(
                f"on_load_checkpoint: given what on_save_checkpoint had added, {has}, it raised "
                f"{error!r}. A checkpoint's other entries, such as 'state_dict', are not in it: "
                "have it do without them, and start again"
            ) from error

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
        trainers.check_counted_in(stored["position"], self._position())
        fit_loop.load_state_dict(stored["loops"])
        inner = (epoch_loop.automatic_optimization, epoch_loop.manual_optimization)
        for loop in (fit_loop, epoch_loop, val_loop, *inner):
            loop.on_iteration_done()  # it is no longer restarting
        if stored["validated"] is not None:
            trainer.validating = True
            val_loop.setup_data()
            trainer.training = True
            val_loop._seen_batches_per_dataloader.update(stored["validated"])
        loaders = self._loaders(fit_loop)
        self._begun, self._first = stored["begun"], stored["first"]
        self._fetched = stored["fetched"]
        draw_from(self._begun, loaders)
        iter(fetcher)
        draw_from(self._first, loaders)
        for _ in range(self._fetched):
            next(fetcher.iterator)
        fetcher.fetched = epoch_loop.batch_progress.current.ready
        self._take_logged(stored)
        take_results(trainer, stored["results"])
        draw_from({**self._now, "loaders": stored["generators"]}, self._all_loaders())
        self._now, self._snapped = None, self._step

    def _position(self) -> dict[str, Any]:
        """What a position in the data is counted in."""
        trainer = self._trainer
        loaders = self._loaders(trainer.fit_loop)
        return {
            "lightning": TRIED,
            "ranks": trainer.world_size,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "batch_size": [loader.batch_size for loader in loaders],
            "samples": [len(loader.dataset) for loader in loaders],
            "batches of an epoch": trainer.fit_loop.max_batches,
            "samplers": [type(loader.sampler).__name__ for loader in loaders],
            "num_workers": [loader.num_workers for loader in loaders],
        }

    @staticmethod
    def _loaders(loop: Any) -> list[Any]:
        return [] if loop._combined_loader is None else loop._combined_loader.flattened

    def _all_loaders(self) -> list[Any]:
        fit_loop = self._trainer.fit_loop
        return [*self._loaders(fit_loop), *self._loaders(fit_loop.epoch_loop.val_loop)]


def _is_over(callback: Callback) -> bool:
    """Whether it has stopped the run, and would stop it again."""
    if isinstance(callback, Timer):
        left = callback.time_remaining()
        return left is not None and left <= 0
    return isinstance(callback, EarlyStopping) and (
        callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED or callback.stopped_epoch > 0
    )
