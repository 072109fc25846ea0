"""A toolchain for other build systems: variables for a shell, JSON, a CMake toolchain file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.toolchain.model import Toolchain

__all__ = ["Environment", "cmake_file", "environment_of", "shell_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Variables to set, and folders to put in front of list variables (separated by `:`)."""

    set: tuple[tuple[str, str], ...]
    prepend: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, dict[str, str]]:
        """As plain JSON values."""
        return {"set": dict(self.set), "prepend": dict(self.prepend)}


def environment_of(toolchain: Toolchain) -> Environment:
    """What hipcc, CMake and Makefiles read. CMake's HIP language wants clang itself, never hipcc."""
    prefix = str(toolchain.prefix)
    values = [(name, prefix) for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")]
    values += [
        ("HIP_PLATFORM", "amd"),
        ("HIP_CLANG_PATH", str(toolchain.clang.parent)),
        ("HIP_DEVICE_LIB_PATH", str(toolchain.device_libs)),
        ("HIPCXX", str(toolchain.clang)),
    ]
    binaries = toolchain.prefix / "bin"
    folders = [("PATH", str(binaries))] if binaries != Path("/usr/bin") and binaries.is_dir() else []
    return Environment(set=tuple(values), prepend=(*folders, ("CMAKE_PREFIX_PATH", prefix)))


def shell_text(environment: Environment) -> str:
    """Lines for `eval`, in any POSIX shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.set]
    for name, value in environment.prepend:
        lines.append(f'export {name}={shlex.quote(value)}"${{{name}:+:${name}}}"')
    return "\n".join(lines)


def cmake_file(toolchain: Toolchain, targets: Sequence[str] = ()) -> str:
    """A CMake toolchain file. targets: what it is for, unless CMAKE_HIP_ARCHITECTURES is given.

    With neither CMake would ask for a card, and with none build for gfx906, whose waves have 64 lanes.
    """
    prefix = _quoted(str(toolchain.prefix))
    lines = [
        f"# {toolchain.name}: HIP {toolchain.hip_version}, clang {toolchain.clang_version}",
        f"set(CMAKE_HIP_COMPILER {_quoted(str(toolchain.clang))})",
        f"set(CMAKE_HIP_COMPILER_ROCM_ROOT {prefix})",
        "set(CMAKE_HIP_PLATFORM amd)",
        f"list(PREPEND CMAKE_PREFIX_PATH {prefix})",
        f"set(ROCM_PATH {prefix})",
        "list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CMAKE_HIP_ARCHITECTURES)",
        "if(NOT DEFINED CMAKE_HIP_ARCHITECTURES)",
    ]
    if targets:
        lines.append(f"  set(CMAKE_HIP_ARCHITECTURES {_quoted(';'.join(targets))})")
    else:
        text = "CMAKE_HIP_ARCHITECTURES is not set, and without a card CMake would build for gfx906"
        lines.append(f'  message(FATAL_ERROR "{text}: give -DCMAKE_HIP_ARCHITECTURES=gfx1201")')
    lines.append("endif()")
    if not (toolchain.prefix / "amdgcn/bitcode").is_dir():
        flags = f"--hip-path={toolchain.prefix} --rocm-device-lib-path={toolchain.device_libs}"
        lines.append(f"string(APPEND CMAKE_HIP_FLAGS_INIT {_quoted(' ' + flags)})")
    libraries = [toolchain.prefix / name for name in ("lib", "lib64", "lib/x86_64-linux-gnu")]
    found = next((folder for folder in libraries if any(folder.glob("libamdhip64.so*"))), None)
    if found is not None:  # a C++ program that links a HIP library finds what that one needs
        lines.append(f"string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT {_quoted(f' -Wl,-rpath-link,{found}')})")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
