"""Reports: what a checkpointer says while training goes on, each thing once."""

import logging
import re
import time

import unreft

_log = logging.getLogger("unreft")

_WARNINGS_MAX = 50  # of problems that stay
_DIGITS = re.compile(r"\d+")
# A problem that comes back is said again after a commit, but not sooner than so.
_AGAIN_S = 60.0
# Nothing committed is worth a line so long after the first snapshot, and sooner where many were
# taken: single skips are normal, and a commit takes its time, however fast the steps are.
_FIRST_COMMIT_S = 60.0
_MANY_SNAPSHOTS = 20
_FIRST_COMMIT_OF_MANY_S = 10.0
# That training is unprotected is said again after so long, and then each time that has doubled.
_UNPROTECTED_AGAIN_S = 60.0


class Reports:
    """One warning per problem, whatever the numbers in it, until a commit follows it.

    A problem that comes back after one is said again, though not at each step.

    That training is unprotected, and that it is protected again, is said by rank 0 alone.
    """

    def __init__(self, rank: int = 0):
        self._rank = rank
        self.problem = ""  # the last one
        self._warned: dict[str, float] = {}  # problem to when it was said
        self._cured: set[str] = set()  # of these
        self._given_up = 0
        self._taken = 0  # snapshots asked for before the first commit
        self._began = 0.0
        self._committed: int | None = None
        self._said_unprotected = False
        self._unprotected_again = 0.0  # when it is said next
        self._unprotected_period = _UNPROTECTED_AGAIN_S
        self._unsampled = ""

    def error(self, what: str, error: Exception, off: bool = False) -> None:
        """Of a call that failed; `off`: no further snapshots are taken."""
        self.problem = f"{what}: {error}"
        after = "; no more snapshots are taken" if off else ""
        unexpected = not isinstance(error, unreft.Error)
        self._warn(f"{type(error).__name__} {error}", f"{what}: {error}{after}", unexpected)

    def needs_action(self, what: str) -> None:
        """Of something that stays so until the user changes the program."""
        self.problem = what
        self._warn(what, what)

    def look(self, status: unreft.Status) -> None:
        """To be called once a snapshot: says what has changed since the last one."""
        self._taken += 1
        if self._taken == 1:
            self._began = time.monotonic()
        if status.given_up != self._given_up:
            self._given_up = status.given_up
            if status.last_problem:
                self.problem = status.last_problem
                self._warn(status.last_problem, status.last_problem)
        if status.unsampled != self._unsampled:
            self._unsampled = status.unsampled
            if status.unsampled:
                self._warn(status.unsampled, status.unsampled)
        if status.last_committed_step is not None and (
            status.last_committed_step != self._committed
        ):
            self._commit(status.last_committed_step)
        if self._rank != 0 or not self._is_late(status):
            return
        now = time.monotonic()
        if not self._said_unprotected:
            self._said_unprotected = True
            self._unprotected_period = _UNPROTECTED_AGAIN_S
        elif now < self._unprotected_again:
            return
        else:
            self._unprotected_period *= 2
        self._unprotected_again = now + self._unprotected_period
        why = status.why_unprotected or status.last_problem
        _log.warning("training goes on, but unprotected: %s", why or "nothing is committed")

    def _is_late(self, status: unreft.Status) -> bool:
        if status.protecting:
            return False
        if self._committed is not None:
            return True
        patience = _FIRST_COMMIT_OF_MANY_S if self._taken > _MANY_SNAPSHOTS else _FIRST_COMMIT_S
        return time.monotonic() - self._began > patience

    def _commit(self, step: int) -> None:
        self._committed = step
        self._cured.update(self._warned)
        if self._said_unprotected:
            self._said_unprotected = False
            _log.warning("training is protected again: step %d is committed", step)

    def _warn(self, problem: str, line: str, unexpected: bool = False) -> None:
        problem, now = _DIGITS.sub("#", problem), time.monotonic()
        said = self._warned.get(problem)
        if said is None and len(self._warned) >= _WARNINGS_MAX:
            return
        if said is not None and (problem not in self._cured or now < said + _AGAIN_S):
            return
        self._warned[problem] = now
        self._cured.discard(problem)
        _log.warning("%s; training goes on", line, exc_info=unexpected)
