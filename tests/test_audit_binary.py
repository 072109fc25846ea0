"""Binaries looked into, and the same told by LLVM's own tools."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgpack
import pytest
from audit_samples import Samples, extracted, readelf_many, readelf_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import require

from rocmbuild.audit.binary import BinaryReport, Library, inspect
from rocmbuild.audit.codeobject import PROCESSORS, CodeObject, default_wave, read_code_object
from rocmbuild.audit.container import images
from rocmbuild.audit.demangle import demangle, short_name
from rocmbuild.audit.source import from_bytes
from rocmbuild.errors import InputError
from rocmbuild.paths import cache_dir
from rocmbuild.toolchain.model import Toolchain


@pytest.fixture(scope="module")
def samples(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("samples"), toolchain)


def only(report: BinaryReport) -> Library:
    (library,) = report.libraries
    return library


FIGURES = {
    "wave": ".wavefront_size",
    "vgpr": ".vgpr_count",
    "sgpr": ".sgpr_count",
    "agpr": ".agpr_count",
    "vgpr_spill": ".vgpr_spill_count",
    "sgpr_spill": ".sgpr_spill_count",
    "lds": ".group_segment_fixed_size",
    "scratch": ".private_segment_fixed_size",
    "max_workgroup": ".max_flat_workgroup_size",
    "argument_bytes": ".kernarg_segment_size",
    "name": ".name",
    "symbol": ".symbol",
}


def same_as_readelf(samples: Samples, pairs: Sequence[tuple[CodeObject, Path]]) -> int:
    """Targets and every figure of every kernel against llvm-readelf's; returns the number of kernels."""
    total = 0
    for (code, path), (target, theirs) in zip(pairs, readelf_many(samples, [p for _, p in pairs]), strict=True):
        assert code.target == target, path
        assert len(code.kernels) == len(theirs), path
        for kernel, other in zip(code.kernels, theirs, strict=True):
            assert {key: getattr(kernel, key) for key in FIGURES} == {key: other.get(n) for key, n in FIGURES.items()}
            assert kernel.descriptor_wave == kernel.wave
        total += len(theirs)
    return total


CODES = [
    ("gfx1201", "-mno-wavefrontsize64"),
    ("gfx1201", "-mwavefrontsize64"),
    ("gfx90a:xnack+:sramecc-", "-mcode-object-version=5"),
    ("gfx11-generic", "-mcode-object-version=6"),
]
MORE_CODES = [
    ("gfx906", "-mcode-object-version=4"),
    ("gfx942", "-mno-wavefrontsize64"),
    ("gfx9-4-generic", "-mcode-object-version=6"),
    ("gfx1030", "-mwavefrontsize64"),
    ("gfx1151", "-O0"),
    ("gfx1250", "-O1"),
    ("gfx12-generic", "-mcode-object-version=6"),
    ("gfx1201", "-foffload-lto"),  # one metadata note for each partition
]


@pytest.mark.parametrize(
    ("target", "flag"), [*CODES, *(pytest.param(*code, marks=pytest.mark.slow) for code in MORE_CODES)]
)
def test_code_objects_read_as_llvm_readelf_reads_them(target: str, flag: str, samples: Samples) -> None:
    path = samples.code(target, flag)
    library = only(inspect(path))
    (code,) = library.code_objects
    assert (library.kind, library.bundles, library.findings) == ("code object", (), ())
    assert same_as_readelf(samples, [(code, path)]) == 4
    assert code.note_target == code.target
    wide = flag == "-mwavefrontsize64" or default_wave(target) == 64
    assert {kernel.wave for kernel in code.kernels} == {64 if wide else 32}
    assert code.generic_version == (1 if "generic" in target else 0)
    by_name = {kernel.name: kernel for kernel in code.kernels}
    assert (by_name["plain"].max_workgroup, by_name["plain"].arguments) == (128, ("global_buffer 8",))
    assert by_name["_ZN6sample5scaleIfEEvPT_S1_"].lds == 256
    assert by_name["_Z13scratch_plainPii"].scratch >= 160


