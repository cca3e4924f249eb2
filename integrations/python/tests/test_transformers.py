"""What unreft.transformers refuses, and what it leaves to the Trainer; no daemon is asked."""

import logging

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

import unreft
import unreft.torch
import unreft.transformers
from unreft.torch import trainers
from unreft.transformers.log_history import LogHistory, entries_of


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


class Sized(Endless):
    def __len__(self):
        return 8


class Backwards(torch.utils.data.Sampler):
    def __iter__(self):
        return reversed(range(8))

    def __len__(self):
        return 8


class Reversed(torch.utils.data.BatchSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


def trainer_of(tmp_path, kind=transformers.Trainer, **arguments):
    options = {"max_steps": 2, "use_cpu": True, "report_to": [], "save_strategy": "no", **arguments}
    model_init = options.pop("model_init", None)
    data = options.pop("train_dataset", [{"x": torch.ones(2)}] * 8)
    return kind(
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
        ("an IterableDataset", {"train_dataset": Sized()}),
        ("dispatch_batches", {"accelerator_config": {"dispatch_batches": True}}),
        (
            "dataloader_persistent_workers",
            {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        ),
        ("optim='lomo'", {"optim": "lomo"}),
        ("optim='adalomo'", {"optim": "adalomo"}),
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


def with_rope(rope_type):
    made = Net()
    made.layer.rope_type = rope_type
    return made


@pytest.mark.parametrize(
    "rope_type, warned",
    [
        ("dynamic", True),
        ({"full_attention": "dynamic", "sliding_attention": "default"}, True),
        ("longrope", False),
        ({"full_attention": "default"}, False),
    ],
)
def test_frequencies_that_follow_the_longest_sequence_are_warned_of(
    tmp_path, caplog, rope_type, warned
):
    trainer = trainer_of(tmp_path)
    trainer.model = with_rope(rope_type)
    unreft.transformers.attach(trainer)
    assert ("the rope_type of 'layer' is dynamic" in caplog.text) == warned


def test_the_rope_of_a_model_of_transformers_is_seen(tmp_path, caplog):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    trainer = trainer_of(tmp_path)
    trainer.model = transformers.LlamaModel(
        transformers.LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, rope_parameters=rope,
        )
    )
    unreft.transformers.attach(trainer)
    assert "the rope_type of 'rotary_emb' is dynamic" in caplog.text


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


# --- what is found out when it trains; nothing is committed, and no daemon is asked ---


class Kept:
    """In place of a checkpointer: keeps what extras are at each snapshot, or why there are none."""

    def __init__(self, monkeypatch):
        self.records = {}
        self.refused = {}
        monkeypatch.setattr(unreft.torch, "peek", lambda **_: None)
        monkeypatch.setattr(unreft.torch, "attach", self._attach)

    def _attach(self, *_, extras, **__):
        self.extras = extras
        return self

    def restore(self):
        return None

    def snapshot(self, step):
        try:
            self.records[step] = self.extras["trainer/state"].extra()
        except unreft.FailedPrecondition as error:
            self.refused[step] = str(error)

    def close(self):
        pass


@pytest.fixture
def kept(monkeypatch):
    return Kept(monkeypatch)


def loading(make):
    """A Trainer whose data are loaded by `make`, of the dataset."""
    class Loading(transformers.Trainer):
        def get_train_dataloader(self):
            return make(self, self.train_dataset)

    return Loading


ROWS = [{"x": torch.ones(2)}] * 8


@pytest.mark.parametrize(
    "name, make",
    [
        ("the sampler RandomSampler", lambda _, data: DataLoader(data, 2, shuffle=True)),
        ("the sampler Backwards", lambda _, data: DataLoader(data, 2, sampler=Backwards())),
        (
            "the batch sampler Reversed",
            lambda _, data: DataLoader(
                data, batch_sampler=Reversed(SequentialSampler(data), 2, False)
            ),
        ),
        (
            "a list for a DataLoader",
            lambda _, data: [{"x": torch.ones(2, 2)}] * 4,
        ),
        (
            "in_order=False",
            lambda _, data: DataLoader(data, 2, num_workers=1, in_order=False),
        ),
        (
            "persistent_workers",
            lambda _, data: DataLoader(data, 2, num_workers=1, persistent_workers=True),
        ),
    ],
)
def test_data_whose_order_cannot_be_had_again_are_refused_by_name(tmp_path, kept, name, make):
    trainer = trainer_of(tmp_path, loading(make))
    unreft.transformers.attach(trainer)
    with pytest.raises(unreft.FailedPrecondition, match=f"a Trainer with {name} is not supported"):
        trainer.train()


@pytest.mark.parametrize(
    "make",
    [
        lambda _, data: DataLoader(data, 2),
        lambda trainer, data: trainer.accelerator.prepare(DataLoader(data, 2, shuffle=True)),
    ],
    ids=["in order", "prepared"],
)
@pytest.mark.parametrize("given", [ROWS, None], ids=["a dataset", "none"])
def test_data_of_a_derived_class_whose_order_is_known(tmp_path, kept, make, given):
    own = loading(lambda trainer, _: make(trainer, ROWS))
    trainer = trainer_of(tmp_path, own, train_dataset=given)
    unreft.transformers.attach(trainer)
    trainer.train()
    assert kept.records.keys() == {1, 2}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"train_dataset": ROWS + ROWS}, "samples: what is committed was trained with 8, found 16"),
        ({"data_seed": 5}, "seed of the sampler: what is committed was trained with 42, found 5"),
        (
            {"train_sampling_strategy": "sequential"},
            "sampler: .* with SeedableRandomSampler, found SequentialSampler",
        ),
    ],
)
def test_a_position_in_other_data_is_refused(tmp_path, kept, change, said):
    positions = []
    for options in ({}, change):
        trainer = trainer_of(tmp_path, **options)
        unreft.transformers.attach(trainer)
        trainer.train()
        positions.append(kept.records[2]["batch"])
    trainers.check_counted_in(positions[0], positions[0])
    with pytest.raises(unreft.FailedPrecondition, match=said):
        trainers.check_counted_in(*positions)


