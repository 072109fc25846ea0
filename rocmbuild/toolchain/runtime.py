"""AMD's real HIP runtime in a prefix of its own, for running device libraries where no card is.

It is for tests and checks only; nothing is ever linked against it. Where the machine's glibc is older than the one that
the runtime was built for, a program is run under the newer suite's own loader.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.console import Progress
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.paths import data_dir
from rocmbuild.process import run
from rocmbuild.toolchain.debian import Apt, Available, Dependency, upstream
from rocmbuild.toolchain.elf import newest_defined, read_dynamic, shorten_soname
from rocmbuild.toolchain.install import NEWER_SUITES, Steps, listed_packages, open_archive
from rocmbuild.toolchain.packages import SYSTEM_LIBRARIES, Unpacked, satisfies
from rocmbuild.toolchain.store import Entry, downloads, entries, locked, publish, remove, system_errors, work

__all__ = ["Runtime", "find_runtime", "install_runtime", "remove_runtime", "runtimes_dir"]

_PLAIN = "libamdhip64.so"
_LOADER = "ld-linux-x86-64.so.2"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An installed runtime.

    lib: holds the file under its SONAME, libamdhip64.so.N. unversioned: the same runtime as plain libamdhip64.so, file
    name and SONAME, as torch's ROCm wheels carry it. support: the libraries that both need. loader and libc: the newer
    loader and its C and C++ libraries, used where the machine's own are too old; loader is None where they are not.
    """

    name: str
    prefix: Path
    hip_version: str
    soname: str
    lib: Path
    unversioned: Path
    support: Path
    libc: Path
    loader: Path | None
    digest: str

    def library(self, *, unversioned: bool = False) -> Path:
        """The runtime's file, for ctypes.CDLL."""
        return self.unversioned / _PLAIN if unversioned else self.lib / self.soname

    def library_path(self, *, unversioned: bool = False) -> tuple[Path, ...]:
        """The folders to search for libraries, in order."""
        own = (self.unversioned if unversioned else self.lib, self.support)
        if self.loader is None:
            return own
        system = [Path("/lib/x86_64-linux-gnu"), Path("/usr/lib/x86_64-linux-gnu"), Path("/lib64"), Path("/usr/lib64")]
        return (*own, self.libc, *(path for path in system if path.is_dir()))

    def command(self, arguments: Sequence[str], *, python: str | None = None, unversioned: bool = False) -> list[str]:
        """The argv that runs `python *arguments` (default: this interpreter) with the runtime within reach."""
        program = [python or sys.executable, *arguments]
        folders = ":".join(str(path) for path in self.library_path(unversioned=unversioned))
        if self.loader is None:
            return ["/usr/bin/env", f"LD_LIBRARY_PATH={folders}", *program]
        return [str(self.loader), "--library-path", folders, *program]


def runtimes_dir() -> Path:
    """The store of runtimes."""
    return data_dir() / "runtimes"


def find_runtime() -> Runtime | None:
    """The newest installed runtime, or None."""
    from packaging.version import Version  # cold start

    found = [runtime_of(entry) for entry in entries(runtimes_dir()) if entry.kind == "hip-runtime"]
    return max(found, key=lambda runtime: Version(runtime.hip_version), default=None)


def runtime_of(entry: Entry) -> Runtime:
    """The record of a store's entry."""
    facts = entry.facts
    return Runtime(
        name=entry.name,
        prefix=entry.folder,
        hip_version=str(facts["hip_version"]),
        soname=str(facts["soname"]),
        lib=entry.folder / "lib",
        unversioned=entry.folder / "unversioned",
        support=entry.folder / "support",
        libc=entry.folder / "libc",
        loader=entry.folder / "libc" / _LOADER if facts["loader"] else None,
        digest=entry.digest,
    )


def install_runtime(suite: str | None = None, *, force: bool = False, quiet: bool = False) -> Runtime:
    """Install AMD's HIP runtime from Debian's newer suites into a store of its own, or return what is there.

    suite: take it from this suite alone. Raises EnvironmentFailure.
    """
    request = {"provider": "debian", "suite": suite}
    present = None if force else _present(request)
    if present is not None:
        return present
    store = runtimes_dir()
    with locked(store, what="installing a HIP runtime"), system_errors("installing a HIP runtime"):
        present = None if force else _present(request)
        if present is not None:
            return present
        with (
            downloads(store) as fetched,
            work(store) as folder,
            Progress("HIP runtime", enabled=not quiet) as progress,
        ):
            return runtime_of(_build(store, folder, fetched, request, Steps(progress)))


def remove_runtime(name: str) -> None:
    """Take an installed runtime away. Raises InputError for an unknown name."""
    remove(runtimes_dir(), name)


def _present(request: Mapping[str, str | None]) -> Runtime | None:
    for entry in entries(runtimes_dir()):
        if entry.kind == "hip-runtime" and entry.facts.get("request") == dict(request):
            return runtime_of(entry)
    return None


