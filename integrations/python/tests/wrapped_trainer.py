"""One process that trains under a wrapper of accelerate's or by the Trainer of Hugging Face.

    wrapped_trainer.py accelerate|trainer|callback [--die-after STEP]

Nobody calls a fence. `callback` restores inside the Trainer without telling it the step.
"""

import argparse
import os
import pathlib
import re
import signal

import torch
import transformers
from saying import say
from torch import nn

import unreft
import unreft.torch

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs/hugging_face.md"
STEPS = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 16))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"loss": (out - x).square().mean(), "out": out}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40  # five batches: an epoch ends between

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(16, generator=generator)}


def weights(model):
    return [p.detach().double().sum().item() for p in model.parameters()]


def die_if_committed(ck, step, die_after):
    committed = ck.wait(step, 20)
    if die_after and step >= die_after and committed:
        say(died=step)
        os.kill(os.getpid(), signal.SIGKILL)


def with_accelerate(die_after):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    ck = unreft.torch.attach(model, optimizer, extras={"scheduler": scheduler})
    step = ck.restore() or 0
    say(restored=step)
    while step < STEPS:
        loss = model(torch.randn(8, 16))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        ck.snapshot(step)
        die_if_committed(ck, step, die_after)
    say(final=weights(model), waited=ck.status.total_fence_wait_s > 0)
    ck.close()


def with_trainer(kind, die_after):
    names = {}
    exec(re.search(r"```python\n(import random\n.*?)```", DOCS.read_text(), re.S)[1], names)
    torch.manual_seed(1)
    model = Net()
    arguments = transformers.TrainingArguments(
        "unused", max_steps=STEPS, per_device_train_batch_size=8, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", learning_rate=1e-2,
    )
    cls = names["UnreftTrainer"] if kind == "trainer" else transformers.Trainer
    trainer = cls(model, arguments, train_dataset=Data())
    trainer.remove_callback(transformers.PrinterCallback)  # standard output has records
    snapshots = names["_Snapshots"]

    class Dying(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            handlers = trainer.callback_handler.callbacks
            ck = next(c for c in handlers if isinstance(c, snapshots)).checkpointer
            die_if_committed(ck, state.global_step, die_after)

    if kind == "callback":
        trainer.add_callback(snapshots(trainer))
    try:
        # The one that kills comes after the one that takes the snapshots.
        original = trainer.add_callback
        trainer.add_callback = lambda callback: (original(callback), original(Dying()))
        if kind == "callback":
            original(Dying())
        trainer.train()
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
        return
    say(final=weights(model))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["accelerate", "trainer", "callback"])
    parser.add_argument("--die-after", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.kind == "accelerate":
        with_accelerate(args.die_after)
    else:
        with_trainer(args.kind, args.die_after)


if __name__ == "__main__":
    main()
