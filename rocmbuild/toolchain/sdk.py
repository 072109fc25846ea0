"""AMD's ROCm SDK for pip, in a managed folder of its own.

pip resolves and downloads the packages from the index that the user names; they are installed into a folder of the
store, beside nothing else, and the devel package's archive is expanded there by AMD's own tool: being asked for this
install is being asked for that.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmbuild.console import Progress
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import run
from rocmbuild.toolchain.discover import managed_toolchain, toolchains_dir
from rocmbuild.toolchain.layouts import inspect_prefix
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.store import downloads, entries, locked, publish, sha256_of, system_errors, work
from rocmbuild.toolchain.torch_sdk import pip_command

__all__ = ["DEFAULT_REQUIREMENTS", "install_sdk"]

DEFAULT_REQUIREMENTS = ("rocm[devel]",)


def install_sdk(
    *,
    index_url: str,
    requirements: Sequence[str] = DEFAULT_REQUIREMENTS,
    pinned: Sequence[Mapping[str, str]] = (),
    force: bool = False,
    quiet: bool = False,
) -> Toolchain:
    """Install AMD's SDK from an index, or return what an earlier call installed from there.

    requirements: what pip is asked for. pinned: files of a lock, each with name, version and sha256, and no others.
    Raises EnvironmentFailure.
    """
    request = {"provider": "sdk", "index_url": index_url, "requirements": sorted(requirements), "layout": 1}
    present = None if force else _present(request, pinned)
    if present is not None:
        return present
    store = toolchains_dir()
    what = "installing AMD's SDK"
    with locked(store, what=what), system_errors(what):
        present = None if force else _present(request, pinned)
        if present is not None:
            return present
        with downloads(store) as fetched, work(store) as folder, Progress("SDK", enabled=not quiet) as progress:
            progress.update(1, 4, f"downloading {', '.join(requirements)}")
            files = _download(index_url, requirements, pinned, fetched / "sdk")
            progress.update(2, 4, f"installing {len(files)} packages")
            site = folder / "tree" / "site"
            _install(fetched / "sdk", requirements, site)
            progress.update(3, 4, "expanding the devel package")
            found = _expand(site)
            facts = {
                "request": request,
                "release": "",
                "hip_version": found.hip_version,
                "clang_version": found.clang_version,
                "packages": files,
                "paths": found.paths_below(folder / "tree"),
            }
            version = next((file["version"] for file in files if file["name"] == "rocm-sdk-core"), found.hip_version)
            progress.update(4, 4, f"installing sdk-{version}")
            return managed_toolchain(
                publish(store, folder / "tree", name=f"sdk-{version}", kind="toolchain", facts=facts)
            )


def _present(request: Mapping[str, Any], pinned: Sequence[Mapping[str, str]]) -> Toolchain | None:
    wanted = {package["sha256"] for package in pinned}
    for entry in entries(toolchains_dir()):
        digests = {package["sha256"] for package in entry.facts.get("packages", ())}
        if entry.kind == "toolchain" and entry.facts.get("request") == request and (not wanted or digests == wanted):
            return managed_toolchain(entry)
    return None


def _download(
    index_url: str, requirements: Sequence[str], pinned: Sequence[Mapping[str, str]], into: Path
) -> list[dict[str, str]]:
    """Fetch every package; pip takes files that are there already when their digests are right."""
    into.mkdir(parents=True, exist_ok=True)
    words: list[str | Path] = [*pip_command(), "download", "--quiet", "--disable-pip-version-check", "--dest", into]
    words += ["--index-url", index_url, "--no-build-isolation"]
    if pinned:
        lines = [f"{file['name']}=={file['version']} --hash=sha256:{file['sha256']}\n" for file in pinned]
        listing = into.parent / "sdk-requirements.txt"
        listing.write_text("".join(lines))
        words += ["--no-deps", "--require-hashes", "-r", listing]
    else:
        words += list(requirements)
    done = run(words, what="pip", check=False)
    if done.returncode != 0:
        wanted = "what the lock file names" if pinned else ", ".join(requirements)
        raise EnvironmentFailure(
            f"pip could not get {wanted} from {index_url}:\n{done.output}",
            hint="check the index's address and the network; AMD's pages list the index of each family of cards",
        )
    names = {file["name"] for file in pinned}
    found = []
    for path in sorted(into.iterdir()):
        match = re.match(r"(.+?)-(\d[^-]*?)(?:-.*\.whl|\.tar\.gz|\.zip)$", path.name)
        if match is None:
            continue
        name = re.sub(r"[-_.]+", "-", match.group(1)).lower()
        if names and name not in names:
            path.unlink()  # of an earlier download
            continue
        found.append({"name": name, "version": match.group(2), "file": path.name, "sha256": sha256_of(path)})
    return found


def _install(files: Path, requirements: Sequence[str], site: Path) -> None:
    words: list[str | Path] = [*pip_command(), "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    words += ["--no-build-isolation", "--no-warn-script-location", "--find-links", files, "--target", site]
    run(
        [*words, *requirements],
        what="pip could not install the SDK",
        error=EnvironmentFailure,
        hint="an sdist among its packages is built with this interpreter's setuptools",
    )


def _expand(site: Path) -> Toolchain:
    """The toolchain of the site folder, after AMD's tool has unpacked the devel package beside it."""
    if not list(site.glob("_rocm_sdk_devel*")) and (site / "rocm_sdk_devel").is_dir():
        env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
        run([sys.executable, "-m", "rocm_sdk", "init"], what="rocm-sdk init", env=env, error=EnvironmentFailure)
    for cache in list(site.rglob("__pycache__")):
        shutil.rmtree(cache)
    _make_relative(site)
    refused = []
    for prefix in [*sorted(site.glob("_rocm_sdk_devel*")), *sorted(site.glob("_rocm_sdk_core*"))]:
        found = inspect_prefix(prefix, name="new", kind="managed", origin="install")
        if isinstance(found, Toolchain):
            return found
        refused.append(f"{prefix.name}: {'; '.join(found)}")
    raise EnvironmentFailure(
        "the SDK's packages do not make a whole toolchain: " + ("; ".join(refused) or "they hold no _rocm_sdk folder"),
        hint="ask for the devel package too: rocm[devel]",
    )


def _make_relative(site: Path) -> None:
    """Links with absolute targets below site would break when the folder gets its place."""
    for root, folders, files in os.walk(site):
        for name in [*folders, *files]:
            path = Path(root) / name
            if path.is_symlink() and (target := path.readlink()).is_absolute():
                if not target.is_relative_to(site):
                    raise EnvironmentFailure(f"the SDK has a link out of its folder: {path.name} -> {target}")
                path.unlink()
                path.symlink_to(os.path.relpath(target, root))
