"""Attachment: the callback, which stands in for some methods of the Trainer."""

from __future__ import annotations

import logging
import os
import random
import re
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from transformers.trainer_callback import EarlyStoppingCallback, ExportableState
from transformers.trainer_utils import get_last_checkpoint

import unreft
import unreft.torch
from unreft.torch import ranks, trainers
from unreft.torch.attaching import options_of_peek
from unreft.transformers import refusals
from unreft.transformers.log_history import LogHistory, entries_of

_log = logging.getLogger("unreft")

# What a directory of a checkpoint would have, and memory has instead.
_LOADS = (
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_scaler",
    "_load_rng_state",
)
_STATE, _OPTIMIZER = "trainer_state.json", re.compile("optimizer")  # in such a directory
NEEDED = (*_LOADS, "_finalize_training", "callback_handler", "control")  # of a Trainer
# Of the state, what the Trainer does not compute anew when it begins. Its step is what `peek` says.
_COUNTED = (
    "epoch",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
_LOGGED = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "current_flos",
)


class _Finished(Exception):
    """What memory has is the end of the run."""


class Attachment(transformers.TrainerCallback):
    """Of one trainer, whose methods it stands in for while that resumes from memory."""

    def __init__(
        self,
        trainer: transformers.Trainer,
        every: int,
        extras: dict[str, Any],
        options: dict[str, Any],
    ):
        self._trainer = trainer
        self._every = every
        self._extras = extras
        self._options = options
        self._checkpointer: unreft.torch.Checkpointer | None = None
        self._is_done = False
        self._directory: str | None = None  # that stands for what memory has
        self._generators: Callable[[], None] | None = None  # sets them as they were
        self._snapped: int | None = None  # the step of the last snapshot
        self._ended_at: int | None = None  # the number of steps that the run was to have
        self._is_passed_over = False  # what is in memory, since a directory is newer
        self._is_over = False  # what is restored is the end of the run
        self._position: dict[str, Any] = {}  # what a position in the data is counted in
        self._history = LogHistory()
        self._has_cut_epoch = False  # a step is no position in the data any more
        self._is_within_step = False  # some of its batches, not all, have been trained with
        self._train = trainer.train
        trainer.train = self.train
        self._finalize = trainer._finalize_training
        trainer._finalize_training = self._finalize_training
        for name in _LOADS:
            setattr(trainer, name, self._unless_from_memory(getattr(trainer, name)))

    def _unless_from_memory(self, load: Callable[..., None]) -> Callable[..., None]:
        def loads(checkpoint: Any, *args: Any, **kwargs: Any) -> None:
            if checkpoint is None or checkpoint != self._directory:
                load(checkpoint, *args, **kwargs)

        return loads

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """In place of the trainer's."""
        if self._is_done or self._checkpointer is not None:
            raise unreft.FailedPrecondition(
                "train() was called before in this process: a process trains one attempt of a job"
            )
        if kwargs.get("trial") is not None:
            raise unreft.FailedPrecondition("a search for hyperparameters is not supported")
        step = unreft.torch.peek(**options_of_peek(unreft.torch.attach, self._options))
        try:
            if step is None:
                return self._train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            if self._is_newer_on_disk(resume_from_checkpoint, step):
                self._is_passed_over = True
                return self._train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            if resume_from_checkpoint:
                _log.warning(
                    "step %d is in memory: resume_from_checkpoint=%r is not loaded",
                    step,
                    resume_from_checkpoint,
                )
            with tempfile.TemporaryDirectory() as self._directory:
                args = self._trainer.args
                state = transformers.TrainerState(global_step=step)
                # The trainer compares what it finds with its arguments.
                state.train_batch_size = args.train_batch_size
                state.compute_steps(args, max(args.max_steps, 0))
                state.save_to_json(os.path.join(self._directory, _STATE))
                return self._train(resume_from_checkpoint=self._directory, **kwargs)
        except _Finished:
            _log.info("step %d is in memory, the end of the run: nothing is trained", step)
            return self._finalize(None, 0, time.time())
        finally:
            self._is_done = True
            self._close()

    def _is_newer_on_disk(self, checkpoint: str | bool | None, step: int) -> bool:
        """Whether the directory that is asked for is of a later step, on all ranks, than what is in
        memory, as where nothing was committed for some time."""
        directory, found = checkpoint, -1
        try:
            if checkpoint is True:
                directory = get_last_checkpoint(self._trainer.args.output_dir)
            # One of the model alone is not what memory has.
            if directory and any(map(_OPTIMIZER.match, os.listdir(directory))):
                state = transformers.TrainerState.load_from_json(os.path.join(directory, _STATE))
                found = state.global_step
        except (OSError, ValueError, TypeError) as error:
            _log.warning("%s is left aside: %s", directory or checkpoint, error)
        found = min(of_rank for (of_rank,) in ranks.gather([found]))
        if found > step:
            _log.warning(
                "step %d of %s is newer than step %d in memory: training goes on from there",
                found, directory, step,
            )
        return found > step

    # --- what the trainer calls ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, loader = self._trainer, kwargs["train_dataloader"]
        refusals.check_optimizer(trainer)
        refusals.check_loader(loader)
        self._position = refusals.position_in(trainer, loader)
        extras = {
            **self._extras,
            "trainer/state": unreft.torch.Reshard(self._counted, trainers.refuse_ranks),
            "trainer/logged": unreft.torch.Reshard(self._logged, trainers.refuse_ranks),
            "trainer/scheduler": trainer.lr_scheduler,
        }
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            extras["trainer/scaler"] = scaler
        self._checkpointer = unreft.torch.attach(
            trainer.model_wrapped, trainer.optimizer, extras=extras, **self._options
        )
        if self._is_passed_over:
            self._checkpointer.pass_over()
            return
        if self._checkpointer.restore() is None:
            return
        state.compute_steps(args, state.max_steps)
        # As where it begins anew, or it would find no place for what it saves later.
        begun = transformers.TrainerState(stateful_callbacks=_stateful(trainer))
        state.stateful_callbacks = begun.stateful_callbacks
        self._snapped = state.global_step
        ended_at = self._take(self._checkpointer.extras["trainer/state"])
        for name, value in self._checkpointer.extras["trainer/logged"].items():
            # Tensors come back in the host's memory.
            setattr(trainer, name, value.to(args.device) if torch.is_tensor(value) else value)
        self._generators = _generators()
        self._is_over = ended_at is not None and state.max_steps <= ended_at

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Not sooner: what other callbacks end with the run they have begun with it by now."""
        if self._is_over:
            raise _Finished

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """With the next batch at hand, and all of the last step done: logged, evaluated, saved."""
        if self._generators is not None:
            # They drew while the batches before this one were skipped.
            self._generators()
            self._generators = None
        # The Trainer does so next. After an evaluation schedule-free optimizers write the weights
        # then, and no fence would have them wait for the snapshot: it would be given up.
        if callable(train := getattr(self._trainer.optimizer, "train", None)):
            train()
        self._snapshot(state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_within_step = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_within_step = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_epoch_stop and not control.should_training_stop:
            # Its `epoch` is that of the last step, which may have ended the epoch before.
            self._has_cut_epoch |= self._is_within_step or not float(state.epoch).is_integer()

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the trainer's, which may put the best model in the place of the last."""
        state = self._trainer.state
        # Between the batches of a step generators and buffers are ahead of the step before.
        is_ahead = self._is_within_step and state.global_step not in (0, self._snapped)
        has_ended = state.global_step >= state.max_steps or _lost_patience(self._trainer)
        if has_ended and not is_ahead:
            self._ended_at = state.max_steps
        else:
            _log.warning(
                "training was stopped at step %d of %d: started again, it goes on from %s",
                state.global_step,
                state.max_steps,
                "the last snapshot" if self._has_cut_epoch or is_ahead else "there",
            )
        if not is_ahead:
            self._snapshot(state.global_step, last=True)
        self._close()
        return self._finalize(*args, **kwargs)

    def _snapshot(self, step: int, last: bool = False) -> None:
        if step == 0 or step == self._snapped or self._checkpointer is None:
            return
        if last or step % self._every == 0:
            self._checkpointer.snapshot(step)
            self._snapped = step

    def _close(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()

    # --- what it has counted ---

    def _counted(self) -> dict[str, Any]:
        if self._has_cut_epoch:
            raise unreft.FailedPrecondition(
                "a callback has ended an epoch before its data (should_epoch_stop): where the data "
                "go on does not follow from the step any more, and nothing later can be restored"
            )
        state = self._trainer.state
        callbacks: dict[str, list[dict[str, Any]]] = {}
        for callback in _stateful(self._trainer):
            if not isinstance(callback, transformers.TrainerControl):
                attributes = callback.state().get("attributes", {})
                callbacks.setdefault(type(callback).__name__, []).append(attributes)
        return {
            **{name: getattr(state, name) for name in _COUNTED},
            "log_history": self._history.record(state.log_history),
            "callbacks": callbacks,
            "batch": self._position,
            "ended_at": self._ended_at,
        }

    def _logged(self) -> dict[str, Any]:
        return {name: getattr(self._trainer, name, None) for name in _LOGGED}

    def _take(self, stored: dict[str, Any]) -> int | None:
        """Whether the run had ended: then the number of steps that it was to have."""
        state = self._trainer.state
        trainers.check_counted_in(stored["batch"], self._position)
        for name in _COUNTED:
            setattr(state, name, stored[name])
        best = state.best_model_checkpoint
        is_there = best is None or os.path.isdir(best)
        if not all(of_rank for (of_rank,) in ranks.gather([is_there])):
            _log.warning("the best checkpoint, %s, is not there any more: it is left aside", best)
            state.best_model_checkpoint = None
        state.log_history = entries_of(stored["log_history"])
        callbacks = stored["callbacks"]
        for callback in _stateful(self._trainer):
            attributes = callbacks.get(type(callback).__name__)
            for name, value in attributes.pop(0).items() if attributes else ():
                setattr(callback, name, value)
        return stored["ended_at"]


def _lost_patience(trainer: transformers.Trainer) -> bool:
    """Whether it is for good that an EarlyStoppingCallback has stopped the run."""
    return any(
        isinstance(callback, EarlyStoppingCallback)
        and callback.early_stopping_patience_counter >= callback.early_stopping_patience
        for callback in trainer.callback_handler.callbacks
    )


def _stateful(trainer: transformers.Trainer) -> list[Any]:
    """What the Trainer saves the state of: callbacks, and its control."""
    handled = [*trainer.callback_handler.callbacks, trainer.control]
    return [callback for callback in handled if isinstance(callback, ExportableState)]


def _generators() -> Callable[[], None]:
    """Sets the global generators to what they are now."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore
