"""One process that trains as the manual says not to: all tensors have the value of the step.

    careless_trainer.py KIND [--die]

So a torn version, with values of two steps, is seen at a restore. KIND is how the tensors are
written: see WRITERS. Prints JSON lines.
"""

import argparse
import logging
import os
import signal
import threading

import torch
from saying import say
from torch import nn

import unreft.torch

STEPS = 30
ELEMENTS = 4 << 20  # of each of four tensors, so that a copy takes longer than a step


class Plain:
    """What is not an optimizer of torch's: nothing calls a hook."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter.add_(1)


class Counting(torch.optim.Optimizer):
    """An optimizer of torch's kind, by a user."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(1)


def by_data(model):
    for parameter in model.parameters():
        parameter.data.add_(1)


def by_copy(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 1)


def by_thread(model):
    thread = threading.Thread(target=Plain(model.parameters()).step)
    thread.start()
    thread.join()


def make_writer(kind, model):
    """The optimizer to attach, if any, and what makes a step."""
    if kind in ("own optimizer", "replaced step"):
        optimizer = Counting(model.parameters())
        if kind == "replaced step":
            optimizer.step = Plain(model.parameters()).step
        return optimizer, lambda: optimizer.step()
    if kind in ("sgd", "sgd foreach", "sgd fused"):
        options = {kind.partition(" ")[2]: True} if " " in kind else {}
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)
        return optimizer, optimizer.step
    write = {"plain": lambda m: Plain(m.parameters()).step(), "data": by_data, "copy": by_copy,
             "thread": by_thread}[kind]
    return (), lambda: write(model)


class Lines(logging.Handler):
    """What the logger "unreft" says."""

    def emit(self, record):
        say(line=record.getMessage())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--fence", action="store_true", help="called before each step")
    args = parser.parse_args()
    logging.getLogger("unreft").addHandler(Lines(logging.WARNING))
    torch.set_num_threads(1)
    model = nn.ParameterList(nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(4))
    optimizer, write = make_writer(args.kind, model)
    ck = unreft.torch.attach(model, optimizer)
    step = ck.restore() or 0
    values = sorted({value for p in model for value in (p.min().item(), p.max().item())})
    say(restored=step, values=values)
    if not args.die:
        return
    for step in range(step + 1, step + STEPS + 1):
        for parameter in model:
            parameter.grad = torch.full_like(parameter, -1.0)
        if args.fence:
            ck.fence()
        write()
        ck.snapshot(step)
    status = ck.status
    say(given_up=status.given_up, skipped=status.skipped, protecting=status.protecting)
    if args.fence or "optimizer" in args.kind or "sgd" in args.kind:
        say(committed=any(ck.snapshot(step + n) and ck.wait(step + n, 20) for n in range(1, 200)))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
