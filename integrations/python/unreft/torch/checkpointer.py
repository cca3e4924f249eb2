"""Checkpointer: what a training loop calls."""

import contextlib
import dataclasses
import logging
import os
import re
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

import unreft
from unreft.torch import extras as extras_module
from unreft.torch import ranks
from unreft.torch.derived_restore import StoredDerived
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.extras import Extras, Rng
from unreft.torch.shards import Bound, not_empty
from unreft.torch.state import TrainingState
from unreft.torch.watch import Watch

_log = logging.getLogger("unreft")

_FORMAT = 2  # of the extras
_CONTEXT = contextlib.nullcontext()
# Errors that trying again does not cure.
_FOR_GOOD = (unreft.InvalidArgument, unreft.PermissionDenied, unreft.Internal, unreft.Forked)
# A registration that failed is tried again after so many times the time that it took, so that the
# attempts cost training no more than 1/10.
_RETRY_FACTOR = 10
_RETRY_MIN_S = 1.0
# So many skipped snapshots in a row are worth a warning; single ones are normal.
_SKIPS_TO_WARN = 20
_WARNINGS_MAX = 50  # of problems that stay
_DIGITS = re.compile(r"\d+")


class ClientLike(Protocol):
    """What a Checkpointer uses of `unreft.Client`."""

    def restore_begin(self) -> unreft.Decision: ...
    def restore_read(self, tensors: Sequence[unreft.Tensor]) -> None: ...
    def restore_end(self) -> None: ...
    def register(self, tensors: Sequence[unreft.Tensor], extras_bytes: int = 0) -> None: ...
    def snapshot(self, step: int, extras: bytes = b"", stream: int = 0) -> unreft.Snapshot: ...
    def fence(self, stream: int = 0) -> None: ...
    def wait_committed(self, step: int, timeout_s: float = 60.0) -> None: ...
    def status(self) -> unreft.Status: ...
    def close(self) -> None: ...


@dataclasses.dataclass
class CheckpointerStatus(unreft.Status):
    """Also counts what happened before the client was asked. `protecting`: snapshots are on."""

    protecting: bool = False
    layout_generations: int = 0  # registrations of the tensors
    restored_step: int | None = None
    derived: int = 0  # tensors of which a digest is captured
    not_derived: dict[str, str] = dataclasses.field(default_factory=dict)  # declared: why not


