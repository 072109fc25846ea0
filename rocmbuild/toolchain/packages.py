"""From packages to a folder that needs nothing of the system but glibc and the C++ runtime."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.process import run
from rocmbuild.toolchain.debian import Apt, Available, Dependency, Package
from rocmbuild.toolchain.elf import read_dynamic

__all__ = ["SYSTEM_LIBRARIES", "Unpacked", "satisfies"]

SYSTEM_LIBRARIES = frozenset(
    {
        *(
            "ld-linux-x86-64.so.2",
            "libc.so.6",
            "libm.so.6",
            "libdl.so.2",
            "libpthread.so.0",
            "librt.so.1",
            "libresolv.so.2",
        ),
        *("libutil.so.1", "libanl.so.1", "libgcc_s.so.1", "libstdc++.so.6"),
    }
)
"""What g++ and glibc bring: never taken into a toolchain."""

_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib", "lib64", "usr/lib64")
_ROUNDS = 12


class Unpacked:
    """Packages downloaded and unpacked into one folder, more of them as libraries turn out to be needed."""

    def __init__(
        self,
        apt: Apt,
        folder: Path,
        *,
        report: Callable[[str], None],
        archives: Path | None = None,
        part: Callable[[int, int], None] | None = None,
    ) -> None:
        """archives: where downloads are kept (default: in folder). part: told the bytes of a download, done and all."""
        self.root = folder.resolve() / "root"
        self.packages: dict[str, Package] = {}
        self._apt = apt
        self._archives = archives or folder / "archives"
        self._report = report
        self._part = part
        self._owner: dict[str, str] = {}
        self._files: dict[str, tuple[Path, ...]] = {}
        self.root.mkdir(parents=True, exist_ok=True)

    def add(self, wanted: Sequence[Available]) -> None:
        """Download and unpack those that are not here yet."""
        new = [package for package in wanted if package.name not in self.packages]
        if not new:
            return
        self._report(f"downloading {', '.join(package.name for package in new)}")
        for package in self._apt.download(new, self._archives, report=self._part):
            what = f"unpacking {package.name} {package.version}"
            self._report(what)
            done = run(["dpkg-deb", "-X", package.file, self.root], what=what, error=EnvironmentFailure)
            files = [self.root / line for line in done.stdout.splitlines() if line and not line.endswith("/")]
            self.packages[package.name] = package
            self._files[package.name] = tuple(files)
            self._owner.update(dict.fromkeys((path.name for path in files if ".so" in path.name), package.name))

    def files_of(self, name: str) -> tuple[Path, ...]:
        """What a package holds, folders aside."""
        return self._files[name]

    def library(self, soname: str) -> Path | None:
        """The unpacked file of that name, links followed."""
        for folder in _LIBRARY_FOLDERS:
            path = (self.root / folder / soname).resolve()
            if path.is_file() and path.is_relative_to(self.root):
                return path
        return None

    def closure(
        self,
        files: Iterable[tuple[Path, str]],
        *,
        choose: Callable[[Dependency], Available | None],
        provided: Callable[[str], bool] = lambda soname: False,
    ) -> dict[str, Path]:
        """Every library that files need, by SONAME, theirs included, minus those provided.

        files: (path, name of the package that it is from). A library that is missing is looked for in what the package
        that needs it depends on, as chosen by `choose`; those are downloaded. Raises EnvironmentFailure when one stays
        missing.
        """
        found: dict[str, Path] = {}
        pending = [(path, owner) for path, owner in files]
        for _ in range(_ROUNDS):
            missing: dict[str, set[str]] = {}
            again = []
            while pending:
                path, owner = pending.pop()
                dynamic = read_dynamic(path)
                for soname in dynamic.needed if dynamic else ():
                    if soname in found or provided(soname):
                        continue
                    library = self.library(soname)
                    if library is None:
                        missing.setdefault(soname, set()).add(owner)
                        again.append((path, owner))
                    else:
                        found[soname] = library
                        pending.append((library, self._owner.get(soname, owner)))
            if not missing:
                return found
            owners = sorted({owner for group in missing.values() for owner in group})
            if not self._add_dependencies(owners, choose):
                names = ", ".join(sorted(missing))
                raise EnvironmentFailure(
                    f"no package of the suites in use has {names}, which {', '.join(owners)} needs"
                )
            pending = list(dict.fromkeys(again))
        raise EnvironmentFailure(f"the libraries of {', '.join(owners)} need ever more libraries")

    def _add_dependencies(self, owners: Sequence[str], choose: Callable[[Dependency], Available | None]) -> bool:
        wanted: dict[str, Available] = {}
        for owner in owners:
            for group in self.packages[owner].depends:
                if any(dependency.name in self.packages for dependency in group):
                    continue
                chosen = next(filter(None, map(choose, filter(_holds_libraries, group))), None)
                if chosen is not None:
                    wanted[chosen.name] = chosen
        self.add(list(wanted.values()))
        return bool(wanted)

    def copyrights(self, destination: Path) -> None:
        """The licences of what was unpacked."""
        for name in sorted(self.packages):
            source = self.root / "usr/share/doc" / name / "copyright"
            if source.exists():
                target = destination / name / "copyright"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def _holds_libraries(dependency: Dependency) -> bool:
    return dependency.name.startswith(("lib", "zlib")) and not dependency.name.endswith("-dev")


def satisfies(available: Available, dependency: Dependency) -> bool:
    """Whether a version fits a dependency's relation, by dpkg's own comparison."""
    if not dependency.relation:
        return True
    words = ["dpkg", "--compare-versions", available.version, dependency.relation, dependency.version]
    return run(words, what="comparing versions", check=False).returncode == 0
