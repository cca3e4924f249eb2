"""What the ranks of an attempt agree on before they train: who reaches a daemon, what is restored.

Where there is a process group they tell each other, and all raise together if they must not go on:
one rank that raises alone would leave the others in a collective call, or in a wait for it.
"""

import dataclasses
import logging
from collections.abc import Callable

import unreft
from unreft._abi import timeline_number
from unreft.torch import listing, ranks

_log = logging.getLogger("unreft")

_REACHED, _NO_DAEMON, _FAILED = 0, 1, 2
_NEVER, _EVER, _UNKNOWN = 0, 1, 2


def join(
    connect: Callable[[], unreft.Client], required: bool, rank: int, world: int, socket: str
) -> unreft.Client | None:
    """The client that `connect` returns, or None where training may go on unprotected.

    Without `required` that is so if no rank reaches a daemon, or if those that are reached say that
    nothing was ever committed: to start from the beginning beside a state that only some ranks can
    see would be a silent loss. Raises on all ranks what is wrong on some.
    """
    client, error = None, None
    try:
        client = connect()
    except Exception as caught:
        error = caught
    if not ranks.connected():
        return _join_alone(client, error, required, world)
    kind = _REACHED if error is None else _FAILED
    if isinstance(error, unreft.Unavailable):
        kind = _NO_DAEMON
    kinds = [own for (own,) in ranks.gather([kind])]
    if not any(kinds):
        return client
    texts = ranks.gather_texts(str(error) if error is not None else socket)
    try:
        _raise_failed(error, kinds, texts, rank)
        _check_may_start(client, error, kinds, texts, required)
    except BaseException:
        if client is not None:
            client.close()
        raise
    if client is not None:
        client.close()
    if rank == 0:
        _log.warning("training runs unprotected: %s", _without(kinds, texts))
    return None


def _join_alone(
    client: unreft.Client | None, error: Exception | None, required: bool, world: int
) -> unreft.Client | None:
    if error is None:
        return client
    if required or not isinstance(error, unreft.Unavailable):
        raise error
    if world > 1:
        _log.warning(
            "required=False has no effect on one of %d ranks without a process group, since the "
            "others may have reached a daemon: initialise torch.distributed before attach()",
            world,
        )
        raise error
    _log.warning("training runs unprotected: %s", error)
    return None


def _raise_failed(
    error: Exception | None, kinds: list[int], texts: list[str], rank: int
) -> None:
    if kinds[rank] == _FAILED:
        raise error
    failed = [other for other, kind in enumerate(kinds) if kind == _FAILED]
    if failed:
        raise unreft.Aborted(f"rank {failed[0]} could not attach: {texts[failed[0]]}")


def _check_may_start(
    client: unreft.Client | None,
    error: Exception | None,
    kinds: list[int],
    texts: list[str],
    required: bool,
) -> None:
    if required:
        raise unreft.Unavailable(
            f"{_without(kinds, texts)}. Start the daemon there (`unreft up`, or unreftd by your "
            "service manager), or pass required=False to train unprotected"
        ) from error
    if all(kinds):
        return
    answers = [own for (own,) in ranks.gather([_ever_committed(client)])]
    asked = [rank for rank, kind in enumerate(kinds) if kind == _REACHED]
    if all(answers[rank] == _NEVER for rank in asked):
        return
    if any(answers[rank] == _EVER for rank in asked):
        what = "an earlier run of this job has committed state, which these ranks cannot see"
    else:
        what = "whether an earlier run of this job has committed state could not be found out"
    raise unreft.Unavailable(
        f"{_without(kinds, texts)}; {what}, so that training would silently start from the "
        "beginning. Start the missing daemons, or give the state up with `unreft fresh-start`"
    )


def _ever_committed(client: unreft.Client | None) -> int:
    if client is None:
        return _UNKNOWN
    try:
        return _EVER if client.ever_committed() else _NEVER
    except unreft.Error:
        return _UNKNOWN


def _without(kinds: list[int], texts: list[str]) -> str:
    """Which ranks reach no daemon, and what the first of them was told."""
    without = [rank for rank, kind in enumerate(kinds) if kind == _NO_DAEMON]
    if len(without) == len(kinds):
        return f"no rank reaches a daemon: {texts[0]}"
    return (
        f"{len(without)} of {len(kinds)} ranks reach no daemon ({listing.ranks(without)}): rank "
        f"{without[0]}: {texts[without[0]]}"
    )


def _timeline_name(timeline: int) -> str:
    """Its number, and the id that tells it from another of that number."""
    return f"{timeline_number(timeline)} ({timeline & 0xFFFFFFFF:08x})"


@dataclasses.dataclass(frozen=True)
class Outcome:
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
        if self.kind == Outcome.RESTORED:
            return f"step {self.step} of timeline {_timeline_name(self.timeline)}"
        return {self.FAILED: "an error", self.NO_STORE: "no store", self.FRESH: "a fresh start"}[
            self.kind
        ]


def of_all_ranks(outcome: Outcome) -> list[Outcome]:
    """Of every rank, by rank; all ranks call it together."""
    return [Outcome(*values) for values in ranks.gather(dataclasses.astuple(outcome))]


def check_agree(outcomes: list[Outcome]) -> None:
    """Raises unless all ranks restored the same."""
    if len(set(outcomes)) == 1:
        return
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == Outcome.FAILED]
    if failed:
        raise unreft.Aborted(f"rank {', '.join(map(str, failed))} could not restore")
    found: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        now = _timeline_name(outcome.new_timeline)
        found.setdefault(f"{outcome}, now timeline {now}", []).append(rank)
    raise unreft.FailedPrecondition(
        "ranks restored different states: "
        + "; ".join(f"{what} on ranks {ranks}" for what, ranks in found.items())
    )
