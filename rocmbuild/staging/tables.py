"""The tables of an engine, loaded from its folder: this runs code of the engine, so only the subprocess does it."""

from __future__ import annotations

import importlib
import re
import sys
import types

from rocmbuild.staging.convert import Engine

__all__ = ["load_engine"]

_WORD = re.compile(r"[A-Za-z_]\w*")
# Rules of one company's source tree, such as mixed_utils -> hip/mixed_utils, that break other people's names.
_FOREIGN_TABLES = ("CAFFE2_SPECIFIC_MAPPINGS", "CAFFE2_PATH_MAPPINGS")


def load_engine(folder: str) -> Engine:
    """Load the tables of a `hipify` package from its folder, without the package above it.

    Both layouts are read: of version 2 (key -> name) and of version 1 (key -> (name, flags...)).
    """
    parent = "_rocmbuild_engine"
    package = types.ModuleType(parent)
    package.__path__ = [folder]
    sys.modules[parent] = package
    try:
        module = importlib.import_module(f"{parent}.cuda_to_hip_mappings")
        tables = [
            t for t in module.CUDA_TO_HIP_MAPPINGS if all(t is not getattr(module, n, 0) for n in _FOREIGN_TABLES)
        ]
        constants = getattr(module, "API_CAFFE2", None), getattr(module, "API_SPECIAL", None)
    finally:
        for name in [name for name in sys.modules if name == parent or name.startswith(parent + ".")]:
            del sys.modules[name]
    caffe2, special = constants
    merged: dict[str, str] = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, str):
                merged[key] = value
            elif caffe2 is not None and caffe2 in value[1:]:
                continue
            elif key not in merged or special is None or special not in value[1:]:
                merged[key] = value[0]
    phrases: dict[str, list[tuple[str, str]]] = {}
    names: dict[str, str] = {}
    for key, new in merged.items():
        if _WORD.fullmatch(key):
            names[key] = new
        elif head := _WORD.match(key):
            phrases.setdefault(head.group(), []).append((key, new))
    # '<nccl.h>' is the one kind of key that starts with no word; in an include it is a phrase all the same.
    for key, new in merged.items():
        if key.startswith("<") and key.endswith(">"):
            phrases.setdefault("include", []).append((f"include {key}", f"include {new}"))
    for keys in phrases.values():
        keys.sort(key=lambda pair: -len(pair[0]))
    return Engine(names=names, phrases=phrases)
