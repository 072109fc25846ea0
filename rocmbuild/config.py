"""[tool.rocmbuild], the environment and config settings, read once into a frozen Config.

Precedence: `-C key=value`, then the environment, then pyproject.toml, then the default. For targets: `-C targets`, then
FREETOKEN_ROCM_ARCH (or the variable that the project names), then pyproject.toml, then PYTORCH_ROCM_ARCH, which
container images preset with other people's cards. A value that holds no word counts as unset. Only the value that wins
is validated; one that it overrides gets a warning. All faults are in one InputError.

OPTIONS, EXTENSION_OPTIONS, RULE_OPTIONS and MATRIX_OPTIONS describe every option: its name, check, JSON schema,
default, help, and where it may be set. Validation, suggestions, the schema (rocmbuild.schema) and the reference for
readers come from them.
"""

from __future__ import annotations

import hashlib
import keyword
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, cast

from rocmbuild.errors import EnvironmentFailure, InputError, joined, nearest, printable, shown
from rocmbuild.paths import cache_dir
from rocmbuild.targets import ARCH_ENV, DECLARED, FAMILIES, TORCH_ARCH_ENV, TargetSet, scan_targets, smuggled, tokens

__all__ = [
    "EXTENSION_OPTIONS",
    "LAUNCHERS",
    "MATRIX_OPTIONS",
    "OPTIONS",
    "PLATFORMS",
    "RULE_OPTIONS",
    "TORCH_MODES",
    "AuditRule",
    "Config",
    "Extension",
    "Matrix",
    "Option",
    "Overridden",
    "check_platform",
    "default_build_dir",
    "load_config",
    "pyproject_schema",
    "reference",
]

PLATFORMS = ("rocm", "host", "cuda")
LAUNCHERS = ("none", "ccache", "sccache")
HIPIFY_ENGINES = ("auto", "torch", "hipify_torch")
TORCH_MODES = ("stable", "full", "none")

Torch = Literal["stable", "full", "none"]
Setting = str | bool | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One [[tool.rocmbuild.extensions]] table: a library for each platform.

    name: dotted module path inside the wheel, at least package.module. sources: globs, and include_dirs: folders,
    POSIX, relative to the project and inside it. defines: (name, value) in the order given. The flags are single
    compiler words; none sets a target or the wave width.
    """

    name: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    torch: Torch = "stable"
    cxx_flags: tuple[str, ...] = ()
    device_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRule:
    """What kernels must be like: [tool.rocmbuild.audit] for all of them, or one of [[tool.rocmbuild.audit.rules]].

    at: its dotted name. kernels: glob patterns; a kernel is meant when one matches its demangled name, with or without
    the parameters, or its symbol. targets: patterns of the targets that are meant, () for all. The rest limits them:
    the targets that may be there at all, the width of a wave, whether registers may spill and scratch memory be used,
    the most VGPRs, the fewest waves on a SIMD, patterns of instructions that must or must not occur; None or () for no
    limit.
    """

    at: str
    kernels: tuple[str, ...] = ("*",)
    targets: tuple[str, ...] = ()
    allow_targets: tuple[str, ...] = ()
    wave: int | None = None
    spills: bool = True
    scratch: bool = True
    max_vgprs: int | None = None
    min_occupancy: int | None = None
    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()

    @property
    def looks_at_code(self) -> bool:
        """Whether it needs a disassembly."""
        return bool(self.require or self.forbid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """[tool.rocmbuild.matrix]: what CI services build for beside each target; () for what a build takes by itself."""

    torch: tuple[str, ...] = ()
    toolchains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overridden:
    """A value that lost: where it stands, as text."""

    at: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of one build.

    project and build_dir are absolute. targets is None when nothing names one, or when they were not wanted. jobs is
    None for as many as processors and memory allow. sources gives for each option, by its name in pyproject.toml,
    where its value comes from: "-C NAME", a variable, "pyproject.toml" or "default"; overridden the values that lost to
    it. warnings are for the caller to print, once. settings: the config settings that were given, as text.
    """

    project: Path
    targets: TargetSet | None
    arch_env: str
    toolchain: str | None
    auto_install: bool
    platforms: tuple[str, ...]
    build_dir: Path
    jobs: int | None
    verbose: bool
    debug: bool
    allow_native: bool
    extensions: tuple[Extension, ...]
    cuda_archs: tuple[str, ...]
    audit: tuple[AuditRule, ...]
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    hipify_engine: str = "auto"
    hipify_allow: tuple[str, ...] = ()
    torch_sdk: str | None = None
    launcher: str = "none"
    local_version: bool = False
    variant: bool = False
    editable_rebuild: bool = True
    matrix: Matrix = Matrix()
    overridden: Mapping[str, tuple[Overridden, ...]] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = ()


