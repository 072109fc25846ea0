"""Findings for people, for programs and for code scanning services."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocmbuild import __version__
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
    names = list(RULES)
    rules = [
        {
            "id": name,
            "shortDescription": {"text": f"{rule.summary}."},
            "help": {"text": f"Next step: {rule.hint}."},
            "defaultConfiguration": {"level": rule.severity},
        }
        for name, rule in RULES.items()
    ]
    return {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "rocmbuild", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{quote(os.fsencode(project.absolute()))}/"}},
                "results": [_result(found, names.index(found.rule)) for found in findings],
            }
        ],
    }


def _result(found: Finding, rule: int) -> dict[str, Any]:
    stable = hashlib.sha256("\0".join((found.path, found.rule, found.message)).encode("utf-8", "surrogateescape"))
    return {
        "ruleId": found.rule,
        "ruleIndex": rule,
        "level": found.severity,
        "message": {"text": f"{found.message}. Next step: {found.hint}."},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(os.fsencode(found.path)), "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": found.line, "startColumn": found.column},
                }
            }
        ],
        "partialFingerprints": {"finding/v1": stable.hexdigest()[:32]},
    }
