"""Readable kernel names, by the demangler that is there; without one names stay as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocmbuild.errors import RocmbuildError
from rocmbuild.process import run

__all__ = ["demangle", "short_name"]

_TOOLS = ("llvm-cxxfilt", "c++filt")


def demangle(names: Iterable[str], *, tools: Sequence[Path] = ()) -> dict[str, str]:
    """mangled -> readable, for the C++ names among them, by one process; {} without a demangler.

    tools: demanglers to try before those on PATH.
    """
    mangled = sorted({name for name in names if name.startswith("_Z") and name.isprintable()})
    found = [str(tool) for tool in tools if tool.exists()] + [path for path in map(shutil.which, _TOOLS) if path]
    if not mangled:
        return {}
    for tool in found:
        try:
            done = run([tool], what="demangling", stdin="\n".join(mangled) + "\n", check=False, timeout=120)
        except RocmbuildError:
            continue
        lines = done.stdout.splitlines()
        if done.returncode == 0 and len(lines) == len(mangled):
            return dict(zip(mangled, lines, strict=True))
    return {}


def short_name(name: str) -> str:
    """A demangled function without its parameters and its `void`: for tables."""
    text = name.strip().removesuffix(" [clone .kd]")
    if text.endswith(")"):
        depth = 0
        for at in range(len(text) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(text[at], 0)
            if depth == 0:
                text = text[:at]
                break
    return text.removeprefix("void ") or name
