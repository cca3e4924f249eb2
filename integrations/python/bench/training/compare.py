"""Training with and without snapshots, by several methods, in one run.

    compare.py --out FILE [--device cuda] [--parameters 1000000000] [--seconds 280]

A GPT in bfloat16 with fp32 AdamW (14 bytes per parameter) trains on one device. Each method saves
its whole state after every step, in blocks of steps that alternate with blocks of training alone,
so that its ratio is one of neighbours. Then the state is overwritten, restored and compared byte by
byte. FILE is written after each method: what is measured stays when the rest fails or is cut off.

The last method is left out, and says so, when there is no time for it.

Exit codes: 0; 1, a method failed, see "failed" in its record; 3, refused: memory does not suffice.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import torch

import gpt_large
import loop as loops
import memory
import modes

METHODS = ("unreft", "async_save_pinned", "async_save", "torch_save", "unreft_derived")
# So long must training alone take, for a copy of 14 GB over PCIe 5 to have room beside it.
STEP_S_CUDA = 1.0
WARM_UP_S_MAX = 90
UNREFT_SHARE = 0.6  # of the time
CAPTURES = 5
REFUSED = 3


def say(text):
    print(f"compare: {text}", flush=True)


class Comparison:
    """One run: the job, what is measured of it, and the file that it is written to."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device(args.device)
        self.end = time.monotonic() + args.seconds
        self.record = {"complete": False, "device": str(self.device), "modes": []}
        self._needed_s = 0.0  # by the slowest method so far
        self._own_directory = args.checkpoint_dir is None
        self._directory = pathlib.Path(
            args.checkpoint_dir or tempfile.mkdtemp(prefix="unreft-compare-", dir="/dev/shm")
        )

    def write(self):
        unfinished = pathlib.Path(f"{self.args.out}.tmp")
        unfinished.write_text(json.dumps(self.record, indent=1) + "\n")
        unfinished.replace(self.args.out)

    def run(self):
        """Whether every method did what it should."""
        self.write()
        self._require_memory()
        self._describe()
        self._build()
        for number, name in enumerate(self.args.modes):
            left = len(self.args.modes) - number
            share = UNREFT_SHARE if name == "unreft" else 1 / left
            seconds = (self.end - time.monotonic()) * share
            self.record["modes"].append(self._try(name, seconds))
            self.write()
        self.record["complete"] = True
        self.write()
        return not any("failed" in mode for mode in self.record["modes"])

    def close(self):
        if self._own_directory:
            self._directory.rmdir()

    def _require_memory(self):
        config = gpt_large.shape_for(self.args.parameters)
        parameters = gpt_large.parameters_of(config)
        state = parameters * gpt_large.STATE_BYTES_PER_PARAMETER
        on_device = self.device.type == "cuda"
        needed = memory.needs(
            state,
            parameters,
            memory.activation_bytes(config),
            on_device,
            files_in_shm=str(self._directory.resolve()).startswith("/dev/shm"),
        )
        free = torch.cuda.mem_get_info(self.device)[0] if on_device else None
        found = memory.find(self._directory, free)
        self.record["memory"] = [
            {"what": what, "needed_bytes": need, "found_bytes": have}
            for what, need, have in memory.table(needed, found)
        ]
        memory.require(needed, found, parameters, say)

    def _describe(self):
        self.record |= {"torch": torch.__version__, "python": sys.version.split()[0]}
        if self.device.type == "cuda":
            self.record["gpu"] = torch.cuda.get_device_name(self.device)
        self.record["peaks"] = loops.pinned_peaks(self.device)

    def _build(self):
        job = gpt_large.build(self.args.parameters, self.device)
        tensors = job.tensors()
        self.job, self.loop = job, loops.Loop(job, self.device)
        self.none = modes.NoSnapshots(job)
        self.loop.calibrate(self.none, self.args.step_s)
        self.bytes = sum(tensor.nbytes for tensor in tensors.values())
        self.record |= {
            "parameters": sum(p.numel() for p in job.model.parameters()),
            "layers": job.config.n_layer,
            "width": job.config.n_embd,
            "tokens_per_step": self.loop.accumulate * job.config.batch * job.config.context,
            "state_tensors": len(tensors),
            "state_bytes": self.bytes,
        }
        say(f"{self.record['parameters']} parameters, {self.bytes} bytes in {len(tensors)} tensors,"
            f" {self.loop.step_s:.2f} s a step")

    # A method.

    def _make(self, name):
        on_device = self.device.type == "cuda"
        if name.startswith("unreft"):
            return modes.Unreft(self.job, self.args.job, derived=name == "unreft_derived")
        if name == "torch_save":
            return modes.TorchSave(self.job, self._directory / name)
        pinned = name == "async_save_pinned"
        return modes.AsyncSave(self.job, self._directory / name, pinned, on_device)

    def _try(self, name, seconds):
        record = {"mode": name}
        if seconds <= 0 or (name == "unreft_derived" and seconds < self._needed_s):
            what = "left_out" if name == "unreft_derived" else "failed"
            return record | {what: f"no time left of the {self.args.seconds:.0f} s"}
        mode = self._make(name)
        try:
            begin = time.monotonic()
            self._measure(mode, record, begin + seconds)
            self._needed_s = max(self._needed_s, time.monotonic() - begin)
        except Exception as error:
            record["failed"] = f"{type(error).__name__}: {error}"
        finally:
            mode.close()
        say(f"{name}: {record.get('failed') or _in_short(record)}")
        return record

    def _measure(self, mode, record, end):
        begin = time.monotonic()
        mode.attach()
        is_ours = isinstance(mode, modes.Unreft)
        if is_ours:
            self._warm_up(mode, record, min(end, begin + WARM_UP_S_MAX))
            before = mode.counts()
        alone, times = self._alternate(mode, end)
        record |= _summary(alone, times, self.bytes)
        if is_ours:
            # Those of a block's first steps, too, which do not count otherwise.
            record["snapshots"] = {n: now - before[n] for n, now in mode.counts().items()}
            for _ in range(CAPTURES):
                self.loop.step += 1
                mode.measure_capture(self.loop.step)
            record["capture_s"] = loops.spread(mode.capture_s)
            record["commit_s"] = loops.spread(mode.commit_s)
            record["capture_gb_s"] = _rate(mode.captured_bytes, loops.median(mode.capture_s))
        record |= mode.facts()
        self._restore(mode, record)

    def _warm_up(self, mode, record, end):
        begin = time.monotonic()
        steps = self.loop.run_until(mode, lambda: mode.is_warm() or time.monotonic() > end)
        mode.drain()
        record["warm_up"] = {
            "steps": steps,
            "seconds": round(time.monotonic() - begin, 2),
            "warm": mode.is_warm(),
        }

    def _alternate(self, mode, end):
        """Blocks of training alone and with snapshots, each first in turn."""
        alone, times = loops.Times(), loops.Times()
        is_ours = isinstance(mode, modes.Unreft)
        steps = self.args.steps if is_ours else self.args.baseline_steps
        for number in range(self.args.rounds if mode.name == "unreft" else 1):
            blocks = [
                lambda: alone.add(self.loop.block(self.none, steps, warm=1)),
                lambda: times.add(
                    self.loop.block(
                        mode, steps, warm=int(is_ours), go_on=lambda: time.monotonic() < end
                    )
                ),
            ]
            for block in blocks if number % 2 == 0 else reversed(blocks):
                block()
            if time.monotonic() > end:
                break
        return alone, times

    def _restore(self, mode, record):
        saved = {name: tensor.clone() for name, tensor in self.job.tensors().items()}
        for tensor in self.job.tensors().values():
            tensor.zero_()
        record |= {name: round(s, 4) for name, s in mode.restore().items()}
        found = self.job.tensors()
        wrong = [n for n, tensor in saved.items() if not _same_bytes(tensor, found.get(n))]
        record["restored_equal"] = not wrong and len(found) == len(saved)
        count = record.get("captured_bytes", self.bytes)
        record["restore_gb_s"] = _rate(count, record.get("read_s", record["restore_s"]))
        if not record["restored_equal"]:
            raise RuntimeError(f"{len(wrong)} of {len(saved)} tensors differ after the restore: "
                               f"{', '.join(wrong[:3])}")


