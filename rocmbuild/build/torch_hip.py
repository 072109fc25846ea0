"""What a ROCm build of torch has and a CPU build lacks: HIP headers, and libraries to link against.

Experimental: the result is meant for the ROCm build of the very torch release whose headers were used, and cannot be
loaded where only a CPU torch is. With a ROCm build of torch its own headers and libraries are used (no machine of ours
has one, so that this case is untested).
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from rocmbuild import process
from rocmbuild.build import derive
from rocmbuild.errors import EnvironmentFailure
from rocmbuild.paths import cache_dir
from rocmbuild.toolchain.torch_sdk import TorchSdk

__all__ = ["STUBS", "hip_headers", "make_stubs"]

STUBS = ("c10_hip", "torch_hip")
"""Libraries of a ROCm torch that are linked by name."""


def hip_headers(sdk: TorchSdk) -> Path:
    """The folder of HIP headers derived from a torch release's CUDA ones: those that differ from torch's own.

    Made once for each release in the user's cache, in a subprocess, by the hipify of that release, as torch's own
    ROCm build makes them; it appears whole, and one whose bytes have changed is made again. To be named before torch's
    own include folder.
    """
    from filelock import FileLock

    root = cache_dir() / "torch-hip"
    key = hashlib.sha256(f"1 {sdk.digest} ".encode() + Path(derive.__file__).read_bytes()).hexdigest()
    place = root / key
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{key}.lock"):
            if not _whole(place):
                shutil.rmtree(place, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=".new-", dir=root) as name:
                    made = Path(name) / "made"
                    _derive(sdk, Path(name) / "copy", made / "include")
                    (made / "digest").write_text(_digest(made / "include"))
                    made.rename(place)
    except OSError as err:
        raise EnvironmentFailure(
            f"the cache {root} cannot be written: {err.filename or root}: {err.strerror}",
            hint="make the folder writable and see that it has space, or set ROCMBUILD_CACHE_DIR to another one",
        ) from err
    return place / "include"


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        whole.update(f"{path.relative_to(folder)}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()


def _whole(place: Path) -> bool:
    stated = place / "digest"
    return stated.is_file() and stated.read_text() == _digest(place / "include")


def _derive(sdk: TorchSdk, copy: Path, target: Path) -> None:
    """Derive in a copy of torch's headers, and keep what differs from them."""
    for folder in derive.FOLDERS:
        if (sdk.include / folder).is_dir():
            shutil.copytree(sdk.include / folder, copy / folder)
    process.run(
        [sys.executable, "-I", "-S", "-B", derive.__file__, sdk.hipify, copy],
        what="deriving torch's HIP headers",
        error=EnvironmentFailure,
    )
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        relative = path.relative_to(copy)
        original = sdk.include / relative
        if original.is_file() and original.read_bytes() == path.read_bytes():
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)
    if not (target / "c10/hip/HIPStream.h").is_file():
        raise EnvironmentFailure(f"hipify made no c10/hip/HIPStream.h of the headers of torch {sdk.version}")


def make_stubs(folder: Path, cxx: str) -> None:
    """Put empty libraries of these very SONAMEs into a folder, and a libamdhip64.so that is nothing.

    A library linked against them needs what it would need had it been linked against a ROCm torch, but for the HIP
    runtime: wheels of torch carry that under an unversioned name and distributions under a versioned one, so it is
    left to libtorch_hip.so, which brings the one that torch uses.
    """
    for name in STUBS:
        words = [cxx, "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,lib{name}.so"]
        path = folder / f"lib{name}.so"
        path.unlink(missing_ok=True)
        process.run([*words, "-o", path], what=f"linking the stub of lib{name}.so", error=EnvironmentFailure)
    runtime = folder / "libamdhip64.so"
    runtime.unlink(missing_ok=True)
    runtime.write_text("/* linker script: the HIP runtime comes with torch */\n")
