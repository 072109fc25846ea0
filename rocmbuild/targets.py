"""Which GPU targets a build is for: the grammar of FREETOKEN_ROCM_ARCH, and what may not bend its answer.

A value is a list of tokens separated by `;`, `,` or white space. A token is a declared target, a family, a generic
target or `native`; case does not matter, empty tokens and duplicates go, the first order stays. Everything else is
refused, with all faults of one value in one message.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from rocmbuild.errors import EnvironmentFailure, InputError, RocmbuildError, joined, nearest, printable

__all__ = [
    "ARCH_ENV",
    "DECLARED",
    "FAMILIES",
    "GENERIC",
    "INJECTING_VARIABLES",
    "NATIVE",
    "TORCH_ARCH_ENV",
    "InjectedFlag",
    "Scan",
    "TargetSet",
    "asked_targets",
    "bridge",
    "injected_flags",
    "is_generic",
    "native_targets",
    "parse_targets",
    "refuse_smuggled",
    "scan_targets",
    "smuggled",
    "tokens",
]

ARCH_ENV = "FREETOKEN_ROCM_ARCH"
TORCH_ARCH_ENV = "PYTORCH_ROCM_ARCH"
NATIVE = "native"

_GFX110X = ("gfx1100", "gfx1101", "gfx1102", "gfx1103")
_GFX115X = ("gfx1150", "gfx1151", "gfx1152", "gfx1153")
_GFX120X = ("gfx1200", "gfx1201")

DECLARED: tuple[str, ...] = (*_GFX110X, *_GFX115X, *_GFX120X)
"""The targets a wheel may be built for: RDNA3, RDNA3.5 and RDNA4."""

FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rdna3": _GFX110X,
        "rdna3.5": _GFX115X,
        "rdna4": _GFX120X,
        "gfx110x": _GFX110X,
        "gfx115x": _GFX115X,
        "gfx120x": _GFX120X,
        "gfx11": (*_GFX110X, *_GFX115X),
        "gfx12": _GFX120X,
        "all": DECLARED,
    }
)
"""Short names, each with the declared targets it stands for."""

GENERIC: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"gfx11-generic": (*_GFX110X, *_GFX115X), "gfx12-generic": _GFX120X}
)
"""LLVM's generic targets, each with the declared targets whose cards run it (AMDGPUUsage, "Generic processor")."""

_SEPARATORS = re.compile(r"[;,\s]+")
_WAVE64 = re.compile(r"gfx[6-9](?:[0-9a-f]{0,2}|[0-9a-f]?x|(?:-[0-9]+)?-generic)")
_UNDECLARED = re.compile(r"gfx1[0-9](?:[0-9a-f]{2}(?:-strict)?|[0-9a-f]x|(?:-[0-9]+)?-generic)?|rdna[12]")


def tokens(value: str) -> tuple[str, ...]:
    """The words of a list separated by `;`, `,` or white space, as written; empty ones are dropped."""
    return tuple(token for token in _SEPARATORS.split(value) if token)


