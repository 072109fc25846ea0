"""What a toolchain is: a frozen record of tools, headers and device libraries that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Candidate", "Toolchain"]

_DEFAULT_INCLUDE = Path("/usr/include")
_VERSION_FILES = ("share/hip/version", "bin/.hipVersion")  # where clang reads HIP's version, below --hip-path


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A HIP toolchain that was looked at and found whole.

    name: what `-C toolchain=NAME` takes. kind: "managed", "sdk" (pip's ROCm SDK), "rocm" (AMD's layout) or "system".
    origin: where it was found, for people ("ROCM_HOME", "/opt"). clang is the C++ driver; lld sits where
    it looks for it. hip_version is that of the headers (major.minor.patch, the patch being AMD's build number),
    clang_version that of the driver. digest: for managed toolchains that of all files, for others that of the version
    text and of `hip_version.h`. notes: what a person should know and that is no reason to refuse it.
    """

    name: str
    kind: str
    origin: str
    prefix: Path
    clang: Path
    bundler: Path
    readelf: Path | None
    objdump: Path | None
    include: Path
    device_libs: Path
    hip_version: str
    clang_version: str
    digest: str
    notes: tuple[str, ...] = ()

    def compile_flags(self) -> tuple[str, ...]:
        """The flags that tie a HIP compilation to this toolchain's headers and device libraries, and to no other's.

        The compiler's own default folder is never named: as -isystem it would come before libstdc++'s `#include_next`.
        """
        headers = () if self.include == _DEFAULT_INCLUDE else ("-isystem", str(self.include))
        paths = (f"--hip-path={self.prefix}", f"--rocm-device-lib-path={self.device_libs}")
        if any((self.prefix / name).is_file() for name in _VERSION_FILES):
            return (*headers, *paths)
        # Without such a file clang takes HIP for 3.5, and then std::sqrt and its like are undefined in device code.
        return (*headers, *paths, f"--hip-version={self.hip_version}")

    def paths_below(self, folder: Path) -> dict[str, str]:
        """Where its parts are in the folder that holds it, for a manifest; "" for what it has not."""
        parts = {
            "prefix": self.prefix,
            "clang": self.clang,
            "bundler": self.bundler,
            "readelf": self.readelf,
            "objdump": self.objdump,
            "include": self.include,
            "device_libs": self.device_libs,
        }
        return {key: path.relative_to(folder).as_posix() if path else "" for key, path in parts.items()}

    def identity(self) -> dict[str, str]:
        """What names this toolchain on any machine: no absolute path, no time."""
        return {
            "name": self.name,
            "kind": self.kind,
            "hip": self.hip_version,
            "clang": self.clang_version,
            "digest": self.digest,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place that was looked at. toolchain is None when refused, and then reasons says why.

    binding: a person named this very place (path, name or environment variable), so its refusal ends the search.
    """

    name: str
    kind: str
    origin: str
    prefix: Path | None
    toolchain: Toolchain | None
    reasons: tuple[str, ...] = ()
    binding: bool = False

    def describe(self) -> str:
        """One line for lists and messages."""
        place = f"{self.origin} ({self.prefix})" if self.prefix else self.origin
        if self.toolchain is not None:
            return f"{place}: HIP {self.toolchain.hip_version}, clang {self.toolchain.clang_version}"
        return f"{place}: {'; '.join(self.reasons)}"
