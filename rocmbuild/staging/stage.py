"""A stage: the private, content-addressed copy of a project's sources, untouched and HIPified, checked.

`make_stage` is the one way in; `sync` brings a tree of a stage into a folder. A stage is held in memory whole: the
untouched tree as it was read, the HIP tree from the cache, where an entry keeps what conversion changed.
"""

from __future__ import annotations

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
from rocmbuild.staging.cache import Damaged, Entry, Made, Store
from rocmbuild.staging.facts import Facts, Macros
from rocmbuild.staging.findings import Finding, combine, finding, settle
from rocmbuild.staging.hipify import Engine, EngineIdentity, Hipified, Hipify, code_digest, find_engine, identify
from rocmbuild.staging.layout import Resolver, outputs_of
from rocmbuild.staging.sources import Sources, collect, matches

__all__ = [
    "FORMAT",
    "TREES",
    "EngineSdk",
    "FindingsError",
    "Stage",
    "StagedFile",
    "SyncCounts",
    "make_stage",
    "stage_key",
    "sync",
]

FORMAT = 2
"""The number of an entry's layout and of the facts in it; part of every key."""

TREES = ("hip", "cuda")
_LARGE = 1 << 20
"""The bytes of a stage from which on the subprocess is started before it is known to be needed.

To read so large a tree takes as long as to start the process that an edit of it needs; both are done at once.
"""
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

    status: converted | unchanged | copied | skipped (which is an error among the findings). launches, replaced: kernel
    launches and names that HIPify replaced. leftovers: CUDA names and headers left in code a HIP compiler sees.
    """

    source: str
    output: str
    status: str
    launches: int
    replaced: int
    leftovers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A checked stage. entry: its file in the cache.

    fresh: the sources that HIPify was run on for it just now; none where it came from the cache.
    """

    key: str
    entry: Path
    files: tuple[StagedFile, ...]
    findings: tuple[Finding, ...]
    engine: EngineIdentity
    torch_version: str
    hip_version: str
    fresh: tuple[str, ...]
    _sources: Mapping[str, bytes] = field(repr=False)
    _converted: Mapping[str, bytes] = field(repr=False)

    def output_of(self, source: str) -> str:
        """Where a source stands in the HIP tree. KeyError where it is not staged."""
        return {file.source: file.output for file in self.files}[source]

    def matching(self, globs: Sequence[str]) -> tuple[StagedFile, ...]:
        """The staged files that source patterns name, in order of their paths."""
        return tuple(file for file in self.files if any(matches(glob, file.source) for glob in globs))

    def tree(self, name: str) -> dict[str, bytes]:
        """A tree, "hip" or "cuda": path -> bytes. "hip" is the HIPified one; what needs no change is in it too."""
        if name not in TREES:
            raise ValueError(name)
        if name == "cuda":
            return dict(self._sources)
        return {file.output: self._converted.get(file.source, self._sources[file.source]) for file in self.files}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """All that decides a stage, beside the files. reuse: what decides the conversion of one file, and its facts."""

    engine: Engine
    identity: EngineIdentity
    torch_version: str
    hip_version: str
    include_dirs: tuple[str, ...]
    defines: Mapping[str, str]
    allow: tuple[str, ...]

    def reuse(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "code": code_digest(),
            "engine": asdict(self.identity),
            "include_dirs": list(self.include_dirs),
            "defines": dict(self.defines),
        }

    def tables_key(self) -> str:
        """Where the cache has the engine's tables."""
        return _digest(f"tables {FORMAT} {code_digest()} {self.identity.digest}".encode("ascii"))

    def head(self) -> dict[str, Any]:
        return {
            **self.reuse(),
            "torch": self.torch_version,
            "hip": self.hip_version,
            "allow": list(self.allow),
        }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stage_key(sources: Sources, head: Mapping[str, Any], digests: Sequence[str] | None = None) -> str:
    """The content address of a stage.

    SHA-256 over the head (the format, the converting code, the engine and its version, torch and HIP versions, the
    options), and of every file the path, the kind and the digest of its bytes, each with its length in front. Not in
    it: times, modes, absolute paths, the order in which files were found, generated files of earlier hipify runs.
    digests: of the files, if they are known.
    """
    whole = hashlib.sha256()

    def feed(data: bytes) -> None:
        whole.update(len(data).to_bytes(8, "little") + data)

    outside = [asdict(include) for include in sources.outside]
    feed(json.dumps({**head, "outside": outside}, sort_keys=True).encode("ascii"))
    for file, sha in zip(sources.files, digests or [_digest(file.data) for file in sources.files], strict=True):
        feed(os.fsencode(file.path))
        feed((f"text {sha}" if file.convert else f"copy {sha}").encode("ascii"))
    return whole.hexdigest()


