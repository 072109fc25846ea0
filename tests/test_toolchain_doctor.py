"""doctor: each check is shown to see its fault, with real packages and real compilers where a fault is theirs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import needs_toolchain, require

from rocmbuild.cli import main
from rocmbuild.toolchain import doctor
from rocmbuild.toolchain import probe as probes
from rocmbuild.toolchain.debian import codename_of
from rocmbuild.toolchain.doctor import Check, examine, healthy
from rocmbuild.toolchain.install import open_archive
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.probe import RuntimeFact

pytestmark = needs_toolchain

TORCH = """__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'x'
hip: Optional[str] = {hip!r}
"""


def ask(path: Sequence[str] = (), spec: str | None = None, **environ: str) -> dict[str, Check]:
    base = {"PATH": "/usr/bin:/bin", **environ}
    return {check.name: check for check in examine(base, spec=spec, path=path, root=Path("/nonexistent"))}


def test_a_good_machine(toolchain: Toolchain, capsys: pytest.CaptureFixture[str]) -> None:
    checks = ask()
    assert [check.name for check in checks.values() if check.status == "fail"] == []
    assert checks["toolchain"].text.startswith(toolchain.name)
    assert checks["mixed headers"].text == f"every HIP header comes from {toolchain.include}"
    assert "10 targets and 2 generic ones" in checks["device libraries"].text
    assert "device libraries of LLVM" in checks["versions apart"].text
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is True
    assert {check["status"] for check in told["checks"]} <= {"pass", "warn"}
    assert main(["toolchain", "doctor"]) == 0
    assert "pass  mixed headers" in capsys.readouterr().out


def test_no_toolchain_fails_with_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    checks = ask(ROCM_HOME="/nonexistent/rocm")
    assert checks["toolchain"].status == "fail"
    assert "no such folder" in checks["toolchain"].text
    assert "rocmbuild toolchain install" in checks["toolchain"].step
    assert main(["doctor", "absent-one"]) == 1
    assert "fail  toolchain" in capsys.readouterr().out


@pytest.fixture(scope="session")
def old_headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """usr/include of the libamdhip64-dev that this machine's own release has: HIP 5."""
    if os.environ.get("ROCMBUILD_TEST_OFFLINE") or not shutil.which("apt-get"):
        require("apt and the network")
    folder = tmp_path_factory.mktemp("old")
    apt = open_archive(folder / "apt", ("sid",), lambda text: None)
    codename = codename_of(Path("/etc/os-release").read_text())
    offered = [
        package for package in apt.available(["libamdhip64-dev"])["libamdhip64-dev"] if package.suite == codename
    ]
    if not offered:
        require(f"libamdhip64-dev in {codename}")
    (package,) = apt.download(offered[:1], folder / "archives")
    subprocess.run(["dpkg-deb", "-x", package.file, folder / "root"], check=True)
    return folder / "root/usr/include"


@pytest.mark.slow
def test_the_distributions_old_headers_mixed_in(toolchain: Toolchain, old_headers: Path, tmp_path: Path) -> None:
    """The real packages: an include folder in front mixes HIP 5 with HIP 7, and no compiler error names either."""
    checks = ask(CPATH=str(old_headers))
    mixed = checks["mixed headers"]
    assert mixed.status == "fail"
    assert f"{old_headers}/hip (HIP 5." in mixed.text
    assert f"{toolchain.include}/hip (HIP {toolchain.hip_version})" in mixed.text
    assert mixed.step == "unset CPATH"
    assert not healthy(checks.values())
    source = tmp_path / "k.hip"
    source.write_text("#include <hip/hip_runtime.h>\n#include <hip/hip_bf16.h>\n__global__ void k() {}\n")
    words = [toolchain.clang, "-x", "hip", source, "-c", "-o", tmp_path / "k.o", "--offload-arch=gfx1201"]
    env = {"PATH": "/usr/bin:/bin", "CPATH": str(old_headers)}
    done = subprocess.run([*words, *toolchain.compile_flags()], env=env, check=False, capture_output=True, text=True)
    assert done.returncode != 0  # which is why a check must say it


