"""What the comparison needs of a machine, what the machine has, and a refusal with the numbers."""

import dataclasses
import os
import pathlib

SLOTS = 3  # of the daemon, of a rank
# A process with CUDA, PyTorch and its libraries, and what else a machine runs.
PROCESS_BYTES = 8 << 30
SMALL_PROCESS_BYTES = 1 << 30  # without CUDA
SLOT_SLACK = 1.01  # headers, alignment
CGROUP = pathlib.Path("/sys/fs/cgroup")
GIB = 1 << 30


class DoesNotFit(Exception):
    """The message has the numbers and what would fit."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """Bytes, at the worst moment of a run."""

    shm: int
    host: int  # shared memory included
    device: int
    files: int  # where checkpoints are written


@dataclasses.dataclass(frozen=True)
class Found:
    shm: int
    host: int
    device: int | None  # None: no device is used
    files: int


def needs(state_bytes, parameters, activation_bytes, on_device, files_in_shm):
    """The slots are gone before the other methods run: they have a staged copy and its files."""
    slots = int(SLOTS * state_bytes * SLOT_SLACK)
    process = PROCESS_BYTES if on_device else SMALL_PROCESS_BYTES
    # Beside the state: gradients in bf16 and fp32, the copy that a restore is compared with.
    training = state_bytes + 6 * parameters + state_bytes + activation_bytes
    return Needs(
        shm=max(slots, state_bytes if files_in_shm else 0),
        # A pinned copy may be of the next power of two, tensor by tensor.
        host=max(slots, 3 * state_bytes) + process + (0 if on_device else training),
        device=training if on_device else 0,
        files=state_bytes,
    )


def activation_bytes(config):
    """A generous estimate of what one micro-batch keeps for its backward pass."""
    tokens = config.batch * config.context
    return tokens * (config.n_layer * config.n_embd * 40 + config.vocab * 12)


def _number_in(path):
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def host_bytes_free():
    """Of the machine, or less if this process's control group may use less."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _number_in(CGROUP / limit), _number_in(CGROUP / used)
        if most is not None and now is not None:
            free = min(free, max(most - now, 0))
    return free


def bytes_free_at(path):
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def find(files_dir, device_bytes_free=None):
    return Found(bytes_free_at("/dev/shm"), host_bytes_free(), device_bytes_free,
                 bytes_free_at(files_dir))


def gib(count):
    return f"{count / GIB:.1f} GiB"


def table(needed, found):
    """(what, needed, found) of everything that is used."""
    rows = [
        ("/dev/shm", needed.shm, found.shm),
        ("host memory, /dev/shm included", needed.host, found.host),
        ("the directory of checkpoints", needed.files, found.files),
    ]
    if found.device is not None:
        rows.append(("device memory", needed.device, found.device))
    return rows


def require(needed, found, parameters, say):
    """Prints the numbers; DoesNotFit if one of them is not enough."""
    for what, need, have in table(needed, found):
        say(f"memory: {what}: needed {gib(need)}, found {gib(have)}")
    short = [row for row in table(needed, found) if row[1] > row[2]]
    if not short:
        return
    share = min(have / need for _, need, have in short)
    fits = max(int(parameters * share * 0.9), 0)
    missing = "; ".join(f"{what}: needed {gib(need)}, found {gib(have)}"
                        for what, need, have in short)
    raise DoesNotFit(f"{missing}; about --parameters {fits} would fit")