def test_every_processor_number(samples: Samples) -> None:
    """The table against llvm-readelf, for all 256 values of the field."""
    data = bytearray(samples.code("gfx1201").read_bytes())
    paths = []
    for number in range(256):
        data[48] = number
        paths.append(samples.folder / f"mach{number:03d}")
        paths[-1].write_bytes(data)
    text = samples.run(samples.tool("llvm-readelf"), "--file-headers", *paths)
    flags = [line.split() for line in text.splitlines() if line.strip().startswith("Flags:")]
    known = {number: words[2] for number, words in enumerate(flags) if len(words) > 2 and words[2].startswith("gfx")}
    assert len(known) > 50
    assert {number: PROCESSORS.get(number) for number in known} == known


@pytest.mark.parametrize("abi", [1, 2, 4])
def test_feature_flags(abi: int, samples: Samples) -> None:
    """xnack and sramecc in all states, code object V3, V4 and V6, against llvm-readelf."""
    data = bytearray(samples.code("gfx90a:xnack+:sramecc-").read_bytes())
    for state in range(16):
        data[8] = abi
        data[48:52] = struct.pack("<I", 0x3F | state << 8)
        path = samples.folder / f"state{abi}_{state}"
        path.write_bytes(data)
        wanted = readelf_target(samples, path)
        if abi == 1:  # readelf writes V3's flags without a sign
            text = samples.run(samples.tool("llvm-readelf"), "--file-headers", path)
            wanted = "gfx90a" + "".join(f":{name}+" for name in ("sramecc", "xnack") if f", {name}" in text)
        assert read_code_object(from_bytes("x", bytes(data))).target == wanted


def test_a_processor_newer_than_the_table_is_named_by_the_note(samples: Samples) -> None:
    data = bytearray(samples.code("gfx1201").read_bytes())
    data[48] = 0xFE
    assert read_code_object(from_bytes("x", bytes(data))).target == "gfx1201"


def two_targets(samples: Samples, *flags: str) -> Path:
    """A shared object of two units, each for two targets."""
    tag = "".join(flag.strip("-") for flag in flags)
    archs = ("--offload-arch=gfx1201", "--offload-arch=gfx90a:xnack-")
    units = [samples.make(f"{name}{tag}.o", *archs, *flags, kernel=name) for name in ("one", "two")]
    return samples.shared(f"lib{tag}.so", *units)


@pytest.mark.parametrize("flags", [(), ("--offload-compress",)])
def test_fat_binaries_of_several_units_read_as_llvm_reads_them(flags: tuple[str, ...], samples: Samples) -> None:
    path = two_targets(samples, *flags)
    library = only(inspect(path))
    theirs = extracted(samples, path, library.bundles)
    assert [code.target for code in library.code_objects] == [target for target, _ in theirs]
    assert len(theirs) == 4
    for code, (_, other) in zip(library.code_objects, theirs, strict=True):
        assert same_as_readelf(samples, [(code, other)]) == 4
        assert code.size == other.stat().st_size
    assert library.findings == ()
    assert [b.version for b in library.bundles] == ([3, 3] if flags else [0, 0])
    assert library.targets == ("gfx1201", "gfx90a:xnack-")
    names = {kernel.demangled for code in library.code_objects for kernel in code.kernels}
    assert "void sample::scale<float>(float*, float)" in names


@pytest.mark.parametrize("version", [2, 3])
def test_loose_bundles(version: int, samples: Samples) -> None:
    path = samples.bundle(f"loose{version}.hipfb", ["gfx1201", "gfx1100"], version=version)
    library = only(inspect(path))
    assert (library.kind, library.targets, library.host) == ("bundle", ("gfx1100", "gfx1201"), None)
    for code, target in zip(library.code_objects, ("gfx1201", "gfx1100"), strict=True):
        assert same_as_readelf(samples, [(code, samples.code(target))]) == 4


