"""The errors a user can cause or meet, each with the exit code of the command line.

Exit codes: 1 a check, audit or compilation failed; 2 bad input or wrong usage; 3 the environment
fails (no toolchain, no network, no space). Anything that is not a RocmbuildError is a bug of
rocmbuild and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CheckError", "EnvironmentFailure", "InputError", "RocmbuildError", "joined"]


class RocmbuildError(Exception):
    """Base of every error that is shown without a traceback.

    message: names the key, path or value, what was found and what is wanted.
    hint: the next step, one sentence; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next step: {self.hint}" if self.hint else self.message


class CheckError(RocmbuildError):
    """A check, an audit or a compilation failed."""

    exit_code = 1


class InputError(RocmbuildError):
    """A value, a key or a file that the user gave is not acceptable."""

    exit_code = 2


class EnvironmentFailure(RocmbuildError):
    """The machine lacks something: a toolchain, the network, space, the platform itself."""

    exit_code = 3


def joined(messages: Sequence[str]) -> str:
    """One text for several faults: the fault itself, or a counted list."""
    if len(messages) == 1:
        return messages[0]
    return f"{len(messages)} problems:\n" + "\n".join(f"  - {message}" for message in messages)
