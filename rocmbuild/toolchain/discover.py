"""The search for a toolchain: every place in a fixed order, each looked at, each refusal with its reason.

Order: the toolchain asked for (a path, a name, a version range), ROCM_HOME, ROCM_PATH, HIP_PATH, the one chosen with
`toolchain use`, the managed store, pip's ROCm SDK, /opt/rocm, /opt/rocm-*, the distribution's own packages in /usr,
conda prefixes, hipcc on PATH, plain LLVM with HIP's headers. A place that a person named must do: its refusal ends the
search, for a toolchain that nobody asked for is worse than none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocmbuild.errors import EnvironmentFailure, InputError, nearest
from rocmbuild.paths import data_dir
from rocmbuild.toolchain.layouts import OLDEST_CLANG, Elsewhere, inspect_llvm, inspect_prefix, mixing_notes, numbers
from rocmbuild.toolchain.model import Candidate, Toolchain
from rocmbuild.toolchain.store import Entry, entries, read_entry

__all__ = [
    "VARIABLES",
    "candidates",
    "chosen_name",
    "find_toolchain",
    "managed_toolchain",
    "toolchains_dir",
]

VARIABLES = ("ROCM_HOME", "ROCM_PATH", "HIP_PATH")
CHOSEN = ".chosen"
"""In the store: the name that `toolchain use` wrote."""

_NEXT_STEP = "rocmbuild toolchain install"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A prefix to look at."""

    name: str
    kind: str
    origin: str
    prefix: Path
    binding: bool = False
    elsewhere: Elsewhere | None = None


def toolchains_dir() -> Path:
    """The store of managed toolchains."""
    return data_dir() / "toolchains"


def chosen_name() -> str | None:
    """The toolchain that `toolchain use` chose for this user, or None."""
    try:
        return (toolchains_dir() / CHOSEN).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def find_toolchain(*, spec: str | None, environ: Mapping[str, str]) -> Toolchain:
    """The first usable toolchain.

    spec: a path (it has a slash), a version range of HIP (PEP 440, ">=6.4") or a name; None for any. Raises
    EnvironmentFailure with every place that was looked at and why it was refused, and InputError for a spec that is
    none of the three.
    """
    refused = []
    for candidate in _search(environ, spec, Path("/")):
        if candidate.toolchain is not None:
            return candidate.toolchain
        refused.append(candidate)
        if candidate.binding:
            raise EnvironmentFailure(
                f"the toolchain that was asked for cannot be used: {candidate.describe()}",
                hint=f"point it at a whole ROCm, or take it away and run `{_NEXT_STEP}`",
            )
    wanted = f" that fits {spec!r}" if spec else ""
    places = "\n".join(f"  - {candidate.describe()}" for candidate in refused) or "  - no place has one"
    raise EnvironmentFailure(f"no HIP toolchain{wanted} was found:\n{places}", hint=f"`{_NEXT_STEP}`")


def candidates(environ: Mapping[str, str], spec: str | None = None, *, root: Path = Path("/")) -> list[Candidate]:
    """Every place in search order, looked at. root: the root folder of the system, or of another one to look into."""
    return list(_search(environ, spec, root))


