"""The hook that calls a checkpointer before an optimizer steps.

It is one hook for all optimizers of the process, installed once. A hook on the optimizer that the
user holds would not fire under wrappers such as accelerate's, and would be lost when an optimizer
is copied or unpickled.
"""

import weakref
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class BeforeStep(Protocol):
    """Called before each step of any optimizer, on the thread that steps. Never raises."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...


_called: "weakref.WeakSet[BeforeStep]" = weakref.WeakSet()
_installed = False


def install(checkpointer: BeforeStep) -> None:
    """From now on, as long as it lives, or until `remove`."""
    global _installed
    _called.add(checkpointer)
    if not _installed:
        register_optimizer_step_pre_hook(_hook)
        _installed = True


def remove(checkpointer: BeforeStep) -> None:
    _called.discard(checkpointer)


def _hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    # What is compiled as one whole graph cannot leave it: the hook stands aside there. Elsewhere
    # the call below breaks the graph, and runs before each step.
    if torch.compiler.is_compiling() and _is_whole_graph():
        return
    _call(optimizer)


@torch.compiler.disable
def _call(optimizer: torch.optim.Optimizer) -> None:
    for checkpointer in list(_called):
        checkpointer.before_step(optimizer)


@torch.compiler.assume_constant_result
def _is_whole_graph() -> bool:
    """Whether what is being compiled was asked for with fullgraph=True; asked while compiling."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return bool(InstructionTranslator.current_tx().output.root_tx.one_graph)
    except Exception:  # a torch that is built otherwise: the hook must not break its compilation
        return True
