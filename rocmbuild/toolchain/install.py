"""Installs a toolchain without root, from Debian packages whose signatures apt has checked.

The compiler is that of the machine's own release, so that glibc fits it; HIP's headers and device libraries come from
the newest suite where they fit a compiler that is there. What the compiler needs beyond glibc and the C++ runtime goes
into the prefix, and the compiler looks there first: it runs on a machine that has none of it, and needs no
environment.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.console import Progress
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import run
from rocmbuild.toolchain.debian import Apt, Available, Dependency, codename_of, machine_sources, plan_sources, upstream
from rocmbuild.toolchain.discover import OLDEST_CLANG, OLDEST_HIP, inspect_prefix, managed_toolchain, toolchains_dir
from rocmbuild.toolchain.elf import read_dynamic, runpath_to_rpath
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.packages import SYSTEM_LIBRARIES, Unpacked
from rocmbuild.toolchain.store import Entry, entries, locked, publish, remove, system_errors, work

__all__ = [
    "NEWER_SUITES",
    "Choice",
    "Steps",
    "choose_set",
    "install_debian",
    "listed_packages",
    "open_archive",
    "remove_toolchain",
]

NEWER_SUITES = ("experimental", "sid")
"""Where HIP is taken from, unless a suite is named."""

_TRIPLE = "x86_64-linux-gnu"
_TOOLS = (
    "amdgpu-arch clang clang++ clang-cpp clang-linker-wrapper clang-offload-bundler clang-offload-packager "
    "clang-scan-deps ld.lld lld llc llvm-addr2line llvm-ar llvm-as llvm-bcanalyzer llvm-cxxfilt llvm-dis llvm- "
    "dwarfdump llvm-extract llvm-link llvm-mc llvm-nm llvm-objcopy llvm-objdump llvm-offload-binary llvm- "
    "offload-wrapper llvm-profdata llvm-ranlib llvm-readelf llvm-readobj llvm-size llvm-strip llvm-symbolizer "
    "offload-arch opt"
)
_PROBE = """#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <cmath>
__global__ void scale(float* y, const float* x, float a) { y[threadIdx.x] = std::sqrt(x[threadIdx.x]) * a; }
"""
_PROBE_TARGET = "gfx1201"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Packages that belong together. llvm: the compiler's major version."""

    llvm: int
    compiler: Available
    hip: Available
    device_libs: Available


def choose_set(
    *, hip: Sequence[Available], device_libs: Sequence[Available], compilers: Sequence[Available], own: Sequence[str]
) -> Choice:
    """The newest HIP whose device libraries fit a compiler of the machine's own release.

    Device libraries fit a compiler by the major version in their name, and headers by their release (major.minor) or,
    failing that, by coming from the same suite. Raises EnvironmentFailure that says what there is.
    """
    newest: dict[int, Available] = {}
    for compiler in compilers:
        major = int(compiler.name.rsplit("-", 1)[1])
        if compiler.suite in own and major >= OLDEST_CLANG:
            newest.setdefault(major, compiler)
    fitting = []
    for headers in hip:
        release = upstream(headers.version)
        if not release or release[0] < OLDEST_HIP:
            continue
        for libs in device_libs:
            major = int(libs.name.rsplit("-", 1)[1])
            same = upstream(libs.version)[:2] == release[:2]
            if major in newest and (same or libs.suite == headers.suite):
                choice = Choice(llvm=major, compiler=newest[major], hip=headers, device_libs=libs)
                fitting.append(((release, same, major), choice))
    if not fitting:
        there = [f"{package.name} {package.version} ({package.suite})" for package in (*hip, *device_libs)]
        listed = ", ".join(f"{package.name} ({package.suite})" for package in newest.values()) or "none"
        raise EnvironmentFailure(
            f"no HIP fits a compiler of this release.\n  compilers (clang {OLDEST_CLANG} or newer, suites "
            f"{', '.join(own)}): {listed}\n  HIP and device libraries: {', '.join(there) or 'none'}",
            hint="add the release's security suite, which has the newer compilers, to apt's source entries",
        )
    return max(fitting, key=lambda pair: pair[0])[1]