def test_objects_and_archives(samples: Samples) -> None:
    short = samples.make("unit.o", "--offload-arch=gfx1201")
    long = samples.make("a_unit_with_quite_a_long_name.o", "--offload-arch=gfx1100")
    assert only(inspect(short)).kind == "object"
    archive = samples.folder / "lib.a"
    samples.run(samples.tool("llvm-ar"), "rc", archive, short, long, samples.folder / "plain.hip")
    report = inspect(archive)
    assert [(lib.name, lib.targets) for lib in report.libraries] == [
        (f"{archive}(unit.o)", ("gfx1201",)),
        (f"{archive}(a_unit_with_quite_a_long_name.o)", ("gfx1100",)),
    ]
    bsd = samples.folder / "bsd.a"
    samples.run(samples.tool("llvm-ar"), "--format=bsd", "rc", bsd, long)
    assert [lib.targets for lib in inspect(bsd).libraries] == [("gfx1100",)]
    thin = samples.folder / "thin.a"
    samples.run(samples.tool("llvm-ar"), "rc", "--thin", thin, short)
    with pytest.raises(InputError, match="thin archive"):
        inspect(thin)
    damaged = samples.folder / "damaged.a"
    damaged.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"damaged\.a: offset 0x.*archive member"):
        inspect(damaged)


def test_device_code_that_is_not_linked(samples: Samples) -> None:
    """An -fgpu-rdc object holds bitcode; a library made of it without the device link lacks its fat binary."""
    unit = samples.make("rdc.o", "--offload-arch=gfx1201", "-fgpu-rdc", "-fvisibility=default")
    library = only(inspect(unit))
    assert [(code.format, code.target) for code in library.code_objects] == [("bitcode", "gfx1201")]
    assert [finding.rule for finding in library.findings] == ["not-linked"]
    source = samples.folder / "undefined.c"
    source.write_text("extern char __hip_fatbin_0123[]; char *get(void) { return __hip_fatbin_0123; }\n")
    out = samples.folder / "undefined.so"
    samples.run("cc", "-shared", "-fPIC", source, "-o", out)
    assert [(f.severity, f.rule) for f in only(inspect(out)).findings] == [("error", "rdc-not-linked")]


