"""AMDGPU code objects: what a processor they are for, and what each kernel costs.

Sources: LLVM's AMDGPUUsage (ELF header flags of code object V3 to V6, the AMDGPU metadata note, the
kernel descriptor) and llvm/BinaryFormat/ELF.h for the processor numbers; the tests compare the
table with llvm-readelf's own.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rocmbuild.audit.elf import EM_AMDGPU, Elf, read_elf
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.processors import vgpr_encoding
from rocmbuild.audit.source import Data
from rocmbuild.errors import printable

__all__ = [
    "PROCESSORS",
    "CodeObject",
    "Kernel",
    "default_wave",
    "findings",
    "is_bitcode",
    "read_code_object",
    "target_of_triple",
]

NT_AMDGPU_METADATA = 32
_KERNEL_WAVE32 = 1 << 10  # ENABLE_WAVEFRONT_SIZE32 in a kernel descriptor's kernel_code_properties
_WORKGROUP_MODE = 1 << 29  # WGP_MODE in COMPUTE_PGM_RSRC1 of gfx10 to gfx12
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")

_MACH = """
20 gfx600   21 gfx601   22 gfx700   23 gfx701   24 gfx702   25 gfx703   26 gfx704   28 gfx801   29 gfx802   2a gfx803
2b gfx810   2c gfx900   2d gfx902   2e gfx904   2f gfx906   30 gfx908   31 gfx909   32 gfx90c   33 gfx1010  34 gfx1011
35 gfx1012  36 gfx1030  37 gfx1031  38 gfx1032  39 gfx1033  3a gfx602   3b gfx705   3c gfx805   3d gfx1035  3e gfx1034
3f gfx90a   40 gfx940   41 gfx1100  42 gfx1013  43 gfx1150  44 gfx1103  45 gfx1036  46 gfx1101  47 gfx1102  48 gfx1200
49 gfx1250  4a gfx1151  4b gfx941   4c gfx942   4e gfx1201  4f gfx950   50 gfx1310  51 gfx9-generic
52 gfx10-1-generic      53 gfx10-3-generic      54 gfx11-generic        55 gfx1152  57 gfx1154  58 gfx1153
59 gfx12-generic        5a gfx1251  5b gfx12-5-generic      5c gfx1172  5d gfx1170  5e gfx1171  5f gfx9-4-generic
62 gfx11-7-generic      63 gfx13-generic
"""
PROCESSORS: Mapping[int, str] = {int(number, 16): name for number, name in re.findall(r"([0-9a-f]{2}) (gfx\S+)", _MACH)}
"""EF_AMDGPU_MACH -> processor. LLVM 16 to 19 had gfx940 and gfx941; the newest few are in LLVM's main branch."""

