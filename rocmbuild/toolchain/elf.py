"""The few things that installs read from, and change in, the dynamic section of ELF files."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.errors import EnvironmentFailure

__all__ = [
    "Code",
    "Dynamic",
    "newest_defined",
    "read_code_object",
    "read_dynamic",
    "runpath_to_rpath",
    "shorten_soname",
]

_DT_RPATH = 15
_ENTRY = 16  # bytes of one dynamic entry in a 64-bit file: tag, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """What an ELF file asks of the loader. versions: the needed symbol versions, as `GLIBC_2.38`."""

    soname: str
    needed: tuple[str, ...]
    runpath: str
    versions: frozenset[str]

    def newest(self, family: str) -> tuple[int, ...]:
        """The highest version of a family such as "GLIBC" or "GLIBCXX" that is needed; () when none is."""
        found = (re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", version) for version in self.versions)
        return max((tuple(map(int, match.group(1).split("."))) for match in found if match), default=())


def read_dynamic(path: Path) -> Dynamic | None:
    """The dynamic section of path; None for anything that is no dynamic ELF file."""
    from elftools.common.exceptions import ELFError  # cold start: installs alone
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
        try:
            elf = ELFFile(file)
            section: Any = elf.get_section_by_name(".dynamic")
            if section is None:
                return None
            soname, runpath, needed = "", "", []
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(tag.needed)
                elif tag.entry.d_tag == "DT_SONAME":
                    soname = tag.soname
                elif tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH"):
                    runpath = tag.runpath if tag.entry.d_tag == "DT_RUNPATH" else tag.rpath
            versions = frozenset(_needed_versions(elf))
        except ELFError as err:
            raise EnvironmentFailure(f"{path}: not a readable ELF file: {err}") from err
    return Dynamic(soname=soname, needed=tuple(needed), runpath=runpath, versions=versions)


def _needed_versions(elf: Any) -> Iterator[str]:
    section = elf.get_section_by_name(".gnu.version_r")
    if section is not None:
        for _, names in section.iter_versions():
            for name in names:
                yield name.name


def newest_defined(path: Path, family: str) -> tuple[int, ...]:
    """The highest version of a family that a library offers, as GLIBCXX of libstdc++; () when none."""
    from elftools.elf.elffile import ELFFile  # cold start: installs alone

    found = []
    with path.open("rb") as file:
        section: Any = ELFFile(file).get_section_by_name(".gnu.version_d")
        for _, names in section.iter_versions() if section is not None else ():
            match = re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", next(iter(names)).name)
            if match:
                found.append(tuple(map(int, match.group(1).split("."))))
    return max(found, default=())


def runpath_to_rpath(path: Path) -> None:
    """Make a file's own search path hold for what its libraries need too, and before LD_LIBRARY_PATH.

    The loader uses DT_RUNPATH for the direct dependencies of one object alone, DT_RPATH for all that it brings in. The
    two differ in the tag's number only. A file without DT_RUNPATH is left as it is.
    """
    offset = _offset_of_tag(path, "DT_RUNPATH")
    if offset is not None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(struct.pack("<Q", _DT_RPATH))


def shorten_soname(path: Path, name: str) -> None:
    """Overwrite the SONAME with a shorter one, in place in the string table.

    Raises EnvironmentFailure when the file has no SONAME that begins with name. Version definitions keep the old base
    name, which the loader does not compare.
    """
    from elftools.elf.elffile import ELFFile  # cold start: installs alone

    with path.open("r+b") as file:
        section: Any = ELFFile(file).get_section_by_name(".dynamic")
        tags = [] if section is None else [tag for tag in section.iter_tags() if tag.entry.d_tag == "DT_SONAME"]
        if not tags or not tags[0].soname.startswith(name):
            raise EnvironmentFailure(f"{path}: has no SONAME that begins with {name}")
        strings: Any = ELFFile(file).get_section(section["sh_link"])
        file.seek(strings["sh_offset"] + tags[0].entry.d_val + len(name))
        file.write(b"\0")


def _offset_of_tag(path: Path, wanted: str) -> int | None:
    """The place in the file of the first dynamic entry with that tag."""
    from elftools.elf.elffile import ELFFile  # cold start: installs alone

    with path.open("rb") as file:
        section: Any = ELFFile(file).get_section_by_name(".dynamic")
        if section is None:
            return None
        for index, tag in enumerate(section.iter_tags()):
            if tag.entry.d_tag == wanted:
                return int(section["sh_offset"]) + index * _ENTRY
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a code object says of itself. version: of its format (5, 6); waves: the widths of its kernels, each once."""

    target: str
    version: int
    waves: tuple[int, ...]


def read_code_object(path: Path) -> Code:
    """Read AMDGPU's metadata note (AMDGPUUsage, "Code Object Metadata"). Raises EnvironmentFailure.

    For one's own small probes; rocmbuild.audit reads those of others.
    """
    import msgpack  # cold start: probes alone
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            file.seek(8)
            abi = file.read(1)[0]  # e_ident[EI_ABIVERSION]: 2 is version 4, and so on
            section: Any = elf.get_section_by_name(".note")
            data = section.data() if section is not None else b""
        size, length = struct.unpack_from("<II", data)
        start = 12 + (size + 3) // 4 * 4
        value = msgpack.unpackb(data[start : start + length], strict_map_key=False)
        kernels = value["amdhsa.kernels"]
        waves = tuple(sorted({int(kernel[".wavefront_size"]) for kernel in kernels}))
        target = str(value["amdhsa.target"]).rsplit("-", 1)[-1]
        generic = re.search(r"--(gfx[0-9a-z-]+)$", str(value["amdhsa.target"]))
    except (OSError, ELFError, struct.error, KeyError, TypeError, ValueError, IndexError) as err:
        raise EnvironmentFailure(f"{path.name}: not a code object with AMDGPU's metadata ({err})") from err
    return Code(target=generic.group(1) if generic else target, version=abi + 2, waves=waves)