@pytest.mark.slow
def test_the_distributions_old_headers_where_every_compiler_looks(toolchain: Toolchain, old_headers: Path) -> None:
    """As installed: in /usr/include. The managed toolchain's own are used; whoever names that folder is warned."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0:
        require("mount namespaces (unshare -rm)")
    ask_it = f"{sys.executable} -m rocmbuild doctor --json"
    script = f"mount -t overlay none -o lowerdir={old_headers}:/usr/include /usr/include || exit 77; {ask_it}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], check=False, capture_output=True, text=True)
    if done.returncode == 77:
        require("overlay mounts in a user namespace")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["mixed headers"]["status"] == "warn", done.stdout
    assert "/usr/include/hip is HIP 5." in checks["mixed headers"]["text"]
    assert "place system" in checks


def test_missing_device_libraries_are_told_by_target(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "DECLARED", ("gfx1102", "gfx1103"))
    monkeypatch.setattr(probes, "GENERIC", ())
    libs = tmp_path / "bitcode"
    shutil.copytree(toolchain.device_libs, libs)
    (libs / "oclc_isa_version_1103.bc").unlink()
    headers = tmp_path / "rocm"
    headers.mkdir()
    (headers / "include").symlink_to(toolchain.include)
    split = {"HIP_CLANG_PATH": str(toolchain.clang.parent), "HIP_DEVICE_LIB_PATH": str(libs)}
    checks = ask(ROCM_PATH=str(headers), **split)
    assert checks["device libraries"].status == "warn"
    assert "gfx1103" in checks["device libraries"].text
    assert "gfx1102" not in checks["device libraries"].text


def test_versions_apart(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info/version").write_text("6.4.1-83\n")
    check = doctor._versions(replace(toolchain, prefix=tmp_path), None, {})  # type: ignore[arg-type]
    assert check.status == "fail"
    assert "calls itself ROCm 6.4.1" in check.text
    check = doctor._versions(replace(toolchain, clang_version="19.0.0"), None, {})  # type: ignore[arg-type]
    assert (check.status, "newer than the compiler" in check.text) == ("fail", True)
    check = doctor._versions(replace(toolchain, clang_version="99.0.0"), None, {})  # type: ignore[arg-type]
    assert check.status == "warn"


def test_another_hipconfig_on_path(toolchain: Toolchain, tmp_path: Path) -> None:
    program = tmp_path / "hipconfig"
    for text, status, said in (
        ("echo 5.2.21153-0", "warn", f"says 5.2.21153-0, the headers that are used say {toolchain.hip_version}"),
        ("echo GLIBC_2.38 not found >&2; exit 1", "warn", "does not run"),
        (f"echo {toolchain.hip_version}-abc", "pass", "agrees with the headers"),
    ):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        check = ask(PATH=f"{tmp_path}:/usr/bin:/bin")["hipconfig"]
        assert (check.status, said in check.text) == (status, True), check


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "status", "said"),
    [
        (
            "2.13.0+cu130",
            "13.0",
            None,
            "warn",
            "a build for CUDA 13.0: wheels build, but on it the host library",
        ),
        ("2.13.0+cpu", None, None, "pass", "a CPU build: wheels build, and on it the host library serves alone"),
        ("2.13.0+rocm6.4", None, "6.4.43484-123", "warn", "was built with HIP 6.4.43484-123, the toolchain is HIP"),
        ("2.13.0+rocm7.2", None, "{own}", "pass", "was built with HIP"),
    ],
)
def test_the_torch_that_is_here(
    version: str, cuda: str | None, hip: str | None, status: str, said: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    hip = hip.format(own=toolchain.hip_version) if hip else None
    (tmp_path / "torch/version.py").write_text(TORCH.format(version=version, cuda=cuda, hip=hip))
    (check,) = doctor._torch([str(tmp_path)], toolchain)
    assert (check.status, said in check.text) == (status, True), check
    assert version in check.text
    assert check.step or status == "pass"


def test_no_torch_at_all(tmp_path: Path) -> None:
    (check,) = doctor._torch([str(tmp_path)], None)
    assert check.status == "pass"


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("HCC_AMDGPU_TARGET", "gfx906", "fail"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "--offload-arch=gfx90a", "fail"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-DX", "warn"),
        ("CCC_OVERRIDE_OPTIONS", "+--offload-arch=gfx906", "fail"),
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", "warn"),
    ],
)
def test_variables_that_inject(name: str, value: str, status: str) -> None:
    (check,) = doctor._variables({name: value})
    assert (check.name, check.status) == (name, status)
    assert f"unset {name}" in check.step


def test_variables_that_name_different_places(toolchain: Toolchain, tmp_path: Path) -> None:
    checks = doctor._places({"ROCM_HOME": str(toolchain.prefix), "HIP_PATH": str(tmp_path)}, None, Path("/nonexistent"))
    assert "variables apart" in [check.name for check in checks]


def test_a_runtime_that_wants_a_newer_glibc(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    fact = RuntimeFact(path="/lib/x", soname="libamdhip64.so.7", kind="library", loads=False, reason="GLIBC_2.99")
    monkeypatch.setattr(doctor, "runtimes_of", lambda toolchain: (fact,))
    monkeypatch.setattr(doctor, "read_dynamic", lambda path: SimpleNamespace(newest=lambda family: (2, 99)))
    check = doctor._runtime(toolchain, None, {})  # type: ignore[arg-type]
    assert check.status == "warn"
    assert "wants glibc 2.99, this machine has" in check.text
    assert "install runtime" in check.step


def test_cards_from_the_kernels_own_list(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    for targets, status in ((), "pass"), (("gfx1201",), "pass"), (("gfx1201", "gfx1036"), "warn"):
        monkeypatch.setattr(doctor, "native_targets", lambda found=targets: found)
        check = doctor._card(toolchain)
        assert check.status == status
        assert all(target in check.text for target in targets)


def test_a_disk_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((100, "fail"), (2 << 30, "warn"), (99 << 30, "pass")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert {check.status for check in doctor._space()} == {status}
    if os.geteuid() != 0:
        monkeypatch.setenv("ROCMBUILD_DATA_DIR", "/proc/nothing")
        assert doctor._space()[0].status == "fail"


def test_no_cxx_compiler() -> None:
    assert doctor._cxx({"PATH": "/nonexistent"}).status == "fail"
    assert "CXX=absent" in doctor._cxx({"PATH": "/usr/bin", "CXX": "absent"}).text
