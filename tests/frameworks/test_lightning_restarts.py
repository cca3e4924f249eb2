"""Parts of a program that draw random numbers, or keep state, where Lightning does not look: as if
the run had not been killed, or refused by name. No daemon is asked."""

import pytest

pytest.importorskip("lightning", reason="lightning is not installed")

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning_memory import BATCH, DATA, Net, Run, Validating, killed_and_resumed, undisturbed
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    random_split,
)
from torchmetrics.segmentation import MeanIoU

import unreft
import unreft.lightning
import unreft.torch
from unreft.lightning import program, refusals

pytestmark = pytest.mark.short


def shuffled(**options):
    return DataLoader(DATA, batch_size=BATCH, shuffle=True, **options)


def check(monkeypatch, program, dies_at):
    assert killed_and_resumed(monkeypatch, program, dies_at) == undisturbed(monkeypatch, program)


# --- loaders that are made by random numbers ---


class Splitting(Net):
    def train_dataloader(self):
        return DataLoader(random_split(DATA, [12, 8])[0], batch_size=BATCH, shuffle=True)


class Permuting(Net):
    def train_dataloader(self):
        some = SubsetRandomSampler(np.random.permutation(len(DATA))[:12])
        return DataLoader(DATA, batch_size=BATCH, sampler=some)


class SplittingForBoth(Validating):
    def val_dataloader(self):
        self.of_training, validating = random_split(DATA, [12, 8])
        return DataLoader(validating, batch_size=BATCH)

    def train_dataloader(self):
        return DataLoader(self.of_training, batch_size=BATCH, shuffle=True)


@pytest.mark.parametrize("net", [Splitting, Permuting, SplittingForBoth])
def test_data_to_train_with_are_split_as_in_the_first_attempt(monkeypatch, net):
    check(monkeypatch, lambda: Run(net()), 8)


class SplittingToValidate(Validating):
    def val_dataloader(self):
        return DataLoader(random_split(DATA, [4, 16])[0], batch_size=BATCH)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_sanity_val_steps": 0},
        # Asked for in the second epoch, by the random numbers of then.
        {"num_sanity_val_steps": 0, "check_val_every_n_epoch": 2, "max_epochs": 4},
    ],
    ids=["in the check before", "before the first epoch", "late"],
)
@pytest.mark.parametrize("dies_at", [5, 14, 25])
def test_data_to_validate_with_are_split_as_in_the_first_attempt(monkeypatch, options, dies_at):
    def program():
        return Run(
            SplittingToValidate(), fit={"train_dataloaders": shuffled()}, **options,
            look=lambda trainer, _: trainer.callback_metrics["val_loss"].item(),
        )

    check(monkeypatch, program, dies_at)


def test_a_generator_of_a_loader_that_has_not_validated_yet(monkeypatch):
    def program():
        validation = shuffled(generator=torch.Generator().manual_seed(2))
        return Run(
            Validating(), check_val_every_n_epoch=2, num_sanity_val_steps=0, max_epochs=4,
            fit={"train_dataloaders": shuffled(), "val_dataloaders": validation},
        )

    check(monkeypatch, program, 14)


def test_another_number_of_generators_is_refused(monkeypatch):
    def program(generator):
        return lambda: Run(Net(), fit={"train_dataloaders": shuffled(generator=generator)})

    with pytest.raises(unreft.FailedPrecondition, match="of the loaders: 0 were stored, found 1"):
        killed_and_resumed(monkeypatch, program(None), 4, program(torch.Generator()))


# --- what draws samples ---


def of_batches(sampler, size=BATCH):
    return {"train_dataloaders": DataLoader(DATA, batch_sampler=BatchSampler(sampler, size, False))}


def random_batches(size=BATCH):
    own = torch.Generator().manual_seed(5)
    return of_batches(RandomSampler(range(len(DATA)), generator=own), size)


def test_a_generator_of_the_sampler_within_a_batch_sampler(monkeypatch):
    check(monkeypatch, lambda: Run(Net(), fit=random_batches()), 14)


def test_another_size_of_a_batch_samplers_batches_is_refused(monkeypatch):
    with pytest.raises(unreft.FailedPrecondition, match=r"batch_size: .* with \[2\], found \[4\]"):
        killed_and_resumed(
            monkeypatch, lambda: Run(Net(), fit=random_batches()), 4,
            lambda: Run(Net(), fit=random_batches(4)),
        )


