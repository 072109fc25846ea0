"""The torch SDK: the headers and the hipify scripts of one torch release, without torch.

The managed component is taken from torch's wheel, which pip resolves with its own settings; each file is held against
the digest in the wheel's RECORD. An installed torch serves too. Neither is ever imported.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.console import Progress
from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.paths import cache_dir, data_dir, write_atomic
from rocmbuild.process import run
from rocmbuild.toolchain.store import Entry, digest_of, entries, locked, publish, remove, system_errors, work

__all__ = [
    "DEFAULT_TORCH",
    "TorchBuild",
    "TorchSdk",
    "find_torch_sdk",
    "install_torch_sdk",
    "pip_command",
    "remove_torch_sdk",
    "torch_build",
    "torch_sdks_dir",
]

DEFAULT_TORCH = "2.13.0"
OLDEST_TORCH = "2.10"
"""The first release with the stable C++ headers that extensions are built against."""

_NEXT_STEP = "`rocmbuild toolchain install torch-sdk`"
_WHEEL_PYTHON = "3.11"  # the headers are the same for each Python; one build that every index has
_PARTS = ("torch/include/", "torch/utils/hipify/")
_STABLE = "include/torch/csrc/stable/library.h"
_HIPIFY = "utils/hipify/hipify_python.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSdk:
    """Headers and hipify of one torch release.

    version: as the wheel or the installation says it, local part included ("2.13.0+cpu"). include: the folder
    `torch/include`. hipify: the folder `torch/utils/hipify`, a package that imports nothing of torch. origin:
    "managed" or the site folder. digest: SHA-256 over the paths and digests of the files of both folders, the same for
    a managed and an installed copy.
    """

    version: str
    include: Path
    hipify: Path
    origin: str
    digest: str

    def include_dirs(self) -> tuple[Path, ...]:
        """The folders that torch's own build names with -I."""
        return (self.include, self.include / "torch" / "csrc" / "api" / "include")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """What an installed torch is built for: its version, and CUDA's or HIP's; "" for neither, a CPU build."""

    version: str
    cuda: str
    hip: str


def torch_build(path: Sequence[str] | None = None) -> TorchBuild | None:
    """The torch installed on path (default: this interpreter's), from the text of torch/version.py; None without."""
    for folder in dict.fromkeys(sys.path if path is None else path):
        file = Path(folder) / "torch" / "version.py"
        if folder and file.is_file():
            text = file.read_text(errors="replace")
            values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*(?:'([^']*)'|None)", text, re.MULTILINE))
            version, cuda, hip = (values.get(key) or "" for key in ("__version__", "cuda", "hip"))
            return TorchBuild(version=version, cuda=cuda, hip=hip)
    return None


def torch_sdks_dir() -> Path:
    """The store of torch SDKs."""
    return data_dir() / "torch-sdk"


