"""Findings for people, for programs and for code scanning services."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmbuild import sarif
from rocmbuild.errors import printable
from rocmbuild.staging.findings import RULES, Finding

__all__ = ["FORMATS", "to_json", "to_sarif", "to_text"]

FORMATS = ("text", "json", "sarif")


def to_text(findings: Sequence[Finding]) -> str:
    """One line for each finding, its next step below it, and a last line that counts them."""
    lines = []
    for found in findings:
        lines += [printable(str(found), limit=400), f"    {found.hint}"]
    return "\n".join([*lines, _count(findings)])


def _count(findings: Sequence[Finding]) -> str:
    errors = sum(found.severity == "error" for found in findings)
    warnings = len(findings) - errors
    return f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings and whether a build would go on. Names of files that are no text have their odd bytes escaped."""
    errors = sum(found.severity == "error" for found in findings)
    return {
        "ok": errors == 0,
        "errors": errors,
        "warnings": len(findings) - errors,
        "findings": [{**found.to_json(), "path": _shown_path(found.path)} for found in findings],
    }


def _shown_path(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def to_sarif(findings: Sequence[Finding], project: Path) -> dict[str, Any]:
    """A log in SARIF 2.1.0 (OASIS): all rules, and a result for each finding, its file relative to the project."""
    rules = [
        sarif.Rule(name=name, summary=rule.summary, hint=rule.hint, level=rule.severity) for name, rule in RULES.items()
    ]
    results = [
        sarif.Result(
            rule=found.rule,
            level=found.severity,
            message=f"{found.message}. Next step: {found.hint}.",
            path=found.path,
            line=found.line,
            column=found.column,
            same=(found.path, found.rule, found.message),
        )
        for found in findings
    ]
    return sarif.to_log(rules, results, project)