Check = Callable[[object, str, list[str]], Any]
"""Takes a value as TOML gives it, its dotted name and the list of faults, to which it adds; returns what to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    schema: JSON schema of its value in pyproject.toml; it accepts whatever check accepts, and refuses what a look at
    the value alone can. setting: how the text of `-C name=text` is read: "word", "words" (a list), "flag", "count",
    or "" where it cannot be given so. variable: the environment variable that gives the same text, or "". in_pyproject:
    whether it may stand in pyproject.toml.
    """

    name: str
    check: Check
    help: str
    schema: Mapping[str, Any]
    default: Any = None
    shown_default: str = ""
    setting: Literal["word", "words", "flag", "count", ""] = ""
    variable: str = ""
    in_pyproject: bool = True
    required: bool = False

    @property
    def field(self) -> str:
        """Its field in the dataclass that holds its value."""
        return self.name.replace("-", "_")


def check_platform(system: str, machine: str) -> None:
    """EnvironmentFailure, in one sentence, unless this is Linux on x86-64.

    system, machine: as platform.system() and platform.machine() give them.
    """
    if system != "Linux" or machine.lower() not in ("x86_64", "amd64"):
        raise EnvironmentFailure(
            f"rocmbuild works on Linux on x86-64 only, and this is {system or 'unknown'} on {machine or 'unknown'}."
        )


def default_build_dir(project: Path) -> Path:
    """The build folder of a project in the user's cache, keyed by the project's absolute path."""
    place = project.resolve()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", place.name)[:40] or "root"
    return cache_dir().absolute() / "builds" / f"{name}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}"


# Checks


def _fault(faults: list[str], at: str, value: object, wanted: str, known: Sequence[str] = ()) -> None:
    near = nearest(value, known) if isinstance(value, str) else ()
    faults.append(f"{at}: found {shown(value)}, wanted {wanted}{_or(near)}")


def _flag(value: object, at: str, faults: list[str]) -> bool:
    if not isinstance(value, bool):
        _fault(faults, at, value, "true or false")
        return False
    return value


def _count(value: object, at: str, faults: list[str]) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        _fault(faults, at, value, "a whole number of at least 1")
        return None
    return value


def _strings(value: object, at: str, faults: list[str], wanted: str) -> list[tuple[str, str]]:
    """(dotted name, text) of a list's strings that are not empty."""
    if not isinstance(value, list):
        _fault(faults, at, value, f"a list of {wanted}")
        return []
    good = []
    for place, item in enumerate(value):
        if isinstance(item, str) and item and "\0" not in item:
            good.append((f"{at}[{place}]", item))
        else:
            _fault(faults, f"{at}[{place}]", item, f"one of the {wanted}, as a string")
    return good


def _choice(allowed: Sequence[str]) -> Check:
    def check(value: object, at: str, faults: list[str]) -> str:
        if value not in allowed:
            _fault(faults, at, value, f"one of {', '.join(sorted(allowed))}", allowed)
        return str(value)

    return check


