"""From a project to its wheel and the proof of it: one call for each arrow of the design."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild import __version__, console, fresh, process, wrapped
from rocmbuild.build import editable, ninja, project, wheel
from rocmbuild.build.jobs import choose_jobs, read_machine
from rocmbuild.build.plan import BuildPlan, PlanInput, make_plan, prefix_maps
from rocmbuild.build.tools import base_interpreter, find_program
from rocmbuild.config import Config
from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.locks import Lock
from rocmbuild.paths import as_json, cache_dir, write_atomic, write_changed
from rocmbuild.preflight import Preflight, requires_torch
from rocmbuild.targets import TargetSet, bridge, refuse_smuggled
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.wrapped import Built

if TYPE_CHECKING:  # what costs start-up time is imported where it is used
    from rocmbuild.audit.report import AuditReport
    from rocmbuild.build.tags import Variant
    from rocmbuild.staging.stage import Stage
    from rocmbuild.toolchain.torch_sdk import TorchSdk

__all__ = [
    "Built",
    "Prepared",
    "build_editable",
    "build_in_place",
    "build_sdist",
    "build_wheel",
    "compile_project",
    "locked",
    "metadata",
    "prepare",
    "stage_project",
]

LOADER = "_rocmbuild_loader.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that is known before the first compiler runs."""

    config: Config
    targets: TargetSet | None
    toolchain: Toolchain | None
    torch_sdk: TorchSdk | None
    cxx: tuple[str, str]  # path and first line of --version
    nvcc: str
    stage: Stage
    plan: BuildPlan

    @property
    def build_dir(self) -> Path:
        return self.config.build_dir


@contextlib.contextmanager
def locked(build_dir: Path) -> Iterator[None]:
    """One build at a time in a build folder; the lock is the operating system's and ends with its holders."""
    try:
        lock = Lock.acquire(
            build_dir / ".lock",
            waiting=lambda: console.note(f"rocmbuild: waiting for another build in {build_dir}"),
        )
    except OSError as err:
        raise EnvironmentFailure(
            f"build-dir {build_dir}: cannot be written ({err.strerror})", hint="name another one: -C build-dir=DIR"
        ) from err
    try:
        with process.held_by_children(lock.handle):
            yield
    finally:
        lock.release()


# What is needed before a plan can be made


def _targets(config: Config, environ: Mapping[str, str]) -> TargetSet | None:
    for warning in config.warnings:
        console.warn(warning)
    for flag in refuse_smuggled(environ):
        console.warn(f"{flag.message}; {flag.hint}")
    if "rocm" not in config.platforms:
        return None
    if config.targets is None:
        raise InputError(
            f"no target: neither -C targets, {config.arch_env} nor tool.rocmbuild.targets "
            f"in {config.project}/pyproject.toml names one",
            hint=f"for a Radeon RX 9070 set {config.arch_env}=gfx1201; `rocmbuild targets` lists them all",
        )
    return config.targets


def _toolchain(config: Config, environ: Mapping[str, str]) -> Toolchain | None:
    if "rocm" not in config.platforms:
        return None
    from rocmbuild.toolchain.discover import find_toolchain

    try:
        return find_toolchain(spec=config.toolchain, environ=environ)
    except EnvironmentFailure:
        if not config.auto_install:
            raise
    from rocmbuild.toolchain.install import install_debian

    console.note("rocmbuild: no toolchain is here; auto-install is true, so one is installed")
    install_debian()
    return find_toolchain(spec=config.toolchain, environ=environ)


def _torch_sdk(config: Config) -> TorchSdk:
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk, install_torch_sdk

    try:
        return find_torch_sdk(wanted=config.torch_sdk)
    except EnvironmentFailure:
        if not config.auto_install:
            raise
    console.note("rocmbuild: no torch SDK is here; auto-install is true, so one is installed")
    wanted = (config.torch_sdk or "").removeprefix("==")
    install_torch_sdk(*([wanted] if wanted[:1].isdigit() else []))
    return find_torch_sdk(wanted=config.torch_sdk)


