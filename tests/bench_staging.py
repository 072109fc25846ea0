"""How long staging takes, next to torch's hipify called as its BuildExtension calls it. Prints JSON.

    python tests/bench_staging.py [--rounds N] [--files N]

Each figure of a cold stage is the wall time of a whole fresh process: Python's start, the imports that the job needs
(for torch: torch.utils.cpp_extension, which every setup.py with a BuildExtension imports), the conversion. Both sides
convert with the engine of the installed torch, in turns, on trees of their own; the least and the median of the rounds
are given. The tree of many files is made of the kernels' own sources, no two files alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

TORCH = """
import glob, os, sys
os.chdir(sys.argv[1])
import torch.utils.cpp_extension
from torch.utils.hipify import hipify_python
here = os.getcwd()
sources = [path for path in glob.glob("csrc/**/*", recursive=True) if path.endswith((".cu", ".cpp"))]
hipify_python.hipify(
    project_directory=here,
    output_directory=here,
    header_include_dirs=["csrc"],
    includes=[os.path.join(here, "*")],
    extra_files=[os.path.abspath(path) for path in sources],
    show_detailed=True,
    is_pytorch_extension=True,
    hipify_extra_files_only=True,
)
"""
OURS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from rocmbuild.staging.stage import make_stage
project, cache, hipify, version = sys.argv[1:]
make_stage(Path(project), globs=["csrc/**/*.cu", "csrc/**/*.cpp"], include_dirs=["csrc"],
           engine=SimpleNamespace(version=version, hipify=Path(hipify)), hip_version="7.2.4", cache=Path(cache),
           hipify_engine="torch")
"""


def make_tree(folder: Path, count: int) -> None:
    """A tree of so many files: copies of the kernels' sources, each with namespaces and includes of its own."""
    sources = ROOT / "kernels" / "csrc"
    files = sorted(path for path in sources.rglob("*") if path.suffix in (".cu", ".cuh", ".cpp", ".h"))
    for number in range(count):
        copy, file = divmod(number, len(files))
        text = files[file].read_text()
        text = text.replace('#include "', f'#include "m{copy:03}/').replace("namespace gguf", f"namespace gguf{copy}")
        path = folder / "csrc" / f"m{copy:03}" / files[file].relative_to(sources)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// copy {copy}\n{text}")


def process(code: str, *words: object) -> float:
    """Seconds that a fresh interpreter takes for some code, to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, stdout=subprocess.DEVNULL, cwd="/")
    return time.perf_counter() - start


def spread(times: list[float]) -> dict[str, float]:
    return {"least_s": round(min(times), 4), "median_s": round(statistics.median(times), 4)}


def bench(place: Path, rounds: int, count: int) -> dict[str, Any]:
    from rocmbuild.staging.stage import Stage, make_stage
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    import_path = subprocess.run(
        [sys.executable, "-c", "import torch, os; print(os.path.dirname(torch.__file__)); print(torch.__version__)"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    hipify, version = Path(import_path[0]) / "utils" / "hipify", import_path[1]
    many = place / "many"
    make_tree(many, count)
    shutil.copytree(ROOT / "kernels" / "csrc", place / "kernels" / "csrc")
    times: dict[str, list[float]] = {}

    def took(what: str, seconds: float) -> None:
        times.setdefault(what, []).append(seconds)

    def stage(tree: Path, cache: Path) -> tuple[float, Stage]:
        start = time.perf_counter()
        made = make_stage(
            tree,
            globs=["csrc/**/*.cu", "csrc/**/*.cpp"],
            include_dirs=["csrc"],
            engine=SimpleNamespace(version=version, hipify=hipify),
            hip_version="7.2.4",
            hipify_engine="torch",
            cache=cache,
        )
        return time.perf_counter() - start, made

    for turn in range(rounds):
        for name, tree in (("kernels", place / "kernels"), ("many", many)):
            shutil.copytree(tree, place / "theirs" / "csrc" / "..", dirs_exist_ok=True)
            took(f"torch_{name}", process(TORCH, place / "theirs"))
            shutil.rmtree(place / "theirs")
            cache = place / f"cache-{name}-{turn}"
            took(f"cold_{name}", process(OURS, tree, cache, hipify, version))
            took(f"hit_{name}_in_process", stage(tree, cache)[0])
        seconds, first = stage(many, place / f"inside-{turn}")
        took("cold_many_in_process", seconds)
        file = next(path for path in (many / "csrc" / "m003").rglob("mat_vec.cuh"))
        kept = file.read_bytes()
        for edit in range(3):
            file.write_bytes(kept + f"// edit {edit}\n".encode())
            seconds, edited = stage(many, place / f"inside-{turn}")
            assert len(edited.fresh) == 1
            took("edit_many_in_process", seconds)
        file.write_bytes(kept + b"// edit in another process\n")
        took("edit_many", process(OURS, many, place / f"inside-{turn}", hipify, version))
        file.write_bytes(kept)
        took("import", process("import rocmbuild.staging.stage"))
        took("bare_python", process("pass"))

    def ratio(one: str, other: str) -> dict[str, float]:
        return {
            "of_least": round(min(times[one]) / min(times[other]), 4),
            "of_medians": round(statistics.median(times[one]) / statistics.median(times[other]), 4),
        }

    return {
        "files": {
            "kernels": len(stage(place / "kernels", place / "cache-kernels-0")[1].files),
            "many": len(first.files),
        },
        "torch": version,
        "sdk_found_by_itself": find_torch_sdk().version,
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "times": {name: spread(values) for name, values in times.items()},
        "ratios": {
            "torch over rocmbuild, cold kernels": ratio("torch_kernels", "cold_kernels"),
            "torch over rocmbuild, cold tree": ratio("torch_many", "cold_many"),
            "edit over cold tree, whole processes": ratio("edit_many", "cold_many"),
            "edit over cold tree, in process": ratio("edit_many_in_process", "cold_many_in_process"),
        },
        "cache_bytes": {
            "kernels": sum(path.stat().st_size for path in (place / "cache-kernels-0").iterdir() if path.is_file()),
            "many": sum(path.stat().st_size for path in (place / "cache-many-0").iterdir() if path.is_file()),
            "sources of many": sum(path.stat().st_size for path in many.rglob("*") if path.is_file()),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(bench(Path(place), args.rounds, args.files), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
