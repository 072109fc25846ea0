"""Findings: what goes wrong with HIPified sources, and how the facts of single files become findings of a tree.

checks.examine gives the Facts of one file by itself, which are kept with the file's conversion; what one file knows of
another (names that the project declares, macros that no live line defines) is put together here, each time anew.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rocmbuild.staging.facts import UNDEFINED, Facts, Macros
from rocmbuild.staging.sources import HEADER_KINDS

__all__ = ["RULES", "Finding", "Rule", "combine", "finding", "reachable", "settle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. path, line and column are those of the user's source; line and column count from 1.

    rule: a name in RULES. severity: "error" stops a build, "warning" does not. hint: the next step.
    """

    path: str
    line: int
    column: int
    rule: str
    severity: str
    message: str
    hint: str

    def to_json(self) -> dict[str, Any]:
        """As written into reports."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.severity}: {self.message} [{self.rule}]"


class Rule(NamedTuple):
    """A kind of finding. message is filled with name and detail; summary says what the rule is about."""

    severity: str
    summary: str
    message: str
    hint: str


_ALLOW = "port it, keep it in an `#ifndef USE_ROCM` branch, or allow it by name with hipify-allow"

RULES: Mapping[str, Rule] = {
    "leftover": Rule(
        "error", "A CUDA name that is left over", "{name} is left over: HIPify knows no HIP name for it", _ALLOW
    ),
    "cuda-include": Rule(
        "error",
        "A CUDA header that is left over",
        "the CUDA header {detail} is left over: HIPify knows no HIP header for it",
        _ALLOW,
    ),
    "include": Rule(
        "error",
        "An include of device code that is not staged",
        "{detail} is not among the staged files",
        "add its folder to include-dirs",
    ),
    "include-left-out": Rule(
        "error",
        "An include of a file that an earlier hipify run generated",
        "{detail} is an output of an earlier hipify run, which is not staged",
        "include the CUDA header that it was made from",
    ),
    "include-outside": Rule(
        "error",
        "An include that leads out of the project",
        "{detail} leads out of the project, where nothing is staged",
        "move the file into the project, or let the project's folder be the one that holds both",
    ),
    "include-computed": Rule(
        "warning",
        "An include whose file a macro names",
        "the file of this include is named by the macro {name}, which is not followed",
        "name the file itself where it is a CUDA source or lies in no folder of sources or include-dirs",
    ),
    "string-literal": Rule(
        "error",
        "A string literal that conversion rewrote",
        "{detail}",
        "report this to rocmbuild, with the line: literals are to stay as they are",
    ),
    "shuffle-mask": Rule(
        "error",
        "A lane mask of 32 bits",
        "{name} has a mask of 32 bits, {detail}; HIP takes 64 bits only",
        "write the mask as a 64-bit value, such as 0xffffffffull",
    ),
    "shuffle-overload": Rule(
        "error",
        "A lane mask of 32 bits in an overload of a shuffle",
        "this overload of {name} calls HIP's with a mask of 32 bits, {detail}; HIP takes 64 bits only",
        "take the mask as a 64-bit value, such as unsigned long long, or leave the overload out under USE_ROCM",
    ),
    "wave-size": Rule("error", "A wave of 64 lanes", "{name} is 64; Radeon waves have 32 lanes", "use 32"),
    "warp-size-constant": Rule(
        "error",
        "A constant made of warpSize",
        "warpSize is used as a constant; in HIP it is none",
        "use a constant of your own that is 32",
    ),
    "lane-arithmetic": Rule(
        "warning",
        "Arithmetic on a thread index that looks like a wave of 64 lanes",
        "`{detail}` on a thread index looks like a wave of 64 lanes; Radeon waves have 32",
        "nothing to do where 64 is a tile of your own",
    ),
    "vector-operator": Rule(
        "warning",
        "An operator on vector types that HIP's headers have",
        "HIP's own headers have this {name} for two of {detail}: each use of it is ambiguous",
        "leave it out under USE_ROCM",
    ),
    "inline-ptx": Rule(
        "error",
        "Inline PTX",
        "inline PTX: {detail}",
        "write it in C++ or with an AMD builtin, and keep the PTX in an `#ifndef USE_ROCM` branch",
    ),
    "launch": Rule(
        "error",
        "A kernel launch that cannot be converted",
        "this kernel launch cannot be converted: {detail}",
        "write the launch out plainly",
    ),
    "dynamic-shared": Rule(
        "warning",
        "Dynamic shared memory that cannot run on the host platform",
        "dynamic shared memory of this form cannot run on the host platform",
        "use `extern __shared__ T name[];`",
    ),
    "skipped": Rule(
        "error",
        "A file that is left as it is",
        "this file was not converted: {detail}",
        "save it as source text in UTF-8 or Latin-1 that a compiler can read",
    ),
    "unusable": Rule(
        "error",
        "A file that cannot be staged",
        "this file {detail}",
        "sources must be readable files inside the project",
    ),
    "generated": Rule(
        "warning",
        "An output of an earlier hipify run in the tree",
        "this file comes from an earlier hipify run and is left out",
        "remove it; rocmbuild converts the CUDA sources itself, outside the project",
    ),
}
"""Every rule by its name."""


def finding(path: str, rule: str, *, line: int = 1, column: int = 1, name: str = "", detail: str = "") -> Finding:
    """A finding of a rule, its words filled in."""
    kind = RULES[rule]
    return Finding(
        path=path,
        line=line,
        column=column,
        rule=rule,
        severity=kind.severity,
        message=kind.message.format(name=name, detail=detail),
        hint=kind.hint,
    )


def reachable(facts: Mapping[str, Facts]) -> set[str]:
    """The files that a compilation for HIP can see.

    All but the headers that are included in dead code only, or by such headers; all where a macro names an include.
    """
    included: set[str] = set()
    for one in facts.values():
        included.update(one.reaches, one.passes)
        if one.found and any(found[0] == "include-computed" for found in one.found):
            return set(facts)
    todo = [path for path in facts if path not in included or not path.endswith(HEADER_KINDS)]
    seen = set(todo)
    while todo:
        new = [path for path in facts[todo.pop()].reaches if path in facts and path not in seen]
        seen.update(new)
        todo += new
    return seen


def settle(
    facts: Mapping[str, Facts], again: Callable[[str, Macros], Facts]
) -> tuple[dict[str, Facts], dict[str, Macros]]:
    """Facts of all reachable files under what the tree itself says of macros.

    Those that it defines in dead code or unreachable headers alone are not defined; of the well-known ones that no
    HIP compilation defines, those that it defines itself are not known. again(path, macros) gives a file's facts
    under such a state. Returned with the states that mattered, for the files for which any did.
    """
    current = dict(facts)
    mattered: dict[str, Macros] = {}
    named = {name for one in facts.values() for name in one.conditions}
    defined = {name for one in facts.values() for name in (*one.live, *one.dead)} & named
    state = Macros()
    settled = False
    while True:
        seen = reachable(current)
        live = {name for path in seen for name in current[path].live}
        unknown = state.unknown if settled else state.unknown | (live & named & UNDEFINED)
        undefined = state.undefined
        if unknown == state.unknown:
            settled = True  # what is unknown can only make more code live, what is undefined less
            undefined |= defined - live - UNDEFINED
            if undefined == state.undefined:
                current = {path: one for path, one in current.items() if path in seen}
                return current, {path: macros for path, macros in mattered.items() if path in seen}
        state = Macros(undefined, unknown)
        for path, one in facts.items():
            relevant = state.among(one.conditions)
            if relevant != mattered.get(path, Macros()):
                mattered[path] = relevant
                current[path] = again(path, relevant)


def combine(
    facts: Mapping[str, Facts], *, allow: Iterable[str] = (), defines: Iterable[str] = ()
) -> tuple[list[Finding], Mapping[str, int]]:
    """All findings, sorted, and how many CUDA names each file has left over (allowed ones too).

    facts: as settle gives them. allow: names and headers that may stay, as they stand in the converted source. defines:
    macros of the compilations.
    """
    allowed = set(allow)
    own = {name for one in facts.values() for name in one.own}.union(defines)
    wrappers = {name for one in facts.values() for name in one.wrappers}
    findings: list[Finding] = []
    leftovers: Counter[str] = Counter()

    @functools.cache
    def narrow(mask: str) -> bool:
        """Whether the tree defines a mask, and everywhere with at most 32 bits."""
        widths = [one.constants[mask] for one in facts.values() if mask in one.constants]
        return bool(widths) and all(widths)

    for path, one in facts.items():
        for rule, line, column, name, detail, mask in one.found:
            if rule == "include-left-out" or (rule == "leftover" and name in own):
                continue  # for the stage to say; no CUDA name, for all its looks
            if rule in ("leftover", "cuda-include"):
                leftovers[path] += 1
                if name in allowed:
                    continue
            elif rule == "include" and name in allowed:
                continue
            elif rule in ("shuffle-mask", "shuffle-overload"):
                if name in wrappers and rule == "shuffle-mask":
                    continue
                if mask and not narrow(mask):
                    continue
            findings.append(finding(path, rule, line=line, column=column, name=name, detail=detail))
    findings.sort(key=lambda found: (found.path, found.line, found.column, found.rule))
    return findings, leftovers
