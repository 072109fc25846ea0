"""The search for a toolchain: every place in a fixed order, each looked at, each refusal with its reason.

Order: the toolchain asked for (a path, a name, a version range), ROCM_HOME, ROCM_PATH, HIP_PATH, the managed store,
pip's ROCm SDK, /opt/rocm, /opt/rocm-*, the distribution's own packages in /usr, hipcc on PATH. A place that a person
named must do: its refusal ends the search, for a toolchain that nobody asked for is worse than none.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rocmbuild.errors import EnvironmentFailure, InputError, RocmbuildError
from rocmbuild.paths import cache_dir, data_dir, write_atomic
from rocmbuild.process import run
from rocmbuild.toolchain.model import Candidate, Toolchain
from rocmbuild.toolchain.store import Entry, entries

__all__ = ["candidates", "find_toolchain", "inspect_prefix", "managed_toolchain", "toolchains_dir"]

VARIABLES = ("ROCM_HOME", "ROCM_PATH", "HIP_PATH")
OLDEST_CLANG = 19  # the first with the wave32 ballot that the build's guard calls, and with gfx12
OLDEST_HIP = 6
_NEXT_STEP = "rocmbuild toolchain install"
_HEADERS = ("hip_runtime.h", "hip_runtime_api.h", "hip_version.h", "hip_fp16.h", "hip_bf16.h")
_BITCODE = ("ockl.bc", "ocml.bc")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A prefix to look at."""

    name: str
    kind: str
    origin: str
    prefix: Path
    binding: bool = False


def toolchains_dir() -> Path:
    """The store of managed toolchains."""
    return data_dir() / "toolchains"


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
            _Place(name=prefix.name, kind="rocm", origin=f"toolchain = {wanted!r}", prefix=prefix, binding=True)
        )
        return
    ranged = bool(wanted) and wanted[0] in "<>=!~"
    fits = _range(wanted) if ranged else None
    if wanted and not ranged:
        yield _by_name(wanted, environ, root)
        return
    seen: set[Path] = set()
    for candidate in _anywhere(environ, root):
        if candidate.prefix is not None and candidate.prefix.exists():
            real = candidate.prefix.resolve()
            if real in seen:
                continue
            seen.add(real)
        if fits is not None and candidate.toolchain is not None and not fits(candidate.toolchain.hip_version):
            reason = f"HIP {candidate.toolchain.hip_version} is outside {wanted}"
            yield replace(candidate, toolchain=None, reasons=(reason,))
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
    for candidate in _anywhere({"PATH": environ.get("PATH", "")}, root):
        if candidate.name == name:
            return replace(candidate, binding=True)
        names.add(candidate.name)
    close = difflib.get_close_matches(name, sorted(names), n=1)
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
        yield _look(_Place(name=prefix.name, kind="rocm", origin=variable, prefix=prefix, binding=True))
    yield from _managed()
    yield from _sdk(sys.path)
    for place in _system(environ, root):
        yield _look(place)


def _managed() -> Iterator[Candidate]:
    """The store's entries, newest HIP first."""
    found = [entry for entry in entries(toolchains_dir()) if entry.kind == "toolchain"]
    for entry in sorted(found, key=lambda e: _numbers(str(e.facts.get("hip_version", ""))), reverse=True):
        toolchain = managed_toolchain(entry)
        parts = (toolchain.clang, toolchain.bundler, toolchain.include / "hip", toolchain.device_libs)
        missing = tuple(f"{part} is missing" for part in parts if not part.exists())
        yield Candidate(
            name=entry.name,
            kind="managed",
            origin="managed store",
            prefix=entry.folder,
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
        prefix=entry.folder,
        clang=clang,
        bundler=bundler,
        readelf=tools["readelf"],
        objdump=tools["objdump"],
        include=include,
        device_libs=device_libs,
        hip_version=str(facts["hip_version"]),
        clang_version=str(facts["clang_version"]),
        digest=entry.digest,
        notes=_notes(include, str(facts["hip_version"])),
    )