def _search(environ: Mapping[str, str], spec: str | None, root: Path) -> Iterator[Candidate]:
    """Look at the places one by one, so that the search ends where it may."""
    wanted = (spec or "").strip()
    if "/" in wanted:
        prefix = Path(wanted).expanduser().absolute()
        yield _look(
            _Place(
                name=prefix.name,
                kind="rocm",
                origin=f"toolchain = {wanted!r}",
                prefix=prefix,
                binding=True,
                elsewhere=_elsewhere(environ),
            )
        )
        return
    ranged = bool(wanted) and wanted[0] in "<>=!~"
    fits = _range(wanted) if ranged else None
    if wanted and not ranged:
        yield _by_name(wanted, environ, root)
        return
    seen: set[Path] = set()
    for candidate in _anywhere(environ, root):
        if candidate.prefix is not None and candidate.prefix.exists() and candidate.kind != "llvm":
            real = candidate.prefix.resolve()
            if real in seen:
                continue
            seen.add(real)
        if candidate.kind == "llvm" and candidate.toolchain and candidate.toolchain.prefix.resolve() in seen:
            continue  # its headers were looked at before, with a compiler of their own
        if fits is not None and candidate.toolchain is not None and not fits(candidate.toolchain.hip_version):
            reason = f"HIP {candidate.toolchain.hip_version} is outside {wanted}"
            # A variable must fit; the user's own choice is passed over where a project asks for another range.
            binding = candidate.binding and candidate.origin in VARIABLES
            yield replace(candidate, toolchain=None, reasons=(reason,), binding=binding)
        else:
            yield candidate


def _range(spec: str) -> Callable[[str], bool]:
    """The test that a version range stands for."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # cold start: only where a range is asked for

    try:
        specifiers = SpecifierSet(spec)
    except InvalidSpecifier as err:
        hint = 'write it as ">=6.4" or ">=6.4,<8"'
        raise InputError(f"toolchain = {spec!r}: not a version range", hint=hint) from err
    return lambda version: specifiers.contains(version, prereleases=True)


def _by_name(name: str, environ: Mapping[str, str], root: Path) -> Candidate:
    """The candidate of that name; one that says which names there are when none has it."""
    names = set()
    for candidate in _unasked({key: value for key, value in environ.items() if key not in VARIABLES}, root):
        if candidate.name == name:
            return replace(candidate, binding=True)
        names.add(candidate.name)
    close = nearest(name, sorted(names), limit=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    reason = f"no toolchain has this name (there are: {', '.join(sorted(names)) or 'none'}){guess}"
    return Candidate(
        name=name,
        kind="managed",
        origin=f"toolchain = {name!r}",
        prefix=None,
        toolchain=None,
        reasons=(reason,),
        binding=True,
    )


def _anywhere(environ: Mapping[str, str], root: Path) -> Iterator[Candidate]:
    for variable in VARIABLES:
        value = environ.get(variable)
        if value is None:
            continue
        if not value.strip():
            yield Candidate(
                name=variable, kind="rocm", origin=variable, prefix=None, toolchain=None, reasons=("set, but empty",)
            )
            continue
        prefix = Path(value).expanduser().absolute()
        yield _look(
            _Place(
                name=prefix.name,
                kind="rocm",
                origin=variable,
                prefix=prefix,
                binding=True,
                elsewhere=_elsewhere(environ),
            )
        )
    chosen = chosen_name()
    if chosen:
        found = _by_name(chosen, environ, root)
        origin = f"{found.origin}, chosen with `toolchain use`" if found.prefix else f"`toolchain use {chosen}`"
        yield replace(found, origin=origin)
    yield from _unasked(environ, root)


def _unasked(environ: Mapping[str, str], root: Path) -> Iterator[Candidate]:
    """The places that nobody named."""
    yield from _managed()
    yield from _sdk(sys.path)
    for place in _system(environ, root):
        yield _look(place)
    yield from _llvm(environ, root)


def _entry_of(prefix: Path) -> Entry | None:
    """The store's entry that a prefix is, or None."""
    entry = read_entry(prefix) if prefix.parent == toolchains_dir() else None
    return entry if entry is not None and entry.kind == "toolchain" else None


def _elsewhere(environ: Mapping[str, str]) -> Elsewhere | None:
    """What split installations, as Nix makes them, say through the variables that hipcc reads."""
    clang = environ.get("HIP_CLANG_PATH", "").strip()
    libs = environ.get("HIP_DEVICE_LIB_PATH", "").strip() or environ.get("DEVICE_LIB_PATH", "").strip()
    driver = Path(clang) / "clang++" if clang else None
    if driver is None and not libs:
        return None
    return Elsewhere(clang=driver if driver and driver.is_file() else None, device_libs=Path(libs) if libs else None)


