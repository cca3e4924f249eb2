"""The ways to save the state that are compared. Each is called at the same places of the loop.

    attach -> { fence, snapshot } each step -> drain -> restore -> close

`fence` comes before the optimizer's step: from then on the state changes. `snapshot` comes after
it. What they take on the host is measured by the loop. `drain` returns when nothing runs any more
that was started; `restore` fills the job's tensors with what was saved last.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import memory
import unreft
import unreft.torch

ROOT = pathlib.Path(__file__).resolve().parents[4]
BIN_DIR = pathlib.Path(os.environ.get("UNREFT_BIN_DIR") or ROOT / "build/release/bin")
START_TIMEOUT_S = 20
COMMIT_TIMEOUT_S = 120
# That it is one process, and writes over the last checkpoint.
warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
# Before so many snapshots were whole not every slot has been used.
WARM_SNAPSHOTS = 2 * memory.SLOTS
PINNED = re.compile(r"(\d+) of (\d+) bytes pinned")


class NoSnapshots:
    """Training alone: what the others are compared with."""

    name = "none"

    def __init__(self, job):
        self._job = job

    def attach(self):
        pass

    def fence(self):
        pass

    def snapshot(self, step):
        """Whether one was started."""
        return False

    def drain(self):
        pass

    def restore(self):
        """How long its parts took, in seconds; "restore_s" is all of them."""
        return {}

    def facts(self):
        """What else there is to say of it, for the record."""
        return {}

    def close(self):
        pass


class TorchSave(NoSnapshots):
    """`torch.save` to one file, as fast as it goes: over the last one, nothing flushed to disk."""

    name = "torch_save"

    def __init__(self, job, directory):
        super().__init__(job)
        self._path = pathlib.Path(directory) / "state.pt"

    def attach(self):
        self._path.parent.mkdir(parents=True)

    def snapshot(self, step):
        torch.save(self._job.tensors(), self._path)
        return True

    def restore(self):
        begin = time.perf_counter()
        saved = torch.load(self._path, mmap=True, weights_only=True, map_location="cpu")
        for name, tensor in self._job.tensors().items():
            tensor.copy_(saved[name])
        _synchronize(tensor)
        return {"restore_s": time.perf_counter() - begin}

    def close(self):
        shutil.rmtree(self._path.parent, ignore_errors=True)


class AsyncSave(NoSnapshots):
    """`torch.distributed.checkpoint.async_save`; one save at a time, so each waits for the last.

    `pinned` False: as it is called without options. True: staged by a stream of its own into memory
    that is kept, pinned where there is a device, and written by several threads.
    """

    WRITER_THREADS = 4

    def __init__(self, job, directory, pinned, on_device):
        super().__init__(job)
        self.name = "async_save_pinned" if pinned else "async_save"
        self._directory = pathlib.Path(directory)
        self._on_device = on_device
        self._pinned = pinned
        self._stager = self._staging = self._upload = None
        self._waited_s = []

    def attach(self):
        if self._pinned:
            self._stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=self._on_device,
                    use_shared_memory=False,
                    use_async_staging=True,
                    use_non_blocking_copy=self._on_device,
                )
            )
            self.snapshot(0)  # allocates what is kept
            self.fence()
            self.drain()
            self._waited_s = []

    def fence(self):
        if self._staging is not None:
            self._staging.result()
            self._staging = None

    def snapshot(self, step):
        begin = time.perf_counter()
        self.drain()
        self._waited_s.append(time.perf_counter() - begin)
        if not self._pinned:
            self._upload = dcp.async_save(
                self._job.tensors(), checkpoint_id=self._directory, no_dist=True
            )
            return True
        # The next forward pass writes the buffers, while they are being staged.
        state = {
            name: tensor.clone() if name.startswith("buffer/") else tensor
            for name, tensor in self._job.tensors().items()
        }
        self._order_staging()
        writer = dcp.FileSystemWriter(self._directory, thread_count=self.WRITER_THREADS)
        response = dcp.async_save(
            state, storage_writer=writer, async_stager=self._stager, no_dist=True
        )
        self._staging = response.staging_completion
        self._upload = response.upload_completion
        return True

    def _order_staging(self):
        """The stager's stream does not wait by itself for the optimizer's kernels."""
        if self._on_device:
            stream = getattr(self._stager, "_staging_stream", None)
            if stream is None:
                torch.cuda.synchronize()
            else:
                stream.wait_stream(torch.cuda.current_stream())

    def drain(self):
        self.fence()
        if self._upload is not None:
            self._upload.result()
            self._upload = None

    def restore(self):
        begin = time.perf_counter()
        tensors = self._job.tensors()
        dcp.load(tensors, checkpoint_id=self._directory, no_dist=True)
        _synchronize(next(iter(tensors.values())))
        return {"restore_s": time.perf_counter() - begin}

    def facts(self):
        return {
            "pinned_staging": self._pinned and self._on_device,
            "waited_for_the_last_save_s": [round(s, 4) for s in self._waited_s],
        }

    def close(self):
        with contextlib.suppress(Exception):
            self.drain()
        if self._stager is not None:
            self._stager.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class Daemon:
    """An unreftd with a job of its own; its memory goes with it."""

    def __init__(self, job):
        self.job = job
        # Short: the path of a Unix socket has 107 bytes at most.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="unreft-"))
        self.socket = str(self.directory / "unreftd.sock")
        command = [BIN_DIR / "unreftd", "--job", job, "--run-dir", self.directory]
        command += ["--log-level", "warn"]
        self._process = subprocess.Popen([str(word) for word in command])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not os.path.exists(self.socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"unreftd did not come up within {START_TIMEOUT_S} s "
                                   f"(exit {self._process.poll()})")
            time.sleep(0.02)

    def close(self):
        self._process.kill()
        self._process.wait()
        for segment in pathlib.Path("/dev/shm").glob(f"unreft.{self.job}.*"):
            segment.unlink()
        shutil.rmtree(self.directory, ignore_errors=True)


class Unreft(NoSnapshots):
    """This project, with the daemon as it comes.

    `derived`: the weights in bfloat16 are declared to follow from their fp32 masters, so that 12 of
    the 14 bytes a parameter are captured and the training stream computes digests.
    """

    name = "unreft"

    def __init__(self, job, job_name, derived=False):
        super().__init__(job)
        self.name = "unreft_derived" if derived else "unreft"
        self._job_name = job_name
        self._derived = unreft.torch.Derived("model/{}", of="optim/{}/master") if derived else ()
        self._daemon = self._checkpointer = None
        self._attempt = -1
        self._last_started = None
        self.capture_s = []
        self.commit_s = []
        self.captured_bytes = 0  # of one snapshot

    def attach(self):
        self._daemon = Daemon(self._job_name)
        self._open()
        if self._checkpointer.restore() is not None:
            raise RuntimeError("a new job had something to restore")

    def _open(self):
        self._attempt += 1
        self._checkpointer = unreft.torch.attach(
            self._job.model, self._job.optimizer, socket=self._daemon.socket, job=self._job_name,
            rank=0, world=1, attempt=self._attempt, derived=self._derived,
        )

    @property
    def status(self):
        return self._checkpointer.status

    def is_warm(self):
        """Whether every slot was used and is pinned, or will not be."""
        status = self.status
        if status.started - status.given_up < WARM_SNAPSHOTS:
            return False
        pinned = PINNED.search(status.copier)
        return pinned is None or pinned[1] == pinned[2] or "buffers: " in status.copier

    def fence(self):
        self._checkpointer.fence()

    def snapshot(self, step):
        started = self._checkpointer.snapshot(step)
        if started:
            self._last_started = step
        return started

    def measure_capture(self, step):
        """Seconds of one snapshot with nothing beside it: until its last byte is copied, and until
        it is committed."""
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        while not self.status.ready:
            self._expect(deadline, "a slot")
            time.sleep(0.001)
        before = self.status.bytes_captured
        begin = time.perf_counter()
        if not self.snapshot(step):
            raise RuntimeError(f"the snapshot of step {step} did not start: {self.status}")
        while self.status.last_captured_step != step:
            self._expect(deadline, f"the capture of step {step}")
        self.capture_s.append(time.perf_counter() - begin)
        self.drain()
        self.commit_s.append(time.perf_counter() - begin)
        self.captured_bytes = self.status.bytes_captured - before

    def _expect(self, deadline, what):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no {what} within {COMMIT_TIMEOUT_S} s: {self.status}")

    def drain(self):
        """Also the daemon's work: the last snapshot that was not given up is committed."""
        if self._last_started is None:
            return
        committed = self._checkpointer.wait(self._last_started, COMMIT_TIMEOUT_S)
        if not committed and not self.status.given_up:
            raise RuntimeError(f"step {self._last_started} was not committed: {self.status}")

    def restore(self):
        """By a client of its own, as a new process has: nothing of the old one is used."""
        self._checkpointer.close()
        times = {}
        begin = time.perf_counter()
        with _timed(times, "restore_begin", "decision_s"), _timed(times, "restore_read", "read_s"):
            self._open()
            restored = self._checkpointer.restore()
        times["restore_s"] = time.perf_counter() - begin
        if restored != self._last_started:
            raise RuntimeError(f"restored step {restored}, committed was {self._last_started}")
        return times

    def counts(self):
        """Snapshots so far: those of some steps are a difference of two."""
        status = self.status
        return {name: getattr(status, name) for name in ("started", "skipped", "given_up")}

    def facts(self):
        status = self.status
        return {
            "snapshots_in_all": self.counts(),
            "captured_bytes": self.captured_bytes,
            "copier": status.copier,
            "last_problem": status.last_problem,
            "not_derived": status.not_derived,
        }

    def close(self):
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._daemon is not None:
            self._daemon.close()


@contextlib.contextmanager
def _timed(times, method, name):
    """Adds up the time that a method of unreft.Client takes."""
    whole = getattr(unreft.Client, method)

    def timed(*args, **kwargs):
        begin = time.perf_counter()
        try:
            return whole(*args, **kwargs)
        finally:
            times[name] = times.get(name, 0.0) + time.perf_counter() - begin

    setattr(unreft.Client, method, timed)
    try:
        yield
    finally:
        setattr(unreft.Client, method, whole)


def _synchronize(tensor):
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
