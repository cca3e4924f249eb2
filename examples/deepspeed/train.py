"""Trains a small transformer under DeepSpeed's ZeRO, and goes on where it was killed.

    unreft run --up --ranks 2 -- python train.py [--stage 3] [--steps 24]

Kill a rank at any moment: it ends with the losses and weights of a run that nobody has touched.
Started again with another number of ranks it goes on with the sample that comes next. Prints the
loss of each step, and at the end a digest of the weights.
"""

import argparse
import hashlib
import json

import deepspeed
import torch
from torch import nn

import unreft.deepspeed

BATCH = 4  # of a rank


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, rows):
        mask = nn.Transformer.generate_square_subsequent_mask(rows.shape[1], device=rows.device)
        hidden = self.embed(rows)
        return self.head(self.layer(hidden, src_mask=mask.to(hidden.dtype), is_causal=True))


parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--steps", type=int, default=24)
args = parser.parse_args()
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": args.stage},
    "zero_allow_untested_optimizer": True,  # one of torch
    "zero_force_ds_cpu_optimizer": False,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 8}},
}
deepspeed.init_distributed()
rank = torch.distributed.get_rank()
torch.manual_seed(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)  # each rank drops others
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
ck = unreft.deepspeed.attach(engine)
ck.restore()
while engine.global_steps < args.steps:
    # Each row counts up from another number.
    first = engine.global_samples + rank * BATCH + torch.arange(BATCH)
    rows = ((first[:, None] + torch.arange(16)) % 64).to(engine.device)
    out = engine(rows[:, :-1]).float()
    loss = nn.functional.cross_entropy(out.flatten(0, 1), rows[:, 1:].flatten())
    engine.backward(loss)
    loss = loss.detach() / torch.distributed.get_world_size()
    torch.distributed.all_reduce(loss)
    if rank == 0:
        print(json.dumps({"step": engine.global_steps + 1, "loss": loss.item()}), flush=True)
    engine.step()
ck.close()
parameters = list(engine.module.parameters())
with deepspeed.zero.GatheredParameters(parameters, enabled=args.stage == 3):
    weights = b"".join(p.detach().float().cpu().numpy().tobytes() for p in parameters)
if rank == 0:
    print(json.dumps({"weights": hashlib.sha256(weights).hexdigest()}), flush=True)
torch.distributed.destroy_process_group()
