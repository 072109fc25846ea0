"""A stage: the private, content-addressed copy of a project's sources, untouched and HIPified, checked.

`make_stage` is the one way in; `sync` brings a tree of a stage into a build folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rocmbuild import paths
from rocmbuild.errors import CheckError, EnvironmentFailure, InputError
from rocmbuild.staging import checks, worker
from rocmbuild.staging.cache import Entry, Store, digest
from rocmbuild.staging.checks import Finding
from rocmbuild.staging.hipify import EngineIdentity, hipify, identify, worker_digest
from rocmbuild.staging.sources import Sources, collect, matches

__all__ = [
    "FORMAT",
    "EngineSdk",
    "FindingsError",
    "Stage",
    "StagedFile",
    "SyncCounts",
    "make_stage",
    "stage_key",
    "sync",
]

FORMAT = 1
"""The number of a stage's layout and of the facts in its manifest; part of every key."""

_MARK = ".rocmbuild-tree"


class EngineSdk(Protocol):
    """What staging needs of a torch SDK: its release, and the folder of its `utils/hipify`."""

    @property
    def version(self) -> str: ...

    @property
    def hipify(self) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file. source: its path in the project and in the `cuda` tree; output: its path in the `hip` tree.

    status: converted | unchanged | copied. launches, replaced: kernel launches and names that HIPify
    replaced. leftovers: CUDA names and headers that are left in code a HIP compiler sees.
    """

    source: str
    output: str
    status: str
    launches: int
    replaced: int
    leftovers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A checked stage. root/"hip" and root/"cuda" are its trees; digests: path below root -> SHA-256."""

    key: str
    root: Path
    files: tuple[StagedFile, ...]
    findings: tuple[Finding, ...]
    engine: EngineIdentity
    torch_version: str
    hip_version: str
    digests: Mapping[str, str] = field(repr=False)

    def output_of(self, source: str) -> str:
        """Where a source stands in the HIP tree. KeyError where it is not staged."""
        return self._outputs()[source]

    def _outputs(self) -> dict[str, str]:
        return {file.source: file.output for file in self.files}

    def matching(self, globs: Sequence[str]) -> tuple[StagedFile, ...]:
        """The staged files that source patterns name, in order of their paths."""
        return tuple(file for file in self.files if any(matches(glob, file.source) for glob in globs))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop a build."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def report(self) -> dict[str, Any]:
        """The stage as evidence: reproducible, without times and absolute paths."""
        return {
            "format": FORMAT,
            "key": self.key,
            "engine": asdict(self.engine),
            "torch": self.torch_version,
            "hip": self.hip_version,
            "launches_replaced": sum(file.launches for file in self.files),
            "names_replaced": sum(file.replaced for file in self.files),
            "leftovers": sum(file.leftovers for file in self.files),
            "files": [asdict(file) for file in self.files],
            "findings": [finding.to_json() for finding in self.findings],
        }


class FindingsError(CheckError):
    """The checks found errors; findings holds all of them, warnings too."""

    def __init__(self, stage: Stage) -> None:
        shown = [f"{finding}\n    {finding.hint}" for finding in stage.errors]
        count = len(shown)
        super().__init__(
            f"{count} error{'s' * (count != 1)} in the sources, found before compiling:\n" + "\n".join(shown),
            hint="`rocmbuild stage --check` shows all findings, warnings too",
        )
        self.findings = stage.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCounts:
    """What a sync did, in files."""

    written: int
    kept: int
    removed: int


@functools.cache
def _code_digest() -> str:
    """The digest of the code that makes a stage of its inputs."""
    return digest(worker_digest().encode() + Path(checks.__file__).read_bytes())


def stage_key(
    sources: Sources, *, engine: EngineIdentity, torch_version: str, hip_version: str, options: Mapping[str, Any]
) -> str:
    """The content address of a stage.

    SHA-256 over: the stage format, the converting code, the engine, the torch and HIP versions, the options,
    and every file's path and bytes, each with its length in front. Not in it: times, modes, absolute paths,
    the order in which files were found, generated files of earlier hipify runs.
    """
    whole = hashlib.sha256()

    def feed(data: bytes) -> None:
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)

    head = {
        "format": FORMAT,
        "code": _code_digest(),
        "engine": asdict(engine),
        "torch": torch_version,
        "hip": hip_version,
        "options": dict(options),
        "outside": [asdict(include) for include in sources.outside],
    }
    feed(json.dumps(head, sort_keys=True).encode("ascii"))
    for file in sources.files:
        feed(os.fsencode(file.path))
        feed(b"text" if file.convert else b"copy")
        feed(file.data)
    return whole.hexdigest()


def make_stage(
    project: Path,
    *,
    globs: Sequence[str],
    include_dirs: Sequence[str] = (),
    engine: EngineSdk,
    hip_version: str,
    allow: Iterable[str] = (),
    cache: Path | None = None,
    strict: bool = True,
) -> Stage:
    """Collect, convert and check a project's sources, or find that done in the cache.

    globs, include_dirs: relative to project. allow: CUDA names and headers that may be left over.
    cache: the folder of all stages; `stages` in the user's cache folder by default. strict: errors among the
    findings raise FindingsError. The project is only read.
    """
    sources = collect(project, globs=globs, include_dirs=include_dirs)
    identity = identify(engine.hipify)
    torch_version = engine.version.partition("+")[0]  # a local part ("+cpu") says nothing about the tables
    options = {"allow": sorted(set(allow)), "include_dirs": [os.path.normpath(name) for name in include_dirs]}
    key = stage_key(sources, engine=identity, torch_version=torch_version, hip_version=hip_version, options=options)
    store = Store(cache or paths.cache_dir() / "stages")
    entry = store.get(key, lambda folder: _fill(folder, sources, engine.hipify, options), what="the stage")
    stage = _stage(key, entry, sources, engine=identity, torch_version=torch_version, hip_version=hip_version)
    if strict and stage.errors:
        raise FindingsError(stage)
    return stage


