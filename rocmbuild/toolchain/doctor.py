"""What is wrong with this machine as a place to build for Radeon: a list of checks, each with its next step.

Each check looks at one thing and says pass, warn or fail: fail for what makes builds stop or come out wrong, warn for
what will surprise somebody. Nothing is changed, nothing is imported from torch, no card is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rocmbuild.errors import EnvironmentFailure, InputError, RocmbuildError
from rocmbuild.paths import cache_dir, data_dir
from rocmbuild.process import run
from rocmbuild.targets import ARCH_ENV, DECLARED, GENERIC, injected_flags, native_targets
from rocmbuild.toolchain.discover import candidates, find_toolchain
from rocmbuild.toolchain.elf import read_dynamic
from rocmbuild.toolchain.layouts import read_hip_version
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.probe import Facts, probe, runtimes_of
from rocmbuild.toolchain.torch_sdk import find_torch_sdk, torch_build

__all__ = ["Check", "examine", "healthy"]

Status = Literal["pass", "warn", "fail"]

_NEEDED_SPACE = 1 << 30  # of an install while it unpacks
_LOW_SPACE = 4 << 30
_CHAR6 = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._"
_MIXED = """#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the list. step: what to do next; "" for nothing."""

    name: str
    status: Status
    text: str
    step: str = ""

    def to_json(self) -> dict[str, str]:
        """As plain JSON values."""
        return asdict(self)


def healthy(checks: Iterable[Check]) -> bool:
    """Whether no check failed."""
    return all(check.status != "fail" for check in checks)


def examine(
    environ: Mapping[str, str],
    *,
    spec: str | None = None,
    path: Sequence[str] | None = None,
    root: Path = Path("/"),
) -> tuple[Check, ...]:
    """All checks, in the order in which their answers matter.

    spec: the toolchain that is asked for, as find_toolchain takes it. path: where torch is looked for (default: this
    interpreter's). root: the root folder whose ROCm places are compared.
    """
    site = sys.path if path is None else path
    found: list[Check] = []
    toolchain: Toolchain | None = None
    try:
        toolchain = find_toolchain(spec=spec, environ=environ)
    except RocmbuildError as err:
        found.append(_fail("toolchain", err.message, err.hint))
    else:
        text = f"{toolchain.name}: HIP {toolchain.hip_version}, clang {toolchain.clang_version} ({toolchain.origin})"
        found.append(_pass("toolchain", text))
    found += _places(environ, spec, root)
    if toolchain is not None:
        facts = probe(toolchain)
        for check in (_headers, _targets, _versions, _hipconfig, _mixed, _runtime):
            found.append(_guarded(check, toolchain, facts, environ))
    found += _variables(environ)
    found += [_card(toolchain), *_torch(site, toolchain), _sdk(site), _cxx(environ), *_space()]
    return tuple(found)


def _guarded(
    check: Callable[[Toolchain, Facts, Mapping[str, str]], Check],
    toolchain: Toolchain,
    facts: Facts,
    environ: Mapping[str, str],
) -> Check:
    try:
        return check(toolchain, facts, environ)
    except EnvironmentFailure as err:
        return _fail(check.__name__.strip("_"), err.message, err.hint)


def _pass(name: str, text: str) -> Check:
    return Check(name=name, status="pass", text=text)


def _warn(name: str, text: str, step: str) -> Check:
    return Check(name=name, status="warn", text=text, step=step)


def _fail(name: str, text: str, step: str) -> Check:
    return Check(name=name, status="fail", text=text, step=step)


def _places(environ: Mapping[str, str], spec: str | None, root: Path) -> list[Check]:
    """Variables and folders that look like a ROCm and are none."""
    found = []
    for candidate in candidates(environ, spec if spec and "/" in spec else None, root=root):
        if candidate.toolchain is None and not candidate.binding and candidate.kind != "llvm":
            step = "repair it, or take it away so that nobody takes it for a ROCm"
            found.append(_warn(f"place {candidate.name}", candidate.describe(), step))
    named = {name: environ[name] for name in ("ROCM_HOME", "ROCM_PATH", "HIP_PATH") if environ.get(name, "").strip()}
    real = {os.path.realpath(value) for value in named.values()}
    if len(real) > 1:
        text = ", ".join(f"{name}={value}" for name, value in named.items())
        found.append(_warn("variables apart", f"they name different places: {text}", "let all of them name one ROCm"))
    return found


