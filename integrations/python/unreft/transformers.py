"""Unreft for the Trainer of Hugging Face: one line, and it goes on where it was killed.

    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    unreft.transformers.attach(trainer)
    trainer.train()

Model, optimizer, scheduler and loss scaler are captured, the position in the data, the random
generators, and what the Trainer has counted and logged; a run that was killed ends with the same
bytes as one that was not, unless its data draw random numbers when they are fetched.
docs/hugging_face.md is the page about it.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import has_length

import unreft
import unreft.torch

TRIED = "5.23"

_log = logging.getLogger("unreft")

# What a directory of a checkpoint would have, and memory has instead.
_LOADS = (
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_scaler",
    "_load_rng_state",
)
# Of the state, what the Trainer does not compute anew when it begins. Its step is what `peek` says.
_COUNTED = (
    "epoch",
    "num_input_tokens_seen",
    "total_flos",
    "log_history",
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


def attach(
    trainer: transformers.Trainer,
    *,
    every: int = 1,
    extras: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Has `trainer.train` save every `every`-th step in memory, and go on from the last one.

    To be called once, before `train`, on all ranks. A directory that is given to
    `train(resume_from_checkpoint=...)` is loaded when nothing is committed in memory.

    Args:
      trainer: a `Trainer`, or of a class derived from it.
      every: optimizer steps between two snapshots.
      extras: as of `unreft.torch.attach`, beside what the Trainer has.
      options: of `unreft.torch.attach`.

    Raises `unreft.FailedPrecondition` for what a Trainer does otherwise than this goes along with,
    by name; what `unreft.torch.attach` and `peek` raise, `train` raises.
    """
    if every < 1:
        raise unreft.InvalidArgument(f"every: needed a number of steps above 0, found {every}")
    _check(trainer)
    # Before others, which may count a step when it begins: what is captured is the one before.
    attachment = _Attachment(trainer, every, dict(extras or {}), options)
    trainer.callback_handler.callbacks.insert(0, attachment)


class _Finished(Exception):
    """What memory has is the end of the run."""


def _check(trainer: transformers.Trainer) -> None:
    needed = (*_LOADS, "_finalize_training", "callback_handler")
    lacks = [name for name in needed if not hasattr(trainer, name)]
    if lacks:
        raise unreft.FailedPrecondition(
            f"unreft.transformers was tried with transformers {TRIED}, and the Trainer of "
            f"{transformers.__version__} lacks {', '.join(lacks)}"
        )
    handled = trainer.callback_handler.callbacks
    if any(isinstance(callback, _Attachment) for callback in handled):
        raise unreft.FailedPrecondition("the trainer is attached already")
    args = trainer.args
    sampling = getattr(args, "train_sampling_strategy", "random")
    reasons = {
        "DeepSpeed": getattr(trainer, "is_deepspeed_enabled", False),
        "auto_find_batch_size": args.auto_find_batch_size,
        "eval_on_start": args.eval_on_start,
        "ignore_data_skip": args.ignore_data_skip,
        "model_init": trainer.model_init is not None,
        f"train_sampling_strategy={sampling!r}": sampling not in ("random", "sequential"),
        "use_seedable_sampler=False": not args.accelerator_config.use_seedable_sampler,
        "a dataset without a length": not has_length(trainer.train_dataset),
    }
    for name, is_so in reasons.items():
        if is_so:
            raise unreft.FailedPrecondition(
                f"a Trainer with {name} is not supported: it would not go on as it was"
            )


class _Attachment(transformers.TrainerCallback):
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
        self._is_over = False  # what is restored is the end of the run
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
        own = set(inspect.signature(unreft.torch.attach).parameters) - {"required"}
        asked = {name: value for name, value in self._options.items() if name not in own}
        step = unreft.torch.peek(**asked)
        try:
            if step is None:
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
                state.save_to_json(os.path.join(self._directory, "trainer_state.json"))
                return self._train(resume_from_checkpoint=self._directory, **kwargs)
        except _Finished:
            _log.info("step %d is in memory, the end of the run: nothing is trained", step)
            return self._finalize(None, 0, time.time())
        finally:
            self._is_done = True
            self._close()

    # --- what the trainer calls ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        extras = {
            **self._extras,
            "trainer/state": self._counted,
            "trainer/logged": lambda: {name: getattr(trainer, name, None) for name in _LOGGED},
            "trainer/scheduler": trainer.lr_scheduler,
        }
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            extras["trainer/scaler"] = scaler
        self._checkpointer = unreft.torch.attach(
            trainer.model_wrapped, trainer.optimizer, extras=extras, **self._options
        )
        if self._checkpointer.restore() is None:
            return
        state.compute_steps(args, state.max_steps)
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
        self._snapshot(state.global_step)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the trainer's, which may put the best model in the place of the last."""
        self._ended_at = self._trainer.state.max_steps
        self._snapshot(self._trainer.state.global_step, last=True)
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
        trainer = self._trainer
        counted = {name: getattr(trainer.state, name) for name in _COUNTED}
        callbacks: dict[str, list[dict[str, Any]]] = {}
        for callback in _stateful(trainer):
            callbacks.setdefault(type(callback).__name__, []).append(callback.state()["attributes"])
        own = {"callbacks": callbacks, "batch": self._batch(), "ended_at": self._ended_at}
        return {**counted, **own}

    def _batch(self) -> dict[str, int]:
        """What a position in the data is counted in."""
        args = self._trainer.args
        return {
            "per_device_train_batch_size": args.per_device_train_batch_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "ranks": args.world_size,
        }

    def _take(self, stored: dict[str, Any]) -> int | None:
        """Whether the run had ended: then the number of steps that it was to have."""
        trainer = self._trainer
        stored = dict(stored)
        callbacks, ended_at = stored.pop("callbacks"), stored.pop("ended_at")
        found = self._batch()
        for name, needed in stored.pop("batch").items():
            if found[name] != needed:
                raise unreft.FailedPrecondition(
                    f"{name}: what is committed was trained with {needed}, found {found[name]}: "
                    "the data would go on at another place. Restart with "
                    f"{needed}, or give the state up with 'unreft fresh-start'"
                )
        for name, value in stored.items():
            setattr(trainer.state, name, value)
        for callback in _stateful(trainer):
            attributes = callbacks.get(type(callback).__name__)
            for name, value in attributes.pop(0).items() if attributes else ():
                setattr(callback, name, value)
        return ended_at


def _stateful(trainer: transformers.Trainer) -> list[Any]:
    handled = trainer.callback_handler.callbacks
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
