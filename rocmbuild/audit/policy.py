"""A project's rules for its kernels, [tool.rocmbuild.audit]: a violation names kernel, target, what is, what may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

from rocmbuild.audit.binary import BinaryReport
from rocmbuild.audit.codeobject import CodeObject, Kernel
from rocmbuild.audit.demangle import short_name
from rocmbuild.audit.disassembly import Instructions, base_name, disassemble
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.meaning import kernel_occupancy
from rocmbuild.config import AuditRule
from rocmbuild.errors import EnvironmentFailure

__all__ = ["judge_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Violation:
    """What one kernel is and may not be, before the targets with the same are put together."""

    library: str
    kernel: str
    rule: str
    found: str
    allowed: str
    at: str


def judge_policy(
    rules: Sequence[AuditRule], binaries: Sequence[BinaryReport], *, objdump: Path | None = None
) -> list[Finding]:
    """Findings for every kernel that a rule does not allow, and for rules that are about no kernel.

    objdump: the toolchain's disassembler. EnvironmentFailure where a rule needs it and there is none.
    """
    violations: dict[_Violation, dict[str, None]] = {}
    used: set[str] = set()
    matchers = [_Matcher(rule) for rule in rules]
    for binary in binaries:
        placed = _placed(binary)
        instructions = _instructions(matchers, binary, placed, objdump)
        for place, library, code in placed:
            for matcher in matchers:
                rule = matcher.rule
                for kernel in matcher.kernels(code):
                    used.add(rule.at)
                    for name, found, allowed, key in _broken(rule, code, kernel, instructions.get(place)):
                        one = _Violation(
                            library=library,
                            kernel=short_name(kernel.demangled),
                            rule=name,
                            found=found,
                            allowed=allowed,
                            at=f"{rule.at}.{key}",
                        )
                        violations.setdefault(one, {})[code.target] = None
    findings = [
        Finding(
            severity="error",
            rule=one.rule,
            message=f"{one.kernel} for {', '.join(there)}: {one.found}; allowed: {one.allowed} ({one.at})",
            where=one.library,
        )
        for one, there in violations.items()
    ]
    if any(library.code_objects for binary in binaries for library in binary.libraries):
        findings += [
            Finding(
                severity="error",
                rule="policy-unmatched",
                message=f"{rule.at}: no kernel is named {' or '.join(rule.kernels)}" + _for(rule.targets),
            )
            for rule in rules
            if rule.at not in used
        ]
    return findings


def _for(targets: Sequence[str]) -> str:
    return f" for {', '.join(targets)}" if targets else ""


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a text matches one of some glob patterns; case counts."""
    match = re.compile("|".join(f"(?:{translate(pattern)})" for pattern in patterns)).match
    return lambda text: match(text) is not None


class _Matcher:
    """A rule and which kernels it is about."""

    def __init__(self, rule: AuditRule) -> None:
        self.rule = rule
        self._target = _matcher(rule.targets or ("*",))
        self._name = _matcher(rule.kernels)

    def kernels(self, code: CodeObject) -> list[Kernel]:
        """Those of a code object that the rule is about."""
        if not self._target(code.target):
            return []
        match = self._name
        return [k for k in code.kernels if match(short_name(k.demangled)) or match(k.demangled) or match(k.name)]


def _placed(binary: BinaryReport) -> list[tuple[str, str, CodeObject]]:
    """(place as disassemble() names it, library, code object) of all that can be measured."""
    seen: dict[str, int] = {}
    found = []
    for library in binary.libraries:
        for code in library.code_objects:
            index = seen[code.where] = seen.get(code.where, -1) + 1
            found.append((f"{code.where}#{index}", library.name, code))
    return found


def _instructions(
    matchers: Sequence[_Matcher],
    binary: BinaryReport,
    placed: Sequence[tuple[str, str, CodeObject]],
    objdump: Path | None,
) -> Mapping[str, Instructions]:
    """The disassembly of the code objects that have kernels with a rule about instructions."""
    looking = [matcher for matcher in matchers if matcher.rule.looks_at_code]
    wanted = {place for place, _, code in placed if any(matcher.kernels(code) for matcher in looking)}
    if not wanted:
        return {}
    if objdump is None:
        raise EnvironmentFailure(
            f"{looking[0].rule.at} asks for instructions, and there is no llvm-objdump to look for them",
            hint="use a toolchain that has one; `rocmbuild toolchain install` does",
        )
    return disassemble(Path(binary.path), wanted, objdump)


def _broken(
    rule: AuditRule, code: CodeObject, kernel: Kernel, instructions: Instructions | None
) -> list[tuple[str, str, str, str]]:
    """(rule, found, allowed, key) for each limit that a kernel breaks."""
    broken = []
    if rule.allow_targets and not _matcher(rule.allow_targets)(code.target):
        broken.append(("policy-target", code.target, ", ".join(rule.allow_targets), "allow-targets"))
    widths = sorted({kernel.wave, kernel.descriptor_wave or kernel.wave})
    if rule.wave and widths != [rule.wave]:
        broken.append(("policy-wave", f"wave{'/'.join(map(str, widths))}", f"wave{rule.wave}", "wave"))
    if not rule.spills and (kernel.vgpr_spill or kernel.sgpr_spill):
        found = f"{kernel.vgpr_spill or 0} VGPRs and {kernel.sgpr_spill or 0} SGPRs spilled"
        broken.append(("policy-spills", found, "none", "spills"))
    if not rule.scratch and (kernel.scratch or kernel.dynamic_stack):
        found = f"{kernel.scratch} bytes of scratch" + (" and a dynamic stack" if kernel.dynamic_stack else "")
        broken.append(("policy-scratch", found, "none", "scratch"))
    if rule.max_vgprs is not None and kernel.vgpr > rule.max_vgprs:
        broken.append(("policy-vgprs", f"{kernel.vgpr} VGPRs", f"at most {rule.max_vgprs}", "max-vgprs"))
    if rule.min_occupancy is not None:
        there = kernel_occupancy(kernel, code.processor)
        limit = f"at least {rule.min_occupancy}"
        if there is None:
            broken.append(("policy-occupancy", "an occupancy that is not known", limit, "min-occupancy"))
        elif there.waves < rule.min_occupancy:
            why = f" (limited by {there.limited_by})" if there.limited_by else ""
            broken.append(("policy-occupancy", f"{there.waves} waves a SIMD{why}", limit, "min-occupancy"))
    if instructions is not None:
        broken += _about_code(rule, instructions.of(kernel.name))
    return broken


def _about_code(rule: AuditRule, words: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """The same for instructions; a pattern is compared with the name with and without the encoding's suffix."""
    broken = []
    names = {word: (word, base_name(word)) for word in words}
    for pattern in rule.require:
        match = _matcher([pattern])
        if not any(match(name) for both in names.values() for name in both):
            broken.append(("policy-instructions", f"no {pattern}", f"only with {pattern}", "require"))
    for pattern in rule.forbid:
        match = _matcher([pattern])
        there = sorted(word for word, both in names.items() if any(match(name) for name in both))
        if there:
            broken.append(("policy-instructions", ", ".join(there[:4]), f"no {pattern}", "forbid"))
    return broken
