"""What a wheel is called: its tag by what its libraries import, its local version and its variant by what it is for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.targets import FAMILIES, GENERIC

__all__ = ["Imports", "Variant", "local_version", "make_variant", "read_imports", "short_targets", "wheel_tag"]

LINUX = "linux_x86_64"
OLDEST_PYTHON = (3, 10)
_PYTHON_SYMBOL = re.compile(r"_?Py(?:_|[A-Z])\w*")
_TORCH = re.compile(r"lib(?:torch|torch_\w+|c10|c10_\w+)\.so")
_LOADER = re.compile(r"ld-linux-x86-64\.so\.\d+")  # glibc's own, which loads the rest
_SHORT = ("gfx110x", "gfx115x", "gfx120x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What a library takes from others.

    python: the symbols of the interpreter. versions: the versions of symbols by their family ("GLIBC" -> {"2.17"}).
    needed: the libraries it names. name: its own (SONAME), or "".
    """

    python: frozenset[str]
    versions: Mapping[str, frozenset[str]]
    needed: frozenset[str]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A wheel variant (PEP 817): the label of its file name and the text of variant.json."""

    label: str
    metadata: bytes


def read_imports(path: Path) -> Imports:
    """What an ELF library imports."""
    from elftools.elf.dynamic import DynamicSection  # late, here and below: a build that changes nothing needs none
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        undefined: set[str] = set()
        if isinstance(symbols, SymbolTableSection):
            undefined = {symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF"}
        versions: dict[str, set[str]] = {}
        needed: set[str] = set()
        name = ""
        for section in elf.iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, auxiliaries in section.iter_versions():
                    for auxiliary in auxiliaries:
                        family, _, number = auxiliary.name.partition("_")
                        versions.setdefault(family, set()).add(number)
            elif isinstance(section, DynamicSection):
                tags: list[Any] = list(section.iter_tags())
                needed |= {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
                name = next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), name)
    return Imports(
        python=frozenset(name for name in undefined if _PYTHON_SYMBOL.fullmatch(name)),
        versions={family: frozenset(numbers) for family, numbers in versions.items()},
        needed=frozenset(needed),
        name=name,
    )


def wheel_tag(libraries: Sequence[Imports], *, own: str | None = None) -> str:
    """The tag of a wheel with these libraries.

    `py3-none` where none imports a symbol of the interpreter, `cp3X-abi3` where all that are imported belong to the
    limited API of 3.X, else `own`, an interpreter's and its ABI's tag (default: this interpreter's). The platform is
    the oldest manylinux policy that has every symbol version and every library; the libraries of the wheel itself are
    no matter, nor are torch's, which come with torch. `linux_x86_64` where there is no such policy.
    """
    python = {name for library in libraries for name in library.python}
    front = "py3-none"
    if python:
        since = _limited_api(python)
        front = f"cp{since[0]}{since[1]}-abi3" if since else own or _own_tag()
    return f"{front}-{_platform(libraries)}"


def _limited_api(symbols: Iterable[str]) -> tuple[int, int] | None:
    """The release since which all symbols are in the limited API, at least the oldest Python here; None: not all are.

    The table is abi3info's, made from CPython's own.
    """
    from abi3info import DATAS, FUNCTIONS
    from abi3info.models import Symbol

    since = OLDEST_PYTHON
    for name in symbols:
        known = FUNCTIONS.get(Symbol(name)) or DATAS.get(Symbol(name))
        if known is None:
            return None
        since = max(since, (known.added.major, known.added.minor))
    return since


def _own_tag() -> str:
    from packaging.tags import sys_tags

    tag = next(iter(sys_tags()))
    return f"{tag.interpreter}-{tag.abi}"


def _platform(libraries: Sequence[Imports]) -> str:
    """The manylinux policy, from auditwheel's table of them."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    own = {library.name for library in libraries}
    needed = {name for library in libraries for name in library.needed if name not in own}
    outside = {name for name in needed if not _TORCH.fullmatch(name) and not _LOADER.fullmatch(name)}
    versions: dict[str, set[str]] = {}
    for library in libraries:
        for family, numbers in library.versions.items():
            versions.setdefault(family, set()).update(numbers)
    for policy in reversed(list(WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64))):  # the oldest first
        held = policy.symbol_versions
        there = all(numbers <= held[family] for family, numbers in versions.items() if family in held)
        if policy.name != LINUX and outside <= policy.whitelist and there:
            return str(policy.name)
    return LINUX


# What it is for


def short_targets(names: Sequence[str]) -> tuple[str, ...]:
    """The names with whole families by their short name: gfx1200, gfx1201 -> gfx120x."""
    found: list[str] = []
    for name in names:
        family = next((one for one in _SHORT if name in FAMILIES[one] and set(FAMILIES[one]) <= set(names)), name)
        found.append(family)
    return tuple(dict.fromkeys(found))


def local_version(*, hip: str, targets: Sequence[str]) -> str:
    """The local part of a version (PEP 440) for ROCm `hip` (major.minor...) and targets: rocm7.2.gfx120x."""
    words = [name.replace("-", "") for name in short_targets(targets)]
    return ".".join([f"rocm{'.'.join(hip.split('.')[:2])}", *words])


def make_variant(targets: Sequence[str]) -> Variant:
    """The variant of a wheel for these targets, in the namespace `amd`, whose provider is rocm-bootstrap.

    A generic target stands for the cards that run it. The label is the short targets, or where these are long the first
    eight digits of the digest that PEP 817's tools take by default.
    """
    cards = sorted({card for name in targets for card in GENERIC.get(name, (name,))})
    label = "_".join(short_targets(cards))
    if len(label) > 16:
        label = hashlib.sha256("".join(f"amd :: gfx_arch :: {card}\n" for card in cards).encode()).hexdigest()[:8]
    provider = {"requires": ["rocm-bootstrap"], "plugin-api": "rocm_bootstrap.variant_provider:AMDVariantPlugin"}
    value = {
        "$schema": "https://variants-schema.wheelnext.dev/v0.2.0.json",
        "default-priorities": {"namespace": ["amd"]},
        "providers": {"amd": provider},
        "variants": {label: {"amd": {"gfx_arch": cards}}},
    }
    return Variant(label=label, metadata=(json.dumps(value, indent=2) + "\n").encode())