def _cxx(environ: Mapping[str, str]) -> tuple[str, str]:
    """The C++ compiler of host code: CXX, g++ or c++; its path and the first line of its version."""
    wanted = environ.get("CXX", "").strip()
    for name in [wanted] if wanted else ["g++", "c++", "clang++"]:
        path = shutil.which(name, path=environ.get("PATH"))
        if path:
            done = process.run([path, "--version"], what=f"asking {path} for its version", error=EnvironmentFailure)
            return path, done.stdout.splitlines()[0]
    raise EnvironmentFailure(
        f"CXX={wanted}: no such program" if wanted else "no C++ compiler: neither g++ nor c++ is on PATH",
        hint="install g++ (Debian: apt-get install g++), or set CXX",
    )


def _launcher(config: Config, environ: Mapping[str, str]) -> str:
    """The compiler cache that the configuration names, as a path; "" for none."""
    if config.launcher == "none":
        return ""
    found = find_program(config.launcher, environ.get("PATH"))
    if found is None:
        raise EnvironmentFailure(
            f"launcher {config.launcher} ({config.sources['launcher']}): no such program",
            hint=f"install {config.launcher} (Debian: apt-get install {config.launcher}), or set launcher to none",
        )
    return str(found)


def _nvcc(config: Config, environ: Mapping[str, str]) -> str:
    """nvcc of CUDA_HOME, of PATH or of /usr/local/cuda, where the platform cuda is asked for."""
    if "cuda" not in config.platforms:
        return ""
    home = environ.get("CUDA_HOME", "").strip()
    places = (
        [f"{home}/bin/nvcc"] if home else [shutil.which("nvcc", path=environ.get("PATH")), "/usr/local/cuda/bin/nvcc"]
    )
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    raise EnvironmentFailure(
        f"CUDA_HOME={home}: no bin/nvcc is there" if home else "no nvcc: neither on PATH nor in /usr/local/cuda",
        hint="install the CUDA toolkit, or leave cuda out of platforms",
    )


# The arrows


def _globs(config: Config) -> tuple[list[str], list[str]]:
    """Sources and include folders of all extensions."""
    if not config.extensions:
        raise InputError(
            f"{config.project}/pyproject.toml: no [[tool.rocmbuild.extensions]], so there is nothing to build",
            hint="name the library and its sources there; examples/declarative shows it",
        )
    sources = [pattern for extension in config.extensions for pattern in extension.sources]
    folders = [folder for extension in config.extensions for folder in extension.include_dirs]
    return list(dict.fromkeys(sources)), list(dict.fromkeys(folders))


def _stage(config: Config, toolchain: Toolchain | None, torch_sdk: TorchSdk, *, strict: bool = True) -> Stage:
    from rocmbuild.staging.stage import make_stage

    globs, include_dirs = _globs(config)
    return make_stage(
        config.project,
        globs=globs,
        include_dirs=include_dirs,
        engine=torch_sdk,
        hip_version=toolchain.hip_version if toolchain else "none",
        hipify_engine=config.hipify_engine,
        defines=_common_defines(config),
        allow=config.hipify_allow,
        cache=cache_dir() / "stages",
        strict=strict,
    )


def _common_defines(config: Config) -> dict[str, str]:
    """The macros that every extension is given with the same value: a stage serves all of them."""
    given = [dict(extension.defines) for extension in config.extensions]
    return {name: value for name, value in given[0].items() if all(other.get(name) == value for other in given[1:])}


def stage_project(config: Config, environ: Mapping[str, str], *, strict: bool = True, build: bool = True) -> Stage:
    """Copy and HIPify the sources of a project, and do no more.

    strict: errors among the findings are raised. build=False: for the findings alone, which need no toolchain.
    """
    try:
        toolchain = _toolchain(config, environ) if build or not config.auto_install else None
    except EnvironmentFailure:
        if build:
            raise
        toolchain = None
    return _stage(config, toolchain, _torch_sdk(config), strict=strict)


