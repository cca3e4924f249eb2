"""What unreft.transformers refuses, and what it leaves to the Trainer; no daemon is asked."""

import logging

import pytest
import torch
import transformers
from torch import nn

import unreft
import unreft.torch
import unreft.transformers


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield {"x": torch.ones(2)}


def trainer_of(tmp_path, **arguments):
    options = {"max_steps": 2, "use_cpu": True, "report_to": [], "save_strategy": "no", **arguments}
    model_init = options.pop("model_init", None)
    data = options.pop("train_dataset", [{"x": torch.ones(2)}] * 8)
    return transformers.Trainer(
        None if model_init else Net(),
        transformers.TrainingArguments(str(tmp_path), disable_tqdm=True, **options),
        train_dataset=data,
        eval_dataset=data,
        model_init=model_init,
    )


@pytest.mark.parametrize(
    "name, options",
    [
        ("auto_find_batch_size", {"auto_find_batch_size": True}),
        ("ignore_data_skip", {"ignore_data_skip": True}),
        ("model_init", {"model_init": Net}),
        ("eval_on_start", {"eval_on_start": True, "eval_strategy": "steps"}),
        (
            "train_sampling_strategy='group_by_length'",
            {"train_sampling_strategy": "group_by_length"},
        ),
        (
            "use_seedable_sampler=False",
            {"accelerator_config": {"use_seedable_sampler": False}},
        ),
        ("a dataset without a length", {"train_dataset": Endless()}),
    ],
)
def test_what_would_not_go_on_as_it_was_is_refused_by_name(tmp_path, name, options):
    with pytest.raises(unreft.FailedPrecondition, match=f"a Trainer with {name} is not supported"):
        unreft.transformers.attach(trainer_of(tmp_path, **options))


def test_twice_and_never_are_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    with pytest.raises(unreft.InvalidArgument, match="every: needed .* above 0, found 0"):
        unreft.transformers.attach(trainer, every=0)
    unreft.transformers.attach(trainer)
    with pytest.raises(unreft.FailedPrecondition, match="attached already"):
        unreft.transformers.attach(trainer)


def test_a_trainer_that_lacks_what_is_stood_in_for(tmp_path, monkeypatch):
    monkeypatch.delattr(transformers.Trainer, "_load_scaler")
    with pytest.raises(unreft.FailedPrecondition, match="5.23, and .* lacks _load_scaler"):
        unreft.transformers.attach(trainer_of(tmp_path))


class Attached:
    """A Trainer that is attached, while a version of that step is said to be committed, or none."""

    def __init__(self, tmp_path, monkeypatch, step):
        self.loaded = []
        self.trained = []
        trainer = trainer_of(tmp_path)
        trainer._load_from_checkpoint = lambda checkpoint, *_: self.loaded.append(checkpoint)
        trainer.train = self._train
        self._trainer = trainer
        self.asked = []
        monkeypatch.setattr(unreft.torch, "peek", lambda **asked: self.asked.append(asked) or step)
        unreft.transformers.attach(trainer, buffers="first", required=False, connect_timeout_s=3.0)
        self.train = trainer.train

    def _train(self, resume_from_checkpoint=None, **kwargs):
        self.trained.append(resume_from_checkpoint)
        self._trainer._load_from_checkpoint(resume_from_checkpoint)


def test_a_checkpoint_on_disk_is_loaded_when_nothing_is_in_memory(tmp_path, monkeypatch):
    attached = Attached(tmp_path, monkeypatch, None)
    attached.train("somewhere")
    assert attached.loaded == attached.trained == ["somewhere"]
    assert attached.asked == [{"required": False, "connect_timeout_s": 3.0}]
    with pytest.raises(unreft.FailedPrecondition, match="called before in this process"):
        attached.train()


def test_what_is_in_memory_comes_first(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "unreft")
    attached = Attached(tmp_path, monkeypatch, 7)
    attached.train(resume_from_checkpoint="somewhere")
    assert attached.loaded == [] and attached.trained != ["somewhere"]
    assert "step 7 is in memory: resume_from_checkpoint='somewhere' is not loaded" in caplog.text


def test_a_search_for_hyperparameters_is_refused(tmp_path, monkeypatch):
    attached = Attached(tmp_path, monkeypatch, None)
    with pytest.raises(unreft.FailedPrecondition, match="search for hyperparameters"):
        attached.train(trial=object())
