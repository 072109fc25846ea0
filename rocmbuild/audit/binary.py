"""What is in a binary: the device code for each target, and what the host side wants from others.

Takes wheels, shared objects, object files, archives, bare code objects (.co, .hsaco) and loose bundles.
Reads are bounded: at most one bundle (when compressed) and one code object are in memory at a time.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from rocmbuild.audit.bundle import Bundle, Entry, is_bundle, walk
from rocmbuild.audit.codeobject import CodeObject, Kernel, is_bitcode, read_code_object, target_of_triple
from rocmbuild.audit.codeobject import findings as code_findings
from rocmbuild.audit.container import images
from rocmbuild.audit.demangle import demangle as demangled_names
from rocmbuild.audit.elf import DT_SONAME, EM_AMDGPU, MAGIC, STB_WEAK, Elf, is_elf64, read_elf
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.metadata import RowMemory
from rocmbuild.audit.source import Data, open_file
from rocmbuild.audit.torch_abi import TorchNeed, is_stable, torch_need
from rocmbuild.errors import printable

__all__ = ["EVIDENCE", "BinaryReport", "BundleInfo", "HostSide", "Library", "inspect", "readable"]

EVIDENCE = "rocmbuild.json"
_FATBIN = ".hip_fatbin"
_RDC_SECTION = "__CLANG_OFFLOAD_BUNDLE__"
_ARCHIVE, _THIN, _ZIP = b"!<arch>\n", b"!<thin>\n", b"PK\x03\x04"
_SMALL = 1 << 21  # a wheel's members are read in pieces of 2 MiB
_MAX_EVIDENCE = 1 << 24
_MAX_NAMES = 1 << 22
_MAX_DIRECTORY = 1 << 24  # a hundred thousand files and more
_MAX_SYMBOLS = 1 << 18
_TORCH_CXX = re.compile(r"_Z(?:GV|GR|T[VISTCW])?N?[VKrRO]*(?:2at|3c10|5torch|6caffe2)")
_HIP = re.compile(r"(?:__)?hip[A-Z_]|__gpu_|amd_?comgr|hsa_")
_INTERESTING = re.compile(rf"{_HIP.pattern}|{_TORCH_CXX.pattern}|aoti_torch_|torch_|_?Py")

Kind = Literal["shared library", "object", "executable", "code object", "bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleInfo:
    """A bundle that was read: format version (0 plain), compression and sizes in bytes, entry ids as written."""

    offset: int
    size: int
    version: int
    compression: str
    uncompressed_size: int
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSide:
    """What the host part of an ELF file wants from elsewhere: undefined symbols, sorted.

    torch_stable: C symbols of torch's stable ABI, torch_need: the release that has them. torch_cxx: C++ symbols of
    torch, which tie the file to one torch release. python: symbols of the Python C API.
    """

    machine: int
    soname: str
    needed: tuple[str, ...]
    hip: tuple[str, ...]
    torch_stable: tuple[str, ...]
    torch_cxx: tuple[str, ...]
    torch_need: TorchNeed
    python: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The host side with stable keys in a stable order."""
        return {
            "soname": self.soname,
            "needed": list(self.needed),
            "hip": list(self.hip),
            "torch_stable": list(self.torch_stable),
            "torch_cxx": list(self.torch_cxx),
            "torch_release": self.torch_need.release,
            "torch_unknown": list(self.torch_need.unknown),
            "python": list(self.python),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One file that was looked into. name: its path, inside the wheel or archive where it is in one."""

    name: str
    kind: Kind
    size: int
    bundles: tuple[BundleInfo, ...]
    code_objects: tuple[CodeObject, ...]
    host: HostSide | None
    findings: tuple[Finding, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that it has code for, sorted."""
        return tuple(sorted({code.target for code in self.code_objects}))

    def to_json(self) -> dict[str, Any]:
        """The library with stable keys in a stable order."""
        return {
            "name": self.name,
            "kind": self.kind,
            "size": self.size,
            "targets": list(self.targets),
            "bundles": [
                {
                    "offset": b.offset,
                    "size": b.size,
                    "version": b.version,
                    "compression": b.compression,
                    "uncompressed_size": b.uncompressed_size,
                    "entries": list(b.entries),
                }
                for b in self.bundles
            ],
            "host": self.host.to_json() if self.host else None,
            "code_objects": [code.to_json() for code in self.code_objects],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryReport:
    """A file's content. evidence: a wheel's dist-info/rocmbuild.json, None where there is none."""

    path: str
    wheel: bool
    libraries: tuple[Library, ...]
    evidence: Mapping[str, Any] | None

    @property
    def device_libraries(self) -> tuple[Library, ...]:
        """Those with device code."""
        return tuple(library for library in self.libraries if library.code_objects)


Look = Callable[[CodeObject, Data], None]


def inspect(
    path: Path, *, demangle: bool = True, demanglers: Sequence[Path] = (), look: Look | None = None
) -> BinaryReport:
    """Look into a file. InputError where it is none of the known kinds, or is damaged (with file and offset).

    demanglers: programs to make kernel names readable with, tried before c++filt on PATH. look: is shown every code
    object with its bytes, in the order of the report, names not demangled yet.
    """
    reader = _Reader(look)
    with open_file(path) as data:
        head = data.read(0, min(24, data.size), "magic")
        evidence = None
        wheel = head.startswith(_ZIP)
        if wheel:
            libraries, evidence = reader.wheel(path, data)
        else:
            libraries = tuple(reader.file(data, str(path), head))
            if not libraries:
                what = "empty" if not data.size else f"it begins with {head[:8].hex(' ')}"
                kinds = "a wheel, an ELF file, an archive, a code object or an offload bundle"
                raise data.error(0, f"nothing to look into ({what}); wanted {kinds}")
    report = BinaryReport(path=str(path), wheel=wheel, libraries=libraries, evidence=evidence)
    return readable([report], demanglers)[0] if demangle else report


class _Reader:
    """Reads libraries out of files; every code object passes through code()."""

    def __init__(self, look: Look | None) -> None:
        self.look = look
        self.memory = RowMemory()

    def code(self, data: Data, *, bundle_id: str = "", where: str) -> CodeObject:
        """One code object."""
        found = read_code_object(data, bundle_id=bundle_id, where=where, memory=self.memory)
        if self.look:
            self.look(found, data)
        return found

    def file(self, data: Data, name: str, head: bytes, *, member: bool = False) -> Iterator[Library]:
        """The library or libraries in one file; none where its kind is not known. member: of an archive."""
        if head.startswith(MAGIC):
            if is_elf64(data):
                yield self.elf(data, name)
        elif is_bundle(head):
            yield self.library(data, name, "bundle", [data], None)
        elif member:
            return  # what linkers leave alone: other files, and archives inside archives
        elif head.startswith(_ARCHIVE):
            yield from self.archive(data, name)
        elif head.startswith(_THIN):
            raise data.error(0, "a thin archive holds no object files itself; give the files it names")
        elif is_bitcode(head):
            raise data.error(0, "LLVM bitcode, not linked into a code object yet: nothing to measure")

    def elf(self, data: Data, name: str) -> Library:
        elf = read_elf(data)
        if elf.machine == EM_AMDGPU:
            code = self.code(data, where=name)
            return Library(
                name=name,
                kind="code object",
                size=data.size,
                bundles=(),
                code_objects=(code,),
                host=None,
                findings=tuple(code_findings(code)),
            )
        kind: Kind = "object" if elf.type == 1 else "shared library" if elf.type == 3 else "executable"
        host = _host_side(elf)
        areas = [
            elf.contents(s) for s in elf.sections if s.name.startswith((_FATBIN, _RDC_SECTION, ".llvm.offloading"))
        ]
        if sum(area.size for area in areas) > data.size:
            raise data.error(0, "the sections with device code overlap: together they are larger than the file")
        areas = [elf.contents(s) for s in elf.sections if s.name == _FATBIN]
        library = self.library(data, name, kind, areas, host)
        extra, codes = [], []
        if kind != "object" and not elf.sections:
            message = "no section headers: whether device code is in it cannot be seen"
            extra.append(_finding("error", "no-sections", message, name))
        elif kind != "object" and elf.section(".hipFatBinSegment") and not any(area.size for area in areas):
            message = f"registers a fat binary, and has no section {_FATBIN} to find it in"
            extra.append(_finding("error", "fatbin-missing", message, name))
        for section in elf.sections:
            if section.name.startswith(_RDC_SECTION) and "-gfx" in section.name:
                part = elf.contents(section)
                bundle_id = section.name.removeprefix(_RDC_SECTION)
                code = self.code(part, bundle_id=bundle_id, where=f"{name}({bundle_id})")
                codes.append(code)
                extra += code_findings(code)
        for section in elf.sections:
            if section.name == ".llvm.offloading":
                for image in images(elf.contents(section)):
                    if image.target and "amdgcn" in image.triple:
                        target = target_of_triple(f"-{image.target}")
                        code = self.code(image.data, bundle_id=f"-{target}", where=f"{name}({target})")
                        codes.append(code)
                        if code.format == "elf":
                            message = f"device code for {target} is in .llvm.offloading: its link is still to come"
                            extra.append(_finding("error", "not-linked", message, name))
                        extra += code_findings(code)
        missing = [symbol for symbol in host.hip if symbol.startswith("__hip_fatbin")]
        if missing and kind != "object":
            message = f"will not load: undefined fat binary {missing[0]} (-fgpu-rdc objects linked without --hip-link)"
            extra.append(_finding("error", "rdc-not-linked", message, name))
        return replace(library, code_objects=(*library.code_objects, *codes), findings=(*library.findings, *extra))

    def library(self, data: Data, name: str, kind: Kind, areas: Sequence[Data], host: HostSide | None) -> Library:
        """The device code of some fat binaries, one bundle at a time."""
        bundles: list[BundleInfo] = []
        codes: list[CodeObject] = []
        found: list[Finding] = []

        def visit(entry: Entry) -> CodeObject | Finding:
            if not entry.target.startswith("gfx"):
                message = f"bundle entry {entry.id} is not code for an AMD processor: not looked into"
                return _finding("warning", "entry-unknown", message, name)
            return self.code(entry.data, bundle_id=entry.id, where=f"{name}({entry.target})")

        for area in areas:
            for walked in walk(area, visit):
                bundle = walked.bundle
                bundles.append(_info(bundle))
                if bundle.digest_ok is False:
                    message = f"the bundle at 0x{bundle.offset:x} has not the content that its digest names"
                    found.append(_finding("error", "digest-mismatch", message, name))
                for result in walked.results:
                    if isinstance(result, CodeObject):
                        codes.append(result)
                        found += code_findings(result)
                    elif result:
                        found.append(result)
        return Library(
            name=name,
            kind=kind,
            size=data.size,
            bundles=tuple(bundles),
            code_objects=tuple(codes),
            host=host,
            findings=tuple(found),
        )

    def archive(self, data: Data, name: str) -> Iterator[Library]:
        """The ELF members and bundles of a System V archive (GNU and BSD long names)."""
        offset, names = len(_ARCHIVE), b""
        while offset < data.size:
            header = data.read(offset, 60, "archive member header")
            if header[58:] != b"`\n":
                raise data.error(offset, f"no archive member begins here: it ends in {header[58:]!r}, wanted '`\\n'")
            digits = header[48:58].strip()
            if not digits.isdigit():
                raise data.error(offset + 48, f"an archive member's size is {digits!r}, wanted a number")
            size = int(digits)
            member = data.window(offset + 60, size, "archive member")
            label = header[:16].rstrip()
            offset += 60 + size + (size & 1)
            if label == b"//":
                if size > _MAX_NAMES:
                    raise member.error(0, f"{size} bytes of archive names are not plausible")
                names = member.read(0, size, "archive names")
                continue
            if label in (b"/", b"/SYM64/") or label.startswith(b"__.SYMDEF"):
                continue
            if label.startswith(b"#1/") and label[3:].isdigit():
                length = int(label[3:])
                if length > _MAX_NAMES:
                    raise member.error(0, f"a name of {length} bytes is not plausible")
                label = member.read(0, length, "archive member name").rstrip(b"\0")
                member = member.window(length, size - length, "archive member")
            elif label.startswith(b"/") and label[1:].isdigit():
                label = names[int(label[1:]) :].split(b"\n", 1)[0]
            text = label.removesuffix(b"/").decode("utf-8", "backslashreplace")
            head = member.read(0, min(24, member.size), "magic")
            yield from self.file(member, f"{name}({text})", head, member=True)

    def wheel(self, path: Path, data: Data) -> tuple[tuple[Library, ...], Mapping[str, Any] | None]:
        """The members of a wheel that are binaries, and its evidence; other members are not unpacked."""
        libraries: list[Library] = []
        evidence: Mapping[str, Any] | None = None
        at = _check_directory(data)
        try:
            with zipfile.ZipFile(path) as wheel:
                for info in wheel.infolist():
                    at = info.header_offset
                    name = info.filename
                    if not name or name.endswith("/") or stat.S_ISLNK(info.external_attr >> 16):
                        continue
                    if name.count("/") == 1 and name.endswith(f".dist-info/{EVIDENCE}"):
                        evidence = _evidence(wheel, info, data)
                        continue
                    if info.flag_bits & 1:
                        raise data.error(at, f"{printable(name)} is encrypted")
                    if info.compress_type == zipfile.ZIP_LZMA:
                        _check_dictionary(data, info)
                    with wheel.open(info) as stream:
                        head = stream.read(24)
                        if not (head.startswith((MAGIC, _ARCHIVE)) or is_bundle(head)):
                            continue
                        libraries += self.file(_member(stream, info, head, path), name, head)
        except _ZIP_FAULTS as err:
            raise data.error(max(0, at), f"not a sound zip archive ({type(err).__name__}: {err})") from None
        return tuple(libraries), evidence


_ZIP_FAULTS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, struct.error),
    *(UnicodeDecodeError, OverflowError, ValueError, OSError),
)
"""What zipfile raises for damaged archives, besides its own error."""


