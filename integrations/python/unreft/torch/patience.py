"""Patience: for how long a job trains on unprotected, if its loop has set a limit."""

import time
from collections.abc import Callable

import unreft


class Patience:
    """Counts from the first snapshot that was asked for after the newest commit.

    So a pause without snapshots, an evaluation say, takes nothing of it.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic):
        if not limit_s > 0:
            raise unreft.InvalidArgument(
                f"unprotected_after: needed a number of seconds above 0, found {limit_s!r}"
            )
        self._limit_s = limit_s
        self._clock = clock
        self._committed: int | None = None
        self._since: float | None = None

    def look(self, step: int, status: unreft.Status) -> None:
        """To be called once a snapshot of `step` was asked for; raises `unreft.Unprotected`."""
        now = self._clock()
        if status.last_committed_step != self._committed:
            self._committed, self._since = status.last_committed_step, None
            return
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited <= self._limit_s:
            return
        newest = "nothing" if self._committed is None else f"nothing after step {self._committed}"
        why = status.why_unprotected or status.last_problem or "no version was completed"
        raise unreft.Unprotected(
            f"step {step}: {newest} was committed for {waited:.0f} s, and "
            f"unprotected_after={self._limit_s:g} ends the job then: {why}"
        )