def prepare(config: Config, environ: Mapping[str, str], *, words: tuple[str, ...] = ()) -> Prepared:
    """Find the tools, stage the sources into the build folder, make the plan. words: for every compilation."""
    from rocmbuild import host
    from rocmbuild.staging.stage import sync
    from rocmbuild.toolchain.torch_sdk import torch_build

    targets = _targets(config, environ)
    checks = Preflight()
    toolchain = checks.take(lambda: _toolchain(config, environ))
    torch_sdk = checks.take(lambda: _torch_sdk(config))
    cxx, nvcc = checks.take(lambda: _cxx(environ)), checks.take(lambda: _nvcc(config, environ))
    launcher = checks.take(lambda: _launcher(config, environ))
    _machine(checks, config, cxx)
    checks.ninja()
    checks.torch(torch_build(), toolchain, linked=False, required=requires_torch(config.project))
    checks.finish()
    assert torch_sdk is not None and cxx is not None and nvcc is not None and launcher is not None
    stage = _stage(config, toolchain, torch_sdk)
    build_dir = config.build_dir
    sync(stage, build_dir / "src" / "hip", tree="hip")
    if nvcc:
        sync(stage, build_dir / "src" / "cuda", tree="cuda")
        done = process.run([nvcc, "--version"], what=f"asking {nvcc} for its version", error=EnvironmentFailure)
        write_changed(
            build_dir / "support" / "nvcc.json", as_json({"path": nvcc, "version": done.stdout.splitlines()[-1]})
        )
    host_sources = _support(build_dir, toolchain, torch_sdk, cxx, host="host" in config.platforms)
    torch_include = tuple(str(folder) for folder in torch_sdk.include_dirs())
    plan = make_plan(
        config,
        PlanInput(
            stage=stage,
            targets=targets,
            toolchain=toolchain,
            cxx=cxx[0],
            torch_include=torch_include,
            host_sources=host_sources,
            host_flags=host.compile_flags(clang="clang" in cxx[1], include="support/host/include"),
            host_link_flags=host.link_flags(),
            nvcc=nvcc,
            prefix_maps=prefix_maps(build_dir if config.debug else None, toolchain, torch_include),
            uncompilable=_uncompilable(toolchain, targets),
            launcher=launcher,
            words=words,
        ),
    )
    return Prepared(
        config=config,
        targets=targets,
        toolchain=toolchain,
        torch_sdk=torch_sdk,
        cxx=cxx,
        nvcc=nvcc,
        stage=stage,
        plan=plan,
    )


def _machine(checks: Preflight, config: Config, cxx: tuple[str, str] | None) -> None:
    """What every build wants of the machine."""
    checks.space([config.build_dir, cache_dir()])
    if cxx:
        checks.compiler(*cxx)


def _uncompilable(toolchain: Toolchain | None, targets: TargetSet | None) -> tuple[tuple[str, str], ...]:
    """The targets that the toolchain cannot compile: asked of it for generic ones, which old ones do not know."""
    if toolchain is None or targets is None or not targets.generics:
        return ()
    from rocmbuild.toolchain.probe import uncompilable

    return uncompilable(toolchain, targets.generics)


def _support(
    build_dir: Path, toolchain: Toolchain | None, torch_sdk: TorchSdk, cxx: tuple[str, str], *, host: bool
) -> tuple[str, ...]:
    """Put what commands use besides the sources into the build folder; the executor's sources are returned.

    The stamps hold the identity of tools: a tool replaced at its place rebuilds what it made.
    """
    from rocmbuild import host as executor

    own = Path(__file__).parent / "build"
    support = build_dir / "support"
    for header in ("wave32.h", "bundle.h"):
        write_changed(support / "include/rocmbuild" / header, (own / "include/rocmbuild" / header).read_bytes())
    write_changed(support / "recorder.py", (own / "recorder.py").read_bytes())
    # The interpreter of an isolated build has another path each time, so it stands outside the commands.
    write_changed(support / "record", f'exec "{base_interpreter()}" -I -S support/recorder.py "$@"\n'.encode())
    write_changed(support / "empty.c", b"")
    write_changed(support / "toolchain.json", as_json(toolchain.identity() if toolchain else {}))
    write_changed(support / "torch_sdk.json", as_json({"version": torch_sdk.version, "digest": torch_sdk.digest}))
    write_changed(support / "cxx.json", as_json({"path": cxx[0], "version": cxx[1]}))
    if not host:
        return ()
    base = executor.include_dir().parent
    for path in sorted([*(base / "include").rglob("*"), *(base / "src").rglob("*")]):
        if path.is_file():
            write_changed(support / "host" / path.relative_to(base), path.read_bytes())
    return tuple(f"support/host/{path.relative_to(base)}" for path in executor.runtime_sources())


