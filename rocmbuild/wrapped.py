"""Projects that keep their own setup.py: run on a copy, in torch's ROCm way, with recording compilers, then audited."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild import __version__, console
from rocmbuild.build import editable, project, wheel
from rocmbuild.build.fronts import Front, Results, make_front, read_records
from rocmbuild.build.jobs import choose_jobs, read_machine
from rocmbuild.build.tools import find_ninja
from rocmbuild.build.wrapped import host_compilers, installed_torch, packages, run_wrapped_hook, site_folders
from rocmbuild.config import Config
from rocmbuild.paths import as_json, write_atomic
from rocmbuild.targets import TargetSet, bridge
from rocmbuild.toolchain.model import Toolchain

if TYPE_CHECKING:  # what costs start-up time is imported where it is used
    from rocmbuild.audit.report import AuditReport
    from rocmbuild.toolchain.torch_sdk import TorchSdk

__all__ = ["Built", "build_wrapped", "is_wrapped", "run_plain", "torch_wanted"]

_ARCH_VARIABLES = {"HIP_ARCHITECTURES": ",", "GPU_ARCHS": ";"}
"""Variables from which setup.py files of public projects take targets for flags of their own, and what parts them."""
_UNREAD_PREFIXES = (*project.PASSING_PREFIXES, "ROCMBUILD_")
"""Variables that no setup.py makes a wheel of, beside PASSING_VARIABLES."""
_KEPT_SECONDS = 14 * 86400
"""How long the result of a compiler command is kept that no build of the project has used since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A published wheel with its audit and its record; `ran` is the number of commands that had to run."""

    path: Path
    report: AuditReport
    record: dict[str, Any]
    ran: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What one build is made from."""

    config: Config
    environ: Mapping[str, str]
    targets: TargetSet
    toolchain: Toolchain
    cxx: tuple[str, str]
    sdk: TorchSdk
    include: tuple[Path, ...]
    hook: str
    settings: list[str]

    @property
    def build_dir(self) -> Path:
        return self.config.build_dir

    @property
    def copy(self) -> Path:
        return self.build_dir / "py"

    def places(self) -> tuple[tuple[str, str], ...]:
        """Folders of this machine or of this build alone, and the names that stand for them; inner ones first."""
        return (
            *((str(folder), "{torch-hip}") for folder in self.include[:1]),
            (str(self.build_dir), "{build}"),
            (str(self.toolchain.prefix), "{toolchain}"),
            *_places(),
        )


def _places() -> tuple[tuple[str, str], ...]:
    return (
        *((str(Path(site) / "torch"), "{torch}") for site in site_folders()),
        (sysconfig.get_paths()["include"], "{python}/include"),
        (sys.prefix, "{python}"),
    )


def is_wrapped(config: Config) -> bool:
    """Whether a project names no extension for rocmbuild and has a setup.py that may."""
    return not config.extensions and (config.project / "setup.py").is_file()


def _settings(config: Config, toolchain: Toolchain | None, include: Sequence[Path]) -> Path:
    """Write what wrapped_hook.py reads."""
    hip = toolchain.hip_version if toolchain else "0.0"
    settings = {
        "hip": hip,
        "compile": toolchain is not None,
        "include": [str(folder) for folder in include],
        "project": str(config.project),
        "torch": torch_wanted(),
        "hip_version": hip,
        "path": [word for word in sys.path if word and word != str(config.build_dir / "py")],
    }
    path = config.build_dir / "wrapped.json"
    write_atomic(path, json.dumps(settings, indent=2).encode())
    return path


def torch_wanted() -> str:
    """The release of torch whose headers go with the installed one, as a range."""
    return f"=={installed_torch().partition('+')[0]}"


def _headers(sdk: TorchSdk) -> tuple[Path, ...]:
    """The folders of HIP headers that go before torch's own."""
    from rocmbuild.build.torch_hip import hip_headers

    if "+rocm" in sdk.version:
        return ()
    derived = hip_headers(sdk)
    return (derived, derived / "torch/csrc/api/include")


def _environment(job: _Job, front: Front) -> dict[str, str]:
    """The environment of setup.py.

    FORCE_CUDA=1, which many setup.py files read, says to build for a card although none is here. Every named library
    is kept as a dependency, the stubs too, which have no symbols.
    """
    config, environ = job.config, job.environ
    env = front.environment(environ, job.targets)
    env.setdefault("FORCE_CUDA", "1")
    if config.jobs:
        env["MAX_JOBS"] = str(config.jobs)
    # HIP with ATen's headers was seen to take 1.2 GB: about what a command of nvcc is allowed
    env.setdefault("MAX_JOBS", str(choose_jobs(read_machine(), ["cuda"]).count))
    env |= {name: sign.join(job.targets.names) for name, sign in _ARCH_VARIABLES.items()}
    env |= {name: str(front.prefix / "bin" / f"host-{name.lower()}") for name in ("CC", "CXX") if environ.get(name)}
    env["LDFLAGS"] = f"{environ.get('LDFLAGS', '')} -Wl,--no-as-needed".strip()
    ninja = find_ninja()
    if ninja:
        env["PATH"] = os.pathsep.join([env["PATH"], str(ninja.parent)])
    return env


