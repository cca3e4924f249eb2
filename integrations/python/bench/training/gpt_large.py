"""The model of the training comparison: the example's GPT, as large as asked, in bfloat16.

`MasterAdamW` keeps an fp32 copy of each weight beside Adam's two moments, so a parameter has 14
bytes of state: 2 of the weight and 12 of the optimizer.
"""

import dataclasses
import math
import pathlib
import sys

import torch
from torch.optim.adamw import adamw

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import gpt  # noqa: E402

STATE_BYTES_PER_PARAMETER = 2 + 3 * 4
WIDTHS = (8192, 4096, 3072, 2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 64, 32)
LAYERS_PER_WIDTH = 1 / 128  # at least: deeper rather than wider
HEAD_WIDTH_MAX = 128
VOCAB_LARGE, VOCAB_SMALL = 50304, 256
LARGE = 100_000_000  # parameters, from here on
CONTEXT_LARGE, CONTEXT_SMALL = 2048, 64
MICRO_BATCH_LARGE, MICRO_BATCH_SMALL = 8, 2


def layer_parameters(width):
    """Of one block: attention and MLP with biases, two norms."""
    return 12 * width * width + 13 * width


def shape_for(parameters):
    """The smallest model of at least so many parameters, as gpt.Config."""
    large = parameters >= LARGE
    vocab = VOCAB_LARGE if large else VOCAB_SMALL
    context = CONTEXT_LARGE if large else CONTEXT_SMALL
    for width in WIDTHS:
        left = parameters - (vocab + context + 2) * width
        layers = max(math.ceil(left / layer_parameters(width)), 2)
        if layers >= width * LAYERS_PER_WIDTH and left >= layer_parameters(width):
            break
    return gpt.Config(
        n_layer=layers,
        n_head=max(width // HEAD_WIDTH_MAX, 2),
        n_embd=width,
        context=context,
        batch=MICRO_BATCH_LARGE if large else MICRO_BATCH_SMALL,
        dropout=0.0,
        vocab=vocab,
    )


def parameters_of(config):
    """How many parameters a model of that shape has."""
    width = config.n_embd
    ends = (config.vocab + config.context + 2) * width
    return ends + config.n_layer * layer_parameters(width)


class MasterAdamW(torch.optim.Optimizer):
    """AdamW of fp32 master weights for a model in bfloat16; one fused kernel call per step."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        # "fused" tells who restores the state that the step counts lie beside the parameters.
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "fused": True})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            states = [self._state_of(p) for p in parameters]
            masters = [state["master"] for state in states]
            adamw(
                masters,
                [p.grad.float() for p in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            torch._foreach_copy_(parameters, masters)

    def _state_of(self, parameter):
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["master"] = parameter.detach().float()
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        return state


@dataclasses.dataclass
class Job:
    """A model, its optimizer and its data on one device."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: list  # of (tokens, targets), used over and over
    config: gpt.Config

    def tensors(self):
        """All tensors of the state by name: what every method saves."""
        found = {f"model/{name}": p.detach() for name, p in self.model.named_parameters()}
        found |= {f"buffer/{name}": b for name, b in self.model.named_buffers()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                found[f"optim/{name}/{key}"] = value
        return found


def build(parameters, device, seed=1, batches=4):
    """At step 0, the optimizer's state made."""
    config = shape_for(parameters)
    torch.manual_seed(seed)
    with torch.device(device):
        model = gpt.GPT(config).to(torch.bfloat16)
        shape = (batches, config.batch, config.context + 1)
        rows = torch.randint(config.vocab, shape)
    optimizer = MasterAdamW(model.parameters())
    for parameter in model.parameters():
        optimizer._state_of(parameter)
    data = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]
    return Job(model, optimizer, data, config)