def _headers(toolchain: Toolchain, facts: Facts, environ: Mapping[str, str]) -> Check:
    if not facts.headers:
        return _pass("headers", f"a kernel compiles with {toolchain.include}/hip, device and host side")
    step = "the lines of the compiler tell more; g++ and its headers are needed too (package g++)"
    return _fail("headers", f"a kernel with HIP's headers does not compile: {facts.headers}", step)


def _targets(toolchain: Toolchain, facts: Facts, environ: Mapping[str, str]) -> Check:
    bad = [fact for fact in facts.targets if not fact.ok]
    declared = [fact for fact in bad if fact.target in DECLARED]
    if not bad:
        text = f"{len(DECLARED)} targets and {len(GENERIC)} generic ones compile, each for waves of 32 lanes"
        return _pass("device libraries", text)
    listed = "; ".join(f"{fact.target}: {fact.reason}" for fact in bad)
    step = "builds for these targets will be refused; a newer toolchain has them: rocmbuild toolchain install"
    if len(declared) == len(DECLARED):
        return _fail("device libraries", f"no target compiles. {listed}", step)
    return _warn("device libraries", listed, step)


def _versions(toolchain: Toolchain, facts: Facts, environ: Mapping[str, str]) -> Check:
    """Compiler, device libraries and headers of one release, as far as they say which they are of."""
    libs = _bitcode_version(toolchain.device_libs / "ocml.bc")
    clang = toolchain.clang_version.split(".")[0]
    told = f"headers HIP {toolchain.hip_version}, clang {toolchain.clang_version}"
    told += f", device libraries of LLVM {libs}" if libs else ""
    release = _release_of(toolchain.prefix)
    if release and release.split(".")[:2] != toolchain.hip_version.split(".")[:2]:
        text = f"{toolchain.prefix} calls itself ROCm {release}, its headers are HIP {toolchain.hip_version}"
        return _fail("versions apart", text, "install one ROCm whole, in a folder of its own")
    if libs and int(libs.split(".")[0]) > int(clang):
        text = f"the device libraries are newer than the compiler: {told}"
        return _fail("versions apart", text, "take compiler and device libraries of one release")
    if libs and libs.split(".")[0] != clang:
        text = f"compiler and device libraries are of different releases: {told}"
        return _warn("versions apart", text, "take compiler and device libraries of one release")
    return _pass("versions apart", told)


def _release_of(prefix: Path) -> str:
    for name in (".info/version", "share/hip/version"):
        try:
            text = (prefix / name).read_text(errors="replace")
        except OSError:
            continue
        parts = dict(re.findall(r"HIP_VERSION_(MAJOR|MINOR)\s*=\s*(\d+)", text))
        if len(parts) == 2:
            return f"{parts['MAJOR']}.{parts['MINOR']}"
        match = re.match(r"\s*(\d+\.\d+[\d.]*)", text)
        if match:
            return match.group(1).rstrip(".")
    return ""


def _bitcode_version(path: Path) -> str:
    """The LLVM that a bitcode file names as its producer, as "22.1.8"; "" where it cannot be told.

    The identification block (LLVM's "Bitcode File Format") holds it as a record of 6-bit characters at any bit.
    """
    try:
        with path.open("rb") as file:
            bits = int.from_bytes(file.read(256), "little")
    except OSError:
        return ""
    mark = sum(_CHAR6.index(char) << (6 * place) for place, char in enumerate("LLVM"))
    for offset in range(32, 1024):
        if (bits >> offset) & 0xFFFFFF == mark:
            text = "".join(_CHAR6[(bits >> (offset + 6 * place)) & 63] for place in range(4, 16))
            match = re.match(r"\d+(?:\.\d+)*", text)
            return match.group().rstrip(".") if match else ""
    return ""


