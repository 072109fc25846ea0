"""`python -m gguf_kernels [--json]`: what was loaded, what was not and why, and what can run on which device.

Exit 0 when a library is loaded and every GPU that torch sees is served, 1 when a GPU is not. Where nothing can be
loaded the import itself fails, and says why.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch

from gguf_kernels._library import OPERATORS, REPORT, capabilities, device_fault, devices

__all__ = ["describe", "main", "render"]


def describe() -> dict[str, Any]:
    """All that is known here, ready for JSON."""
    try:
        version = metadata.version("gguf-kernels")
    except metadata.PackageNotFoundError:
        version = None
    return {
        "version": version,
        "torch": torch.__version__,
        "loaded": dict(REPORT.loaded),
        "refused": dict(REPORT.refused),
        "hip_runtime": REPORT.runtime,
        "targets": list(REPORT.targets),
        "hints": list(REPORT.hints),
        "devices": {
            str(place): {
                "name": "the CPU" if place.type == "cpu" else torch.cuda.get_device_name(place),
                "fault": device_fault(place),
            }
            for place in devices()
        },
        "capabilities": {
            place: {op: list(types) for op, types in table.items()} for place, table in capabilities().items()
        },
    }


def render(found: dict[str, Any]) -> str:
    """The same for people: libraries, devices, and a table of types by operator for each device."""
    lines = [f"gguf-kernels {found['version'] or '(not installed as a distribution)'}, torch {found['torch']}", ""]
    lines += [f"{platform:5} loaded: {path}" for platform, path in found["loaded"].items()]
    lines += [f"{platform:5} not loaded: {reason}" for platform, reason in found["refused"].items()]
    if found["targets"]:
        lines.append(f"      the rocm library is for {', '.join(found['targets'])}")
    lines += [f"note: {hint}" for hint in found["hints"]]
    for place, device in found["devices"].items():
        lines += ["", f"{place}: {device['name']}"]
        if device["fault"]:
            lines.append(f"  nothing can run here: {device['fault']}")
            continue
        table = found["capabilities"][place]
        types = list(dict.fromkeys(name for op in OPERATORS for name in table[op]))
        width = max(len(name) for name in types)
        lines.append("  " + " " * width + "".join(f"  {op}" for op in OPERATORS))
        lines += [
            f"  {name:{width}}" + "".join(f"  {'yes' if name in table[op] else 'no':{len(op)}}" for op in OPERATORS)
            for name in types
        ]
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gguf_kernels", description="What gguf_kernels loaded, and what can run on which device."
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    given = parser.parse_args(arguments)
    found = describe()
    print(json.dumps(found, indent=2) if given.json else render(found))
    return 1 if any(device["fault"] for device in found["devices"].values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