def test_objects_of_the_newer_driver(samples: Samples) -> None:
    """.llvm.offloading: the same images that llvm-objdump lists; cut short or bent it is one error."""
    flags = ("--offload-arch=gfx1201", "--offload-arch=gfx90a:xnack+", "--offload-new-driver", "-fgpu-rdc")
    unit = samples.make("newer.o", *flags, "-fvisibility=default")
    library = only(inspect(unit))
    assert [(code.format, code.target) for code in library.code_objects] == [
        ("bitcode", "gfx1201"),
        ("bitcode", "gfx90a:xnack+"),
    ]
    assert {finding.rule for finding in library.findings} == {"not-linked"}
    listed = samples.run(samples.tool("llvm-objdump"), "--offloading", unit)
    assert re.findall(r"arch +(\S+)", listed) == [code.target for code in library.code_objects]
    section = samples.folder / "offloading"
    samples.run(samples.tool("llvm-objcopy"), f"--dump-section=.llvm.offloading={section}", unit, "/dev/null")
    data = section.read_bytes()
    assert [image.triple for image in images(from_bytes("x", data))] == ["amdgcn-amd-amdhsa"] * 2
    for length in (1, 3, 20, 40, 100, 130, len(data) // 2, len(data) - 1):
        with pytest.raises(InputError, match=r"^x: offset 0x"):
            list(images(from_bytes("x", data[:length])))
    bent = {
        4: b"\2",
        8: b"\1\0\0\0",
        16: b"\xff" * 8,
        40: b"\xff" * 4,
        48: b"\xff" * 8,
        56: b"\xff" * 8,
        64: b"\xff" * 8,
    }
    for at, noise in bent.items():
        with pytest.raises(InputError, match=r"^x: offset 0x"):
            list(images(from_bytes("x", data[:at] + noise + data[at + len(noise) :])))


def test_the_host_side(samples: Samples) -> None:
    """Needed libraries and undefined symbols by kind, against llvm-nm."""
    source = samples.folder / "host.cpp"
    source.write_text(
        "namespace at { struct Tensor { int dim() const; }; } namespace c10 { void check(int); }\n"
        "namespace atlas { void other(); }\n"
        'extern "C" { int hipMalloc(); int __hipRegisterFunction(); int aoti_torch_empty();\n'
        "int torch_call_dispatcher(); int PyLong_AsLong(); int sin_of_something(); }\n"
        "int all(at::Tensor &t) { c10::check(t.dim()); atlas::other();\n"
        "return hipMalloc() + __hipRegisterFunction() + aoti_torch_empty() + torch_call_dispatcher() +"
        " PyLong_AsLong() + sin_of_something(); }\n"
    )
    out = samples.folder / "host.so"
    stub = samples.folder / "libtorch.so"
    samples.run("cc", "-shared", "-x", "c", "/dev/null", "-o", stub, "-Wl,-soname,libtorch.so")
    link = ("-Wl,-soname,host.so.1", "-Wl,--no-as-needed", stub)
    samples.run("c++", "-shared", "-fPIC", source, "-o", out, *link)
    host = only(inspect(out)).host
    assert host is not None
    assert (host.soname, host.needed[0]) == ("host.so.1", "libtorch.so")
    assert host.hip == ("__hipRegisterFunction", "hipMalloc")
    assert host.torch_stable == ("aoti_torch_empty", "torch_call_dispatcher")
    assert host.torch_cxx == ("_ZN3c105checkEi", "_ZNK2at6Tensor3dimEv")
    assert host.python == ("PyLong_AsLong",)
    undefined = samples.run(samples.tool("llvm-nm"), "-D", "--undefined-only", "--format=just-symbols", out).split()
    assert {*host.hip, *host.torch_stable, *host.torch_cxx, *host.python} <= set(undefined)


def metadata(data: bytes, change: object) -> bytes:
    """A code object with its metadata note replaced by a smaller one."""
    at = data.index(b"AMDGPU\0\0") + 8
    (size,) = struct.unpack_from("<I", data, at - 16)
    raw = change if isinstance(change, bytes) else msgpack.packb(change)
    assert len(raw) <= size, "the replacement must fit"
    return (
        data[: at - 16] + struct.pack("<I", len(raw)) + data[at - 12 : at] + raw.ljust(size, b"\0") + data[at + size :]
    )


KERNEL = {
    ".name": "k",
    ".symbol": "k.kd",
    ".wavefront_size": 32,
    ".vgpr_count": 1,
    ".sgpr_count": 1,
    ".group_segment_fixed_size": 0,
    ".private_segment_fixed_size": 0,
}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (b"\xc1\xff\xff", "metadata note is damaged"),
        (b"\xdf\xff\xff\xff\xff", "metadata note is damaged"),
        (b"\x91" * 2000, "no list of kernels"),
        (b"\x81\xa3abc" + b"\x91" * 2000, "metadata note is damaged"),
        (b"\x80\x80", "metadata note is damaged (ValueError: 1 bytes follow)"),
        (b"\x81\x90\x01", "metadata note is damaged"),
        ([], "no list of kernels"),
        ({"amdhsa.kernels": {}}, "no list of kernels"),
        ({"amdhsa.kernels": [1]}, "no list of kernels"),
        ({"amdhsa.kernels": [{**KERNEL, ".name": 3}]}, ".name is 3, wanted a name"),
        ({"amdhsa.kernels": [{**KERNEL, ".vgpr_count": "many"}]}, ".vgpr_count is 'many', wanted a count"),
        ({"amdhsa.kernels": [{**KERNEL, ".sgpr_count": -1}]}, ".sgpr_count is -1, wanted a count"),
        (
            {"amdhsa.kernels": [{k: v for k, v in KERNEL.items() if k != ".wavefront_size"}]},
            ".wavefront_size is missing",
        ),
    ],
)
def test_damaged_metadata(tree: object, words: str, samples: Samples) -> None:
    data = samples.code("gfx1201").read_bytes()
    if isinstance(tree, bytes):
        tree = tree[:1400]
    with pytest.raises(InputError, match=r"^x: offset 0x0") as caught:
        read_code_object(from_bytes("x", metadata(data, tree)))
    assert words in caught.value.message