def _hipconfig(toolchain: Toolchain, facts: Facts, environ: Mapping[str, str]) -> Check:
    """Every hipconfig within reach says what the headers say."""
    own = toolchain.prefix / "bin/hipconfig"
    on_path = shutil.which("hipconfig", path=environ.get("PATH", ""))
    said = []
    for program in dict.fromkeys([*([str(own)] if own.is_file() else []), *([on_path] if on_path else [])]):
        done = run([program, "--version"], what="hipconfig", check=False, timeout=60)
        version = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        if done.returncode != 0 or not re.match(r"\d", version):
            step = "it is no reason not to build: rocmbuild never asks it"
            return _warn("hipconfig", f"{program} does not run: {done.output.splitlines()[-1:] or ['no output']}", step)
        if version.split(".")[:2] != toolchain.hip_version.split(".")[:2]:
            text = f"{program} says {version}, the headers that are used say {toolchain.hip_version}"
            return _warn("hipconfig", text, 'eval "$(rocmbuild toolchain env)" puts the right one first on PATH')
        said.append(program)
    if facts.hipcc.reason and facts.hipcc.path:
        return _warn("hipconfig", f"hipcc does not run: {facts.hipcc.reason}", "clang++ is used instead")
    return _pass("hipconfig", f"agrees with the headers ({', '.join(said)})" if said else "none is here or needed")


