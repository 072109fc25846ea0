"""What figures mean: occupancy against clang's own remarks, products, which cards a file serves, the oldest ROCm."""

from __future__ import annotations

import io
import re
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from audit_samples import Samples
from hypothesis import given
from hypothesis import strategies as st

from rocmbuild import targets
from rocmbuild.audit.binary import BinaryReport, Library, inspect
from rocmbuild.audit.codeobject import PROCESSORS
from rocmbuild.audit.meaning import card, kernel_occupancy, oldest_rocm, serves
from rocmbuild.audit.processors import GENERIC, PRODUCTS, Limits, limits, occupancy, products, runs
from rocmbuild.audit.report import audit
from rocmbuild.cli import main
from rocmbuild.errors import InputError
from rocmbuild.toolchain.model import Toolchain


@pytest.fixture(scope="module")
def samples(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("meaning"), toolchain)


# Occupancy


def bounds(processor: str, wave: int = 32, *, mode: bool = True) -> Limits:
    found = limits(processor, wave, workgroup_mode=mode)
    assert found is not None
    return found


def waves(processor: str, vgprs: int, lds: int = 0, groups: tuple[int, int] = (1, 1024), wave: int = 32) -> int:
    return occupancy(bounds(processor, wave), wave=wave, vgprs=vgprs, sgprs=100, lds=lds, groups=groups).waves


def test_golden_values() -> None:
    """By hand, from the size of the register file and its granule: 1536/24, 1024/16 and 1024/8 of 32 lanes."""
    assert [waves("gfx1100", n) for n in (1, 24, 96, 97, 120, 121, 192, 193, 256)] == [16, 16, 16, 12, 12, 10, 8, 7, 5]
    assert [waves("gfx1201", n) for n in (96, 97, 256)] == [16, 12, 5]
    assert [waves("gfx1151", n) for n in (96, 97, 256)] == [16, 12, 5]
    assert [waves("gfx1102", n) for n in (64, 65, 96, 97, 128, 129, 256)] == [16, 12, 10, 9, 8, 7, 4]
    assert [waves("gfx1150", n) for n in (64, 65, 256)] == [16, 12, 4]
    assert [waves("gfx1030", n) for n in (64, 65, 256)] == [16, 12, 4]
    assert [waves("gfx1010", n) for n in (48, 51, 52, 256)] == [20, 18, 18, 4]
    assert [waves("gfx90a", n, wave=64) for n in (64, 65, 512)] == [8, 7, 1]
    assert [waves("gfx1100", n, wave=64) for n in (48, 96, 97, 256)] == [16, 8, 7, 2]


def test_lds_by_hand() -> None:
    """A workgroup processor has 128 KiB for four SIMDs; 1024 bytes are the least that is given out."""
    assert waves("gfx1201", 32, 65536, (1, 256)) == 4  # two workgroups of 8 waves
    assert waves("gfx1201", 32, 65536, (1, 1024)) == 16
    assert waves("gfx1201", 32, 16384, (1, 64)) == 4  # eight of 2 waves
    assert waves("gfx1201", 32, 2048, (1, 32)) == 16  # 64 of one wave
    assert waves("gfx1201", 32, 2049, (1, 32)) == 11  # 42
    assert waves("gfx1201", 32, 200_000, (1, 256)) == 1  # does not fit: clang says 1 too
    assert waves("gfx1201", 32, 0, (64, 64)) == 16  # 32 workgroups of 2 waves: as many as there are barriers
    one = occupancy(bounds("gfx1201", mode=False), wave=32, vgprs=32, sgprs=8, lds=65536, groups=(1, 256))
    assert (one.waves, one.most, one.limited_by) == (4, 16, "LDS")
    assert occupancy(bounds("gfx1201"), wave=32, vgprs=200, sgprs=8, lds=0).limited_by == "VGPR"
    assert occupancy(bounds("gfx1201"), wave=32, vgprs=8, sgprs=8, lds=0, groups=(96, 96)).limited_by == ""
    assert occupancy(bounds("gfx1201"), wave=32, vgprs=8, sgprs=8, lds=0, groups=(640, 640)).limited_by == "workgroup"
    assert occupancy(bounds("gfx803", 64), wave=64, vgprs=8, sgprs=102, lds=0).limited_by == "SGPR"
    assert limits("gfx9999", 32) is None