class Backwards(Sampler):
    def __iter__(self):
        return reversed(range(len(DATA)))

    def __len__(self):
        return len(DATA)


def test_a_sampler_of_ones_own_within_a_batch_sampler_is_refused(monkeypatch):
    with pytest.raises(unreft.FailedPrecondition, match="the sampler Backwards"):
        undisturbed(monkeypatch, lambda: Run(Net(), fit=of_batches(Backwards())))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_samplers_epoch_after_a_checkpoint_on_disk(monkeypatch, tmp_path, workers):
    """Workers fetch the first batches before Lightning sets the epoch, which it had loaded."""
    file = tmp_path / "saved.ckpt"

    def save(trainer, _):
        trainer.save_checkpoint(file)

    undisturbed(
        monkeypatch,
        lambda: Run(Net(), max_epochs=2, fit={"train_dataloaders": shuffled()}, look=save),
    )

    def program():
        loader = DataLoader(
            DATA, batch_size=BATCH, num_workers=workers,
            sampler=DistributedSampler(DATA, num_replicas=1, rank=0),
            multiprocessing_context="fork" if workers else None,
        )
        return Run(Net(), max_epochs=4, fit={"train_dataloaders": loader, "ckpt_path": file})

    check(monkeypatch, program, 24)


# --- state that fetching a batch changes ---


class Noisy(Dataset):
    def __init__(self):
        self.drawn_from = torch.Generator().manual_seed(3)

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        return DATA[index] + torch.rand(2, generator=self.drawn_from)


class Rising(Noisy):
    """Its state is the dict that it goes on changing."""

    def __init__(self):
        self.drawn_from = self
        self.state = {"fetched": 0}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state.update(state)

    def __getitem__(self, index):
        self.state["fetched"] += 1
        return DATA[index] + self.state["fetched"] / 100


@pytest.mark.parametrize("kind", [Noisy, Rising])
def test_extras_that_fetching_a_batch_changes(monkeypatch, kind):
    def program():
        data = kind()
        loader = DataLoader(data, batch_size=BATCH, shuffle=True)
        extras = {"noise": unreft.torch.Reshard(data.drawn_from, lambda *_: None), "one": lambda: 1}
        return Run(Net(), kept={"extras": extras}, fit={"train_dataloaders": loader})

    check(monkeypatch, program, 14)


class Counting:
    """Collates batches and counts their samples."""

    fetched = 0

    def train_dataloader(self):
        return shuffled(collate_fn=self._collate)

    def _collate(self, samples):
        self.fetched += len(samples)
        return torch.stack(samples)


class CountingData(Counting, pl.LightningDataModule):
    def state_dict(self):
        return {"fetched": self.fetched}

    def load_state_dict(self, state):
        self.fetched = state.pop("fetched")


class CountingNet(Counting, Net):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["fetched"] = self.fetched

    def on_load_checkpoint(self, checkpoint):
        self.fetched = checkpoint.pop("fetched")


def with_data_module():
    return Run(
        Net(), fit={"datamodule": CountingData()},
        look=lambda trainer, _: trainer.datamodule.fetched,
    )


def test_a_data_module_whose_state_fetching_a_batch_changes(monkeypatch):
    check(monkeypatch, with_data_module, 14)


def test_a_module_whose_state_fetching_a_batch_changes(monkeypatch):
    check(monkeypatch, lambda: Run(CountingNet(), look=lambda _, module: module.fetched), 14)


def test_a_data_module_that_is_gone_is_refused(monkeypatch):
    with pytest.raises(unreft.FailedPrecondition, match="the state of a data module is stored"):
        killed_and_resumed(
            monkeypatch, with_data_module, 14,
            lambda: Run(Net(), fit={"train_dataloaders": shuffled()}),
        )


# --- state that is nowhere in a state_dict ---


