"""Has Megatron-Core train on CPUs, for tests: import it before anything of megatron.

Megatron-Core makes its tensors on CUDA devices and draws from their generators. What it asks of
those is answered here by the CPU, and its tensors say of their type what those of a device would.
"""

import contextlib
import copy
import os
import types
import typing

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # its small kernels would each be compiled
os.environ.setdefault("NO_VCS_VERSION", "1")

import torch
import typing_extensions
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if _is_device(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.to:
            args = tuple("cpu" if _is_device(each) else each for each in args)
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


def _is_device(value):
    is_name = isinstance(value, (str, torch.device))
    return is_name and torch.device(value).type == "cuda"


class Stream:
    """Where all that is asked of a device has been done already."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: None


def _get_rng_state(*_, **__):
    return torch.get_rng_state()


def _set_rng_state(state, *_, **__):
    torch.set_rng_state(state)


def _norms_for_sequence_parallelism(kind):
    """Has torch's norms do what those of Apex and Transformer Engine do, which Megatron-Core needs
    for `sequence_parallel`: ranks see parts of a sequence, and sum the gradients of the weights."""
    make = kind.__new__

    def make_marked(cls, config, *args, **kwargs):
        without = copy.copy(config)
        without.sequence_parallel = False  # which it asks for
        norm = make(cls, without, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    kind.__new__ = make_marked


def install():
    """For the thread that calls it, and processes forked from it."""
    typing.override = typing_extensions.override  # of Python 3.12, for megatron.training
    # It has all of torch's own functions looked at.
    import megatron.core.tensor_parallel.random as random
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    OnCpu().__enter__()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_available = lambda: False  # which may ask for the count
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=10)
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = torch.cuda.Stream = torch.cuda.Event = lambda *_, **__: Stream()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = _get_rng_state
    _norms_for_sequence_parallelism(WrappedTorchNorm)
    random._get_cuda_rng_state, random._set_cuda_rng_state = _get_rng_state, _set_rng_state