def install_debian(suite: str | None = None, *, force: bool = False, quiet: bool = False) -> Toolchain:
    """Install a toolchain from Debian packages into the managed store, or return the one that is there.

    suite: take HIP from this suite alone. force: look at the archive again and install what it has now. The folder
    appears whole or not at all; processes that install at once do it once. Raises EnvironmentFailure.
    """
    request = {"provider": "debian", "suite": suite}
    present = None if force else _present(request)
    if present is not None:
        return present
    store = toolchains_dir()
    with locked(store, what="installing a toolchain"), system_errors("installing a toolchain"):
        present = None if force else _present(request)  # another process may have done it while this one waited
        if present is not None:
            return present
        with work(store) as folder, Progress("toolchain", enabled=not quiet) as progress:
            steps = Steps(progress)
            entry = _build(store, folder, request, steps)
    return managed_toolchain(entry)


def remove_toolchain(name: str) -> None:
    """Take a managed toolchain away. Raises InputError for an unknown name."""
    remove(toolchains_dir(), name)


class Steps:
    """Counts what is reported, for the progress line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0

    def __call__(self, text: str) -> None:
        self._done += 1
        self._progress.update(self._done, 0, text)


def _present(request: Mapping[str, str | None]) -> Toolchain | None:
    for entry in entries(toolchains_dir()):
        if entry.kind == "toolchain" and entry.facts.get("request") == dict(request):
            return managed_toolchain(entry)
    return None


def open_archive(folder: Path, newer: Sequence[str], report: Callable[[str], None]) -> Apt:
    """apt in folder, on this machine's mirror and keys, its lists read."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError as err:
        raise EnvironmentFailure(f"/etc/os-release: cannot be read ({err.strerror})") from err
    sources = plan_sources(machine_sources(), codename=codename_of(text), newer=newer)
    apt = Apt(folder, sources)
    report(f"reading the package lists of {', '.join(dict.fromkeys([*sources.own, *sources.newer]))}")
    apt.update()
    return apt


def _build(store: Path, folder: Path, request: Mapping[str, str | None], report: Callable[[str], None]) -> Entry:
    suite = request["suite"]
    newer = (suite,) if suite else NEWER_SUITES
    apt = open_archive(folder / "apt", newer, report)
    choice = _choose(apt, newer)
    unpacked = Unpacked(apt, folder / "packages", report=report)
    unpacked.add(_seeds(apt, choice))
    unpacked.add(_hip_library(apt, unpacked, choice))
    tree = folder / "tree"
    _lay_out(unpacked, choice, apt, tree)
    unpacked.copyrights(tree / "share/doc")
    report("compiling a kernel with it")
    found = inspect_prefix(tree, name="new", kind="managed", origin="install")
    if not isinstance(found, Toolchain):
        raise EnvironmentFailure(f"the packages do not make a whole toolchain: {'; '.join(found)}")
    _try(found, folder)
    release = ".".join(map(str, upstream(choice.hip.version)))
    facts = {
        "request": dict(request),
        "hip_version": found.hip_version,
        "clang_version": found.clang_version,
        "rocm_release": release,
        "packages": listed_packages(unpacked),
        "paths": _paths(found, tree),
    }
    name = f"debian-{release}-llvm{choice.llvm}"
    if suite:
        name = f"{name}-{suite}"
    report(f"installing {name}")
    return publish(store, tree, name=name, kind="toolchain", facts=facts)


def listed_packages(unpacked: Unpacked) -> list[dict[str, str]]:
    """What was taken, for the manifest and for installing the same elsewhere."""
    from rocmbuild.toolchain.store import sha256_of

    return [
        {"name": name, "version": package.version, "suite": package.suite, "sha256": sha256_of(package.file)}
        for name, package in sorted(unpacked.packages.items())
    ]


