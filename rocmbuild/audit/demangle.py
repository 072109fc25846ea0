"""Readable kernel names, by the demangler that is there; without one names stay as they are."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocmbuild.process import filter_lines

__all__ = ["demangle", "short_name"]

_TOOLS = ("llvm-cxxfilt", "c++filt")
_LONGEST = 1 << 20
_MEMORY = 1 << 28
_TRIES = 4
_PARENTHESES = re.compile(r"[()]")


def demangle(names: Iterable[str], *, tools: Sequence[Path] = ()) -> dict[str, str]:
    """mangled -> readable, for the C++ names among them, by one process; {} without a demangler.

    tools: demanglers to try before those on PATH. A name of 250 bytes can stand for gigabytes of text: one whose text
    would be longer than 1 MiB stays as it is, and after a few of these so do those that come after it.
    """
    mangled = sorted({name for name in names if name.startswith("_Z") and name.isprintable() and len(name) < _LONGEST})
    found = [str(tool) for tool in tools if tool.exists()] + [path for path in map(shutil.which, _TOOLS) if path]
    for tool in found if mangled else ():
        readable: dict[str, str] = {}
        rest = mangled
        for _ in range(_TRIES):
            lines = filter_lines([tool], rest, longest=_LONGEST, memory=_MEMORY, timeout=60)
            readable.update(zip(rest, lines, strict=False))
            rest = rest[len(lines) + 1 :]  # the next would not do
            if not rest:
                break
        if readable:
            return readable
    return {}


@functools.lru_cache(maxsize=1 << 12)
def short_name(name: str) -> str:
    """A demangled function without its parameters and its `void`: for tables."""
    text = name.strip().removesuffix(" [clone .kd]")
    if text.endswith(")"):
        depth = 0
        for match in reversed(list(_PARENTHESES.finditer(text))):
            depth += 1 if match[0] == ")" else -1
            if depth == 0:
                text = text[: match.start()]
                break
    return text.removeprefix("void ") or name
