"""The layouts that ROCm comes in: what a prefix has, or every reason why it is no toolchain."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.errors import EnvironmentFailure, RocmbuildError
from rocmbuild.paths import cache_dir, write_atomic
from rocmbuild.process import run
from rocmbuild.toolchain.model import Toolchain

__all__ = [
    "OLDEST_CLANG",
    "OLDEST_HIP",
    "Elsewhere",
    "ask_version",
    "inspect_llvm",
    "inspect_prefix",
    "mixing_notes",
    "numbers",
    "read_hip_version",
    "tool_beside",
]

OLDEST_CLANG = 19  # the first with the wave32 ballot that the build's guard calls, and with gfx12
OLDEST_HIP = 6
_HEADERS = ("hip_runtime.h", "hip_runtime_api.h", "hip_version.h", "hip_fp16.h", "hip_bf16.h")
_BITCODE = ("ockl.bc", "ocml.bc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Parts that a split installation keeps outside of its prefix, as HIP_CLANG_PATH and its like name them."""

    clang: Path | None = None
    device_libs: Path | None = None


def inspect_prefix(
    prefix: Path, *, name: str, kind: str, origin: str, elsewhere: Elsewhere | None = None
) -> Toolchain | tuple[str, ...]:
    """The toolchain in prefix, or the reasons why there is none.

    Layouts known: AMD's (lib/llvm/bin, llvm/bin, amdgcn/bitcode; in pip's SDK lib/llvm/amdgcn/bitcode), Debian's
    (lib/llvm-N, device libraries in the compiler's resource folder or in lib/TRIPLE/amdgcn), Fedora's
    (lib64/rocm/llvm/bin, bin/clang++, lib/clang/N/amdgcn), conda's (bin/TRIPLE-clang++, lib/clang/N/lib/amdgcn).
    """
    if not prefix.is_dir():
        return ("no such folder",)
    reasons = []
    if (prefix / "pyvenv.cfg").is_file():
        reasons.append("the root of a Python environment, not of a ROCm")
    include = prefix / "include"
    hip_version, faults = _headers(include)
    reasons += faults
    found = _compilers(prefix)
    if elsewhere and elsewhere.clang:
        found.insert(0, elsewhere.clang)
    if not found:
        return (*reasons, "no clang++ (lib/llvm/bin, llvm/bin, bin)")
    parts = _Parts(name=name, kind=kind, origin=origin, prefix=prefix, hip_version=hip_version, elsewhere=elsewhere)
    return parts.with_first_of(found, reasons)


def inspect_llvm(
    clang: Path, roots: Sequence[Path], *, name: str, origin: str, elsewhere: Elsewhere | None = None
) -> Toolchain | tuple[str, ...]:
    """A plain LLVM with HIP's headers beside it or in one of roots, each a prefix such as /usr; or what is missing."""
    home = clang.resolve().parent.parent
    refused: list[str] = []
    for prefix in dict.fromkeys([home, *roots]):
        hip_version, faults = _headers(prefix / "include")
        if not faults:
            parts = _Parts(
                name=name, kind="llvm", origin=origin, prefix=prefix, hip_version=hip_version, elsewhere=elsewhere
            )
            return parts.with_first_of([clang], ())
        if (prefix / "include/hip").is_dir():
            refused += [f"{prefix}: {fault}" for fault in faults]
    result = _with_compiler(clang, home, elsewhere)
    searched = ", ".join(str(root / "include") for root in dict.fromkeys([home, *roots]))
    reasons = refused or [f"no HIP headers (include/hip) in {searched}"]
    return (*reasons, *([result] if isinstance(result, str) else []))


