"""The audit as text: for a terminal of 80 columns, and for people who read it from top to bottom."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rocmbuild.audit.binary import HostSide, Library
from rocmbuild.audit.codeobject import CodeObject, Kernel
from rocmbuild.audit.demangle import short_name
from rocmbuild.audit.meaning import Served, kernel_occupancy, oldest_rocm
from rocmbuild.audit.processors import products
from rocmbuild.audit.report import AuditReport
from rocmbuild.audit.torch_abi import OLDER
from rocmbuild.errors import printable

__all__ = ["FIGURES", "cut", "host_lines", "kernel_rows", "to_table", "verdict"]

FIGURES = ("wave", "VGPR", "SGPR", "AGPR", "spills", "LDS", "scratch", "waves")
"""The columns of a kernel's figures; "waves" is the occupancy: most waves on a SIMD."""


def to_table(report: AuditReport, width: int = 80) -> str:
    """The report for people, at most width columns where there is a place to break or cut."""
    compiled = report.compiled
    requested = "not stated" if report.requested is None else " ".join(report.requested) or "no device code"
    if report.requested is not None and report.requested_source:
        requested += f"  ({report.requested_source})"
    if compiled.source == "not recorded":
        commands = "not recorded"
    else:
        commands = f"{' '.join(compiled.targets) or 'no device code'}  "
        commands += f"({compiled.device_commands} device commands of {compiled.commands}, {compiled.source})"
    rows = [("requested", requested), ("compiled", commands)]
    if report.binaries:
        rows.append(("emitted", " ".join(report.emitted) or "no device code"))
    lines = [line for name, value in rows for line in _wrapped(f"{name:<11}", value, width)]
    for served in report.served:
        lines += _served(served, width)
    for library in report.libraries:
        lines += ["", printable(library.name, limit=1000), *_about(library, width)]
        if library.code_objects:
            lines += ["", *_kernel_table(library.code_objects, width)]
    if report.findings:
        lines.append("")
        for finding in report.findings:
            lines += _wrapped("", str(finding), width, indent="  ")
    return "\n".join([*lines, "", *_wrapped("", f"audit: {verdict(report)}", width, indent="  ")]).rstrip()


def verdict(report: AuditReport) -> str:
    """The last line: errors or not, and how much was looked at."""
    errors = sum(finding.severity == "error" for finding in report.findings)
    refused = dict.fromkeys(served.card for served in report.served if served.answer != "yes")
    parts = []
    if errors:
        parts.append(_number(errors, "error"))
    elif not report.served:
        parts.append("nothing was asked for" if report.requested is None else "good")
    elif not refused:
        parts.append("good")
    if report.served:
        cards = refused or dict.fromkeys(served.card for served in report.served)
        parts.append(f"{'does not serve' if refused else 'serves'} {', '.join(cards)}")
    text = ", ".join(parts)
    if not report.binaries:
        return text
    codes = [code for library in report.libraries for code in library.code_objects]
    kernels = [kernel for code in codes for kernel in code.kernels]
    widths = "/".join(str(w) for w in sorted({kernel.wave for kernel in kernels}))
    text += f", {_number(len(kernels), 'kernel')} in {_number(len(codes), 'code object')}"
    return text + (f", wave{widths}" if widths else "")


def _served(served: Served, width: int) -> list[str]:
    """The answer to --for, and that of each library."""
    names = f" ({', '.join(served.products[:3])})" if served.products else ""
    lines = _wrapped(f"{'for':<11}", f"{served.card}{names}: {served.answer}", width)
    for library in served.libraries:
        text = f"{library.name}: {library.answer}"
        if library.through:
            text += f", through {', '.join(library.through)}"
        if library.answer == "yes" and library.oldest_rocm:
            text += f", ROCm {library.oldest_rocm} or newer"
        if library.lowest_occupancy is not None:
            text += f", at least {library.lowest_occupancy} waves a SIMD"
        if library.reason:
            text += f"; {library.reason}"
        lines += _wrapped(" " * 11, printable(text, limit=10_000), width, indent=" " * 13)
    return lines


def _about(library: Library, width: int) -> list[str]:
    lines = []
    if library.bundles:
        kinds = {f"{b.compression} v{b.version}" if b.version else "plain" for b in library.bundles}
        size = sum(bundle.size for bundle in library.bundles)
        text = f"{_number(len(library.bundles), 'bundle')} ({', '.join(sorted(kinds))})"
        text += f", {size:,} bytes, {_number(len(library.code_objects), 'code object')}"
        floor = oldest_rocm(library)
        if floor.version:
            text += f"; ROCm {floor.version} or newer ({floor.reason})"
        lines += _wrapped("  device   ", text, width)
    processors = dict.fromkeys(code.processor for code in library.code_objects)
    cards = [f"{name}: {', '.join(products(name)[:2])}" for name in processors if products(name)]
    if cards:
        lines += _wrapped("  cards    ", "; ".join(cards), width)
    if library.host:
        for text in host_lines(library.host):
            lines += _wrapped("  host     ", printable(text, limit=10_000), width)
    return lines


