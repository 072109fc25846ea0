"""The audit: the targets asked for, those in every compiler command, those in the binaries - three lists, equal.

Given a record alone, binaries alone or both. What could not be seen is said, never taken for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rocmbuild.audit.binary import BinaryReport, Library, inspect
from rocmbuild.audit.codeobject import CodeObject, Kernel, target_of_triple
from rocmbuild.audit.commands import Verdict, judge, judge_links
from rocmbuild.audit.demangle import short_name
from rocmbuild.audit.finding import Finding, Severity, has_errors
from rocmbuild.audit.record import Command, Record, parse_record, read_record
from rocmbuild.console import table
from rocmbuild.errors import InputError, printable

__all__ = ["AuditReport", "Compiled", "audit", "audit_paths"]

WAVE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the commands say. source: "record", "evidence" or "not recorded"; device_commands of all commands."""

    source: Literal["record", "evidence", "not recorded"]
    targets: tuple[str, ...] = ()
    commands: int = 0
    device_commands: int = 0
    verdicts: tuple[tuple[Command, Verdict], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit. requested is None where nothing says what was asked for."""

    requested: tuple[str, ...] | None
    requested_source: str
    compiled: Compiled
    binaries: tuple[BinaryReport, ...]
    findings: tuple[Finding, ...]
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        """No error."""
        return not has_errors(self.findings)

    @property
    def libraries(self) -> tuple[Library, ...]:
        """Every library of every file."""
        return tuple(library for binary in self.binaries for library in binary.libraries)

    @property
    def emitted(self) -> tuple[str, ...]:
        """The targets that there is code for, those asked for first."""
        return _ordered({t for library in self.libraries for t in library.targets}, self.requested or ())

    def to_json(self) -> dict[str, Any]:
        """Everything, with stable keys in a stable order."""
        compiled = self.compiled
        return {
            "format": 1,
            "ok": self.ok,
            "requested": None
            if self.requested is None
            else {"targets": list(self.requested), "source": self.requested_source},
            "compiled": {
                "source": compiled.source,
                "targets": list(compiled.targets),
                "commands": compiled.commands,
                "device_commands": compiled.device_commands,
            },
            "emitted": {
                "targets": list(self.emitted),
                "libraries": {lib.name: list(lib.targets) for lib in self.libraries if lib.code_objects},
            },
            "findings": [finding.to_json() for finding in self.findings],
            "files": [
                {"path": binary.path, "libraries": [library.to_json() for library in binary.libraries]}
                for binary in self.binaries
            ],
            "commands": [
                {"source": command.source, "target": command.target, **verdict.to_json()}
                for command, verdict in compiled.verdicts
                if verdict.judged or verdict.findings
            ],
        }

    def summary(self) -> list[dict[str, Any]]:
        """What is reproducible about the libraries: for a wheel's evidence. No folder, no demangled name."""
        return [_summary(library, self.folder) for library in self.libraries]

    def to_table(self, width: int = 100) -> str:
        """The report for people, at most width columns where names of kernels can be cut."""
        return "\n".join(_lines(self, width)).rstrip()


def audit_paths(paths: Sequence[Path], *, targets: Sequence[str] | None = None) -> AuditReport:
    """Audit what a person named: records (record.json, or a build folder with one) and binaries together."""
    records = [path for path in paths if path.suffix == ".json" or path.is_dir()]
    if len(records) > 1:
        raise InputError(f"{len(records)} records ({', '.join(map(str, records))}); an audit takes one")
    if not paths:
        raise InputError("nothing to audit; name a wheel, a library or a record.json")
    binaries = [path for path in paths if path not in records]
    return audit(binaries, record=records[0] if records else None, targets=targets)


def audit(
    paths: Sequence[Path],
    *,
    record: Record | Path | Mapping[str, Any] | None = None,
    targets: Sequence[str] | None = None,
    demanglers: Sequence[Path] = (),
) -> AuditReport:
    """Audit binaries, a record, or both.

    targets: those asked for; without them (None or empty) the record's count, then those of a wheel's own
    evidence. InputError for a file that cannot be read or is damaged.
    """
    if isinstance(record, Path):
        record = read_record(record)
    elif record is not None and not isinstance(record, Record):
        record = parse_record(record, where="the record of this build")
    binaries = tuple(inspect(path, demanglers=demanglers) for path in paths)
    evidence = [
        parse_record(binary.evidence, where=f"{binary.path}(rocmbuild.json)")
        for binary in binaries
        if binary.evidence is not None
    ]
    found: list[Finding] = []
    requested, source = _requested(targets, record, evidence)
    compiled = _compiled(record, evidence, requested or (), found)
    for own, binary in zip(evidence, (b for b in binaries if b.evidence is not None), strict=True):
        found += _evidence_findings(own, binary, record, requested)
    told = record or (evidence[0] if evidence else None)
    wants = told.wants_device_code if told else None
    for binary in binaries:
        found += _binary_findings(binary, requested, wants)
    if requested and wants is not False:
        found += _presence_findings(binaries, requested, _device_outputs(compiled))
    if requested is None and paths:
        message = "nothing says which targets were asked for: this audit only tells what is there"
        found.append(Finding(severity="warning", rule="not-requested", message=message))
    if compiled.source == "not recorded":
        message = "no record of the commands: compiled targets are not recorded"
        found.append(Finding(severity="warning", rule="not-recorded", message=message))
    if not paths:
        message = "no binary was given: what the commands emitted was not looked at"
        found.append(Finding(severity="warning", rule="not-emitted", message=message))
    return AuditReport(
        requested=requested,
        requested_source=source,
        compiled=compiled,
        binaries=binaries,
        findings=tuple(sorted(dict.fromkeys(found), key=lambda f: ("error", "warning", "note").index(f.severity))),
        folder=record.folder if record else None,
    )


def _ordered(names: Iterable[str], first: Sequence[str]) -> tuple[str, ...]:
    """Names without repetition: those in first in its order, the others sorted."""
    there = set(names)
    return (*(name for name in first if name in there), *sorted(there - set(first)))


def _requested(
    targets: Sequence[str] | None, record: Record | None, evidence: Sequence[Record]
) -> tuple[tuple[str, ...] | None, str]:
    """The targets asked for and who says so."""
    told = [*([record] if record else []), *evidence]
    if targets:
        same = next((r for r in told if r.targets == tuple(targets)), None)
        return tuple(targets), (same.targets_source if same else "") or "given to the audit"
    for one in told:
        return one.targets, one.targets_source or one.where
    return None, ""


# The commands


def _compiled(
    record: Record | None, evidence: Sequence[Record], requested: Sequence[str], found: list[Finding]
) -> Compiled:
    """Judge every recorded command; findings are added to found."""
    told = record or next((one for one in evidence if one.commands), None)
    if told is None or not told.commands:
        return Compiled(source="not recorded")
    pairs: list[tuple[Command, Verdict]] = []
    by_source: dict[tuple[str, str], set[str]] = {}
    for command in told.commands:
        verdict = judge(command.argv, command.env, requested, cwd=told.folder)
        verdict = replace(verdict, output=verdict.output or command.output)
        pairs.append((command, verdict))
        found += [replace(finding, where=command.title) for finding in verdict.findings]
        found += _command_findings(command, verdict)
        if verdict.kind == "device":
            by_source.setdefault((command.extension, command.source or verdict.output), set()).update(verdict.targets)
    for (_, name), names in sorted(by_source.items()):
        missing = [target for target in requested if target not in names]
        if missing:
            message = f"no command compiles it for {', '.join(missing)}"
            found.append(Finding(severity="error", rule="target-missing", message=message, where=name))
    found += judge_links(verdict for _, verdict in pairs)
    if told.wants_device_code and not by_source:
        message = "ROCm was asked for, and no command compiles device code"
        found.append(Finding(severity="error", rule="target-missing", message=message, where=told.where))
    return Compiled(
        source="record" if record else "evidence",
        targets=_ordered((target for names in by_source.values() for target in names), requested),
        commands=len(pairs),
        device_commands=sum(verdict.kind == "device" for _, verdict in pairs),
        verdicts=tuple(pairs),
    )


def _command_findings(command: Command, verdict: Verdict) -> list[Finding]:
    """Where the record and the words of a command disagree."""
    found = []

    def add(rule: str, message: str) -> None:
        found.append(Finding(severity="error", rule=rule, message=message, where=command.title))

    if command.exit:
        add("command-failed", f"ended with status {command.exit}: {command.argv[0]}")
    if command.kind in ("device", "bundle") and verdict.kind != command.kind:
        add("kind-mismatch", f"recorded as {command.kind}, but its words say: {verdict.summary}")
    if command.kind and command.kind not in ("device", "bundle") and verdict.kind == "device":
        add(
            "kind-mismatch", f"recorded as {command.kind}, but it compiles device code for {', '.join(verdict.targets)}"
        )
    if verdict.kind == "device" and command.target and command.target not in verdict.targets:
        add("target-mismatch", f"recorded for {command.target}, but it compiles for {', '.join(verdict.targets)}")
    return found


# The binaries


def _evidence_findings(
    own: Record, binary: BinaryReport, record: Record | None, requested: Sequence[str] | None
) -> list[Finding]:
    """Where a wheel's evidence disagrees with the wheel, the record or the request."""
    found = []

    def add(rule: str, message: str) -> None:
        found.append(Finding(severity="error", rule=rule, message=message, where=Path(binary.path).name))

    if requested is not None and set(own.targets) != set(requested):
        names = [" ".join(targets) or "no target" for targets in (own.targets, requested)]
        add("evidence-differs", f"its evidence is for {names[0]}, asked for is {names[1]}")
    if record and own.stage_key != record.stage_key:
        add("evidence-differs", f"made from stage {own.stage_key[:16]}, the record is of {record.stage_key[:16]}")
    if own.code_objects is not None and not _same(own.code_objects, [_summary(lib, None) for lib in binary.libraries]):
        add("evidence-differs", "the code objects in it are not those that its evidence names")
    return found


def _same(told: Any, seen: list[dict[str, Any]]) -> bool:
    """Whether evidence names the libraries that were seen, in any order."""
    if not isinstance(told, list) or not all(isinstance(row, dict) for row in told):
        return False
    return sorted(told, key=lambda row: str(row.get("name"))) == sorted(seen, key=lambda row: str(row["name"]))


def _binary_findings(binary: BinaryReport, requested: Sequence[str] | None, wants: bool | None) -> list[Finding]:
    found = [finding for library in binary.libraries for finding in library.findings]
    devices = binary.device_libraries
    if wants is False and devices:
        names = ", ".join(library.name for library in devices)
        message = f"device code in {names}, though no ROCm library was asked for"
        found.append(Finding(severity="error", rule="target-extra", message=message, where=Path(binary.path).name))
    for library in devices:
        if requested and wants is not False:
            found += _target_findings(library, requested)
        found += _wave_findings(library, "error" if requested is not None else "warning")
        found += _set_findings(library)
    return found


def _device_outputs(compiled: Compiled) -> set[str]:
    """The libraries that must have device code, by their place in a wheel: links of extensions with device units."""
    units = {command.extension for command, verdict in compiled.verdicts if verdict.kind == "device"}
    links = [pair for pair in compiled.verdicts if pair[0].kind == "link" and pair[0].platform == "rocm"]
    outputs = {verdict.output.removeprefix("lib/") for command, verdict in links if command.extension in units}
    return outputs - {""}


def _presence_findings(binaries: Sequence[BinaryReport], requested: Sequence[str], outputs: set[str]) -> list[Finding]:
    """Device code that is not there at all: in a wheel, in the files given together, in a library that was linked."""
    found = []

    def add(message: str, where: str) -> None:
        found.append(Finding(severity="error", rule="target-missing", message=message, where=where))

    loose = [binary for binary in binaries if not binary.wheel]
    for group in [*([binary] for binary in binaries if binary.wheel), *([loose] if loose else [])]:
        where = ", ".join(Path(binary.path).name for binary in group)
        libraries = {library.name: library for binary in group for library in binary.libraries}
        if not any(library.code_objects for library in libraries.values()):
            add(f"no device code; asked for are {', '.join(requested)}", where)
            continue
        for output in sorted(outputs):
            same = [lib for name, lib in libraries.items() if name == output or name.endswith(f"/{output}")]
            if not same and group[0].wheel:
                add(f"{output} was linked, and is not in the wheel", where)
            for library in same:
                if not library.code_objects:
                    add(f"no device code; asked for are {', '.join(requested)}", library.name)
    return found


def _target_findings(library: Library, requested: Sequence[str]) -> list[Finding]:
    """Every bundle of a library, or the library itself, must have exactly what was asked for."""
    places = [
        (f"bundle at 0x{bundle.offset:x}: ", {target_of_triple(e) or e for e in bundle.entries if e[:4] != "host"})
        for bundle in library.bundles
    ]
    if len(places) < 2 or all(names == places[0][1] for _, names in places):
        places = []
    found = []
    for place, names in [("", set(library.targets)), *places]:
        extra, missing = _ordered(names - set(requested), ()), [t for t in requested if t not in names]
        if extra:
            message = f"{place}code for {', '.join(extra)}, not asked for"
            found.append(Finding(severity="error", rule="target-extra", message=message, where=library.name))
        if missing:
            message = f"{place}no code for {', '.join(missing)}"
            found.append(Finding(severity="error", rule="target-missing", message=message, where=library.name))
    return found


def _wave_findings(library: Library, severity: Severity) -> list[Finding]:
    """Kernels that are not 32 lanes wide, one finding for each target."""
    wide: dict[str, list[Kernel]] = {}
    total: dict[str, int] = {}
    for code in library.code_objects:
        total[code.target] = total.get(code.target, 0) + len(code.kernels)
        wide.setdefault(code.target, []).extend(k for k in code.kernels if {k.wave, k.descriptor_wave} - {WAVE, None})
    found = []
    for target, kernels in sorted(wide.items()):
        if kernels:
            first = short_name(kernels[0].demangled)
            widths = "/".join(sorted({str(w) for k in kernels for w in (k.wave, k.descriptor_wave) if w and w != WAVE}))
            message = f"{len(kernels)} of {total[target]} kernels for {target} are wave{widths} (first: {first})"
            found.append(Finding(severity=severity, rule="wave64", message=message, where=library.name))
    return found


def _set_findings(library: Library) -> list[Finding]:
    """Kernels that some targets have and others lack."""
    have: dict[str, set[str]] = {}
    for code in library.code_objects:
        have.setdefault(code.target, set()).update(kernel.name for kernel in code.kernels)
    every = set().union(*have.values())
    found = []
    for target, names in sorted(have.items()):
        lacks = sorted(every - names)
        if lacks:
            message = f"{target} lacks {len(lacks)} of {len(every)} kernels (first: {lacks[0]})"
            found.append(Finding(severity="warning", rule="kernel-sets", message=message, where=library.name))
    return found


# The result in other forms


def _summary(library: Library, folder: Path | None) -> dict[str, Any]:
    """What a library is, without where it lies; folder: the build folder, whose lib/ holds the wheel's paths."""
    name = library.name
    if folder and Path(name).is_relative_to(folder / "lib"):
        name = Path(name).relative_to(folder / "lib").as_posix()
    host = library.host
    return {
        "name": name,
        "targets": list(library.targets),
        "needed": list(host.needed) if host else [],
        "hip_symbols": list(host.hip) if host else [],
        "torch_stable": list(host.torch_stable) if host else [],
        "torch_cxx": list(host.torch_cxx) if host else [],
        "code_objects": [
            {
                "target": code.target,
                "version": code.version,
                "size": code.size,
                "kernels": [
                    {key: value for key, value in kernel.to_json().items() if key != "demangled"}
                    for kernel in code.kernels
                ],
            }
            for code in library.code_objects
        ],
    }


def _lines(report: AuditReport, width: int) -> list[str]:
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
    for library in report.libraries:
        lines += ["", printable(library.name, limit=1000), *_about(library, width)]
        if library.code_objects:
            lines += ["", *_kernel_table(library.code_objects, width)]
    if report.findings:
        lines.append("")
        for finding in report.findings:
            lines += _wrapped("", str(finding), width, indent="  ")
    errors = sum(finding.severity == "error" for finding in report.findings)
    if errors:
        verdict = f"{errors} error{'s' if errors > 1 else ''}"
    else:
        verdict = "nothing was asked for" if report.requested is None else "good"
    return [*lines, "", f"audit: {verdict}" + (f", {_count(report)}" if report.binaries else "")]


def _count(report: AuditReport) -> str:
    codes = [code for library in report.libraries for code in library.code_objects]
    kernels = [kernel for code in codes for kernel in code.kernels]
    widths = "/".join(str(w) for w in sorted({kernel.wave for kernel in kernels}))
    return f"{len(kernels)} kernels in {len(codes)} code objects" + (f", wave{widths}" if widths else "")


def _about(library: Library, width: int) -> list[str]:
    lines = []
    if library.bundles:
        kinds = {f"{b.compression} v{b.version}" if b.version else "plain" for b in library.bundles}
        size = sum(bundle.size for bundle in library.bundles)
        bundles = f"{len(library.bundles)} bundle{'s' if len(library.bundles) > 1 else ''} ({', '.join(sorted(kinds))})"
        lines += _wrapped("  device   ", f"{bundles}, {size:,} bytes, {len(library.code_objects)} code objects", width)
    host = library.host
    if host:
        wants = [f"needs {', '.join(host.needed) or 'nothing'}"]
        for names, what in (
            (host.hip, "HIP symbols"),
            (host.torch_stable, "symbols of torch's stable ABI"),
            (host.torch_cxx, "C++ symbols of one torch release"),
            (host.python, "symbols of Python"),
        ):
            if names:
                wants.append(f"{len(names)} {what}")
        lines += _wrapped("  host     ", printable("; ".join(wants), limit=10_000), width)
    return lines


def _kernel_table(codes: Sequence[CodeObject], width: int) -> list[str]:
    """Kernels with their figures, by name and target; the name is cut so that the line fits."""
    header = ("kernel", "target", "wave", "VGPR", "SGPR", "AGPR", "spills", "LDS", "scratch")
    rows = [
        (
            printable(short_name(kernel.demangled), limit=1000),
            code.target,
            kernel.wave,
            kernel.vgpr,
            kernel.sgpr,
            kernel.agpr,
            f"{_shown(kernel.vgpr_spill)}/{_shown(kernel.sgpr_spill)}",
            kernel.lds,
            f"{kernel.scratch}{'+' if kernel.dynamic_stack else ''}",
        )
        for code in codes
        for kernel in code.kernels
    ]
    rows.sort(key=lambda row: (row[0], row[1]))
    keep = [i for i in range(len(header)) if header[i] != "AGPR" or any(row[5] for row in rows)]
    shown = [tuple("-" if row[i] is None else row[i] for i in keep) for row in rows]
    head = tuple(header[i] for i in keep)
    others = sum(max([len(head[i]), *(len(str(row[i])) for row in shown)]) + 2 for i in range(1, len(head)))
    room = max(16, width - others)
    return table(head, [(_cut(str(row[0]), room), *row[1:]) for row in shown]).splitlines()


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _cut(text: str, room: int) -> str:
    """text in room characters, its middle left out."""
    if len(text) <= room:
        return text
    head = (room - 3) * 2 // 3
    return f"{text[:head]}...{text[len(text) - (room - 3 - head) :]}"


def _wrapped(label: str, text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most width columns, the later ones indented below the first."""
    import textwrap

    blank = indent or " " * len(label)
    return textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=blank, break_long_words=False, break_on_hyphens=False
    ) or [label.rstrip()]
