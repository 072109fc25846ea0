"""An audit's findings for code scanning services, in SARIF."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rocmbuild import sarif
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.report import AuditReport
from rocmbuild.audit.rules import RULES
from rocmbuild.errors import printable

__all__ = ["to_sarif"]

_INSIDE = re.compile(r"(.+?)\(.*\)")


def to_sarif(report: AuditReport, root: Path) -> dict[str, Any]:
    """A log with every rule and a result for each finding.

    A finding about a line of a log is at that line. One about something inside a binary is at the file, with what it is
    about as a logical location. root: the folder that relative paths are below.
    """
    files = [binary.path for binary in report.binaries]
    rules = [
        sarif.Rule(name=name, summary=summary, hint=hint, level="warning") for name, (summary, hint) in RULES.items()
    ]
    results = [_result(finding, files, root) for finding in (*report.findings, *_served(report))]
    return sarif.to_log(rules, results, root)


def _served(report: AuditReport) -> list[Finding]:
    """Cards that are not served, as findings."""
    return [
        Finding(
            severity="error",
            rule="card-not-served",
            message=f"{served.card}: {library.reason or library.answer}",
            where=library.name,
            path=served.path,
        )
        for served in report.served
        for library in served.libraries
        if library.answer != "yes"
    ]


def _result(finding: Finding, files: list[str], root: Path) -> sarif.Result:
    path = finding.path or _file(finding.where, files)
    if path:
        where = Path(path).absolute()
        path = where.relative_to(root.absolute()).as_posix() if where.is_relative_to(root.absolute()) else str(where)
    hint = RULES[finding.rule][1]
    return sarif.Result(
        rule=finding.rule,
        level=finding.severity,
        message=printable(f"{finding.message}. Next step: {hint}.", limit=10_000),
        path=path,
        line=finding.line,
        place=finding.where,
        same=(finding.rule, finding.where, finding.message),
    )


def _file(where: str, files: list[str]) -> str:
    """The file that a place names or lies in; the only one there is otherwise."""
    inside = _INSIDE.fullmatch(where)
    for path in files:
        if where == path or (inside and inside[1] == path) or where == Path(path).name:
            return path
    return files[0] if len(files) == 1 else ""
