"""How many commands run at once: as many as processors and memory allow, those of a container where it has fewer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MEMORY", "Jobs", "Machine", "choose_jobs", "read_machine"]

GIB = 1 << 30
MEMORY = {"device": GIB // 2, "host": GIB // 2, "cxx": 3 * GIB // 4, "cuda": 3 * GIB // 2}
"""Bytes that a command of a kind is allowed.

The kernels' own took at most 155 MiB for device code, 152 MiB for its host half (clang 22) and 190 MiB for C++ with
torch's stable headers (g++ 12); files with more templates take several times that. nvcc, not measured, runs its parts
at once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this process may use: processors, and bytes of memory that are free for it (None where nobody says)."""

    processors: int
    memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """A number of jobs, at least 1, and why it is this one."""

    count: int
    reason: str


def choose_jobs(machine: Machine, kinds: Iterable[str]) -> Jobs:
    """As many jobs as there are processors, fewer where memory would not do for so many of the hungriest kind."""
    each = max((MEMORY.get(kind, 0) for kind in kinds), default=0)
    words = f"{machine.processors} processors"
    if machine.memory is None or not each:
        return Jobs(count=machine.processors, reason=words)
    fit = max(1, machine.memory // each)
    words += f", {machine.memory / GIB:.1f} GiB of memory at {each / GIB:.2g} GiB a command"
    return Jobs(count=min(machine.processors, fit), reason=words)


def read_machine(root: Path = Path("/")) -> Machine:
    """What the kernel says: affinity, /proc/meminfo, and the limits of the control groups around this process.

    root: where proc and sys are looked for.
    """
    counts = [len(os.sched_getaffinity(0))]
    memory = [_available(root)]
    for folder in _groups(root, "memory"):
        memory.append(_room(folder, "memory.max", "memory.current", "inactive_file"))
        memory.append(_room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    for folder in _groups(root, "cpu"):
        quota = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal() and int(quota[1]):
            counts.append(max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    known = [size for size in memory if size is not None]
    return Machine(processors=min(counts), memory=min(known) if known else None)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return []


def _table(path: Path) -> dict[str, int]:
    """The numbers of lines `name[:] number ...`."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _available(root: Path) -> int | None:
    kilobytes = _table(root / "proc/meminfo").get("MemAvailable")
    return None if kilobytes is None else kilobytes << 10


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control groups around this process that may limit it, the innermost first (cgroups(7), versions 1 and 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        inner = base / path.lstrip("/")
        yield inner
        yield from (folder for folder in inner.parents if folder == base or base in folder.parents)


def _room(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    """Bytes that a group has left: its limit without what it uses, file pages that can go not counted."""
    most, now = _words(folder / limit), _words(folder / used)
    if len(most) != 1 or not most[0].isdecimal() or len(now) != 1 or not now[0].isdecimal():
        return None
    return max(0, int(most[0]) - int(now[0]) + _table(folder / "memory.stat").get(reclaimable, 0))
