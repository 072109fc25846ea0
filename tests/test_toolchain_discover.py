"""The search for a toolchain: layouts with the real compiler behind them, refusals with reasons, and the order."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import require

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.toolchain import layouts
from rocmbuild.toolchain.discover import candidates, find_toolchain, toolchains_dir
from rocmbuild.toolchain.layouts import inspect_prefix
from rocmbuild.toolchain.model import Toolchain

KERNEL = """#include <hip/hip_runtime.h>
#include <cmath>
__global__ void k(float* y) { y[threadIdx.x] = std::sqrt(y[threadIdx.x]); }
"""


@pytest.fixture(scope="module")
def real() -> Toolchain:
    """The managed toolchain: the compiler that stands behind every layout here."""
    try:
        found = find_toolchain(spec=None, environ={})
    except EnvironmentFailure:
        require("a toolchain (rocmbuild toolchain install)")
    return found


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No managed store, no site folders, an empty system root, a cache of its own."""
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [])
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def tree(prefix: Path, links: dict[str, Path]) -> Path:
    for name, target in links.items():
        path = prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return prefix


def wrapped(real: Toolchain, folder: Path, *names: str) -> None:
    """Scripts that run the real tools: a bin folder without the real one's resource folder beside it."""
    folder.mkdir(parents=True)
    for name in names or ("clang++", "clang-offload-bundler", "ld.lld", "llvm-readelf"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{real.clang.with_name(name)}" "$@"\n')
        script.chmod(0o755)


def amd(prefix: Path, real: Toolchain) -> Path:
    llvm = real.clang.parent.parent
    return tree(prefix, {"lib/llvm": llvm, "include": real.include, "amdgcn/bitcode": real.device_libs})


def debian(prefix: Path, real: Toolchain) -> Path:
    major = real.clang_version.split(".")[0]
    tree(prefix, {f"lib/llvm-{major}": real.clang.parent.parent, "include": real.include})
    wrapped(real, prefix / "lib/llvm-14/bin", "clang-offload-bundler", "ld.lld")
    old = prefix / "lib/llvm-14/bin/clang++"
    old.write_text("#!/bin/sh\necho Debian clang version 14.0.6\n")
    old.chmod(0o755)
    return prefix


def debian_multiarch(prefix: Path, real: Toolchain) -> Path:
    wrapped(real, prefix / "bin")
    return tree(prefix, {"include": real.include, "lib/x86_64-linux-gnu/amdgcn/bitcode": real.device_libs})


def fedora(prefix: Path, real: Toolchain) -> Path:
    major = real.clang_version.split(".")[0]
    wrapped(real, prefix / "lib64/rocm/llvm/bin")
    return tree(prefix, {"include": real.include, f"lib/clang/{major}/amdgcn/bitcode": real.device_libs})


def sdk(prefix: Path, real: Toolchain) -> Path:
    wrapped(real, prefix / "lib/llvm/bin")
    return tree(prefix, {"include": real.include, "lib/llvm/amdgcn/bitcode": real.device_libs})


def conda(prefix: Path, real: Toolchain) -> Path:
    """conda-forge's: the driver under its triple, device libraries in the resource folder's lib."""
    major = real.clang_version.split(".")[0]
    wrapped(real, prefix / "bin")
    (prefix / "bin/clang++").rename(prefix / "bin/x86_64-conda-linux-gnu-clang++")
    (prefix / "conda-meta").mkdir()
    return tree(prefix, {"include": real.include, f"lib/clang/{major}/lib/amdgcn/bitcode": real.device_libs})


def opt_llvm(prefix: Path, real: Toolchain) -> Path:
    """ROCm 6's: llvm beside everything else, bitcode below the prefix."""
    wrapped(real, prefix / "llvm/bin")
    return tree(prefix, {"include": real.include, "amdgcn/bitcode": real.device_libs})


def merged(prefix: Path, real: Toolchain) -> Path:
    """One prefix of links into others, as image builders make it; the compiler's links lead out of it."""
    elsewhere = prefix.parent / "elsewhere"
    wrapped(real, elsewhere / "bin")
    tree(prefix, {"include": real.include, "lib/amdgcn/bitcode": real.device_libs})
    return tree(prefix, {f"bin/{path.name}": path for path in (elsewhere / "bin").iterdir()})


LAYOUTS = [amd, debian, debian_multiarch, fedora, sdk, conda, opt_llvm, merged]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_layout_is_found(layout: object, real: Toolchain, alone: Path, tmp_path: Path) -> None:
    prefix = layout(tmp_path / "some rocm [1]", real)  # type: ignore[operator]
    toolchain = find_toolchain(spec=str(prefix), environ={})
    assert toolchain.hip_version == real.hip_version
    assert toolchain.clang_version == real.clang_version
    assert (toolchain.device_libs / "ockl.bc").is_file()
    assert toolchain.bundler.name == "clang-offload-bundler"


@pytest.mark.parametrize(
    "layout",
    [amd, *(pytest.param(layout, marks=pytest.mark.slow) for layout in LAYOUTS[1:])],
    ids=lambda layout: layout.__name__,
)
def test_a_layout_compiles(layout: object, real: Toolchain, alone: Path, tmp_path: Path) -> None:
    prefix = layout(tmp_path / "some rocm [1]", real)  # type: ignore[operator]
    toolchain = find_toolchain(spec=str(prefix), environ={})
    source, output = tmp_path / "k.hip", tmp_path / "k.co"
    source.write_text(KERNEL)
    words = ["-x", "hip", source, "-c", "-o", output, "--offload-arch=gfx1201", "--offload-device-only"]
    done = subprocess.run(
        [toolchain.clang, *words, *toolchain.compile_flags()],
        env={"PATH": "/usr/bin:/bin"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"gfx1201" in output.read_bytes()


def without_headers(prefix: Path) -> None:
    (prefix / "include").unlink()


def with_some_headers(prefix: Path) -> None:
    real = (prefix / "include").resolve()
    (prefix / "include").unlink()
    shutil.copytree(real / "hip", prefix / "include/hip")
    (prefix / "include/hip/hip_bf16.h").unlink()


def with_old_headers(prefix: Path) -> None:
    with_some_headers(prefix)
    (prefix / "include/hip/hip_bf16.h").write_text("")
    version = "#define HIP_VERSION_MAJOR 5\n#define HIP_VERSION_MINOR 7\n#define HIP_VERSION_PATCH 31921\n"
    (prefix / "include/hip/hip_version.h").write_text(version)


def without_device_libs(prefix: Path) -> None:
    shutil.rmtree(prefix / "lib/x86_64-linux-gnu")


def with_half_the_device_libs(prefix: Path) -> None:
    folder = prefix / "lib/x86_64-linux-gnu/amdgcn/bitcode"
    real = folder.resolve()
    folder.unlink()
    folder.mkdir()
    (folder / "ocml.bc").symlink_to(real / "ocml.bc")


def without_bundler(prefix: Path) -> None:
    (prefix / "bin/clang-offload-bundler").unlink()


def without_lld(prefix: Path) -> None:
    (prefix / "bin/ld.lld").unlink()


def without_compiler(prefix: Path) -> None:
    (prefix / "bin/clang++").unlink()


def with_old_compiler(prefix: Path) -> None:
    (prefix / "bin/clang++").write_text("#!/bin/sh\necho AMD clang version 18.0.0git\n")


def with_broken_compiler(prefix: Path) -> None:
    (prefix / "bin/clang++").write_text("#!/bin/sh\necho libLLVM.so: cannot open shared object file >&2\nexit 127\n")


def with_something_else(prefix: Path) -> None:
    (prefix / "bin/clang++").write_text("#!/bin/sh\necho g++ 12.2\n")


def as_an_environment(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without_headers, "no HIP headers (include/hip)"),
        (with_some_headers, "its HIP headers are not whole: include/hip lacks hip_bf16.h"),
        (with_old_headers, "its headers are HIP 5.7.31921; 6.0 or newer is needed"),
        (without_device_libs, "no device libraries (ockl.bc, ocml.bc) for clang"),
        (with_half_the_device_libs, "no device libraries (ockl.bc, ocml.bc) for clang"),
        (without_bundler, "no clang-offload-bundler beside"),
        (without_lld, "no ld.lld beside"),
        (without_compiler, "no clang++ (lib/llvm/bin, llvm/bin, bin)"),
        (with_old_compiler, "is clang 18.0.0; 19 or newer is needed"),
        (with_broken_compiler, "libLLVM.so: cannot open shared object file"),
        (with_something_else, "does not answer as clang: g++ 12.2"),
        (as_an_environment, "the root of a Python environment, not of a ROCm"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_fault_is_the_reason_given(
    damage: object, reason: str, real: Toolchain, alone: Path, tmp_path: Path
) -> None:
    prefix = debian_multiarch(tmp_path / "rocm", real)
    damage(prefix)  # type: ignore[operator]
    found = inspect_prefix(prefix, name="x", kind="rocm", origin="test")
    assert not isinstance(found, Toolchain)
    assert any(reason in line for line in found), found


def test_a_variable_that_names_no_toolchain_ends_the_search(real: Toolchain, tmp_path: Path) -> None:
    """Although the managed store, which comes later, has a good one."""
    for variable in ("ROCM_HOME", "ROCM_PATH", "HIP_PATH"):
        with pytest.raises(EnvironmentFailure) as err:
            find_toolchain(spec=None, environ={variable: str(tmp_path / "absent")})
        assert variable in err.value.message
        assert "no such folder" in err.value.message
        assert "rocmbuild toolchain install" in err.value.hint


def test_an_empty_variable_is_seen_and_passed(real: Toolchain) -> None:
    assert find_toolchain(spec=None, environ={"ROCM_HOME": " "}).name == real.name
    first = candidates({"ROCM_HOME": " "})[0]
    assert first.describe() == "ROCM_HOME: set, but empty"


def test_variables_come_before_the_store_and_in_their_order(real: Toolchain, tmp_path: Path) -> None:
    one, two = amd(tmp_path / "one", real), amd(tmp_path / "two", real)
    assert find_toolchain(spec=None, environ={"ROCM_PATH": str(one), "HIP_PATH": str(two)}).prefix == one
    assert find_toolchain(spec=None, environ={"HIP_PATH": str(two), "ROCM_HOME": str(one)}).origin == "ROCM_HOME"


def test_the_order_of_the_system_places(real: Toolchain, alone: Path, tmp_path: Path) -> None:
    debian(alone / "usr", real)
    amd(alone / "opt/rocm-6.4.1", real)
    amd(alone / "opt/rocm-7.10.0", real)
    amd(alone / "opt/rocm-7.9.0", real)
    (alone / "opt/rocm").symlink_to("rocm-7.9.0")
    other = amd(tmp_path / "elsewhere", real)
    wrapped(real, other / "bin")
    (other / "bin/hipcc").write_text("#!/bin/sh\n")
    (other / "bin/hipcc").chmod(0o755)
    found = candidates({"PATH": str(other / "bin")}, root=alone)
    assert [candidate.name for candidate in found] == ["rocm", "rocm-7.10.0", "rocm-6.4.1", "system", "path"]
    assert all(candidate.toolchain for candidate in found)
    assert find_toolchain(spec=str(alone / "opt/rocm"), environ={}).prefix == alone / "opt/rocm"


def test_conda_prefixes_are_found(
    real: Toolchain, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active one, and that of the interpreter; one without HIP is no candidate."""
    active = conda(tmp_path / "active", real)
    own = conda(tmp_path / "own", real)
    monkeypatch.setattr(sys, "prefix", str(own))
    found = candidates({"CONDA_PREFIX": str(active)}, root=alone)
    assert [(candidate.name, candidate.kind, bool(candidate.toolchain)) for candidate in found] == [
        ("conda", "conda", True),
        ("conda-own", "conda", True),
    ]
    (tmp_path / "empty/conda-meta").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", "/nonexistent")
    assert candidates({"CONDA_PREFIX": str(tmp_path / "empty")}, root=alone) == []


def test_plain_llvm_with_hips_headers(real: Toolchain, alone: Path, tmp_path: Path) -> None:
    """A compiler under a versioned name on PATH, HIP's headers in the system's folder, device libraries with it."""
    major = real.clang_version.split(".")[0]
    llvm = alone / f"usr/lib/llvm-{major}"
    wrapped(real, llvm / "bin")
    tree(llvm, {f"lib/clang/{major}/amdgcn/bitcode": real.device_libs})
    (first,) = candidates({"PATH": str(alone / "usr/bin")}, root=alone)
    assert (first.kind, first.toolchain) == ("llvm", None)
    assert first.reasons[0].startswith("no HIP headers (include/hip) in")
    tree(alone / "usr/local", {"include": real.include})
    (first,) = candidates({"PATH": ""}, root=alone)
    assert first.toolchain is not None
    assert (first.toolchain.include, first.toolchain.hip_version) == (alone / "usr/local/include", real.hip_version)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("clang++", "clang-offload-bundler", "ld.lld"):
        (tools / f"{name}-{major}").symlink_to(llvm / "bin" / name)
    (tools / "clang++-14").write_text("#!/bin/sh\nexit 1\n")
    found = candidates({"PATH": str(tools)}, root=alone)
    assert [candidate.toolchain.clang for candidate in found if candidate.toolchain] == [tools / f"clang++-{major}"]
    source = tmp_path / "k.hip"
    source.write_text(KERNEL)
    assert found[0].toolchain is not None
    words = ["-x", "hip", source, "-c", "-o", tmp_path / "k.co", "--offload-arch=gfx1201", "--offload-device-only"]
    command = [found[0].toolchain.clang, *words, *found[0].toolchain.compile_flags()]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, check=True)


def test_a_split_installation_is_put_together_by_hipccs_variables(real: Toolchain, tmp_path: Path) -> None:
    """As Nix splits it: headers, compiler and device libraries in folders of their own."""
    headers = tree(tmp_path / "clr", {"include": real.include})
    wrapped(real, tmp_path / "llvm/bin")
    with pytest.raises(EnvironmentFailure, match=r"no clang\+\+"):
        find_toolchain(spec=None, environ={"ROCM_PATH": str(headers)})
    split = {"ROCM_PATH": str(headers), "HIP_CLANG_PATH": str(tmp_path / "llvm/bin")}
    with pytest.raises(EnvironmentFailure, match="no device libraries"):
        find_toolchain(spec=None, environ=split)
    split["HIP_DEVICE_LIB_PATH"] = str(real.device_libs)
    found = find_toolchain(spec=None, environ=split)
    assert (found.clang.parent, found.device_libs) == (tmp_path / "llvm/bin", real.device_libs)


def test_hipcc_of_an_environment_is_no_rocm(alone: Path, tmp_path: Path) -> None:
    """pip's SDK puts a hipcc into bin; the environment's root is not a ROCm for that."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "env/bin/hipcc").write_text("#!/bin/sh\n")
    (tmp_path / "env/bin/hipcc").chmod(0o755)
    (found,) = candidates({"PATH": str(tmp_path / "env/bin")}, root=alone)
    assert found.toolchain is None
    assert found.reasons[0] == "the root of a Python environment, not of a ROCm"


def test_a_variable_that_names_a_managed_one_is_the_managed_one(real: Toolchain) -> None:
    found = find_toolchain(spec=None, environ={"ROCM_HOME": str(real.prefix)})
    assert (found.origin, found.identity()) == ("ROCM_HOME", real.identity())


def test_pip_sdk_devel_before_core_and_never_expanded(
    real: Toolchain, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    core = sdk(site / "_rocm_sdk_core", real)
    (core / "include").unlink()
    (site / "rocm_sdk_devel").mkdir()
    (site / "rocm_sdk_devel/__init__.py").write_text("raise SystemExit('expanded')")
    monkeypatch.setattr(sys, "path", [str(site)])
    devel, second = candidates({}, root=alone)
    assert devel.reasons == ("installed, but not expanded yet: run `rocm-sdk init` once",)
    assert second.reasons == ("no HIP headers (include/hip)",)
    (site / "rocm_sdk_devel").rename(site / "away")
    (alone_core,) = candidates({}, root=alone)
    assert "this is the core package alone: `pip install rocm[devel]` has the rest" in alone_core.reasons
    (site / "away").rename(site / "rocm_sdk_devel")
    assert not (site / "_rocm_sdk_devel").exists()
    sdk(site / "_rocm_sdk_devel", real)
    first = candidates({}, root=alone)[0]
    assert first.toolchain is not None
    assert first.toolchain.kind == "sdk"
    (site / "rocm_sdk_devel/_devel.tar.xz").write_bytes(b"")  # gone when the expansion ends
    assert candidates({}, root=alone)[0].reasons == ("its expansion did not end: run `rocm-sdk init` again",)


def test_nothing_found_lists_every_refusal(real: Toolchain, alone: Path) -> None:
    with_old = debian_multiarch(alone / "opt/rocm", real)
    with_old_compiler(with_old)
    found = candidates({}, root=alone)
    assert [(candidate.name, bool(candidate.toolchain)) for candidate in found] == [("rocm", False)]
    with pytest.raises(EnvironmentFailure, match="no HIP toolchain") as err:
        find_toolchain(spec=None, environ={})
    assert err.value.exit_code == 3
    assert err.value.hint == "`rocmbuild toolchain install`"


@pytest.mark.parametrize(("spec", "fits"), [(">=6.4", True), (">=6,<9", True), ("<6", False), ("~=99.1", False)])
def test_a_range_is_held_against_the_hip_version(spec: str, fits: bool, real: Toolchain) -> None:
    if fits:
        assert find_toolchain(spec=spec, environ={}).name == real.name
        return
    with pytest.raises(EnvironmentFailure, match="no HIP toolchain that fits") as err:
        find_toolchain(spec=spec, environ={})
    assert f"HIP {real.hip_version} is outside {spec}" in err.value.message


def test_a_variable_outside_the_range_is_an_error(real: Toolchain, tmp_path: Path) -> None:
    prefix = amd(tmp_path / "rocm", real)
    with pytest.raises(EnvironmentFailure, match="cannot be used: ROCM_PATH"):
        find_toolchain(spec="<6", environ={"ROCM_PATH": str(prefix)})


def test_names_and_near_names(real: Toolchain) -> None:
    assert find_toolchain(spec=real.name, environ={"ROCM_PATH": "/absent"}).prefix == real.prefix
    with pytest.raises(EnvironmentFailure) as err:
        find_toolchain(spec=real.name[:-1], environ={})
    assert f"did you mean '{real.name}'?" in err.value.message


def test_a_spec_that_is_nothing() -> None:
    with pytest.raises(InputError, match="not a version range"):
        find_toolchain(spec=">=newest", environ={})
    with pytest.raises(EnvironmentFailure, match="no such folder"):
        find_toolchain(spec="./absent", environ={})


def test_a_damaged_managed_toolchain_is_refused(real: Toolchain, alone: Path) -> None:
    store = toolchains_dir()
    (store / "copy").mkdir(parents=True)
    shutil.copyfile(real.prefix / "manifest.json", store / "copy" / "manifest.json")
    (candidate,) = candidates({}, root=alone)
    assert candidate.toolchain is None
    assert "clang++ is missing" in candidate.reasons[0]


def test_a_warm_search_is_cheap_and_runs_nothing(real: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(layouts, "run", refuse)
    best = 9.9
    for _ in range(5):
        started = time.process_time()
        candidates(dict(os.environ))
        best = min(best, time.process_time() - started)
    assert best < 0.05


def test_toolchain_list_is_quick_when_warm(real: Toolchain) -> None:
    """Less than 0.15 s over Python's own start; processor time, which a busy machine does not change."""

    def seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    bare = min(seconds("-c", "pass") for _ in range(4))
    assert min(seconds("-m", "rocmbuild", "toolchain", "list") for _ in range(6)) - bare < 0.15


def test_a_compiler_is_asked_once(
    real: Toolchain, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = debian_multiarch(tmp_path / "rocm", real)
    first = find_toolchain(spec=str(prefix), environ={})
    asked = []
    genuine = layouts.run
    monkeypatch.setattr(layouts, "run", lambda *a, **k: asked.append(a) or genuine(*a, **k))
    assert find_toolchain(spec=str(prefix), environ={}) == first
    assert asked == []
    with_old_compiler(prefix)  # another file: another answer
    with pytest.raises(EnvironmentFailure, match=r"clang 18\.0\.0"):
        find_toolchain(spec=str(prefix), environ={})
    assert len(asked) == 1


def test_identity_and_flags_name_no_folder_that_moves(real: Toolchain) -> None:
    identity = real.identity()
    assert identity["hip"] == real.hip_version
    assert str(real.prefix) not in str(identity)
    assert real.compile_flags()[:2] == ("-isystem", str(real.include))


def test_the_default_include_folder_is_never_a_flag(real: Toolchain) -> None:
    """`-isystem /usr/include` breaks libstdc++'s #include_next."""
    from dataclasses import replace

    system = replace(real, prefix=Path("/usr"), include=Path("/usr/include"))
    assert not any("include" in flag or flag == "-isystem" for flag in system.compile_flags())
    assert "--hip-path=/usr" in system.compile_flags()


def test_other_headers_in_the_default_folder_are_seen_and_do_not_mix(real: Toolchain, tmp_path: Path) -> None:
    """With an old HIP's headers in /usr/include, the toolchain's own are used, and the note says what is there."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0:
        require("mount namespaces (unshare -rm)")
    old = tmp_path / "old" / "hip"
    old.mkdir(parents=True)
    version = "#define HIP_VERSION_MAJOR 5\n#define HIP_VERSION_MINOR 2\n#define HIP_VERSION_PATCH 21153\n"
    (old / "hip_version.h").write_text(version)
    for name in ("hip_runtime.h", "hip_bf16.h", "hip_fp16.h"):
        (old / name).write_text("#error old headers\n")
    source = tmp_path / "k.hip"
    source.write_text(KERNEL.replace("\n", "\n#include <hip/hip_bf16.h>\n", 1))
    flags = ["--offload-arch=gfx1201", "--offload-device-only", "-fsyntax-only", *real.compile_flags()]
    compile_it = shlex.join([str(real.clang), "-x", "hip", str(source), *flags])
    ask = "from rocmbuild.toolchain.discover import *; print(*find_toolchain(spec=None, environ={}).notes)"
    script = f"mount -t overlay none -o lowerdir={tmp_path / 'old'}:/usr/include /usr/include || exit 77; "
    script += f"grep -q 5 /usr/include/hip/hip_version.h; {compile_it}; {shlex.join([sys.executable, '-c', ask])}"
    done = subprocess.run(["unshare", "-rm", "sh", "-ec", script], check=False, capture_output=True, text=True)
    if done.returncode == 77:
        require("overlay mounts in a user namespace")
    assert done.returncode == 0, done.stderr
    expected = f"/usr/include/hip is HIP 5.2.21153, these headers are {real.hip_version}"
    assert done.stdout.startswith(expected)