def _paths(toolchain: Toolchain, tree: Path) -> dict[str, str]:
    named = {
        "clang": toolchain.clang,
        "bundler": toolchain.bundler,
        "readelf": toolchain.readelf,
        "objdump": toolchain.objdump,
        "include": toolchain.include,
        "device_libs": toolchain.device_libs,
    }
    return {key: path.relative_to(tree).as_posix() if path else "" for key, path in named.items()}


def _choose(apt: Apt, newer: Sequence[str]) -> Choice:
    device_names = [name for name in apt.names("rocm-device-libs-") if name.rsplit("-", 1)[1].isdigit()]
    compiler_names = [f"clang-{name.rsplit('-', 1)[1]}" for name in device_names]
    offered = apt.available(["libamdhip64-dev", *device_names, *compiler_names])
    return choose_set(
        hip=[package for package in offered["libamdhip64-dev"] if package.suite in newer],
        device_libs=[package for name in device_names for package in offered[name] if package.suite in newer],
        compilers=[package for name in compiler_names for package in offered[name]],
        own=apt.sources.own,
    )


def _seeds(apt: Apt, choice: Choice) -> list[Available]:
    """The packages that are named; libraries follow by need. One LLVM version throughout."""
    names = [f"{stem}-{choice.llvm}" for stem in ("clang", "clang-tools", "lld", "llvm")]
    names.append(f"libclang-common-{choice.llvm}-dev")
    offered = apt.available(names)
    seeds = [choice.hip, choice.device_libs]
    for name in names:
        same = [package for package in offered[name] if package.version == choice.compiler.version]
        if not same:
            raise EnvironmentFailure(
                f"{name} {choice.compiler.version}, which goes with {choice.compiler.name}, is missing"
            )
        seeds.append(same[0])
    return seeds


def _hip_library(apt: Apt, unpacked: Unpacked, choice: Choice) -> list[Available]:
    """The HIP library that the headers belong to, for linking; nothing here runs it."""
    depends = unpacked.packages[choice.hip.name].depends
    names = [group[0].name for group in depends if re.fullmatch(r"libamdhip64-\d+", group[0].name)]
    return [
        package
        for offered in apt.available(names).values()
        for package in offered
        if package.version == choice.hip.version
    ]


def _own_release(apt: Apt) -> Callable[[Dependency], Available | None]:
    """Chooses the newest version in the machine's own release, never the C and C++ runtimes."""
    known: dict[str, Available | None] = {}

    def choose(dependency: Dependency) -> Available | None:
        name = dependency.name
        if name in ("libc6", "libgcc-s1", "libstdc++6"):
            return None
        if name not in known:
            offered = apt.available([name])[name]
            known[name] = next((package for package in offered if package.suite in apt.sources.own), None)
        return known[name]

    return choose


def _lay_out(unpacked: Unpacked, choice: Choice, apt: Apt, tree: Path) -> None:
    """Make a folder like /opt/rocm from the unpacked packages: what compiles, links, bundles and reads, and no more."""
    usr = unpacked.root / "usr"
    source = usr / f"lib/llvm-{choice.llvm}"
    llvm = tree / "lib/llvm"
    tools = _copy_tools(source / "bin", llvm / "bin")
    shutil.copytree(source / "lib/clang", llvm / "lib/clang", symlinks=True)
    owners = {**dict.fromkeys(tools, f"clang-{choice.llvm}"), **_owners(tools, choice.llvm)}
    needed = unpacked.closure(
        [(llvm / "bin" / tool, owner) for tool, owner in owners.items()],
        choose=_own_release(apt),
        provided=SYSTEM_LIBRARIES,
    )
    for soname, library in needed.items():
        shutil.copy2(library, llvm / "lib" / soname)
    for path in [*(llvm / "bin" / tool for tool in tools), *(llvm / "lib" / soname for soname in needed)]:
        _hold_own_libraries(path)
    _copy_hip(usr, tree)
    _link_like_rocm(tree, choice.llvm)