def _stage(
    key: str, entry: Entry, sources: Sources, *, engine: EngineIdentity, torch_version: str, hip_version: str
) -> Stage:
    findings = [Finding(**finding) for finding in entry.facts["findings"]]
    findings += [
        Finding(
            path=path,
            line=1,
            column=1,
            rule="generated",
            severity="warning",
            message="this file comes from an earlier hipify run and is left out",
            hint="remove it; rocmbuild converts the CUDA sources itself, outside the project",
        )
        for path in sources.generated
    ]
    return Stage(
        key=key,
        root=entry.root,
        files=tuple(StagedFile(**file) for file in entry.facts["files"]),
        findings=tuple(sorted(findings, key=lambda found: (found.path, found.line, found.column, found.rule))),
        engine=engine,
        torch_version=torch_version,
        hip_version=hip_version,
        digests=entry.files,
    )


def _fill(folder: Path, sources: Sources, engine: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Make a stage in an empty folder and return the facts for its manifest."""
    untouched, hip = folder / "cuda", folder / "hip"
    hip.mkdir()
    for file in sources.files:
        path = untouched / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
    outputs = worker.outputs_of(file.path for file in sources.files)
    convert = [file.path for file in sources.files if file.convert]
    include_dirs = ["" if name == "." else name for name in options["include_dirs"]]
    done = hipify(untouched, hip, engine=engine, outputs=outputs, convert=convert, include_dirs=include_dirs)
    originals = {file.path: file.data for file in sources.files}
    converted = [
        checks.Converted(
            path=file.source,
            source=worker.decode(originals[file.source]),
            hip=worker.decode((hip / file.output).read_bytes()),
            shift=file.shift,
            problems=file.problems,
            includes=file.includes,
        )
        for file in done
        if file.status != "copied"
    ]
    findings, leftovers = checks.check_tree(converted, allow=options["allow"])
    findings += [
        Finding(
            path=include.path,
            line=include.line,
            column=1,
            rule="include-outside",
            severity="error",
            message=f'"{include.name}" leads out of the project, where nothing is staged',
            hint="move the file into the project, or let the project's folder be the one that holds both",
        )
        for include in sources.outside
    ]
    return {
        "files": [
            asdict(
                StagedFile(
                    source=file.source,
                    output=file.output,
                    status=file.status,
                    launches=file.launches,
                    replaced=file.replaced,
                    leftovers=leftovers.get(file.source, 0),
                )
            )
            for file in done
        ],
        "findings": [finding.to_json() for finding in findings],
    }


def sync(stage: Stage, dest: Path, tree: str = "hip") -> SyncCounts:
    """Make dest hold one tree of a stage, "hip" or "cuda", and nothing else.

    Files whose bytes are right are not touched, so that their times stay; others appear by rename. What does
    not belong there is removed, wherefore a folder that is neither empty nor made by sync is refused.
    """
    if tree not in ("hip", "cuda"):
        raise ValueError(tree)
    wanted = {path[len(tree) + 1 :]: sha for path, sha in stage.digests.items() if path.startswith(f"{tree}/")}
    mark = dest / _MARK
    written = kept = removed = 0
    try:
        if not mark.is_file():
            if dest.is_dir() and any(dest.iterdir()):
                raise InputError(
                    f"{dest} is not a folder of rocmbuild's and is not empty", hint="choose another build folder"
                )
            paths.write_atomic(mark, b"Kept by rocmbuild: files that are not part of the stage are removed.\n")
        for folder, names, files in os.walk(dest, topdown=False):
            relative = os.path.relpath(folder, dest)
            for name in [*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))]:
                path = os.path.normpath(os.path.join(relative, name))
                full = os.path.join(folder, name)
                if (path not in wanted or os.path.islink(full)) and path != _MARK:
                    os.unlink(full)
                    removed += 1
            if relative != "." and not os.listdir(folder):
                os.rmdir(folder)
        for path, sha in wanted.items():
            target = dest / path
            try:
                if digest(target.read_bytes()) == sha:
                    kept += 1
                    continue
            except FileNotFoundError:
                pass
            except IsADirectoryError:
                shutil.rmtree(target)
            data = (stage.root / tree / path).read_bytes()
            if digest(data) != sha:
                raise EnvironmentFailure(
                    f"{stage.root / tree / path} changed while it was in use", hint="run the build again"
                )
            paths.write_atomic(target, data)
            written += 1
    except OSError as err:
        raise EnvironmentFailure(
            f"the build folder {dest} cannot be brought up to date: {err.filename or dest}: {err.strerror}",
            hint="see that it can be written and has space, or choose another with -C build-dir=DIR",
        ) from err
    return SyncCounts(written=written, kept=kept, removed=removed)