def _headers(include: Path) -> tuple[str, list[str]]:
    """HIP's version by its headers, and what is wrong with these."""
    faults = []
    absent = [header for header in _HEADERS if not (include / "hip" / header).is_file()]
    if len(absent) == len(_HEADERS):
        faults.append("no HIP headers (include/hip)")
    elif absent:
        faults.append(f"its HIP headers are not whole: include/hip lacks {', '.join(absent)}")
    version = read_hip_version(include / "hip" / "hip_version.h")
    if not version and "hip_version.h" not in absent:
        faults.append("include/hip/hip_version.h does not name its version")
    elif version and int(version.split(".")[0]) < OLDEST_HIP:
        faults.append(f"its headers are HIP {version}; {OLDEST_HIP}.0 or newer is needed")
    return version, faults


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A prefix whose headers were looked at, and that still needs a compiler."""

    name: str
    kind: str
    origin: str
    prefix: Path
    hip_version: str
    elsewhere: Elsewhere | None

    def with_first_of(self, compilers: Sequence[Path], reasons: Sequence[str]) -> Toolchain | tuple[str, ...]:
        """The toolchain with the first compiler that has all it needs; else reasons, and what the first one lacks."""
        complaints: list[str] = []
        include = self.prefix / "include"
        for clang in compilers:
            result = _with_compiler(clang, self.prefix, self.elsewhere)
            if isinstance(result, str):
                complaints.append(result)
            elif reasons:
                break
            else:
                version, text, bundler, device_libs = result
                text += (include / "hip/hip_version.h").read_text(errors="replace")
                return Toolchain(
                    name=self.name,
                    kind=self.kind,
                    origin=self.origin,
                    prefix=self.prefix,
                    clang=clang,
                    bundler=bundler,
                    readelf=tool_beside(clang, self.prefix, "llvm-readelf"),
                    objdump=tool_beside(clang, self.prefix, "llvm-objdump"),
                    include=include,
                    device_libs=device_libs,
                    hip_version=self.hip_version,
                    clang_version=version,
                    digest=hashlib.sha256(text.encode()).hexdigest(),
                    notes=mixing_notes(include, self.hip_version),
                )
        return (*reasons, *complaints[:1])


def _with_compiler(clang: Path, prefix: Path, elsewhere: Elsewhere | None) -> tuple[str, str, Path, Path] | str:
    """A compiler's version, its version text, its bundler and its device libraries; or what is wrong with it."""
    try:
        text = ask_version(clang)
    except RocmbuildError as err:
        return err.message
    match = re.search(r"clang version (\d+(?:\.\d+)*)", text)
    if not match:
        return f"{clang} does not answer as clang: {text.splitlines()[0] if text.strip() else 'no output'}"
    version = match.group(1)
    major = int(version.split(".")[0])
    if major < OLDEST_CLANG:
        return f"{clang} is clang {version}; {OLDEST_CLANG} or newer is needed"
    bundler = tool_beside(clang, prefix, "clang-offload-bundler")
    if bundler is None:
        return f"no clang-offload-bundler beside {clang}"
    if tool_beside(clang, prefix, "ld.lld") is None:
        return f"no ld.lld beside {clang}"
    device_libs = _device_libs(clang, prefix, major, elsewhere)
    if device_libs is None:
        return f"no device libraries ({', '.join(_BITCODE)}) for clang {major}"
    return version, text, bundler, device_libs


def _compilers(prefix: Path) -> list[Path]:
    """Every C++ driver that the known layouts of a prefix may have, in order of preference."""
    folders = [prefix / "lib/llvm/bin", prefix / "llvm/bin", prefix / "lib64/rocm/llvm/bin"]
    versioned = [*prefix.glob("lib/llvm-*/bin"), *prefix.glob("lib64/llvm*/bin")]
    folders += sorted(versioned, key=lambda path: numbers(path.parent.name), reverse=True)
    places = [folder / "clang++" for folder in folders]
    places += [prefix / "bin/clang++", prefix / "bin/x86_64-conda-linux-gnu-clang++"]
    found: dict[Path, Path] = {}
    for clang in places:
        if clang.is_file() and os.access(clang, os.X_OK):
            found.setdefault(clang.resolve().with_name("clang++"), clang)
    return list(found.values())


def tool_beside(clang: Path, prefix: Path, name: str) -> Path | None:
    """A tool of the compiler's installation; under the name of its own version too, as distributions link them."""
    folders = [clang.parent, clang.resolve().parent, prefix / "bin", prefix / "lib/llvm/bin", prefix / "llvm/bin"]
    suffix = re.search(r"-\d+$", clang.name)
    names = (name, f"{name}{suffix.group()}") if suffix else (name,)
    for path in (folder / each for folder in folders for each in names):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def _device_libs(clang: Path, prefix: Path, major: int, elsewhere: Elsewhere | None) -> Path | None:
    """The folder of bitcode libraries that fits the compiler: its resource folder's before a prefix-wide one."""
    resources = [clang.resolve().parent.parent / "lib/clang", prefix / "lib/clang", prefix / "lib64/clang"]
    places = [elsewhere.device_libs] if elsewhere and elsewhere.device_libs else []
    places += [root / str(major) / end for root in resources for end in ("amdgcn/bitcode", "lib/amdgcn/bitcode")]
    places += [clang.parent.parent / "amdgcn/bitcode", prefix / "amdgcn/bitcode", prefix / "lib/amdgcn/bitcode"]
    places += [prefix / "lib64/amdgcn/bitcode", prefix / "lib/x86_64-linux-gnu/amdgcn/bitcode"]
    return next((place for place in places if all((place / file).is_file() for file in _BITCODE)), None)


def read_hip_version(header: Path) -> str:
    """major.minor.patch as hip_version.h defines them; "" when it does not."""
    try:
        text = header.read_text(errors="replace")
    except OSError:
        return ""
    found = dict(re.findall(r"#\s*define\s+HIP_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", text))
    return ".".join(found[key] for key in ("MAJOR", "MINOR", "PATCH")) if len(found) == 3 else ""


def mixing_notes(include: Path, hip_version: str) -> tuple[str, ...]:
    """Headers of another HIP where every compiler looks: a project that names that folder mixes the two."""
    other = Path("/usr/include")
    if include.resolve() == other:
        return ()
    version = read_hip_version(other / "hip/hip_version.h")
    if not version or version == hip_version:
        return ()
    return (f"/usr/include/hip is HIP {version}, these headers are {hip_version}: -I/usr/include would mix them",)


def ask_version(clang: Path) -> str:
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


def numbers(text: str) -> tuple[int, ...]:
    """All numbers in a text, for sorting by version."""
    return tuple(int(number) for number in re.findall(r"\d+", text))