def compile_project(
    prepared: Prepared, environ: MutableMapping[str, str], *, quiet: bool = False
) -> tuple[int, dict[str, Any]]:
    """Run the plan; returns how many commands ran and the record of all that made the libraries.

    A compiler cache's answers are counted and told, where it tells them (ccache).
    """
    config = prepared.config
    if not quiet:
        console.note(_heading(prepared))
    write_changed(
        prepared.build_dir / "compile_commands.json", ninja.compile_commands(prepared.plan, prepared.build_dir).encode()
    )
    env = dict(environ)
    jobs = config.jobs or choose_jobs(read_machine(), {edge.kind for edge in prepared.plan.edges}).count
    before = time.time_ns()
    with bridge(env, prepared.targets) if prepared.targets else contextlib.nullcontext():
        ran = ninja.run_ninja(prepared.plan, prepared.build_dir, jobs=jobs, verbose=config.verbose, env=env)
    record = _record(prepared)
    if ran and config.launcher == "ccache":
        said = ninja.cached(prepared.plan, prepared.build_dir, since=before)
        console.note(
            f"rocmbuild: ccache: {said['local'] + said['remote']} of {sum(said.values())} compilations were there "
            f"already, {said['remote']} of them from the remote store"
        )
    write_atomic(prepared.build_dir / "record.json", as_json(record))
    return ran, record


def _heading(prepared: Prepared) -> str:
    targets, toolchain, stage = prepared.targets, prepared.toolchain, prepared.stage.report()
    parts = [f"rocmbuild {__version__}"]
    if targets:
        parts.append(f"targets {', '.join(targets.names)} (from {targets.source})")
    if toolchain:
        parts.append(f"ROCm {toolchain.hip_version} with clang {toolchain.clang_version} ({toolchain.name})")
    parts.append(f"{stage['launches_replaced']} launches HIPified, {stage['leftovers']} CUDA names left")
    return "; ".join(parts)


def _record(prepared: Prepared) -> dict[str, Any]:
    """The full record: what was asked, with what, which commands ran, when and how long."""
    commands = []
    for command in ninja.read_commands(prepared.plan, prepared.build_dir):
        edge = command.edge
        commands.append(
            {
                "kind": edge.kind,
                "platform": edge.platform,
                "extension": edge.extension,
                "target": edge.target,
                "source": edge.source,
                "output": edge.output,
                "argv": list(command.argv),
                "env": command.env,
                "exit": command.exit,
                "seconds": command.seconds,
                **({"cache": command.cache} if command.cache else {}),
            }
        )
    targets, toolchain, sdk = prepared.targets, prepared.toolchain, prepared.torch_sdk
    return {
        "format": 1,
        "rocmbuild": __version__,
        "targets": list(targets.names) if targets else [],
        "targets_source": targets.source if targets else "",
        "platforms": list(prepared.config.platforms),
        "toolchain": toolchain.identity() if toolchain else {},
        "torch_sdk": {"version": sdk.version, "digest": sdk.digest} if sdk else {},
        "cxx": prepared.cxx[1],
        "stage": prepared.stage.report(),
        "build_dir": str(prepared.build_dir),
        "commands": commands,
    }


def _evidence(prepared: Prepared, record: dict[str, Any], report: AuditReport) -> bytes:
    """What is reproducible of the record, without this machine's folders and times."""
    places = [(str(prepared.build_dir), ".")]
    if prepared.toolchain:
        places.append((str(prepared.toolchain.prefix), "{toolchain}"))
    if prepared.torch_sdk:
        places.append((str(prepared.torch_sdk.include), "{torch}"))
    places += [(prepared.cxx[0], "{cxx}"), *([(prepared.nvcc, "{nvcc}")] if prepared.nvcc else [])]
    return wheel.evidence(record, report, places)