def find_torch_sdk(*, wanted: str | None = None, path: Sequence[str] | None = None) -> TorchSdk:
    """A torch SDK: the managed ones, newest first, then the torch installed on path (default: this interpreter's).

    wanted: a version ("2.13.0") or a range (">=2.10"). Raises EnvironmentFailure that says what was found, InputError
    for a value that is neither.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # cold start
    from packaging.version import InvalidVersion, Version

    spec = (wanted or f">={OLDEST_TORCH}").strip()
    try:
        specifiers = SpecifierSet(spec if spec[:1] in "<>=!~" else f"=={spec}")
    except InvalidSpecifier as err:
        raise InputError(f"torch {wanted!r}: neither a version nor a range", hint='write "2.13.0" or ">=2.10"') from err
    refused = []
    managed = [entry for entry in entries(torch_sdks_dir()) if entry.kind == "torch-sdk"]
    for entry in sorted(managed, key=lambda e: Version(str(e.facts["version"])), reverse=True):
        version = str(entry.facts["version"])
        if specifiers.contains(version, prereleases=True):
            return _managed(entry)
        refused.append(f"managed {version}: outside {spec}")
    for site, version in _installed(sys.path if path is None else path):
        folder = site / "torch"
        try:
            fits = specifiers.contains(Version(version), prereleases=True)
        except InvalidVersion:
            fits = False
        if not fits:
            refused.append(f"torch {version} in {site}: outside {spec}")
        elif not (folder / _STABLE).is_file() or not (folder / _HIPIFY).is_file():
            refused.append(f"torch {version} in {site}: lacks the stable headers or utils/hipify")
        else:
            return TorchSdk(
                version=version,
                include=folder / "include",
                hipify=folder / "utils" / "hipify",
                origin=str(site),
                digest=_installed_digest(site, version),
            )
    listed = "".join(f"\n  - {reason}" for reason in refused)
    raise EnvironmentFailure(f"no torch SDK ({spec}) was found{':' if listed else ''}{listed}", hint=_NEXT_STEP)


def _managed(entry: Entry) -> TorchSdk:
    return TorchSdk(
        version=str(entry.facts["version"]),
        include=entry.folder / "torch" / "include",
        hipify=entry.folder / "torch" / "utils" / "hipify",
        origin="managed",
        digest=str(entry.facts["sdk_digest"]),
    )


def _installed(path: Sequence[str]) -> Iterable[tuple[Path, str]]:
    """(site folder, version) of each torch on path, from its dist-info alone."""
    for name in dict.fromkeys(path):
        site = Path(name)
        if not name or not (site / "torch" / "version.py").is_file():
            continue
        for info in sorted(site.glob("torch-*.dist-info")):
            yield site, info.name[len("torch-") : -len(".dist-info")]


def _installed_digest(site: Path, version: str) -> str:
    """The SDK's digest from the installed RECORD, kept under that file's time and size."""
    record = site / f"torch-{version}.dist-info" / "RECORD"
    try:
        status = record.stat()
        key = digest_of(str(record).encode(), f"{status.st_mtime_ns} {status.st_size}".encode())[:32]
        cached = cache_dir() / "probes" / f"torch-{key}.json"
        try:
            return str(json.loads(cached.read_bytes())["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        digests = _record(record.read_text(encoding="utf-8"))
        digest = _sdk_digest({name: value for name, value in digests.items() if name.startswith(_PARTS)})
        write_atomic(cached, json.dumps({"digest": digest}).encode())
    except OSError:
        return digest_of(version.encode())
    return digest


def _record(text: str) -> dict[str, str]:
    """Path to SHA-256 (hexadecimal) of each entry that has one."""
    found = {}
    for row in csv.reader(io.StringIO(text)):
        if len(row) == 3 and row[1].startswith("sha256="):
            value = row[1][len("sha256=") :]
            found[row[0]] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return found


def _sdk_digest(digests: dict[str, str]) -> str:
    return digest_of(*(f"{name}\0{digests[name]}".encode() for name in sorted(digests) if not name.endswith(".pyc")))


def install_torch_sdk(version: str = DEFAULT_TORCH, *, force: bool = False, quiet: bool = False) -> TorchSdk:
    """Install the headers and hipify of one torch release into the managed store, or return what is there.

    version: a release ("2.13.0") or one exact build ("2.13.0+cpu"); without a local part a CPU build is preferred and
    any other accepted. pip resolves it with the user's own settings. Raises EnvironmentFailure, InputError for a bad
    version.
    """
    from packaging.version import InvalidVersion, Version  # cold start

    try:
        parsed = Version(version)
    except InvalidVersion as err:
        raise InputError(f"torch {version!r}: not a version", hint=f'write it as "{DEFAULT_TORCH}"') from err
    store = torch_sdks_dir()
    name = str(parsed)
    present = None if force else _present(name)
    if present is not None:
        return present
    what = f"installing the torch SDK {name}"
    with locked(store, what=what), system_errors(what):
        present = None if force else _present(name)
        if present is not None:
            return present
        with work(store) as folder, Progress(f"torch SDK {name}", enabled=not quiet) as progress:
            wheel = _download(parsed.public, parsed.local, folder / "wheel", progress)
            progress.update(3, 4, f"taking headers and hipify from {wheel.name}")
            found, digest = _extract(wheel, folder / "tree")
            progress.update(4, 4, f"installing {found} from {wheel.name}")
            facts = {"version": found, "wheel": wheel.name, "sdk_digest": digest}
            return _managed(publish(store, folder / "tree", name=name, kind="torch-sdk", facts=facts))


def remove_torch_sdk(name: str) -> None:
    """Take a managed torch SDK away. Raises InputError for an unknown name."""
    remove(torch_sdks_dir(), name)


def _present(name: str) -> TorchSdk | None:
    for entry in entries(torch_sdks_dir()):
        if entry.kind == "torch-sdk" and entry.name == name:
            return _managed(entry)
    return None


def _download(public: str, local: str | None, folder: Path, progress: Progress) -> Path:
    """torch's wheel, from wherever pip's settings say. A CPU build first: it is a fifth of a CUDA one."""
    folder.mkdir()
    builds = [f"{public}+{local}"] if local else [f"{public}+cpu", public]
    failures = []
    for index, build in enumerate(builds):
        progress.update(index + 1, 4, f"pip download torch=={build}")
        command = [
            *pip_command(),
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            _WHEEL_PYTHON,
        ]
        done = run([*command, "--dest", folder, f"torch=={build}"], what="pip", check=False)
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
        failures.append(done.output)
    hint = "check pip's settings (index, find-links, network); `pip download --no-deps torch==" + public + "` must work"
    raise EnvironmentFailure(f"pip found no wheel of torch {public}:\n{failures[-1]}", hint=hint)


def pip_command() -> list[str]:
    """A pip to run: this interpreter's, one on PATH, or the copy that Python carries."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    on_path = shutil.which("pip") or shutil.which("pip3")
    if on_path:
        return [on_path]
    spec = importlib.util.find_spec("ensurepip")
    carried = sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl")) if spec and spec.origin else []
    if carried:
        return [sys.executable, os.fspath(carried[-1] / "pip")]
    raise EnvironmentFailure("pip is needed to fetch torch's wheel and was not found", hint="install pip")


