"""Installs a toolchain without root, from Debian packages whose signatures apt has checked.

The compiler is that of the machine's own release, so that glibc fits it; HIP's headers and device libraries come from
the newest suite where they fit a compiler that is there. What the compiler needs beyond glibc and the C++ runtime goes
into the prefix, and the compiler looks there first: it runs on a machine that has none of it, and needs no
environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rocmbuild.console import Progress
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import run
from rocmbuild.toolchain.debian import Apt, Available, Dependency, codename_of, machine_sources, plan_sources, upstream
from rocmbuild.toolchain.discover import managed_toolchain, toolchains_dir
from rocmbuild.toolchain.layouts import OLDEST_CLANG, OLDEST_HIP, inspect_prefix
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.packages import Unpacked
from rocmbuild.toolchain.prefix import lay_out
from rocmbuild.toolchain.store import downloads, entries, locked, publish, system_errors, work

__all__ = [
    "EXTRAS",
    "LAYOUT",
    "NEWER_SUITES",
    "Choice",
    "Pin",
    "Steps",
    "choose_set",
    "install_debian",
    "listed_packages",
    "open_archive",
]

NEWER_SUITES = ("experimental", "sid")
"""Where HIP is taken from, unless a suite is named."""

LAYOUT = 2
"""Counts up when the same packages make another prefix: what an older rocmbuild installed is then installed anew."""

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "math": (
            *("librocthrust-dev", "librocprim-dev", "libhipcub-dev", "libhipblas-dev", "libhipblas-common-dev"),
            *("libhipblaslt-dev", "libhipsparse-dev", "libhipsolver-dev", "librocblas-dev", "librocsolver-dev"),
            *("librocrand-dev", "libhiprand-dev"),
        )
    }
)
"""Packages of headers by the name that asks for them; "math" is what torch's HIP headers include."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What a lock file fixes. packages: SHA-256 of each package's file by (name, version); release: the codename."""

    release: str
    packages: Mapping[tuple[str, str], str]


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


def install_debian(
    suite: str | None = None,
    *,
    extras: Sequence[str] = (),
    force: bool = False,
    quiet: bool = False,
    pin: Pin | None = None,
) -> Toolchain:
    """Install a toolchain from Debian packages into the managed store, or return the one that is there.

    suite: take HIP from this suite alone. extras: names of EXTRAS. force: look at the archive again and install what it
    has now. pin: these very packages and no others. The folder appears whole or not at all; processes that install at
    once do it once; what a killed one had fetched is not fetched again. Raises EnvironmentFailure.
    """
    request = {"provider": "debian", "suite": suite, "extras": sorted(extras), "layout": LAYOUT}
    present = None if force else _present(request, pin)
    if present is not None:
        return present
    store = toolchains_dir()
    what = "installing a toolchain"
    with locked(store, what=what), system_errors(what):
        present = None if force else _present(request, pin)  # another process may have done it while this one waited
        if present is not None:
            return present
        with (
            downloads(store) as fetched,
            work(store) as folder,
            Progress("toolchain", enabled=not quiet) as progress,
        ):
            tree, name, facts = _build(folder, fetched, request, Steps(progress), pin)
            progress.update(0, 0, f"installing {name}")
            entry = publish(store, tree, name=name, kind="toolchain", facts=facts)
    return managed_toolchain(entry)


class Steps:
    """Counts what is reported, for the progress line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0

    def __call__(self, text: str) -> None:
        self._done += 1
        self._progress.update(self._done, 0, text)

    def part(self, done: int, total: int) -> None:
        """Bytes of the present step."""
        self._progress.part(done, total)


def _present(request: Mapping[str, Any], pin: Pin | None) -> Toolchain | None:
    """An entry that answers a request: the same suite and layout, and at least the extras; for a pin the very set."""
    for entry in entries(toolchains_dir()):
        made = entry.facts.get("request")
        if entry.kind != "toolchain" or not isinstance(made, dict):
            continue
        if any(made.get(key) != request[key] for key in ("provider", "suite", "layout")):
            continue
        if not set(request["extras"]) <= set(made.get("extras", ())):
            continue
        digests = {package["sha256"] for package in entry.facts.get("packages", ())}
        if pin is None or digests == set(pin.packages.values()):
            return managed_toolchain(entry)
    return None


class _PinnedApt(Apt):
    """The archive as if it had nothing but the packages of a pin."""

    pin: Pin

    def available(self, names: Sequence[str]) -> dict[str, tuple[Available, ...]]:
        return {
            name: tuple(package for package in offered if (name, package.version) in self.pin.packages)
            for name, offered in super().available(names).items()
        }

    def check(self) -> None:
        """Raises EnvironmentFailure that names what the repository no longer has, or has with other contents."""
        offered = super().available([name for name, _ in self.pin.packages])
        gone = []
        for (name, version), sha256 in self.pin.packages.items():
            same = [package for package in offered[name] if package.version == version]
            if not same:
                now = ", ".join(f"{package.version} ({package.suite})" for package in offered[name]) or "none"
                gone.append(f"{name} {version}: not there any more; it has {now}")
            elif (archive := self.archives(same[:1])[0]).sha256 != sha256:
                gone.append(f"{name} {version}: its digest is {archive.sha256}, the lock file's {sha256}")
        if gone:
            listed = "".join(f"\n  - {line}" for line in gone)
            raise EnvironmentFailure(
                f"the repository does not have what the lock file names:{listed}",
                hint="install what it has now and lock that (`rocmbuild toolchain install`, then `lock`), "
                "or give apt a mirror that keeps old packages",
            )