def _library_members(prepared: Prepared) -> dict[str, bytes]:
    """Libraries by their place in the wheel, and the loader beside them."""
    members: dict[str, bytes] = {}
    loader = (Path(__file__).parent / "build" / "loader.py").read_bytes()
    for library in prepared.plan.libraries:
        members[library.path] = (prepared.build_dir / library.built).read_bytes()
        members[f"{library.path.rpartition('/')[0]}/{LOADER}".lstrip("/")] = loader
    return members


def _tag(libraries: Sequence[Path], hook: str) -> str:
    """A wheel's tag by what its libraries import; an editable one, which holds none, is for this machine."""
    if hook == "build_editable":
        return "py3-none-linux_x86_64"
    from rocmbuild.build.tags import read_imports, wheel_tag

    return wheel_tag([read_imports(library) for library in libraries])


def _local_version(config: Config, targets: TargetSet | None, toolchain: Toolchain | None) -> str:
    """The local part that is asked for; "" where none is, or where nothing is built for ROCm."""
    if not config.local_version or targets is None or toolchain is None:
        return ""
    from rocmbuild.build.tags import local_version

    return local_version(hip=toolchain.hip_version, targets=targets.names)


def _variant(config: Config, targets: TargetSet | None) -> Variant | None:
    if not config.variant or targets is None:
        return None
    from rocmbuild.build.tags import make_variant

    return make_variant(targets.names)


def _pure_wheel(config: Config, hook: str, environ: Mapping[str, str]) -> Path:
    """setuptools' own wheel of the Python side, made in a copy; made anew only when the copy changed."""
    copy, out = project.python_side(config.project, config.build_dir), config.build_dir / "pure"
    state = project.digest(copy, f"{hook} {sys.version} {_setuptools_version()}")
    stamp = out / hook / "stamp.json"
    if stamp.is_file():
        known = json.loads(stamp.read_text())
        if known["state"] == state and (out / hook / known["name"]).is_file():
            return out / hook / str(known["name"])
    shutil.rmtree(out / hook, ignore_errors=True)
    shutil.rmtree(copy / "build", ignore_errors=True)
    name = project.run_hook(hook, copy, out / hook, work=config.build_dir, env=dict(environ))
    write_atomic(stamp, as_json({"state": state, "name": name}))
    return out / hook / name


def _setuptools_version() -> str:
    from importlib.metadata import version

    return version("setuptools")


def _build(
    config: Config,
    out: Path,
    environ: MutableMapping[str, str],
    *,
    hook: str,
    added: Callable[[Prepared], dict[str, bytes]],
) -> Built:
    """Build, audit, and only then publish the wheel into `out`.

    Raises CheckError with the findings for a wheel that is not what was asked for; that one stays in the
    build folder, below wheel/, for a look.
    """
    from rocmbuild.audit.report import audit
    from rocmbuild.staging.upkeep import mark_build

    if wrapped.is_wrapped(config):
        return _build_wrapped(config, out, environ, hook=hook)
    with locked(config.build_dir):
        began = time.time_ns()
        times = _input_times(config) if hook == "build_editable" else {}
        prepared = prepare(config, environ)
        mark_build(config.build_dir, config.project, editable=hook == "build_editable")
        ran, record = compile_project(prepared, environ)
        targets = prepared.targets.names if prepared.targets else ()
        libraries = sorted(config.build_dir / library.built for library in prepared.plan.libraries)
        report = audit(libraries, record=record, targets=targets)
        wheels = config.build_dir / "wheel"
        shutil.rmtree(wheels, ignore_errors=True)
        path = wheel.finish_wheel(
            _pure_wheel(config, hook, environ),
            wheels,
            added=added(prepared),
            evidence=_evidence(prepared, record, report),
            environ=environ,
            edit=(str(config.build_dir / "py"), str(config.project)) if hook == "build_editable" else None,
            tag=_tag(libraries, hook),
            local=_local_version(config, prepared.targets, prepared.toolchain),
            variant=_variant(config, prepared.targets) if hook == "build_wheel" else None,
        )
        # A wheel is judged as it will be published, not as it lay in the build folder.
        judged = [path] if hook == "build_wheel" else libraries
        objdump = prepared.toolchain.objdump if prepared.toolchain else None
        report = audit(judged, record=record, targets=targets, rules=config.audit, objdump=objdump)
        report.require_ok("the audit refuses this wheel:\n", hint=f"`rocmbuild audit {path}` shows what is inside")
        write_atomic(out / path.name, path.read_bytes())
        if times:
            write_atomic(config.build_dir / editable.INPUTS, as_json(times))
        _remember(prepared, hook, environ, path, began=began)
        return Built(path=out / path.name, report=report, record=record, ran=ran)


