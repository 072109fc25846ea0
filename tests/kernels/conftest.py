"""The kernels' host library, built once and cached, as the package that users import."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

from rocmbuild import host
from rocmbuild.paths import cache_dir

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "kernels"
CSRC_VARIABLE = "GGUF_KERNELS_TEST_CSRC"
"""Another csrc folder to build from: how the seeded mutants run the very same tests."""
PACKAGE_VARIABLE = "GGUF_KERNELS_TEST_PACKAGE"
"""A folder with an unpacked wheel, to test in place of a fresh build: one wheel is to serve several torches."""

_parent = importlib.util.spec_from_file_location("rocmbuild_tests_conftest", ROOT / "tests" / "conftest.py")
assert _parent is not None and _parent.loader is not None
_module = importlib.util.module_from_spec(_parent)
_parent.loader.exec_module(_module)
require = _module.require  # whichever conftest is found by this name, `from conftest import require` works

_HIPIFY = """
import sys
from torch.utils.hipify import hipify_python
tree = sys.argv[1]
hipify_python.hipify(project_directory=tree, output_directory=tree, includes=[tree + "/*"], header_include_dirs=[tree],
                     is_pytorch_extension=True, show_detailed=False)
"""


def csrc_folder() -> Path:
    """The device sources under test."""
    return Path(os.environ.get(CSRC_VARIABLE) or KERNELS / "csrc")


def build_package(csrc: Path, *, defines: Sequence[str] = (), flags: Sequence[str] = (), binding: bool = True) -> Path:
    """Build the host library from a csrc folder; returns a folder to put on sys.path, which holds gguf_kernels.

    defines: further "NAME=value". flags: further compiler and linker words (sanitizers). binding: with torch's
    operators, or only the C functions. Everything is cached by contents, so an edit compiles what it touches.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        require("g++")
    import torch

    store = cache_dir() / "tests" / "kernels"
    store.mkdir(parents=True, exist_ok=True)
    files = {path.relative_to(csrc).as_posix(): path for path in sorted(csrc.rglob("*")) if path.is_file()}
    key = _digest(
        "stage",
        torch.__version__,
        _HIPIFY,
        *(part for name, path in files.items() for part in (name, path.read_bytes())),
    )
    tree = store / f"stage-{key}"
    with FileLock(store / "lock"):
        if not tree.exists():
            work = store / f"work-{os.getpid()}"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(csrc, work)
            subprocess.run([sys.executable, "-c", _HIPIFY, str(work)], check=True, capture_output=True)
            work.rename(tree)

        include = host.include_dir()
        common = [
            "-fPIC",
            "-fvisibility=hidden",
            "-fno-gnu-unique",
            "-DROCMBUILD_PLATFORM_HOST=1",
            "-DROCMBUILD_DEFINE_SCHEMAS=1",
        ]
        common += [*(f"-D{define}" for define in defines), *flags]
        executor = _digest(*(path.read_bytes() for path in sorted(include.parent.rglob("*")) if path.is_file()))
        jobs: list[tuple[list[str], Path, list[str]]] = []  # words before the source, source, what decides the object
        for name in sorted(name for name in files if name.endswith(".cu")):
            source = tree / name.replace(".cu", ".hip")
            words = ["-O2", "-x", "c++", f"-I{include}", *host.compile_flags(), f"-I{tree}"]
            jobs.append((words, source, [executor, *_closure(source, tree)]))
        words = ["-O2", f"-I{include}", *host.compile_flags()]
        jobs.extend((words, source, [executor]) for source in host.runtime_sources())
        if binding:
            sdk = Path(torch.__file__).parent / "include"
            words = [
                "-std=c++20",
                "-O1",
                f"-I{tree}",
                "-isystem",
                str(sdk),
                "-DTORCH_TARGET_VERSION=0x020a000000000000",
            ]
            jobs.append((words, tree / "binding.cpp", [torch.__version__, *_closure(tree / "binding.cpp", tree)]))

        def compiled(job: tuple[list[str], Path, list[str]]) -> Path:
            words, source, inputs = job
            stable = [word.replace(str(tree), "TREE") for word in words]
            target = store / f"object-{_digest(compiler, *common, *stable, source.name, *inputs)}.o"
            if not target.exists():
                part = target.with_suffix(f".{os.getpid()}")
                done = subprocess.run(
                    [compiler, *common, *words, "-c", str(source), "-o", str(part)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    raise RuntimeError(f"{source.name} does not compile:\n{done.stderr[:4000]}")
                part.rename(target)
            return target

        with ThreadPoolExecutor(2) as pool:
            objects = [str(path) for path in pool.map(compiled, jobs)]
        loader = ROOT / "rocmbuild" / "build" / "loader.py"
        package = sorted((KERNELS / "gguf_kernels").rglob("*.py"))
        link = ["-shared", "-Wl,-z,now", "-Wl,-soname,gguf_host.so", *flags, *_link_flags()]
        if binding:  # an empty library of the right name gives the dependency through which torch's symbols are found
            stub = store / "libtorch.so"
            empty = ["-x", "c", "/dev/null", "-shared", "-nostdlib", "-o", str(stub), "-Wl,-soname,libtorch.so"]
            subprocess.run([compiler, *empty], check=True, capture_output=True)
            link += ["-Wl,--no-as-needed", str(stub), "-Wl,--as-needed"]
        built = (
            store / f"package-{_digest(*objects, *link, loader.read_bytes(), *(path.read_bytes() for path in package))}"
        )
        if not built.exists():
            work = store / f"work-{os.getpid()}"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(
                KERNELS / "gguf_kernels", work / "gguf_kernels", ignore=shutil.ignore_patterns("*.pyc", "__pycache__")
            )
            shutil.copy(loader, work / "gguf_kernels" / "lib" / "_rocmbuild_loader.py")
            library = work / "gguf_kernels" / "lib" / "gguf_host.so"
            done = subprocess.run(
                [compiler, *link, "-o", str(library), *objects], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"the library does not link:\n{done.stderr[:4000]}")
            work.rename(built)
    return built


def _link_flags() -> Sequence[str]:
    flags = getattr(host, "link_flags", None)
    return flags() if flags else ()


def _digest(*parts: str | bytes) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:24]


def _closure(source: Path, tree: Path) -> list[str]:
    """Contents of a source and of all that it includes from the tree."""
    seen: dict[Path, str] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in seen and path.is_file():
            seen[path] = path.read_text()
            waiting += [tree / name for name in re.findall(r'#include "([^"]+)"', seen[path])]
    return [seen[path] for path in sorted(seen)]


@pytest.fixture(scope="session")
def build() -> Callable[..., Path]:
    """build_package itself, for tests that need a library of their own."""
    return build_package


@pytest.fixture(scope="session")
def package(build: Callable[..., Path]) -> Path:
    """The folder that holds the package under test."""
    given = os.environ.get(PACKAGE_VARIABLE)
    return Path(given) if given else build(csrc_folder())


@pytest.fixture(scope="session")
def kernels(package: Path) -> ModuleType:
    """The package `gguf_kernels`, imported as a user would."""
    sys.path.insert(0, str(package))
    module = importlib.import_module("gguf_kernels")
    assert Path(module.__file__ or "").is_relative_to(package)
    return module


@pytest.fixture(scope="session")
def library(package: Path) -> Path:
    """Path of the host library."""
    return package / "gguf_kernels" / "lib" / "gguf_host.so"