@given(
    st.sampled_from(["gfx906", "gfx90a", "gfx1010", "gfx1030", "gfx1100", "gfx1102", "gfx1201"]),
    st.integers(1, 256),
    st.integers(0, 65536),
    st.integers(1, 1024),
    st.integers(1, 1024),
)
def test_more_of_anything_never_helps(processor: str, vgprs: int, lds: int, one: int, two: int) -> None:
    wave = 64 if processor.startswith("gfx9") else 32
    groups = (min(one, two), max(one, two))
    here = waves(processor, vgprs, lds, groups, wave)
    assert 1 <= here <= bounds(processor, wave).waves
    assert waves(processor, min(256, vgprs + 8), lds, groups, wave) <= here
    assert waves(processor, vgprs, min(65536, lds + 512), groups, wave) <= here
    assert waves(processor, vgprs, lds, (groups[1], groups[1]), wave) <= here


def remark_source(vgprs: tuple[int, ...], sgprs: tuple[int, ...], lds: tuple[int, ...]) -> str:
    lines = ["#define __global__ __attribute__((global))", "#define __shared__ __attribute__((shared))"]
    for kind, numbers in (("v", vgprs), ("s", sgprs)):
        for n in numbers:
            body = f'asm volatile("" ::: "{kind}{n}"); p[0] = 1;'
            lines.append(f'extern "C" __global__ void {kind}{n}(int *p) {{ {body} }}')
    for size, most in product(lds, (32, 64, 256, 1024)):
        body = f"__shared__ int t[{size // 4}]; t[p[0]] = 1; __builtin_amdgcn_s_barrier(); p[1] = t[p[2]];"
        bound = f"__attribute__((amdgpu_flat_work_group_size(1, {most})))"
        lines.append(
            f'extern "C" __global__ {bound} void l{size}_{most}(int *p) {{ {body if size else ""} p[0] = 1; }}'
        )
    bound = "__attribute__((amdgpu_flat_work_group_size(1, 256), amdgpu_waves_per_eu(2, 2)))"
    lines.append(f'extern "C" __global__ {bound} void padded(int *p) {{ p[0] = 1; }}')
    return "\n".join(lines)


def compare_with_remarks(samples: Samples, target: str, flags: tuple[str, ...], source: str) -> int:
    """Every kernel's occupancy against clang's remark for it; returns how many there are."""
    path, out = samples.folder / "remarks.hip", samples.folder / "remarks.co"
    path.write_text(source)
    words = ["--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-O1", *flags]
    argv = [samples.toolchain.clang, "-x", "hip", "-c", path, "-o", out, f"--offload-arch={target}", *words]
    done = subprocess.run(
        [*map(str, argv), "-Rpass-analysis=kernel-resource-usage"], capture_output=True, text=True, check=False
    )
    if "unsupported HIP gpu architecture" in done.stderr or "invalid target ID" in done.stderr:
        return 0
    assert done.returncode == 0, done.stderr[-500:]
    blocks = done.stderr.split("Function Name: ")[1:]
    said = {block.split()[0]: int(re.search(r"SIMD\]: (\d+)", block)[1]) for block in blocks}  # type: ignore[index]
    (code,) = inspect(out, demangle=False).libraries[0].code_objects
    assert set(said) == {kernel.name for kernel in code.kernels}
    for kernel in code.kernels:
        found = kernel_occupancy(kernel, code.processor)
        assert found is not None
        assert found.waves == said[kernel.name], (target, flags, kernel, found)
    return len(said)


LDS = (0, 1024, 4096, 20480, 65536)  # multiples of every granule: clang leaves granules of LDS out
FAST = [("gfx1201", ()), ("gfx1102", ()), ("gfx1100", ("-mwavefrontsize64",)), ("gfx90a", ())]


@pytest.mark.parametrize(("target", "flags"), FAST)
def test_occupancy_is_what_clang_says(target: str, flags: tuple[str, ...], samples: Samples) -> None:
    source = remark_source((7, 24, 95, 96, 127, 168, 255), (60, 95), LDS)
    assert compare_with_remarks(samples, target, flags, source) == 7 + 2 + 20 + 1


