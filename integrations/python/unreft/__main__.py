"""`python -m unreft`: the command unreft."""

from unreft import _command

_command.unreft()