class Checkpointer:
    """Restores and captures one rank's training state. Made by `unreft.torch.attach`.

        step = ck.restore() or 0
        while step < last:
            ...forward, backward...
            with ck.fence():
                optimizer.step()
            step += 1
            ck.snapshot(step)
        ck.close()

    `restore` raises `unreft.Error`. Nothing after it raises or stops training: a failure is one
    warning of the logger "unreft", `status.last_problem`, and training goes on. In a forked child,
    such as a data loader's worker, all calls do nothing.
    """

    def __init__(
        self,
        client: ClientLike | None,
        state: TrainingState,
        extras: Extras,
        rng: bool,
        derived: DerivedTensors | None = None,
    ):
        """Without a client all calls do nothing, except that `restore` compares the ranks."""
        self._client = client
        self._state = state
        self._extras = extras
        self._rng = Rng() if rng else None
        self._derived = derived or DerivedTensors([], state)
        self._pid = os.getpid()

        self._restored = False
        self._restored_step: int | None = None
        self._watch: Watch | None = None  # of what is registered
        self._memory: list[Any] = []  # that copies may be reading
        self._cuda_device: int | None = None  # of the registered tensors, if any is on one
        self._generations = 0
        self._off = ""  # why snapshots are off for good
        self._retry_at = 0.0
        self._skips_in_a_row = 0
        self._skipped = 0  # here, without the client's
        self._problem = ""
        self._warned: dict[str, str] = {}  # problem to what failed

    # --- before the loop ---

    def restore(self) -> int | None:
        """Puts the state that the store decided on in place and returns its step.

        None only if the store says that nothing was ever committed (or if there is no store, which
        `attach(required=False)` permits). Call it on all ranks. With a process group the ranks
        compare what they restored, and all raise if it differs or if one failed. After an error the
        state is undefined: end the process.
        """
        error: Exception | None = None
        outcome = _Outcome(_Outcome.NO_STORE)
        if self._active():
            try:
                outcome = self._restore()
            except Exception as caught:
                error, outcome = caught, _Outcome(_Outcome.FAILED)
        outcomes = _of_all_ranks(outcome)
        if error is not None:
            raise error
        _check_agree(outcomes)
        self._restored = True
        self._state.remember_buffers()
        self._restored_step = None
        if outcome.kind == _Outcome.RESTORED:
            self._restored_step = outcome.step
            # Otherwise the first snapshot would do it, and find no slot free.
            with contextlib.suppress(unreft.Error):
                self._client.restore_end()
        return self._restored_step

    @property
    def extras(self) -> dict[str, Any]:
        """After `restore`: the stored extras that were values or callables, by name."""
        return self._extras.restored

    def _restore(self) -> "_Outcome":
        decision = self._client.restore_begin()
        if not decision.restored:
            return _Outcome(_Outcome.FRESH, decision.new_timeline)
        if decision.extras is None:
            raise unreft.DataLoss(
                f"step {decision.step}: nothing but tensors is stored of this rank"
            )
        extras = extras_module.loads(decision.extras)
        if extras["format"] != _FORMAT:
            raise unreft.FailedPrecondition(
                f"step {decision.step}: extras have format {extras['format']}, needed {_FORMAT}"
            )
        derived = StoredDerived(extras.get("derived", b""), decision.step, self._state.own)
        bounds = self._state.bind_for_restore(derived.logical(decision.tensors))
        self._client.restore_read(not_empty(derived.to_read(bounds)))
        self._state.load_scalars(extras["scalars"])
        self._extras.load(extras["extras"])
        derived.derive(bounds, self._derived.rules)
        if self._rng and extras["rng"] is not None:
            self._rng.load_state_dict(extras["rng"])  # last: nothing may draw after it
        return _Outcome(
            _Outcome.RESTORED, decision.new_timeline, decision.timeline, decision.step
        )

    # --- in the loop ---

    def fence(self) -> contextlib.AbstractContextManager:
        """Waits until the last snapshot no longer reads the state: before anything changes it.

        The wait is over when this returns; the context is for a readable loop.
        """
        if self._active():
            try:
                self._wait_for_copies()
            except Exception as error:
                self._report("fence", error)
        return _CONTEXT

    def snapshot(self, step: int) -> bool:
        """Starts to capture the state after `step` optimizer steps; returns whether it did.

        The copies run beside the next forward and backward. The first call, and one after the
        tensors have changed place or number, registers them with the daemon and waits for that.
        """
        if not self._active() or self._off:
            return False
        try:
            started = self._snapshot(step)
        except Exception as error:
            self._report("snapshot", error)
            return False
        return started

    def wait(self, step: int, timeout_s: float = 60.0) -> bool:
        """Waits until all ranks have committed the snapshot of `step`; False if that failed.

        For the end of a run and for tests: training does not need it.
        """
        if not self._active():
            return False
        try:
            self._client.wait_committed(step, timeout_s)
        except Exception as error:
            self._report("wait", error)
            return False
        return True

    @property
    def status(self) -> CheckpointerStatus:
        status = unreft.Status()
        if self._active():
            with contextlib.suppress(Exception):
                status = self._client.status()
        fields = {f.name: getattr(status, f.name) for f in dataclasses.fields(unreft.Status)}
        fields["skipped"] += self._skipped
        fields["last_problem"] = self._problem or status.last_problem
        return CheckpointerStatus(
            **fields,
            protecting=status.connected and self._watch is not None and not self._off,
            layout_generations=self._generations,
            restored_step=self._restored_step,
            derived=self._derived.count(),
            not_derived=self._derived.captured(),
        )

    def close(self) -> None:
        """Waits for the copies under way and leaves the daemon; what was committed stays there."""
        if not self._active():
            return
        client, self._client = self._client, None
        try:
            client.close()
        except Exception as error:
            self._report("close", error)
        self._memory = []

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # --- how ---

    def _active(self) -> bool:
        return self._client is not None and os.getpid() == self._pid

    def _wait_for_copies(self) -> None:
        try:
            self._client.fence(self._stream())
        finally:
            # On a device it is the stream that waits: copies may run on, also those given up.
            self._memory = self._memory_in_use()

    def _stream(self) -> int:
        return 0 if self._cuda_device is None else _current_stream(self._cuda_device)

    def _memory_in_use(self) -> list[Any]:
        """What copies may still read."""
        return self._memory if self._memory and self._client.status().copying else []

    def _snapshot(self, step: int) -> bool:
        if not self._restored:
            raise unreft.FailedPrecondition(
                "snapshot() needs restore() before it, also in a new run"
            )
        extras = self._extras_of(step)
        if not self._follows(extras):
            self._skipped += 1
            return False
        in_use = self._memory_in_use()
        self._memory = [*in_use, *self._watch.memory()]
        snapshot = self._client.snapshot(step, self._extras_bytes(extras), self._stream())
        if not snapshot.started:
            self._memory = in_use
        self._note(step, snapshot)
        return snapshot.started

    def _extras_of(self, step: int) -> dict[str, Any]:
        """Without the optimizers' part: what is here runs code that may change tensors."""
        return {
            "format": _FORMAT,
            "step": step,
            "scalars": {"modules": self._state.module_extras()},
            "extras": self._extras.state(),
            "rng": self._rng.state_dict() if self._rng else None,
        }

    def _extras_bytes(self, extras: dict[str, Any]) -> bytes:
        record = {"derived": self._derived.record} if self._derived.record else {}
        return extras_module.dumps({**extras, **record})

    def _follows(self, extras: dict[str, Any]) -> bool:
        """Whether what is registered is the live tensors, with the digests of what is derived.

        Completes the extras.
        """
        for _ in range(2):  # once more without what has turned out not to be derived
            if self._registered():
                extras["scalars"]["optimizers"] = self._state.optimizer_scalars(known=True)
            elif not self._register(extras):
                return False
            if self._derived.compute():
                return True
        raise unreft.FailedPrecondition(
            f"tensors declared derived keep changing: {self._derived.captured()}"
        )

    def _registered(self) -> bool:
        """Whether the live tensors are those registered; copies what stands in for some."""
        return (
            self._watch is not None
            and self._watch.unchanged()
            and self._state.refresh()
            and self._derived.holds()
        )

    def _register(self, extras: dict[str, Any]) -> bool:
        begin = time.monotonic()
        if begin < self._retry_at:
            return False
        # Copies of the earlier tensors, if the loop has not waited for them.
        self._wait_for_copies()
        self._watch = None
        try:
            bounds = self._state.bind()
            extras["scalars"]["optimizers"] = self._state.optimizer_scalars(known=False)
            tensors = not_empty(self._derived.plan(bounds))
            self._client.register(tensors, len(self._extras_bytes(extras)))
            self._watch = self._state.watch([*bounds, *self._derived.tables()])
        except _FOR_GOOD as error:
            self._off = str(error)
            raise
        except Exception:
            now = time.monotonic()
            self._retry_at = now + max(_RETRY_MIN_S, _RETRY_FACTOR * (now - begin))
            raise
        self._cuda_device = _cuda_device_of(tensors)
        self._generations += 1
        if self._generations == 1:
            _log.info("captures from %s", self._client.status().copier)
        if self._generations > 1:
            _log.info("the tensors changed: layout generation %d", self._generations)
        return True

    def _note(self, step: int, snapshot: unreft.Snapshot) -> None:
        if snapshot.started:
            cured = [problem for problem, what in self._warned.items() if what == "snapshot"]
            if self._skips_in_a_row >= _SKIPS_TO_WARN or cured:
                _log.warning("snapshots run again, from step %d", step)
            self._skips_in_a_row = 0
            for problem in cured:
                del self._warned[problem]
            return
        self._skips_in_a_row += 1
        if self._skips_in_a_row == _SKIPS_TO_WARN:
            _log.warning("%d snapshots in a row were skipped: %s", _SKIPS_TO_WARN, snapshot.reason)

    def _report(self, what: str, error: Exception) -> None:
        """One warning per problem, whatever the numbers in it, until snapshots run again."""
        self._problem = f"{what}: {error}"
        problem = f"{type(error).__name__} {_DIGITS.sub('#', str(error))}"
        if problem in self._warned or len(self._warned) >= _WARNINGS_MAX:
            return
        self._warned[problem] = what
        off = "; no more snapshots are taken" if self._off else ""
        unexpected = not isinstance(error, unreft.Error)
        _log.warning("%s: %s%s; training goes on", what, error, off, exc_info=unexpected)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What one rank restored, as the ranks compare it."""

    FAILED = 0
    NO_STORE = 1
    FRESH = 2
    RESTORED = 3

    kind: int
    new_timeline: int = 0
    timeline: int = 0
    step: int = 0

    def __str__(self) -> str:
        if self.kind == _Outcome.RESTORED:
            return f"step {self.step} of timeline {self.timeline}"
        return {self.FAILED: "an error", self.NO_STORE: "no store", self.FRESH: "a fresh start"}[
            self.kind
        ]


def _cuda_device_of(tensors: Sequence[unreft.Tensor]) -> int | None:
    devices = [t.device_index for t in tensors if t.device == unreft.Device.CUDA]
    return devices[0] if devices else None


def _current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _of_all_ranks(outcome: _Outcome) -> list[_Outcome]:
    return [_Outcome(*values) for values in ranks.gather(dataclasses.astuple(outcome))]


def _check_agree(outcomes: list[_Outcome]) -> None:
    if len(set(outcomes)) == 1:
        return
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == _Outcome.FAILED]
    if failed:
        raise unreft.Aborted(f"rank {', '.join(map(str, failed))} could not restore")
    found: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        found.setdefault(f"{outcome}, now timeline {outcome.new_timeline}", []).append(rank)
    raise unreft.FailedPrecondition(
        "ranks restored different states: "
        + "; ".join(f"{what} on ranks {ranks}" for what, ranks in found.items())
    )