def _check_directory(data: Data) -> int:
    """The place of a zip archive's last record. InputError where its directory is larger than a wheel's can be.

    zipfile makes an object of each entry, which takes several times as much memory.
    """
    size = min(data.size, (1 << 16) + 22)
    tail = data.read(data.size - size, size, "end of the zip archive")
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > size:
        raise data.error(0, "not a sound zip archive (its end is missing)")
    length = struct.unpack_from("<I", tail, at + 12)[0]
    place = data.size - size + at
    large = place - 76  # the record of zip64 and its locator stand just before
    if large >= 0 and data.read(large, 4, "zip64 record") == b"PK\x06\x06":
        length = struct.unpack("<Q", data.read(large + 40, 8, "zip64 record"))[0]
    if length > _MAX_DIRECTORY:
        raise data.error(place, f"a directory of {length} bytes is larger than a wheel's can be ({_MAX_DIRECTORY})")
    return place


def _check_dictionary(data: Data, info: zipfile.ZipInfo) -> None:
    """InputError where an LZMA member wants a larger dictionary than its own size: that much memory it would take."""
    head = data.read(info.header_offset, 30, "zip member header")
    start = info.header_offset + 30 + sum(struct.unpack_from("<HH", head, 26))
    properties = data.read(start, min(9, data.size - start), "LZMA properties")
    size = int.from_bytes(properties[5:9], "little")
    if size > max(1 << 26, info.file_size):
        raise data.error(start, f"an LZMA dictionary of {size} bytes for a member of {info.file_size}")


