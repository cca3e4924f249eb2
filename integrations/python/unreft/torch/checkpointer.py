"""Checkpointer: what a training loop calls."""

import contextlib
import dataclasses
import logging
import operator
import os
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

import unreft
from unreft.torch import dry_run, step_hook, trainers
from unreft.torch.agreement import Outcome, check_agree, of_all_ranks
from unreft.torch.captured_state import CapturedState
from unreft.torch.derived_restore import StoredDerived
from unreft.torch.derived_tensors import DerivedTensors
from unreft.torch.device_extras import DeviceExtras
from unreft.torch.extras import Extras
from unreft.torch.foreign_steps import ForeignSteps
from unreft.torch.own_tensors import EQUAL
from unreft.torch.patience import Patience
from unreft.torch.registered_tensors import RegisteredTensors
from unreft.torch.reports import Reports
from unreft.torch.reshape import Reshaped
from unreft.torch.restored_memory import read_tensors
from unreft.torch.rng import Rng
from unreft.torch.shards import not_empty
from unreft.torch.stored_state import StoredState

_log = logging.getLogger("unreft")

_CONTEXT = contextlib.nullcontext()
# Errors that trying again does not cure.
_FOR_GOOD = (unreft.PermissionDenied, unreft.Forked)
# What the library says of tensors that are written although nobody waits for the copies.
_ASKS_FOR_FENCE = "nothing called fence()"


class ClientLike(Protocol):
    """What a Checkpointer uses of `unreft.Client`."""

    def restore_begin(self, at_or_before: int | None = None) -> unreft.Decision: ...
    def restore_read(self, tensors: Sequence[unreft.Tensor]) -> None: ...
    def restore_extras(self, rank: int) -> bytes | None: ...
    def restore_end(self) -> None: ...
    def register(
        self,
        tensors: Sequence[unreft.Tensor],
        extras_bytes: int = 0,
        timeout_s: float | None = None,
    ) -> None: ...
    def rebind(self, indices: Sequence[int], addresses: Sequence[int]) -> None: ...
    def wait_ready(self, timeout_s: float) -> None: ...
    def snapshot(self, step: int, extras: bytes = b"", stream: int = 0) -> unreft.Snapshot: ...
    def skip_snapshot(self, step: int, reason: str) -> None: ...
    def fence(self, stream: int = 0) -> None: ...
    def wait_committed(self, step: int, timeout_s: float = 60.0) -> None: ...
    def status(self) -> unreft.Status: ...
    def close(self) -> None: ...


@dataclasses.dataclass
class CheckpointerStatus(unreft.Status):
    """Also counts what happened before the client was asked."""

    layout_generations: int = 0  # registrations of the tensors
    restored_step: int | None = None
    reshaped_from: int | None = None  # ranks that stored it, where their number was another
    restored_from: str | None = None  # the durable copy, where no memory had it whole
    derived: int = 0  # tensors of which a digest is captured
    not_derived: dict[str, str] = dataclasses.field(default_factory=dict)  # declared: why not


