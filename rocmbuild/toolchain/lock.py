"""Lock files: the very packages of a toolchain, by version and digest, for the next machine.

A lock is JSON, written from an installed toolchain's manifest. Installing from it takes those packages and no others;
what the repository has no more, or has with other contents, is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.console import warn
from rocmbuild.errors import EnvironmentFailure, InputError, shown
from rocmbuild.paths import write_atomic
from rocmbuild.toolchain.discover import toolchains_dir
from rocmbuild.toolchain.install import LAYOUT, Pin, install_debian
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.sdk import install_sdk
from rocmbuild.toolchain.store import Entry, entries, system_errors
from rocmbuild.toolchain.torch_sdk import find_torch_sdk, install_torch_sdk

__all__ = ["LOCK_FILE", "Lock", "install_locked", "lock_of", "read_lock", "write_lock"]

LOCK_FILE = "rocmbuild.lock"
_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What a lock file says. request: as the installer was asked; packages: name, version, sha256 of each.

    digest: of the whole prefix, which the same rocmbuild makes the same from the same packages. torch_sdk: version and
    digest, or None.
    """

    name: str
    request: Mapping[str, Any]
    release: str
    hip_version: str
    clang_version: str
    digest: str
    packages: tuple[Mapping[str, str], ...]
    torch_sdk: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "format": _FORMAT,
            "name": self.name,
            "hip": self.hip_version,
            "clang": self.clang_version,
            "release": self.release,
            "request": dict(self.request),
            "digest": self.digest,
            "torch-sdk": dict(self.torch_sdk) if self.torch_sdk else None,
            "packages": [dict(package) for package in self.packages],
        }


def lock_of(entry: Entry) -> Lock:
    """The lock of an installed toolchain, and of the torch SDK beside it."""
    facts = entry.facts
    if not isinstance(facts.get("request"), dict) or not facts.get("packages") or "layout" not in facts["request"]:
        raise InputError(
            f"{entry.name}: was installed by an older rocmbuild, which did not write down what a lock needs",
            hint="`rocmbuild toolchain install` installs it anew",
        )
    try:
        sdk = find_torch_sdk(path=())
    except EnvironmentFailure:
        torch_sdk = None
    else:
        torch_sdk = {"version": sdk.version, "digest": sdk.digest}
    return Lock(
        name=entry.name,
        request=facts["request"],
        release=str(facts.get("release", "")),
        hip_version=str(facts["hip_version"]),
        clang_version=str(facts["clang_version"]),
        digest=entry.digest,
        packages=tuple(facts["packages"]),
        torch_sdk=torch_sdk,
    )


def write_lock(name: str | None, path: Path) -> Lock:
    """Lock a managed toolchain (default: the newest). Raises InputError, EnvironmentFailure."""
    found = [entry for entry in entries(toolchains_dir()) if entry.kind == "toolchain"]
    chosen = [entry for entry in found if name in (None, entry.name)]
    if not chosen:
        listed = ", ".join(entry.name for entry in found) or "none"
        asked = f" under the name {shown(name)}" if name else ""
        raise InputError(
            f"only managed toolchains can be locked, and none is installed{asked} (installed: {listed})",
            hint="rocmbuild toolchain install",
        )
    lock = lock_of(max(chosen, key=lambda entry: [int(n) for n in re.findall(r"\d+", str(entry.facts["hip_version"]))]))
    with system_errors("writing the lock file"):
        write_atomic(path, (json.dumps(lock.to_json(), indent=2) + "\n").encode())
    return lock


def read_lock(path: Path) -> Lock:
    """Raises InputError that names the key for anything that is not a lock file of this format."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    except ValueError as err:
        raise InputError(f"{path}: not a lock file ({err})", hint="`rocmbuild toolchain lock` writes one") from err
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise InputError(
            f"{path}: format {shown(found)}, wanted {_FORMAT}", hint="`rocmbuild toolchain lock` writes one"
        )
    faults = [key for key in ("name", "hip", "clang", "release", "digest") if not isinstance(value.get(key), str)]
    faults += ["request"] if not isinstance(value.get("request"), dict) else []
    packages = value.get("packages")
    listed = packages if isinstance(packages, list) else []
    faults += ["packages"] if not listed else []
    for index, package in enumerate(listed):
        good = isinstance(package, dict) and all(isinstance(package.get(key), str) for key in ("name", "version"))
        if not good or not _DIGEST.fullmatch(str(package.get("sha256"))):
            faults.append(f"packages[{index}]")
    sdk = value.get("torch-sdk")
    keys = ("version", "digest")
    if sdk is not None and not (isinstance(sdk, dict) and all(isinstance(sdk.get(key), str) for key in keys)):
        faults.append("torch-sdk")
    if faults:
        raise InputError(f"{path}: missing or of the wrong kind: {', '.join(faults)}")
    return Lock(
        name=value["name"],
        request=value["request"],
        release=value["release"],
        hip_version=value["hip"],
        clang_version=value["clang"],
        digest=value["digest"],
        packages=tuple(listed),
        torch_sdk=sdk,
    )


def install_locked(lock: Lock, *, quiet: bool = False) -> Toolchain:
    """Install what a lock names. Raises EnvironmentFailure for what cannot be had any more, InputError."""
    provider = lock.request.get("provider")
    if provider == "debian":
        if lock.request.get("layout") != LAYOUT:
            warn(f"the lock was written for prefix layout {lock.request.get('layout')}, this rocmbuild makes {LAYOUT}")
        packages = {(package["name"], package["version"]): package["sha256"] for package in lock.packages}
        toolchain = install_debian(
            lock.request.get("suite"),
            extras=list(lock.request.get("extras", ())),
            pin=Pin(release=lock.release, packages=packages),
            quiet=quiet,
        )
    elif provider == "sdk":
        toolchain = install_sdk(
            index_url=str(lock.request["index_url"]),
            requirements=list(lock.request["requirements"]),
            pinned=lock.packages,
            quiet=quiet,
        )
    else:
        raise InputError(f"the lock file's provider is {shown(provider)}, wanted debian or sdk")
    if provider == "debian" and toolchain.digest != lock.digest and lock.request.get("layout") == LAYOUT:
        warn(f"{toolchain.name}: the packages are those of the lock file; another rocmbuild made the prefix of them")
    if lock.torch_sdk is not None:
        sdk = install_torch_sdk(lock.torch_sdk["version"].split("+")[0], quiet=quiet)
        if sdk.digest != lock.torch_sdk["digest"]:
            raise EnvironmentFailure(
                f"torch SDK {sdk.version}: its digest is {sdk.digest}, the lock file's {lock.torch_sdk['digest']}",
                hint="lock again if this is the torch that you want",
            )
    return toolchain
