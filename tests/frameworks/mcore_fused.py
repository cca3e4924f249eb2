"""A stand-in for Transformer Engine's FusedAdam, which needs a GPU, for tests.

It keeps what that keeps, where that keeps it: the count of steps in the parameter groups that have
parameters, as a plain number, and of each parameter the two moments.
"""

import megatron.core.optimizer
import megatron.core.optimizer.distrib_optimizer
import torch


class FusedAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay, betas, eps, capturable, adam_w_mode):
        assert adam_w_mode and not capturable
        defaults = {"lr": lr, "bias_correction": True, "betas": betas, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                self._step_on(parameter, group)

    def _step_on(self, parameter, group):
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if parameter.grad is None:
            return
        first, second = group["betas"]
        mean = state["exp_avg"].lerp_(parameter.grad, 1 - first)
        square = state["exp_avg_sq"].lerp_(parameter.grad.square(), 1 - second)
        mean = mean / (1 - first ** group["step"])
        square = square / (1 - second ** group["step"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))


FusedAdam.__module__ = "transformer_engine.pytorch.optimizers.fused_adam"


def install():
    """Has Megatron-Core do what it does where Transformer Engine's is installed."""
    megatron.core.optimizer.Adam = FusedAdam
    megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
    distributed = megatron.core.optimizer.distrib_optimizer
    distributed.Adam = FusedAdam
    distributed.HAVE_APEX_OR_TE = distributed.USING_TE_OPTIMIZER = True
