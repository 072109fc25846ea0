"""What an audit has to say: one finding is one sentence with a rule, a weight and a place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rocmbuild.errors import printable

__all__ = ["Finding", "Severity", "has_errors"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of an audit.

    rule: a short stable name ("target-extra"). where: the command, file, library or kernel it is about. path and line:
    a text file and the line in it, from 1, where the statement is about one; "" and 0 elsewhere.
    """

    severity: Severity
    rule: str
    message: str
    where: str = ""
    path: str = ""
    line: int = 0

    def to_json(self) -> dict[str, str | int]:
        """The finding with stable keys in a stable order."""
        found: dict[str, str | int] = {"severity": self.severity, "rule": self.rule, "where": self.where}
        found["message"] = self.message
        return found | ({"path": self.path, "line": self.line} if self.path else {})

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return printable(f"{self.severity}: {place}{self.message} [{self.rule}]", limit=10_000)


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)
