"""Errors of Unreft: one class per code, all of them `unreft.Error`.

A message names its subject, the number needed and the number found.
"""

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "Error",
    "FailedPrecondition",
    "Forked",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "ResourceExhausted",
    "Unavailable",
    "Unprotected",
]


class Error(Exception):
    """Base class. `code` is the `unreft_code` of <unreft/c.h>, `message` what it says."""

    code = 2  # UNKNOWN: no function of ours answers with it

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


class Cancelled(Error):
    """The wait was ended from this process, as by `close` on another thread."""

    code = 1


class InvalidArgument(Error, ValueError):
    """What was passed is wrong, whatever the state of the system."""

    code = 3


class DeadlineExceeded(Error, TimeoutError):
    """A wait reached its limit; the message names what was waited for."""

    code = 4


class NotFound(Error):
    """The thing named does not exist."""

    code = 5


class AlreadyExists(Error):
    """The thing named exists already."""

    code = 6


class PermissionDenied(Error):
    """Another user's daemon, job or memory."""

    code = 7


class ResourceExhausted(Error):
    """Memory, disk or a limit of the options does not suffice."""

    code = 8


class FailedPrecondition(Error):
    """The state of the system does not allow it, e.g. the restore of another model's state."""

    code = 9


class Aborted(Error):
    """A version was skipped or given up, another rank failed, or other processes restored."""

    code = 10


class Unprotected(Aborted):
    """Nothing was committed for as long as `attach(unprotected_after=...)` allows."""


class OutOfRange(Error):
    """A step or index beyond what is there."""

    code = 11


class Internal(Error):
    """A defect of Unreft."""

    code = 13


class Unavailable(Error, ConnectionError):
    """The daemon does not answer. Trying again may help."""

    code = 14


class DataLoss(Error):
    """State was committed and none of it is whole any more."""

    code = 15


class Forked(Error):
    """The call came from a forked child, in which a client does nothing."""

    code = 100


_BY_CODE = {cls.code: cls for cls in Error.__subclasses__()}


def from_code(code: int, message: str) -> Error:
    """The exception for a code of the C ABI."""
    if cls := _BY_CODE.get(code):
        return cls(message)
    error = Error(message)
    error.code = code
    return error