@pytest.mark.slow
def test_occupancy_of_every_processor_is_what_clang_says(samples: Samples) -> None:
    """All that the compiler knows, in both widths and both modes of workgroups."""
    source = remark_source((7, 23, 24, 39, 64, 72, 95, 96, 127, 128, 167, 191, 255), (47, 60, 79, 85, 95, 101), LDS)
    compared = 0
    for target in dict.fromkeys([*PROCESSORS.values(), *GENERIC]):
        if target.startswith("gfx6") or limits(target, 64) is None:
            continue  # no HIP for these
        modes: list[tuple[str, ...]] = [()]
        if target.startswith("gfx1") and not target.startswith("gfx12-5") and target not in ("gfx1250", "gfx1251"):
            modes += [("-mwavefrontsize64",), ("-mcumode",), ("-mcumode", "-mwavefrontsize64")]
        lines = [
            line
            for line in source.split("\n")
            if target not in ("gfx802", "gfx805") or not re.search(r"void s(95|101)\(", line)
        ]
        for flags in modes:
            compared += compare_with_remarks(samples, target, flags, "\n".join(lines))
    assert compared > 3000


# Products and cards


def test_tables_are_of_one_piece() -> None:
    names = set(PROCESSORS.values())
    assert set(PRODUCTS) <= names
    members = {member for group in GENERIC.values() for member in group}
    assert set(GENERIC) <= names
    assert members <= names
    for generic, group in targets.GENERIC.items():
        assert set(group) == set(GENERIC[generic])
    said = [name for group in PRODUCTS.values() for name in group]
    assert len(said) == len(set(said))
    for wanted, target in (("Radeon RX 7900 XTX", "gfx1100"), ("Radeon 8060S", "gfx1151")):
        assert wanted in products(target)
    assert "Radeon AI PRO R9700" in products("gfx1201")
    assert products("gfx12-generic") == (*products("gfx1200"), *products("gfx1201"))
    assert {target for target in targets.DECLARED if limits(target, 32) is None} == set()


@pytest.mark.parametrize(
    ("target", "one", "answer"),
    [
        ("gfx1151", "gfx1151", True),
        ("gfx1151", "gfx1150", False),
        ("gfx11-generic", "gfx1151", True),
        ("gfx11-generic", "gfx1201", False),
        ("gfx9-4-generic:xnack-", "gfx942", True),
        ("gfx90a", "gfx90a:xnack+", True),
        ("gfx90a:xnack+", "gfx90a", False),
        ("gfx90a:xnack+", "gfx90a:xnack+", True),
        ("gfx90a:xnack-", "gfx90a:xnack+", False),
        ("gfx90a:sramecc+:xnack-", "gfx90a", True),
        ("gfx90a:sramecc-", "gfx90a:sramecc+", False),
    ],
)
def test_what_a_card_runs(target: str, one: str, answer: bool) -> None:
    assert runs(target, one) is answer


def test_the_names_of_cards() -> None:
    assert card(" GFX1151 ") == "gfx1151"
    assert card("gfx90a:XNACK+") == "gfx90a:xnack+"
    assert card("AMD Radeon RX 9070 xt") == "gfx1201"
    for word, words in (
        ("gfx11-generic", "a generic target is no card; wanted one of gfx1100"),
        ("gfx1159", "did you mean gfx115"),
        ("7900", "Radeon RX 7900 XT"),
        ("gfx90a:warp+", '"warp+" is no feature'),
        ("", "no processor or product of that name"),
    ):
        with pytest.raises(InputError) as caught:
            card(word)
        assert words in caught.value.message


def unit(samples: Samples, name: str, *archs: str) -> Path:
    flags = ("-mcode-object-version=6",) if any("generic" in arch for arch in archs) else ()
    return samples.make(f"{name}.o", *(f"--offload-arch={arch}" for arch in archs), *flags, kernel=name)


def report(path: Path) -> BinaryReport:
    return inspect(path, demangle=False)


def test_which_cards_a_library_serves(samples: Samples) -> None:
    both = samples.shared(
        "both.so", unit(samples, "one", "gfx1201", "gfx11-generic"), unit(samples, "two", "gfx1201", "gfx1151")
    )
    one = serves(report(both), "gfx1151")
    assert one.answer == "yes"
    (library,) = one.libraries
    assert library.through == ("gfx11-generic", "gfx1151")
    assert library.lowest_occupancy == 16
    part = serves(report(both), "gfx1150")
    assert part.answer == "partly"
    assert "1 of 2 bundles have no code for it" in part.libraries[0].reason
    none = serves(report(both), "gfx90a")
    assert (none.answer, none.libraries[0].answer) == ("no", "no")
    assert "whose waves have 64 lanes" in none.libraries[0].reason
    assert serves(report(samples.folder / "both.so"), "gfx1201").products[0] == "Radeon RX 9070 XT"


