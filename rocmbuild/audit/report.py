"""The audit: the targets asked for, those in every compiler command, those in the binaries - three lists, equal.

Given a record alone, binaries alone or both. What could not be seen is said, never taken for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rocmbuild.audit.binary import BinaryReport, Library, inspect, readable
from rocmbuild.audit.codeobject import Kernel, target_of_triple
from rocmbuild.audit.commands import Verdict, judge, judge_links
from rocmbuild.audit.demangle import short_name
from rocmbuild.audit.finding import Finding, Severity, has_errors
from rocmbuild.audit.logs import Log, is_text, parse_log, read_log
from rocmbuild.audit.meaning import Served, kernel_occupancy, oldest_rocm, serves
from rocmbuild.audit.policy import judge_policy
from rocmbuild.audit.processors import products
from rocmbuild.audit.record import Command, Record, is_record, parse_record, read_record
from rocmbuild.config import AuditRule
from rocmbuild.errors import CheckError, InputError

__all__ = ["AuditReport", "Compiled", "audit", "audit_paths"]

WAVE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the commands say. source: "record", "log", "evidence" or "not recorded"; device_commands of all commands."""

    source: Literal["record", "log", "evidence", "not recorded"]
    targets: tuple[str, ...] = ()
    commands: int = 0
    device_commands: int = 0
    verdicts: tuple[tuple[Command, Verdict], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit. requested is None where nothing says what was asked for; served answers --for."""

    requested: tuple[str, ...] | None
    requested_source: str
    compiled: Compiled
    binaries: tuple[BinaryReport, ...]
    findings: tuple[Finding, ...]
    folder: Path | None = None
    served: tuple[Served, ...] = ()

    @property
    def ok(self) -> bool:
        """No error, and every card that was asked about is served."""
        return not has_errors(self.findings) and all(served.answer == "yes" for served in self.served)

    def require_ok(self, heading: str, *, hint: str = "") -> None:
        """CheckError with the findings below a heading, which ends as it is to, unless the audit is ok."""
        if not self.ok:
            raise CheckError(heading + "\n".join(str(finding) for finding in self.findings), hint=hint)

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
            "served": [served.to_json() for served in self.served],
            "findings": [finding.to_json() for finding in self.findings],
            "files": [
                {"path": binary.path, "libraries": [_library_json(library) for library in binary.libraries]}
                for binary in self.binaries
            ],
            "commands": [
                {"where": command.title, "source": command.source, "target": command.target, **verdict.to_json()}
                for command, verdict in compiled.verdicts
                if verdict.judged or verdict.findings
            ],
        }

    def summary(self) -> list[dict[str, Any]]:
        """What is reproducible about the libraries: for a wheel's evidence. No folder, no demangled name."""
        return [_summary(library, self.folder) for library in self.libraries]


def audit_paths(
    paths: Sequence[Path],
    *,
    targets: Sequence[str] | None = None,
    cards: Sequence[str] = (),
    text: str | None = None,
    **more: Any,
) -> AuditReport:
    """Audit what a person named: one record, logs of builds and binaries together.

    A folder or a JSON object with a format is a record (record.json); other text is a log; the rest are binaries.
    text: one more log, from standard input. cards: processors, as card() gives them. more: as audit() takes it.
    """
    records: list[Record] = []
    logs: list[Log] = [] if text is None else [parse_log(text, name="standard input")]
    binaries = []
    for path in paths:
        if path.is_dir() and not (path / "record.json").exists() and path.exists():
            logs.append(read_log(path))
        elif path.is_dir() or is_record(path):
            records.append(read_record(path))
        elif is_text(path):
            logs.append(read_log(path))
        else:
            binaries.append(path)
    if len(records) > 1:
        raise InputError(f"{len(records)} records ({', '.join(r.where for r in records)}); an audit takes one")
    if records and logs:
        raise InputError(f"{records[0].where} and {logs[0].record.where}: an audit takes a record or logs, not both")
    if not (records or logs or binaries):
        raise InputError("nothing to audit; name a wheel, a library, a record.json or the log of a build")
    record = records[0] if records else None
    return audit(binaries, record=record, logs=logs, targets=targets, cards=cards, **more)


def audit(
    paths: Sequence[Path],
    *,
    record: Record | Path | Mapping[str, Any] | None = None,
    logs: Sequence[Log] = (),
    targets: Sequence[str] | None = None,
    cards: Sequence[str] = (),
    rules: Sequence[AuditRule] = (),
    objdump: Path | None = None,
    demanglers: Sequence[Path] = (),
) -> AuditReport:
    """Audit binaries, the commands of a build, or both.

    record or logs: where the commands come from. targets: those asked for; without them (None or empty) the record's
    count, then those of a wheel's own evidence. cards: whether each file serves these processors is answered.
    rules: what the project allows its kernels; objdump: llvm-objdump, for rules about instructions. InputError for a
    file that cannot be read or is damaged.
    """
    if isinstance(record, Path):
        record = read_record(record)
    elif record is not None and not isinstance(record, Record):
        record = parse_record(record, where="the record of this build")
    if logs and record is None:
        commands = tuple(command for log in logs for command in log.record.commands)
        record = replace(logs[0].record, commands=commands)
    if cards and not paths:
        raise InputError("--for asks about a file: name a wheel, a library or a code object too")
    binaries = readable((inspect(path, demangle=False) for path in paths), demanglers)
    evidence = [
        parse_record(binary.evidence, where=f"{binary.path}(rocmbuild.json)")
        for binary in binaries
        if binary.evidence is not None
    ]
    found: list[Finding] = [finding for log in logs for finding in log.findings]
    requested, source = _requested(targets, record, evidence)
    compiled = _compiled(record, evidence, requested or (), found)
    for own, binary in zip(evidence, (b for b in binaries if b.evidence is not None), strict=True):
        found += _evidence_findings(own, binary, record, requested)
    told = next((one for one in [record, *evidence] if one and not one.log), None)
    wants = told.wants_device_code if told else None
    for binary in binaries:
        found += _binary_findings(binary, requested, wants)
    if requested and wants is not False:
        found += _presence_findings(binaries, requested, _device_outputs(compiled))
    found += judge_policy(rules, binaries, objdump=objdump)
    if requested is None and not cards:
        message = "nothing says which targets were asked for: this audit only tells what is there"
        found.append(Finding(severity="warning", rule="not-requested", message=message))
    if compiled.source == "not recorded" and not cards:
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
        served=tuple(serves(binary, card) for card in cards for binary in binaries),
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
        if one.targets is not None:
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
    parts: dict[tuple[str, str], tuple[str, Command]] = {}
    for command in told.commands:
        cwd = command.cwd or told.folder
        verdict = judge(command.argv, command.env, requested, cwd=cwd)
        verdict = replace(verdict, output=verdict.output or command.output)
        pairs.append((command, verdict))
        found += [
            replace(finding, where=command.title, path=command.path, line=command.line)
            for finding in (*verdict.findings, *_command_findings(command, verdict))
        ]
        if verdict.kind == "device":
            if told.log:  # only its words say what belongs together
                name = next((path for path in verdict.inputs), "") or command.source
                key = (str(cwd), name)
            else:
                name = command.source or verdict.output
                key = (command.extension, name)
            by_source.setdefault(key, set()).update(verdict.targets)
            if verdict.partial or not told.log:  # else its own verdict says what is missing
                parts.setdefault(key, (name, command))
    for key, (name, command) in sorted(parts.items(), key=lambda item: item[0]):
        missing = [target for target in requested if target not in by_source[key]]
        if missing:
            message = f"no command compiles it for {', '.join(missing)}"
            one = Finding(severity="error", rule="target-missing", message=message, where=name)
            found.append(replace(one, path=command.path, line=command.line))
    found += judge_links(verdict for _, verdict in pairs)
    if told.wants_device_code and not by_source:
        message = "ROCm was asked for, and no command compiles device code"
        found.append(Finding(severity="error", rule="target-missing", message=message, where=told.where))
    elif told.log and requested and not by_source:
        message = "no command in it compiles device code"
        found.append(Finding(severity="error", rule="target-missing", message=message, where=told.where))
    return Compiled(
        source="log" if told.log else "record" if record else "evidence",
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

    if requested is not None and set(own.targets or ()) != set(requested):
        names = [" ".join(targets) or "no target" for targets in (own.targets or (), requested)]
        add("evidence-differs", f"its evidence is for {names[0]}, asked for is {names[1]}")
    if record and not record.log and own.stage_key != record.stage_key:
        add("evidence-differs", f"made from stage {own.stage_key[:16]}, the record is of {record.stage_key[:16]}")
    if own.code_objects is not None and not _same(own.code_objects, [_summary(lib, None) for lib in binary.libraries]):
        add("evidence-differs", "the code objects in it are not those that its evidence names")
    return found


def _same(told: Any, seen: Any) -> bool:
    """Whether evidence names what was seen: all that it tells is so, in any order of libraries.

    What an older rocmbuild did not write down is not missed.
    """
    if isinstance(told, dict):
        return isinstance(seen, dict) and all(key in seen and _same(told[key], seen[key]) for key in told)
    if isinstance(told, list):
        if not isinstance(seen, list) or len(told) != len(seen):
            return False
        if all(isinstance(row, dict) and "name" in row for row in (*told, *seen)):
            told, seen = (sorted(rows, key=lambda row: str(row["name"])) for rows in (told, seen))
        return all(_same(one, other) for one, other in zip(told, seen, strict=True))
    return type(told) is type(seen) and bool(told == seen)


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


def _library_json(library: Library) -> dict[str, Any]:
    """A library with what its figures mean."""
    value = library.to_json()
    floor = oldest_rocm(library)
    value["oldest_rocm"] = {"version": floor.version, "reason": floor.reason}
    for code, row in zip(library.code_objects, value["code_objects"], strict=True):
        row["products"] = list(products(code.processor))
        for kernel, figures in zip(code.kernels, row["kernels"], strict=True):
            found = kernel_occupancy(kernel, code.processor)
            figures["occupancy"] = found and {"waves": found.waves, "most": found.most, "limited_by": found.limited_by}
    return value