def is_generic(name: str) -> bool:
    """Whether a target of a TargetSet is a generic one, which needs a toolchain that knows it."""
    return name in GENERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSet:
    """The targets of one build, at least one, in the order asked for, each once.

    names: declared or generic targets, lower case. source: who asked ("-C targets", "FREETOKEN_ROCM_ARCH",
    "pyproject.toml", "PYTORCH_ROCM_ARCH", or a command line's own word).
    """

    names: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        wrong = [name for name in self.names if name not in DECLARED and name not in GENERIC]
        if wrong or not self.names or len(set(self.names)) != len(self.names):
            raise ValueError(f"not a set of declared targets: {self.names!r}")

    @property
    def canonical(self) -> str:
        """The list as PYTORCH_ROCM_ARCH wants it: `;` between, nothing else."""
        return ";".join(self.names)

    @property
    def generics(self) -> tuple[str, ...]:
        """Those of names that are generic targets."""
        return tuple(name for name in self.names if is_generic(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a value says: the targets of its good tokens, and one text for each fault. No token gives neither."""

    names: tuple[str, ...]
    faults: tuple[str, ...]


def native_targets() -> tuple[str, ...]:
    """The targets of this machine's AMD cards, each once; empty without a card.

    Reads the kernel's own topology through rocm-bootstrap; needs no ROCm. A card that rocm-bootstrap does not know
    raises EnvironmentFailure.
    """
    from rocm_bootstrap import detect_gfx_targets  # only `native` needs it

    try:
        return tuple(target.name.lower() for target in detect_gfx_targets())
    except (ValueError, OSError) as err:
        raise EnvironmentFailure(f"the cards of this machine cannot be told: {err}") from err


def scan_targets(value: str, *, native: Callable[[], Sequence[str]] | None = None, allow_native: bool = True) -> Scan:
    """Read a value of FREETOKEN_ROCM_ARCH without raising.

    native: gives the targets of this machine's cards; asked at most once, and only when the value says `native` and
    allow_native holds.
    """
    names: dict[str, None] = {}
    wave64: list[str] = []
    undeclared: list[str] = []
    faults: list[str] = []

    def add(word: str, label: str) -> None:
        low = word.lower()
        bare, colon, _ = low.partition(":")
        if low in DECLARED or low in GENERIC:
            names[low] = None
        elif low in FAMILIES:
            names.update(dict.fromkeys(FAMILIES[low]))
        elif colon and (bare in DECLARED or bare in GENERIC or bare in FAMILIES):
            faults.append(f"{label}: a feature suffix is not accepted, write {bare}")
        elif _WAVE64.fullmatch(bare):
            wave64.append(label)
        elif _UNDECLARED.fullmatch(bare):
            undeclared.append(label)
        else:
            faults.append(f"{label}: not a target{_suggestion(low)}")

    spelling: dict[str, str] = {}
    for token in tokens(value):
        spelling.setdefault(token.lower(), token)
    for low, token in spelling.items():
        if low != NATIVE:
            add(token, printable(token))
        elif not allow_native:
            faults.append(
                f"{NATIVE}: refused for a wheel, which others install; name the targets or set allow-native = true"
            )
        else:
            try:
                cards = (native or native_targets)()
            except RocmbuildError as err:
                faults.append(f"{NATIVE}: {err.message}")
                continue
            if not cards:
                faults.append(f"{NATIVE}: no AMD card was found on this machine; name the targets")
            for card in cards:
                add(card, f"{printable(card)} (a card of this machine, from {NATIVE})")

    if wave64:
        faults.append(f"{', '.join(wave64)}: wave64 (64 lanes a wave), and only waves of 32 lanes are supported")
    if undeclared:
        faults.append(f"{', '.join(undeclared)}: not declared; declared are {', '.join(DECLARED)}")
    return Scan(names=tuple(names), faults=tuple(faults))


def _suggestion(token: str) -> str:
    """The nearest known targets, up to three; those that stand inside the token come first."""
    inside = [name for name in DECLARED if name in token]
    near = tuple(dict.fromkeys([*inside, *nearest(token, (*DECLARED, *FAMILIES, *GENERIC, NATIVE))]))[:3]
    return f"; nearest known: {', '.join(near)}" if near else ""


def parse_targets(
    value: str, *, source: str, native: Callable[[], Sequence[str]] | None = None, allow_native: bool = True
) -> TargetSet | None:
    """The targets that value asks for; None when it has no token, which counts as unset.

    source: who gave the value, for messages and evidence. native, allow_native: see scan_targets. Any fault raises
    one InputError that names them all.
    """
    scan = scan_targets(value, native=native, allow_native=allow_native)
    if scan.faults:
        raise InputError(
            f"{source}: {joined(scan.faults)}", hint="`rocmbuild targets` lists every name that can be written"
        )
    return TargetSet(names=scan.names, source=source) if scan.names else None


def asked_targets(given: str | None, environ: Mapping[str, str], *, source: str) -> TargetSet | None:
    """The targets of an option, else of FREETOKEN_ROCM_ARCH, else of PYTORCH_ROCM_ARCH; None where all are unset.

    source: what the option is called. Only the value that wins is read.
    """
    places = ((source, given), *((name, environ.get(name)) for name in (ARCH_ENV, TORCH_ARCH_ENV)))
    return next((found for name, text in places if (found := parse_targets(text or "", source=name))), None)


@contextmanager
def bridge(environ: MutableMapping[str, str], targets: TargetSet) -> Iterator[None]:
    """Set PYTORCH_ROCM_ARCH to the canonical list, and at the end put back exactly what was there, or nothing."""
    before = environ.get(TORCH_ARCH_ENV)
    environ[TORCH_ARCH_ENV] = targets.canonical
    try:
        yield
    finally:
        if before is None:
            environ.pop(TORCH_ARCH_ENV, None)
        else:
            environ[TORCH_ARCH_ENV] = before


# Variables through which compilers take targets and flags on their own.

INJECTING_VARIABLES = (
    "HCC_AMDGPU_TARGET",
    "HIPCC_COMPILE_FLAGS_APPEND",
    "HIPCC_LINK_FLAGS_APPEND",
    "CCC_OVERRIDE_OPTIONS",
    "HSA_OVERRIDE_GFX_VERSION",
)

_TARGET_OPTION = re.compile(
    r"--?(?:no-)?(?:offload-arch|offload-arch-tool|offload-targets?|cuda-gpu-arch|amdgpu-target)(?:=.*)?"
    r"|--offload(?:=.*)?|-target-cpu|.*\bm(?:cpu|arch)=gfx.*",
    re.DOTALL,
)
_TAKES_A_WORD = frozenset({"-D", "-U", "-I", "-L", "-include", "-isystem", "-iquote", "-idirafter"})
_FLAGS_FROM_A_FILE = re.compile(r"@.+|--config(?:-user-dir|-system-dir)?(?:=.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFlag:
    """A variable of the environment that changes what a compiler or the runtime does.

    severity "error": it names a target or a wave width, or something in which those could hide.
    """

    variable: str
    value: str
    severity: Literal["error", "warning"]
    message: str
    hint: str


def smuggled(words: Sequence[str]) -> tuple[str, ...]:
    """What among compiler words sets a target or a wave width, or could hide one: a text for each such word.

    -mno-wavefrontsize64, which every device command has anyway, is let through; so are defines and paths.
    """
    found = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _TAKES_A_WORD:
            skip = True
        elif word.startswith(("-D", "-U", "-I", "-L")):
            continue
        elif _TARGET_OPTION.fullmatch(word):
            found.append(f"{printable(word)} sets a target")
        elif "wavefrontsize" in word and word != "-mno-wavefrontsize64":
            found.append(f"{printable(word)} sets the wave width")
        elif _FLAGS_FROM_A_FILE.fullmatch(word):
            found.append(f"{printable(word)} brings in flags from a file, which could set a target")
    return tuple(found)


def injected_flags(environ: Mapping[str, str]) -> tuple[InjectedFlag, ...]:
    """What INJECTING_VARIABLES of environ hold, in that order; blank ones are not there."""
    found = []
    for variable in INJECTING_VARIABLES:
        value = environ.get(variable, "")
        if not value.strip():
            continue
        if variable == "HSA_OVERRIDE_GFX_VERSION":
            text = f"{variable}={printable(value)} makes the runtime take the card for another one"
            hint = f"unset {variable} unless the card needs it: kernels of the wrong target crash or compute nonsense"
            found.append(InjectedFlag(variable=variable, value=value, severity="warning", message=text, hint=hint))
            continue
        reasons = _READERS[variable](value)
        effect = "; ".join(reasons) if reasons else "changes the flags of every compilation"
        found.append(
            InjectedFlag(
                variable=variable,
                value=value,
                severity="error" if reasons else "warning",
                message=f"{variable}={printable(value)}: {effect}",
                hint=f"unset {variable}; targets come from {ARCH_ENV} or the configuration alone"
                if reasons
                else f"unset {variable} for a build that others can repeat",
            )
        )
    return tuple(found)


def refuse_smuggled(environ: Mapping[str, str]) -> tuple[InjectedFlag, ...]:
    """The findings of injected_flags that are warnings; one InputError names all that are errors."""
    findings = injected_flags(environ)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        names = " ".join(error.variable for error in errors)
        raise InputError(
            f"the environment changes what compilers build for: {joined([error.message for error in errors])}",
            hint=f"unset {names}; targets come from {ARCH_ENV} or the configuration alone",
        )
    return findings


def _read_target_list(value: str) -> tuple[str, ...]:
    """HCC_AMDGPU_TARGET: hipcc's list of targets where a command names none."""
    return tuple(f"{printable(token)} is a target" for token in tokens(value))


def _read_shell_words(value: str) -> tuple[str, ...]:
    """HIPCC_*_FLAGS_APPEND: hipcc puts the text into a shell command."""
    if "$" in value or "`" in value:
        return ("the shell would expand it, so its flags cannot be told",)
    try:
        return smuggled(shlex.split(value))
    except ValueError as err:
        return (f"it is not a list of shell words ({err}), so its flags cannot be told",)


def _read_override_edits(value: str) -> tuple[str, ...]:
    """CCC_OVERRIDE_OPTIONS: clang's edits of its command (clang/lib/Driver, applyOneOverrideOption).

    Separated by blanks, `#` first silences them; `+W` and `^W` add a word, `s/A/B/` rewrites, `xW` and `XW` remove,
    `OX` sets the optimisation level.
    """
    added = []
    reasons = []
    for edit in value.removeprefix("#").split(" "):
        if edit[:1] in ("+", "^"):
            added.append(edit[1:])
        elif edit.startswith("s/"):
            reasons.append(f"{printable(edit)} rewrites flags, which could set a target")
        elif edit[:1] in ("x", "X"):
            word = edit[1:]
            if _TARGET_OPTION.fullmatch(word) or "wavefrontsize" in word:
                reasons.append(f"{printable(edit)} removes a target or the wave width")
    return (*smuggled(added), *reasons)


_READERS: Mapping[str, Callable[[str], tuple[str, ...]]] = MappingProxyType(
    {
        "HCC_AMDGPU_TARGET": _read_target_list,
        "HIPCC_COMPILE_FLAGS_APPEND": _read_shell_words,
        "HIPCC_LINK_FLAGS_APPEND": _read_shell_words,
        "CCC_OVERRIDE_OPTIONS": _read_override_edits,
    }
)
