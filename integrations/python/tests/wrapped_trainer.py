"""One process that trains under a wrapper of accelerate's or by the Trainer of Hugging Face.

    wrapped_trainer.py accelerate|accelerate-fsdp2|callback|attached [--die-after STEP]
                       [--total-batch SAMPLES [--alone] [--hold-at STEP...]]
                       [--accumulated BATCHES] [--stop-at STEP] [--every STEPS]
                       [--save-in DIR [--resume]]

Nobody calls a fence. `callback` restores inside the Trainer without telling it the step;
`attached` is a Trainer that logs and evaluates, attached by one line; with --save-in it also saves
checkpoints on disk, and with --stop-at a callback stops it at that step. Under accelerate the
number of ranks may change: it says its state as a digest of whole tensors.

With --total-batch the ranks share batches of that size, and what they train is the same to the bit
whatever their number is; --alone trains it without Unreft. With --hold-at it does not go on beyond
the first commit from that step on, in the attempt that makes it, but waits to be killed.
"""

import argparse
import contextlib
import os
import signal

import torch
import torch.distributed as dist
from saying import say
from torch import nn

import unreft
import unreft.torch

STEPS = 12


class Net(nn.Module):
    def __init__(self, dropout=0.2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Dropout(dropout), nn.Linear(64, 16))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"loss": (out - x).square().mean(), "out": out}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40  # five batches: an epoch ends between

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(16, generator=generator)}


