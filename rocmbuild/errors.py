"""The errors a user can cause or meet, each with the exit code of the command line.

Exit codes: 1 a check, audit or compilation failed; 2 bad input or wrong usage; 3 the environment
fails (no toolchain, no network, no space). Anything that is not a RocmbuildError is a bug of
rocmbuild and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "CheckError",
    "EnvironmentFailure",
    "InputError",
    "RocmbuildError",
    "joined",
    "nearest",
    "printable",
    "shown",
]


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


def shown(value: object, *, limit: int = 80) -> str:
    """A user's value for a message, as TOML would write it: one line, unprintable characters escaped, cut to limit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(item, limit=limit) for item in value[:4])}{', ...' if len(value) > 4 else ''}]"
    if isinstance(value, str):
        return f'"{printable(value, limit=limit)}"'
    return printable(str(value), limit=limit)


def printable(text: str, *, limit: int = 80) -> str:
    """text on one line: unprintable characters escaped, the middle left out beyond limit characters."""
    if len(text) > limit:
        text = f"{text[: limit - 20]}...{text[-17:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def nearest(word: str, known: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """The known words most like word, best first, those of equal likeness in the order given; maybe none."""
    import difflib  # only a message needs it

    if len(word) > 64:
        return ()
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(word.lower())
    scored = []
    for name in dict.fromkeys(known):
        matcher.set_seq1(name.lower())
        if matcher.real_quick_ratio() >= 0.6 and matcher.quick_ratio() >= 0.6 and (likeness := matcher.ratio()) >= 0.6:
            scored.append((likeness, name))
    return tuple(name for _, name in sorted(scored, key=lambda item: -item[0])[:limit])
