"""What a build needs of its machine, looked at before any compiler runs: each problem once, each with its next step."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from rocmbuild import console, process
from rocmbuild.build.tools import find_ninja
from rocmbuild.errors import EnvironmentFailure, RocmbuildError
from rocmbuild.paths import cache_dir, write_atomic
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.torch_sdk import TorchBuild

__all__ = ["NEEDED_SPACE", "Preflight", "requires_torch"]

T = TypeVar("T")

NEEDED_SPACE = 128 << 20
"""Bytes below which a build is not begun: objects and libraries of a middling extension for a few targets."""
_PROBE = "#include <algorithm>\n#include <vector>\nint main() { return std::vector<int>{0}.front(); }\n"


def requires_torch(project: Path) -> bool:
    """Whether pyproject.toml asks for torch in the build's own environment."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads((project / "pyproject.toml").read_text("utf-8")).get("build-system", {})
        return any(re.match(r"\s*torch\b(?!-)", word) for word in table.get("requires", []))
    except (OSError, ValueError, AttributeError, TypeError):
        return False


class Preflight:
    """Collects what is wrong; `finish` raises all of it as one EnvironmentFailure (exit code 3)."""

    def __init__(self) -> None:
        self.problems: list[RocmbuildError] = []

    def take(self, find: Callable[[], T]) -> T | None:
        """What `find` gives; None where the machine lacks it, which is noted."""
        try:
            return find()
        except EnvironmentFailure as err:
            self.add(err.message, err.hint)
            return None

    def add(self, message: str, hint: str) -> None:
        """Note a problem, once."""
        if message not in [problem.message for problem in self.problems]:
            self.problems.append(EnvironmentFailure(message, hint=hint))

    def space(self, folders: Iterable[Path], *, needed: int = NEEDED_SPACE) -> None:
        """Every folder can be written to and its disk has room."""
        seen = set()
        for folder in folders:
            place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
            device = place.stat().st_dev
            if device in seen:
                continue
            seen.add(device)
            free = shutil.disk_usage(place).free
            step = "set ROCMBUILD_CACHE_DIR or -C build-dir to a folder on another disk"
            if not os.access(place, os.W_OK):
                self.add(f"{folder} cannot be written", step)
            elif free < needed:
                found = f"{free >> 20} MiB are free for {folder}, and a build wants {needed >> 20} MiB"
                self.add(f"disk space: {found}", f"free some (`rocmbuild cache prune` helps), or {step}")

    def ninja(self) -> None:
        """The build tool is there."""
        if find_ninja() is None:
            self.add("ninja was not found", "pip install ninja, or build with isolation, which brings it")

    def compiler(self, cxx: str, version: str) -> None:
        """The C++ compiler compiles and links a program with the standard library; a good answer is kept."""
        known = cache_dir() / "probes" / f"cxx-{hashlib.sha256(f'{cxx} {version}'.encode()).hexdigest()[:24]}"
        if known.exists():
            return
        with tempfile.TemporaryDirectory(prefix="rocmbuild-cxx-") as name:
            source = Path(name) / "probe.cpp"
            source.write_text(_PROBE)
            words: list[str | Path] = [cxx, "-std=c++17", source, "-o", Path(name) / "probe"]
            done = process.run(words, what=f"trying {cxx}", check=False)
        if done.returncode != 0:
            lines = "\n".join(done.output.splitlines()[:6])
            self.add(
                f"C++ compiler: {cxx} ({version}) does not compile a ten-word program:\n{lines}",
                "install its standard library (Debian: apt-get install g++), or set CXX to another compiler",
            )
        else:
            try:
                write_atomic(known, b"good\n")
            except OSError:
                return  # asked again next time

    def python_headers(self, include: Path | None = None) -> None:
        """Python.h, which extension modules include. include: another folder than this interpreter's."""
        folder = include or Path(sysconfig.get_paths()["include"])
        if not (folder / "Python.h").is_file():
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            self.add(
                f"Python headers: no {folder}/Python.h, which extension modules of Python {version} include",
                f"install them (Debian: apt-get install python{version}-dev), or build with another interpreter",
            )

    def torch(self, build: TorchBuild | None, toolchain: Toolchain | None, *, linked: bool, required: bool) -> None:
        """The torch of the build environment against the toolchain.

        linked: whether the wheel is linked against torch's libraries, so that their HIP must be the toolchain's.
        required: whether the project itself asks for torch in its build requirements. Surprises that are no reason to
        stop are warned about.
        """
        if build is None:
            return
        if build.hip and toolchain:
            told = f"torch {build.version} was built with HIP {build.hip}, the toolchain {toolchain.name} is HIP "
            told += toolchain.hip_version
            same = [text.split(".")[:2] for text in (build.hip, toolchain.hip_version)]
            step = f'take a toolchain of that release: toolchain = "~={".".join(same[0])}"'
            if same[0][0] != same[1][0] and linked:
                self.add(f"{told}: their runtimes differ", step)
            elif same[0] != same[1] and linked:
                console.warn(f"{told}; {step}")
        elif build.cuda and linked:
            console.warn(
                f"torch {build.version} is a build for CUDA {build.cuda}: its headers serve, and gigabytes of it are "
                "not needed; a CPU build does the same"
            )
        elif build.cuda and required:
            console.warn(
                f"torch {build.version}, a build for CUDA {build.cuda}, was fetched for this build, which does not use "
                'it; take "torch" out of requires in [build-system]'
            )

    def finish(self) -> None:
        """Raise EnvironmentFailure where there was a problem; all of them in one message."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            told = "\n".join(
                f"  - {problem.message}" + (f"\n    next step: {problem.hint}" if problem.hint else "")
                for problem in self.problems
            )
            raise EnvironmentFailure(f"{len(self.problems)} problems, found before compiling:\n{told}")