def host_lines(host: HostSide) -> list[str]:
    """What the host side wants, in words: one line for what is usual, one for each thing to look at."""
    wants = [f"needs {', '.join(host.needed) or 'nothing'}"]
    need = host.torch_need
    for names, what in (
        (host.hip, "HIP symbols"),
        (host.torch_stable, f"symbols of torch's stable ABI{_since(need.release)}"),
        (host.torch_cxx, "C++ symbols of one torch release"),
        (host.python, "symbols of Python"),
    ):
        if names:
            wants.append(f"{len(names)} {what}")
    lines = ["; ".join(wants)]
    if need.newest:
        lines.append(f"torch {need.release} for {_some(need.newest)}")
    if need.unknown:
        lines.append(f"torch symbols of no known release: {_some(need.unknown)}")
    if host.torch_cxx:
        lines.append(f"not of torch's stable ABI: {_some(host.torch_cxx)}")
    return lines


def _since(release: str) -> str:
    return "" if not release else f" (torch {release} or {'older' if release == OLDER else 'newer'})"


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def kernel_rows(codes: Iterable[CodeObject]) -> list[tuple[str, str, tuple[str, ...]]]:
    """(kernel, targets, figures), sorted; targets where a kernel has the same figures share a row."""
    texts: dict[Kernel, tuple[str, tuple[str, ...]]] = {}  # similar targets have the same kernels
    rows: dict[tuple[str, tuple[str, ...], str], dict[str, None]] = {}
    for code in codes:
        target, processor = code.target, code.processor
        for kernel in code.kernels:
            text = texts.get(kernel)
            if text is None:
                name = printable(short_name(kernel.demangled), limit=1000)
                text = texts[kernel] = (name, _figures(kernel))
            found = kernel_occupancy(kernel, processor)
            waves = f"{found.waves}/{found.most}" if found else "-"
            rows.setdefault((*text, waves), {})[target] = None
    found_rows = [(name, " ".join(sorted(there)), (*cells, waves)) for (name, cells, waves), there in rows.items()]
    return sorted(found_rows, key=lambda row: row[:2])


def _figures(kernel: Kernel) -> tuple[str, ...]:
    """The figures of a kernel as text, in the order of FIGURES without the last; "-" where there is none."""
    return (
        str(kernel.wave),
        str(kernel.vgpr),
        str(kernel.sgpr),
        _shown(kernel.agpr),
        f"{_shown(kernel.vgpr_spill)}/{_shown(kernel.sgpr_spill)}",
        str(kernel.lds),
        f"{kernel.scratch}{'+' if kernel.dynamic_stack else ''}",
    )


def _kernel_table(codes: Sequence[CodeObject], width: int) -> list[str]:
    """Kernels with their figures: a line each where the names fit, else each name above its targets."""
    rows = kernel_rows(codes)
    keep = [i for i in range(len(FIGURES)) if FIGURES[i] != "AGPR" or any(row[2][i] not in ("-", "0") for row in rows)]
    sizes = {i: max([len(FIGURES[i]), *(len(row[2][i]) for row in rows)]) for i in keep}

    def values(cells: Sequence[str]) -> str:
        return "".join(f"  {cells[i]:>{sizes[i]}}" for i in keep)

    room = width - sum(size + 2 for size in sizes.values())
    name_size = max((len(row[0]) for row in rows), default=0)
    target_size = max((len(row[1]) for row in rows), default=0)
    flat = name_size + 2 + target_size <= room
    if flat:
        size = max(name_size, len("kernel"))
        targets = max(target_size, len("target"))
        lines = [f"{'kernel':<{size}}  {'target':<{targets}}{values(FIGURES)}"]
        lines += [f"{name:<{size}}  {target:<{targets}}{values(cells)}" for name, target, cells in rows]
    else:
        size = max(14, min(room, max(target_size + 2, len("kernel / target"))))
        lines = [f"{'kernel / target'[:size]:<{size}}{values(FIGURES)}"]
        broken = {target: _wrapped("  ", target, size) for target in {row[1] for row in rows}}
        previous = None
        for name, target, cells in rows:
            if name != previous:
                lines.append(cut(name, width))
            previous = name
            *before, last = broken[target]
            lines += before
            lines.append(f"{last:<{size}}{values(cells)}")
    return [lines[0].rstrip(), "-" * min(width, max(map(len, lines))), *(line.rstrip() for line in lines[1:])]


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def cut(text: str, room: int) -> str:
    """text in room characters, its middle left out."""
    if len(text) <= room:
        return text
    head = (room - 3) * 2 // 3
    return f"{text[:head]}...{text[len(text) - (room - 3 - head) :]}"


def _wrapped(label: str, text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most width columns, the later ones indented below the first."""
    blank = indent or " " * len(label)
    return textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=blank, break_long_words=False, break_on_hyphens=False
    ) or [label.rstrip()]