def _finding(severity: Literal["error", "warning"], rule: str, message: str, where: str) -> Finding:
    return Finding(severity=severity, rule=rule, message=message, where=where)


def _info(bundle: Bundle) -> BundleInfo:
    return BundleInfo(
        offset=bundle.offset,
        size=bundle.size,
        version=bundle.version,
        compression=bundle.compression,
        uncompressed_size=bundle.uncompressed_size,
        entries=tuple(entry.id for entry in bundle.entries),
    )


def _host_side(elf: Elf) -> HostSide:
    needed, soname = [], ""
    for tag, value in elf.dynamic():
        if tag == DT_SONAME:
            soname = value
        else:
            needed.append(value)
    table = ".dynsym" if elf.section(".dynsym") else ".symtab"
    undefined: dict[str, bool] = {}  # name -> whether the library loads without it
    for symbol in elf.symbols(table):
        if symbol.section == 0 and _INTERESTING.match(symbol.name):
            if len(undefined) > _MAX_SYMBOLS:
                raise elf.data.error(0, f"more than {_MAX_SYMBOLS} undefined symbols are not plausible")
            undefined[symbol.name] = undefined.get(symbol.name, True) and symbol.binding == STB_WEAK
    return HostSide(
        machine=elf.machine,
        soname=soname,
        needed=tuple(needed),
        hip=tuple(sorted(name for name in undefined if _HIP.match(name))),
        torch_stable=tuple(sorted(filter(is_stable, undefined))),
        torch_cxx=tuple(sorted(name for name in undefined if _TORCH_CXX.match(name))),
        torch_need=torch_need(name for name, weak in undefined.items() if not weak),
        python=tuple(sorted(name for name in undefined if name.startswith(("Py", "_Py")))),
    )


