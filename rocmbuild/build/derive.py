"""Turns a copy of torch's headers into those of its ROCm build, as that build does it. A script by itself.

    derive.py HIPIFY COPY

HIPIFY: the folder `torch/utils/hipify`, which is loaded without torch. COPY: a copy of FOLDERS of `torch/include`,
changed in place.
"""

from __future__ import annotations

import importlib.util
import os
import sys

FOLDERS = ("c10/cuda", "ATen/cuda", "ATen/native/cuda", "torch/csrc")
MACROS = "c10/hip/impl/hip_cmake_macros.h"  # torch's CMake writes it
MACROS_TEXT = """#pragma once
#define C10_HIP_BUILD_SHARED_LIBS
"""


def main(folder: str, copy: str) -> None:
    spec = importlib.util.spec_from_file_location(
        "hipify", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        sys.exit(f"{folder} holds no package")
    module = importlib.util.module_from_spec(spec)
    sys.modules["hipify"] = module
    spec.loader.exec_module(module)
    engine = importlib.import_module("hipify.hipify_python")
    engine.hipify(
        project_directory=copy,
        output_directory=copy,
        includes=[f"{copy}/{folder}/*" for folder in FOLDERS],
        is_pytorch_extension=False,
        hip_clang_launch=True,
        show_detailed=False,
        show_progress=False,
    )
    path = f"{copy}/{MACROS}"
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(MACROS_TEXT)


if __name__ == "__main__":
    main(*sys.argv[1:3])
