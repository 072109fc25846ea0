"""Facts about toolchains: asked of real compilers, and of ones that were made to lack something."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import PROJECTS, needs_toolchain, needs_torch_sdk, require

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import run
from rocmbuild.targets import DECLARED, GENERIC
from rocmbuild.toolchain import probe as probes
from rocmbuild.toolchain.elf import read_code_object
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.probe import probe, probe_target, uncompilable

pytestmark = needs_toolchain


@pytest.fixture(autouse=True)
def _cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))


def bent(real: Toolchain, folder: Path, script: str) -> Toolchain:
    """The toolchain with another driver in front of it. script: sh, with the real one in $clang."""
    folder.mkdir(parents=True, exist_ok=True)
    driver = folder / "clang++"
    driver.write_text(f"#!/bin/sh\nclang={real.clang}\n{script}\n")
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    return replace(real, clang=driver, digest=script)


def test_all_facts_of_the_toolchain(toolchain: Toolchain) -> None:
    facts = probe(toolchain)
    assert facts.headers == ""
    assert [fact.target for fact in facts.targets] == [*DECLARED, *GENERIC]
    assert {(fact.target, fact.wave, fact.ok) for fact in facts.targets} == {
        (t, 32, True) for t in (*DECLARED, *GENERIC)
    }
    assert {fact.code_object for fact in facts.targets if fact.target in GENERIC} == {6}
    assert facts.code_object >= 4
    assert 2 in facts.bundle_formats
    assert facts.compression in ("zstd", "zlib")
    assert facts.hipcc.version
    assert all(fact.soname.startswith("libamdhip64.so.") for fact in facts.runtimes)
    assert json.loads(json.dumps(facts.to_json()))["clang_version"] == toolchain.clang_version


def test_what_is_known_is_not_asked_again(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe_target(toolchain, "gfx1201")
    monkeypatch.setattr(probes, "run", lambda *a, **k: pytest.fail("a process was started"))
    assert probe_target(toolchain, "gfx1201") == first
    assert uncompilable(toolchain, ["gfx1201"]) == ()


def test_another_compiler_file_is_asked_anew(toolchain: Toolchain, tmp_path: Path) -> None:
    made = bent(toolchain, tmp_path / "bin", 'exec "$clang" "$@"')
    assert probe_target(made, "gfx1100").ok
    bent(toolchain, tmp_path / "bin", "echo error: out of order >&2; exit 1")
    assert probe_target(made, "gfx1100").reason == "error: out of order"


def test_a_target_that_the_compiler_does_not_know(toolchain: Toolchain, tmp_path: Path) -> None:
    """As one from before the generic targets answers (they came with code object V6)."""
    unknown = 'exec "$clang" --offload-arch=gfx1170 -x hip -c /dev/null -o /dev/null -nogpulib'
    script = f'case "$*" in *generic*) {unknown};; esac\nexec "$clang" "$@"'
    made = bent(toolchain, tmp_path / "bin", script)
    ((target, reason),) = uncompilable(made, ["gfx1201", "gfx11-generic"])
    assert target == "gfx11-generic"
    assert "gfx1170" in reason


def test_a_missing_device_library_is_the_reason(toolchain: Toolchain, tmp_path: Path) -> None:
    libs = tmp_path / "bitcode"
    shutil.copytree(toolchain.device_libs, libs)
    (libs / "oclc_isa_version_1151.bc").unlink()
    made = replace(toolchain, device_libs=libs)
    ((target, reason),) = uncompilable(made, ["gfx1150", "gfx1151"])
    assert target == "gfx1151"
    assert "device library" in reason


def test_wave64_code_is_no_answer(toolchain: Toolchain, tmp_path: Path) -> None:
    made = bent(toolchain, tmp_path / "bin", 'exec "$clang" "$@" -mwavefrontsize64')
    fact = probe_target(made, "gfx1201")
    assert (fact.ok, fact.wave) == (False, 64)
    assert fact.reason == "its kernels have waves of 64 lanes, wanted 32"
    other = bent(toolchain, tmp_path / "other", 'exec "$clang" "$@" --no-offload-arch=all --offload-arch=gfx1100')
    assert probe_target(other, "gfx1201").reason == "asked for gfx1201, the code object is for gfx1100"


@pytest.fixture
def _one_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "DECLARED", ("gfx1201",))
    monkeypatch.setattr(probes, "GENERIC", ())


@pytest.mark.usefixtures("_one_target")
def test_a_bundler_that_cannot_compress(toolchain: Toolchain, tmp_path: Path) -> None:
    bundler = tmp_path / "clang-offload-bundler"
    bundler.write_text("#!/bin/sh\necho unknown argument >&2; exit 1\n")
    bundler.chmod(0o755)
    facts = probe(replace(toolchain, bundler=bundler, digest="no bundles"))
    assert (facts.bundle_formats, facts.compression) == ((), "")


@pytest.mark.usefixtures("_one_target")
def test_a_hipcc_that_does_not_run_is_told_and_no_obstacle(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    hipcc = tmp_path / "bin/hipcc"
    hipcc.write_text("#!/bin/sh\necho \"libc.so.6: version 'GLIBC_2.38' not found\" >&2; exit 1\n")
    hipcc.chmod(0o755)
    facts = probe(replace(toolchain, prefix=tmp_path, digest="old glibc"))
    assert "GLIBC_2.38" in facts.hipcc.reason


def test_a_runtime_that_wants_a_newer_glibc(toolchain: Toolchain, tmp_path: Path) -> None:
    """A library that needs a symbol version which this machine's C library does not have."""
    gcc = shutil.which("gcc") or require("gcc")
    (tmp_path / "lib").mkdir()
    (tmp_path / "c.c").write_text("void f(void) {}")
    (tmp_path / "c.map").write_text("GLIBC_9.99 { global: f; };")
    words = ["-shared", "-fPIC", "-Wl,-soname,libc.so.6", f"-Wl,--version-script={tmp_path}/c.map"]
    subprocess.run([gcc, *words, "-o", tmp_path / "libc.so.6", tmp_path / "c.c"], check=True)
    (tmp_path / "hip.c").write_text("void f(void); int hipInit(int x) { f(); return x; }")
    words = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libamdhip64.so.7"]
    library = tmp_path / "lib/libamdhip64.so.7"
    subprocess.run([gcc, *words, "-o", library, tmp_path / "hip.c", tmp_path / "libc.so.6"], check=True)
    found = [fact for fact in probes.runtimes_of(replace(toolchain, prefix=tmp_path)) if fact.path == str(library)]
    assert [(fact.soname, fact.kind, fact.loads) for fact in found] == [("libamdhip64.so.7", "library", False)]
    assert "GLIBC_9.99" in found[0].reason
    (tmp_path / "hip.c").write_text("int hipInit(int x) { return x; }")
    subprocess.run([gcc, *words, "-o", library, tmp_path / "hip.c"], check=True)
    found = [fact for fact in probes.runtimes_of(replace(toolchain, prefix=tmp_path)) if fact.path == str(library)]
    assert [fact.loads for fact in found] == [True]