def _sdk(path: Sequence[str]) -> Iterator[Candidate]:
    """pip's ROCm SDK beside this interpreter's packages; devel before core. Nothing is imported, nothing expanded."""
    folders = [Path(folder) for folder in dict.fromkeys(path) if folder and Path(folder).is_dir()]
    for name, package in (("sdk-devel", "_rocm_sdk_devel"), ("sdk-core", "_rocm_sdk_core")):
        for folder in folders:
            if (folder / package).is_dir():
                yield _look(_Place(name=name, kind="sdk", origin="pip's ROCm SDK", prefix=folder / package))
            elif name == "sdk-devel" and (folder / "rocm_sdk_devel").is_dir():
                yield Candidate(
                    name=name,
                    kind="sdk",
                    origin="pip's ROCm SDK",
                    prefix=folder / package,
                    toolchain=None,
                    reasons=("installed, but not expanded yet: run `rocm-sdk init` once",),
                )


def _system(environ: Mapping[str, str], root: Path) -> Iterator[_Place]:
    opt = root / "opt"
    versions = sorted(opt.glob("rocm-*"), key=lambda path: _numbers(path.name), reverse=True)
    for prefix in [opt / "rocm", *versions]:
        if prefix.is_dir():
            yield _Place(name=prefix.name, kind="rocm", origin="/opt", prefix=prefix)
    usr = root / "usr"
    if (usr / "include/hip").is_dir():
        yield _Place(name="system", kind="system", origin="the distribution's packages", prefix=usr)
    hipcc = shutil.which("hipcc", path=environ.get("PATH", ""))
    if hipcc:
        prefix = Path(hipcc).resolve().parent.parent
        yield _Place(name="path", kind="rocm", origin="hipcc on PATH", prefix=prefix)


def _look(place: _Place) -> Candidate:
    found = inspect_prefix(place.prefix, name=place.name, kind=place.kind, origin=place.origin)
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


def inspect_prefix(prefix: Path, *, name: str, kind: str, origin: str) -> Toolchain | tuple[str, ...]:
    """The toolchain in prefix, or the reasons why there is none.

    Layouts known: AMD's (lib/llvm/bin, llvm/bin, amdgcn/bitcode; in pip's SDK lib/llvm/amdgcn/bitcode), Debian's
    (lib/llvm-N, device libraries in the compiler's resource folder or in lib/TRIPLE/amdgcn), Fedora's
    (lib64/rocm/llvm/bin, bin/clang++, lib/clang/N/amdgcn).
    """
    if not prefix.is_dir():
        return ("no such folder",)
    reasons = []
    if (prefix / "pyvenv.cfg").is_file():
        reasons.append("the root of a Python environment, not of a ROCm")
    include = prefix / "include"
    absent = [header for header in _HEADERS if not (include / "hip" / header).is_file()]
    if len(absent) == len(_HEADERS):
        reasons.append("no HIP headers (include/hip)")
    elif absent:
        reasons.append(f"its HIP headers are not whole: include/hip lacks {', '.join(absent)}")
    hip_version = _hip_version(include / "hip" / "hip_version.h")
    if not hip_version and "hip_version.h" not in absent:
        reasons.append("include/hip/hip_version.h does not name its version")
    elif hip_version and int(hip_version.split(".")[0]) < OLDEST_HIP:
        reasons.append(f"its headers are HIP {hip_version}; {OLDEST_HIP}.0 or newer is needed")
    found = _compilers(prefix)
    if not found:
        return (*reasons, "no clang++ (lib/llvm/bin, llvm/bin, bin)")
    complaints: list[str] = []
    for clang in found:
        result = _with_compiler(clang, prefix)
        if isinstance(result, str):
            complaints.append(result)
        elif reasons:
            break
        else:
            version, text, bundler, device_libs = result
            text += (include / "hip/hip_version.h").read_text(errors="replace")
            return Toolchain(
                name=name,
                kind=kind,
                origin=origin,
                prefix=prefix,
                clang=clang,
                bundler=bundler,
                readelf=_tool(clang, prefix, "llvm-readelf"),
                objdump=_tool(clang, prefix, "llvm-objdump"),
                include=include,
                device_libs=device_libs,
                hip_version=hip_version,
                clang_version=version,
                digest=hashlib.sha256(text.encode()).hexdigest(),
                notes=_notes(include, hip_version),
            )
    return (*reasons, *complaints[:1])