class Checkpointer:
    """Restores and captures one rank's training state. Made by `unreft.torch.attach`.

        step = ck.restore() or 0
        while step < last:
            ...forward, backward, optimizer.step()...
            step += 1
            ck.snapshot(step)
        ck.close()

    Before an optimizer of torch steps on captured tensors, a hook waits until the last snapshot's
    copies no longer read them. A loop that changes them in another way calls `fence` before it.

    `restore` raises `unreft.Error`. Nothing after it raises or stops training: a failure is one
    warning of the logger "unreft", `status.last_problem`, and training goes on. In a forked child,
    such as a data loader's worker, all calls do nothing.
    """

    def __init__(
        self,
        client: ClientLike | None,
        state: CapturedState,
        extras: Extras,
        rng: bool,
        derived: DerivedTensors | None = None,
        *,
        decision: unreft.Decision | None = None,
        rank: int = 0,
        patience: Patience | None = None,
        buffers: str = EQUAL,
    ):
        """Without a client all calls do nothing, except that `restore` compares the ranks.

        `decision`: what the first `restore` follows, if it was asked for before. `buffers`: "equal"
        or "first", of a version that another number of ranks stored.
        """
        self._client = client
        self._state = state
        self._extras = extras
        self._rng = Rng() if rng else None
        self._derived = derived or DerivedTensors([], state)
        self._decision = decision
        self._pid = os.getpid()
        self._reports = Reports(rank)
        self._patience = patience
        self._foreign = ForeignSteps(state, extras.optimizers())
        self._aside = DeviceExtras(state.own)
        self._buffers = buffers

        self._restored = False
        self._restored_step: int | None = None
        self._reshaped_from: int | None = None
        self._restored_from: str | None = None
        self._registered = RegisteredTensors(client)
        self._off = ""  # why snapshots are off for good
        self._unfenced = ""  # why the last snapshot was skipped, if the loop lacks a fence
        self._told = False  # whether the client knows of the snapshot that is asked for
        # Whether an optimizer steps on captured tensors, as its number of parameters had it.
        self._steps_on: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        step_hook.install(self)

    # --- before the loop ---

    def restore(self, *, at_or_before: int | None = None) -> int | None:
        """Puts the state that the store decided on in place and returns its step.

        It is the newest that is whole; with `at_or_before`, the same on all ranks, the newest of
        that step or an earlier one, and what is newer is given up. `FailedPrecondition`, with the
        versions that could be restored, when only newer ones are whole. Memory keeps the last
        commit, and of older versions those that are pinned (`unreft pin`).

        None only if the store says that nothing was ever committed (or if there is no store, which
        `attach(required=False)` permits). Call it on all ranks. With a process group the ranks
        compare what they restored, and all raise if it differs or if one failed. After an error the
        state is undefined: end the process.

        In a dry run (`unreft run --dry-run`) it says which tensors would be restored, and raises
        SystemExit.
        """
        if self._active() and dry_run.is_asked_for():
            dry_run.end(self._client, self._state, self._derived.rules)
        error: Exception | None = None
        outcome = Outcome(Outcome.NO_STORE)
        if self._active():
            try:
                outcome = self._restore(at_or_before)
            except Exception as caught:
                error, outcome = caught, Outcome(Outcome.FAILED)
        outcomes = of_all_ranks(outcome)
        if error is not None:
            raise error
        check_agree(outcomes)
        self._restored = True
        self._state.remember_buffers()
        self._restored_step = None
        if outcome.kind != Outcome.RESTORED:
            self._reshaped_from = self._restored_from = None
        if outcome.kind == Outcome.RESTORED:
            self._restored_step = outcome.step
            # Otherwise the first snapshot would do it, and find no slot free.
            with contextlib.suppress(unreft.Error):
                self._client.restore_end()
        return self._restored_step

    def pass_over(self) -> None:
        """In place of `restore`, where the program has loaded what is newer than what is in memory:
        this stays as it is until the next snapshot is committed. Call it on all ranks."""
        if self._active():
            self._decide(None)
            self._state.remember_buffers()
            with contextlib.suppress(unreft.Error):  # as of `restore`
                self._client.restore_end()
        self._restored = True

    @property
    def extras(self) -> dict[str, Any]:
        """After `restore`: the stored extras that were values or callables, by name."""
        return self._extras.restored

    def _decide(self, at_or_before: int | None) -> unreft.Decision:
        decision, self._decision = self._decision, None
        if decision is None:
            return self._client.restore_begin(at_or_before)
        is_newer = at_or_before is not None and decision.restored and decision.step > at_or_before
        if is_newer:
            raise unreft.FailedPrecondition(
                f"step {at_or_before} or an earlier one is to be restored, and peek() has decided "
                f"for step {decision.step}: call peek(at_or_before={at_or_before})"
            )
        return decision

    def _restore(self, at_or_before: int | None) -> Outcome:
        decision = self._decide(at_or_before)
        if not decision.restored:
            return Outcome(Outcome.FRESH, decision.new_timeline)
        trainers.check_position(decision.step)
        stored = self._stored(decision)
        record = stored.record
        derived = StoredDerived(record.get("derived", b""), decision.step, self._state.own)
        bounds = self._state.bind_for_restore(derived.logical(stored.tensors))
        self._state.check_scalars(record["scalars"])
        read_tensors(self._client, stored.to_read(derived.to_read(bounds)), decision)
        self._state.load_scalars(record["scalars"])
        self._extras.load(record["extras"])
        derived.derive(bounds, self._derived.rules)
        if self._rng and record["rng"] is not None:
            self._rng.load_state_dict(record["rng"])  # last: nothing may draw after it
        self._reshaped_from = stored.reshaped_from
        self._restored_from = decision.durable_copy
        if decision.durable_copy and self._state.rank == 0:
            where = decision.durable_copy
            _log.warning("step %d is restored from the durable copy %s", decision.step, where)
        if stored.summary and self._state.rank == 0:
            _log.log(stored.level, "%s", stored.summary)
        return Outcome(Outcome.RESTORED, decision.new_timeline, decision.timeline, decision.step)

    def _stored(self, decision: unreft.Decision) -> StoredState | Reshaped:
        if decision.source_world == self._state.world:
            return StoredState(self._client, decision, self._state, self._aside, self._extras)
        return Reshaped(
            self._client,
            decision,
            self._state,
            self._extras,
            with_rng=self._rng is not None,
            buffers=self._buffers,
        )

    # --- in the loop ---

    def fence(self) -> contextlib.AbstractContextManager:
        """Waits until the last snapshot no longer reads the state: before anything changes it.

        For loops that change captured tensors without an optimizer of torch: by hand, by a swap of
        weights, in a replayed CUDA graph. Before a step of such an optimizer it is called anyway,
        and a second call costs nothing. Any thread may call it, one of autograd's, say.

        The wait is over when this returns; the context is for a readable loop.
        """
        if self._active():
            try:
                self._wait_for_copies()
            except Exception as error:
                self._reports.error("fence", error)
        return _CONTEXT

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before each step of any optimizer of the process, see `step_hook`."""
        if not self._active() or self._off:
            return
        try:
            if self._is_own(optimizer):
                self._foreign.own_step(optimizer)
                self._wait_for_copies()
            else:
                self._foreign.before(optimizer)
        except Exception as error:
            self._reports.error("fence", error)

    def snapshot(self, step: int) -> bool:
        """Starts to capture the state after `step` optimizer steps; returns whether it did.

        The copies run beside the next forward and backward. The first call registers the tensors
        with the daemon and waits for its memory; one after the tensors have changed in number or
        kind registers them again, and snapshots go on once the daemon has answered that.

        Raises nothing but `unreft.Unprotected`, if `attach(unprotected_after=...)` allows it.
        """
        if not self._active():
            return False
        started = not self._off and self._try_snapshot(step)
        if self._patience:
            self._patience.look(step, self.status)
        return started

    def _try_snapshot(self, step: int) -> bool:
        started, why = False, "its tensors have changed, and are being registered"
        self._told = False
        try:
            started = self._snapshot(step)
        except Exception as error:
            if isinstance(error, _FOR_GOOD):
                self._off = str(error)
            why = str(error)
            self._reports.error("snapshot", error, off=bool(self._off))
        if not self._told:
            # Else it would count for nobody, and what was trained since as protected.
            with contextlib.suppress(Exception):  # the step itself may be none
                self._client.skip_snapshot(step, why)
        with contextlib.suppress(Exception):  # closed meanwhile, by a signal's handler, say
            self._reports.look(self._client.status())
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
            self._reports.error("wait", error)
            return False
        return True

    @property
    def status(self) -> CheckpointerStatus:
        status = unreft.Status()
        if self._active():
            with contextlib.suppress(Exception):
                status = self._client.status()
        fields = {f.name: getattr(status, f.name) for f in dataclasses.fields(unreft.Status)}
        fields["last_problem"] = self._reports.problem or status.last_problem
        if why := self._off or self._unfenced:
            fields["protecting"], fields["why_unprotected"] = False, why
        return CheckpointerStatus(
            **fields,
            layout_generations=self._registered.generations,
            restored_step=self._restored_step,
            reshaped_from=self._reshaped_from,
            restored_from=self._restored_from,
            derived=self._derived.count(),
            not_derived=self._derived.captured(),
        )

    def close(self) -> None:
        """Waits for the copies under way and leaves the daemon; what was committed stays there."""
        if not self._active():
            return
        client, self._client = self._client, None
        step_hook.remove(self)
        try:
            client.close()
        except Exception as error:
            self._reports.error("close", error)
        self._registered.release()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it holds a connection to the daemon: not before one was made, after `close`, or
        in a forked child."""
        return self._active()

    # --- how ---

    def _active(self) -> bool:
        return self._client is not None and os.getpid() == self._pid

    def _is_own(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it steps on captured tensors."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        known = self._steps_on.get(optimizer)
        # What once stepped on others may be given captured ones in their place.
        if known is None or known[0] != count or not known[1]:
            known = self._steps_on[optimizer] = count, self._state.steps_on(optimizer)
        return known[1]

    def _wait_for_copies(self) -> None:
        try:
            self._client.fence(self._registered.stream())
        finally:
            # On a device it is the stream that waits: copies may run on, also those given up.
            self._registered.keep_what_is_read()

    def _snapshot(self, step: int) -> bool:
        if not self._restored:
            raise unreft.FailedPrecondition(
                "snapshot() needs restore() before it, also in a new run"
            )
        step = int(operator.index(step))
        self._foreign.check()
        extras = self._extras_of(step)
        if not self._follows(extras):
            return False
        data = self._extras_bytes(extras)
        self._extras.check_size(data, extras["extras"])
        if not self._aside.fits():
            if not self._register(extras):
                return False
            data = self._extras_bytes(extras)
        self._aside.copy()
        self._told = True
        snapshot = self._registered.snapshot(step, data)
        # Not one of the skips that pass: the program is to be changed.
        self._unfenced = snapshot.reason if _ASKS_FOR_FENCE in snapshot.reason else ""
        if self._unfenced:
            self._reports.needs_action(f"step {step} skipped: {self._unfenced}")
        return snapshot.started

    def _extras_of(self, step: int) -> dict[str, Any]:
        """Without the optimizers' part: what is here runs code that may change tensors."""
        place = self._state.place
        return {
            "step": step,
            "scalars": {"modules": self._state.module_extras()},
            "extras": self._extras.state(),
            "rng": self._rng.state_dict() if self._rng else None,
            **({"mesh": place.record()} if place and place.names else {}),
        }

    def _extras_bytes(self, extras: dict[str, Any]) -> bytes:
        record = {"derived": self._derived.record} if self._derived.record else {}
        self._aside.begin()
        return self._extras.dumps({**extras, **record}, self._aside)

    def _follows(self, extras: dict[str, Any]) -> bool:
        """Whether what is registered is the live tensors, with the digests of what is derived.

        Completes the extras.
        """
        for _ in range(2):  # once more without what has turned out not to be derived
            if self._are_registered():
                extras["scalars"]["optimizers"] = self._state.optimizer_scalars(known=True)
            elif not self._register(extras):
                return False
            if self._derived.compute():
                return True
        raise unreft.FailedPrecondition(
            f"tensors declared derived keep changing: {self._derived.captured()}"
        )

    def _are_registered(self) -> bool:
        """Whether the live tensors are those registered; copies what stands in for some."""
        # Derived tensors refer to others, which may not move then.
        return (
            self._registered.hold(may_move=not self._derived.rules)
            and self._state.steps_on_known()
            and self._state.refresh()
            and self._derived.holds()
        )

    def _register(self, extras: dict[str, Any]) -> bool:
        with self._registered.renewal() as may_try:
            if not may_try:
                return False
            bounds = self._state.bind()
            extras["scalars"]["modules"] = self._state.module_extras()
            extras["scalars"]["optimizers"] = self._state.optimizer_scalars(known=False)
            planned = self._derived.plan(bounds)
            extras_bytes = len(self._extras_bytes(extras))
            aside = self._aside.make()
            self._registered.tell(not_empty([*planned, *aside]), extras_bytes)
            self._registered.watch(
                self._state.watch([*bounds, *self._derived.tables(), *aside])
            )
        return True