def _build(store: Path, folder: Path, fetched: Path, request: Mapping[str, str | None], report: Steps) -> Entry:
    suite = request["suite"]
    newer = (suite,) if suite else NEWER_SUITES
    apt = open_archive(folder / "apt", newer, report)
    unpacked = Unpacked(apt, folder / "packages", report=report, archives=fetched, part=report.part)
    choose = _oldest_that_does(apt, newer)
    hip = _newest_hip(apt, newer)
    unpacked.add([hip])
    direct = [chosen for group in unpacked.packages[hip.name].depends if (chosen := choose(group[0])) is not None]
    unpacked.add(direct)  # comgr among them, which the runtime opens by name
    roots = _libraries_of(unpacked, [hip.name, *(package.name for package in direct)])
    needed = unpacked.closure(roots, choose=choose)
    tree = folder / "tree"
    soname = _lay_out(unpacked, roots, needed, tree)
    unpacked.copyrights(tree / "share/doc")
    release = ".".join(map(str, upstream(hip.version)))
    facts = {
        "request": dict(request),
        "hip_version": release,
        "soname": soname,
        "loader": _needs_loader([*(tree / "lib").iterdir(), *(tree / "support").iterdir()]),
        "packages": listed_packages(unpacked),
    }
    name = f"hip-{release}-{suite}" if suite else f"hip-{release}"
    report(f"loading {name}")
    _try(runtime_of(Entry(name=name, folder=tree, kind="hip-runtime", digest="", facts=facts)))
    return publish(store, tree, name=name, kind="hip-runtime", facts=facts)


def _newest_hip(apt: Apt, newer: Sequence[str]) -> Available:
    names = [name for name in apt.names("libamdhip64-") if re.fullmatch(r"libamdhip64-\d+", name)]
    offered = [package for versions in apt.available(names).values() for package in versions if package.suite in newer]
    if not offered:
        raise EnvironmentFailure(f"the suites {', '.join(newer)} have no HIP runtime (libamdhip64-N)")
    return max(offered, key=lambda package: upstream(package.version))


def _oldest_that_does(apt: Apt, newer: Sequence[str]) -> Callable[[Dependency], Available | None]:
    """Chooses from the machine's own release where its version will do, else from the last newer suite with it.

    So nothing newer is taken than must be, and where the machine's glibc is new enough no other one is needed.
    """
    order = [*apt.sources.own, *reversed(newer)]

    def choose(dependency: Dependency) -> Available | None:
        offered = [package for package in apt.available([dependency.name])[dependency.name] if package.suite in order]
        for package in sorted(offered, key=lambda package: order.index(package.suite)):
            if satisfies(package, dependency):
                return package
        return None

    return choose


def _libraries_of(unpacked: Unpacked, names: Sequence[str]) -> list[tuple[Path, str]]:
    """(path, package) of each library in the packages of these names, links aside."""
    folder = unpacked.root / _LIBRARIES
    files = [(path, name) for name in names for path in unpacked.files_of(name)]
    return [(path, name) for path, name in files if path.parent == folder and not path.is_symlink()]


def _lay_out(unpacked: Unpacked, roots: Sequence[tuple[Path, str]], needed: Mapping[str, Path], tree: Path) -> str:
    """lib: the runtime; unversioned: its renamed copy; libc: C's and C++'s own; support: all the rest, by SONAME."""
    for part in ("lib", "unversioned", "support", "libc"):
        (tree / part).mkdir(parents=True)
    named = dict(needed)
    for path, _ in roots:
        dynamic = read_dynamic(path)
        if dynamic is not None and dynamic.soname:
            named.setdefault(dynamic.soname, path)
    base = {path.name: path for path, owner in roots if owner == "libc6"}
    runtime = ""
    for name, path in sorted({**named, **base}.items()):
        if name.startswith(_PLAIN):
            runtime = name
            shutil.copy2(path, tree / "lib" / name)
            shutil.copy2(path, tree / "unversioned" / _PLAIN)
        else:
            shutil.copy2(path, tree / ("libc" if name in SYSTEM_LIBRARIES or name in base else "support") / name)
    if not runtime or not (tree / "libc" / _LOADER).is_file():
        raise EnvironmentFailure(f"the packages hold no {_PLAIN} or no {_LOADER}")
    shorten_soname(tree / "unversioned" / _PLAIN, _PLAIN)
    return runtime


def _needs_loader(libraries: Sequence[Path]) -> bool:
    """Whether the machine's own glibc or libstdc++ is too old for any of the libraries."""
    dynamics = [dynamic for dynamic in map(read_dynamic, libraries) if dynamic is not None]
    glibc = max((dynamic.newest("GLIBC") for dynamic in dynamics), default=())
    own = tuple(int(number) for number in re.findall(r"\d+", os.confstr("CS_GNU_LIBC_VERSION") or ""))
    if own < glibc:
        return True
    cxx = max((dynamic.newest("GLIBCXX") for dynamic in dynamics), default=())
    places = [Path(folder) / "libstdc++.so.6" for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")]
    present = next((path for path in places if path.exists()), None)
    return present is None or newest_defined(present.resolve(), "GLIBCXX") < cxx


def _try(runtime: Runtime) -> None:
    """Load both forms. Raises EnvironmentFailure with the loader's own line."""
    for unversioned in (False, True):
        path = runtime.library(unversioned=unversioned)
        code = f"import ctypes; ctypes.CDLL({str(path)!r}).hipGetDeviceCount(ctypes.byref(ctypes.c_int()))"
        command = runtime.command(["-c", code], unversioned=unversioned)
        run(command, what=f"{path.name} cannot be loaded", timeout=120, error=EnvironmentFailure)