def test_what_the_metadata_and_the_descriptor_disagree_about(samples: Samples) -> None:
    data = samples.code("gfx1201").read_bytes()
    wide = samples.folder / "wide.co"
    wide.write_bytes(data.replace(b".wavefront_size ", b".wavefront_size@"))
    library = only(inspect(wide))
    kernel = library.code_objects[0].kernels[0]
    assert (kernel.wave, kernel.descriptor_wave) == (64, 32)
    assert {finding.rule for finding in library.findings} == {"wave-mismatch"}
    lost = samples.folder / "lost.co"
    lost.write_bytes(metadata(data, {"amdhsa.kernels": [KERNEL]}))
    assert [finding.rule for finding in only(inspect(lost)).findings] == ["descriptor-missing"]


def test_what_cannot_be_seen_is_said(samples: Samples) -> None:
    """A library without section headers, and one whose fat binary has another section's name."""
    path = samples.folder / "odd.so"
    data = bytearray(two_targets(samples).read_bytes())
    path.write_bytes(data.replace(b".hip_fatbin\0", b".hip_fatlin\0"))
    assert [(f.severity, f.rule) for f in only(inspect(path)).findings] == [("error", "fatbin-missing")]
    data[40:48] = data[60:64] = b"\0" * 8  # e_shoff, e_shnum
    path.write_bytes(data)
    assert [(f.severity, f.rule) for f in only(inspect(path)).findings] == [("error", "no-sections")]


