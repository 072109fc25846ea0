"""Which torch release a library's stable symbols need.

torch_abi.tsv is the table: each function of torch's C shims with the release that first declares it, taken from the
TORCH_FEATURE_VERSION guards in the headers of torch 2.13 (torch/csrc/stable/c/shim.h, torch/csrc/inductor/aoti_torch/
c/*.h and generated/*.h); what stands outside any guard is 2.9's or older. The tests read it out of the installed
headers again, and compare it with what the libraries of torch export.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["OLDER", "TorchNeed", "is_stable", "table", "torch_need"]

OLDER = "2.9"
"""Stands for this release and those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchNeed:
    """release: the oldest torch that has all symbols, "" where none is wanted; OLDER means that one or an older.

    newest: the symbols that need just that release, where it is newer than OLDER. unknown: symbols that look like
    torch's stable ones and that no release up to 2.13 declares.
    """

    release: str
    newest: tuple[str, ...]
    unknown: tuple[str, ...]


def is_stable(symbol: str) -> bool:
    """Whether a name is of the kind that torch gives to the functions of its stable C ABI."""
    return symbol.startswith(("aoti_torch_", "torch_"))


@functools.cache
def table() -> Mapping[str, str]:
    """Symbol -> release."""
    text = (Path(__file__).parent / "torch_abi.tsv").read_text("utf-8")
    rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    return MappingProxyType({name: OLDER if release == "-" else release for name, release in rows})


def torch_need(symbols: Iterable[str]) -> TorchNeed:
    """What a library needs that refers to these symbols (those without which it does not load: not weak ones)."""
    names = sorted(set(filter(is_stable, symbols)))
    known = table() if names else {}
    found = {name: known[name] for name in names if name in known}
    release = max(found.values(), key=lambda text: tuple(map(int, text.split("."))), default="")
    return TorchNeed(
        release=release,
        newest=tuple(name for name in names if release != OLDER and found.get(name) == release),
        unknown=tuple(name for name in names if name not in found),
    )
