"""What a snapshot costs the trainer's Python thread under DeepSpeed and Megatron-Core.

    snapshot_cost.py --out DIR [--calls 40]

Each framework trains a model of about 2,000 captured tensors on the CPU, in a process of its own,
beside a daemon of its own. Timed is each call of `snapshot` that has started one, with the call
into the library that it makes; the step of training before it and the commit after it are not.
"""

import argparse
import concurrent.futures
import contextlib
import json
import logging
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "integrations/python/tests"), str(ROOT / "integrations/python/bench")]

from python_cost import Layers  # noqa: E402
from real_store import Store  # noqa: E402

import unreft  # noqa: E402

MOST_WANTED_MS = 1.0
WARM_UP = 3  # calls that are not counted: the first ones register the tensors
CALLS_MAX = 1000
DEEPSPEED_PARAMETERS = 640
MCORE_LAYERS = 55


class CountedClient(unreft.Client):
    """Keeps how many tensors were registered last."""

    tensors = 0

    def register(self, tensors, *args, **options):
        CountedClient.tensors = len(tensors)
        super().register(tensors, *args, **options)


class Trained(Layers):
    """Layers that can be trained."""

    def forward(self) -> torch.Tensor:
        return sum(parameter.float().sum() for parameter in self.parameters())


def times_of(snapshot: Callable[[int], bool], train: Callable[[int], object],
             wait: Callable[[int], object], calls: int) -> list[float]:
    """Seconds of each snapshot that has started, after the first few."""
    times: list[float] = []
    for step in range(1, CALLS_MAX):
        train(step)
        begin = time.perf_counter()
        started = snapshot(step)
        taken = time.perf_counter() - begin
        if started:
            times.append(taken)
            wait(step)
        if len(times) == calls + WARM_UP:
            return times[WARM_UP:]
    raise RuntimeError(f"only {len(times)} snapshots of {CALLS_MAX} have started")


def of_deepspeed(place: dict[str, object], calls: int) -> list[float]:
    import deepspeed_preloaded  # noqa: F401, first
    import deepspeed

    import unreft.deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo")
    model = Trained(DEEPSPEED_PARAMETERS)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": None,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 2},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    # None of the snapshots that `engine.step` takes: those that are timed are asked for.
    checkpointer = unreft.deepspeed.attach(engine, every=10 * CALLS_MAX, **place)
    checkpointer.restore()

    def train(step: int) -> None:
        engine.backward(engine())
        engine.step()

    return times_of(checkpointer.snapshot, train, checkpointer.wait, calls)


def of_mcore(place: dict[str, object], calls: int) -> list[float]:
    import mcore_model  # first

    import unreft.mcore

    mcore_model.begin(tp=1, pp=1)
    mcore_model.SAMPLES = 1
    mcore_model.seed(mcore_model.SEED)
    chunks = mcore_model.model_of(mcore_model.config_of(layers=MCORE_LAYERS))
    optimizer, scheduler = mcore_model.optimizer_of(chunks)
    mcore_model.set_up(chunks, optimizer)
    checkpointer = unreft.mcore.attach(
        chunks, optimizer, opt_param_scheduler=scheduler, **place
    )
    checkpointer.restore()

    def train(step: int) -> None:
        mcore_model.train_step(chunks, optimizer, scheduler, step)

    def snapshot(step: int) -> bool:
        with torch._C.DisableTorchFunction():  # which only tests have
            return checkpointer.snapshot(step)

    return times_of(snapshot, train, checkpointer.wait, calls)


FRAMEWORKS = {"deepspeed": of_deepspeed, "mcore": of_mcore}


def measure(framework: str, place: dict[str, object], calls: int) -> tuple[int, list[float]]:
    """Of a process of its own: the tensors, and the seconds of each call."""
    torch.set_num_threads(1)
    unreft.Client = CountedClient
    with contextlib.redirect_stdout(sys.stderr):  # frameworks print lines of their own
        times = FRAMEWORKS[framework](place, calls)
    return CountedClient.tensors, times


def in_its_own_process(framework: str, calls: int) -> tuple[int, list[float]]:
    store = Store("--log-level", "error")
    place = {"socket": store.socket, "job": store.job, "rank": 0, "world": 1, "attempt": 1}
    spawn = multiprocessing.get_context("spawn")
    try:
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            return pool.submit(measure, framework, place, calls).result()
    finally:
        store.close()


def record(framework: str, tensors: int, times: list[float]) -> dict[str, object]:
    value = 1e3 * statistics.median(times)
    return {
        "name": f"{framework}_snapshot_{tensors}",
        "value": round(value, 4),
        "unit": f"ms of the training thread, median of {len(times)}",
        "reference": MOST_WANTED_MS,
        "reference_name": "the most wanted, ms",
        "ratio": round(value / MOST_WANTED_MS, 3),
        "target": 1.0,
        "met": value <= MOST_WANTED_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--calls", type=int, default=40)
    args = parser.parse_args()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    records = [record(name, *in_its_own_process(name, args.calls)) for name in FRAMEWORKS]
    pathlib.Path(args.out, "snapshot_cost.json").write_text(json.dumps(records, indent=2) + "\n")
    for row in records:
        met = "met" if row["met"] else "MISSED"
        print(f"{row['name']:<24} {row['value']:7.3f} {row['unit']}   {row['reference_name']} "
              f"{row['reference']:.2f}   ratio {row['ratio']:.2f}   {met}")


if __name__ == "__main__":
    main()
