"""Projects that keep their own setup.py: run on a copy, in torch's ROCm way, with recording compilers, then audited."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild import __version__, console
from rocmbuild.build import project, wheel
from rocmbuild.build.fronts import Front, make_front, read_records
from rocmbuild.build.tools import find_ninja
from rocmbuild.build.wrapped import installed_torch, run_wrapped_hook, site_folders
from rocmbuild.config import Config
from rocmbuild.errors import CheckError, InputError
from rocmbuild.paths import write_atomic
from rocmbuild.targets import TargetSet, bridge
from rocmbuild.toolchain.model import Toolchain

if TYPE_CHECKING:  # what costs start-up time is imported where it is used
    from rocmbuild.audit.report import AuditReport
    from rocmbuild.toolchain.torch_sdk import TorchSdk

__all__ = ["build_wrapped", "is_wrapped", "run_plain"]


def is_wrapped(config: Config) -> bool:
    """Whether a project names no extension for rocmbuild and has a setup.py that may."""
    return not config.extensions and (config.project / "setup.py").is_file()


def _copy(config: Config) -> Path:
    copy = config.build_dir / "py"
    project.copy_project(config.project, copy, excluded=config.build_dir)
    return copy


def _settings(config: Config, toolchain: Toolchain | None, include: Sequence[Path]) -> Path:
    """Write what wrapped_hook.py reads."""
    hip = toolchain.hip_version if toolchain else "0.0"
    settings = {
        "hip": hip,
        "compile": toolchain is not None,
        "include": [str(folder) for folder in include],
        "project": str(config.project),
        "torch": _release(installed_torch()),
        "hip_version": hip,
    }
    path = config.build_dir / "wrapped.json"
    write_atomic(path, json.dumps(settings, indent=2).encode())
    return path


def _release(version: str) -> str:
    return f"=={version.partition('+')[0]}"


def _torch(front: Front, cxx: str) -> tuple[TorchSdk, list[Path]]:
    """The torch that is built for, and the folders of HIP headers that go before its own."""
    from rocmbuild.build.torch_hip import hip_headers, make_stubs
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    version = installed_torch()
    sdk = find_torch_sdk(wanted=_release(version))
    if "+rocm" in version:
        return sdk, []
    make_stubs(front.prefix / "lib", cxx)
    derived = hip_headers(sdk)
    return sdk, [derived, derived / "torch/csrc/api/include"]


def _environment(config: Config, front: Front, targets: TargetSet, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of setup.py.

    FORCE_CUDA=1, which many setup.py files read, says to build for a card although none is here. Every named library
    is kept as a dependency, the stubs too, which have no symbols.
    """
    env = front.environment(environ, targets)
    env.setdefault("FORCE_CUDA", "1")
    env.setdefault("MAX_JOBS", str(config.jobs or os.cpu_count() or 1))
    env["LDFLAGS"] = f"{environ.get('LDFLAGS', '')} -Wl,--no-as-needed".strip()
    ninja = find_ninja()
    if ninja:
        env["PATH"] = os.pathsep.join([env["PATH"], str(ninja.parent)])
    return env


def run_plain(hook: str, config: Config, out: Path, environ: Mapping[str, str]) -> str:
    """A hook that compiles nothing (metadata, sdist), for a setup.py that wants torch's ROCm way all the same."""
    nothing = config.build_dir / "no-rocm"
    nothing.mkdir(parents=True, exist_ok=True)
    env = {**environ, "ROCM_HOME": str(nothing), "FORCE_CUDA": environ.get("FORCE_CUDA", "1")}
    settings = _settings(config, None, [])
    return run_wrapped_hook(hook, _copy(config), out, settings=settings, work=config.build_dir, env=env)