def test_no_code_object_is_an_error(tmp_path: Path) -> None:
    for index, data in enumerate((b"", b"\x7fELF", Path(sys.executable).resolve().read_bytes()[:5000])):
        path = tmp_path / str(index)
        path.write_bytes(data)
        with pytest.raises(EnvironmentFailure, match="not a code object"):
            read_code_object(path)


@needs_torch_sdk
def test_a_build_refuses_what_its_toolchain_cannot_compile(toolchain: Toolchain, tmp_path: Path) -> None:
    """Before any compilation, and only for the target that cannot be."""
    prefix = tmp_path / "rocm"
    (prefix / "lib/llvm/bin").mkdir(parents=True)
    for name in ("clang-offload-bundler", "ld.lld", "llvm-readelf"):
        (prefix / "lib/llvm/bin" / name).write_text(f'#!/bin/sh\nexec "{toolchain.clang.with_name(name)}" "$@"\n')
        (prefix / "lib/llvm/bin" / name).chmod(0o755)
    said = "error: unsupported HIP gpu architecture"
    script = f'case "$*" in *generic*) echo "{said}" >&2; exit 1;; esac; exec "$clang" "$@"'
    bent(toolchain, prefix / "lib/llvm/bin", script)
    (prefix / "include").symlink_to(toolchain.include)
    (prefix / "amdgcn").mkdir()
    (prefix / "amdgcn/bitcode").symlink_to(toolchain.device_libs)
    project = tmp_path / "p"
    shutil.copytree(PROJECTS / "saxpy", project)
    command = [sys.executable, "-m", "rocmbuild", "build", str(project), "--targets", "gfx12-generic gfx1201"]
    command += ["--platforms", "rocm", "-o", str(tmp_path / "dist"), "-C", f"build-dir={tmp_path / 'b'}"]
    done = run(command, what="a build", env={**os.environ, "ROCM_PATH": str(prefix)}, check=False)
    assert done.returncode == 2, done.output
    assert (
        "gfx12-generic cannot be compiled by the toolchain rocm: error: unsupported HIP gpu architecture" in done.stderr
    )
    assert "gfx1201 cannot" not in done.stderr
    assert not (tmp_path / "b/obj").exists()
