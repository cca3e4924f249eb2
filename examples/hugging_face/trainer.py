"""Trains a small GPT-2 with the Trainer of Hugging Face, and goes on where it was killed.

    unreft run --up --ranks 2 -- python trainer.py

Kill a rank at any moment: it ends with the losses and weights of a run that nobody has touched. The
one line for that is `unreft.transformers.attach(trainer)`. Prints what the Trainer logs, and at the
end the loss of every step and a digest of the weights.
"""

import hashlib
import json

import torch
import transformers

import unreft.transformers

transformers.set_seed(1)
# Made from a configuration, with dropout: nothing is downloaded.
config = transformers.GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
# Each row counts up from another number.
rows = (torch.arange(64)[:, None] + torch.arange(16)) % 64
arguments = transformers.TrainingArguments(
    "trainer_output", max_steps=24, per_device_train_batch_size=4, learning_rate=1e-2,
    lr_scheduler_type="cosine", warmup_steps=4, logging_steps=1, save_strategy="no",
    use_cpu=not torch.cuda.is_available(), disable_tqdm=True,
)
trainer = transformers.Trainer(
    transformers.GPT2LMHeadModel(config), arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
)
unreft.transformers.attach(trainer)
trainer.train()

if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in trainer.model.parameters())
    print(json.dumps({"losses": losses, "weights": hashlib.sha256(weights).hexdigest()}))
