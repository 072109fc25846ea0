"""The torch SDK: taken from a wheel that pip finds, each file held against RECORD; torch itself is never imported."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import require

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.toolchain.store import entries, verify
from rocmbuild.toolchain.torch_sdk import (
    DEFAULT_TORCH,
    find_torch_sdk,
    install_torch_sdk,
    remove_torch_sdk,
    torch_sdks_dir,
)

FILES = {
    "torch/__init__.py": b"raise SystemExit('torch was imported')\n",
    "torch/version.py": b"__version__ = '2.13.0'\n",
    "torch/lib/libtorch.so": b"\x7fELF" + bytes(1000),
    "torch/include/torch/csrc/stable/library.h": b"// stable\n",
    "torch/include/torch/csrc/api/include/torch/torch.h": b"// api\n",
    "torch/utils/__init__.py": b"import torch\n",
    "torch/utils/hipify/__init__.py": b"from .version import __version__\n",
    "torch/utils/hipify/version.py": b"__version__ = '2.0.0'\n",
    "torch/utils/hipify/hipify_python.py": b"# hipify\n",
}


def wheel(folder: Path, version: str, files: dict[str, bytes] = FILES, lie: str = "") -> Path:
    """A wheel named torch. lie: the file whose RECORD digest is another one's."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"torch-{version}.dist-info"
    everything = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
        f"{info}/licenses/third_party/x/LICENSE": b"free\n",
    }
    rows = []
    for name, data in everything.items():
        shown = data + b"x" if name == lie else data
        digest = base64.urlsafe_b64encode(hashlib.sha256(shown).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(shown)}\n")
    path = folder / f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in everything.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    return path


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip with nothing but a folder of wheels, and folders of our own."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def installed(site: Path, version: str) -> Path:
    with zipfile.ZipFile(wheel(site.parent / "made", version)) as archive:
        archive.extractall(site)
    return site


def test_a_cpu_build_is_preferred_and_only_the_sdk_is_taken(links: Path) -> None:
    wheel(links, "2.13.0")
    wheel(links, "2.13.0+cpu")
    wheel(links, "2.14.0")
    sdk = install_torch_sdk(quiet=True)
    assert sdk.version == "2.13.0+cpu"
    assert sdk.origin == "managed"
    assert sdk.include_dirs() == (sdk.include, sdk.include / "torch/csrc/api/include")
    assert (sdk.include / "torch/csrc/stable/library.h").read_bytes() == b"// stable\n"
    assert (sdk.hipify / "hipify_python.py").read_bytes() == b"# hipify\n"
    (entry,) = entries(torch_sdks_dir())
    assert entry.name == DEFAULT_TORCH
    assert verify(entry) == ()
    names = {path.relative_to(entry.folder).as_posix() for path in entry.folder.rglob("*") if path.is_file()}
    assert "torch/__init__.py" not in names
    assert not any(name.endswith(".so") for name in names)
    assert "licenses/third_party/x/LICENSE" in names
    assert find_torch_sdk(path=[]) == sdk


def test_any_other_build_serves_and_pip_is_asked_for_no_other_release(links: Path) -> None:
    wheel(links, "2.13.0")
    wheel(links, "2.13.1+cpu")
    assert install_torch_sdk("2.13.0", quiet=True).version == "2.13.0"
    assert install_torch_sdk("2.13.1+cpu", quiet=True).version == "2.13.1+cpu"
    assert [entry.name for entry in entries(torch_sdks_dir())] == ["2.13.0", "2.13.1+cpu"]
    assert find_torch_sdk(path=[]).version == "2.13.1+cpu"
    assert find_torch_sdk(wanted="2.13.0", path=[]).version == "2.13.0"
    assert find_torch_sdk(wanted="<2.13.1", path=[]).version == "2.13.0"
    remove_torch_sdk("2.13.1+cpu")
    assert find_torch_sdk(path=[]).version == "2.13.0"


def test_a_second_install_asks_nobody(links: Path) -> None:
    made = wheel(links, "2.13.0+cpu")
    first = install_torch_sdk(quiet=True)
    made.unlink()
    assert install_torch_sdk(quiet=True) == first
    with pytest.raises(EnvironmentFailure, match=r"pip found no wheel of torch 2\.13\.0"):
        install_torch_sdk(force=True, quiet=True)
    assert find_torch_sdk(path=[]) == first


