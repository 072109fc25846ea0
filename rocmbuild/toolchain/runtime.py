"""AMD's real HIP runtime in a prefix of its own, for running device libraries where no card is.

It is for tests and checks only; nothing is ever linked against it. Where the machine's glibc is older than the one that
the runtime was built for, a program is run under the newer suite's own loader.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.paths import data_dir
from rocmbuild.toolchain.store import Entry, entries

__all__ = ["Runtime", "find_runtime", "runtimes_dir"]


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
        return self.unversioned / "libamdhip64.so" if unversioned else self.lib / self.soname

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
        loader=entry.folder / "libc" / "ld-linux-x86-64.so.2" if facts["loader"] else None,
        digest=entry.digest,
    )
