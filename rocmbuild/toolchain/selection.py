"""Which toolchain is used: the user's choice, a project's pin, and who would miss one that is taken away."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmbuild.errors import EnvironmentFailure, InputError, shown
from rocmbuild.paths import write_atomic
from rocmbuild.toolchain.discover import CHOSEN, chosen_name, find_toolchain, toolchains_dir
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.runtime import runtimes_dir
from rocmbuild.toolchain.store import entries, remove, system_errors, verify
from rocmbuild.toolchain.torch_sdk import torch_sdks_dir

__all__ = ["choose", "pin_project", "remove_installed", "unchoose", "users_of", "verify_installed"]

_PROJECTS = ".projects.json"
_TABLE = re.compile(r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*rocmbuild[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)
_KEY = re.compile(r"^[ \t]*(?:toolchain|\"toolchain\"|'toolchain')[ \t]*=.*$", re.MULTILINE)
_ANY_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def choose(name: str, environ: Mapping[str, str]) -> Toolchain:
    """Make a toolchain this user's own choice, before everything that nobody named.

    Raises EnvironmentFailure when no usable toolchain has that name.
    """
    found = find_toolchain(spec=_a_name(name), environ=environ)
    with system_errors(f"choosing {name}"):
        write_atomic(toolchains_dir() / CHOSEN, f"{name}\n".encode())
    return found


def unchoose() -> str | None:
    """Take the choice back; returns the name that it had."""
    name = chosen_name()
    with system_errors("taking the choice back"):
        (toolchains_dir() / CHOSEN).unlink(missing_ok=True)
    return name


def _a_name(name: str) -> str:
    if not name or "/" in name or name[0] in "<>=!~":
        raise InputError(
            f"{name!r} is not the name of a toolchain", hint="`rocmbuild toolchain list` shows the names that there are"
        )
    return name


def pin_project(project: Path, spec: str, environ: Mapping[str, str]) -> Path:
    """Write `toolchain = "spec"` into a project's pyproject.toml and change nothing else there.

    spec: a name, or a version range such as ">=7.0". Raises InputError for a file that cannot be changed so, and
    EnvironmentFailure when nothing here answers to spec.
    """
    find_toolchain(spec=spec, environ=environ)
    path = project / "pyproject.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})", hint="`rocmbuild init` makes one") from err
    before = _parse(text, path)
    changed = _with_pin(text, f"toolchain = {_toml_text(spec)}")
    wanted = json.loads(json.dumps(before, default=str))
    wanted.setdefault("tool", {}).setdefault("rocmbuild", {})["toolchain"] = spec
    try:
        after = _parse(changed, path)
    except InputError:
        after = {}
    if json.loads(json.dumps(after, default=str)) != wanted:
        raise InputError(
            f"{path}: the table tool.rocmbuild is not written so that a line can be put into it",
            hint=f"write it there by hand: toolchain = {_toml_text(spec)}",
        )
    with system_errors(f"pinning {spec}"):
        write_atomic(path, changed.encode())
        _remember(project.resolve())
    return path


def _with_pin(text: str, line: str) -> str:
    table = _TABLE.search(text)
    if table is None:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[tool.rocmbuild]\n{line}\n"
    following = _ANY_TABLE.search(text, table.end())
    end = following.start() if following else len(text)
    key = _KEY.search(text, table.end(), end)
    if key is not None:
        return text[: key.start()] + line + text[key.end() :]
    return text[: table.end()] + "\n" + line + text[table.end() :]


def _toml_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string


def _parse(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise InputError(f"{path}: not valid TOML ({err})") from err
    return value


def _projects() -> list[str]:
    try:
        value = json.loads((toolchains_dir() / _PROJECTS).read_bytes())
    except (OSError, ValueError):
        return []
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _remember(project: Path) -> None:
    known = _projects()
    if str(project) not in known:
        write_atomic(toolchains_dir() / _PROJECTS, json.dumps(sorted([*known, str(project)])).encode())


def users_of(name: str, folder: Path) -> tuple[str, ...]:
    """Who would miss an installed component: the user's choice, projects that pin it, programs that run from it."""
    found = []
    if chosen_name() == name:
        found.append("it is the one chosen with `toolchain use`")
    for project in _projects():
        path = Path(project) / "pyproject.toml"
        try:
            pin = _parse(path.read_text(encoding="utf-8"), path).get("tool", {}).get("rocmbuild", {}).get("toolchain")
        except (OSError, UnicodeDecodeError, InputError, AttributeError):
            continue
        if pin == name:
            found.append(f"{path} pins it")
    found += [f"a process runs from it ({process})" for process in _processes_in(folder)]
    return tuple(found)


def _processes_in(folder: Path) -> list[str]:
    real = os.path.realpath(folder) + os.sep
    found = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            program = str((process / "exe").readlink())
        except OSError:  # gone, or somebody else's
            continue
        if program.startswith(real):
            found.append(f"{process.name}: {Path(program).name}")
    return found


def _stores() -> tuple[Path, ...]:
    return (toolchains_dir(), torch_sdks_dir(), runtimes_dir())


def remove_installed(name: str, *, force: bool = False) -> Path:
    """Take a managed component away: a toolchain, a torch SDK or a runtime; returns the folder that it had.

    Raises InputError for an unknown name, and for one that is in use unless forced.
    """
    found = [(store, entry) for store in _stores() for entry in entries(store) if entry.name == name]
    if not found:
        listed = ", ".join(entry.name for store in _stores() for entry in entries(store)) or "none"
        raise InputError(f"nothing is installed under the name {shown(name)} (installed: {listed})")
    store, entry = found[0]
    users = users_of(name, entry.folder)
    if users and not force:
        listed = "".join(f"\n  - {user}" for user in users)
        raise InputError(f"{name} is in use:{listed}", hint=f"`rocmbuild toolchain remove --force {name}` all the same")
    remove(store, name)
    if store == toolchains_dir() and chosen_name() == name:
        unchoose()
    return entry.folder


def verify_installed(name: str | None = None) -> dict[str, tuple[str, ...]]:
    """The differences between each managed component and its manifest, by name; () where there is none.

    Raises InputError for an unknown name, EnvironmentFailure when nothing is installed.
    """
    found = [entry for store in _stores() for entry in entries(store)]
    chosen = [entry for entry in found if name in (None, entry.name)]
    if not chosen and name is not None:
        listed = ", ".join(entry.name for entry in found) or "none"
        raise InputError(f"nothing is installed under the name {shown(name)} (installed: {listed})")
    if not chosen:
        raise EnvironmentFailure("nothing is installed that could be verified", hint="rocmbuild toolchain install")
    faults = {}
    for entry in chosen:
        with system_errors(f"verifying {entry.name}"):
            faults[entry.name] = verify(entry)
    return faults
