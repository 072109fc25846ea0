"""The build of a project with its own setup.py: its sources checked, setuptools run with torch's ROCm code path."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmbuild import console, process
from rocmbuild.build import wrapped_hook
from rocmbuild.errors import CheckError, EnvironmentFailure
from rocmbuild.paths import cache_dir

__all__ = [
    "check_sources",
    "host_compilers",
    "installed_torch",
    "packages",
    "run_wrapped_hook",
    "site_folders",
]

_SHOWN_LINES = 40
_MATH_HEADER = re.compile(r"error: '?((?:hip(?!/)|roc|thrust)[a-z-]*/[\w./-]+)'?(?: file not found|: No such file)")
_FATAL = (
    *("leftover", "cuda-include", "shuffle-mask", "shuffle-overload"),
    *("wave-size", "warp-size-constant", "inline-ptx"),
)
"""Findings that no include folder or macro of setup.py, which staging does not see, can make good."""
_TOLD = ("vector-operator",)
"""Those that are no reason to stop, and the reason of many a compiler's wall of text."""


def run_wrapped_hook(
    hook: str, copy: Path, out: Path, *, settings: Path, work: Path, env: Mapping[str, str], verbose: bool = False
) -> str:
    """Run a hook of setuptools in the copy, with torch's ROCm code path; returns the name of what it made.

    settings: the file that wrapped_hook.py reads. Raises CheckError for sources that cannot be HIP, at their lines, and
    for a build that failed, with its last lines.
    """
    out.mkdir(parents=True, exist_ok=True)
    result = work / "hook-result.json"
    result.unlink(missing_ok=True)
    words = [sys.executable, wrapped_hook.__file__, str(settings), hook, str(out), str(result)]
    what = f"setup.py ({hook})"
    env = {**env, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    lines: list[str] = []
    if verbose:
        status = process.stream(words, what=what, cwd=copy, env=env, errors_only=True)
    else:
        done = process.run(words, what=what, cwd=copy, env=env, check=False)
        status, lines = done.returncode, done.output.splitlines()
    value = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    told = value.get("told", [])
    for text in told:
        console.warn(text)
    if "message" in value:
        raise CheckError(value["message"], hint=value["hint"])
    if status != 0 or "name" not in value:
        missing = next((match for line in lines if (match := _MATH_HEADER.search(line))), None)
        raise CheckError(
            "\n".join(
                [
                    f"{what} failed with status {status}:",
                    *lines[-_SHOWN_LINES:],
                    *(f"seen before compiling: {text}" for text in told),
                ]
            ),
            hint=f"{missing[1]} is missing: `rocmbuild toolchain install debian --with math` brings it"
            if missing
            else "-C verbose=true shows all of its lines",
        )
    return str(value["name"])


def check_sources(settings: Mapping[str, Any], sources: Sequence[str], include_dirs: Sequence[str]) -> list[str]:
    """Stage the sources of extensions and raise CheckError where one cannot be HIP, at its line; what else to tell.

    settings: `project`, `torch` (a version or range) and `hip_version`. sources, include_dirs: as setup.py names
    them, relative to the project; those outside of it are left out. The result of the staging is not what is
    compiled: torch's own hipify converts the copy, and both read the same tables.
    """
    from rocmbuild.staging.stage import make_stage
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    def inside(names: Sequence[str]) -> list[str]:
        clean = (posixpath.normpath(name) for name in names)
        return [name for name in dict.fromkeys(clean) if not name.startswith(("/", "../")) and name != ".."]

    project = Path(settings["project"])
    wanted = [name for name in inside(sources) if (project / name).is_file()]
    if not wanted:
        return []
    stage = make_stage(
        project,
        globs=wanted,
        include_dirs=[name for name in inside(include_dirs) if (project / name).is_dir()],
        engine=find_torch_sdk(wanted=settings["torch"]),
        hip_version=settings["hip_version"],
        cache=cache_dir() / "stages",
        strict=False,
    )
    errors = [finding for finding in stage.errors if finding.rule in _FATAL]
    if errors:
        shown = "\n".join(f"{finding}\n    {finding.hint}" for finding in errors)
        raise CheckError(
            f"{len(errors)} error{'s' * (len(errors) != 1)} in the sources, found before compiling:\n{shown}",
            hint="correct these lines in the project; each says how",
        )
    return [f"{found}; {found.hint}" for found in stage.findings if found.rule in _TOLD]


def installed_torch() -> str:
    """The version of the torch that setup.py will import, read without importing it. Raises EnvironmentFailure."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        raise EnvironmentFailure(
            "the project's setup.py builds torch extensions, and this environment has no torch",
            hint='add "torch" to requires in [build-system] (a CPU build does), or build with --no-build-isolation',
        ) from None


def host_compilers(cxx: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The compilers of host code that setuptools and torch may call, by name.

    `host-cc` and `host-cxx` stand for those that the environment names. Python names its own in its configuration.
    """

    def found(name: str) -> str | None:
        return shutil.which(name, path=environ.get("PATH", os.defpath))

    cc = environ.get("CC", "").split()
    c_compiler = found(cc[0]) if cc else found("gcc") or found("cc")
    programs = {"c++": cxx, "g++": cxx, "host-cxx": cxx}
    if c_compiler:
        programs |= {"cc": c_compiler, "gcc": c_compiler, "host-cc": c_compiler}
    for variable in ("CC", "CXX", "LDSHARED", "LDCXXSHARED"):
        words = str(sysconfig.get_config_var(variable) or "").split()
        name = words[0] if words else ""
        if name and "/" not in name and name not in programs and (path := found(name)):
            programs[name] = path
    return programs


def packages() -> list[str]:
    """Name and version of each package on this interpreter's search path, from the names of their folders alone."""
    names = {path.name for folder in sys.path if folder for path in Path(folder).glob("*.dist-info")}
    return sorted(names)


def site_folders() -> list[str]:
    """The folders of this interpreter's search path that hold a torch."""
    return [folder for folder in dict.fromkeys(sys.path) if folder and (Path(folder) / "torch").is_dir()]
