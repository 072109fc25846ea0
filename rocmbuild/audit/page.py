"""The audit as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocmbuild.audit.demangle import short_name
from rocmbuild.audit.meaning import kernel_occupancy, oldest_rocm
from rocmbuild.audit.processors import products
from rocmbuild.audit.report import AuditReport
from rocmbuild.audit.rules import RULES
from rocmbuild.audit.table import host_lines, verdict
from rocmbuild.errors import printable

__all__ = ["to_page"]


def to_page(report: AuditReport) -> str:
    """The page: findings first, then what was asked, compiled and emitted, the kernels, the commands.

    What the files say is data in it, never markup or script.
    """
    template = (Path(__file__).parent / "page.html").read_text("utf-8")
    data = json.dumps(_data(report), ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        data = data.replace(char, f"\\u{ord(char):04x}")
    return template.replace("{{data}}", data)


def _data(report: AuditReport) -> dict[str, Any]:
    """What the page's script shows; rows are lists, since there may be tens of thousands."""
    compiled = report.compiled
    return {
        "title": ", ".join(Path(binary.path).name for binary in report.binaries) or "commands of a build",
        "ok": report.ok,
        "verdict": verdict(report),
        "lists": {
            "requested": None if report.requested is None else list(report.requested),
            "requested_source": report.requested_source,
            "compiled": None if compiled.source == "not recorded" else list(compiled.targets),
            "compiled_source": f"{compiled.device_commands} device commands of {compiled.commands}, {compiled.source}",
            "emitted": list(report.emitted) if report.binaries else None,
        },
        "served": [served.to_json() for served in report.served],
        "products": {target: list(products(target.partition(":")[0])) for target in report.emitted},
        "findings": [
            [f.severity, _line(f.where), _line(f.message), f.rule, f"{RULES[f.rule][1]}."] for f in report.findings
        ],
        "libraries": [
            {
                "name": _line(library.name),
                "kind": library.kind,
                "size": library.size,
                "bundles": [[b.version, b.compression, b.size, b.uncompressed_size] for b in library.bundles],
                "rocm": [oldest_rocm(library).version, oldest_rocm(library).reason],
                "targets": list(library.targets),
                "kernels": sum(len(code.kernels) for code in library.code_objects),
                "host": [_line(text) for text in host_lines(library.host)] if library.host else [],
            }
            for library in report.libraries
        ],
        "kernels": _kernels(report),
        "commands": [
            [command.title, verdict.kind, list(verdict.targets), verdict.ok, _line(verdict.summary), list(command.argv)]
            for command, verdict in compiled.verdicts
        ],
    }


def _kernels(report: AuditReport) -> list[list[Any]]:
    """[library, name, targets, wave, VGPR, SGPR, AGPR, spilled VGPRs, spilled SGPRs, LDS, scratch, dynamic stack, most
    lanes, waves, most waves, what limits them], targets with the same figures in one row."""
    rows: dict[tuple[Any, ...], dict[str, None]] = {}
    for index, library in enumerate(report.libraries):
        for code in library.code_objects:
            for kernel in code.kernels:
                found = kernel_occupancy(kernel, code.processor)
                key = (
                    index,
                    _line(short_name(kernel.demangled)),
                    *(kernel.wave, kernel.vgpr, kernel.sgpr, kernel.agpr, kernel.vgpr_spill, kernel.sgpr_spill),
                    *(kernel.lds, kernel.scratch, kernel.dynamic_stack, kernel.max_workgroup),
                    *((found.waves, found.most, found.limited_by) if found else (None, None, "")),
                )
                rows.setdefault(key, {})[code.target] = None
    return [[*key[:2], " ".join(sorted(targets)), *key[2:]] for key, targets in rows.items()]


def _line(text: str) -> str:
    return printable(text, limit=4000)