def _with_compiler(clang: Path, prefix: Path) -> tuple[str, str, Path, Path] | str:
    """A compiler's version, its version text, its bundler and its device libraries; or what is wrong with it."""
    try:
        text = _version_text(clang)
    except RocmbuildError as err:
        return err.message
    match = re.search(r"clang version (\d+(?:\.\d+)*)", text)
    if not match:
        return f"{clang} does not answer as clang: {text.splitlines()[0] if text.strip() else 'no output'}"
    version = match.group(1)
    major = int(version.split(".")[0])
    if major < OLDEST_CLANG:
        return f"{clang} is clang {version}; {OLDEST_CLANG} or newer is needed"
    bundler = _tool(clang, prefix, "clang-offload-bundler")
    if bundler is None:
        return f"no clang-offload-bundler beside {clang}"
    if _tool(clang, prefix, "ld.lld") is None:
        return f"no ld.lld beside {clang}"
    device_libs = _device_libs(clang, prefix, major)
    if device_libs is None:
        return f"no device libraries ({', '.join(_BITCODE)}) for clang {major}"
    return version, text, bundler, device_libs


def _compilers(prefix: Path) -> list[Path]:
    """Every C++ driver that the known layouts of a prefix may have, in order of preference."""
    folders = [prefix / "lib/llvm/bin", prefix / "llvm/bin", prefix / "lib64/rocm/llvm/bin"]
    versioned = [*prefix.glob("lib/llvm-*/bin"), *prefix.glob("lib64/llvm*/bin")]
    folders += sorted(versioned, key=lambda path: _numbers(path.parent.name), reverse=True)
    folders.append(prefix / "bin")
    found: dict[Path, Path] = {}
    for folder in folders:
        clang = folder / "clang++"
        if clang.is_file() and os.access(clang, os.X_OK):
            found.setdefault(clang.resolve().with_name("clang++"), clang)
    return list(found.values())


def _tool(clang: Path, prefix: Path, name: str) -> Path | None:
    folders = [clang.parent, clang.resolve().parent, prefix / "bin", prefix / "lib/llvm/bin", prefix / "llvm/bin"]
    for path in (folder / name for folder in folders):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def _device_libs(clang: Path, prefix: Path, major: int) -> Path | None:
    """The folder of bitcode libraries that fits the compiler: its resource folder's before a prefix-wide one."""
    resources = [clang.resolve().parent.parent / "lib/clang", prefix / "lib/clang", prefix / "lib64/clang"]
    places = [root / str(major) / end for root in resources for end in ("amdgcn/bitcode", "lib/amdgcn/bitcode")]
    places += [clang.parent.parent / "amdgcn/bitcode", prefix / "amdgcn/bitcode", prefix / "lib/amdgcn/bitcode"]
    places += [prefix / "lib64/amdgcn/bitcode", prefix / "lib/x86_64-linux-gnu/amdgcn/bitcode"]
    return next((place for place in places if all((place / file).is_file() for file in _BITCODE)), None)


def _hip_version(header: Path) -> str:
    """major.minor.patch as hip_version.h defines them; "" when it does not."""
    try:
        text = header.read_text(errors="replace")
    except OSError:
        return ""
    found = dict(re.findall(r"#\s*define\s+HIP_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", text))
    return ".".join(found[key] for key in ("MAJOR", "MINOR", "PATCH")) if len(found) == 3 else ""


def _notes(include: Path, hip_version: str) -> tuple[str, ...]:
    """Headers of another HIP where every compiler looks: a project that names that folder mixes the two."""
    other = Path("/usr/include")
    if include.resolve() == other:
        return ()
    version = _hip_version(other / "hip/hip_version.h")
    if not version or version == hip_version:
        return ()
    return (f"/usr/include/hip is HIP {version}, these headers are {hip_version}: -I/usr/include would mix them",)


def _version_text(clang: Path) -> str:
    """`clang++ --version`, asked once per compiler file: the answer is kept under the file's path, size and time."""
    real = clang.resolve()
    status = real.stat()
    key = hashlib.sha256(f"{real}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()[:32]
    cached = cache_dir() / "probes" / f"{key}.json"
    try:
        return str(json.loads(cached.read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    done = run([clang, "--version"], what=f"asking {clang} for its version", timeout=60, error=EnvironmentFailure)
    text = "\n".join(
        line for line in done.stdout.splitlines() if not line.startswith(("InstalledDir", "Configuration"))
    )
    with suppress(OSError):  # a cache that cannot be written costs the next search 50 ms
        write_atomic(cached, json.dumps({"version": text}).encode())
    return text


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
