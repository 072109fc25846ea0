"""Logs in SARIF 2.1.0 (OASIS), which code scanning services show at the line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocmbuild import __version__

__all__ = ["Result", "Rule", "to_log"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule as services list it: summary and hint are sentences without the full stop; level: as Result's."""

    name: str
    summary: str
    hint: str
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One finding. path: the file, relative to the root or absolute; "" where it is about none. line and column: from
    1, 0 where there is none. place: what else it is about, such as a kernel's library. message: whole sentences. same:
    the texts that make it the same finding in the next run. level: "error", "warning" or "note".
    """

    rule: str
    level: str
    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    place: str = ""
    same: tuple[str, ...] = ()


def to_log(rules: Sequence[Rule], results: Sequence[Result], root: Path) -> dict[str, Any]:
    """A log of one run with all rules and a result for each finding; relative paths are below root."""
    names = [rule.name for rule in rules]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "rocmbuild", "version": __version__, "rules": list(map(_rule, rules))}},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{quote(os.fsencode(root.absolute()))}/"}},
                "results": [_result(result, names.index(result.rule)) for result in results],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": f"{rule.summary}."},
        "help": {"text": f"Next step: {rule.hint}."},
        "defaultConfiguration": {"level": rule.level},
    }


def _result(result: Result, rule: int) -> dict[str, Any]:
    stable = hashlib.sha256("\0".join(result.same).encode("utf-8", "surrogateescape"))
    location: dict[str, Any] = {}
    if result.path:
        raw = quote(os.fsencode(result.path))
        absolute = result.path.startswith("/")
        artifact = {"uri": f"file://{raw}"} if absolute else {"uri": raw, "uriBaseId": "%SRCROOT%"}
        location["physicalLocation"] = {"artifactLocation": artifact}
        region = {"startLine": result.line, "startColumn": result.column}
        if result.line:
            location["physicalLocation"]["region"] = {key: value for key, value in region.items() if value}
    if result.place:
        location["logicalLocations"] = [{"fullyQualifiedName": result.place}]
    return {
        "ruleId": result.rule,
        "ruleIndex": rule,
        "level": result.level,
        "message": {"text": result.message},
        "locations": [location] if location else [],
        "partialFingerprints": {"finding/v1": stable.hexdigest()[:32]},
    }
