"""What is logged and measured of the epoch so far, taken apart and made again."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.connectors.logger_connector import result

import unreft

_OF_A_METRIC = ("_update_count", "_computed", "_forward_cache")
_NOT_PLAIN = ("reduce_fx", "_sync")


def metrics_of(module: LightningModule) -> dict[str, torchmetrics.Metric]:
    found = {}
    for name, part in module.named_modules():
        if isinstance(part, torchmetrics.MetricCollection):
            part.values(copy_state=False)  # those of a group share what only one of them updates
        elif isinstance(part, torchmetrics.Metric):
            found[name] = part
    return found


def parts_of(metric: torchmetrics.Metric) -> dict[str, Any]:
    return {name: getattr(metric, name) for name in (*metric._defaults, *_OF_A_METRIC)}


def results_of(logged: dict[str, Any]) -> dict[str, Any]:
    """What `self.log` has gathered of the epoch so far."""
    stored = {}
    for key, metric in logged.items():
        if metric.has_reset:
            continue
        meta = metric.meta
        if meta.sync.group is not None or not (metric.is_tensor or meta.metric_attribute):
            raise unreft.InvalidArgument(
                f"self.log({meta.name!r}): with a sync_dist_group, or of a metric that is no "
                "attribute of the module, it cannot be stored"
            )
        fields = {name: value for name, value in vars(meta).items() if name not in _NOT_PLAIN}
        stored[key] = {
            "meta": fields,
            "reduce": (meta.reduce_fx.__name__, meta.reduce_fx in (sum, max, min)),
            "sync": {"_should": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only},
            "parts": parts_of(metric),
            # Of the dtype of the context that it was made in, such as that of "64-true".
            "defaults": metric._defaults,
            "is_tensor": metric.is_tensor,
        }
    return stored


def take_results(trainer: Trainer, stored: dict[str, Any]) -> None:
    results = trainer.fit_loop.epoch_loop._results
    results.clear()
    for key, of in stored.items():
        name, is_builtin = of["reduce"]
        builtin = {"sum": sum, "max": max, "min": min}
        meta = result._Metadata(
            **of["meta"], reduce_fx=builtin[name] if is_builtin else getattr(torch, name)
        )
        meta.sync = result._Sync(fn=trainer.strategy.reduce, **of["sync"])
        metric = results[key] = result._ResultMetric(meta, of["is_tensor"])
        device = trainer.strategy.root_device
        metric._defaults = on_device(device, of["defaults"])
        for part, value in of["parts"].items():
            setattr(metric, part, on_device(device, value))
        if not of["is_tensor"]:
            metric.value = trainer.lightning_module.get_submodule(meta.metric_attribute)


def on_device(device: torch.device, value: Any) -> Any:
    """Tensors come back in the host's memory."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: on_device(device, each) for key, each in value.items()}
    return [on_device(device, each) for each in value] if isinstance(value, list) else value
