"""The kernels' libraries, built by rocmbuild itself and kept, as the package that users import."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "kernels"
CSRC_VARIABLE = "GGUF_KERNELS_TEST_CSRC"
"""Another csrc folder to build from: how the seeded mutants run the very same tests."""
PACKAGE_VARIABLE = "GGUF_KERNELS_TEST_PACKAGE"
"""A folder with an unpacked wheel, to test in place of a fresh build: one wheel is to serve several torches."""


def csrc_folder() -> Path:
    """The device sources under test."""
    return Path(os.environ.get(CSRC_VARIABLE) or KERNELS / "csrc")


def kernel_tool(name: str) -> ModuleType:
    """A script of kernels/tools, imported."""
    spec = importlib.util.spec_from_file_location(name, KERNELS / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


_FORMAT_LIST = re.compile(r"(#define GGUF_FOR_EACH_FORMAT\(X\))((?:[^\n]*\\\n)*[^\n]*\n)")


def formats_of(csrc: Path) -> tuple[str, ...]:
    """The formats that a csrc folder lists as having kernels, in its order."""
    found = _FORMAT_LIST.search((csrc / "formats" / "types.h").read_text())
    assert found is not None, "formats/types.h has no GGUF_FOR_EACH_FORMAT"
    return tuple(re.findall(r"\bX\((\w+)", found[2]))


def trimmed_copy(csrc: Path, copy: Path, formats: Collection[str]) -> None:
    """A csrc folder with the named formats only: what a test of one mistake has to compile."""
    shutil.copytree(csrc, copy)
    listed = formats_of(csrc)
    unknown = set(formats) - set(listed)
    assert not unknown, f"csrc has no {unknown}"
    types = copy / "formats" / "types.h"
    kept = " \\\n".join(f"  X({name})" for name in listed if name in formats)
    types.write_text(_FORMAT_LIST.sub(lambda found: f"{found[1]} \\\n{kept}\n", types.read_text()))
    for name in set(listed) - set(formats):
        (copy / "formats" / f"{name.lower()}.cu").unlink()


def build_package(csrc: Path, *, defines: Sequence[str] = (), flags: Sequence[str] = (), binding: bool = True) -> Path:
    """Build the host platform's wheel from a csrc folder; returns the folder that holds gguf_kernels, for sys.path.

    defines: further "NAME=value". flags: further compiler and linker words (sanitizers). binding: with torch's
    operators, or only the C functions. Each variant keeps its build folder, so an edit compiles what it touches.
    """
    from rocmbuild import pipeline  # late: a test of a given package needs no rocmbuild
    from rocmbuild.build.project import copy_project
    from rocmbuild.config import load_config
    from rocmbuild.paths import cache_dir

    mutant = csrc.resolve() != (KERNELS / "csrc").resolve()
    if mutant or flags:  # compiled often, run little; a mutant without sanitizers once, for a test or two
        flags = ("-O1" if flags else "-O0", *flags)
    if flags:
        flags = (*flags, "-g1")  # functions and lines, which is all that a sanitizer's report shows
    worker = os.environ.get("PYTEST_XDIST_WORKER", "") if mutant else ""
    variant = hashlib.sha256(repr((ROOT, mutant, worker, defines, flags, binding)).encode()).hexdigest()[:12]
    place = cache_dir() / "tests" / "kernels" / variant
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / "lock"):
        source = place / "source"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(KERNELS, source, ignore=shutil.ignore_patterns("csrc", "__pycache__"))
        shutil.copytree(csrc, source / "csrc")
        copy_project(source, place / "project", excluded=place / "build")
        settings = {"platforms": "host", "build-dir": str(place / "build")}
        if mutant and shutil.which("ccache"):  # most of a mutant's files are those of another
            settings["launcher"] = "ccache"
        config = load_config(place / "project", settings=settings, environ={})
        (extension,) = config.extensions
        pairs = tuple((name, value) for name, _, value in (define.partition("=") for define in defines))
        extension = dataclasses.replace(
            extension,
            defines=(*extension.defines, *pairs),
            cxx_flags=(*extension.cxx_flags, *flags),
            link_flags=(*extension.link_flags, *flags),
            sources=extension.sources if binding else tuple(g for g in extension.sources if not g.endswith(".cpp")),
            torch=extension.torch if binding else "none",
        )
        built = pipeline.build_wheel(
            dataclasses.replace(
                config, extensions=(extension,), debug=bool(flags)
            ),  # a sanitizer's report names functions
            place / "dist",
            dict(os.environ),
        )
        package = place / f"package-{hashlib.sha256(built.path.read_bytes()).hexdigest()[:16]}"
        if not package.exists():
            work = place / "unpacking"
            shutil.rmtree(work, ignore_errors=True)
            with zipfile.ZipFile(built.path) as wheel:
                wheel.extractall(work)
            work.rename(package)
    return package
