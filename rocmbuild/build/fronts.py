"""A prefix like /opt/rocm whose compilers write down what they compile, for build systems that are not rocmbuild's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rocmbuild.audit.commands import judge
from rocmbuild.build.tools import base_interpreter
from rocmbuild.paths import write_atomic
from rocmbuild.targets import TargetSet
from rocmbuild.toolchain.model import Toolchain

__all__ = ["Front", "Results", "make_front", "read_records"]

_CXX_NAMES = ("clang++", "amdclang++")
_C_NAMES = ("clang", "amdclang")


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A folder with `rocm`, a prefix of links and recording compilers, and `records`, one file for each command."""

    folder: Path

    @property
    def prefix(self) -> Path:
        """What ROCM_HOME is set to."""
        return self.folder / "rocm"

    @property
    def records(self) -> Path:
        """Where commands are written down."""
        return self.folder / "records"

    def environment(self, environ: Mapping[str, str], targets: TargetSet) -> dict[str, str]:
        """The environment of a build that is to use these compilers; PYTORCH_ROCM_ARCH is the bridge's to set.

        CMake takes HIPCXX for its HIP compiler, and front ends such as scikit-build-core pass CMAKE_ARGS on.
        """
        binaries = str(self.prefix / "bin")
        cmake = f"-DCMAKE_HIP_ARCHITECTURES={targets.canonical} -DCMAKE_HIP_COMPILER_ROCM_ROOT={self.prefix}"
        return {
            **environ,
            **dict.fromkeys(("ROCM_HOME", "ROCM_PATH", "HIP_PATH"), str(self.prefix)),
            "HIP_PLATFORM": "amd",
            "HIPCC": f"{binaries}/hipcc",
            "HIPCXX": f"{binaries}/clang++",
            "CMAKE_ARGS": f"{environ.get('CMAKE_ARGS', '')} {cmake}".strip(),
            "PATH": os.pathsep.join([binaries, environ.get("PATH", os.defpath)]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Where the results of compiler commands are kept, and what they depend on beside the files that are read.

    places: folders whose paths may change from build to build, and the names that stand for them. identity: of the
    tools and packages.
    """

    folder: Path
    places: tuple[tuple[str, str], ...]
    identity: str


def make_front(
    folder: Path,
    toolchain: Toolchain,
    *,
    others: Mapping[str, str] = MappingProxyType({}),
    common: Sequence[str] = (),
    level: Sequence[str] = ("-O3",),
    results: Results | None = None,
) -> Front:
    """Make the prefix in a folder, which is emptied before.

    Headers, libraries and other tools are links to the toolchain's; the compilers (`hipcc` where the toolchain has
    one, clang and clang++) go through front.py, with the guard against 64 lanes. others: compilers of host code that go
    through it too, by name. common: words for every compilation. level: those for HIP that names no optimisation.
    """
    front = Front(folder=folder)
    shutil.rmtree(folder, ignore_errors=True)
    for made in (front.records, front.prefix / "bin", front.prefix / "include", front.prefix / "lib/llvm"):
        made.mkdir(parents=True)
    own = Path(__file__).parent
    for source in (own / "front.py", own / "front_cache.py", own / "include/rocmbuild/wave32.h"):
        (folder / source.name).write_bytes(source.read_bytes())
    origin = toolchain.prefix
    binaries = {path.name: path for path in sorted((origin / "bin").iterdir())} if (origin / "bin").is_dir() else {}
    programs = {**others, **{name: str(toolchain.clang) for name in _CXX_NAMES}}
    c_compiler = toolchain.clang.with_name(toolchain.clang.name.replace("++", ""))
    if c_compiler.exists():
        programs |= {name: str(c_compiler) for name in _C_NAMES}
    if "hipcc" in binaries:
        programs["hipcc"] = str(binaries["hipcc"])
    for name, path in binaries.items():
        if name not in programs and (toolchain.kind != "system" or name.startswith(("hip", "rocm", "roc", "amd"))):
            (front.prefix / "bin" / name).symlink_to(path)
    for name in programs:
        script = front.prefix / "bin" / name
        words = f'"{base_interpreter()}" -I -S "{folder}/front.py" "{folder}/settings.json" {name} "$@"'
        script.write_text(f"#!/bin/sh\nexec {words}\n")
        script.chmod(0o755)
    if toolchain.include != Path("/usr/include"):  # the compiler's own folder comes last by itself
        _link_children(toolchain.include, front.prefix / "include")
    _link_children(origin / "lib", front.prefix / "lib", skip=("llvm", "cmake"))
    _forward_packages(origin / "lib", front.prefix / "lib/cmake")
    (front.prefix / "lib/llvm/bin").symlink_to("../../bin")
    _link_children(origin / "lib/llvm", front.prefix / "lib/llvm", skip=("bin",))
    (front.prefix / "llvm").symlink_to("lib/llvm")
    for name in ("amdgcn", "share"):
        if toolchain.kind != "system" and (origin / name).exists():
            (front.prefix / name).symlink_to(origin / name)
    flags = list(toolchain.compile_flags())
    settings = {
        "records": str(front.records),
        "programs": programs,
        "guard": str(folder / "wave32.h"),
        "compiler_rt": any(toolchain.clang.resolve().parent.parent.glob("lib*/clang/*/lib/**/libclang_rt.builtins*")),
        "flags": {name: flags for name in programs if name != "hipcc" and name not in others},
        "common": list(common),
        "level": list(level),
        "hip": toolchain.hip_version,
        "cache": str(results.folder) if results else "",
        "places": results.places if results else [],
        "identity": results.identity if results else "",
    }
    write_atomic(folder / "settings.json", json.dumps(settings, indent=2).encode())
    return front


def _link_children(source: Path, target: Path, *, skip: Sequence[str] = ()) -> None:
    for path in sorted(source.iterdir()) if source.is_dir() else []:
        if path.name not in skip:
            (target / path.name).symlink_to(path)


def _forward_packages(libraries: Path, target: Path) -> None:
    """CMake packages where CMake looks for ROCm's: Debian keeps them a folder deeper, where they must stay."""
    for folder in (libraries / "cmake", libraries / "x86_64-linux-gnu/cmake"):
        for config in sorted(folder.glob("*/*onfig*.cmake")):
            forward = target / config.parent.name / config.name
            if not forward.exists() and "-config-" not in config.name.removesuffix("-config-version.cmake"):
                forward.parent.mkdir(parents=True, exist_ok=True)
                forward.write_text(f'include("{config}")\n')


def read_records(front: Front, targets: Sequence[str]) -> list[dict[str, Any]]:
    """The commands that ran, in order, as a record holds them; those that failed are among them.

    kind is left to the audit, which reads the words; source is the command's one input. cached: whether what it made is
    the result of an earlier run; result: the name of that in the folder of results.
    """
    commands = []
    for path in sorted(front.records.glob("*.json")):
        value = json.loads(path.read_bytes())
        folder = Path(value["cwd"])
        verdict = judge(value["argv"], value["env"], targets, cwd=folder)
        inputs = [os.path.normpath(folder / name) for name in verdict.inputs]
        commands.append(
            {
                "kind": "",
                "platform": "rocm",
                "extension": "",
                "target": None,
                "source": inputs[0] if len(inputs) == 1 else None,
                "output": os.path.normpath(folder / verdict.output) if verdict.output else "",
                "argv": value["argv"],
                "env": value["env"],
                "cwd": value["cwd"],
                "exit": value["exit"],
                "seconds": value["seconds"],
                "cached": value["cached"],
                "result": value["result"],
            }
        )
    return commands