def _managed() -> Iterator[Candidate]:
    """The store's entries, newest HIP first; of two of one version the one with more in it."""
    found = [entry for entry in entries(toolchains_dir()) if entry.kind == "toolchain"]

    def rank(entry: Entry) -> tuple[tuple[int, ...], int]:
        request = entry.facts.get("request")
        extras = request.get("extras", ()) if isinstance(request, dict) else ()
        return numbers(str(entry.facts.get("hip_version", ""))), len(extras)

    for entry in sorted(found, key=rank, reverse=True):
        toolchain = managed_toolchain(entry)
        parts = (toolchain.clang, toolchain.bundler, toolchain.include / "hip", toolchain.device_libs)
        missing = tuple(f"{part} is missing" for part in parts if not part.exists())
        yield Candidate(
            name=entry.name,
            kind="managed",
            origin="managed store",
            prefix=toolchain.prefix,
            toolchain=None if missing else toolchain,
            reasons=missing,
        )


def managed_toolchain(entry: Entry) -> Toolchain:
    """The toolchain that a store's entry holds, from its manifest alone."""
    facts = entry.facts
    tools = {key: entry.folder / value if value else None for key, value in facts["paths"].items()}
    clang, bundler, include, device_libs = (tools[key] for key in ("clang", "bundler", "include", "device_libs"))
    assert clang and bundler and include and device_libs
    return Toolchain(
        name=entry.name,
        kind="managed",
        origin="managed store",
        prefix=tools.get("prefix") or entry.folder,
        clang=clang,
        bundler=bundler,
        readelf=tools["readelf"],
        objdump=tools["objdump"],
        include=include,
        device_libs=device_libs,
        hip_version=str(facts["hip_version"]),
        clang_version=str(facts["clang_version"]),
        digest=entry.digest,
        notes=mixing_notes(include, str(facts["hip_version"])),
    )


def _sdk(path: Sequence[str]) -> Iterator[Candidate]:
    """pip's ROCm SDK beside this interpreter's packages; devel before core. Nothing is imported, nothing expanded."""
    folders = [Path(folder) for folder in dict.fromkeys(path) if folder and Path(folder).is_dir()]
    origin = "pip's ROCm SDK"
    unexpanded = False
    for folder in folders:
        expanded = sorted(folder.glob("_rocm_sdk_devel*"))
        archive = next(folder.glob("rocm_sdk_devel/_devel.tar*"), None)
        for prefix in expanded:
            found = _look(_Place(name="sdk-devel", kind="sdk", origin=origin, prefix=prefix))
            if archive is not None:  # AMD's tool removes it when the expansion has ended
                told = "its expansion did not end: run `rocm-sdk init` again"
                found = replace(found, toolchain=None, reasons=(told,))
            yield found
        if not expanded and (folder / "rocm_sdk_devel").is_dir():
            unexpanded = True
            yield Candidate(
                name="sdk-devel",
                kind="sdk",
                origin=origin,
                prefix=folder / "_rocm_sdk_devel",
                toolchain=None,
                reasons=("installed, but not expanded yet: run `rocm-sdk init` once",),
            )
    for folder in folders:
        for prefix in sorted(folder.glob("_rocm_sdk_core*")):
            found = _look(_Place(name="sdk-core", kind="sdk", origin=origin, prefix=prefix))
            if found.toolchain is None and not unexpanded:
                reasons = (*found.reasons, "this is the core package alone: `pip install rocm[devel]` has the rest")
                found = replace(found, reasons=reasons)
            elif found.toolchain is not None:
                note = "core without devel: it lacks the headers of the math libraries"
                found = replace(found, toolchain=replace(found.toolchain, notes=(*found.toolchain.notes, note)))
            yield found


