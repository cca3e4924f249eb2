"""Training by Lightning's Trainer: killed, restored, equal; and what is refused."""

import logging
import pathlib

import pytest
from real_store import Store

pytest.importorskip("lightning", reason="lightning is not installed")

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torchmetrics import MeanMetric
from torchmetrics.wrappers import MetricTracker, MinMaxMetric, Running

import unreft
import unreft.lightning
import unreft.torch
from unreft.lightning import program, refusals

SCRIPT = pathlib.Path(__file__).with_name("lightning_trainer.py")


@pytest.fixture
def stores():
    made = [Store(), Store()]
    yield made
    for store in made:
        store.close()


def trained(store, *words, **options):
    (records,) = store.train(1, *words, script=SCRIPT, **options)
    return records


@pytest.mark.parametrize(
    "words, dies",
    [
        ([], [3]),
        ([], [5]),  # an epoch begins with it
        ([], [7, "--die-at-epoch-end"]),
        ([], [14]),  # the last but one
        (["--accumulated", 2], [4]),
        pytest.param(["--workers", 2], [8], marks=pytest.mark.short),
        (["--dataloader-generator", "--every", 3], [7]),
        (["--max-steps", 13, "--epochs", -1], [9]),
    ],
    ids=["in an epoch", "between epochs", "at the end of an epoch", "before its last step",
         "accumulating", "workers", "every third step", "steps instead of epochs"],
)
def test_killed_and_resumed_is_as_if_it_had_not_been(stores, words, dies):
    undisturbed = trained(stores[0], *words)
    before = trained(stores[1], *words, "--die-after", *dies, killed=True)
    after = trained(stores[1], *words)
    assert before[-1]["died"] >= dies[0]
    # Each batch with its samples, loss and learning rate, what epochs have logged, and the end.
    assert after == undisturbed[-len(after) :]
    assert len(after) < len(undisturbed)


def test_it_changes_nothing_of_a_run(stores):
    assert trained(stores[0]) == trained(stores[1], "--alone")


@pytest.mark.short
def test_several_ranks(stores):
    undisturbed = stores[0].train(2, script=SCRIPT)
    stores[1].train(2, "--die-after", 7, script=SCRIPT, killed=True)
    after = stores[1].train(2, script=SCRIPT)
    for mine, reference in zip(after, undisturbed, strict=True):
        assert len(mine) < len(reference)
        assert mine == reference[-len(mine) :]


def test_a_run_that_has_ended_is_not_trained_on(stores):
    ended = trained(stores[0])
    assert trained(stores[0]) == ended[-1:]
    (refused,) = trained(stores[0], "--epochs", 4)
    assert "what is committed is the end of a run, at step 15" in refused["message"]


@pytest.mark.short
def test_a_run_that_the_program_stopped_before_its_end_goes_on(stores):
    undisturbed = trained(stores[0])
    stopped = trained(stores[1], "--stop-at", 7)
    after = trained(stores[1])
    assert stopped[-1]["final"]["steps"] == 7
    # An epoch has begun before the step, which is trained again.
    assert after[0] == next(each for each in undisturbed if "epoch" in each and each in after)
    assert after[1]["step"] == 7
    assert after == undisturbed[-len(after) :]


def test_the_best_weights_on_disk_are_tested_after_a_restart(stores):
    undisturbed = trained(stores[0], "--test-best")
    trained(stores[1], "--test-best", "--die-after", 7, killed=True)
    after = trained(stores[1], "--test-best")
    assert after == undisturbed[-len(after) :]
    again = trained(stores[1], "--test-best")  # nothing is trained
    assert again == undisturbed[-1:]


def test_a_module_that_only_loads_is_restored(stores):
    trained(stores[0], "--only-load", "--die-after", 3, killed=True)
    assert trained(stores[0], "--only-load")[-1]["final"]["steps"] == 15


