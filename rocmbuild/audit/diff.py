"""What has changed between two files: targets, kernels, their figures, sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from rocmbuild.audit.binary import BinaryReport, Library
from rocmbuild.audit.codeobject import CodeObject, Kernel
from rocmbuild.audit.demangle import short_name
from rocmbuild.audit.meaning import kernel_occupancy
from rocmbuild.audit.table import cut
from rocmbuild.errors import printable

__all__ = ["Change", "Diff", "LibraryDiff", "diff", "to_table"]

FIGURES = ("wave", "vgpr", "sgpr", "agpr", "vgpr_spill", "sgpr_spill", "lds", "scratch", "waves")
Figures = Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A kernel that is there before and after for a target, and each figure that differs: name -> (before, after)."""

    kernel: str
    target: str
    figures: Mapping[str, tuple[int | None, int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryDiff:
    """One library in both files, or in one of them (old or new is "").

    sizes: (before, after) in bytes. added and removed kernels are (kernel, target), of targets that both have. code:
    size of the code objects by target, (before, after), where it differs.
    """

    old: str
    new: str
    sizes: tuple[int, int]
    added_targets: tuple[str, ...]
    removed_targets: tuple[str, ...]
    added: tuple[tuple[str, str], ...]
    removed: tuple[tuple[str, str], ...]
    changed: tuple[Change, ...]
    code: Mapping[str, tuple[int, int]]

    @property
    def same(self) -> bool:
        """Nothing that a diff tells of."""
        lists = (self.added_targets, self.removed_targets, self.added, self.removed, self.changed, self.code)
        return bool(self.old and self.new) and self.sizes[0] == self.sizes[1] and not any(lists)

    def to_json(self) -> dict[str, Any]:
        """The difference with stable keys in a stable order."""
        return {
            "old": self.old,
            "new": self.new,
            "sizes": list(self.sizes),
            "added_targets": list(self.added_targets),
            "removed_targets": list(self.removed_targets),
            "added_kernels": [{"kernel": kernel, "target": target} for kernel, target in self.added],
            "removed_kernels": [{"kernel": kernel, "target": target} for kernel, target in self.removed],
            "changed_kernels": [
                {
                    "kernel": c.kernel,
                    "target": c.target,
                    "figures": {name: list(pair) for name, pair in c.figures.items()},
                }
                for c in self.changed
            ],
            "code_sizes": {target: list(pair) for target, pair in self.code.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The libraries with device code of two files, in order of their names; those that are the same included."""

    old: str
    new: str
    libraries: tuple[LibraryDiff, ...]

    @property
    def same(self) -> bool:
        """Whether no library differs."""
        return all(library.same for library in self.libraries)

    def to_json(self) -> dict[str, Any]:
        """The difference with stable keys in a stable order."""
        libraries = [library.to_json() for library in self.libraries if not library.same]
        return {"format": 1, "old": self.old, "new": self.new, "same": self.same, "libraries": libraries}


def diff(old: BinaryReport, new: BinaryReport) -> Diff:
    """Compare two files. Libraries are matched by name; the only one left on each side is taken for the same."""
    before = {library.name: library for library in old.device_libraries}
    after = {library.name: library for library in new.device_libraries}
    pairs: list[tuple[Library | None, Library | None]] = [
        (before.pop(n), after.pop(n)) for n in list(before) if n in after
    ]
    for name in list(before):  # the same file name in another folder
        same = [n for n in after if PurePosixPath(n).name == PurePosixPath(name).name]
        if len(same) == 1:
            pairs.append((before.pop(name), after.pop(same[0])))
    if len(before) == len(after) == 1:
        pairs.append((before.popitem()[1], after.popitem()[1]))
    pairs += [(library, None) for library in before.values()] + [(None, library) for library in after.values()]
    found = [_library(one, other) for one, other in pairs]
    return Diff(
        old=old.path, new=new.path, libraries=tuple(sorted(found, key=lambda library: library.new or library.old))
    )


def _library(old: Library | None, new: Library | None) -> LibraryDiff:
    before, after = _kernels(old), _kernels(new)
    there = {target for target, _, _ in before}, {target for target, _, _ in after}
    both = there[0] & there[1]
    changed = []
    for key in sorted(before.keys() & after.keys(), key=_by_kernel):
        figures = {n: (before[key][n], after[key][n]) for n in FIGURES if before[key][n] != after[key][n]}
        if figures:
            changed.append(Change(kernel=key[1], target=key[0], figures=figures))
    sizes = _sizes(old), _sizes(new)
    return LibraryDiff(
        old=old.name if old else "",
        new=new.name if new else "",
        sizes=(old.size if old else 0, new.size if new else 0),
        added_targets=tuple(sorted(there[1] - there[0])),
        removed_targets=tuple(sorted(there[0] - there[1])),
        added=tuple((key[1], key[0]) for key in sorted(after.keys() - before.keys(), key=_by_kernel) if key[0] in both),
        removed=tuple(
            (key[1], key[0]) for key in sorted(before.keys() - after.keys(), key=_by_kernel) if key[0] in both
        ),
        changed=tuple(changed),
        code={t: (sizes[0][t], sizes[1][t]) for t in sorted(both) if sizes[0].get(t) != sizes[1].get(t)},
    )


def _by_kernel(key: tuple[str, str, int]) -> tuple[str, str, int]:
    return key[1], key[0], key[2]


def _kernels(library: Library | None) -> dict[tuple[str, str, int], Figures]:
    """(target, kernel, how many of that name came before) -> figures."""
    found: dict[tuple[str, str, int], Figures] = {}
    seen: dict[tuple[str, str], int] = {}
    for code in library.code_objects if library else ():
        for kernel in code.kernels:
            name = (code.target, short_name(kernel.demangled))
            seen[name] = seen.get(name, -1) + 1
            found[name[0], name[1], seen[name]] = _figures(code, kernel)
    return found


def _figures(code: CodeObject, kernel: Kernel) -> Figures:
    there = kernel_occupancy(kernel, code.processor)
    figures: dict[str, int | None] = {name: getattr(kernel, name) for name in FIGURES if name != "waves"}
    return figures | {"waves": there.waves if there else None}


def _sizes(library: Library | None) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for code in library.code_objects if library else ():
        sizes[code.target] = sizes.get(code.target, 0) + code.size
    return sizes


# For people


def to_table(found: Diff, width: int = 80) -> str:
    """The difference as text, at most width columns where there is a place to break or cut."""
    lines = [f"old  {printable(found.old, limit=1000)}", f"new  {printable(found.new, limit=1000)}"]
    for library in found.libraries:
        if library.same:
            continue
        name = library.new or library.old
        if library.old and library.new and library.old != library.new:
            name = f"{library.old} -> {library.new}"
        lines += ["", printable(name, limit=1000)]
        if not library.old or not library.new:
            lines.append(f"  {'added' if library.new else 'removed'}, {max(library.sizes):,} bytes")
        elif library.sizes[0] != library.sizes[1]:
            lines.append(f"  size      {_step(*library.sizes)} bytes")
        for sign, targets in (("+", library.added_targets), ("-", library.removed_targets)):
            if targets:
                text = " ".join(sign + target for target in targets)
                lines += textwrap.wrap(
                    text, width, initial_indent="  targets   ", subsequent_indent=" " * 12, break_on_hyphens=False
                )
        lines += [f"  code      {target}: {_step(*pair)} bytes" for target, pair in library.code.items()]
        if library.added or library.removed or library.changed:
            numbers = (len(library.added), len(library.removed), len(library.changed))
            lines.append("  kernels   {} added, {} removed, {} changed".format(*numbers))
        lines += [f"  + {text}" for text in _grouped(library.added, width - 4)]
        lines += [f"  - {text}" for text in _grouped(library.removed, width - 4)]
        lines += _changes(library.changed, width)
    same = sum(library.same for library in found.libraries)
    lines += ["", f"diff: {'no difference' if found.same else f'{len(found.libraries) - same} libraries differ'}"]
    return "\n".join(lines)


def _step(before: int, after: int) -> str:
    share = f" ({(after - before) / before:+.1%})" if before else ""
    return f"{before:,} -> {after:,}{share}"


def _grouped(kernels: Iterable[tuple[str, str]], width: int) -> list[str]:
    """One text for each kernel, with its targets."""
    targets: dict[str, list[str]] = {}
    for kernel, target in kernels:
        targets.setdefault(kernel, []).append(target)
    texts = []
    for kernel, names in targets.items():
        tail = f"  {' '.join(names)}" if len(names) <= 3 else f"  {len(names)} targets"
        texts.append(cut(printable(kernel, limit=1000), max(16, width - len(tail))) + tail)
    return texts


def _changes(changes: Sequence[Change], width: int) -> list[str]:
    """Each kernel with what has changed, targets with the same change together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        text = ", ".join(f"{name} {_shown(a)} -> {_shown(b)}" for name, (a, b) in change.figures.items())
        groups.setdefault((change.kernel, text), []).append(change.target)
    lines = []
    previous = ""
    for (kernel, text), targets in groups.items():
        if kernel != previous:
            lines.append(f"  ~ {cut(printable(kernel, limit=1000), width - 4)}")
        previous = kernel
        names = " ".join(targets) if len(targets) <= 3 else f"{len(targets)} targets"
        lines += textwrap.wrap(f"{names}: {text}", width, initial_indent=" " * 6, subsequent_indent=" " * 8)
    return lines


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)
