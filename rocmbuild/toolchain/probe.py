"""What a toolchain can do, asked of the toolchain itself: nothing is concluded from a version.

Every answer is kept under the identity of the files that gave it, so that a compiler is asked once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocmbuild.errors import EnvironmentFailure, RocmbuildError
from rocmbuild.paths import cache_dir, write_atomic
from rocmbuild.process import run
from rocmbuild.targets import DECLARED, GENERIC, is_generic
from rocmbuild.toolchain.elf import read_code_object, read_dynamic
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.runtime import find_runtime
from rocmbuild.toolchain.stubs import is_stub

__all__ = ["Facts", "HipccFact", "RuntimeFact", "TargetFact", "probe", "probe_target", "runtimes_of", "uncompilable"]

_FORMAT = 1  # of the kept answers
_WAVE = 32
_KERNEL = """
typedef unsigned long size_t;
extern "C" __attribute__((device)) float __ocml_exp_f32(float);
extern "C" __attribute__((device)) size_t __ockl_get_global_id(unsigned);
extern "C" __attribute__((global)) void probe(float* y) {
  const size_t i = __ockl_get_global_id(0);
  y[i] = __ocml_exp_f32(y[i]);
}
"""
_WHOLE = """#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
__global__ void probe(float* y) { y[threadIdx.x] = expf(y[threadIdx.x]); }
"""
_BUNDLE_FORMATS = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFact:
    """Whether one target compiles, device libraries linked in.

    wave and code_object are read from the code object: the lanes of a wave, the code object version. reason: why it
    does not compile, or does and is no good; "" when it is good.
    """

    target: str
    wave: int = 0
    code_object: int = 0
    reason: str = ""

    @property
    def ok(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class HipccFact:
    """The hipcc of the toolchain. path "" when it has none; reason: why it does not run."""

    path: str = ""
    version: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFact:
    """A HIP runtime library. kind: "library", or "stub" for one to link against only; loads: in this interpreter."""

    path: str
    soname: str
    kind: str
    loads: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All answers of one toolchain.

    headers: "" when a source with HIP's headers compiles, device and host side; else why not. code_object: the version
    of code objects that it makes unasked. bundle_formats: those of compressed bundles that its bundler writes, first
    the one that it writes unasked; empty when it cannot compress. compression: "zstd" or "zlib".
    """

    name: str
    hip_version: str
    clang_version: str
    headers: str
    targets: tuple[TargetFact, ...]
    code_object: int
    bundle_formats: tuple[int, ...]
    compression: str
    hipcc: HipccFact
    runtimes: tuple[RuntimeFact, ...]

    def target(self, name: str) -> TargetFact | None:
        """The answer for one target."""
        return next((fact for fact in self.targets if fact.target == name), None)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def uncompilable(toolchain: Toolchain, targets: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(target, reason) of each target that the toolchain cannot compile for 32 lanes. A target is asked about once."""
    facts = (probe_target(toolchain, target) for target in targets)
    return tuple((fact.target, fact.reason) for fact in facts if not fact.ok)


def probe_target(toolchain: Toolchain, target: str, *, fresh: bool = False) -> TargetFact:
    """Compile one small kernel for one target and read the code object."""
    kept = _kept(toolchain, f"target-{target}")
    value = None if fresh else _recall(kept)
    if value is not None:
        with suppress(TypeError):
            return TargetFact(**value)
    with tempfile.TemporaryDirectory() as folder:
        fact = _compile(toolchain, target, Path(folder))
    _keep(kept, asdict(fact))
    return fact


def probe(toolchain: Toolchain, *, fresh: bool = False) -> Facts:
    """All facts of a toolchain. fresh: ask again, whatever is kept."""
    from concurrent.futures import ThreadPoolExecutor  # cold start: the build asks about single targets

    names = (*DECLARED, *GENERIC)
    with ThreadPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1)) as pool:
        targets = tuple(pool.map(lambda name: probe_target(toolchain, name, fresh=fresh), names))
    kept = _kept(toolchain, "facts")
    value = None if fresh else _recall(kept)
    if value is None:
        with tempfile.TemporaryDirectory() as folder:
            value = _ask(toolchain, Path(folder), targets)
        _keep(kept, value)
    return Facts(
        name=toolchain.name,
        hip_version=toolchain.hip_version,
        clang_version=toolchain.clang_version,
        headers=value["headers"],
        targets=targets,
        code_object=next((fact.code_object for fact in targets if fact.ok and not is_generic(fact.target)), 0),
        bundle_formats=tuple(value["bundle_formats"]),
        compression=value["compression"],
        hipcc=HipccFact(**value["hipcc"]),
        runtimes=runtimes_of(toolchain),  # another process may have installed one since
    )


def _ask(toolchain: Toolchain, folder: Path, targets: Sequence[TargetFact]) -> dict[str, Any]:
    good = next((fact.target for fact in targets if fact.ok), "")
    formats, compression = _bundles(toolchain, folder, good) if good else ((), "")
    return {
        "headers": _whole(toolchain, folder, good) if good else "no target compiles",
        "bundle_formats": list(formats),
        "compression": compression,
        "hipcc": asdict(_hipcc(toolchain)),
    }


def _device_words(toolchain: Toolchain, target: str, source: Path, output: Path) -> list[str | Path]:
    return [
        toolchain.clang,
        *("-x", "hip", "-c", source, "-o", output, "--offload-device-only", "--no-gpu-bundle-output"),
        *(f"--offload-arch={target}", "-mno-wavefrontsize64", "-O2", "-nogpuinc"),
        *(("-mcode-object-version=6",) if is_generic(target) else ()),
        f"--rocm-device-lib-path={toolchain.device_libs}",
    ]


def _compile(toolchain: Toolchain, target: str, folder: Path) -> TargetFact:
    source, output = folder / "probe.hip", folder / f"{target}.co"
    source.write_text(_KERNEL)
    done = run(_device_words(toolchain, target, source, output), what=f"compiling for {target}", env=_BARE, check=False)
    if done.returncode != 0 or not output.is_file():
        return TargetFact(target=target, reason=_first_error(done.output) or f"exit {done.returncode}")
    try:
        code = read_code_object(output)
    except RocmbuildError as err:
        return TargetFact(target=target, reason=err.message)
    reason = ""
    if code.target != target:
        reason = f"asked for {target}, the code object is for {code.target}"
    elif code.waves != (_WAVE,):
        reason = f"its kernels have waves of {', '.join(map(str, code.waves)) or 'no'} lanes, wanted {_WAVE}"
    wave = code.waves[0] if len(code.waves) == 1 else 0
    return TargetFact(target=target, wave=wave, code_object=code.version, reason=reason)


def _whole(toolchain: Toolchain, folder: Path, target: str) -> str:
    source = folder / "whole.hip"
    source.write_text(_WHOLE)
    words: list[str | Path] = ["-x", "hip", "-c", source, "-o", folder / "whole.o", "-O1", "-fPIC"]
    words.append(f"--offload-arch={target}")
    command: list[str | Path] = [toolchain.clang, *words, *toolchain.compile_flags()]
    done = run(command, what="compiling with HIP's headers", env=_BARE, check=False)
    return "" if done.returncode == 0 else _first_error(done.output) or f"exit {done.returncode}"


def _bundles(toolchain: Toolchain, folder: Path, target: str) -> tuple[tuple[int, ...], str]:
    """Formats of compressed bundles, the default first, and the method, read from what the bundler writes."""
    source, code = folder / "probe.hip", folder / "bundled.co"
    source.write_text(_KERNEL)
    run(_device_words(toolchain, target, source, code), what=f"compiling for {target}", env=_BARE, check=False)
    found: list[int] = []
    method = ""
    for wanted in ("", *map(str, _BUNDLE_FORMATS)):
        output = folder / f"bundle{wanted}.hipfb"
        words: list[str | Path] = [
            *(toolchain.bundler, "-type=o", "-bundle-align=4096", "-compress"),
            f"-targets=host-x86_64-unknown-linux-gnu-,hipv4-amdgcn-amd-amdhsa--{target}",
            *("-input=/dev/null", f"-input={code}", f"-output={output}"),
        ]
        env = {**_BARE, **({"COMPRESSED_BUNDLE_FORMAT_VERSION": wanted} if wanted else {})}
        done = run(words, what="bundling", env=env, check=False)
        head = output.read_bytes()[:8] if done.returncode == 0 and output.is_file() else b""
        if head[:4] == b"CCOB":
            version = int.from_bytes(head[4:6], "little")
            method = method or ("zstd" if int.from_bytes(head[6:8], "little") else "zlib")
            if version not in found and (not wanted or version == int(wanted)):
                found.append(version)
    return tuple(found), method


def _hipcc(toolchain: Toolchain) -> HipccFact:
    path = toolchain.prefix / "bin/hipcc"
    if not path.is_file():
        return HipccFact(reason="it has none; clang++ compiles HIP by itself")
    try:
        done = run([path, "--version"], what="hipcc", timeout=60, check=False)
    except EnvironmentFailure as err:
        return HipccFact(path=str(path), reason=err.message)
    lines = done.output.splitlines()
    if done.returncode != 0:
        return HipccFact(path=str(path), reason=_first_error(done.output) or f"exit {done.returncode}")
    return HipccFact(path=str(path), version=next((line for line in lines if "version" in line), lines[0]))


def runtimes_of(toolchain: Toolchain) -> tuple[RuntimeFact, ...]:
    """The runtime libraries that belong to a toolchain, that were installed for tests, and that the system offers."""
    prefix = toolchain.prefix
    folders = [prefix / name for name in ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/rocm")]
    paths = [path for folder in folders for path in sorted(folder.glob("libamdhip64.so*"))]
    found: dict[Path, RuntimeFact] = {}
    for path in paths:
        real = path.resolve()
        if real not in found and real.is_file():
            found[real] = _runtime(real)
    managed = find_runtime()
    if managed is not None:
        done = run(managed.command(["-c", _LOAD, str(managed.library())]), what="loading", timeout=120, check=False)
        how = " (under its own, newer loader)" if managed.loader else ""
        found[managed.library()] = RuntimeFact(
            path=str(managed.library()),
            soname=managed.soname,
            kind=f"library{how}",
            loads=done.returncode == 0,
            reason="" if done.returncode == 0 else _last(done.output),
        )
    return tuple(found.values())


_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def _runtime(path: Path) -> RuntimeFact:
    dynamic = read_dynamic(path)
    soname = dynamic.soname if dynamic else ""
    if is_stub(path):
        return RuntimeFact(
            path=str(path), soname=soname, kind="stub", loads=False, reason="for linking only: it has no code"
        )
    done = run([sys.executable, "-c", _LOAD, path], what=f"loading {path.name}", timeout=120, check=False)
    reason = "" if done.returncode == 0 else _last(done.output)
    return RuntimeFact(path=str(path), soname=soname, kind="library", loads=done.returncode == 0, reason=reason)


_BARE = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def _first_error(text: str) -> str:
    """The first line of a compiler's output that tells what is wrong."""
    lines = [line for line in text.splitlines() if "error" in line]
    return (lines or text.splitlines() or [""])[0].strip()[:300]


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _kept(toolchain: Toolchain, what: str) -> Path:
    """Where an answer is kept: named after all files that it came from."""
    state = hashlib.sha256(f"{_FORMAT}\0{toolchain.digest}\0{what}".encode())
    hipcc = toolchain.prefix / "bin/hipcc"
    for path in (
        toolchain.clang,
        toolchain.bundler,
        toolchain.device_libs / "ockl.bc",
        toolchain.include / "hip",
        hipcc,
    ):
        with suppress(OSError):
            status = path.resolve().stat()
            state.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return cache_dir() / "probes" / f"{what}-{state.hexdigest()[:24]}.json"


def _recall(path: Path) -> Any:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _keep(path: Path, value: Mapping[str, Any]) -> None:
    with suppress(OSError):  # an answer that cannot be kept is asked for again
        write_atomic(path, json.dumps(value).encode())