@pytest.mark.short
def test_another_number_of_ranks_is_refused(stores):
    stores[0].train(2, "--die-after", 3, script=SCRIPT, killed=True)
    (refused,) = trained(stores[0])
    assert "ranks: what is committed was trained with 2, found 1" in refused["message"]


@pytest.mark.short
def test_a_position_in_other_batches_is_refused(stores):
    trained(stores[0], "--die-after", 3, killed=True)
    (refused,) = trained(stores[0], "--accumulated", 2)
    assert refused["error"] == "FailedPrecondition"
    assert "accumulate_grad_batches: what is committed was trained with 1, found 2" in (
        refused["message"]
    )


def test_a_checkpoint_on_disk_is_loaded_when_nothing_is_in_memory(stores, tmp_path):
    file = tmp_path / "saved.ckpt"
    trained(stores[0], "--epochs", 1, "--to-file", file)
    words = ["--from-file", file]
    undisturbed = trained(stores[1], *words)
    assert undisturbed[0]["epoch"] == 1
    other = Store()
    try:
        trained(other, *words, "--die-after", 8, killed=True)
        after = trained(other, *words)
    finally:
        other.close()
    assert len(after) < len(undisturbed)
    assert after == undisturbed[-len(after) :]


# --- what is refused; no daemon is asked ---


DATA = [torch.ones(2)] * 8


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def validation_step(self, batch):
        self.log("loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class ByHand(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Filtering(Net):
    def on_save_checkpoint(self, checkpoint):
        del checkpoint["state_dict"]["layer.weight"]


class Averaging(Net):
    def on_fit_start(self):
        self.average = 1

    def on_save_checkpoint(self, checkpoint):
        checkpoint["average"] = self.average, self.trainer.callback_metrics["loss"]


class Tracking(Net):
    def __init__(self, metric):
        super().__init__()
        self.metric = metric


class Iterating(Net):
    def training_step(self, dataloader_iter):
        return self.layer(next(dataloader_iter)[0]).square().mean()


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(2)


class Batches:
    def __iter__(self):
        return iter(DATA)

    def __len__(self):
        return len(DATA)


class Backwards(Sampler):
    def __iter__(self):
        return reversed(range(8))

    def __len__(self):
        return 8


class Writing(pl.Callback):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["written"] = 1


@pytest.fixture
def nothing_committed(monkeypatch):
    class Fresh:
        def restore(self):
            return None

        def snapshot(self, step):
            return False

        def close(self):
            pass

    monkeypatch.setattr(unreft.torch, "peek", lambda **_: None)
    monkeypatch.setattr(unreft.torch, "attach", lambda *_, **__: Fresh())


def fit(module=None, loader=None, validation=None, callbacks=(), kept=None, **options):
    kept = kept or unreft.lightning.Unreft()
    pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[kept, *callbacks],
        **options,
    ).fit(module or Net(), DataLoader(DATA) if loader is None else loader, validation)


@pytest.mark.short
@pytest.mark.parametrize(
    "name, options",
    [
        ("manual optimization", {"module": ByHand()}),
        ("a training_step that takes dataloader_iter", {"module": Iterating()}),
        ("reload_dataloaders_every_n_epochs", {"reload_dataloaders_every_n_epochs": 1}),
        ("fast_dev_run", {"fast_dev_run": True}),
        ("a val_check_interval of time", {"val_check_interval": "00:00:01:00"}),
        (
            "the callbacks StochasticWeightAveraging",
            {"callbacks": [pl.callbacks.StochasticWeightAveraging(0.1)]},
        ),
        (
            "the callbacks GradientAccumulationScheduler",
            {"callbacks": [pl.callbacks.GradientAccumulationScheduler({0: 2})]},
        ),
        ("the on_save_checkpoint of Writing", {"callbacks": [Writing()]}),
        ("an on_save_checkpoint that takes no empty dict .*'state_dict'", {"module": Filtering()}),
        ("the metric MetricTracker", {"module": Tracking(MetricTracker(MeanMetric(), False))}),
        ("the metric MinMaxMetric", {"module": Tracking(MinMaxMetric(MeanMetric()))}),
        ("the metric Running", {"module": Tracking(Running(MeanMetric()))}),
        (
            "in_order=False",
            {"loader": DataLoader(DATA, num_workers=1, in_order=False)},
        ),
        ("an IterableDataset", {"loader": DataLoader(Endless()), "limit_train_batches": 2}),
        ("several dataloaders", {"loader": [DataLoader(DATA), DataLoader(DATA)]}),
        ("the sampler Backwards", {"loader": DataLoader(DATA, sampler=Backwards())}),
        ("a Batches for a DataLoader", {"loader": Batches()}),
        (
            "persistent_workers",
            {"loader": DataLoader(DATA, num_workers=1, persistent_workers=True)},
        ),
        (
            "persistent_workers",
            {"validation": DataLoader(DATA, num_workers=1, persistent_workers=True)},
        ),
    ],
)
def test_what_would_not_go_on_as_it_was_is_refused_by_name(nothing_committed, name, options):
    with pytest.raises(unreft.FailedPrecondition, match=f"a Trainer with {name}.* not supported"):
        fit(**options)


