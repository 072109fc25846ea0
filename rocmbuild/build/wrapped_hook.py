"""Runs one of setuptools' hooks with torch's real ROCm code path. A script by itself until the sources are checked.

    wrapped_hook.py SETTINGS.json HOOK OUT RESULT

torch.utils.cpp_extension decides at its import between CUDA and HIP. As cross-compilers for Python do it, the answers
of the target are given before that import, in this process alone: torch.version.hip, a CUDA check and a card that say
yes, and ROCM_HOME. A ROCm build of torch gives its own. SETTINGS.json: `hip` (a version), `include` (folders that go
before torch's own), `compile` (false: extensions are what setup.py says and nothing is converted, for metadata and
sdists), `path` (sys.path; PYTHONPATH stays what a front end made of it for its isolation), and what
rocmbuild.build.wrapped.check_sources takes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def prepare(settings: dict[str, Any], noted: dict[str, list[str]], result: str) -> None:
    """Give torch the answers of the target; note what extensions are made of, and what the checks tell of it."""
    torch: Any = importlib.import_module("torch")
    if torch.version.hip is None:
        torch.version.hip = settings["hip"]
        torch.version.cuda = None
        torch.cuda._is_compiled = torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
    cpp_extension: Any = importlib.import_module("torch.utils.cpp_extension")

    if not cpp_extension.IS_HIP_EXTENSION:
        sys.exit("torch.utils.cpp_extension of this release does not take ROCM_HOME")
    own_paths, own_extension = cpp_extension.include_paths, cpp_extension.CUDAExtension
    own_build = cpp_extension.BuildExtension.build_extensions

    def include_paths(*args: Any, **kwargs: Any) -> list[str]:
        return [*settings["include"], *own_paths(*args, **kwargs)]

    def extension(name: str, sources: list[str], *args: Any, **kwargs: Any) -> Any:
        if not settings["compile"]:
            return importlib.import_module("setuptools").Extension(name, sources)
        noted["sources"] += [os.path.relpath(source) for source in sources]
        noted["include_dirs"] += [os.path.relpath(folder) for folder in kwargs.get("include_dirs", [])]
        return own_extension(name, sources, *args, **kwargs)

    def build_extensions(self: Any) -> None:
        from rocmbuild.build.wrapped import check_sources

        noted["told"] = check_sources(settings, noted["sources"], noted["include_dirs"])
        write(result, {"told": noted["told"]})  # should the build end here
        self.build_temp = "build/temp"  # the same each time: editable builds have a temporary one, in every command
        own_build(self)

    cpp_extension.include_paths = include_paths
    cpp_extension.CUDAExtension = extension
    cpp_extension.BuildExtension.build_extensions = build_extensions


def write(path: str, value: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(value, file)


def main(words: list[str]) -> int:
    with open(words[0], encoding="utf-8") as file:  # noqa: PTH123
        settings = json.load(file)
    hook, out, result = words[1:4]
    sys.path[:] = settings["path"]
    from rocmbuild.errors import RocmbuildError

    noted: dict[str, list[str]] = {"sources": [], "include_dirs": [], "told": []}
    prepare(settings, noted, result)
    from setuptools import build_meta

    sys.argv = ["setup.py"]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (older setup.py files import their neighbours)
    try:
        mode = {"editable_mode": "strict"} if hook == "build_editable" else None
        value = {"name": getattr(build_meta, hook)(out, mode)}
    except RocmbuildError as err:
        value = {"message": err.message, "hint": err.hint}
    write(result, {**value, "told": noted["told"]})
    return 0 if "name" in value else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
