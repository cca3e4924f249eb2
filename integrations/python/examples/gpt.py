"""A small GPT and its training data, for the example training job `train_gpt.py`.

The model is a decoder-only transformer over bytes (256 symbols), about 10.7 M parameters in the
size "demo". The data are the sources of Python's standard library, found on every machine that can
run this file.

Both are deliberately full of state, so that resuming them exactly is a real test of a checkpoint:
the model draws dropout masks from torch's generator and updates buffers in its forward pass, and
the sampler owns a generator and a position and draws its augmentations from the global generators
of `random` and NumPy.
"""

import dataclasses
import pathlib
import random
import sysconfig

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of a model and of its batches. `batch` counts sequences per rank."""

    n_layer: int
    n_head: int
    n_embd: int
    context: int
    batch: int
    dropout: float = 0.1
    vocab: int = 256


CONFIGS = {
    "demo": Config(n_layer=6, n_head=6, n_embd=384, context=64, batch=1),
    # For a GPU: 26 M parameters, and long enough a step for faults to strike in it.
    "gpu": Config(n_layer=8, n_head=8, n_embd=512, context=512, batch=32),
    "tiny": Config(n_layer=3, n_head=2, n_embd=20, context=16, batch=2),
}


class RunningScale(nn.Module):
    """Divides activations by the running average of their root mean square.

    The average is a buffer written by every training forward and read by the same forward, so it
    is state that changes outside the optimizer step and that the loss depends on. Nothing
    synchronises it: each rank averages over its own data.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("rms", torch.zeros(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.batches += 1
            self.rms += (x.detach().square().mean().sqrt() - self.rms) / self.batches
        return x / self.rms


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.n_head, width // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, config):
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.n_embd)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.mlp(self.norm_2(x)))


class GPT(nn.Module):
    """Maps tokens [batch, time] and their successors to the mean cross-entropy in nats."""

    def __init__(self, config):
        super().__init__()
        self.token = nn.Embedding(config.vocab, config.n_embd)
        self.position = nn.Embedding(config.context, config.n_embd)
        self.scale = RunningScale()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab, bias=False)
        self.apply(self._init)
        self.head.weight = self.token.weight  # Tied, as in GPT-2: one tensor under two names.

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        x = self.dropout(self.scale(x))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load_corpus(bytes_max=4 << 20):
    """The first `bytes_max` bytes of the standard library's top-level modules, in name order."""
    corpus = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        corpus += path.read_bytes()
        if len(corpus) >= bytes_max:
            break
    return np.frombuffer(bytes(corpus[:bytes_max]), dtype=np.uint8)


class TextSampler:
    """Draws the batches of one rank from the corpus, epoch after epoch, in shuffled order.

    All ranks shuffle the same windows with the same generator and take every `world`-th one, so
    they never share a window within an epoch. Two augmentations draw from the global generators:
    NumPy shifts a window, `random` turns some windows to lower case.

    The state is the generator as it was before the epoch's shuffle and the position in the epoch.
    Which windows of the epoch's order the last batch had, says `taken`.
    """

    LOWER_CASE_PROBABILITY = 0.1

    def __init__(self, corpus, config, seed, rank, world):
        self._corpus = corpus
        self._context = config.context
        self._batch = config.batch
        self._rank = rank
        self._world = world
        # The last window still needs room for its shift and for the successor of its last byte.
        self._windows = len(corpus) // config.context - 2
        if self._windows // world < config.batch:
            raise ValueError(
                f"corpus has {self._windows} windows of {config.context} bytes, "
                f"need {world * config.batch} for {world} ranks"
            )
        self._generator = torch.Generator().manual_seed(seed)
        self._shuffle()

    def next(self):
        """The next batch: tokens and their successors, both int64 [batch, context]."""
        if self._position + self._batch > len(self._order):
            self._shuffle()
        chosen = self._order[self._position : self._position + self._batch]
        self._position += self._batch
        # Where they are in the order of all ranks.
        self.taken = [at * self._world + self._rank
                      for at in range(self._position - self._batch, self._position)]
        rows = torch.from_numpy(np.stack([self._window(index) for index in chosen]))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def state_dict(self):
        return {
            "corpus_bytes": len(self._corpus),
            "generator": self._epoch_start.clone(),
            "position": self._position,
        }

    def load_state_dict(self, state):
        if state["corpus_bytes"] != len(self._corpus):
            raise ValueError(
                f"the saved run trained on a corpus of {state['corpus_bytes']} bytes, "
                f"this machine's has {len(self._corpus)}"
            )
        self._generator.set_state(state["generator"])
        self._shuffle()
        self._position = state["position"]

    def _shuffle(self):
        self._epoch_start = self._generator.get_state()
        order = torch.randperm(self._windows, generator=self._generator)
        self._order = order[self._rank :: self._world].tolist()
        self._position = 0

    def _window(self, index):
        start = index * self._context + np.random.randint(self._context)
        row = self._corpus[start : start + self._context + 1].astype(np.int64)
        if random.random() < self.LOWER_CASE_PROBABILITY:
            upper = (row >= ord("A")) & (row <= ord("Z"))
            row = np.where(upper, row + 32, row)
        return row