def open_archive(folder: Path, newer: Sequence[str], report: Callable[[str], None], pin: Pin | None = None) -> Apt:
    """apt in folder, on this machine's mirror and keys, its lists read."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError as err:
        raise EnvironmentFailure(f"/etc/os-release: cannot be read ({err.strerror})") from err
    codename = codename_of(text)
    if pin is not None and pin.release != codename:
        raise EnvironmentFailure(
            f"the lock file was made on {pin.release}, and its compiler's packages are those of that release; "
            f"this machine is {codename}",
            hint="lock once for each release that builds",
        )
    sources = plan_sources(machine_sources(), codename=codename, newer=newer)
    if pin is None:
        apt = Apt(folder, sources)
    else:
        apt = _PinnedApt(folder, sources)
        apt.pin = pin
    report(f"reading the package lists of {', '.join(dict.fromkeys([*sources.own, *sources.newer]))}")
    apt.update()
    if isinstance(apt, _PinnedApt):
        apt.check()
    return apt


def _build(
    folder: Path, fetched: Path, request: Mapping[str, Any], report: Steps, pin: Pin | None
) -> tuple[Path, str, dict[str, Any]]:
    """Make the prefix in folder, which may take what it likes there; its place, name and facts."""
    suite = request["suite"]
    newer = (suite,) if suite else NEWER_SUITES
    apt = open_archive(folder / "apt", newer, report, pin)
    choice = _choose(apt, newer)
    math = [package for name in request["extras"] for package in _extra(apt, EXTRAS[name], choice, newer)]
    unpacked = Unpacked(apt, folder / "packages", report=report, archives=fetched, part=report.part)
    unpacked.add([*_seeds(apt, choice), *_hsa(apt, choice), *math])
    unpacked.add(_libraries(apt, unpacked))
    release = ".".join(map(str, upstream(choice.hip.version)))
    tree = folder / "tree"
    report("making one prefix of them")
    lay_out(
        unpacked,
        tree,
        llvm=choice.llvm,
        release=release,
        math=[package.name for package in math],
        choose=_own_release(apt),
    )
    unpacked.copyrights(tree / "share/doc")
    report("compiling a kernel with it")
    found = inspect_prefix(tree, name="new", kind="managed", origin="install")
    if not isinstance(found, Toolchain):
        raise EnvironmentFailure(f"the packages do not make a whole toolchain: {'; '.join(found)}")
    _try(found, folder)
    facts = {
        "request": dict(request),
        "hip_version": found.hip_version,
        "clang_version": found.clang_version,
        "rocm_release": release,
        "release": codename_of(Path("/etc/os-release").read_text(encoding="utf-8")),
        "packages": listed_packages(unpacked),
        "download_bytes": sum(package.size for package in unpacked.packages.values()),
        "paths": found.paths_below(tree),
    }
    name = "-".join([f"debian-{release}-llvm{choice.llvm}", *request["extras"], *([suite] if suite else [])])
    return tree, name, facts


def listed_packages(unpacked: Unpacked) -> list[dict[str, str]]:
    """What was taken, for the manifest and for installing the same elsewhere."""
    return [
        {"name": name, "version": package.version, "suite": package.suite, "sha256": package.sha256}
        for name, package in sorted(unpacked.packages.items())
    ]


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
    names += [f"libclang-common-{choice.llvm}-dev", f"libclang-rt-{choice.llvm}-dev"]
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


def _same_release(offered: Sequence[Available], choice: Choice, newer: Sequence[str]) -> Available | None:
    """The version that goes with the HIP that was chosen: its own suite's, of its own release before any other."""
    within = [package for package in offered if package.suite in newer]
    release = upstream(choice.hip.version)[:2]
    ranked = sorted(
        within, key=lambda p: (upstream(p.version)[:2] == release, p.suite == choice.hip.suite), reverse=True
    )
    return ranked[0] if ranked else None


def _hsa(apt: Apt, choice: Choice) -> list[Available]:
    """HSA's headers and CMake files, which those of HIP ask for."""
    found = _same_release(apt.available(["libhsa-runtime-dev"])["libhsa-runtime-dev"], choice, (choice.hip.suite,))
    return [found] if found else []


def _extra(apt: Apt, names: Sequence[str], choice: Choice, newer: Sequence[str]) -> list[Available]:
    offered = apt.available(names)
    found = {name: _same_release(offered[name], choice, newer) for name in names}
    absent = [name for name, package in found.items() if package is None]
    if absent:
        raise EnvironmentFailure(f"the suites {', '.join(newer)} have no {', '.join(absent)}")
    return [package for package in found.values() if package]


def _libraries(apt: Apt, unpacked: Unpacked) -> list[Available]:
    """The libraries that HIP's and HSA's development packages belong to, for their names; nothing here runs them."""
    wanted: dict[str, str] = {}
    for owner in ("libamdhip64-dev", "libhsa-runtime-dev"):
        package = unpacked.packages.get(owner)
        for group in package.depends if package else ():
            name, relation = group[0].name, group[0].relation
            if relation == "=" and re.fullmatch(r"lib(amdhip64|hiprtc|hiprtc-builtins|hsa-runtime64).*\d", name):
                wanted[name] = group[0].version
    return [
        package
        for name, offered in apt.available(list(wanted)).items()
        for package in offered
        if package.version == wanted[name]
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
