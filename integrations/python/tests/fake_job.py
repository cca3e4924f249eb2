"""One rank's training on a fake store, with tensors of every kind."""

import torch
from torch import nn

from unreft.torch.checkpointer import Checkpointer
from unreft.torch.extras import Extras
from unreft.torch.shards import Replicas
from unreft.torch.state import TrainingState


class Net(nn.Module):
    """Tied parameters, buffers of three kinds, an empty parameter and a frozen one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.outer = nn.Linear(4, 4)
        self.outer.weight = self.inner.weight
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        x = self.outer(self.norm(self.inner(x)))
        self.mean = 0.9 * self.mean + x.detach().mean()  # replaced, not written in place
        self.cache = x.detach()[0, :2].clone()
        return x


class Job:
    """One rank's training, on a store."""

    def __init__(
        self,
        store,
        seed=0,
        extras=None,
        optimizer=torch.optim.AdamW,
        rank=0,
        extras_classes=(),
        **options,
    ):
        torch.manual_seed(seed)
        self.model = Net()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(trained, lr=0.1, **options)
        self.client = store.client(rank)
        state = TrainingState(self.model, [self.optimizer], Replicas(self.model, rank, 1))
        self.ck = Checkpointer(self.client, state, Extras(extras or {}, extras_classes), rng=True)

    def step(self):
        self.model(torch.randn(8, 4)).square().mean().backward()
        with self.ck.fence():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return state_of(self.model, self.optimizer)


def state_of(model, optimizer):
    """All that is captured of them, by name."""
    names = {p: n for n, p in model.named_parameters()}
    of_optimizer = {
        f"{names[p]}/{key}": value
        for p, state in optimizer.state.items()
        for key, value in state.items()
    }
    return {**model.state_dict(), **of_optimizer}


def assert_equal_state(a, b):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], torch.Tensor):
            assert a[name].dtype == b[name].dtype and a[name].device == b[name].device, name
            assert torch.equal(a[name], b[name]), name
        else:
            assert a[name] == b[name], name


def trained(store, steps=2, **options):
    job = Job(store, **options)
    assert job.ck.restore() is None
    for step in range(1, steps + 1):
        job.step()
        assert job.ck.snapshot(step)
    return job


def registrations(job):
    """How often the client was told where the tensors lie."""
    return job.client.calls.count("register") + job.client.calls.count("rebind")