class Tally:
    """What a program registers with accelerate for its checkpoints."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def weights(model):
    return [p.detach().double().sum().item() for p in model.parameters()]


def die_if_committed(ck, step, die_after, state=lambda: None):
    committed = ck.wait(step, 20)
    if die_after and step >= die_after and committed:
        say(died=step, state=state())
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # of one that waits for who is killed already
                dist.barrier()  # others may still gather
        os.kill(os.getpid(), signal.SIGKILL)
    return committed


def hold(step):
    say(holds=step)
    while True:
        signal.pause()


def round_gradients(model):
    """In whatever order ranks have summed what they share, this leaves no trace of it."""
    for parameter in model.parameters():
        gradient = parameter.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        local.mul_(2**20).round_().div_(2**20)


def made_accelerator(fsdp2, split_batches):
    from accelerate import Accelerator
    from accelerate.utils import (
        DataLoaderConfiguration,
        DistributedType,
        FullyShardedDataParallelPlugin,
    )

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    config = DataLoaderConfiguration(split_batches=split_batches, use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    if fsdp2:
        # accelerate heeds the plugin on GPUs alone, though what it does by it works on CPUs too.
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, cpu_ram_efficient_loading=False
        )
    return accelerator


def with_accelerate(args):
    from sharded_trainer import digest_of

    accelerator = made_accelerator(args.kind == "accelerate-fsdp2", args.total_batch > 0)
    torch.manual_seed(1)
    model = Net(dropout=0.0).double() if args.total_batch else Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    # No number of ranks up to 4 has an incomplete batch at the end of an epoch.
    dtype = model.layers[0].weight.dtype
    data = torch.utils.data.TensorDataset(torch.arange(48), torch.randn(48, 16, dtype=dtype))
    loader = torch.utils.data.DataLoader(
        data, args.total_batch or 4, shuffle=True, generator=torch.Generator()
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    tally = Tally()
    accelerator.register_for_checkpointing(tally)
    seen, step, ck = 0, 0, None
    if not args.alone:
        import unreft.accelerate

        ck = unreft.accelerate.attach(accelerator, model, extras={"seen": lambda: seen})
        step = ck.restore() or 0
        seen = ck.extras.get("seen", 0)
        assert tally.steps == step
    begun = step

    def state():
        whole = digest_of(accelerator.unwrap_model(model), optimizer)
        return {"step": step, "whole": whole, "lr": scheduler.get_last_lr(), "seen": seen}

    say(restored=state(), reshaped_from=ck and ck.status.reshaped_from)
    while step < STEPS:
        epoch, samples = divmod(seen, len(data))
        done = samples // loader.total_batch_size
        loader.set_epoch(epoch)
        for numbers, x in accelerator.skip_first_batches(loader, done):
            accelerator.backward(model(x)["loss"])
            if args.total_batch:
                round_gradients(model)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            tally.steps += 1
            done += 1
            seen = epoch * len(data) + min(done * loader.total_batch_size, len(data))
            said = {"state": state()} if args.total_batch else {}
            say(epoch=epoch, numbers=numbers.tolist(), **said)
            if ck:
                ck.snapshot(step)
                committed = die_if_committed(ck, step, args.die_after, state)
                if committed and any(begun < held <= step for held in args.hold_at):
                    hold(step)
            if step == STEPS:
                break
    say(final=state())
    if ck:
        ck.close()


def with_callback(die_after):
    import transformers

    class Snapshots(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.ck = unreft.torch.attach(trainer.model_wrapped, trainer.optimizer)
            self.ck.restore()

        def on_step_end(self, args, state, control, **kwargs):
            self.ck.snapshot(state.global_step)
            die_if_committed(self.ck, state.global_step, die_after)

        def on_train_end(self, args, state, control, **kwargs):
            self.ck.close()

    torch.manual_seed(1)
    model = Net()
    arguments = transformers.TrainingArguments(
        "unused", max_steps=STEPS, per_device_train_batch_size=8, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", learning_rate=1e-2,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=Data(), callbacks=[Snapshots()])
    trainer.remove_callback(transformers.PrinterCallback)  # standard output has records
    try:
        trainer.train()
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
        return
    say(final=weights(model))


def with_attached_trainer(args):
    import transformers
    from transformers.trainer_callback import ExportableState

    import unreft.transformers

    torch.manual_seed(1)
    model = Net()
    arguments = transformers.TrainingArguments(
        args.save_in or "unused", max_steps=STEPS, per_device_train_batch_size=8,
        save_strategy="steps" if args.save_in else "no", save_steps=2,
        report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-2,
        logging_strategy="steps", logging_steps=2, eval_strategy="steps", eval_steps=3,
        label_names=["x"], ddp_backend="gloo", gradient_accumulation_steps=args.accumulated,
    )

    class Counting(transformers.TrainerCallback, ExportableState):
        def __init__(self):
            self.evaluated = 0

        def state(self):
            return {"args": {}, "attributes": {"evaluated": self.evaluated}}

        def on_evaluate(self, args, state, control, **kwargs):
            self.evaluated += 1
            torch.rand(3)  # as an evaluation that samples

    die_after, stop_at = args.die_after, args.stop_at

    class Dying(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.bar = "as that of the progress"
            say(begins_after=state.global_step)

        def on_train_end(self, args, state, control, **kwargs):
            assert self.bar

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step:
                die_if_committed(attached._checkpointer, state.global_step, die_after)

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop |= state.global_step == stop_at

    counting = Counting()
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Data(), eval_dataset=Data(), callbacks=[counting]
    )
    trainer.remove_callback(transformers.PrinterCallback)  # standard output has records
    unreft.transformers.attach(trainer, every=args.every)
    attached = trainer.callback_handler.callbacks[0]
    trainer.add_callback(Dying())
    try:
        trainer.train(resume_from_checkpoint=args.resume)
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
        return
    kept = ("loss", "eval_loss", "train_loss", "learning_rate", "step", "epoch")
    logged = [{key: of[key] for key in kept if key in of} for of in trainer.state.log_history]
    say(final=[weights(model), logged, counting.evaluated], drawn=torch.rand(2).tolist())


def main():
    parser = argparse.ArgumentParser()
    kinds = ["accelerate", "accelerate-fsdp2", "callback", "attached"]
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--total-batch", type=int, default=0)
    parser.add_argument("--accumulated", type=int, default=1)
    parser.add_argument("--stop-at", type=int, default=0)
    parser.add_argument("--save-in")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--hold-at", type=int, nargs="*", default=[])
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.kind.startswith("accelerate"):
        with_accelerate(args)
    elif args.kind == "attached":
        with_attached_trainer(args)
    else:
        with_callback(args.die_after)


if __name__ == "__main__":
    main()
