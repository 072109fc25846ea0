"""Text of sources: bytes that come back, comments and literals told from code, offsets to lines."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

__all__ = [
    "Edit",
    "Lines",
    "decode",
    "edited",
    "encode",
    "flatten",
    "is_word",
    "line_column",
    "literals",
    "mask",
    "uses",
]


def decode(data: bytes) -> str:
    """Text whose encoding gives back the same bytes, whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The inverse of decode."""
    return text.encode("utf-8", "surrogateescape")


# Each alternative begins with one of / R " ' outside any group, so that the search leaps from one to the next.
_TOKEN = re.compile(
    r"""
      /(?P<line>/[^\\\n]*(?:\\(?:\r?\n|.|\Z)[^\\\n]*)*)
    | /(?P<block>\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z))
    | R(?P<raw>"(?P<delim>[^()\\\s"]{0,16})\(.*?\)(?P=delim)")
    | "(?P<string>[^"\\\n]*(?:\\(?:\r\n|.)[^"\\\n]*)*")
    | '(?P<separator>(?<=[0-9a-fA-F]')(?<!u8')(?=[0-9a-fA-F]))
    | '(?P<char>[^'\\\n]*(?:\\(?:\r\n|.)[^'\\\n]*)*')
    """,
    re.VERBOSE | re.DOTALL,
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_SPLICE = re.compile(r"\\\r?\n")


def mask(text: str) -> str:
    """The text with comments and the insides of literals blanked: same length, same lines."""
    return _TOKEN.sub(_blank_token, text)


def _blank_token(match: re.Match[str]) -> str:
    whole = match.group()
    kind = match.lastgroup
    if kind == "separator":
        return whole
    if kind in ("string", "char"):
        return whole[0] + _blank(whole[1:-1]) + whole[-1]
    if match.group("raw") is not None:
        return '"' + _blank(whole[1:-1]) + '"'
    return _blank(whole)


def _blank(text: str) -> str:
    return _NOT_NEWLINE.sub(" ", text) if "\n" in text else " " * len(text)


def flatten(masked: str) -> str:
    """Masked text in which a line that continues runs on: the splices are blanks, same length."""
    return _SPLICE.sub(lambda match: " " * len(match.group()), masked) if "\\" in masked else masked


def literals(text: str, masked: str) -> list[tuple[int, str]]:
    """(offset, inside) of each string literal that is no include's file, in order."""
    found: list[tuple[int, str]] = []
    parts = masked.split('"')
    offset = 0
    for number, part in enumerate(parts):
        if number % 2 and not parts[number - 1].rstrip(" \t").endswith(("include", "include_next")):
            found.append((offset, text[offset : offset + len(part)]))
        offset += len(part) + 1
    return found


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both counted from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


class Lines:
    """line_column for many offsets of one text."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        end = text.find("\n")
        while end >= 0:
            self._starts.append(end + 1)
            end = text.find("\n", end + 1)

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


Edit = tuple[int, int, str]
"""(start, end, what stands there instead)."""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with non-overlapping edits made."""
    parts: list[str] = []
    last = 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        parts += [text[last:start], new]
        last = end
    return "".join([*parts, text[last:]])


def is_word(text: str, index: int) -> bool:
    """Whether a character that can be part of an identifier stands at index."""
    return 0 <= index < len(text) and (text[index].isalnum() or text[index] == "_")


def uses(code: str, name: str) -> Iterator[int]:
    """Where a name stands as a whole word."""
    start = code.find(name)
    while start >= 0:
        end = start + len(name)
        if not is_word(code, start - 1) and not is_word(code, end):
            yield start
        start = code.find(name, end)