Feature = Literal["", "any", "off", "on"]
_FEATURE: tuple[Feature, ...] = ("", "any", "off", "on")
_SIGN = {"": "", "any": "", "off": "-", "on": "+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of a code object, from its metadata; counts of registers and bytes, None where the note is silent.

    wave: lanes per wave according to the note. descriptor_wave: the same according to the kernel
    descriptor, which is what the hardware goes by; None where the descriptor could not be found.
    vgpr_allocated: registers that the descriptor asks for, a multiple of its granule; at least vgpr. lds: static group
    segment, scratch: private segment per lane, argument_bytes: the kernarg segment with what the compiler adds (all
    bytes). max_workgroup: most lanes; workgroup: the exact size in three dimensions, where the source fixes it.
    workgroup_mode: a workgroup may use both compute units of a workgroup processor. arguments: "kind size" of each that
    the source has. demangled: equal to name until names are demangled.
    """

    name: str
    symbol: str
    demangled: str
    wave: int
    descriptor_wave: int | None
    vgpr: int
    sgpr: int
    agpr: int | None
    vgpr_spill: int | None
    sgpr_spill: int | None
    lds: int
    scratch: int
    dynamic_stack: bool
    max_workgroup: int | None
    vgpr_allocated: int
    workgroup_mode: bool
    workgroup: tuple[int, int, int] | None
    argument_bytes: int
    arguments: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The kernel with stable keys in a stable order."""
        return {
            "name": self.name,
            "demangled": self.demangled,
            "wave": self.wave,
            "vgpr": self.vgpr,
            "sgpr": self.sgpr,
            "agpr": self.agpr,
            "vgpr_spill": self.vgpr_spill,
            "sgpr_spill": self.sgpr_spill,
            "lds": self.lds,
            "scratch": self.scratch,
            "dynamic_stack": self.dynamic_stack,
            "max_workgroup": self.max_workgroup,
            "workgroup": None if self.workgroup is None else list(self.workgroup),
            "workgroup_mode": self.workgroup_mode,
            "vgpr_allocated": self.vgpr_allocated,
            "argument_bytes": self.argument_bytes,
            "arguments": list(self.arguments),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeObject:
    """A code object: device code for one target.

    target: the processor with the features that are fixed ("gfx90a:sramecc+:xnack-"), from the ELF flags.
    note_target and bundle_target: the same according to the metadata note and to the bundle entry around
    it, "" where there is none. format "bitcode": not linked yet; such a one has a target from its bundle
    only and no kernels. version: code object version (3 to 6), 0 for bitcode.
    """

    where: str
    format: Literal["elf", "bitcode"]
    target: str
    processor: str
    sramecc: Feature
    xnack: Feature
    generic_version: int
    version: int
    note_target: str
    bundle_target: str
    size: int
    kernels: tuple[Kernel, ...]

    def to_json(self) -> dict[str, Any]:
        """The code object with stable keys in a stable order."""
        return {
            "target": self.target,
            "format": self.format,
            "version": self.version,
            "generic_version": self.generic_version,
            "size": self.size,
            "kernels": [kernel.to_json() for kernel in self.kernels],
        }


def default_wave(processor: str) -> int:
    """The wave width that a processor has when no flag chooses: 64 up to gfx9 (where there is no other), else 32."""
    name = processor.partition(":")[0]
    major = name[3:].split("-")[0]
    return 64 if name.startswith("gfx9-") or (len(major) == 3 and major[0] in "6789") else 32


def target_of_triple(text: str) -> str:
    """The target in "amdgcn-amd-amdhsa--gfx90a:xnack+", features in alphabetical order; "" where there is none."""
    at = text.find("-gfx")
    if at < 0:
        return ""
    name, *features = text[at + 1 :].split(":")
    return ":".join([name, *sorted(features)])


def is_bitcode(head: bytes) -> bool:
    """Whether bytes begin LLVM bitcode, which an `-fgpu-rdc` object carries until the device link."""
    return head.startswith(_BITCODE)


def read_code_object(data: Data, *, bundle_id: str = "", where: str = "") -> CodeObject:
    """Read one code object. InputError names file and offset of what is wrong with it.

    The whole object is in memory meanwhile, since parts of it are read in any order.
    """
    bundle_target = target_of_triple(bundle_id)
    if is_bitcode(data.read(0, min(4, data.size), "magic")):
        return CodeObject(
            where=where,
            format="bitcode",
            target=bundle_target,
            processor=bundle_target.split(":")[0],
            sramecc="",
            xnack="",
            generic_version=0,
            version=0,
            note_target="",
            bundle_target=bundle_target,
            size=data.size,
            kernels=(),
        )
    elf = read_elf(data.held("code object"))
    if elf.machine != EM_AMDGPU:
        raise data.error(18, f"an ELF file for machine {elf.machine}, not an AMDGPU code object ({EM_AMDGPU})")
    version = elf.abi_version + 2
    if not 3 <= version <= 6:
        raise data.error(8, f"code object version {version} is not supported (3 to 6 are)")
    sramecc, xnack = _features(elf.flags, version)
    note_target, rows = _metadata(elf)
    processor = PROCESSORS.get(elf.flags & 0xFF, "")
    if not processor:  # newer than this table: the note still says it
        processor = note_target.split(":")[0] or f"mach-0x{elf.flags & 0xFF:02x}"
    return CodeObject(
        where=where,
        format="elf",
        target=":".join([processor, *_suffixes(sramecc, xnack)]),
        processor=processor,
        sramecc=sramecc,
        xnack=xnack,
        generic_version=elf.flags >> 24 if version >= 6 else 0,
        version=version,
        note_target=note_target,
        bundle_target=bundle_target,
        size=data.size,
        kernels=_kernels(elf, rows, processor),
    )


def findings(code: CodeObject) -> list[Finding]:
    """What is wrong with a code object in itself, whatever was asked for."""
    found = []

    def add(severity: Literal["error", "warning"], rule: str, message: str) -> None:
        found.append(Finding(severity=severity, rule=rule, message=message, where=code.where))

    if code.format == "bitcode":
        add("error", "not-linked", f"device code for {code.target} is bitcode: the device link (--hip-link) is missing")
        return found
    if code.bundle_target and not _compatible(code.bundle_target, code.target):
        add("error", "target-mismatch", f"the bundle says {code.bundle_target}, the code object in it {code.target}")
    if code.note_target and not _compatible(code.note_target, code.target):
        add("error", "target-mismatch", f"the metadata say {code.note_target}, the ELF flags {code.target}")
    for kernel in code.kernels:
        if kernel.descriptor_wave is None:
            add("error", "descriptor-missing", f"kernel {kernel.name} has metadata but no kernel descriptor")
        elif kernel.descriptor_wave != kernel.wave:
            message = f"kernel {kernel.name}: the metadata say wave{kernel.wave}, its descriptor "
            add("error", "wave-mismatch", f"{message}wave{kernel.descriptor_wave}")
    return found


def _compatible(said: str, target: str) -> bool:
    """Whether two spellings mean one target; code object V3 flags cannot tell "off" from "not supported"."""
    name, *features = target.split(":")
    other, *wanted = said.split(":")
    return name == other and {f for f in features if f.endswith("+")} == {f for f in wanted if f.endswith("+")}


def _features(flags: int, version: int) -> tuple[Feature, Feature]:
    """(sramecc, xnack) of e_flags."""
    if version == 3:
        return ("on" if flags & 0x200 else ""), ("on" if flags & 0x100 else "")
    return _FEATURE[flags >> 10 & 3], _FEATURE[flags >> 8 & 3]


def _suffixes(sramecc: Feature, xnack: Feature) -> list[str]:
    return [name + _SIGN[value] for name, value in (("sramecc", sramecc), ("xnack", xnack)) if _SIGN[value]]


def _metadata(elf: Elf) -> tuple[str, list[dict[str, Any]]]:
    """The target that the metadata notes name and their kernel rows; device LTO leaves several notes."""
    import msgpack  # for code objects only

    target, seen = "", False
    rows: list[dict[str, Any]] = []
    known: dict[bytes, tuple[str, ...]] = {}
    for owner, kind, description in elf.notes():
        if owner != b"AMDGPU" or kind != NT_AMDGPU_METADATA:
            continue
        seen = True
        try:
            said, found = _note(description, known)
        except _Nameless as err:
            raise elf.data.error(0, f"AMDGPU metadata, kernel {len(rows) + err.index}: {err}") from None
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as err:
            fault = f"{type(err).__name__}: {err}".rstrip(": ")
            raise elf.data.error(0, f"the AMDGPU metadata note is damaged ({fault})") from None
        if found is None:
            raise elf.data.error(0, "the AMDGPU metadata note has no list of kernels (amdhsa.kernels)")
        rows += found
        target = target or said
    if not seen:
        raise elf.data.error(0, "a code object without an AMDGPU metadata note: its kernels cannot be known")
    return target, rows


def _note(note: bytes, known: dict[bytes, tuple[str, ...]]) -> tuple[str, list[dict[str, Any]] | None]:
    """(target, kernel rows) of one note, read map by map, so that only one kernel's tree is in memory at a time.

    Arguments, by far the most of a note, are decoded once for all kernels that have the same; known keeps them.
    Rows are None where there is no list of maps.
    """
    import msgpack

    reader = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=max(1, len(note)))
    reader.feed(note)
    target = ""
    rows: list[dict[str, Any]] = []
    if not _is_map(note, 0):
        return target, None
    for _ in range(reader.read_map_header()):
        key = _key(reader)
        if key == "amdhsa.target":
            said = reader.unpack()
            target = target_of_triple(said) if isinstance(said, str) else ""
        elif key != "amdhsa.kernels":
            reader.skip()
        else:
            first = note[reader.tell() : reader.tell() + 1]
            if not (b"\x90" <= first <= b"\x9f" or first in (b"\xdc", b"\xdd")):
                return target, None
            for _ in range(reader.read_array_header()):
                if not _is_map(note, reader.tell()):
                    return target, None
                row = _row(reader, note, known)
                for name in (".name", ".symbol"):  # at once: rows without them would be many and small
                    if not isinstance(row.get(name), str):
                        raise _Nameless(len(rows), f"{name} is {row.get(name)!r:.40}, wanted a name")
                rows.append(row)
    if reader.tell() != len(note):
        raise ValueError(f"{len(note) - reader.tell()} bytes follow")
    return target, rows


class _Nameless(Exception):
    """A kernel's row without its name."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


def _is_map(note: bytes, at: int) -> bool:
    """Whether a map begins there; an end that comes too early and the one byte that begins nothing count as one."""
    first = note[at : at + 1]
    return b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf", b"\xc1", b"")


def _key(reader: Any) -> str:
    key = reader.unpack()
    if not isinstance(key, str):
        raise TypeError(f"a key is {key!r:.40}, not a name")
    return key


def _row(reader: Any, note: bytes, known: dict[bytes, tuple[str, ...]]) -> dict[str, Any]:
    """One kernel's map: what this module looks at of it."""
    row: dict[str, Any] = {".args": ()}
    for _ in range(reader.read_map_header()):
        key = _key(reader)
        if key == ".args":
            start = reader.tell()
            reader.skip()
            raw = note[start : reader.tell()]
            if raw not in known:
                known[raw] = _arguments(raw)
            row[key] = known[raw]
        elif key in _KEYS:
            row[key] = reader.unpack()
        else:
            reader.skip()
    return row


def _arguments(raw: bytes) -> tuple[str, ...]:
    """ "kind size" of each argument that the source has; the hidden ones are the compiler's."""
    import msgpack

    found = msgpack.unpackb(raw, raw=False, strict_map_key=False)
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    texts = [f"{row.get('.value_kind', '?')} {row.get('.size', '?')}" for row in rows]
    return tuple(sys.intern(text) for text in texts if not text.startswith("hidden_"))


_COUNTS = (
    ("wave", ".wavefront_size", True),
    ("vgpr", ".vgpr_count", True),
    ("sgpr", ".sgpr_count", True),
    ("agpr", ".agpr_count", False),
    ("vgpr_spill", ".vgpr_spill_count", False),
    ("sgpr_spill", ".sgpr_spill_count", False),
    ("lds", ".group_segment_fixed_size", True),
    ("scratch", ".private_segment_fixed_size", True),
    ("max_workgroup", ".max_flat_workgroup_size", False),
    ("argument_bytes", ".kernarg_segment_size", False),
)
"""Field, key, whether it must be there."""
_KEYS = {key for _, key, _ in _COUNTS} | {".name", ".symbol", ".uses_dynamic_stack", ".reqd_workgroup_size"}


def _kernels(elf: Elf, rows: list[dict[str, Any]], processor: str) -> tuple[Kernel, ...]:
    wanted = {row[".symbol"] for row in rows}
    table = ".dynsym" if elf.section(".dynsym") else ".symtab"
    places = {s.name: s.value for s in elf.symbols(table) if s.section and s.name in wanted}
    wave64_only = default_wave(processor) == 64
    granules = {wave: vgpr_encoding(processor, wave) for wave in (32, 64)}
    kernels = []
    for row in rows:
        name, symbol = sys.intern(row[".name"]), sys.intern(row[".symbol"])
        counts: dict[str, Any] = {}
        for field, key, needed in _COUNTS:
            value = row.get(key)
            if type(value) is int and value >= 0:
                counts[field] = value
            elif value is None and not needed:
                counts[field] = None
            else:
                what = "is missing" if value is None else f"is {value!r:.40}, wanted a count"
                raise elf.data.error(0, f"AMDGPU metadata, kernel {printable(name)}: {key} {what}")
        counts["argument_bytes"] = counts["argument_bytes"] or 0
        descriptor = _descriptor(elf, places.get(symbol))
        size = row.get(".reqd_workgroup_size")
        kernels.append(
            Kernel(
                name=name,
                symbol=symbol,
                demangled=name,
                **counts,
                **_hardware(descriptor, granules, counts["vgpr"], wave64_only=wave64_only),
                dynamic_stack=bool(row.get(".uses_dynamic_stack", False)),
                workgroup=(size[0], size[1], size[2])
                if isinstance(size, list) and len(size) == 3 and all(type(n) is int and n >= 0 for n in size)
                else None,
                arguments=row[".args"],
            )
        )
    return tuple(kernels)


def _descriptor(elf: Elf, address: int | None) -> bytes:
    """The 64-byte kernel descriptor at an address; b"" where there is no such address."""
    found = None if address is None else elf.at(address, 64, "kernel descriptor")
    return found.read(0, 64, "kernel descriptor") if found else b""


def _hardware(descriptor: bytes, granules: Mapping[int, int], vgpr: int, *, wave64_only: bool) -> dict[str, Any]:
    """What the hardware goes by: the width, the registers that it gives, whether a workgroup has two compute units.

    kernel_code_properties at byte 56, COMPUTE_PGM_RSRC1 at byte 48 (AMDGPUUsage, "Kernel Descriptor").
    """
    if not descriptor:
        return {"descriptor_wave": None, "vgpr_allocated": vgpr, "workgroup_mode": False}
    (first,) = struct.unpack_from("<I", descriptor, 48)
    (properties,) = struct.unpack_from("<H", descriptor, 56)
    said = 32 if properties & _KERNEL_WAVE32 and not wave64_only else 64
    return {
        "descriptor_wave": said,
        "vgpr_allocated": ((first & 0x3F) + 1) * granules[said],
        "workgroup_mode": not wave64_only and bool(first & _WORKGROUP_MODE),
    }