def run_plain(hook: str, config: Config, out: Path, environ: Mapping[str, str]) -> str:
    """A hook that compiles nothing (metadata, sdist), for a setup.py that wants torch's ROCm way all the same.

    Metadata is kept, and given again where nothing has changed that setup.py could see.
    """
    nothing = config.build_dir / "no-rocm"
    nothing.mkdir(parents=True, exist_ok=True)
    env = {**environ, "ROCM_HOME": str(nothing), "FORCE_CUDA": environ.get("FORCE_CUDA", "1")}
    settings, copy = _settings(config, None, []), project.python_side(config.project, config.build_dir)
    if hook != "prepare_metadata_for_build_wheel":
        return run_wrapped_hook(hook, copy, out, settings=settings, work=config.build_dir, env=env)
    kept = config.build_dir / "metadata"
    place = kept / _state(copy, environ, _places(), [hook, installed_torch()])
    if not place.is_dir():
        shutil.rmtree(kept, ignore_errors=True)
        new = kept / "new"
        made = run_wrapped_hook(hook, copy, new, settings=settings, work=config.build_dir, env=env)
        for other in new.iterdir():
            if other.name != made:
                shutil.rmtree(other)  # setuptools leaves its .egg-info too
        new.rename(place)
    (info,) = place.iterdir()
    shutil.copytree(info, out / info.name, dirs_exist_ok=True)
    return info.name


def build_wrapped(
    config: Config,
    out: Path,
    environ: Mapping[str, str],
    *,
    hook: str,
    targets: TargetSet,
    toolchain: Toolchain,
    cxx: tuple[str, str],
    sdk: TorchSdk,
    settings: list[str],
) -> Built:
    """Build, audit, and only then publish the wheel of a project with its own setup.py.

    hook: build_wheel or build_editable. settings: those with which an editable install builds again. The wheel's tags
    are those that setuptools gave it. Where nothing has changed that setup.py could see, the last wheel is audited
    again and serves, without setup.py, compilers or torch; else each compiler command whose sources and headers are as
    they were gives its last result. Raises CheckError for sources that cannot be HIP, a failed build, a wheel that is
    not what was asked for. Experimental where torch is no ROCm build: see rocmbuild.build.torch_hip.
    """
    job = _Job(
        config=config,
        environ=environ,
        targets=targets,
        toolchain=toolchain,
        cxx=cxx,
        sdk=sdk,
        include=_headers(sdk),
        hook=hook,
        settings=settings,
    )
    console.note(
        f"rocmbuild {__version__}; targets {', '.join(targets.names)} (from {targets.source}); ROCm "
        f"{toolchain.hip_version} with clang {toolchain.clang_version} ({toolchain.name}); setup.py with torch "
        f"{sdk.version}"
    )
    times = project.input_times(config.project, config.build_dir)
    copy = project.python_side(config.project, config.build_dir)
    wheels, stamp = config.build_dir / "wheel" / hook, config.build_dir / f"{hook}.json"
    tools = [toolchain.identity(), sdk.digest, sdk.version, cxx]
    asked = [hook, list(targets.names), targets.source, config.debug, settings, config.editable_rebuild, *tools]
    state = _state(copy, environ, job.places(), asked)
    tree = config.build_dir / "editable"
    known = _known(stamp, state, wheels) if hook != "build_editable" or tree.exists() else None
    if known:
        record = json.loads((config.build_dir / "record.json").read_bytes())
        libraries = editable.libraries(tree) if hook == "build_editable" else [known]
        made = Built(path=known, report=_audited(libraries, job, record, show=known), record=record, ran=0)
    else:
        stamp.unlink(missing_ok=True)
        made = _make(job, wheels)
        digest = hashlib.sha256(made.path.read_bytes()).hexdigest()
        write_atomic(stamp, as_json({"state": state, "name": made.path.name, "digest": digest}))
    if hook == "build_editable":
        write_atomic(config.build_dir / editable.INPUTS, as_json(times))
    write_atomic(out / made.path.name, made.path.read_bytes())
    return replace(made, path=out / made.path.name)


def _state(copy: Path, environ: Mapping[str, str], places: Sequence[tuple[str, str]], asked: Sequence[Any]) -> str:
    """A digest of what was asked for and of all that setup.py can see: the copy, the environment, the packages."""
    seen = {
        name: value
        for name, value in environ.items()
        if name not in project.PASSING_VARIABLES and not name.startswith(_UNREAD_PREFIXES)
    }
    known = json.dumps([list(asked), sys.version, packages(), _own_code(), seen], sort_keys=True)
    for old, new in places:
        known = known.replace(old, new)
    return project.digest(copy, known)


def _own_code() -> str:
    """A digest of the code that makes wrapped builds: a newer rocmbuild does not take what an older one made."""
    own = hashlib.sha256(__version__.encode())
    for path in [Path(__file__), *sorted((Path(__file__).parent / "build").glob("*.py"))]:
        own.update(path.read_bytes())
    return own.hexdigest()