def test_a_module_that_makes_later_what_it_saves_is_no_refusal(nothing_committed):
    fit(module=Averaging(), validation=DataLoader(DATA))


def test_a_fit_that_failed_leaves_the_methods_as_they_were(nothing_committed):
    class Failing(pl.Callback):
        def on_train_batch_end(self, *_):
            raise RuntimeError("of the program")

    kept = unreft.lightning.Unreft()
    with pytest.raises(RuntimeError, match="of the program"):
        fit(kept=kept, callbacks=[Failing()])
    connector = kept._trainer._checkpoint_connector
    assert connector.resume_start == kept._own["resume_start"]


def test_another_release_is_refused(nothing_committed, monkeypatch):
    monkeypatch.setattr(refusals.lightning, "__version__", "2.7.0")
    with pytest.raises(unreft.FailedPrecondition, match="lightning 2.6, .* and this is 2.7.0"):
        fit()


def test_twice_and_never_are_refused(nothing_committed):
    with pytest.raises(unreft.InvalidArgument, match="every: needed .* above 0, found 0"):
        unreft.lightning.Unreft(every=0)
    with pytest.raises(unreft.InvalidArgument, match="rng"):
        unreft.lightning.Unreft(rng=False)
    kept = unreft.lightning.Unreft()
    fit(kept=kept)
    with pytest.raises(unreft.FailedPrecondition, match="called before in this process"):
        fit(kept=kept)


def test_a_hook_that_needs_a_whole_checkpoint_says_what_it_is_given():
    def load(checkpoint):
        return checkpoint["state_dict"]

    module = Net()
    module.on_load_checkpoint = load
    with pytest.raises(unreft.FailedPrecondition, match=r"added, \['own'\], .*'state_dict', are"):
        program.load_into(module, {"own": 1})


@pytest.mark.parametrize("threshold, over", [(1e9, True), (None, False)])
def test_what_early_stopping_has_stopped_is_over(nothing_committed, caplog, threshold, over):
    class Stopping(pl.Callback):
        def on_train_batch_end(self, trainer, *args):
            trainer.should_stop |= trainer.global_step == 3

    early = pl.callbacks.EarlyStopping("loss", stopping_threshold=threshold)
    fit(validation=DataLoader(DATA), callbacks=[early, Stopping()])
    said = "training was stopped at step 3, before its end"
    assert (said in caplog.text) == (not over)


def test_what_is_in_memory_comes_first(caplog):
    caplog.set_level(logging.WARNING, "unreft")
    kept, loaded = unreft.lightning.Unreft(), []
    kept._own["resume_start"] = lambda path, **_: loaded.append(path)
    kept._resume_start("somewhere", weights_only=None)
    kept._step = 7
    kept._resume_start("somewhere", weights_only=None)
    assert loaded == ["somewhere", None]
    assert "step 7 is in memory: ckpt_path='somewhere' is not loaded" in caplog.text
