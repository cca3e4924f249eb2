"""Training of bf16 weights by fp32 masters on a fake store, for the tests of derived tensors."""

import torch
from torch import nn

from unreft.torch.checkpointer import Checkpointer
from unreft.torch.derived import Derived
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState

OF_MASTERS = Derived("model/{}", of="master/{}")
OF_STATE = Derived("model/{}", of="optim/{}/master")


class Net(nn.Module):
    """Weights of bf16, a norm of fp32 that has no master, tied weights, a scale by a function."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        self.outer = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.outer.weight = self.inner.weight
        self.norm = nn.LayerNorm(4)
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, x):
        return self.outer(self.inner(self.norm(x).to(torch.bfloat16)).tanh()).float()


def amax(weight):
    return weight.abs().amax().float()


OF_WEIGHT = Derived("buffer/scale", of="model/inner.weight", fn=amax)


class MasterSgd(torch.optim.SGD):
    """Keeps the fp32 copies in its state, as fused optimizers do: from the first step on."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if p.dtype == torch.float32:
                    p -= group["lr"] * p.grad
                    continue
                if "master" not in state:
                    state["master"] = p.detach().float()
                state["master"] -= group["lr"] * p.grad
                p.copy_(state["master"])


class MixedJob:
    """One rank's training, on a store; masters of its own, or in the state of the optimizer."""

    def __init__(self, store, *rules, seed=0, own_masters=True, rank=0, world=1):
        torch.manual_seed(seed)
        self.model = Net()
        low = {n: p for n, p in self.model.named_parameters() if p.dtype == torch.bfloat16}
        self.masters = {n: p.detach().float() for n, p in low.items()} if own_masters else {}
        self._low = low if own_masters else {}
        if own_masters:
            stepped = [*self.masters.values(), *self.model.norm.parameters()]
            self.optimizer = torch.optim.AdamW(stepped, lr=0.1)
        else:
            self.optimizer = MasterSgd(self.model.parameters(), lr=0.1)
        self.update_scale()
        self.client = store.client(rank, world)
        replicas = Replicas(self.model, rank, world)
        state = TrainingState(self.model, [self.optimizer], replicas, self.masters)
        derived = DerivedTensors(rules, state)
        self.ck = Checkpointer(self.client, state, Extras({}), rng=True, derived=derived)

    def update_scale(self):
        self.model.scale.copy_(amax(self.model.inner.weight.detach()))

    def step(self):
        self.model(torch.randn(8, 4)).square().mean().backward()
        with self.ck.fence():
            for name, p in self._low.items():
                self.masters[name].grad = p.grad.float()
            self.optimizer.step()
            with torch.no_grad():
                for name, p in self._low.items():
                    p.copy_(self.masters[name])
            self.update_scale()
        self.model.zero_grad()

    def state(self):
        """Also what is not in state_dict; copies."""
        optimizer = {
            f"{i}/{key}": value
            for i, state in enumerate(self.optimizer.state.values())
            for key, value in state.items()
        }
        masters = {f"master/{name}": master for name, master in self.masters.items()}
        state = {**self.model.state_dict(), **masters, **optimizer}
        return {name: value.clone() for name, value in state.items()}


def mixed(store, *rules, steps=2, **options):
    job = MixedJob(store, *rules, **options)
    assert job.ck.restore() is None
    for step in range(1, steps + 1):
        job.step()
        assert job.ck.snapshot(step), job.ck.status
    return job


def names(store, rank=0):
    return set(store.versions[rank].tensors)