def _choices(allowed: Sequence[str], wanted: str) -> Check:
    def check(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
        chosen = _strings(value, at, faults, wanted)
        for place, item in chosen:
            if item not in allowed:
                _fault(faults, place, item, f"one of {', '.join(sorted(allowed))}", allowed)
        return tuple(dict.fromkeys(item for _, item in chosen))

    return check


def _cuda_archs(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    chosen = _strings(value, at, faults, "compute capabilities")
    for place, item in chosen:
        if not re.fullmatch(r"[1-9][0-9]{1,2}[af]?", item):
            _fault(faults, place, item, "a compute capability without a dot, such as 80 or 90a")
    if not chosen and value == []:
        _fault(faults, at, value, "at least one compute capability")
    return tuple(dict.fromkeys(item for _, item in chosen))


def _leftovers(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    chosen = _strings(value, at, faults, "names")
    for place, item in chosen:
        if not re.fullmatch(r"[A-Za-z_]\w*|[\w./+-]+\.\w+", item):
            _fault(faults, place, item, "a whole name such as cudaGraphConditionalHandleCreate, or a header's")
    return tuple(dict.fromkeys(item for _, item in chosen))


def _variable(value: object, at: str, faults: list[str]) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        _fault(faults, at, value, "the name of an environment variable")
    elif value == TORCH_ARCH_ENV:
        _fault(faults, at, value, "a variable of the project's own: this one is read last, after pyproject.toml")
    return str(value)


def _range(text: str) -> bool:
    """Whether a text is a range of versions (PEP 440)."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # only ranges need it

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _torch_range(value: object, at: str, faults: list[str]) -> str | None:
    if not isinstance(value, str) or not _range(f"=={text}" if (text := value.strip())[:1].isdigit() else text):
        _fault(faults, at, value, "a version of torch such as 2.13.0, or a range such as >=2.10")
        return None
    return text


def _torch_ranges(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    found = [_torch_range(item, place, faults) for place, item in _strings(value, at, faults, "versions of torch")]
    return tuple(dict.fromkeys(item for item in found if item))


def _toolchains(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    found = [_toolchain(item, place, faults) for place, item in _strings(value, at, faults, "toolchains")]
    return tuple(dict.fromkeys(item for item in found if item))


def _matrix(value: object, at: str, faults: list[str]) -> Matrix:
    if not isinstance(value, dict):
        _fault(faults, at, value, f"a table; write [{at}]")
        return Matrix()
    before = len(faults)
    fields = _table_fields(value, at, faults, MATRIX_OPTIONS)
    return Matrix() if len(faults) > before else Matrix(**fields)


def _toolchain(value: object, at: str, faults: list[str]) -> str | None:
    wanted = "the name of a toolchain or a version range such as >=6.4"
    if not isinstance(value, str):
        _fault(faults, at, value, wanted)
        return None
    text = value.strip()
    if re.fullmatch(r"[0-9][0-9.]*", text):
        _fault(faults, at, value, f"{wanted}; for one version write =={text} or =={text}.*")
    elif text[:1] in ("<", ">", "=", "!", "~"):
        if not _range(text):
            _fault(faults, at, value, wanted)
    elif not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", text):
        _fault(faults, at, value, wanted)
    return text


def _folder(value: object, at: str, faults: list[str]) -> str:
    if not isinstance(value, str) or "\0" in value or value.startswith("~"):
        _fault(faults, at, value, "a folder, absolute or relative to the project (`~` is not expanded)")
    return str(value)


def _inside(wanted: str, *, whole: bool) -> Check:
    """A list of paths relative to the project and inside it; whole: the project's folder itself (`.`) is one."""

    def check(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
        good = []
        for place, item in _strings(value, at, faults, wanted):
            path = PurePosixPath(item)
            if path.is_absolute():
                _fault(faults, place, item, "a path relative to the project's folder")
            elif ".." in path.parts:
                _fault(faults, place, item, "a path inside the project, without `..`")
            elif str(path) == "." and not whole:
                _fault(faults, place, item, "a pattern that names files")
            else:
                good.append(str(path))
        return tuple(dict.fromkeys(good))

    return check


def _sources(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    if value == []:
        _fault(faults, at, value, "at least one pattern")
    return cast(tuple[str, ...], _inside("patterns", whole=False)(value, at, faults))


def _module(value: object, at: str, faults: list[str]) -> str:
    wanted = 'a dotted module path inside a package, such as "package.lib.kernels"'
    parts = value.split(".") if isinstance(value, str) else []
    good = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) and not keyword.iskeyword(part) for part in parts)
    if len(parts) < 2 or not good:
        _fault(faults, at, value, wanted)
    return str(value)


def _defines(value: object, at: str, faults: list[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        _fault(faults, at, value, 'a table such as { NAME = "1" }')
        return ()
    good = []
    for name, text in value.items():
        place = f"{at}.{_key(name)}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            faults.append(f"{place}: not the name of a macro")
        elif name.startswith("ROCMBUILD_"):
            faults.append(f"{place}: names that start with ROCMBUILD_ are set by rocmbuild")
        elif isinstance(text, bool) or not isinstance(text, str | int) or not str(text).isprintable():
            _fault(faults, place, text, "a string on one line or a whole number")
        else:
            good.append((name, str(text)))
    return tuple(good)


def _words(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    words = _strings(value, at, faults, "compiler words")
    faults += [f"{place}: a line break in a compiler word" for place, word in words if "\n" in word]
    faults += [
        f"{at}: {reason}; targets and wave width are rocmbuild's to set" for reason in smuggled([w for _, w in words])
    ]
    return tuple(word for _, word in words)


def _targets(value: object, at: str, faults: list[str]) -> str:
    """The value of targets as one text of the grammar; what its words mean is looked at by _find_targets."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _fault(faults, at, value, "a list of targets")
        return ""
    for place, item in enumerate(value):
        if not isinstance(item, str):
            _fault(faults, f"{at}[{place}]", item, "a target, as a string")
    return ";".join(item for item in value if isinstance(item, str))


def _extensions(value: object, at: str, faults: list[str]) -> tuple[Extension, ...]:
    made = []
    seen: dict[str, str] = {}
    before = len(faults)
    for here, fields in _tables(value, at, faults, EXTENSION_OPTIONS):
        name = fields.get("name")
        if isinstance(name, str):
            if name in seen:
                faults.append(f"{here}.name: {shown(name)} is the name of {seen[name]} already")
            seen.setdefault(name, here)
        if len(faults) == before:
            made.append(Extension(**fields))
    return tuple(made)


def _tables(value: object, at: str, faults: list[str], options: Sequence[Option]) -> list[tuple[str, dict[str, Any]]]:
    """(dotted name, checked fields) of an array of tables."""
    if not isinstance(value, list):
        _fault(faults, at, value, f"an array of tables; write [[{at}]]")
        return []
    made = []
    for place, table in enumerate(value):
        here = f"{at}[{place}]"
        if isinstance(table, dict):
            made.append((here, _table_fields(table, here, faults, options)))
        else:
            _fault(faults, here, table, f"a table; write [[{at}]]")
    return made


def _table_fields(table: Mapping[str, object], at: str, faults: list[str], options: Sequence[Option]) -> dict[str, Any]:
    """The checked values of a table that are there, by field."""
    _unknown_keys(table, options, at, faults)
    fields: dict[str, Any] = {}
    for option in options:
        if option.name in table:
            fields[option.field] = option.check(table[option.name], f"{at}.{option.name}", faults)
        elif option.required:
            faults.append(f"{at}.{option.name}: missing; wanted {option.help}")
    return fields


def _audit_rules(value: object, at: str, faults: list[str]) -> tuple[AuditRule, ...]:
    if not isinstance(value, dict):
        _fault(faults, at, value, f"a table; write [{at}]")
        return ()
    rules = []
    before = len(faults)
    if "rules" in value:
        rules = _tables(value["rules"], f"{at}.rules", faults, RULE_OPTIONS)
    own = {key: item for key, item in value.items() if key != "rules"}
    fields = _table_fields(own, at, faults, LIMIT_OPTIONS)
    for place, found in rules:
        if set(found) <= {"kernels", "targets"}:
            faults.append(f"{place}: limits nothing; wanted one of {', '.join(sorted(o.name for o in LIMIT_OPTIONS))}")
    if len(faults) > before:
        return ()
    return (
        *([AuditRule(at=at, **fields)] if fields else []),
        *(AuditRule(at=place, **found) for place, found in rules),
    )


def _kernels(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    if value == []:
        _fault(faults, at, value, "at least one pattern")
    return tuple(item for _, item in _strings([value] if isinstance(value, str) else value, at, faults, "patterns"))


def _target_patterns(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    """Targets, families and glob patterns such as gfx12*, families spelt out."""
    found: list[str] = []
    for place, item in _strings([value] if isinstance(value, str) else value, at, faults, "targets"):
        word = item.strip().lower()
        if word in FAMILIES:
            found += FAMILIES[word]
        elif re.fullmatch(r"gfx[0-9a-f*?\[\]-]+(?:-generic)?(?::[a-z]+[+-])*\*?", word):
            found.append(word)
        else:
            _fault(faults, place, item, "a target, a family or a pattern such as gfx12*", [*DECLARED, *FAMILIES])
    return tuple(dict.fromkeys(found))


def _wave(value: object, at: str, faults: list[str]) -> int | None:
    if value not in (32, 64) or isinstance(value, bool):
        _fault(faults, at, value, "32 or 64")
        return None
    return int(str(value))


def _instructions(value: object, at: str, faults: list[str]) -> tuple[str, ...]:
    found = _strings([value] if isinstance(value, str) else value, at, faults, "instructions")
    for place, item in found:
        if not re.fullmatch(r"[a-z0-9_*?\[\]!-]+", item):
            _fault(faults, place, item, "the name of an instruction or a pattern, such as v_dot4_i32_iu8 or v_*_f64*")
    return tuple(item for _, item in found)


# The options

_FLAG = {"type": "boolean"}
_WORDS = {"type": "array", "items": {"type": "string"}}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}}
_TOOLCHAIN = {"type": "string", "not": {"pattern": r"^\s*[0-9][0-9.]*\s*$"}}
_COUNT = {"type": "integer", "minimum": 1}
_ONE_OR_MORE = {"anyOf": [{"type": "string", "minLength": 1}, _NAMES]}


def _one_of(*words: str) -> dict[str, Any]:
    return {"enum": list(words)}


def _some_of(*words: str) -> dict[str, Any]:
    return {"type": "array", "items": _one_of(*words)}


def _object(options: Sequence[Option], **tables: object) -> dict[str, Any]:
    """The schema of a table of options, and of the tables in it by their key; no other key may stand in it."""
    shown = [option for option in options if option.in_pyproject]
    properties = {}
    for option in shown:
        default = list(option.default) if isinstance(option.default, tuple) else option.default
        plain = isinstance(default, bool | str) or (isinstance(default, list) and default)
        about = {"description": option.help, **({"default": default} if plain else {})}
        properties[option.name] = {**about, **option.schema}
    needed = [option.name for option in shown if option.required]
    return {
        "type": "object",
        "properties": {**properties, **tables},
        **({"required": needed} if needed else {}),
        "additionalProperties": False,
    }


RULE_OPTIONS: tuple[Option, ...] = (
    Option(
        name="kernels",
        check=_kernels,
        schema={"anyOf": [{"type": "string", "minLength": 1}, {**_NAMES, "minItems": 1}]},
        required=True,
        help="patterns of kernel names, such as gguf::mul_mat*",
    ),
    Option(
        name="targets",
        check=_target_patterns,
        schema=_ONE_OR_MORE,
        default=(),
        help="the targets that the rule is about",
    ),
    Option(
        name="allow-targets",
        check=_target_patterns,
        schema=_ONE_OR_MORE,
        default=(),
        help="the only targets that may be there",
    ),
    Option(name="wave", check=_wave, schema={"enum": [32, 64]}, help="the width of a wave, 32 or 64"),
    Option(name="spills", check=_flag, schema=_FLAG, default=True, help="whether registers may spill"),
    Option(name="scratch", check=_flag, schema=_FLAG, default=True, help="whether scratch memory may be used"),
    Option(name="max-vgprs", check=_count, schema=_COUNT, help="the most VGPRs of a lane"),
    Option(name="min-occupancy", check=_count, schema=_COUNT, help="the fewest waves that fit on a SIMD"),
    Option(
        name="require",
        check=_instructions,
        schema=_ONE_OR_MORE,
        default=(),
        help="instructions of which each must occur",
    ),
    Option(
        name="forbid",
        check=_instructions,
        schema=_ONE_OR_MORE,
        default=(),
        help="instructions that must not occur",
    ),
)

LIMIT_OPTIONS = tuple(option for option in RULE_OPTIONS if option.name not in ("kernels", "targets"))
"""Those that limit: what [tool.rocmbuild.audit] itself may hold, for all kernels."""

EXTENSION_OPTIONS: tuple[Option, ...] = (
    Option(
        name="name",
        check=_module,
        schema={"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"},
        required=True,
        help="the dotted module path of the library inside the wheel",
    ),
    Option(
        name="sources",
        check=_sources,
        schema={"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1, "pattern": "^[^/]"}},
        required=True,
        help="patterns of source files, relative to the project",
    ),
    Option(
        name="include-dirs",
        check=_inside("folders", whole=True),
        schema={"type": "array", "items": {"type": "string", "minLength": 1, "pattern": "^[^/]"}},
        default=(),
        help="folders of headers, relative to the project",
    ),
    Option(
        name="defines",
        check=_defines,
        schema={
            "type": "object",
            "propertyNames": {"pattern": "^(?!ROCMBUILD_)[A-Za-z_][A-Za-z0-9_]*$"},
            "additionalProperties": {"type": ["string", "integer"]},
        },
        default=(),
        help='macros, { NAME = "value" }',
    ),
    Option(
        name="torch",
        check=_choice(TORCH_MODES),
        schema=_one_of(*TORCH_MODES),
        default="stable",
        help="what of torch the sources include: stable (its C ABI), full (experimental), none",
    ),
    Option(name="cxx-flags", check=_words, schema=_NAMES, default=(), help="words for every compilation of host code"),
    Option(
        name="device-flags", check=_words, schema=_NAMES, default=(), help="words for every compilation of device code"
    ),
    Option(name="link-flags", check=_words, schema=_NAMES, default=(), help="words for every link"),
)

MATRIX_OPTIONS: tuple[Option, ...] = (
    Option(
        name="torch",
        check=_torch_ranges,
        schema=_NAMES,
        default=(),
        shown_default="torch-sdk",
        help="the versions of torch to build for, each in a job of its own",
    ),
    Option(
        name="toolchains",
        check=_toolchains,
        schema={"type": "array", "items": {**_TOOLCHAIN, "minLength": 1}},
        default=(),
        shown_default="toolchain",
        help="the toolchains to build with, each in a job of its own",
    ),
)

OPTIONS: tuple[Option, ...] = (
    Option(
        name="targets",
        check=_targets,
        schema={"anyOf": [{"type": "string"}, _WORDS]},
        setting="words",
        shown_default=TORCH_ARCH_ENV,
        help="GPU targets, families, generic targets or native",
    ),
    Option(
        name="arch-env",
        check=_variable,
        schema={"type": "string", "pattern": r"^\s*$|^[A-Za-z_][A-Za-z0-9_]*$", "not": {"const": TORCH_ARCH_ENV}},
        default=ARCH_ENV,
        help="the environment variable that names the targets",
    ),
    Option(
        name="toolchain",
        check=_toolchain,
        schema=_TOOLCHAIN,
        setting="word",
        shown_default="the first good one",
        help="the name of a toolchain, or a range of ROCm versions",
    ),
    Option(
        name="torch-sdk",
        check=_torch_range,
        schema={"type": "string"},
        setting="word",
        shown_default="the newest one",
        help="the release of torch whose headers are used: a version or a range",
    ),
    Option(
        name="auto-install",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        default=False,
        help="whether a build may install a missing toolchain or torch SDK",
    ),
    Option(
        name="platforms",
        check=_choices(PLATFORMS, "platforms"),
        schema=_some_of(*PLATFORMS),
        setting="words",
        default=("rocm",),
        help="what each extension is built for: rocm, host, cuda",
    ),
    Option(
        name="cuda-archs",
        check=_cuda_archs,
        schema={"type": "array", "items": {"type": "string", "pattern": "^[1-9][0-9]{1,2}[af]?$"}},
        setting="words",
        default=("80", "90"),
        help="compute capabilities of the platform cuda, such as 90a",
    ),
    Option(
        name="hipify-engine",
        check=_choice(HIPIFY_ENGINES),
        schema=_one_of("", *HIPIFY_ENGINES),
        setting="word",
        default="auto",
        help="whose tables HIPify goes by: torch, hipify_torch, or auto for hipify_torch where it is installed",
    ),
    Option(
        name="hipify-allow",
        check=_leftovers,
        schema=_NAMES,
        default=(),
        help="CUDA names and headers that may be left over, each by its whole name",
    ),
    Option(
        name="allow-native",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        default=False,
        help="whether a wheel may be built for native, the cards of this machine",
    ),
    Option(
        name="build-dir",
        check=_folder,
        schema={"type": "string", "pattern": "^($|[^~])"},
        setting="word",
        shown_default="a folder in the user's cache",
        help="where objects and records are kept; a relative one is relative to the project",
    ),
    Option(
        name="launcher",
        check=_choice(LAUNCHERS),
        schema=_one_of("", *LAUNCHERS),
        setting="word",
        variable="ROCMBUILD_LAUNCHER",
        default="none",
        help="a compiler cache that runs the compilers: ccache or sccache",
    ),
    Option(
        name="local-version",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        default=False,
        help="whether the wheel's version tells ROCm and targets, as in 1.0+rocm7.2.gfx120x",
    ),
    Option(
        name="variant",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        default=False,
        help="whether the wheel is a variant (PEP 817, a draft) with its targets in the namespace amd",
    ),
    Option(
        name="editable-rebuild",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        variable="ROCMBUILD_EDITABLE_REBUILD",
        default=True,
        help="whether importing an editable install builds anew what was edited",
    ),
    Option(
        name="jobs",
        check=_count,
        schema=_COUNT,
        setting="count",
        variable="MAX_JOBS",
        in_pyproject=False,
        shown_default="as processors and memory allow",
        help="how many commands run at once",
    ),
    Option(
        name="verbose",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        in_pyproject=False,
        default=False,
        help="whether commands are shown",
    ),
    Option(
        name="debug",
        check=_flag,
        schema=_FLAG,
        setting="flag",
        in_pyproject=False,
        default=False,
        help="whether to keep symbols and optimise less",
    ),
    Option(
        name="extensions",
        check=_extensions,
        schema={"type": "array", "items": _object(EXTENSION_OPTIONS)},
        default=(),
        shown_default="none: the project keeps its own setup.py",
        help="the libraries to build, one table each",
    ),
    Option(
        name="audit",
        check=_audit_rules,
        schema=_object(
            LIMIT_OPTIONS,
            rules={"type": "array", "items": _object(RULE_OPTIONS), "description": "limits for some kernels"},
        ),
        default=(),
        shown_default="no limits but the targets and 32 lanes",
        help="what kernels must be like, for all of them; `rules` for some",
    ),
    Option(
        name="matrix",
        check=_matrix,
        schema=_object(MATRIX_OPTIONS),
        default=Matrix(),
        shown_default="one job for each target",
        help="what `rocmbuild matrix` lists beside the targets",
    ),
)


def pyproject_schema() -> dict[str, Any]:
    """The JSON schema of the table [tool.rocmbuild], without its head."""
    return _object(OPTIONS)


def reference() -> str:
    """The tables of options as Markdown, for documentation."""
    lines = []
    for prefix, options in (
        ("tool.rocmbuild.", OPTIONS),
        ("tool.rocmbuild.extensions[].", EXTENSION_OPTIONS),
        ("tool.rocmbuild.audit.rules[].", RULE_OPTIONS),
        ("tool.rocmbuild.matrix.", MATRIX_OPTIONS),
    ):
        lines += [
            "| option | in pyproject.toml | as `-C` | variable | default | what it is |",
            "|---|---|---|---|---|---|",
        ]
        for option in options:
            in_pyproject, as_setting = ("yes" if there else "" for there in (option.in_pyproject, option.setting))
            variable = f"`{option.variable}`" if option.variable else ""
            row = (f"`{prefix}{option.name}`", in_pyproject, as_setting, variable, _default_text(option), option.help)
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines)


def _default_text(option: Option) -> str:
    if option.required:
        return "required"
    if option.shown_default:
        return option.shown_default
    return "none" if option.default == () else f"`{shown(option.default)}`"


# Reading


def load_config(
    project: Path,
    *,
    settings: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str],
    want_targets: bool | None = True,
) -> Config:
    """The configuration of the project in a folder.

    settings: config settings as PEP 517 front ends pass them: text, a list of texts where a key came more than once,
    or a bool. want_targets=False leaves targets None without a look at them, for what needs none (an sdist); None looks
    at them only where the version of the wheel tells them (local-version), for its metadata. Without
    [tool.rocmbuild] all is default, and there are no extensions. Raises one InputError that names every fault, and
    EnvironmentFailure elsewhere than on Linux on x86-64.
    """
    check_platform(platform.system(), platform.machine())
    if not project.is_dir():
        raise InputError(f"{project}: not a folder", hint="name the folder that holds pyproject.toml")
    place = project.resolve()
    reader = _Reader(_tool_table(place / "pyproject.toml"), settings or {}, environ)
    values = {option.name: reader.value(option) for option in OPTIONS if option.name != "targets"}
    build_dir = _build_dir(place, values["build-dir"], reader)
    wanted = values["local-version"] if want_targets is None else want_targets
    targets = _find_targets(reader, environ, values) if wanted else None
    if reader.faults:
        raise InputError(f"configuration of {place}: {joined(reader.faults)}", hint=reader.hint)
    return Config(
        project=place,
        targets=targets,
        build_dir=build_dir,
        sources=MappingProxyType(reader.sources),
        warnings=tuple(reader.warnings),
        overridden=MappingProxyType({name: tuple(lost) for name, lost in reader.lost.items()}),
        settings=tuple(sorted((name, _as_text(value)) for name, value in reader.settings.items())),
        **{option.field: values[option.name] for option in OPTIONS if option.name not in ("targets", "build-dir")},
    )


def _tool_table(path: Path) -> object:
    """What stands under tool.rocmbuild in a pyproject.toml, whatever it is; {} where nothing does."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        data = path.read_bytes()
    except FileNotFoundError as err:
        raise InputError(f"{path}: no such file", hint="name a folder that holds a pyproject.toml") from err
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        raise InputError(f"{path}:{line}: not UTF-8, which TOML must be", hint="save the file as UTF-8") from err
    except ValueError as err:  # TOMLDecodeError is one; a number with thousands of digits raises another
        place = re.search(r" \(at line (\d+), column (\d+)\)", str(err))
        line = int(place[1]) if place else data.count(b"\n") + 1
        text = str(err).replace(place[0], f", column {place[2]}") if place else str(err)
        raise InputError(f"{path}:{line}: not valid TOML: {printable(text, limit=200)}") from err
    except RecursionError as err:
        raise InputError(f"{path}: not valid TOML: nested too deeply") from err
    tool = document.get("tool", {})
    if not isinstance(tool, dict):
        raise InputError(f"{path}: tool: found {shown(tool)}, wanted a table")
    return tool.get("rocmbuild", {})


class _Reader:
    """Takes for each option the value that wins; collects faults, warnings and where values come from."""

    def __init__(self, table: object, settings: Mapping[str, Setting], environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.lost: dict[str, list[Overridden]] = {}
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self.sources: dict[str, str] = {}
        self.refused: set[str] = set()
        self.hint = ""
        self.table: dict[str, object] = {}
        if isinstance(table, dict):
            self.table = table
        else:
            _fault(self.faults, "tool.rocmbuild", table, "a table")
        _unknown_keys(self.table, OPTIONS, "tool.rocmbuild", self.faults)
        self.settings = self._read_settings(settings)

    def _read_settings(self, settings: Mapping[str, Setting]) -> dict[str, object]:
        """Each setting as TOML would give its value; those without a word are not there."""
        known = {option.name: option for option in OPTIONS if option.setting}
        read: dict[str, object] = {}
        for name, given in settings.items():
            at = f"-C {printable(name)}"
            if name not in known:
                near = nearest(name, known)
                elsewhere = any(option.name == name for option in OPTIONS)
                advice = "stands in pyproject.toml only" if elsewhere else f"no such setting{_or(near)}"
                self.faults.append(f"{at}: {advice}")
                continue
            kind = known[name].setting
            if isinstance(given, bool):
                read[name] = given
                continue
            texts = [given] if isinstance(given, str) else given
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                _fault(self.faults, at, texts, "text")
            elif kind == "words":
                if words := [word for text in texts for word in tokens(text)]:
                    read[name] = words
            elif len(different := list(dict.fromkeys(text.strip() for text in texts))) > 1:
                self.faults.append(f"{at}: given {len(texts)} times with different values: {shown(different)}")
            elif different and different[0]:
                read[name] = _from_text(different[0], kind)
            elif kind == "flag":
                self.warnings.append(f"{at} has no value and counts as unset; write {name}=true")
        return read

    def value(self, option: Option) -> Any:
        """The checked value of an option that is not targets."""
        name = option.name
        places: list[tuple[str, str, object]] = []
        if name in self.settings:
            places.append((f"-C {name}", f"-C {name}", self.settings[name]))
        if option.variable and (text := self.environ.get(option.variable, "").strip()):
            places.append((option.variable, option.variable, _from_text(text, option.setting)))
        if option.in_pyproject and _says_something(self.table.get(name)):
            places.append(("pyproject.toml", f"tool.rocmbuild.{name}", self.table[name]))
        if not places:
            self.sources[name] = "default"
            return option.default
        self.sources[name], at, value = places[0]
        for place in places[1:]:
            if place[2] != value:
                self.overridden(name, place[1], place[2])
        before = len(self.faults)
        checked = option.check(value, at, self.faults)
        if len(self.faults) > before:
            self.refused.add(name)
            return option.default
        return checked

    def overridden(self, name: str, at: str, value: object) -> None:
        self.warnings.append(f"{at} = {shown(value)} is overridden by {self.sources[name]}")
        self.lost.setdefault(name, []).append(Overridden(at=at, value=shown(value)))


def _find_targets(reader: _Reader, environ: Mapping[str, str], values: Mapping[str, Any]) -> TargetSet | None:
    """The targets by their own precedence; the values that lose are named in a warning and not looked at."""
    arch_env = values["arch-env"]
    places: list[tuple[str, str, object]] = []
    if "targets" in reader.settings:
        places.append(("-C targets", "-C targets", reader.settings["targets"]))
    if "arch-env" not in reader.refused and tokens(environ.get(arch_env, "")):
        places.append((arch_env, arch_env, environ[arch_env]))
    if _says_something(reader.table.get("targets")):
        places.append(("pyproject.toml", "tool.rocmbuild.targets", reader.table["targets"]))
    # only device code for AMD has targets, so that a preset variable stops no other build
    if "rocm" in values["platforms"] and tokens(environ.get(TORCH_ARCH_ENV, "")):
        places.append((TORCH_ARCH_ENV, TORCH_ARCH_ENV, environ[TORCH_ARCH_ENV]))
    if arch_env != ARCH_ENV and tokens(environ.get(ARCH_ENV, "")):
        reader.warnings.append(f"{ARCH_ENV} is set, but this project reads {arch_env}")
    if not places:
        reader.sources["targets"] = "default"
        return None

    source, at, value = places[0]
    reader.sources["targets"] = source
    for _, other_at, other in places[1:]:
        if not _same_words(value, other):
            reader.overridden("targets", other_at, other)
    before = len(reader.faults)
    text = _targets(value, at, reader.faults)
    if len(reader.faults) > before:
        return None
    scan = scan_targets(text, allow_native=values["allow-native"])
    if scan.faults:
        reader.faults += [f"{at}: {fault}" for fault in scan.faults]
        reader.hint = (
            f"set {arch_env}, which goes before {TORCH_ARCH_ENV}, to the targets that the wheel is for"
            if source == TORCH_ARCH_ENV
            else "`rocmbuild targets` lists every name that can be written"
        )
        return None
    return TargetSet(names=scan.names, source=source)


def _build_dir(place: Path, given: str | None, reader: _Reader) -> Path:
    """The build folder, absolute. Nothing is built in the project's own folder or in one around it."""
    if given is None:
        return default_build_dir(place)
    path = Path(os.path.realpath(place / given))
    if path == place or path in place.parents:
        at = "-C build-dir" if reader.sources["build-dir"] == "-C build-dir" else "tool.rocmbuild.build-dir"
        _fault(reader.faults, at, given, "a folder that does not hold the project itself")
    return path


_FLAG_TEXTS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _from_text(text: str, kind: str) -> object:
    """What TOML would give for the text of a setting; text that says no such thing stays, for the check to refuse."""
    if kind == "flag":
        return _FLAG_TEXTS.get(text.lower(), text)
    if kind == "count" and re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    return text


def _as_text(value: object) -> str:
    """A setting as the text that gives it again."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)


def _says_something(value: object) -> bool:
    """Whether a value of pyproject.toml is set: not absent, and a text or a list with at least one word."""
    if isinstance(value, str):
        return bool(tokens(value))
    if isinstance(value, list):
        return any(_says_something(item) for item in value)
    return value is not None


def _same_words(one: object, other: object) -> bool:
    """Whether two values of targets are the same words; their meaning is not looked at."""

    def words(value: object) -> object:
        parts = value if isinstance(value, list) else [value]
        return [word.lower() for part in parts for word in tokens(str(part))]

    return words(one) == words(other)


def _unknown_keys(table: Mapping[str, object], options: Sequence[Option], at: str, faults: list[str]) -> None:
    names = [option.name for option in options if option.in_pyproject]
    for key in table:
        if key in names:
            continue
        if any(option.name == key for option in options):
            faults.append(f"{at}.{_key(key)}: is given as `-C {key}=...` only")
        else:
            faults.append(f"{at}.{_key(key)}: no such key{_or(nearest(key, names))}")


def _or(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _key(name: str) -> str:
    """A key as TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{printable(name)}"'