def _copy_tools(source: Path, target: Path) -> list[str]:
    """Copy the tools that are kept, links as links; return the real files' names."""
    target.mkdir(parents=True)
    real = []
    pending = _TOOLS.split()
    done: set[str] = set()
    while pending:
        name = pending.pop()
        path = source / name
        if name in done or not path.exists():
            continue
        done.add(name)
        if path.is_symlink():
            link = path.readlink()
            (target / name).symlink_to(link.name)
            pending.append(link.name)
        else:
            shutil.copy2(path, target / name)
            real.append(name)
    return sorted(real)


def _owners(tools: Sequence[str], llvm: int) -> dict[str, str]:
    """The package of each tool, so that its libraries are looked for among that package's dependencies."""
    stems = {"lld": f"lld-{llvm}", "clang-offload-bundler": f"clang-tools-{llvm}"}
    return {tool: stems.get(tool, f"clang-{llvm}" if tool == "clang" else f"llvm-{llvm}") for tool in tools}


def _hold_own_libraries(path: Path) -> None:
    dynamic = read_dynamic(path)
    if dynamic is not None and dynamic.runpath:
        path.chmod(path.stat().st_mode | 0o200)
        runpath_to_rpath(path)


def _copy_hip(usr: Path, tree: Path) -> None:
    shutil.copytree(usr / "include/hip", tree / "include/hip", symlinks=True)
    version = usr / "share/hip/version"
    if version.is_file():
        (tree / "share/hip").mkdir(parents=True)
        shutil.copyfile(version, tree / "share/hip/version")
    libraries = tree / "lib" / _TRIPLE
    libraries.mkdir(parents=True)
    for library in sorted((usr / "lib" / _TRIPLE).glob("libamdhip64.so*")):
        shutil.copy2(library, libraries / library.name, follow_symlinks=False)
        (tree / "lib" / library.name).symlink_to(f"{_TRIPLE}/{library.name}")
    cmake = usr / "lib" / _TRIPLE / "cmake"
    for folder in sorted(cmake.glob("hip*")) if cmake.is_dir() else []:
        shutil.copytree(folder, libraries / "cmake" / folder.name, symlinks=True)


def _link_like_rocm(tree: Path, llvm: int) -> None:
    """The names that tools expect below a ROCm folder."""
    libs = tree / f"lib/llvm/lib/clang/{llvm}/amdgcn"
    if libs.is_dir():
        (tree / "amdgcn").symlink_to(libs.relative_to(tree))
    (tree / "llvm").symlink_to("lib/llvm")
    binaries = tree / "bin"
    binaries.mkdir()
    for path in sorted((tree / "lib/llvm/bin").iterdir()):
        (binaries / path.name).symlink_to(f"../lib/llvm/bin/{path.name}")
    for name in ("clang", "clang++"):
        (binaries / f"amd{name}").symlink_to(f"../lib/llvm/bin/{name}")
    hipcc = binaries / "hipcc"
    hipcc.write_bytes(Path(__file__).with_name("hipcc.in").read_bytes())
    hipcc.chmod(0o755)


def _try(toolchain: Toolchain, folder: Path) -> None:
    """Compile a kernel, device and host side, in a bare environment. Raises EnvironmentFailure with its lines."""
    source = folder / "probe.hip"
    source.write_text(_PROBE)
    run(
        [
            toolchain.clang,
            *("-x", "hip", source, "-c", "-o", folder / "probe.o", f"--offload-arch={_PROBE_TARGET}"),
            *("-mno-wavefrontsize64", "-O2", "-fPIC"),
            *toolchain.compile_flags(),
        ],
        what="the new toolchain does not compile a HIP kernel",
        env={"PATH": "/usr/bin:/bin"},
        error=EnvironmentFailure,
        hint="g++ and its headers are needed (package g++); anything else is a fault of the packages",
    )
