"""One rank that Lightning's Trainer trains, kept in memory: writes JSON lines to stdout.

    lightning_trainer.py [--die-after STEP [--die-at-epoch-end]] [--alone] [--every STEPS]
                         [--accumulated BATCHES] [--workers N] [--epochs N] [--max-steps N]
                         [--from-file FILE] [--to-file FILE] [--dataloader-generator]
                         [--stop-at STEP] [--test-best] [--only-load]

It is killed when that step or a later one is committed; with --die-at-epoch-end it first goes on to
the end of the epoch. With --stop-at the program stops it there, with --test-best it is tested in
the end with the best weights on disk, and with --only-load its module has no on_save_checkpoint. It
says the loss of every batch, what is logged, and the state at the end.
"""

import argparse
import os
import signal
import warnings

import lightning.pytorch as pl
import numpy as np
import torch
import torchmetrics
from saying import say
from torch import nn

import unreft
import unreft.lightning

BATCHES = 5  # of an epoch


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * BATCHES * int(os.environ.get("WORLD_SIZE", "1")) - 1

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        # Noise of the moment, as augmentation draws it.
        return index, torch.randn(8, generator=generator) + 0.1 * torch.rand(8)


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 8)
        )
        self.errors = torchmetrics.MetricCollection(
            [torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()]
        )
        self.batches = 0

    def training_step(self, batch):
        x = batch[1]
        out = self.layers(x)
        loss = (out - x).square().mean()
        self.errors.update(out.detach(), x)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("largest", out.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log_dict(self.errors, on_step=False, on_epoch=True)
        self.batches += 1
        return loss

    def validation_step(self, batch):
        loss = (self.layers(batch[1]) - batch[1]).square().mean()
        self.log("val_loss", loss + torch.rand(()), sync_dist=True)

    def test_step(self, batch):
        self.log("test_loss", (self.layers(batch[1]) - batch[1]).square().mean())

    def on_save_checkpoint(self, checkpoint):
        checkpoint["batches"] = self.batches

    def on_load_checkpoint(self, checkpoint):
        self.batches = checkpoint["batches"]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        every_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return [optimizer], [
            {"scheduler": every_step, "interval": "step"},
            {"scheduler": plateau, "interval": "epoch", "monitor": "loss_epoch"},
        ]


class Watching(pl.Callback):
    def __init__(self, args, kept):
        self._args = args
        self._kept = kept
        self._validated = 0
        self._dies = False

    def state_dict(self):
        return {"validated": self._validated}

    def load_state_dict(self, state):
        self._validated = state["validated"]

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        step = trainer.global_step
        if self._args.stop_at and step:
            self._kept._checkpointer.wait(step, 20)
        if self._args.die_after and step >= self._args.die_after and not self._dies:
            # One may be skipped, while the daemon frees memory.
            if step and self._kept._checkpointer.wait(step, 20):
                self._dies = True
                if not self._args.die_at_epoch_end:
                    self._die(step)
        numpy = np.random.rand()  # a generator of the program's own use
        say(epoch=trainer.current_epoch, batch=batch_idx, numbers=batch[0].tolist(), numpy=numpy)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        say(step=trainer.global_step, loss=outputs["loss"].item(), lr=lr)
        trainer.should_stop |= 0 < self._args.stop_at == trainer.global_step

    def on_validation_end(self, trainer, module):
        self._validated += not trainer.sanity_checking

    def on_train_epoch_end(self, trainer, module):
        logged = {name: value.item() for name, value in sorted(trainer.callback_metrics.items())}
        say(epoch_ended=trainer.current_epoch, logged=logged, validated=self._validated)
        if self._dies:
            self._die(trainer.global_step)

    @staticmethod
    def _die(step):
        say(died=step)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--die-at-epoch-end", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--accumulated", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--dataloader-generator", action="store_true")
    parser.add_argument("--stop-at", type=int, default=0)
    parser.add_argument("--test-best", action="store_true")
    parser.add_argument("--only-load", action="store_true")
    parser.add_argument("--from-file")
    parser.add_argument("--to-file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pl.seed_everything(1)
    own = torch.Generator().manual_seed(7) if args.dataloader_generator else None
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=4, shuffle=True, num_workers=args.workers, generator=own,
        # Workers of a fork server, which tests begin with, outlive a rank that is killed.
        multiprocessing_context="fork" if args.workers else None,
    )
    validation = torch.utils.data.DataLoader(Data(), batch_size=8)
    kept = unreft.lightning.Unreft(every=args.every)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # Of all attempts: with another one ModelCheckpoint forgets what was best.
    directory = os.path.dirname(os.environ["UNREFT_SOCKET"])
    stopping = pl.callbacks.EarlyStopping(
        "loss_epoch", patience=8, check_on_train_epoch_end=True
    )
    best = pl.callbacks.ModelCheckpoint(monitor="val_loss", dirpath=directory, save_top_k=1)
    watching = Watching(args, kept)
    trainer = pl.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
        max_epochs=args.epochs, max_steps=args.max_steps, val_check_interval=2,
        accumulate_grad_batches=args.accumulated, log_every_n_steps=2, logger=False,
        callbacks=[watching, stopping, best, *([] if args.alone else [kept])],
        enable_progress_bar=False, enable_model_summary=False,
    )
    if args.only_load:
        del Net.on_save_checkpoint
        Net.on_load_checkpoint = lambda self, checkpoint: checkpoint["state_dict"].pop("old", None)
    module = Net()
    try:
        trainer.fit(module, loader, validation, ckpt_path=args.from_file)
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
        return
    if args.to_file:
        trainer.save_checkpoint(args.to_file)
    if args.test_best:
        # By weights that are not the last ones, and with noise that nobody has drawn before.
        pl.seed_everything(2)
        say(tested=trainer.test(module, validation, ckpt_path="best", verbose=False))
        return
    optimizer = trainer.optimizers[0].state_dict()["state"]
    say(
        final={
            "weights": [p.detach().flatten().tolist() for p in module.parameters()],
            "buffers": [b.double().sum().item() for b in module.buffers()],
            "optimizer": [
                value.double().sum().item() for of in optimizer.values() for value in of.values()
            ],
            "steps": trainer.global_step,
            "epoch": trainer.current_epoch,
            "batches": [module.batches, trainer.fit_loop.total_batch_idx],
            "metrics": {n: v.item() for n, v in sorted(trainer.callback_metrics.items())},
            "best": best.best_model_score.item(),
            "stopping": [stopping.wait_count, stopping.best_score.item()],
            "validated": watching._validated,
            "drawn": torch.rand(2).tolist(),
        }
    )


if __name__ == "__main__":
    main()