def _same_bytes(a, b):
    if b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _rate(count, seconds):
    return round(count / seconds / 1e9, 3) if seconds else None


def _summary(alone, times, count):
    ms = [1e3 * s for s in times.snapshot]
    record = {
        "bytes": count,
        "steps": len(times.step),
        "step_s": loops.spread(times.step),
        "step_without_s": loops.spread(alone.step),
        "steps_without": len(alone.step),
        "snapshots_asked": times.asked,
        "snapshots_started": times.started,
        "host_blocked_by_snapshot_ms": loops.spread(ms),
        "host_blocked_by_fence_ms": loops.spread([1e3 * s for s in times.fence]),
        "fence_wait_ms": loops.spread([1e3 * s for s in times.fence_wait]),
    }
    if times.step and alone.step:
        ratio = loops.median(times.step) / loops.median(alone.step)
        record["step_ratio"] = round(ratio, 5)
    return record


def _in_short(record):
    return (f"step x {record.get('step_ratio')}, {record['snapshots_started']} snapshots in "
            f"{record['snapshots_asked']} steps, restored {record['restored_equal']}")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parameters", type=int, default=1_000_000_000, help="at least so many")
    parser.add_argument("--rounds", type=int, default=3, help="of unreft's blocks")
    parser.add_argument("--steps", type=int, default=7, help="counted ones of such a block")
    parser.add_argument("--baseline-steps", type=int, default=3, help="of the other methods")
    parser.add_argument("--step-s", type=float, help="a step takes at least so long, without")
    parser.add_argument("--seconds", type=float, default=280, help="begins nothing new after")
    parser.add_argument("--checkpoint-dir", help="of the other methods' files; /dev/shm")
    parser.add_argument("--modes", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--job", default=f"compare-{os.getpid()}", help="the daemon's")
    args = parser.parse_args()
    if args.step_s is None:
        args.step_s = STEP_S_CUDA if args.device == "cuda" else 0.0
    for name in ("parameters", "rounds", "steps", "baseline_steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args


def stop_on_sigterm(number, _):
    raise KeyboardInterrupt(f"signal {number}")


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, stop_on_sigterm)
    comparison = Comparison(args)
    try:
        return 0 if comparison.run() else 1
    except memory.DoesNotFit as error:
        comparison.record["refused"] = str(error)
        say(f"refused: {error}")
        return REFUSED
    except KeyboardInterrupt as error:
        comparison.record["failed"] = f"cut off by {error or 'Ctrl-C'}"
        return 130
    except Exception as error:
        comparison.record["failed"] = f"{type(error).__name__}: {error}"
        say(comparison.record["failed"])
        return 1
    finally:
        comparison.write()
        comparison.close()


if __name__ == "__main__":
    sys.exit(main())
