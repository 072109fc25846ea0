"""The facts of a converted file once more, under what the tree says of macros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocmbuild.staging.checks import examine
from rocmbuild.staging.convert import Include, Problem
from rocmbuild.staging.facts import Facts, Macros
from rocmbuild.staging.text import decode

__all__ = ["examine_again"]


def examine_again(
    path: str,
    source: bytes,
    hip: bytes,
    record: Mapping[str, Any],
    *,
    defines: Mapping[str, str],
    macros: Macros,
) -> Facts:
    """checks.examine with what the record of worker.py keeps of a file."""
    return examine(
        path,
        decode(source),
        decode(hip),
        shift=record["shift"],
        problems=[Problem(*problem) for problem in record["problems"]],
        includes=[Include(*include) for include in record["includes"]],
        defines=defines,
        macros=macros,
    )