def _member(stream: IO[bytes], info: zipfile.ZipInfo, head: bytes, path: Path) -> Data:
    """A member as Data, nothing of it on disk. It is read to its end once, so its length and CRC are checked.

    Of a large one the first and last bytes are kept: ELF headers, dynamic symbols and section names lie
    there, so that a file without device code is inflated once, and one with it twice.
    """
    label = f"{path}({info.filename})"
    first = head + stream.read(min(info.file_size, _SMALL))
    last, size = b"", len(first)
    while chunk := stream.read(_SMALL):
        last = (last + chunk)[-_SMALL:]
        size += len(chunk)
    if size != info.file_size:
        raise Data(label, size, lambda _at, _size: b"").error(0, f"{size} bytes, the archive promises {info.file_size}")

    def read(offset: int, count: int) -> bytes:
        if offset + count <= len(first):
            return first[offset : offset + count]
        if offset >= size - len(last):
            return last[offset - size + len(last) :][:count]
        if offset < stream.tell():
            stream.seek(0)  # inflates from the beginning again
        while offset > stream.tell() and stream.read(min(offset - stream.tell(), _SMALL)):
            pass  # seek() would take 16 MiB at a time
        part = io.BytesIO()  # gives its bytes without a copy
        if count:
            part.seek(count - 1)
            part.write(b"\0")  # all its memory at once
            part.seek(0)
        while count > 0 and (chunk := stream.read(min(count, _SMALL))):
            part.write(chunk)
            count -= len(chunk)
        return part.getvalue()

    return Data(label, size, read)