def _remember(prepared: Prepared, hook: str, environ: Mapping[str, str], path: Path, *, began: int) -> None:
    """Let the next hook see at once that nothing has changed."""
    toolchain, sdk = prepared.toolchain, prepared.torch_sdk
    tools = [prepared.cxx[0], *([prepared.nvcc] if prepared.nvcc else [])]
    if toolchain:
        tools += [str(toolchain.clang), str(toolchain.bundler), str(toolchain.device_libs)]
    if hook == "build_editable":  # its libraries are not in the wheel
        tools += [str(prepared.build_dir / library.built) for library in prepared.plan.libraries]
    fresh.remember(
        prepared.config,
        hook,
        environ,
        path,
        managed=(toolchain is None or toolchain.kind == "managed") and (sdk is None or sdk.origin == "managed"),
        read={*tools, *ninja.headers_outside(prepared.build_dir)},
        began=began,
    )


def _build_wrapped(config: Config, out: Path, environ: MutableMapping[str, str], *, hook: str) -> Built:
    """The wheel of a project that keeps its own setup.py."""
    from rocmbuild.staging.upkeep import mark_build
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk, torch_build

    if config.platforms != ("rocm",):
        raise InputError(
            f"platforms {', '.join(config.platforms)}: a project with its own setup.py is built for rocm alone",
            hint='leave platforms out, or write platforms = ["rocm"]',
        )
    for name, asked in (("local-version", config.local_version), ("variant", config.variant)):
        if asked:
            raise InputError(
                f"{name} ({config.sources[name]}): the wheel of a project with its own setup.py keeps its name",
                hint=f"leave {name} out, or name the extensions in pyproject.toml",
            )
    targets = _targets(config, environ)
    assert targets is not None
    checks = Preflight()
    toolchain = checks.take(lambda: _toolchain(config, environ))
    cxx = checks.take(lambda: _cxx(environ))
    sdk = checks.take(lambda: find_torch_sdk(wanted=wrapped.torch_wanted()))
    _machine(checks, config, cxx)
    checks.python_headers()
    checks.torch(torch_build(), toolchain, linked=True, required=True)
    checks.finish()
    assert toolchain is not None and cxx is not None and sdk is not None
    with locked(config.build_dir):
        mark_build(config.build_dir, config.project, editable=hook == "build_editable")
        return wrapped.build_wrapped(
            config,
            out,
            environ,
            hook=hook,
            targets=targets,
            toolchain=toolchain,
            cxx=cxx,
            sdk=sdk,
            settings=_editable_settings(config),
        )


def build_wheel(config: Config, out: Path, environ: MutableMapping[str, str]) -> Built:
    """The wheel of a project: its Python side, its libraries, their loader, the evidence."""
    return _build(config, out, environ, hook="build_wheel", added=_library_members)


def build_editable(config: Config, out: Path, environ: MutableMapping[str, str]) -> Built:
    """A wheel that points to the checkout for Python and to the build folder for libraries (PEP 660)."""
    return _build(config, out, environ, hook="build_editable", added=_finder_members)


def _editable_settings(config: Config) -> list[str]:
    """The config settings that build again what an editable install was built for, whatever the variables say then."""
    given = {name: text for name, text in config.settings if name not in ("editable-rebuild", "verbose")}
    given["build-dir"] = str(config.build_dir)
    if config.targets and config.sources["targets"] != "pyproject.toml":
        given["targets"] = ",".join(config.targets.names)
    if config.launcher != "none":
        given["launcher"] = config.launcher
    return [f"{name}={text}" for name, text in sorted(given.items())]


