"""Small HIP sources for the audit's tests and what LLVM's own tools say about the files they become."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rocmbuild.audit.binary import BundleInfo
from rocmbuild.toolchain.model import Toolchain

SOURCE = """\
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
namespace sample {
template <class T> __global__ void scale(T *p, T factor) {
  __shared__ T tile[64];
  unsigned i = __builtin_amdgcn_workitem_id_x();
  tile[i & 63] = p[i];
  __builtin_amdgcn_s_barrier();
  p[i] = tile[(i + 1) & 63] * factor;
}
template __global__ void scale(float *, float);
template __global__ void scale(int *, int);
}
extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 128))) void NAME(float *p) {
  p[__builtin_amdgcn_workitem_id_x()] *= 2;
}
__global__ void scratch_NAME(int *p, int n) {
  volatile int a[40];
  for (int i = 0; i < 40; ++i) a[i] = p[i];
  p[n] = a[n];
}
"""
WITHOUT_HEADERS = ("-nogpuinc", "-nogpulib", "-Wno-unused-command-line-argument")


class Samples:
    """Files made on demand, each once, in one folder."""

    def __init__(self, folder: Path, toolchain: Toolchain) -> None:
        self.folder = folder
        self.toolchain = toolchain

    def run(self, *argv: str | Path, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [str(word) for word in argv], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tool(self, name: str) -> Path:
        return self.toolchain.clang.parent / name

    def make(self, name: str, *flags: str, kernel: str = "plain") -> Path:
        """A file compiled from SOURCE with the flags; kernel: the name of its only C kernel."""
        out = self.folder / name
        if not out.exists():
            source = self.folder / f"{kernel}.hip"
            source.write_text(SOURCE.replace("NAME", kernel))
            clang = self.toolchain.clang
            self.run(clang, "-x", "hip", "-c", source, "-o", out, "-O3", "-fPIC", *WITHOUT_HEADERS, *flags)
        return out

    def code(self, target: str, *flags: str) -> Path:
        """A bare code object."""
        name = re.sub(r"\W", "_", " ".join((target, *flags))) + ".co"
        return self.make(name, f"--offload-arch={target}", "--offload-device-only", "--no-gpu-bundle-output", *flags)

    def bundle(self, name: str, targets: Sequence[str], *flags: str, version: int = 0) -> Path:
        """A loose bundle of code objects; version 2 or 3: compressed in that format."""
        out = self.folder / name
        if not out.exists():
            codes = [self.code(target) for target in targets]
            ids = ["host-x86_64-unknown-linux-gnu-", *(f"hipv4-amdgcn-amd-amdhsa--{target}" for target in targets)]
            inputs = [f"-input={path}" for path in ("/dev/null", *codes)]
            words = ["-type=o", "-bundle-align=4096", f"-targets={','.join(ids)}", *inputs, f"-output={out}", *flags]
            env = {"COMPRESSED_BUNDLE_FORMAT_VERSION": str(version)} if version else None
            self.run(self.toolchain.bundler, *words, *(("-compress",) if version else ()), env=env)
        return out

    def shared(self, name: str, *objects: Path) -> Path:
        """A shared object of the objects given."""
        out = self.folder / name
        if not out.exists():
            self.run("c++", "-shared", "-o", out, *objects)
        return out


def readelf_many(samples: Samples, paths: Sequence[Path]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(target, kernels) of code objects as llvm-readelf prints them: "gfx90a:sramecc-:xnack+", the scalar keys of each.

    Many at a time, since a package has thousands of them.
    """
    found: list[tuple[str, list[dict[str, Any]]]] = []
    for start in range(0, len(paths), 200):
        part = [str(path) for path in paths[start : start + 200]]
        text = samples.run(samples.tool("llvm-readelf"), "--file-headers", "--notes", *part)
        blocks = re.split(r"(?m)^File: .*\n", text)[1:] if len(part) > 1 else [text]
        assert len(blocks) == len(part)
        found += [(_target(block), _kernels(block)) for block in blocks]
    return found


_KEY = re.compile(r"(?:  - |    )(\.\w+): +(\S.*?)\s*")


def _kernels(text: str) -> list[dict[str, Any]]:
    kernels: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith("  - ."):
            kernels.append({})
        match = _KEY.fullmatch(line) if line.startswith("    .") or line.startswith("  - .") else None
        if match and kernels:
            value = match[2].strip("'\"")
            kernels[-1][match[1]] = int(value) if value.isdigit() else value
    return kernels


def _target(text: str) -> str:
    match = re.search(r"Flags:\s+0x[0-9a-f]+, (.*)", text)
    assert match, text[:2000]
    name, *features = match[1].split(", ")
    return ":".join([name, *sorted(feature for feature in features if feature[-1] in "+-")])


def readelf_target(samples: Samples, path: Path) -> str:
    """The target of a code object as llvm-readelf prints its flags."""
    return _target(samples.run(samples.tool("llvm-readelf"), "--file-headers", path))


def extracted(samples: Samples, path: Path, bundles: Sequence[BundleInfo]) -> list[tuple[str, Path]]:
    """(target, file) of the code objects in a fat binary, by LLVM's own tools.

    llvm-objdump finds the bundles, names their targets and writes them out. For compressed ones it writes wrong bytes,
    and mostly dies of a read past a buffer (LLVM 22): what it says then is compared where it lives. So
    clang-offload-bundler takes each bundle apart, from where this project says that it lies.
    """
    names: list[str] | None = None
    for _ in range(4):
        try:
            text = samples.run(samples.tool("llvm-objdump"), "--offloading", path)
        except AssertionError as err:
            if "Stack dump" not in str(err) or not any(bundle.version for bundle in bundles):
                raise
        else:
            names = [line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("Extracting")]
            break
        finally:
            listed = {out.name: out.stat().st_size for out in samples.folder.glob(f"{path.name}.*.h[io]*")}
            for name in listed:
                (samples.folder / name).unlink()
    found: list[tuple[str, Path]] = []
    for bundle, argv, outs in unbundling(samples, path, bundles):
        samples.run(*argv)
        bundle.unlink()
        found += outs
    if names is not None:
        wanted = {Path(name).name: listed[Path(name).name] for name in names if ".hip" in name}
        assert wanted == {out.name: out.stat().st_size for _, out in found}
    return found


def unbundling(
    samples: Samples, path: Path, bundles: Sequence[BundleInfo]
) -> Iterator[tuple[Path, list[str | Path], list[tuple[str, Path]]]]:
    """Each bundle of a fat binary in a file, the command that takes it apart, (target, file) of what comes out."""
    section = samples.folder / "section"
    samples.run(samples.tool("llvm-objcopy"), f"--dump-section=.hip_fatbin={section}", path, "/dev/null")
    fatbin = section.read_bytes()
    for number, bundle in enumerate(bundles):
        cut = samples.folder / f"{path.name}.{number}.hipfb"
        cut.write_bytes(fatbin[bundle.offset : bundle.offset + bundle.size])
        ids = samples.run(samples.toolchain.bundler, "-type=o", "-list", f"-input={cut}").split()
        ids = sorted(name for name in ids if not name.startswith("host"))
        outs = [samples.folder / f"{path.name}.{number}.{name}" for name in ids]
        words = [f"-targets={','.join(ids)}", f"-input={cut}", *(f"-output={out}" for out in outs)]
        targets = [name.split("--", 1)[1] for name in ids]
        yield cut, [samples.toolchain.bundler, "-type=o", "-unbundle", *words], list(zip(targets, outs, strict=True))
