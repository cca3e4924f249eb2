"""Imported by the fork server of real_store.py: what every training process needs."""

import torch

import unreft.torch  # noqa: F401

# Making an optimizer imports more.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