@pytest.mark.parametrize("lie", ["torch/utils/hipify/hipify_python.py", "torch/include/torch/csrc/stable/library.h"])
def test_a_file_that_differs_from_record_is_refused(links: Path, lie: str) -> None:
    wheel(links, "2.13.0+cpu", lie=lie)
    with pytest.raises(EnvironmentFailure, match=f"{lie} differs from the digest in its RECORD"):
        install_torch_sdk(quiet=True)
    assert sorted(path.name for path in torch_sdks_dir().iterdir()) == [".lock"]


def test_a_release_without_the_stable_headers_is_refused(links: Path) -> None:
    wheel(links, "2.4.0", {name: data for name, data in FILES.items() if "stable" not in name})
    with pytest.raises(EnvironmentFailure, match=r"no torch/include/torch/csrc/stable/library\.h") as err:
        install_torch_sdk("2.4.0", quiet=True)
    assert "2.10 or newer" in err.value.hint


def test_a_wheel_that_climbs_out_is_refused(links: Path) -> None:
    wheel(links, "2.13.0+cpu", {**FILES, "torch/include/../../../../escaped.h": b"x"})
    with pytest.raises(EnvironmentFailure, match="points outside"):
        install_torch_sdk(quiet=True)
    assert not list(links.parent.rglob("escaped.h"))


def test_nothing_to_find(links: Path) -> None:
    with pytest.raises(EnvironmentFailure) as err:
        install_torch_sdk(quiet=True)
    assert "pip found no wheel of torch 2.13.0" in err.value.message
    assert "find-links" in err.value.hint
    with pytest.raises(InputError, match="not a version"):
        install_torch_sdk("newest")
    with pytest.raises(EnvironmentFailure, match=r"no torch SDK \(>=2\.10\) was found") as err:
        find_torch_sdk(path=[])
    assert "toolchain install" in err.value.hint
    with pytest.raises(InputError, match="neither a version nor a range"):
        find_torch_sdk(wanted=">=?")


def test_an_installed_torch_serves_without_being_imported(links: Path, tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "2.13.0+cu130")
    sdk = find_torch_sdk(path=["", str(tmp_path / "absent"), str(site)])
    assert (sdk.version, sdk.origin) == ("2.13.0+cu130", str(site))
    assert sdk.hipify == site / "torch/utils/hipify"
    assert "torch" not in {name for name in sys.modules if name == "torch" and str(site) in str(sys.modules[name])}
    wheel(links, "2.13.0")
    managed = install_torch_sdk(quiet=True)
    assert managed.digest == sdk.digest  # the same files, wherever they are
    assert find_torch_sdk(path=[str(site)]) == managed


def test_an_installed_torch_that_does_not_fit_is_named(links: Path, tmp_path: Path) -> None:
    old = installed(tmp_path / "old", "2.9.1")
    bare = installed(tmp_path / "bare", "2.13.0")
    (bare / "torch/utils/hipify/hipify_python.py").unlink()
    with pytest.raises(EnvironmentFailure) as err:
        find_torch_sdk(path=[str(old), str(bare)])
    assert f"torch 2.9.1 in {old}: outside >=2.10" in err.value.message
    assert f"torch 2.13.0 in {bare}: lacks the stable headers or utils/hipify" in err.value.message


def test_two_installs_at_once_do_it_once(links: Path) -> None:
    wheel(links, "2.13.0+cpu")
    code = "from rocmbuild.toolchain.torch_sdk import install_torch_sdk; print(install_torch_sdk().digest)"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum("installing 2.13.0+cpu from" in err for _, err in said) == 1


def test_without_pip_in_the_interpreter_the_copy_that_python_carries_runs(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Isolated build environments have no pip of their own."""
    import importlib.util

    genuine = importlib.util.find_spec
    if genuine("ensurepip") is None:
        require("ensurepip")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else genuine(name))
    monkeypatch.setenv("PATH", "/nowhere")
    wheel(links, "2.13.0+cpu")
    assert install_torch_sdk(quiet=True).version == "2.13.0+cpu"


@pytest.mark.slow
def test_the_real_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real release, through pip's real settings; its hipify runs from the component alone."""
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path))
    sdk = install_torch_sdk(quiet=True)
    (entry,) = entries(torch_sdks_dir())
    assert verify(entry) == ()
    assert sum(1 for path in sdk.include.rglob("*.h")) > 5000
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("hipify", {str(sdk.hipify / "__init__.py")!r},
                                              submodule_search_locations=[{str(sdk.hipify)!r}])
module = importlib.util.module_from_spec(spec); sys.modules["hipify"] = module; spec.loader.exec_module(module)
import hipify.hipify_python
assert "torch" not in sys.modules
print(module.__version__)
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