def test_a_generic_code_object_is_measured_by_the_card_that_runs_it(samples: Samples) -> None:
    """256 registers leave 4 waves of the 1024 that every gfx11 has, and 5 of the 1536 of gfx1151."""
    (code,) = report(samples.code("gfx11-generic", "-mcode-object-version=6")).libraries[0].code_objects
    kernel = code.kernels[0]._replace(vgpr_allocated=256)
    for processor, wanted in (("gfx11-generic", 4), ("gfx1151", 5), ("gfx1150", 4)):
        found = kernel_occupancy(kernel, processor)
        assert found is not None
        assert found.waves == wanted
    assert kernel_occupancy(kernel, "gfx9999") is None
    fixed = kernel_occupancy(kernel._replace(vgpr_allocated=8, workgroup=(1280 // 2, 1, 1)), "gfx1151")
    assert fixed is not None
    assert (fixed.waves, fixed.limited_by) == (15, "workgroup")


def test_bare_code_objects_are_alternatives(samples: Samples) -> None:
    codes = [report(samples.code(target)) for target in ("gfx1201", "gfx1100")]
    wheel = replace(codes[0], libraries=tuple(library for code in codes for library in code.libraries))
    found = serves(wheel, "gfx1100")
    assert (found.answer, found.libraries[0].name) == ("yes", "1 of 2 code objects")
    assert serves(wheel, "gfx1151").answer == "no"
    host = serves(replace(wheel, libraries=()), "gfx1100")
    assert (host.answer, host.libraries[0].reason) == ("no", "no device code")


def test_code_that_is_not_linked_serves_nobody(samples: Samples) -> None:
    path = samples.make("loose.o", "--offload-arch=gfx1201", "-fgpu-rdc")
    found = serves(report(path), "gfx1201")
    assert (found.answer, found.libraries[0].reason) == ("no", "its device code is not linked")


def test_the_oldest_rocm(samples: Samples) -> None:
    def floor(path: Path) -> tuple[str, str]:
        found = oldest_rocm(report(path).libraries[0])
        return found.version, found.reason

    assert floor(samples.code("gfx1201", "-mcode-object-version=5")) == ("", "")
    assert floor(samples.code("gfx1201", "-mcode-object-version=6")) == ("6.3", "code object version 6")
    assert floor(samples.bundle("floor3.hipfb", ["gfx1201"], version=3))[0] == "7.1"
    library: Library = report(samples.bundle("floor2.hipfb", ["gfx1201"], version=2)).libraries[0]
    assert oldest_rocm(replace(library, code_objects=())).version == "6.2"


def test_the_command(samples: Samples, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = SimpleNamespace(buffer=io.BytesIO(b"hipcc -c a.hip --offload-arch=gfx1201 -mno-wavefrontsize64\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    path = str(samples.shared("cli.so", unit(samples, "three", "gfx12-generic")))
    assert main(["audit", path, "--for", "gfx1201"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "for gfx1201 (Radeon RX 9070 XT" in text
    assert "through gfx12-generic, ROCm 6.3 or newer" in text
    assert main(["audit", path, "--for", "gfx1201,gfx1151", "--json"]) == 1
    assert '"answer": "no"' in capsys.readouterr().out
    assert main(["audit", path, "--for", "gfx1100"]) == 1
    assert "audit: does not serve gfx1100, 4 kernels in 1 code object," in " ".join(capsys.readouterr().out.split())
    assert main(["audit", "-", "--for", "gfx1201"]) == 2  # a card runs files, not commands
    assert "--for asks about a file" in capsys.readouterr().err
    assert main(["audit", path, "--for", "gfx1202"]) == 2
    assert "did you mean" in capsys.readouterr().err
    found = audit([Path(path)], cards=["gfx1100"])
    assert not found.ok
    assert found.to_json()["served"][0]["libraries"][0]["reason"].startswith("no code for gfx1100")
