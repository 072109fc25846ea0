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
from typing import Any, Literal, NamedTuple, cast

from rocmbuild.audit.elf import EM_AMDGPU, PT_LOAD, Elf, read_elf
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.metadata import NamelessKernel, NoKernelList, RowMemory, read_note
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


class Kernel(NamedTuple):  # not a dataclass: a library has thousands, and these are made three times faster
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


def read_code_object(
    data: Data, *, bundle_id: str = "", where: str = "", memory: RowMemory | None = None
) -> CodeObject:
    """Read one code object. InputError names file and offset of what is wrong with it.

    memory: of those of the same file that were read before, to read kernels that come again faster. The whole object is
    in memory meanwhile, since parts of it are read in any order.
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
    held = data.held("code object")
    elf = read_elf(held)
    if elf.machine != EM_AMDGPU:
        raise data.error(18, f"an ELF file for machine {elf.machine}, not an AMDGPU code object ({EM_AMDGPU})")
    version = elf.abi_version + 2
    if not 3 <= version <= 6:
        raise data.error(8, f"code object version {version} is not supported (3 to 6 are)")
    sramecc, xnack = _features(elf.flags, version)
    note_target, rows = _metadata(elf, memory)
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
        kernels=_kernels(elf, held.read(0, held.size, "code object"), rows, processor),
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


def _metadata(elf: Elf, memory: RowMemory | None) -> tuple[str, list[dict[Any, Any]]]:
    """The target that the metadata notes name and their kernel rows; device LTO leaves several notes."""
    import msgpack  # for code objects only

    target, seen = "", False
    rows: list[dict[Any, Any]] = []
    for owner, kind, description in elf.notes():
        if owner != b"AMDGPU" or kind != NT_AMDGPU_METADATA:
            continue
        seen = True
        try:
            said, found = read_note(description, _KEYS, memory)
        except NoKernelList:
            raise elf.data.error(0, "the AMDGPU metadata note has no list of kernels (amdhsa.kernels)") from None
        except NamelessKernel as err:
            raise elf.data.error(0, f"AMDGPU metadata, kernel {len(rows) + err.index}: {err}") from None
        except (ValueError, TypeError, IndexError, RecursionError, msgpack.exceptions.UnpackException) as err:
            fault = printable(f"{type(err).__name__}: {err}".rstrip(": "), limit=200)
            raise elf.data.error(0, f"the AMDGPU metadata note is damaged ({fault})") from None
        rows += found
        target = target or target_of_triple(said)
    if not seen:
        raise elf.data.error(0, "a code object without an AMDGPU metadata note: its kernels cannot be known")
    return target, rows


_COUNTS = (
    (".wavefront_size", True),
    (".vgpr_count", True),
    (".sgpr_count", True),
    (".agpr_count", False),
    (".vgpr_spill_count", False),
    (".sgpr_spill_count", False),
    (".group_segment_fixed_size", True),
    (".private_segment_fixed_size", True),
    (".max_flat_workgroup_size", False),
    (".kernarg_segment_size", False),
)
"""Key, whether it must be there."""
_KEYS = frozenset({row[0] for row in _COUNTS} | {".name", ".symbol", ".uses_dynamic_stack", ".reqd_workgroup_size"})
_DESCRIPTOR = struct.Struct("<48xI4xH6x")


def _kernels(elf: Elf, raw: bytes, rows: list[dict[Any, Any]], processor: str) -> tuple[Kernel, ...]:
    """The kernels of a code object; raw: all its bytes. What a row was made into is kept in it, by its descriptor."""
    descriptors = _descriptors(elf, raw)
    hardware = (default_wave(processor) == 64, vgpr_encoding(processor, 32), vgpr_encoding(processor, 64))
    kernels = []
    for row in rows:
        if "symbol" not in row:
            row["symbol"] = row[".symbol"].encode("utf-8", "surrogateescape")
        key = (descriptors.get(row["symbol"]), hardware)
        kernel = row.get(key)
        if kernel is None:
            kernel = row[key] = _kernel(elf, row, *key)
        kernels.append(kernel)
    return tuple(kernels)


def _kernel(
    elf: Elf, row: dict[Any, Any], descriptor: tuple[int, int] | None, hardware: tuple[bool, int, int]
) -> Kernel:
    """A kernel of its row and its descriptor's words. hardware: waves have 64 lanes only, granules for 32 and 64."""
    counts: list[Any] = []
    for key, needed in _COUNTS:
        value = row.get(key)
        counts.append(value)
        if (value is None and needed) or (value is not None and (type(value) is not int or value < 0)):
            what = "is missing" if value is None else f"is {value!r:.40}, wanted a count"
            raise elf.data.error(0, f"AMDGPU metadata, kernel {printable(row['.name'])}: {key} {what}")
    size = row.get(".reqd_workgroup_size")
    fixed = isinstance(size, list) and len(size) == 3 and all(type(n) is int and n >= 0 for n in size)
    wave, vgpr, sgpr, agpr, vgpr_spill, sgpr_spill, lds, scratch, max_workgroup, argument_bytes = counts
    descriptor_wave, vgprs, mode = None, vgpr, False
    if descriptor is not None:
        first, properties = descriptor
        descriptor_wave = 32 if properties & _KERNEL_WAVE32 and not hardware[0] else 64
        vgprs = ((first & 0x3F) + 1) * hardware[1 if descriptor_wave == 32 else 2]
        mode = not hardware[0] and bool(first & _WORKGROUP_MODE)
    name = sys.intern(row[".name"])
    return Kernel(
        name=name,
        symbol=sys.intern(row[".symbol"]),
        demangled=name,
        wave=wave,
        descriptor_wave=descriptor_wave,
        vgpr=vgpr,
        sgpr=sgpr,
        agpr=agpr,
        vgpr_spill=vgpr_spill,
        sgpr_spill=sgpr_spill,
        lds=lds,
        scratch=scratch,
        dynamic_stack=bool(row.get(".uses_dynamic_stack", False)),
        max_workgroup=max_workgroup,
        vgpr_allocated=vgprs,
        workgroup_mode=mode,
        workgroup=cast(tuple[int, int, int], tuple(size)) if fixed and size else None,
        argument_bytes=argument_bytes or 0,
        arguments=row[".args"],
    )


def _descriptors(elf: Elf, raw: bytes) -> dict[bytes, tuple[int, int]]:
    """Symbol -> (COMPUTE_PGM_RSRC1 at byte 48, kernel_code_properties at byte 56) of each 64-byte kernel descriptor.

    AMDGPUUsage, "Kernel Descriptor". A descriptor that no segment of the file has all of is left out.
    """
    loads = [(s.address, s.address + s.file_size - 64, s.offset - s.address) for s in elf.segments if s.type == PT_LOAD]
    found = {}
    table = ".dynsym" if elf.section(".dynsym") else ".symtab"
    for name, value in elf.values(table, 64):
        for first, last, shift in loads:
            if first <= value <= last:
                at = value + shift
                if 0 <= at <= len(raw) - 64:
                    found[name] = _DESCRIPTOR.unpack_from(raw, at)
                break
    return found