def _input_times(config: Config) -> dict[str, list[int | None]]:
    """[size, time in ns] of every file that the libraries are built from, and the time of the folders they lie in."""
    from rocmbuild.staging.sources import collect

    globs, include_dirs = _globs(config)
    paths = [
        config.project / file.path for file in collect(config.project, globs=globs, include_dirs=include_dirs).files
    ]
    paths.append(config.project / "pyproject.toml")
    folders = {folder for path in paths[:-1] for folder in path.parents if folder != config.project}
    times: dict[str, list[int | None]] = {}
    for path in paths:
        info = path.stat()
        times[str(path)] = [info.st_size, info.st_mtime_ns]
    for folder in folders:
        if folder.is_relative_to(config.project):
            times[str(folder)] = [None, folder.stat().st_mtime_ns]
    return times


def _finder_members(prepared: Prepared) -> dict[str, bytes]:
    """A finder for the folders that hold built libraries; the loader is put beside these."""
    places = _put_loaders(prepared)
    config = prepared.config
    facts = {
        "places": places,
        "watched": [],
        "project": str(config.project),
        "inputs": str(config.build_dir / editable.INPUTS),
        "settings": _editable_settings(config),
        "rebuild": config.editable_rebuild,
    }
    return editable.finder_members(config.project, facts)


def _put_loaders(prepared: Prepared) -> dict[str, str]:
    """Put the loader beside the libraries in the build folder; the folders by their package."""
    loader = (Path(__file__).parent / "build" / "loader.py").read_bytes()
    places: dict[str, str] = {}
    for library in prepared.plan.libraries:
        folder = (prepared.build_dir / library.built).parent
        write_changed(folder / LOADER, loader)
        places[library.extension.rpartition(".")[0]] = str(folder)
    return places


def build_in_place(config: Config, environ: MutableMapping[str, str]) -> tuple[AuditReport, int]:
    """Build and audit the libraries in the build folder, for an editable install that points there; no wheel.

    Returns the audit and the number of commands that ran.
    """
    from rocmbuild.audit.report import audit

    if wrapped.is_wrapped(config):
        built = _build_wrapped(config, config.build_dir / "in-place", environ, hook="build_editable")
        return built.report, built.ran
    with locked(config.build_dir):
        times = _input_times(config)
        prepared = prepare(config, environ)
        ran, record = compile_project(prepared, environ)
        libraries = sorted(config.build_dir / library.built for library in prepared.plan.libraries)
        targets = prepared.targets.names if prepared.targets else ()
        objdump = prepared.toolchain.objdump if prepared.toolchain else None
        report = audit(libraries, record=record, targets=targets, rules=config.audit, objdump=objdump)
        report.require_ok("the audit refuses these libraries:\n")
        _put_loaders(prepared)
        write_atomic(config.build_dir / editable.INPUTS, as_json(times))
        return report, ran


def metadata(config: Config, out: Path, environ: Mapping[str, str]) -> str:
    """The .dist-info folder of the wheel to come, without building it."""
    with locked(config.build_dir):
        if wrapped.is_wrapped(config):
            return wrapped.run_plain("prepare_metadata_for_build_wheel", config, out, environ)
        copy = project.python_side(config.project, config.build_dir)
        name = project.run_hook("prepare_metadata_for_build_wheel", copy, out, work=config.build_dir, env=dict(environ))
        local = _local_version(config, config.targets, _toolchain(config, environ)) if config.local_version else ""
        if not local:
            return name
        new, text = wheel.rename_metadata(name, (out / name / "METADATA").read_bytes(), local)
        shutil.rmtree(out / new, ignore_errors=True)
        (out / name).rename(out / new)
        (out / new / "METADATA").write_bytes(text)
        return new


def build_sdist(config: Config, out: Path, environ: Mapping[str, str]) -> Path:
    """The sdist: what setuptools takes, and every source and header that the build reads."""
    from rocmbuild.staging.sources import collect

    if wrapped.is_wrapped(config):  # its MANIFEST.in says what it holds
        with locked(config.build_dir):
            return out / wrapped.run_plain("build_sdist", config, out, environ)
    globs, include_dirs = _globs(config)
    files = collect(config.project, globs=globs, include_dirs=include_dirs)
    with locked(config.build_dir):
        copy = config.build_dir / "sdist"
        project.copy_project(
            config.project, copy, excluded=config.build_dir, manifest=[file.path for file in files.files]
        )
        return out / project.run_hook("build_sdist", copy, out, work=config.build_dir, env=dict(environ))
