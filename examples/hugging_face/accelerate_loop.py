"""A loop under accelerate that goes on where it was killed.

    unreft run --up --ranks 2 -- python accelerate_loop.py

Prints the loss of each step and its running mean, and at the end a digest of the weights.
"""

import hashlib
import json

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn

import unreft.accelerate

STEPS = 24


class RunningMean:
    """What is registered for checkpoints has these two methods."""

    value = 0.0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


set_seed(1)
# A batch is that of all ranks together, and an epoch has the same order whenever it goes on.
config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=1)
accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=config)
model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
data = torch.utils.data.TensorDataset(torch.randn(96, 16))
loader = torch.utils.data.DataLoader(data, 12, shuffle=True, generator=torch.Generator())
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
mean = RunningMean()
accelerator.register_for_checkpointing(mean)

seen = 0  # samples, by all ranks together
ck = unreft.accelerate.attach(accelerator, model, extras={"seen": lambda: seen})
step = ck.restore() or 0
seen = ck.extras.get("seen", 0)
while step < STEPS:
    epoch, samples = divmod(seen, len(data))
    loader.set_epoch(epoch)
    for (x,) in accelerator.skip_first_batches(loader, samples // loader.total_batch_size):
        loss = (model(x) - x).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        seen += loader.total_batch_size  # which divides the data
        loss = accelerator.reduce(loss.detach(), "mean").item()
        mean.value += 0.1 * (loss - mean.value)
        said = {"step": step, "loss": loss, "mean": mean.value}
        accelerator.print(json.dumps(said), flush=True)
        ck.snapshot(step)
        if step == STEPS:
            break
ck.close()
weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
accelerator.print(json.dumps({"weights": hashlib.sha256(weights).hexdigest()}), flush=True)
