"""The only place that prints. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

__all__ = ["Progress", "note", "out", "out_json", "table", "warn"]

_warned: set[str] = set()
_BAR = 24  # characters


def out(text: str = "") -> None:
    """Print a result."""
    print(text, flush=True)


def out_json(value: Any) -> None:
    """Print a result as JSON, keys in the order given."""
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def note(text: str) -> None:
    """Tell what is going on."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Warn once per process about each text."""
    if text not in _warned:
        _warned.add(text)
        note(f"rocmbuild: warning: {text}")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns (numbers right-aligned), two spaces between, no trailing blanks."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(header)]
    numeric = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [cell.rjust(w) if num else cell.ljust(w) for cell, w, num in zip(row, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *(line(row) for row in cells)])


class Progress:
    """A progress line: rewritten in place on a terminal, one line per ended phase elsewhere.

    Use as a context manager; call update(done, total, text) as often as wanted, and part(done, total) for what the
    present step has done of its own work, which a terminal shows as a bar.
    """

    def __init__(self, title: str, *, enabled: bool = True) -> None:
        self._title = title
        self._enabled = enabled
        self._live = enabled and sys.stderr.isatty()
        self._last = ""

    def __enter__(self) -> Progress:
        return self

    def update(self, done: int, total: int, text: str = "") -> None:
        """Show done of total, with what is being worked on."""
        share = f"{done}/{total}" if total else f"{done}"
        self._last = f"{self._title} {share} {text}".rstrip()
        self._show(self._last)

    def part(self, done: int, total: int) -> None:
        """Show how many bytes of the present step are done."""
        if self._live and total:
            full = _BAR * done // total
            bar = "#" * full + "." * (_BAR - full)
            self._show(f"[{bar}] {done / 1e6:.1f}/{total / 1e6:.1f} MB {self._last}")

    def _show(self, text: str) -> None:
        if self._live:
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self._enabled and self._last and kind is None:
            note(self._last)