def test_no_step_is_a_position_after_an_epoch_that_a_callback_has_cut(tmp_path, kept):
    class Cutting(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step == 2

    # An epoch is of four steps.
    trainer = trainer_of(tmp_path, max_steps=5, per_device_train_batch_size=2)
    unreft.transformers.attach(trainer)
    trainer.add_callback(Cutting())
    trainer.train()
    assert kept.records.keys() == {1}
    assert kept.refused.keys() == {2, 3, 4, 5}
    assert "should_epoch_stop" in kept.refused[2]


class Halting(transformers.TrainerCallback):
    """Once, within the step that comes after `step`, with the first of its batches."""

    def __init__(self, step, what):
        self.step = step
        self.what = what

    def on_substep_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            setattr(control, self.what, True)
            self.step = None


def accumulating(tmp_path, halting, every):
    """Two batches make a step, and two steps an epoch."""
    trainer = trainer_of(
        tmp_path, max_steps=5, per_device_train_batch_size=2, gradient_accumulation_steps=2
    )
    unreft.transformers.attach(trainer, every=every)
    trainer.add_callback(halting)
    trainer.train()


@pytest.mark.parametrize(
    "every, snapped, goes_on", [(2, {2}, "the last snapshot"), (1, {1, 2, 3}, "there")]
)
def test_within_a_step_no_last_snapshot_is_taken(tmp_path, kept, caplog, every, snapped, goes_on):
    # The batch before it has drawn random numbers, which would be drawn twice.
    accumulating(tmp_path, Halting(3, "should_training_stop"), every)
    assert kept.records.keys() == snapped
    said = f"training was stopped at step 3 of 5: started again, it goes on from {goes_on}\n"
    assert said in caplog.text


def test_between_two_steps_a_last_snapshot_is_taken(tmp_path, kept, caplog):
    class Stopping(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == 3

    accumulating(tmp_path, Stopping(), every=2)
    assert kept.records.keys() == {2, 3}
    assert "stopped at step 3 of 5: started again, it goes on from there" in caplog.text


@pytest.mark.parametrize("step", [0, 2])
def test_an_epoch_may_be_cut_within_its_first_step(tmp_path, kept, step):
    accumulating(tmp_path, Halting(step, "should_epoch_stop"), every=1)
    assert kept.records.keys() == set(range(1, step + 1))
    assert kept.refused.keys() == set(range(step + 1, 5))  # of the epochs that are left
    assert "should_epoch_stop" in kept.refused[step + 1]


class Averaging(torch.optim.SGD):
    """Schedule-free: it evaluates with other weights than it trains with."""

    trains = False

    def train(self):
        self.trains = True

    def eval(self):
        self.trains = False


def test_a_snapshot_is_of_the_weights_that_are_trained_with(tmp_path, kept, monkeypatch):
    trainer = trainer_of(
        tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1, label_names=["x"]
    )
    own = Averaging(trainer.model.parameters())
    trainer.optimizer = own
    trained = {}
    monkeypatch.setattr(kept, "snapshot", lambda step: trained.update({step: own.trains}))
    unreft.transformers.attach(trainer)
    trainer.train()
    # Nothing is trained after the last one.
    assert trained == {1: True, 2: True, 3: False}


def test_an_optimizer_that_writes_in_backward_is_refused_when_it_is_prepared(tmp_path, kept):
    trainer = trainer_of(tmp_path)
    unreft.transformers.attach(trainer)
    trainer.accelerator.has_lomo_optimizer = True
    with pytest.raises(unreft.FailedPrecondition, match="a Trainer with a LOMO optimizer is not"):
        trainer.train()


@pytest.mark.parametrize("patience, ended", [(2, 4), (3, None)])
def test_a_run_that_lost_patience_has_ended(tmp_path, kept, caplog, patience, ended):
    class Stopping(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == 3

    trainer = trainer_of(
        tmp_path, max_steps=4, eval_strategy="steps", eval_steps=1, learning_rate=0.0,
        metric_for_best_model="loss", label_names=["x"],
    )
    unreft.transformers.attach(trainer)
    # The loss stays as it is: none of the two evaluations after the first one is better.
    early = transformers.EarlyStoppingCallback(patience)
    trainer.add_callback(early)
    trainer.add_callback(Stopping())
    trainer.train()
    assert early.early_stopping_patience_counter == 2
    assert kept.records[3]["ended_at"] == ended
    stopped = "training was stopped at step 3 of 4: started again, it goes on from there"
    assert (stopped in caplog.text) == (ended is None)


def test_of_a_callback_the_attributes_come_back_and_the_program_gives_its_args(tmp_path, kept):
    trainer = trainer_of(tmp_path)
    unreft.transformers.attach(trainer)
    early = transformers.EarlyStoppingCallback(early_stopping_patience=2)
    early.early_stopping_patience_counter = 1
    trainer.add_callback(early)
    attachment = trainer.callback_handler.callbacks[0]
    record = attachment._counted()
    early.early_stopping_patience_counter = 0
    early.early_stopping_patience = 5  # as of a program that was changed to wait for longer
    attachment._take(record)
    assert (early.early_stopping_patience_counter, early.early_stopping_patience) == (1, 5)


def test_a_best_checkpoint_that_is_gone_is_left_aside(tmp_path, kept, caplog):
    trainer = trainer_of(tmp_path)
    unreft.transformers.attach(trainer)
    attachment = trainer.callback_handler.callbacks[0]
    trainer.train()
    for best in (tmp_path, tmp_path / "gone"):
        record = {**kept.records[2], "best_model_checkpoint": str(best)}
        attachment._take(record)
        there = best.is_dir()
        assert trainer.state.best_model_checkpoint == (str(best) if there else None)
        assert (f"the best checkpoint, {best}, is not there any more" in caplog.text) != there


# --- what is logged ---


def test_what_is_logged_is_encoded_once():
    history, logged = LogHistory(), []
    before = history.record(logged)
    for step in range(1000):
        logged.append({"step": step, "loss": 1 / (step + 1)})
        record = history.record(logged)
        assert record["blocks"][: len(before["blocks"])] == before["blocks"]
        assert len(record["rest"]) < 256
        before = record
    assert len(record["blocks"]) == 3
    assert all(mine is its for mine, its in zip(history.record(logged)["blocks"], record["blocks"]))
    assert entries_of(record) == logged
    kept = logged[-900:]  # as by a program that cuts it
    assert entries_of(history.record(kept)) == kept
    assert entries_of(history.record(kept[:2])) == kept[:2]


@pytest.mark.parametrize("change", [lambda block: block[:-5], lambda block: b"\0" + block[1:]])
def test_damaged_blocks_of_what_is_logged_are_refused(change):
    record = LogHistory().record([{"step": step} for step in range(300)])
    with pytest.raises(unreft.DataLoss, match="what the Trainer has logged"):
        entries_of({**record, "blocks": [change(record["blocks"][0])]})