def _mixed(toolchain: Toolchain, facts: Facts, environ: Mapping[str, str]) -> Check:
    """Where the compiler really takes each HIP header from, in this very environment."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "mixed.hip"
        source.write_text(_MIXED)
        words: list[str | Path] = [
            "-x",
            "hip",
            source,
            "-M",
            "--offload-host-only",
            "--offload-arch=gfx1201",
            "-Wno-everything",
        ]
        env = {key: value for key, value in environ.items() if not key.startswith("CCC_")}
        command: list[str | Path] = [toolchain.clang, *words, *toolchain.compile_flags()]
        done = run(command, what="asking where headers are", env=env, check=False)
    roots: dict[Path, str] = {}
    for word in re.findall(r"(\S+)/hip/hip_(?:runtime|version|bf16|fp16|runtime_api|common)\.h\b", done.stdout):
        root = Path(word.replace("\\", ""))
        roots.setdefault(root.resolve() if root.exists() else root, read_hip_version(root / "hip/hip_version.h"))
    own = toolchain.include.resolve()
    others = {root: version for root, version in roots.items() if root != own}
    if others:
        listed = ", ".join(f"{root}/hip (HIP {version or 'unknown'})" for root, version in others.items())
        text = f"HIP headers come from {listed} and are mixed with {own}/hip (HIP {toolchain.hip_version})"
        variables = [name for name in ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH") if environ.get(name)]
        step = f"unset {' '.join(variables)}" if variables else "remove the other HIP's headers (libamdhip64-dev)"
        return _fail("mixed headers", text, step)
    if done.returncode != 0 and not roots:
        return _fail("mixed headers", f"HIP's headers are not found: {done.output.splitlines()[:1]}", "see headers")
    if toolchain.notes:
        step = "let no build name that folder with -I or -isystem, or remove the package (libamdhip64-dev)"
        return _warn("mixed headers", "; ".join(toolchain.notes), step)
    return _pass("mixed headers", f"every HIP header comes from {own}")


def _runtime(toolchain: Toolchain, facts: Facts, environ: Mapping[str, str]) -> Check:
    """Whether the HIP runtime could be loaded here: building needs none."""
    own = ".".join(re.findall(r"\d+", os.confstr("CS_GNU_LIBC_VERSION") or ""))
    real = [fact for fact in runtimes_of(toolchain) if fact.kind != "stub"]
    if any(fact.loads for fact in real):
        fact = next(fact for fact in real if fact.loads)
        return _pass("runtime", f"{fact.soname} loads: {fact.path}, {fact.kind}")
    for fact in real:
        dynamic = read_dynamic(Path(fact.path))
        wanted = dynamic.newest("GLIBC") if dynamic else ()
        if wanted and wanted > tuple(map(int, own.split("."))):
            newer = ".".join(map(str, wanted))
            text = f"{fact.path} wants glibc {newer}, this machine has {own}: it links, it does not run"
            return _warn("runtime", text, "rocmbuild toolchain install runtime brings one with a loader of its own")
        return _warn("runtime", f"{fact.path} does not load: {fact.reason}", "building does not need it; running does")
    text = "none is here; building needs none"
    return Check(
        name="runtime",
        status="pass",
        text=text,
        step="to test device libraries without a card: rocmbuild toolchain install runtime",
    )


def _variables(environ: Mapping[str, str]) -> list[Check]:
    found = [
        Check(
            name=flag.variable,
            status="fail" if flag.severity == "error" else "warn",
            text=flag.message,
            step=flag.hint,
        )
        for flag in injected_flags(environ)
    ]
    return found or [_pass("environment", "no variable injects targets or flags")]


def _card(toolchain: Toolchain | None) -> Check:
    try:
        names = native_targets()
    except EnvironmentFailure as err:
        return _warn("card", err.message, f"name the target: {ARCH_ENV}=...")
    if not names:
        text = "no AMD card is here; none is needed to build"
        return Check(name="card", status="pass", text=text, step="`native` cannot be used as a target here")
    strange = [name for name in names if name not in DECLARED]
    if strange:
        text = f"cards of this machine: {', '.join(names)}; not among the declared targets: {', '.join(strange)}"
        return _warn("card", text, "wheels that are built will not run on these cards")
    return _pass("card", f"cards of this machine: {', '.join(names)}")


def _torch(path: Sequence[str], toolchain: Toolchain | None) -> list[Check]:
    """The torch of this environment, from the text of torch/version.py."""
    build = torch_build(path)
    if build is None:
        return [_pass("torch", "none is in this environment; builds take the headers of the torch SDK")]
    return [_torch_kind(build.version, build.cuda, build.hip, toolchain)]


def _torch_kind(version: str, cuda: str, hip: str, toolchain: Toolchain | None) -> Check:
    if hip and toolchain is not None:
        same = hip.split(".")[:2] == toolchain.hip_version.split(".")[:2]
        told = f"torch {version} was built with HIP {hip}, the toolchain is HIP {toolchain.hip_version}"
        if same:
            return _pass("torch", told)
        step = "take a toolchain of the same major version, best of the same release: toolchain = "
        step += f'"~={".".join(hip.split(".")[:2])}"'
        return _warn("torch", told, step)
    if hip:
        return _pass("torch", f"torch {version} was built with HIP {hip}")
    if cuda:
        text = f"torch {version} is a build for CUDA {cuda}: wheels build, but on it the host library serves alone"
        return _warn("torch", text, "to run on a Radeon install a ROCm build of torch; the build itself needs no torch")
    text = f"torch {version} is a CPU build: wheels build, and on it the host library serves alone"
    return Check(name="torch", status="pass", text=text, step="to run on a Radeon install a ROCm build of torch")


def _sdk(path: Sequence[str]) -> Check:
    try:
        sdk = find_torch_sdk(path=path)
    except (EnvironmentFailure, InputError) as err:
        return _warn("torch SDK", err.message, err.hint)
    return _pass("torch SDK", f"torch {sdk.version} ({sdk.origin})")


def _cxx(environ: Mapping[str, str]) -> Check:
    wanted = environ.get("CXX", "").strip()
    names = [wanted] if wanted else ["g++", "c++", "clang++"]
    found = next(filter(None, (shutil.which(name, path=environ.get("PATH")) for name in names)), None)
    if found is None:
        text = f"CXX={wanted}: no such program" if wanted else "neither g++ nor c++ is on PATH"
        return _fail("C++ compiler", text, "apt-get install g++, or set CXX")
    done = run([found, "--version"], what=found, check=False, timeout=60)
    return _pass("C++ compiler", (done.stdout.splitlines() or [found])[0])


def _space() -> list[Check]:
    found = []
    for name, folder in (("data", data_dir()), ("cache", cache_dir())):
        place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(place).free
        text = f"{free / 1e9:.1f} GB free for {name} in {folder}"
        variable = f"ROCMBUILD_{name.upper()}_DIR"
        if not os.access(place, os.W_OK):
            found.append(_fail("disk space", f"{folder} cannot be written", f"set {variable} to another folder"))
        elif free < _NEEDED_SPACE:
            found.append(_fail("disk space", text, f"free some, or set {variable} to a folder on another disk"))
        elif free < _LOW_SPACE:
            found.append(_warn("disk space", text, f"an install needs 1 GB; {variable} names another folder"))
        else:
            found.append(_pass("disk space", text))
    return found
