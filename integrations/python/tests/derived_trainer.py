"""A rank that trains bf16 weights by fp32 masters; the weights are derived. Writes JSON lines.

DDP when there is more than one rank.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from rank_order import sum_in_rank_order
from torch import nn
from saying import say
from trainer import digest, join, until_ready

import unreft
import unreft.torch
from unreft.torch import Derived


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = nn.Linear(64, 256), nn.Tanh(), nn.Dropout(), nn.Linear(256, 64)
        self.layers = nn.Sequential(*layers).to(torch.bfloat16)
        self.gain = nn.Parameter(torch.ones(64))  # of fp32: it has no master
        self.register_buffer("peak", torch.zeros(()))

    def forward(self, x):
        return self.layers(x.to(torch.bfloat16)).float() * self.gain


def peak_of(weight):
    return weight.abs().amax().float()


def half_of(weight):
    return weight.abs().amax().float() / 2


def say_state(step, net, masters, optimizer):
    state = [t for own in optimizer.state.values() for _, t in sorted(own.items())]
    say(
        step=step,
        weights=digest(net.parameters()),
        peak=net.peak.item(),
        masters=digest(masters.values()),
        optimizer=digest(state),
    )


def train(args, rank, world, net, model, masters, optimizer):
    low = {name: p for name, p in net.named_parameters() if name in masters}
    rules = [
        Derived("model/{}", of="master/{}"),
        Derived("buffer/peak", of="model/layers.0.weight", fn=globals()[args.peak]),
    ]
    rules = {"none": [], "casts": rules[:1], "all": rules}[args.derive]
    ck = unreft.torch.attach(model, optimizer, masters=masters, derived=rules)
    restored = ck.restore()
    say(restored=restored)
    if restored is not None:
        say_state(restored, net, masters, optimizer)
    for step in range((restored or 0) + 1, args.steps + 1):
        x = torch.randn(8, 64)
        model(x).sub(x).square().mean().backward()
        with ck.fence(), torch.no_grad():
            for name, p in low.items():
                masters[name].grad = p.grad.float()
            optimizer.step()
            for name, p in low.items():
                p.copy_(masters[name])
            net.peak.copy_(peak_of(net.layers[0].weight))
            if args.break_from and step >= args.break_from and rank == 0:
                net.layers[0].bias.add_(1)
        net.zero_grad()
        committed = ck.snapshot(step) and ck.wait(step, 20)
        if args.die_after and step >= args.die_after and committed:
            status = ck.status
            say(derived=status.derived, not_derived=sorted(status.not_derived))
            say(bytes_per_snapshot=status.bytes_captured / (status.started - status.given_up))
            say_state(step, net, masters, optimizer)
            os.kill(os.getpid(), signal.SIGKILL)
        until_ready(ck, world)
    say_state(args.steps, net, masters, optimizer)
    ck.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--die-after", type=int, default=0, help="SIGKILL once that is committed")
    parser.add_argument("--break-from", type=int, default=0, help="rank 0's bias leaves its master")
    parser.add_argument("--peak", default="peak_of")
    parser.add_argument("--derive", default="all", choices=["none", "casts", "all"])
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if world > 1:
        join(store_per_attempt=False)
    torch.manual_seed(1)
    model = net = Net()
    if world > 1:
        model = nn.parallel.DistributedDataParallel(net, forward_sync_buffers=False)
        model.register_comm_hook(None, sum_in_rank_order)
    masters = {n: p.detach().float() for n, p in net.named_parameters() if p.dtype != torch.float32}
    net.peak.copy_(peak_of(net.layers[0].weight.detach()))
    optimizer = torch.optim.AdamW([*masters.values(), net.gain], lr=1e-2)
    torch.manual_seed(100 + rank)
    try:
        train(args, rank, world, net, model, masters, optimizer)
    except unreft.Error as error:
        say(error=type(error).__name__, message=str(error))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