def make_stage(
    project: Path,
    *,
    globs: Sequence[str],
    include_dirs: Sequence[str] = (),
    engine: EngineSdk,
    hip_version: str,
    hipify_engine: str = "auto",
    defines: Mapping[str, str] | None = None,
    allow: Iterable[str] = (),
    cache: Path | None = None,
    strict: bool = True,
) -> Stage:
    """Collect, convert and check a project's sources, or find that done in the cache.

    globs, include_dirs: relative to project. hipify_engine: one of hipify.ENGINES, torch's own being engine's.
    defines: macros that every compilation of these sources is given; they decide which branches are dead. allow: CUDA
    names and headers that may be left over. cache: the folder of all stages; `stages` in the user's cache folder by
    default. strict: errors among the findings raise FindingsError. The project is only read.
    """
    store = Store(cache or paths.cache_dir() / "stages")
    # The last stage of this folder is where a conversion finds what an edit has not touched.
    names = [_digest(os.fsencode(os.path.realpath(project))), _digest(json.dumps([*globs, *include_dirs]).encode())]
    with Hipify() as worker:
        if store.last_size(names) > _LARGE:
            worker.start()
        sources = collect(project, globs=globs, include_dirs=include_dirs)
        chosen = find_engine(hipify_engine, engine.hipify)
        job = _Job(
            engine=chosen,
            identity=identify(chosen),
            torch_version=engine.version.partition("+")[0],  # a local part ("+cpu") says nothing about the tables
            hip_version=hip_version,
            include_dirs=tuple(os.path.normpath(name) for name in include_dirs),
            defines=dict(sorted((defines or {}).items())),
            allow=tuple(sorted(set(allow))),
        )
        digests = [_digest(file.data) for file in sources.files]
        key = stage_key(sources, job.head(), digests)

        def make() -> Made:
            return _convert(sources, digests, job, store=store, names=names, worker=worker)

        entry = store.get(key, make, what="the stage")
    store.remember(names, key)
    stage = _stage(key, entry, sources, job)
    if strict and stage.errors:
        raise FindingsError(stage)
    return stage


def _stage(key: str, entry: Entry, sources: Sources, job: _Job) -> Stage:
    converted: dict[str, bytes] = {}
    offset = 0
    for record in entry.facts["files"]:
        if size := record["size"]:
            converted[record["source"]] = bytes(entry.data[offset : offset + size])
            offset += size
    findings = [Finding(**found) for found in entry.facts["findings"]]
    if sources.generated:
        findings = _with_generated(findings, entry.facts["files"], sources.generated, job)
    shown = ("source", "output", "status", "launches", "replaced", "leftovers")
    return Stage(
        key=key,
        entry=entry.path,
        files=tuple(StagedFile(**{name: record[name] for name in shown}) for record in entry.facts["files"]),
        findings=tuple(sorted(findings, key=lambda found: (found.path, found.line, found.column, found.rule))),
        engine=job.identity,
        torch_version=job.torch_version,
        hip_version=job.hip_version,
        fresh=tuple(entry.fresh),
        _sources={file.path: file.data for file in sources.files},
        _converted=converted,
    )


