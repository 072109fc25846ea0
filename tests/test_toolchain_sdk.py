"""AMD's SDK from a pip index: a local one, whose wheels carry the real compiler."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support import needs_toolchain

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.toolchain import lock as locks
from rocmbuild.toolchain import sdk as sdks
from rocmbuild.toolchain.discover import candidates, find_toolchain, toolchains_dir
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.sdk import install_sdk
from rocmbuild.toolchain.store import entries, verify

pytestmark = needs_toolchain

VERSION = "7.9.0"
INIT = """
import sys, tarfile
from pathlib import Path
if sys.argv[1:] != ["init"]: raise SystemExit(f"asked {sys.argv[1:]}")
site = Path(__file__).resolve().parent.parent
tar = site / "rocm_sdk_devel/_devel.tar"
with tarfile.open(tar) as archive: archive.extractall(site)
tar.unlink()
(site / "_rocm_sdk_devel/absolute").symlink_to(site / "_rocm_sdk_devel/include")
"""


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    stem = f"{name.replace('-', '_')}-{VERSION}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n"
    info = f"{stem}.dist-info"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tags.encode()}
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(member, data)
    index = folder / "index.html"
    old = index.read_text() if index.exists() else ""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    index.write_text(f'{old}<a href="{path.name}#sha256={digest}">{path.name}</a>\n')


SETUP = """
from setuptools import setup
setup(name="rocm", version="{version}", package_dir={{"": "src"}}, packages=["rocm_sdk"],
      install_requires=["rocm-sdk-core=={version}"], extras_require={{"devel": ["rocm-sdk-devel=={version}"]}})
"""


def sdist(folder: Path, files: dict[str, str]) -> None:
    """AMD's `rocm` is one: it chooses what it depends on where it is installed."""
    path = folder / f"rocm-{VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"rocm-{VERSION}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (folder / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>\n')


def devel_archive(real: Toolchain) -> bytes:
    """What `rocm-sdk init` expands: the layout of AMD's, its tools being the real ones."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:

        def add(name: str, text: str, mode: int = 0o755) -> None:
            entry = tarfile.TarInfo(f"_rocm_sdk_devel/{name}")
            entry.size, entry.mode = len(text), mode
            archive.addfile(entry, io.BytesIO(text.encode()))

        for tool in ("clang++", "clang-offload-bundler", "ld.lld", "llvm-readelf"):
            add(f"lib/llvm/bin/{tool}", f'#!/bin/sh\nexec "{real.clang.with_name(tool)}" "$@"\n')
        archive.add(real.include / "hip", "_rocm_sdk_devel/include/hip")
        archive.add(real.device_libs, "_rocm_sdk_devel/lib/llvm/amdgcn/bitcode")
        add("share/hip/version", (real.prefix / "share/hip/version").read_text(), 0o644)
    return data.getvalue()


@pytest.fixture
def index(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    for name in ("rocm", "rocm-sdk-core", "rocm-sdk-devel"):
        (tmp_path / "index" / name).mkdir(parents=True)
    root = tmp_path / "index"
    main = {"src/rocm_sdk/__init__.py": "", "src/rocm_sdk/__main__.py": INIT, "setup.py": SETUP.format(version=VERSION)}
    main["PKG-INFO"] = f"Metadata-Version: 2.1\nName: rocm\nVersion: {VERSION}\n"
    sdist(root / "rocm", main)
    wheel(root / "rocm-sdk-core", "rocm-sdk-core", {"_rocm_sdk_core/lib/libamdhip64.so.7": b"x"})
    devel = {"rocm_sdk_devel/__init__.py": b"", "rocm_sdk_devel/_devel.tar": devel_archive(toolchain)}
    wheel(root / "rocm-sdk-devel", "rocm-sdk-devel", devel)
    return root.as_uri()


def test_install_use_and_once_more(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = install_sdk(index_url=index, quiet=True)
    (entry,) = entries(toolchains_dir())
    assert made.name == f"sdk-{VERSION}"
    assert made.prefix == entry.folder / "site/_rocm_sdk_devel"
    assert os.readlink(made.prefix / "absolute") == "include"  # it moves with the folder
    assert verify(entry) == ()
    assert sorted(path.name for path in toolchains_dir().iterdir()) == [".lock", made.name]
    source = tmp_path / "k.hip"
    source.write_text("#include <hip/hip_runtime.h>\n__global__ void k(float* y) { y[0] = sqrtf(y[0]); }\n")
    words = ["-x", "hip", source, "-c", "-o", tmp_path / "k.o", "--offload-arch=gfx1201", *made.compile_flags()]
    subprocess.run([made.clang, *words], env={"PATH": "/usr/bin:/bin"}, check=True)
    assert find_toolchain(spec=made.name, environ={}) == made
    assert candidates({"PATH": ""}, root=Path("/nonexistent"))[0].toolchain == made
    monkeypatch.setattr(sdks, "run", lambda *a, **k: pytest.fail("it asked pip"))
    assert install_sdk(index_url=index, quiet=True) == made


@pytest.mark.slow
def test_a_lock_installs_the_same(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = install_sdk(index_url=index, quiet=True)
    locks.write_lock(made.name, tmp_path / "lock")
    lock = locks.read_lock(tmp_path / "lock")
    assert [package["name"] for package in lock.packages] == ["rocm", "rocm-sdk-core", "rocm-sdk-devel"]
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "second"))
    assert locks.install_locked(lock, quiet=True).identity() == made.identity()


@pytest.mark.slow
def test_a_lock_takes_no_other_file(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has the same version with other contents."""
    install_sdk(index_url=index, quiet=True)
    locks.write_lock(None, tmp_path / "lock")
    folder = tmp_path / "index/rocm-sdk-core"
    for path in folder.iterdir():
        path.unlink()
    wheel(folder, "rocm-sdk-core", {"_rocm_sdk_core/lib/libamdhip64.so.7": b"other"})
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "second"))
    with pytest.raises(EnvironmentFailure, match=r"(?s)what the lock file names.*DO NOT MATCH"):
        locks.install_locked(locks.read_lock(tmp_path / "lock"), quiet=True)
    assert entries(toolchains_dir()) == ()


@pytest.mark.slow
def test_an_index_without_the_sdk_and_core_alone(index: str) -> None:
    with pytest.raises(EnvironmentFailure, match="pip could not get rocm-nothing from file:"):
        install_sdk(index_url=index, requirements=["rocm-nothing"], quiet=True)
    with pytest.raises(EnvironmentFailure, match=r"_rocm_sdk_core: .*no HIP headers") as err:
        install_sdk(index_url=index, requirements=["rocm"], quiet=True)
    assert "rocm[devel]" in err.value.hint
    assert entries(toolchains_dir()) == ()
    assert sys.modules.get("rocm_sdk") is None