def _extract(wheel: Path, tree: Path) -> tuple[str, str]:
    """Take the SDK's files out of a wheel, each held against RECORD. Returns the exact version and the SDK's digest."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [info for info in archive.namelist() if info.split("/")[0].endswith(".dist-info")]
            record = next((name for name in names if name.count("/") == 1 and name.endswith("/RECORD")), None)
            if record is None:
                raise EnvironmentFailure(f"{wheel.name}: has no RECORD, so its files cannot be checked")
            version = record.split("-", 1)[1].removesuffix(".dist-info/RECORD")
            digests = _record(archive.read(record).decode("utf-8"))
            taken: dict[str, str] = {}
            for info in archive.infolist():
                if not info.filename.startswith(_PARTS) or info.is_dir():
                    continue
                data = archive.read(info)
                digest = hashlib.sha256(data).hexdigest()
                if digests.get(info.filename) != digest:
                    raise EnvironmentFailure(f"{wheel.name}: {info.filename} differs from the digest in its RECORD")
                _write(tree, info.filename, data)
                taken[info.filename] = digest
            for name in names:
                if "licen" in name.lower() and not name.endswith("/"):
                    _write(tree, name.split("/", 1)[1], archive.read(name))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError) as err:
        raise EnvironmentFailure(f"{wheel.name}: not a readable wheel ({err})") from err
    for part in (_STABLE, _HIPIFY):
        if f"torch/{part}" not in taken:
            raise EnvironmentFailure(
                f"torch {version}: its wheel has no torch/{part}", hint=f"{OLDEST_TORCH} or newer is needed"
            )
    return version, _sdk_digest(taken)


def _write(tree: Path, name: str, data: bytes) -> None:
    path = tree / name
    if not path.resolve().is_relative_to(tree.resolve()):
        raise EnvironmentFailure(f"a wheel's entry points outside of it: {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
