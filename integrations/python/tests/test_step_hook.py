"""The fence installs itself: before any optimizer steps on captured tensors."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from fake_job import Job, trained
from torch import nn

from unreft.torch import step_hook


def step_without_fence(job):
    job.model(torch.randn(8, 4)).square().mean().backward()
    job.optimizer.step()
    job.optimizer.zero_grad()


def fences(job):
    return job.client.calls.count("fence")


@pytest.fixture
def job(store):
    made = trained(store)
    made.client.calls.clear()
    return made


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"fused": True}, {"capturable": False}], ids=str
)
def test_every_way_of_stepping_waits(store, options):
    job = trained(store, **options)
    job.client.calls.clear()
    step_without_fence(job)
    assert fences(job) == 1


class OwnStep(torch.optim.SGD):
    """Overrides `step`, and does not call the one of torch."""

    def step(self, closure=None):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)


def test_an_optimizer_of_the_user_s_own_waits(store):
    job = trained(store, optimizer=OwnStep)
    job.client.calls.clear()
    step_without_fence(job)
    assert fences(job) == 1


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_the_optimizer_waits(job, how):
    parameters = {id(p): p for p in job.model.parameters()}
    if how == "deepcopy":
        other = copy.deepcopy(job.optimizer, parameters)
    else:
        other = pickle.loads(pickle.dumps(job.optimizer))
        for group in other.param_groups:
            group["params"] = list(job.optimizer.param_groups[0]["params"])
        other.state.clear()
    job.model(torch.randn(8, 4)).square().mean().backward()
    other.step()
    assert fences(job) == 1


def test_a_compiled_step_waits(job):
    step = torch.compile(job.optimizer.step, backend="eager")
    for expected in (1, 2):
        job.model(torch.randn(8, 4)).square().mean().backward()
        step()
        assert fences(job) == expected


def test_a_step_compiled_as_one_graph_is_not_broken(job):
    """The hook cannot run in it: what notices is the library, see docs."""
    weight = job.model.inner.weight
    before = weight.detach().clone()
    job.model(torch.randn(8, 4)).square().mean().backward()
    torch.compile(job.optimizer.step, backend="eager", fullgraph=True)()
    assert not torch.equal(weight, before)


def test_optimizers_in_the_backward_pass_wait(store):
    """Each parameter has its own, which steps on a thread of autograd."""
    job = trained(store)
    job.client.calls.clear()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in job.model.parameters()}
    handles = [
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
        for p in job.model.parameters()
        if p.requires_grad and p.numel()
    ]
    job.model(torch.randn(8, 4)).square().mean().backward()
    assert fences(job) == len(handles)


def test_another_thread_may_step(job):
    thread = threading.Thread(target=step_without_fence, args=(job,))
    thread.start()
    thread.join()
    assert fences(job) == 1


def test_optimizers_of_other_models_do_not_wait(job):
    other = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(2)).sum().backward()
    optimizer.step()
    assert fences(job) == 0
    assert job.ck.snapshot(3), "nor are they taken for the model's"
    # One that is given a captured parameter later does.
    optimizer.add_param_group({"params": [job.model.frozen]})
    optimizer.step()
    assert fences(job) == 1


def test_a_fence_in_the_hook_never_raises(job, caplog):
    job.client.fail["fence"] = RuntimeError("broken")
    step_without_fence(job)
    step_without_fence(job)
    assert caplog.text.count("fence: broken") == 1


def test_a_closed_checkpointer_is_not_called(job):
    job.ck.close()
    job.client.calls.clear()
    step_without_fence(job)
    assert job.client.calls == []


def test_a_checkpointer_may_be_forgotten(store):
    job = trained(store)
    forgotten = weakref.ref(job.ck)
    assert job.ck in step_hook._called
    del job
    gc.collect()
    assert forgotten() is None


def test_close_in_a_hook(job):
    job.optimizer.register_step_pre_hook(lambda *_: job.ck.close())
    step_without_fence(job)
    assert not job.ck.snapshot(3)


# --- optimizers that are not attached ---


class Masters:
    """A mixed precision wrapper that nobody told Unreft of: steps on fp32 copies."""

    def __init__(self, model):
        self.model = model
        self.copies = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.copies, lr=0.1)

    @torch.no_grad()
    def step(self):
        trained = [p for p in self.model.parameters() if p.requires_grad]
        for copy_, parameter in zip(self.copies, trained):
            copy_.grad = torch.ones_like(copy_)
        self.optimizer.step()
        for copy_, parameter in zip(self.copies, trained):
            parameter.copy_(copy_)


def test_masters_that_nobody_attached_are_noticed(store, caplog):
    job = Job(store)
    job.ck.restore()
    masters = Masters(job.model)
    assert job.ck.snapshot(0)
    masters.step()
    assert not job.ck.snapshot(1)
    assert "Adam stepped on tensors that are not captured" in caplog.text
    assert "masters=" in caplog.text
    masters.step()
    assert not job.ck.snapshot(2)
    assert len(caplog.records) == 1


def test_two_models_that_train_each_other_are_no_masters(store, caplog):
    """Only one is attached; both step, in both orders."""
    job = trained(store)
    other = nn.Linear(2, 2)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(2)).sum().backward()
    for step, order in enumerate((0, 1, 0, 1), start=3):
        if order:
            foreign.step()
        step_without_fence(job)
        if not order:
            foreign.step()
        assert job.ck.snapshot(step)
    assert caplog.records == []


def test_an_optimizer_that_keeps_more_is_noticed(store, caplog):
    job = Job(store)
    job.ck.restore()
    other = torch.optim.Adam(job.model.outer.parameters(), lr=0.1)
    assert job.ck.snapshot(0)
    job.model(torch.randn(8, 4)).square().mean().backward()
    other.step()
    assert not job.ck.snapshot(1)
    assert "Adam steps on captured parameters, and what it keeps of them is not" in caplog.text
    job.step()
    assert job.ck.snapshot(2), "it steps no more"


def test_gradients_that_are_not_captured_are_named_once(store, caplog):
    job = Job(store)
    job.ck.restore()

    def backward():
        job.model(torch.randn(8, 4)).square().mean().backward()

    backward()
    assert job.ck.snapshot(0), "nothing is known of its steps yet"
    job.optimizer.step()
    assert job.ck.snapshot(1) and job.ck.snapshot(1), "its gradients are of a step that was taken"
    job.optimizer.zero_grad()
    assert job.ck.snapshot(1), "it has none"
    assert caplog.records == []
    for step in (2, 3):
        backward()
        assert job.ck.snapshot(step)
    (warning,) = caplog.records
    assert "gradients are not captured" in warning.getMessage()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_of_which_none_is_left_are_no_matter(job, caplog, set_to_none):
    for step in (3, 4):
        job.model(torch.randn(8, 4)).square().mean().backward()
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none)
        assert job.ck.snapshot(step) and job.ck.snapshot(step)
    assert caplog.records == []


def test_an_optimizer_that_keeps_nothing_may_step(job):
    other = torch.optim.SGD(job.model.outer.parameters(), lr=0.1)
    job.model(torch.randn(8, 4)).square().mean().backward()
    other.step()
    assert job.ck.snapshot(3)


def test_what_shares_its_state_with_one_that_is_attached_may_step(job):
    class Wrapper(torch.optim.Adam):  # as accelerate's, which is attached in place of the other
        pass

    inner = Wrapper(job.optimizer.param_groups)
    inner.state = job.optimizer.state
    job.model(torch.randn(8, 4)).square().mean().backward()
    inner.step()
    assert job.ck.snapshot(3)