def _evidence(wheel: zipfile.ZipFile, info: zipfile.ZipInfo, data: Data) -> Mapping[str, Any]:
    at = info.header_offset
    if info.file_size > _MAX_EVIDENCE:
        raise data.error(at, f"{info.filename}: {info.file_size} bytes are too many for evidence")
    try:
        value = json.loads(wheel.read(info))
    except (ValueError, RecursionError) as err:
        raise data.error(at, f"{info.filename}: not JSON ({err})") from None
    if not isinstance(value, dict):
        raise data.error(at, f"{info.filename}: found {type(value).__name__}, wanted a JSON object")
    return value


def readable(reports: Iterable[BinaryReport], tools: Sequence[Path] = ()) -> tuple[BinaryReport, ...]:
    """The same with demangled kernel names, all by one process. tools: as demangle() takes them."""
    reports = tuple(reports)
    codes = [code for report in reports for library in report.libraries for code in library.code_objects]
    names = demangled_names({kernel.name for code in codes for kernel in code.kernels}, tools=tools)
    if not names:
        return reports
    made: dict[int, Kernel] = {}  # kernels of similar targets are one object, before and after

    def kernel(one: Kernel) -> Kernel:
        found = made.get(id(one))
        if found is None:
            found = made[id(one)] = one._replace(demangled=names.get(one.name, one.name))
        return found

    def library(one: Library) -> Library:
        codes = (replace(code, kernels=tuple(map(kernel, code.kernels))) for code in one.code_objects)
        return replace(one, code_objects=tuple(codes))

    return tuple(replace(report, libraries=tuple(map(library, report.libraries))) for report in reports)