def build_wrapped(
    config: Config, out: Path, environ: Mapping[str, str], *, targets: TargetSet, toolchain: Toolchain, cxx: str
) -> tuple[Path, AuditReport, dict[str, Any], int]:
    """Build, audit, and only then publish the wheel of a project with its own setup.py.

    Returns its path, the audit, the record and the number of compiler commands. The wheel's tags are those that
    setuptools gave it. Raises CheckError for sources that cannot be HIP, a failed build, a wheel that is not what was
    asked for. Experimental where torch is no ROCm build: see rocmbuild.build.torch_hip.
    """
    from rocmbuild.audit.report import audit

    if config.platforms != ("rocm",):
        raise InputError(
            f"platforms {', '.join(config.platforms)}: a project with its own setup.py is built for rocm alone",
            hint='leave platforms out, or write platforms = ["rocm"]',
        )
    front = make_front(config.build_dir / "front", toolchain)
    sdk, include = _torch(front, cxx)
    settings = _settings(config, toolchain, include)
    console.note(
        f"rocmbuild {__version__}; targets {', '.join(targets.names)} (from {targets.source}); ROCm "
        f"{toolchain.hip_version} with clang {toolchain.clang_version} ({toolchain.name}); setup.py with torch "
        f"{sdk.version}"
    )
    copy, raw, wheels = _copy(config), config.build_dir / "pure" / "wrapped", config.build_dir / "wheel"
    for folder in (raw, wheels):
        shutil.rmtree(folder, ignore_errors=True)
    env = _environment(config, front, targets, environ)
    with bridge(env, targets):
        name = run_wrapped_hook(
            "build_wheel", copy, raw, settings=settings, work=config.build_dir, env=env, verbose=config.verbose
        )
    commands = read_records(front, targets.names)
    record = {
        "format": 1,
        "rocmbuild": __version__,
        "targets": list(targets.names),
        "targets_source": targets.source,
        "platforms": ["rocm"],
        "toolchain": toolchain.identity(),
        "torch_sdk": {"version": sdk.version, "digest": sdk.digest},
        "way": "setup.py",
        "build_dir": str(config.build_dir),
        "commands": [command for command in commands if command["exit"] == 0],
    }
    write_atomic(config.build_dir / "record.json", _json(record))
    seen = audit([raw / name], record=record, targets=targets.names)
    places = [
        (str(config.build_dir), "."),
        (str(toolchain.prefix), "{toolchain}"),
        *((str(folder), "{torch-hip}") for folder in include[:1]),
        *((str(Path(site) / "torch"), "{torch}") for site in site_folders()),
        (sysconfig.get_paths()["include"], "{python}/include"),
        (sys.prefix, "{python}"),
    ]
    path = wheel.finish_wheel(
        raw / name, wheels, added={}, evidence=_evidence(record, seen, places), environ=environ, keep_tags=True
    )
    report = audit([path], record=record, targets=targets.names)
    if not report.ok:
        raise CheckError(
            "the audit refuses this wheel:\n" + "\n".join(str(finding) for finding in report.findings),
            hint=f"`rocmbuild audit {path}` shows what is inside",
        )
    write_atomic(out / path.name, path.read_bytes())
    return out / path.name, report, record, len(commands)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _evidence(record: Mapping[str, Any], report: AuditReport, places: list[tuple[str, str]]) -> bytes:
    """What is reproducible of the record, without this machine's folders and times; commands by their outputs."""

    def plain(word: str) -> str:
        for path, name in places:
            word = word.replace(path, name)
        return word

    kept = {key: value for key, value in record.items() if key != "build_dir"}
    kept["commands"] = sorted(
        (
            {
                **{key: command[key] for key in ("kind", "platform", "extension", "target")},
                "source": plain(command["source"]) if command["source"] else None,
                "argv": [plain(word) for word in command["argv"]],
                "env": command["env"],
            }
            for command in record["commands"]
        ),
        key=lambda command: (command["source"] or "", command["argv"]),
    )
    kept["code_objects"] = report.summary()
    return _json(kept)