def _with_generated(
    findings: Sequence[Finding], records: Sequence[Mapping[str, Any]], generated: Sequence[str], job: _Job
) -> list[Finding]:
    """Findings and what outputs of an earlier hipify run add: they are no part of an entry, since they are no input."""
    resolver = Resolver({}, job.include_dirs)
    added = {}
    for record in records:
        facts = record.get("settled", record).get("facts")
        for rule, line, column, name, detail, _ in Facts(*facts).found if facts else ():
            if rule == "include-left-out":
                paths = resolver.paths(record["source"], name, True)
                if any(path in generated for _, path in paths):
                    added[record["source"], line] = finding(
                        record["source"], rule, line=line, column=column, name=name, detail=detail
                    )
    kept = [found for found in findings if found.rule != "include" or (found.path, found.line) not in added]
    return [*kept, *added.values(), *(finding(path, "generated") for path in generated)]


# The keys of a file's record, in the order in which they are written, so that the same record is the same bytes.
_KEYS = (
    *("source", "output", "digest", "size", "status", "launches", "replaced", "leftovers"),
    *("line", "column", "reason", "shift", "problems", "includes", "facts", "settled"),
)
_COPIED = Hipified(record={"status": "copied", "launches": 0, "replaced": 0}, data=None)


def _convert(
    sources: Sources, digests: Sequence[str], job: _Job, *, store: Store, names: Sequence[str], worker: Hipify
) -> Made:
    """The facts and bytes of an entry: of files that the last stage has converted just so, its own; else HIPify's."""
    worker.start()
    outputs = outputs_of(file.path for file in sources.files)
    done = _reusable(sources, digests, outputs, job, store.last(names))
    todo = [file for file in sources.files if file.convert and file.path not in done]
    if todo:
        made, tables = worker.run(
            [(file.path, file.data) for file in todo],
            engine=job.engine.folder,
            tables=(known := _tables(store, job)),
            outputs=outputs,
            include_dirs=job.include_dirs,
            defines=job.defines,
        )
        done.update(zip((file.path for file in todo), made, strict=True))
        if not known:
            store.keep(job.tables_key(), Made(facts={"engine": job.identity.name}, blobs=[tables]))
    records: list[dict[str, Any]] = []
    blobs: list[bytes | memoryview] = []
    for file, sha in zip(sources.files, digests, strict=True):
        outcome = done[file.path] if file.convert else _COPIED
        if outcome.data is not None:
            blobs.append(outcome.data)
        size = len(outcome.data or b"")
        whole = {
            **outcome.record,
            "source": file.path,
            "output": outputs[file.path],
            "digest": sha,
            "size": size,
            "leftovers": 0,
        }
        records.append({name: whole[name] for name in _KEYS if name in whole})
    findings, leftovers = _findings(sources, records, done, job)
    for record in records:
        record["leftovers"] = leftovers.get(record["source"], 0)
    facts = {
        "head": job.reuse(),
        "files": records,
        "findings": [found.to_json() for found in findings],
    }
    return Made(facts=facts, blobs=blobs, fresh=[file.path for file in todo])


def _tables(store: Store, job: _Job) -> bytes:
    """The engine's tables, if they are in the cache."""
    try:
        entry = store.load(job.tables_key())
    except Damaged:
        return b""
    return bytes(entry.data) if entry else b""