def test_a_checkpoint_that_is_put_off_until_the_validation(monkeypatch, tmp_path):
    attempts = iter(("disturbed", "disturbed", "undisturbed"))

    def program():
        directory = tmp_path / next(attempts)
        kept = pl.callbacks.ModelCheckpoint(
            directory, monitor="val_loss", every_n_train_steps=3, save_top_k=2
        )
        return Run(
            Validating(), callbacks=[kept], max_epochs=1, val_check_interval=5,
            fit={"train_dataloaders": shuffled(), "val_dataloaders": DataLoader(DATA)},
            look=lambda *_: sorted(each.name for each in directory.iterdir()),
        )

    # At step 3 nothing has validated yet, and the process is killed before it does.
    check(monkeypatch, program, 4)


class Freezing(Net):
    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 5:
            self.layer.bias.requires_grad_(False)


class Thawing(Net):
    def __init__(self):
        super().__init__()
        self.layer.bias.requires_grad_(False)

    def on_train_epoch_start(self):
        self.layer.bias.requires_grad_(self.current_epoch > 0)


@pytest.mark.parametrize("net", [Freezing, Thawing])
def test_parameters_that_a_module_has_frozen_in_mid_run(monkeypatch, net):
    def program():
        return Run(
            net(), fit={"train_dataloaders": shuffled()},
            look=lambda _, module: (module.layer.bias.item(), module.layer.bias.requires_grad),
        )

    check(monkeypatch, program, 14)


class LoggingFloat(Net):
    def training_step(self, batch):
        self.log("mean", 0.1 * batch.float().mean(), on_step=False, on_epoch=True)
        return super().training_step(batch)


def test_a_float32_that_is_logged_in_double_precision(monkeypatch):
    def program():
        def look(trainer, _):
            mean = trainer.callback_metrics["mean"]
            return mean.dtype, mean.item()

        fit = {"train_dataloaders": shuffled()}
        return Run(LoggingFloat(), precision="64-true", fit=fit, look=look)

    check(monkeypatch, program, 14)


# --- what is refused ---


def test_a_callback_that_does_not_load_its_state_is_named(monkeypatch):
    class Forgetful(pl.Callback):
        def state_dict(self):
            return {"n": 1}

        def load_state_dict(self, state):
            raise KeyError("m")

    def program():
        return Run(Net(), callbacks=[Forgetful()], fit={"train_dataloaders": shuffled()})

    named = r"the callback .*Forgetful: .*KeyError\('m'\)"
    with pytest.raises(unreft.FailedPrecondition, match=named):
        killed_and_resumed(monkeypatch, program, 4)


class Stateful(Precision):
    def state_dict(self):
        return {"n": 1}


class Segmenting(Net):
    def __init__(self, **options):
        super().__init__()
        self.overlap = MeanIoU(**options)


@pytest.mark.parametrize(
    "name, options",
    [
        ("a ddp_comm_state", {"strategy": DDPStrategy(ddp_comm_state=object())}),
        ("a model_averaging_period", {"strategy": DDPStrategy(model_averaging_period=4)}),
        ("the state of the precision plugin Stateful", {"plugins": [Stateful()]}),
        ("the callbacks SpikeDetection", {"callbacks": [pl.callbacks.SpikeDetection()]}),
        (
            "the on_save_checkpoint of LambdaCallback",
            {"callbacks": [pl.callbacks.LambdaCallback(on_save_checkpoint=lambda *_: None)]},
        ),
    ],
)
def test_a_trainer_that_is_refused_by_name(name, options):
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, **options)
    with pytest.raises(unreft.FailedPrecondition, match=f"a Trainer with {name}.* not supported"):
        refusals.check(trainer, Net())


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": DDPStrategy(ddp_comm_hook=lambda *_: None)},
        {"plugins": [MixedPrecision("bf16-mixed", "cpu")]},
        {"precision": "64-true"},
        {"callbacks": [pl.callbacks.LambdaCallback(on_train_start=lambda *_: None)]},
    ],
)
def test_a_trainer_that_is_not_refused(options):
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, **options)
    refusals.check(trainer, Net())


def test_a_metric_that_makes_its_state_by_its_first_batch_is_refused():
    with pytest.raises(unreft.FailedPrecondition, match="the metric MeanIoU without num_classes"):
        refusals.check_module(Segmenting())
    refusals.check_module(Segmenting(num_classes=3))


def test_a_state_of_another_release_is_refused():
    with pytest.raises(unreft.FailedPrecondition, match="lacks validation: another release"):
        program.check_form({"ended": False, "program": {}, "position": {}})
