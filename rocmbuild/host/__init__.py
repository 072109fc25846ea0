"""The 32-lane host executor: headers in place of the HIP runtime's, and sources that a host library compiles in.

A library built with it reads, at each launch:

ROCMBUILD_HOST_THREADS: threads that the blocks of a grid are spread over (default: the processors at hand). A result
    depends on it only where a kernel's does on the order of blocks, as a float sum by atomics does.
ROCMBUILD_HOST_ORDER: `forward` (default), `reverse`, or a number that seeds the order of waves and lanes.
ROCMBUILD_HOST_POISON: 0 leaves shared memory as the block before left it; by default it is filled with 0xff bytes.
ROCMBUILD_HOST_EXITED_LANES: `allow` lets a barrier open although lanes of the block have ended, as cards do; by
    default that is reported, since CUDA's and HIP's contracts do not allow it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["compile_flags", "include_dir", "link_flags", "runtime_sources"]

ROOT = Path(__file__).resolve().parent


def include_dir() -> Path:
    """The folder with <hip/hip_runtime.h> and its kin; comes before any other HIP on the search path."""
    return ROOT / "include"


def runtime_sources() -> tuple[Path, ...]:
    """C++ files that each host library compiles in once, with the same flags as its kernels."""
    return tuple(sorted((ROOT / "src").glob("*.cpp")))


def compile_flags(*, clang: bool = False, include: str = "") -> tuple[str, ...]:
    """Flags for a HIPified source and for the runtime's own sources, without optimisation level or language.

    clang: the compiler is clang, which has no GNU-unique symbols and refuses the flag against them. include: where a
    copy of include_dir() lies, if one is to be used.
    """
    return (
        "-std=c++17",
        "-fPIC",
        "-pthread",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        *(() if clang else ("-fno-gnu-unique",)),
        # Device compilers neither assume strict aliasing of punned loads nor fuse where the source says not to.
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        # Stacks are switched by hand: no shadow stack may check return addresses.
        "-fcf-protection=none",
        "-Wno-narrowing",
        "-Wno-unknown-pragmas",
        "-DROCMBUILD_PLATFORM_HOST=1",
        "-isystem",
        include or str(include_dir()),
    )


def link_flags() -> tuple[str, ...]:
    """Flags for linking a host library."""
    return ("-shared", "-pthread")