def _reusable(
    sources: Sources, digests: Sequence[str], outputs: Mapping[str, str], job: _Job, base: Entry | None
) -> dict[str, Hipified]:
    """What base has of these files: the same bytes at the same path, whose includes name the same files as then."""
    if base is None or base.facts["head"] != job.reuse():
        return {}
    records = {record["source"]: record for record in base.facts["files"]}
    blobs: dict[str, memoryview] = {}
    offset = 0
    for path, record in records.items():
        blobs[path] = base.data[offset : offset + record["size"]]
        offset += record["size"]
    resolver = None
    if records.keys() != outputs.keys():
        resolver = Resolver(outputs, job.include_dirs)
    reused = {}
    for file, sha in zip(sources.files, digests, strict=True):
        record = records.get(file.path)
        if not file.convert or record is None or record["digest"] != sha or record["status"] == "copied":
            continue
        if resolver and not _same_includes(file.path, record, resolver):
            continue
        kept = {name: record[name] for name in record.keys() - {"source", "output", "digest", "size", "leftovers"}}
        reused[file.path] = Hipified(record=kept, data=blobs[file.path] if record["status"] == "converted" else None)
    return reused


def _same_includes(path: str, record: Mapping[str, Any], resolver: Resolver) -> bool:
    """Whether the includes of a converted file would be rewritten as they were."""
    for _, _, asked, name, quoted, kind, target in record.get("includes", ()):
        if kind != "computed" and resolver.staged(path, asked, quoted) != ((name, target) if target else None):
            return False
    return True


def _findings(
    sources: Sources, records: Sequence[dict[str, Any]], done: Mapping[str, Hipified], job: _Job
) -> tuple[list[Finding], Mapping[str, int]]:
    """The findings of the tree, and its leftovers.

    Adds to a record its facts under what the tree says of macros.
    """
    by_path = {record["source"]: record for record in records}
    facts = {path: Facts(*record["facts"]) for path, record in by_path.items() if "facts" in record}
    texts = {file.path: file.data for file in sources.files}

    def again(path: str, macros: Macros) -> Facts:
        record = by_path[path]
        settled = record.get("settled")
        if settled and settled["macros"] == [sorted(names) for names in macros]:
            return Facts(*settled["facts"])
        from rocmbuild.staging import recheck  # costs start-up time, and few trees need it

        new = done[path].data
        return recheck.examine_again(
            path, texts[path], texts[path] if new is None else bytes(new), record, defines=job.defines, macros=macros
        )

    current, mattered = settle(facts, again)
    for path, record in by_path.items():
        record.pop("settled", None)
        if path in mattered:
            record["settled"] = {"macros": [sorted(names) for names in mattered[path]], "facts": current[path]}
    findings, leftovers = combine(current, allow=job.allow, defines=job.defines)
    findings += [
        finding(path, "skipped", line=record["line"], column=record["column"], detail=record["reason"])
        for path, record in by_path.items()
        if record["status"] == "skipped"
    ]
    findings += [
        finding(include.path, "include-outside", line=include.line, detail=f'"{include.name}"')
        for include in sources.outside
    ]
    return findings, leftovers


def sync(stage: Stage, dest: Path, tree: str = "hip") -> SyncCounts:
    """Make dest hold one tree of a stage, "hip" or "cuda", and nothing else.

    Files whose bytes are right are not touched, so that their times stay; others appear by rename. A time that lies in
    the future, as a clock that was set back leaves it, becomes now. What does not belong there is removed, wherefore a
    folder that is neither empty nor made by sync is refused.
    """
    wanted = stage.tree(tree)
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
        now = _now(mark)
        for path, data in wanted.items():
            target = dest / path
            try:
                with open(target, "rb") as file:
                    if file.read() == data:
                        kept += 1
                        if os.fstat(file.fileno()).st_mtime_ns > now:
                            os.utime(target)
                        continue
            except FileNotFoundError:
                pass
            except IsADirectoryError:
                shutil.rmtree(target)
            paths.write_atomic(target, data)
            written += 1
    except OSError as err:
        raise EnvironmentFailure(
            f"the build folder {dest} cannot be brought up to date: {err.filename or dest}: {err.strerror}",
            hint="see that it can be written and has space, or choose another with -C build-dir=DIR",
        ) from err
    return SyncCounts(written=written, kept=kept, removed=removed)


def _now(mark: Path) -> int:
    """The time that the file system gives to a file that is touched now."""
    os.utime(mark)
    return os.stat(mark).st_mtime_ns
