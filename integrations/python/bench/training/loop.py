"""The training loop that is measured, and the arithmetic on its times."""

import dataclasses
import time

import torch

GRADIENT_NORM_MAX = 1.0
PEAK_CHUNK_BYTES = 64 << 20
PEAK_CHUNKS = 32
PEAK_ROUNDS = 5


def quantile(values, share):
    """With linear interpolation; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values):
    return quantile(values, 0.5)


def spread(values, digits=6):
    """Median, p10 and p90, for a record."""
    if not values:
        return None
    named = {"median": 0.5, "p10": 0.1, "p90": 0.9}
    return {name: round(quantile(values, share), digits) for name, share in named.items()}


@dataclasses.dataclass
class Times:
    """Of the counted steps of one method, in seconds."""

    step: list = dataclasses.field(default_factory=list)
    # Of the host, for each snapshot that was started.
    snapshot: list = dataclasses.field(default_factory=list)
    fence: list = dataclasses.field(default_factory=list)
    # What the fence held the device up, or the host where there is none.
    fence_wait: list = dataclasses.field(default_factory=list)
    asked: int = 0  # snapshots
    started: int = 0

    def add(self, other):
        for field in ("step", "snapshot", "fence", "fence_wait"):
            getattr(self, field).extend(getattr(other, field))
        self.asked += other.asked
        self.started += other.started


class Loop:
    """Trains a job. Its steps are counted through, whichever method saves them.

    The host reads the gradient's norm before each optimizer step, as loops do that skip a step
    whose gradient is not finite. That is also where the clock is read: everything before it has
    been done by then.
    """

    def __init__(self, job, device):
        self.job = job
        self.step = 0
        self.accumulate = 1  # micro-batches in a step
        self.step_s = 0.0  # as calibrated
        self._cuda = device.type == "cuda"

    def calibrate(self, nothing, step_s):
        """Makes a step so many micro-batches that it takes at least `step_s`."""
        self._pass(nothing, save=False)
        self._pass(nothing, save=False)
        begin = time.perf_counter()
        self._gradients()
        self.step_s = time.perf_counter() - begin
        self._zero()
        self.accumulate = max(1, -int(-step_s // self.step_s))
        self.step_s *= self.accumulate

    def block(self, mode, steps, warm, go_on=lambda: True):
        """Times of `steps` steps after `warm` that do not count; fewer when `go_on` says no.

        The last pass is for the clock alone and leaves the state as it was saved last.
        """
        times = Times()
        last = None
        fence_waits = []
        for number in range(warm + steps + 1):
            final = number == warm + steps or bool(times.step) and not go_on()
            before = [buffer.clone() for buffer in self.job.model.buffers()] if final else []
            record = self._pass(mode, save=not final, update=not final)
            for buffer, value in zip(self.job.model.buffers(), before):
                buffer.copy_(value)
            if last is not None and number > warm:
                times.step.append(record["at"] - last)
                times.fence.append(record["fence_s"])
                fence_waits.append(record["fence_wait_s"])
            last = record["at"]
            if final:
                break
            if number >= warm:
                times.asked += 1
            if number >= warm and record["started"]:
                times.started += 1
                times.snapshot.append(record["snapshot_s"])
        mode.drain()
        times.fence_wait = [wait() for wait in fence_waits]  # asking a device would hold us up
        return times

    def run_until(self, mode, done):
        """Trains with a snapshot each step until `done`; how many steps that took."""
        first = self.step
        while not done():
            self._pass(mode, save=True)
        return self.step - first

    def _pass(self, mode, save, update=True):
        """One step: its record has when the gradients were there, and what the host did then."""
        self._gradients()
        at = time.perf_counter()
        fence_s, fence_wait = self._fence(mode)
        if update:
            self.job.optimizer.step()
            self.step += 1
        self._zero()
        begin = time.perf_counter()
        started = save and mode.snapshot(self.step)
        return {
            "at": at,
            "fence_s": fence_s,
            "fence_wait_s": fence_wait,
            "started": started,
            "snapshot_s": time.perf_counter() - begin,
        }

    def _gradients(self):
        for number in range(self.accumulate):
            tokens, targets = self.job.batches[(self.step + number) % len(self.job.batches)]
            loss = self.job.model(tokens, targets) / self.accumulate
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.job.model.parameters(), GRADIENT_NORM_MAX)
        if not torch.isfinite(norm).item():
            raise RuntimeError(f"step {self.step + 1}: the gradient is not finite")

    def _zero(self):
        self.job.optimizer.zero_grad()

    def _fence(self, mode):
        """What it took on the host, and a function for what it held up."""
        if not self._cuda:
            begin = time.perf_counter()
            mode.fence()
            taken = time.perf_counter() - begin
            return taken, lambda: taken
        # The stream is idle here, so what lies between the two is the fence's wait alone.
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        begin = time.perf_counter()
        mode.fence()
        taken = time.perf_counter() - begin
        after.record()
        return taken, lambda: (after.synchronize(), before.elapsed_time(after) / 1e3)[1]


def pinned_peaks(device):
    """GB/s of one large copy after another between the device and pinned memory, in this process.

    None where there is no device.
    """
    if device.type != "cuda":
        return None
    pinned = torch.empty(PEAK_CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(PEAK_CHUNKS, PEAK_CHUNK_BYTES, dtype=torch.uint8, device=device)
    peaks = {}
    for name, to_host in (("d2h_gb_s", True), ("h2d_gb_s", False)):
        seconds = []
        for _ in range(PEAK_ROUNDS):
            torch.cuda.synchronize(device)
            begin = time.perf_counter()
            for chunk in there:
                target, source = (pinned, chunk) if to_host else (chunk, pinned)
                target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - begin)
        peaks[name] = round(there.nbytes / median(seconds) / 1e9, 2)
    return peaks
