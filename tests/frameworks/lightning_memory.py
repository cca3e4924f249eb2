"""A store within this process, and a Trainer that is killed and started again in it."""

import copy

import lightning.pytorch as pl
import pytest
import torch

import unreft
import unreft.lightning
import unreft.torch
from unreft.torch.extras import Extras
from unreft.torch.rng import Rng

BATCHES = 10  # of an epoch
BATCH = 2
DATA = torch.arange(2.0 * BATCH * BATCHES).reshape(-1, 2) / 40


class Memory:
    """Keeps one rank's last snapshot, with extras as bytes, as a store does."""

    def __init__(self):
        self.step = None

    def attach(self, model, optimizers, *, extras, **_):
        self._model, self._optimizers, self._extras = model, list(optimizers), Extras(extras)
        return self

    def peek(self, **_):
        return self.step

    def restore(self):
        if self.step is None:
            return None
        self._model.load_state_dict(self._weights)
        for optimizer, state in zip(self._optimizers, self._moments, strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))
        record = self._extras.loads(self._record)
        self._extras.load(record["extras"])
        Rng().load_state_dict(record["rng"])
        return self.step

    @property
    def extras(self):
        return self._extras.restored

    def snapshot(self, step):
        self.step = step
        self._weights = copy.deepcopy(self._model.state_dict())
        self._moments = copy.deepcopy([optimizer.state_dict() for optimizer in self._optimizers])
        scalars, rng = {"modules": {}, "optimizers": []}, Rng().state_dict()
        self._record = self._extras.dumps(
            {"step": step, "scalars": scalars, "extras": self._extras.state(), "rng": rng}
        )
        return True

    def close(self):
        pass


class Killed(BaseException):
    pass


class Killer(pl.Callback):
    """Of the process, when the batch of that number of the run is about to be trained."""

    def __init__(self, batch):
        self._batch = batch

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx == self._batch:
            raise Killed


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.samples = []

    def training_step(self, batch):
        self.samples.append(batch.tolist())
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Validating(Net):
    def validation_step(self, batch):
        self.log("val_loss", (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean())


class Run:
    """One attempt of a program: what it makes, and what is looked at in its end.

    Args:
      fit: arguments of `Trainer.fit` beside the module.
      kept: arguments of `Unreft`.
      look: of the Trainer and the module: what is to be equal beside weights and last samples.
      options: of the Trainer.
    """

    def __init__(self, module, *, look=None, kept=None, callbacks=(), fit=None, **options):
        self.module, self.look, self.fit = module, look, fit or {}
        self.callbacks = [unreft.lightning.Unreft(**(kept or {})), *callbacks]
        self.options = {"max_epochs": 3, **options}

    def train(self, dies_at=None):
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[Killer(dies_at), *self.callbacks],
            enable_checkpointing=self._has_checkpoints(), **self.options,
        )
        trainer.fit(self.module, **self.fit)
        seen = self.look(trainer, self.module) if self.look else None
        return self.module.layer.weight.tolist(), self.module.samples[-2:], seen

    def _has_checkpoints(self):
        return any(isinstance(each, pl.callbacks.Checkpoint) for each in self.callbacks)


def undisturbed(monkeypatch, program):
    """What a run of the program ends with; `program` makes a `Run`, as a process does."""
    return _attempt(monkeypatch, Memory(), program)


def killed_and_resumed(monkeypatch, program, dies_at, again=None):
    """That of a run that is killed at its batch `dies_at`, and goes on as the program `again`."""
    memory = Memory()
    with pytest.raises(Killed):
        _attempt(monkeypatch, memory, program, dies_at)
    assert memory.step
    return _attempt(monkeypatch, memory, again or program)


def _attempt(monkeypatch, memory, program, dies_at=None):
    monkeypatch.setattr(unreft.torch, "peek", memory.peek)
    monkeypatch.setattr(unreft.torch, "attach", memory.attach)
    pl.seed_everything(1, verbose=False)
    return program().train(dies_at)
