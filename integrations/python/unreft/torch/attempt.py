"""This process's part in an attempt: its connection, and the decision if it was taken before.

A process is one rank of one attempt: it has one connection at a time, which `peek` opens or
`attach`, and which belongs to the checkpointer that `attach` returns.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import unreft
from unreft.torch import ranks
from unreft.torch.agreement import join


@dataclasses.dataclass
class Joined:
    """A connection for a checkpointer; None where training runs unprotected."""

    client: unreft.Client | None
    key: tuple[str, str, int]  # socket, job, rank
    options: dict[str, Any]
    decision: unreft.Decision | None = None  # that `peek` has taken
    at_or_before: int | None = None  # and what it was asked for


_peeked: Joined | None = None
_pid = 0  # of the process that has peeked: a forked child has not
_attached: weakref.WeakValueDictionary[tuple[str, str, int], Any] = weakref.WeakValueDictionary()
_taken_by: dict[tuple[str, str, int], str] = {}
# Who attaches all that is trained at once, and what becomes of what is attached beside it.
_ONCE = {
    "unreft.torch.attach": (
        "give all models (in one nn.ModuleDict, say) and optimizers to one attach()"
    ),
    "unreft.deepspeed.attach": "a process trains one engine, once",
    "unreft.mcore.attach": "a process trains one model, once",
}


def take(
    caller: str, prepare: Callable[[], None], required: bool, options: Mapping[str, Any]
) -> Joined:
    """The connection for `caller`, which is named as users know it: that of `peek`, or a new one.

    `prepare` makes everything else that may be refused: if it raises on one rank, all raise.
    """
    global _peeked
    key = _key(options)
    given = dict(options)

    def connect() -> unreft.Client | None:
        _check_alone(key, caller)
        prepare()
        if _has_peeked():
            _check_same(key, given)
            return _peeked.client
        return _client(given)

    if _has_peeked() and _peeked.client is None:
        # All ranks were without a daemon, or agreed to go on without.
        connect()
        joined, _peeked = _peeked, None
        return joined
    if not _has_peeked() and given.get("attempt") is None:
        given["attempt"] = ranks.common_attempt()
    client = join(connect, required, key[2], given["world"], key[0])
    if _has_peeked():
        joined, _peeked = _peeked, None
        return dataclasses.replace(joined, client=client)
    return Joined(client, key, given)


def keep(joined: Joined, owner: Any, caller: str) -> None:
    """Remembers whose the connection is, as long as `owner.is_open`."""
    if joined.client is not None:
        _attached[joined.key] = owner
        _taken_by[joined.key] = caller


def peek(
    required: bool, at_or_before: int | None, options: Mapping[str, Any]
) -> int | None:
    """The step of this attempt's decision, or None where nothing was ever committed."""
    global _peeked, _pid
    key = _key(options)
    given = dict(options)
    if _has_peeked():
        _check_same(key, given)
        if at_or_before != _peeked.at_or_before:
            raise _asked_otherwise("at_or_before", _peeked.at_or_before, at_or_before)
        return _step_of(_peeked.decision)

    def connect() -> unreft.Client:
        _check_alone(key, "unreft.torch.attach")
        if given.get("attempt") is None and ranks.counted_by_agents() and not ranks.connected():
            raise unreft.FailedPrecondition(
                "peek: each of torchrun's agents counts attempts by itself: initialise "
                "torch.distributed before peek(), or set UNREFT_ATTEMPT"
            )
        return _client(given)

    if given.get("attempt") is None:
        given["attempt"] = ranks.common_attempt()
    client = join(connect, required, key[2], given["world"], key[0])
    try:
        decision = client.restore_begin(at_or_before) if client is not None else None
    except BaseException:
        client.close()
        raise
    _peeked, _pid = Joined(client, key, dict(options), decision, at_or_before), os.getpid()
    return _step_of(decision)


def _client(options: Mapping[str, Any]) -> unreft.Client:
    # What it cannot restore into another world a checkpointer refuses by name.
    return unreft.Client(any_world=True, **options)


def _has_peeked() -> bool:
    return _peeked is not None and _pid == os.getpid()


def _step_of(decision: unreft.Decision | None) -> int | None:
    return decision.step if decision is not None and decision.restored else None


def _key(options: Mapping[str, Any]) -> tuple[str, str, int]:
    socket = options.get("socket") or os.environ.get("UNREFT_SOCKET", "")
    job = options.get("job") or os.environ.get("UNREFT_JOB", "default")
    return socket, job, options["rank"]


def _check_alone(key: tuple[str, str, int], caller: str) -> None:
    other = _attached.get(key)
    if other is None or not other.is_open:
        return
    if _taken_by[key] != caller:
        raise unreft.FailedPrecondition(
            f"rank {key[2]} of job '{key[1]}' uses {_taken_by[key]} in this process: a process "
            f"saves and restores either by that or by {caller}"
        )
    if caller in _ONCE:
        raise unreft.FailedPrecondition(
            f"rank {key[2]} of job '{key[1]}' is attached in this process already: "
            f"{_ONCE[caller]}, or close() the first checkpointer before"
        )


def _check_same(key: tuple[str, str, int], options: Mapping[str, Any]) -> None:
    needed = {"socket, job, rank": _peeked.key, **_peeked.options}
    for name, value in {**options, "socket, job, rank": key}.items():
        if value is not None and needed.get(name) != value:
            raise _asked_otherwise(name, needed.get(name), value)


def _asked_otherwise(name: str, peeked: Any, found: Any) -> unreft.FailedPrecondition:
    return unreft.FailedPrecondition(
        f"{name}: peek() was called with {peeked!r} in this process, found {found!r}"
    )
