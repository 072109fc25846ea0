"""Libraries to link against, made from the names of the real ones: same SONAME, symbols and versions, no code.

A program that links against such a stub is, byte for byte, linked as against the real library; nothing of what the
real one needs (HSA, drivers, a newer glibc) has to be there. Whoever runs it without the real library is told so.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import run

__all__ = ["MARK", "Symbol", "exported", "is_stub", "needed_from", "write_stub"]

MARK = "rocmbuild_link_stub"
"""The symbol that every stub has and no real library."""

_HIDDEN = 0x8000  # in .gnu.version: not the default version of its name
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1  # SHN_UNDEF, SHN_ABS
_LOCAL, _WEAK = 0, 2  # STB_LOCAL, STB_WEAK
_DATA = (1, 5)  # STT_OBJECT, STT_COMMON


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A dynamic symbol. version: "" where the library has none. size: of data; 0 for functions."""

    name: str
    version: str = ""
    default: bool = True
    weak: bool = False
    data: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    """An entry of .dynsym. index: its entry in .gnu.version, 1 where the file has none."""

    name: str
    info: int
    section: int
    size: int
    index: int
    version: str


def _symbols(path: Path) -> Iterable[_Raw]:
    """Each named dynamic symbol of a file, read by hand: a compiler's library has tens of thousands of them."""
    from elftools.elf.elffile import ELFFile  # cold start: installs alone

    with path.open("rb") as file:
        elf = ELFFile(file)
        table: Any = elf.get_section_by_name(".dynsym")
        if table is None:
            raise EnvironmentFailure(f"{path}: has no dynamic symbols")
        names: dict[int, str] = {}
        defined: Any = elf.get_section_by_name(".gnu.version_d")
        for definition, words in defined.iter_versions() if defined is not None else ():
            if not definition["vd_flags"] & 1:  # VER_FLG_BASE: the file's own name
                names[definition["vd_ndx"]] = next(iter(words)).name
        needed: Any = elf.get_section_by_name(".gnu.version_r")
        for _, words in needed.iter_versions() if needed is not None else ():
            names.update({word["vna_other"]: word.name for word in words})
        versions: Any = elf.get_section_by_name(".gnu.version")
        indices = [index for (index,) in struct.iter_unpack("<H", versions.data())] if versions is not None else []
        strings = elf.get_section(table["sh_link"]).data()
        entries = struct.iter_unpack("<IBBHQQ", table.data())
    for place, (name, info, _, section, _, size) in enumerate(entries):
        if name:
            text = strings[name : strings.index(b"\0", name)].decode("utf-8", "surrogateescape")
            index = indices[place] if indices else 1
            yield _Raw(
                name=text, info=info, section=section, size=size, index=index, version=names.get(index & ~_HIDDEN, "")
            )


def exported(path: Path) -> tuple[Symbol, ...]:
    """What a library offers, by name."""
    found = []
    for symbol in _symbols(path):
        kind, binding = symbol.info & 15, symbol.info >> 4
        if symbol.section in (_UNDEFINED, _ABSOLUTE) or binding == _LOCAL or symbol.name == MARK:
            continue
        data = kind in _DATA
        found.append(
            Symbol(
                name=symbol.name,
                version=symbol.version,
                default=not symbol.index & _HIDDEN,
                weak=binding == _WEAK,
                data=data,
                size=symbol.size if data else 0,
            )
        )
    return tuple(sorted(found, key=lambda symbol: (symbol.name, symbol.version)))


def needed_from(paths: Iterable[Path], pattern: str) -> tuple[Symbol, ...]:
    """The undefined functions of files whose names match pattern, with the versions that they ask for."""
    wanted = re.compile(pattern)
    found = {
        (symbol.name, symbol.version)
        for path in paths
        for symbol in _symbols(path)
        if symbol.section == _UNDEFINED and wanted.match(symbol.name)
    }
    return tuple(Symbol(name=name, version=version) for name, version in sorted(found))


def write_stub(
    output: Path, *, soname: str, symbols: Sequence[Symbol], compiler: Path, why: str, quiet: bool = False
) -> None:
    """Assemble a stub. why: what its caller reads when it runs into it; quiet: its functions answer 0 instead.

    compiler: any C compiler and linker of GNU's or LLVM's. Raises EnvironmentFailure.
    """
    source, script = output.with_name(f"{output.name}.s"), output.with_name(f"{output.name}.map")
    source.write_text(_assembly(symbols, None if quiet else why))
    script.write_text(_versions(symbols))
    run(
        [
            compiler,
            *(("-fuse-ld=lld",) if compiler.name.startswith("clang") else ()),
            *("-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}"),
            *("-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--strip-all", "-o", output, source),
        ],
        what=f"making {soname} to link against",
        env={"PATH": "/usr/bin:/bin"},
        error=EnvironmentFailure,
    )
    source.unlink()
    script.unlink()


def is_stub(path: Path) -> bool:
    """Whether a library is one to link against only."""
    try:
        return MARK.encode() in path.read_bytes() if path.stat().st_size < 1 << 20 else False
    except OSError:
        return False


def _assembly(symbols: Sequence[Symbol], why: str | None) -> str:
    """why: None for functions that answer 0."""
    lines = [".text", f".globl {MARK}", f".type {MARK},@function", f"{MARK}:"]
    if why is None:
        lines += ["xorl %eax, %eax", "ret"]
    else:
        lines += ["movl $1, %eax", "movl $2, %edi", "leaq .Lwhy(%rip), %rsi", "movl $.Lend-.Lwhy, %edx", "syscall"]
        lines += ["movl $231, %eax", "movl $127, %edi", "syscall", "hlt"]  # write it, then exit_group(127)
    repeated = _repeated(symbols)
    for index, symbol in enumerate(symbols):
        name = f"{MARK}_{index}" if symbol.name in repeated else symbol.name
        if symbol.name in repeated:
            lines += [f".symver {name},{symbol.name}{'@@' if symbol.default else '@'}{symbol.version}"]
        lines += [f".{'weak' if symbol.weak else 'globl'} {name}"]
        if symbol.data:
            space = max(symbol.size, 1)
            lines += [".data", ".balign 16", f".type {name},@object", f".size {name},{space}", f"{name}: .zero {space}"]
            lines += [".text"]
        else:
            lines += [f".type {name},@function", f"{name}: jmp .Lstub"]
    text = (why or "").replace("\\", "\\\\").replace('"', '\\"')
    lines += [f".set .Lstub,{MARK}", ".section .rodata", f'.Lwhy: .ascii "{text}\\n"', ".Lend:"]
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])


def _repeated(symbols: Sequence[Symbol]) -> frozenset[str]:
    """Names that have several versions, or one that is not the default: only these need more than the script."""
    names = [symbol.name for symbol in symbols]
    seen = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    return frozenset(seen | {symbol.name for symbol in symbols if symbol.version and not symbol.default})


def _versions(symbols: Sequence[Symbol]) -> str:
    """The linker's version script."""
    groups: dict[str, list[str]] = {}
    for symbol in symbols:
        groups.setdefault(symbol.version, []).append(symbol.name)
    loose = [*groups.pop("", []), MARK]
    groups.setdefault(min(groups, default=""), []).extend(loose)
    nodes: list[str] = []
    for version in sorted(groups):
        listed = " ".join(f"{name};" for name in groups[version])
        nodes.append(f"{version} {{ global: {listed}{'' if nodes else ' local: *;'} }};\n")
    return "".join(nodes)