def _system(environ: Mapping[str, str], root: Path) -> Iterator[_Place]:
    opt = root / "opt"
    versions = sorted(opt.glob("rocm-*"), key=lambda path: numbers(path.name), reverse=True)
    for prefix in [opt / "rocm", *versions]:
        if prefix.is_dir():
            yield _Place(name=prefix.name, kind="rocm", origin="/opt", prefix=prefix)
    usr = root / "usr"
    if (usr / "include/hip").is_dir():
        yield _Place(name="system", kind="system", origin="the distribution's packages", prefix=usr)
    active = environ.get("CONDA_PREFIX", "").strip()
    own = [sys.prefix] if Path(sys.prefix, "conda-meta").is_dir() else []
    for index, conda in enumerate(dict.fromkeys([*([active] if active else []), *own])):
        prefix = Path(conda)
        if (prefix / "include/hip").is_dir() or (prefix / "bin/hipcc").exists():
            name = "conda" if index == 0 else f"conda-{prefix.name}"
            yield _Place(name=name, kind="conda", origin="conda", prefix=prefix, elsewhere=_elsewhere(environ))
    hipcc = shutil.which("hipcc", path=environ.get("PATH", ""))
    if hipcc:
        prefix = Path(hipcc).resolve().parent.parent
        yield _Place(name="path", kind="rocm", origin="hipcc on PATH", prefix=prefix, elsewhere=_elsewhere(environ))


def _llvm(environ: Mapping[str, str], root: Path) -> Iterator[Candidate]:
    """Plain LLVM on PATH and where distributions put it, each compiler once, newest name first."""
    found: dict[Path, Path] = {}
    for folder in environ.get("PATH", "").split(os.pathsep):
        try:
            names = [path.name for path in Path(folder).glob("clang++*")] if folder else []
        except OSError:
            continue
        for name in sorted(names, key=numbers, reverse=True):
            plain = name == "clang++" or name.removeprefix("clang++-").isdigit()
            if plain and not (numbers(name) and numbers(name)[0] < OLDEST_CLANG):
                found.setdefault((Path(folder) / name).resolve(), Path(folder) / name)
    for clang in sorted(root.glob("usr/lib/llvm-*/bin/clang++"), key=lambda p: numbers(str(p)), reverse=True):
        if numbers(clang.parent.parent.name)[0] >= OLDEST_CLANG:
            found.setdefault(clang.resolve(), clang)
    roots = [root / "usr/local", root / "usr"]
    taken: set[str] = set()
    for clang in found.values():
        origin = f"plain LLVM ({clang})"
        name = "llvm" if "llvm" not in taken else f"llvm-{len(taken) + 1}"
        taken.add(name)
        result = inspect_llvm(clang, roots, name=name, origin=origin, elsewhere=_elsewhere(environ))
        whole = isinstance(result, Toolchain)
        yield Candidate(
            name=name,
            kind="llvm",
            origin="plain LLVM",
            prefix=result.prefix if isinstance(result, Toolchain) else clang,
            toolchain=result if isinstance(result, Toolchain) else None,
            reasons=() if whole else tuple(str(line) for line in result),  # type: ignore[union-attr]
        )


def _look(place: _Place) -> Candidate:
    entry = _entry_of(place.prefix)
    if entry is not None:  # a managed one that a variable or a path names is the managed one all the same
        managed = next((found for found in _managed() if found.name == entry.name), None)
        if managed is not None:
            whole = replace(managed.toolchain, origin=place.origin) if managed.toolchain else None
            return replace(managed, origin=place.origin, toolchain=whole, binding=place.binding)
    found = inspect_prefix(
        place.prefix, name=place.name, kind=place.kind, origin=place.origin, elsewhere=place.elsewhere
    )
    toolchain = found if isinstance(found, Toolchain) else None
    return Candidate(
        name=place.name,
        kind=place.kind,
        origin=place.origin,
        prefix=place.prefix,
        toolchain=toolchain,
        reasons=() if isinstance(found, Toolchain) else found,
        binding=place.binding,
    )