def _known(stamp: Path, state: str, wheels: Path) -> Path | None:
    """The wheel of the last build, if that was of this very state and the wheel is whole."""
    try:
        known = json.loads(stamp.read_bytes())
        path = wheels / str(known["name"])
        whole = known["state"] == state and hashlib.sha256(path.read_bytes()).hexdigest() == known["digest"]
    except (OSError, ValueError, KeyError):
        return None
    return path if whole else None


def _make(job: _Job, wheels: Path) -> Built:
    """Run setup.py, finish the wheel in a folder of the build folder, and audit it as it will be published.

    An editable one holds no library: those that it points to are audited.
    """
    from rocmbuild.build.torch_hip import make_stubs

    config, build_dir = job.config, job.build_dir
    results = build_dir / "results"
    front = make_front(
        build_dir / "front",
        job.toolchain,
        others=host_compilers(job.cxx[0], job.environ),
        common=[*(f"-ffile-prefix-map={old}={_plain(new)}" for old, new in job.places()), *(["-g"] * config.debug)],
        level=("-O1",) if config.debug else ("-O3",),
        results=Results(folder=results, places=job.places(), identity=_identity(job)),
    )
    if job.include:
        make_stubs(front.prefix / "lib", job.cxx[0])
    raw = build_dir / "pure" / "wrapped"
    for folder in (raw, wheels):
        shutil.rmtree(folder, ignore_errors=True)
    env = _environment(job, front)
    with bridge(env, job.targets):
        name = run_wrapped_hook(
            job.hook,
            job.copy,
            raw,
            settings=_settings(config, job.toolchain, job.include),
            work=build_dir,
            env=env,
            verbose=config.verbose,
        )
    commands = read_records(front, job.targets.names)
    record = {
        "format": 1,
        "rocmbuild": __version__,
        "targets": list(job.targets.names),
        "targets_source": job.targets.source,
        "platforms": ["rocm"],
        "toolchain": job.toolchain.identity(),
        "torch_sdk": {"version": job.sdk.version, "digest": job.sdk.digest},
        "cxx": job.cxx[1],
        "way": "setup.py",
        "build_dir": str(build_dir),
        "commands": [command for command in commands if command["exit"] == 0],
    }
    write_atomic(build_dir / "record.json", as_json(record))
    edit, added = None, {}
    libraries = [raw / name]
    if job.hook == "build_editable":
        tree = build_dir / "editable"
        edit = (str(editable.publish(job.copy, tree, config.project)), str(tree))
        libraries = editable.libraries(tree)
        added = editable.finder_members(
            config.project,
            {
                "places": {},
                "watched": editable.names(tree),
                "project": str(config.project),
                "inputs": str(build_dir / editable.INPUTS),
                "settings": job.settings,
                "rebuild": config.editable_rebuild,
            },
        )
    seen = _audited(libraries, job, record, show=raw / name)
    named = [(path, "." if name == "{build}" else name) for path, name in job.places()]
    path = wheel.finish_wheel(
        raw / name,
        wheels,
        added=added,
        evidence=wheel.evidence(record, seen, named, sort=True),
        environ=job.environ,
        keep_tags=True,
        edit=edit,
    )
    _forget(results, {command["result"] for command in commands})
    if job.hook != "build_editable":
        seen = _audited([path], job, record, show=path)
    return Built(path=path, report=seen, record=record, ran=sum(not command["cached"] for command in commands))


def _plain(name: str) -> str:
    """What stands for a folder in libraries: no braces, which no debugger expects."""
    return "." if name == "{build}" else f"/{name.replace('{', '').replace('}', '')}"


def _identity(job: _Job) -> str:
    """What compiler commands depend on beside their words and the files they say they read.

    The names of the copy's headers are part of it: a new one may be found before another of its name.
    """
    headers = sorted(
        str(path.relative_to(job.copy))
        for path in job.copy.rglob("*")
        if path.suffix in {".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp", ""}
    )
    known = [job.toolchain.identity(), job.sdk.version, job.sdk.digest, job.cxx, sys.version, __version__, headers]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _forget(results: Path, used: set[str]) -> None:
    """Remove what this build did not use: results of links and what killed compilers left; the rest when it is old."""
    for path in results.iterdir() if results.is_dir() else []:
        if path.suffix not in {".json", ".out"}:
            path.unlink(missing_ok=True)
        elif path.suffix == ".json" and path.stem not in used:
            old = time.time() - path.stat().st_mtime > _KEPT_SECONDS
            if old or not json.loads(path.read_bytes()).get("read"):
                path.unlink(missing_ok=True)
                path.with_suffix(".out").unlink(missing_ok=True)


def _audited(paths: Sequence[Path], job: _Job, record: Mapping[str, Any], *, show: Path) -> AuditReport:
    """The audit of what was built; CheckError with its findings where it is not what was asked for."""
    from rocmbuild.audit.report import audit

    report = audit(
        paths, record=record, targets=job.targets.names, rules=job.config.audit, objdump=job.toolchain.objdump
    )
    report.require_ok("the audit refuses this wheel:\n", hint=f"`rocmbuild audit {show}` shows what is inside")
    return report