def test_sections_and_archives_that_repeat_themselves(samples: Samples) -> None:
    """65,000 headers of one section, and archives one inside the other: an answer at once."""
    path = samples.folder / "repeated.so"
    data = bytearray(two_targets(samples).read_bytes())
    (start,), (number,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    headers = [bytes(data[start + 64 * i : start + 64 * i + 64]) for i in range(number)]
    fatbin = next(i for i, row in enumerate(headers) if struct.unpack_from("<Q", row, 32)[0] > 20_000)
    data[40:48] = struct.pack("<Q", len(data))
    data[60:62] = struct.pack("<H", 65_000)
    path.write_bytes(data + b"".join(headers) + headers[fatbin] * (65_000 - number))
    with pytest.raises(InputError, match="overlap"):
        inspect(path)
    inner = b"!<arch>\n"
    for _ in range(2000):
        inner = b"!<arch>\n" + f"{'x/':<48}{len(inner):<10}`\n".encode() + inner + b"\n" * (len(inner) & 1)
    (samples.folder / "nested.a").write_bytes(inner)
    with pytest.raises(InputError, match="nothing to look into"):
        inspect(samples.folder / "nested.a")


def test_code_objects_in_the_wrong_bundle_entry(samples: Samples) -> None:
    swapped = samples.folder / "swapped.hipfb"
    data = samples.bundle("right.hipfb", ["gfx1201", "gfx1100"]).read_bytes()
    swapped.write_bytes(data.replace(b"--gfx1201", b"--gfx1102", 1))
    (finding,) = only(inspect(swapped)).findings
    assert (finding.severity, finding.rule) == ("error", "target-mismatch")
    assert "the bundle says gfx1102, the code object in it gfx1201" in finding.message


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("empty", b"", "nothing to look into (empty)"),
        ("text.so", b"hello, I am no library", "begins with 68 65 6c 6c"),
        ("short.so", b"\x7fELF\x02\x01", "nothing to look into"),
        ("wide.so", b"\x7fELF\x01\x01" + b"\0" * 60, "nothing to look into"),
        ("bitcode.bc", b"BC\xc0\xde" + b"\0" * 40, "LLVM bitcode"),
        ("cut.whl", b"PK\x03\x04" + b"\0" * 40, "not a sound zip archive"),
    ],
)
def test_alien_files(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        inspect(tmp_path / name)
    assert name in caught.value.message
    assert words in caught.value.message


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.so: cannot be read \(No such file"):
        inspect(tmp_path / "gone.so")
    with pytest.raises(InputError, match="not a regular file"):
        inspect(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        inspect(tmp_path / "pipe")


def test_every_truncation_of_real_files_is_one_error(samples: Samples) -> None:
    code = samples.code("gfx1201").read_bytes()
    for length in range(0, len(code) - 1, 13):
        with pytest.raises(InputError):
            read_code_object(from_bytes("x", code[:length]))
    path = samples.folder / "cut.so"
    for source in (two_targets(samples), samples.bundle("cut3.hipfb", ["gfx1201"], version=3)):
        data = source.read_bytes()
        for length in range(1, len(data) - 1, max(1, len(data) // 60)):
            path.write_bytes(data[:length])
            with pytest.raises(InputError, match=r"cut\.so"):
                inspect(path, demangle=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bent_files_are_read_or_refused(data: st.DataObject, samples: Samples) -> None:
    """Bytes overwritten anywhere in real files: an answer or one InputError, never another exception."""
    files = [samples.code("gfx1201"), two_targets(samples), samples.bundle("bent.hipfb", ["gfx1201"], version=2)]
    content = bytearray(data.draw(st.sampled_from(files), label="file").read_bytes())
    for _ in range(data.draw(st.integers(1, 6), label="changes")):
        at = data.draw(st.one_of(st.integers(0, 300), st.integers(0, len(content) - 9)), label="at")
        noise = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"\0" * 8])))
        content[at : at + len(noise)] = noise
    path = samples.folder / "bent"
    path.write_bytes(content)
    try:
        inspect(path, demangle=False)
    except InputError as err:
        assert "bent" in err.message


# Wheels


def make_wheel(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_wheel(method: int, samples: Samples, tmp_path: Path) -> None:
    library = two_targets(samples).read_bytes()
    members = {
        "p/__init__.py": b"",
        "p/lib/k.so": library,
        "p/lib/x.co": samples.code("gfx1201").read_bytes(),
        "p/data.bin": b"\x7fEL",
        "p-1.dist-info/rocmbuild.json": b'{"format": 1, "targets": ["gfx1201"]}',
    }
    report = inspect(make_wheel(tmp_path / "p-1-py3-none-any.whl", members, method))
    assert report.wheel
    assert report.evidence == {"format": 1, "targets": ["gfx1201"]}
    assert [(lib.name, lib.targets) for lib in report.libraries] == [
        ("p/lib/k.so", ("gfx1201", "gfx90a:xnack-")),
        ("p/lib/x.co", ("gfx1201",)),
    ]
    loose = only(inspect(two_targets(samples)))
    assert [code.to_json() for code in report.libraries[0].code_objects] == [c.to_json() for c in loose.code_objects]


def test_a_member_larger_than_what_is_kept_of_it(samples: Samples, tmp_path: Path) -> None:
    """A library of 12 MiB whose device code lies in the middle, read by seeking in the compressed member."""
    source = samples.folder / "big.s"
    half = 6 << 20
    source.write_text(f'.section .a,"a"\n.fill {half},1,1\n.section .z,"a"\n.fill {half},1,2\n')
    samples.run("cc", "-c", source, "-o", samples.folder / "big.o")
    script = samples.folder / "middle.ld"
    script.write_text(
        "SECTIONS { .a : { *(.a) } .hip_fatbin : { *(.hip_fatbin) } .z : { *(.z) } } INSERT AFTER .data;\n"
    )
    unit = samples.make("middle.o", "--offload-arch=gfx1201")
    big = samples.folder / "big.so"
    samples.run("cc", "-shared", "-o", big, samples.folder / "big.o", unit, f"-Wl,-T,{script}")
    assert big.stat().st_size > 2 * half
    wheel = make_wheel(tmp_path / "big-1-py3-none-any.whl", {"big.so": big.read_bytes()})
    (inside,) = inspect(wheel).libraries
    assert inside.code_objects
    assert inside.to_json() == {**only(inspect(big)).to_json(), "name": "big.so"}


def test_damaged_wheels(samples: Samples, tmp_path: Path) -> None:
    noise = hashlib.shake_256(b"noise").digest(5 << 20)
    path = make_wheel(tmp_path / "d-1-py3-none-any.whl", {"a.so": two_targets(samples).read_bytes() + noise}, 0)
    good = path.read_bytes()
    for at in (200, 4 << 20):  # a wrong byte in the beginning and far behind: the CRC tells of both
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(InputError, match=r"d-1-py3-none-any\.whl.*(CRC|offset)"):
            inspect(path)
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(InputError, match="not a sound zip archive"):
        inspect(path)
    for evidence, words in ((b"{", "not JSON"), (b"[]", "wanted a JSON object")):
        make_wheel(path, {"d-1.dist-info/rocmbuild.json": evidence})
        with pytest.raises(InputError, match=words):
            inspect(path)


def test_links_and_names_in_wheels(samples: Samples, tmp_path: Path) -> None:
    """A symbolic link is not followed; a name that climbs out or is not ASCII is only a name."""
    path = tmp_path / "l-1-py3-none-any.whl"
    code = samples.code("gfx1201").read_bytes()
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as wheel:
        link = zipfile.ZipInfo("link.so")
        link.external_attr = 0o120777 << 16
        wheel.writestr(link, "/etc/passwd")
        wheel.writestr("../out.co", code)
        wheel.writestr("größe.co", code)
    before = sorted(tmp_path.rglob("*"))
    assert [lib.name for lib in inspect(path).libraries] == ["../out.co", "größe.co"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wheel_bomb_is_not_unpacked_into_memory(tmp_path: Path) -> None:
    """256 MiB of zeros behind an ELF magic: refused, with a peak far below its size."""
    path = tmp_path / "bomb-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel, wheel.open("a.so", "w") as member:
        member.write(b"\x7fELF\x02\x01" + b"\0" * 58)
        for _ in range(16):
            member.write(b"\0" * (16 << 20))
    code = (
        "import re, sys; from pathlib import Path; from rocmbuild.audit.binary import inspect\n"
        "library, = inspect(Path(sys.argv[1])).libraries\n"
        "print(library.size, re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    size, peak = map(int, done.stdout.split())
    assert size == (1 << 28) + 64
    assert peak < 120_000, "KiB"


# Names


def test_names() -> None:
    assert short_name("void sample::scale<float>(float*, float)") == "sample::scale<float>"
    assert short_name("void (anonymous namespace)::k<(Mode)1>(int (*)(int))") == "(anonymous namespace)::k<(Mode)1>"
    assert short_name("plain") == "plain"
    assert short_name("()") == "()"


def test_demangling_uses_what_is_there(samples: Samples, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["_ZN6sample5scaleIfEEvPT_S1_", "plain", "_Z1f\n_Z1g"]
    wanted = {"_ZN6sample5scaleIfEEvPT_S1_": "void sample::scale<float>(float*, float)"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demangle(names) == {}
    assert demangle(names, tools=[tmp_path / "none", samples.tool("llvm-cxxfilt")]) == wanted
    (tmp_path / "c++filt").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "c++filt").chmod(0o755)
    assert demangle(names) == {}


# Other people's files


def downloaded(pattern: str, requirement: str, *words: str) -> Path:
    """A wheel from the package index, fetched once."""
    store = cache_dir() / "tests"
    if not any(store.glob(pattern)):
        store.mkdir(parents=True, exist_ok=True)
        flags = ("download", "--no-deps", "--only-binary=:all:", "-q", *words)
        argv = [sys.executable, "-m", "pip", *flags, "-d", str(store), requirement]
        if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
            require(f"{requirement} from the package index")
    return next(store.glob(pattern))


def fat_libraries(samples: Samples, wheel: Path) -> tuple[BinaryReport, int]:
    """Every library with device code in a wheel compared, whole, with what LLVM's own tools print; kernels compared."""
    report = inspect(wheel)
    total = 0
    with zipfile.ZipFile(wheel) as archive:
        for library in report.device_libraries:
            path = samples.folder / Path(library.name).name
            path.write_bytes(archive.read(library.name))
            theirs = extracted(samples, path, library.bundles)
            assert [code.target for code in library.code_objects] == [target for target, _ in theirs]
            pairs = [(code, other) for code, (_, other) in zip(library.code_objects, theirs, strict=True)]
            assert [code.size for code, _ in pairs] == [other.stat().st_size for _, other in pairs]
            total += same_as_readelf(samples, pairs)
            assert library.findings == ()
            for used in (path, *(other for _, other in theirs)):
                used.unlink()
    return report, total


@pytest.mark.slow
def test_bitsandbytes_reads_as_llvm_reads_it(samples: Samples) -> None:
    """All six ROCm libraries, compressed in two formats, up to 25 targets."""
    words = ("--platform", "manylinux_2_24_x86_64")
    report, total = fat_libraries(samples, downloaded("bitsandbytes-0.50.2-*.whl", "bitsandbytes==0.50.2", *words))
    assert total == 19075
    assert [len(library.targets) for library in report.device_libraries] == [14, 15, 15, 25, 25, 15]


@pytest.mark.slow
def test_cupy_reads_as_llvm_reads_it(samples: Samples) -> None:
    """Plain bundles of up to 142 MiB, with names of thousands of characters."""
    words = ("--platform", "manylinux2014_x86_64", "--python-version", "3.11")
    report, total = fat_libraries(samples, downloaded("cupy_rocm_7_0-14.2.0-*.whl", "cupy-rocm-7-0==14.2.0", *words))
    assert total == 20304
    assert [len(library.code_objects) for library in report.device_libraries] == [9, 9, 9]


@pytest.mark.slow
def test_aiter_reads_as_llvm_reads_it(samples: Samples) -> None:
    """2613 bare code objects of versions 4 to 6, many from an assembler."""
    wheel = downloaded("amd_aiter-0.1.7.post2.dev18-*.whl", "amd-aiter==0.1.7.post2.dev18")
    report = inspect(wheel)
    assert {library.kind for library in report.libraries} == {"code object"}
    folder = samples.folder / "aiter"
    folder.mkdir()
    pairs = []
    with zipfile.ZipFile(wheel) as archive:
        for number, library in enumerate(report.libraries):
            path = folder / f"{number}.co"
            path.write_bytes(archive.read(library.name))
            pairs.append((library.code_objects[0], path))
            assert library.findings == ()
    assert same_as_readelf(samples, pairs) == len(pairs) == 2613
    assert Counter(code.target for code, _ in pairs) == {"gfx942": 1281, "gfx950": 1332}
    assert {code.version for code, _ in pairs} == {4, 5, 6}
