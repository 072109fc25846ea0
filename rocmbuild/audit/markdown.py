"""The audit in Markdown, for the summaries of CI services."""

from __future__ import annotations

from collections.abc import Sequence

from rocmbuild.audit.report import AuditReport
from rocmbuild.audit.table import FIGURES, host_lines, kernel_rows, verdict
from rocmbuild.errors import printable

__all__ = ["to_markdown"]

_MAX_SIZE = 900_000  # GitHub takes no summary over 1 MiB
_MAX_FINDINGS = 200


def to_markdown(report: AuditReport) -> str:
    """The report: what was asked for, the findings, then each library's kernels, folded.

    Kernels are left out, and that is said, where the text would grow past what services show.
    """
    compiled = report.compiled
    requested = "not stated" if report.requested is None else " ".join(report.requested) or "no device code"
    commands = "not recorded"
    if compiled.source != "not recorded":
        commands = f"{' '.join(compiled.targets) or 'no device code'} ({compiled.device_commands} device commands)"
    rows = [("requested", requested), ("compiled", commands)]
    if report.binaries:
        rows.append(("emitted", " ".join(report.emitted) or "no device code"))
    rows += [(f"for {served.card}", served.answer) for served in report.served]
    parts = [f"### Audit: {_text(verdict(report))}", "", *_table(("", "targets"), rows)]
    if report.findings:
        shown = report.findings[:_MAX_FINDINGS]
        found = [(f.severity, f.where, f.message, f"`{f.rule}`") for f in shown]
        parts += ["", *_table(("severity", "where", "what", "rule"), found, raw=(3,))]
        if len(shown) < len(report.findings):
            parts.append(f"\n{len(report.findings) - len(shown)} more findings.")
    size = sum(map(len, parts))
    for library in report.libraries:
        if not library.code_objects:
            continue
        kernels = kernel_rows(library.code_objects)
        head = f"<details><summary>{_html(library.name)}: {len(kernels)} rows of kernels</summary>"
        lines = [*map(_text, host_lines(library.host)), ""] if library.host else []
        body = _table(("kernel", "targets", *FIGURES), [(name, targets, *cells) for name, targets, cells in kernels])
        if size + sum(map(len, body)) > _MAX_SIZE:
            parts += ["", f"{_text(library.name)}: {len(kernels)} rows of kernels, too many for a summary."]
            continue
        size += sum(map(len, body))
        parts += ["", head, "", *lines, *body, "", "</details>"]
    return "\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], raw: Sequence[int] = ()) -> list[str]:
    """raw: columns that are Markdown already."""
    cells = [[cell if i in raw else _text(cell) for i, cell in enumerate(row)] for row in rows]
    return [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in cells)]


def _text(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    plain = printable(text, limit=2000)
    return "".join(f"\\{char}" if char in "\\`*_{}[]()#+!|~$" else _ENTITIES.get(char, char) for char in plain)


_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}


def _html(text: str) -> str:
    return "".join(_ENTITIES.get(char, char) for char in printable(text, limit=2000))
