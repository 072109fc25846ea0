"""Times of the build hooks, as JSON. No test.

    python tests/bench_build.py [--project kernels] [--targets gfx1100,gfx1201] [--cold]

For a copy of a project: the wheel hook when nothing changed, after an edit of one header, with one target more, and
from nothing with two jobs and (--cold) with one; the commands that ran, and those of the plan that need not run. In the
same run, the wheel hook when nothing changed of torch's BuildExtension and of scikit-build-core, each on a project with
as many C++ files as the copy has compilations; these hold one line each and no device code, which is to the others'
advantage. Every hook is called in a process of its own, and a time is that of the whole process. Each no-op is the
least and the median of several; `processor` is the time of processors, which the load of the machine hardly moves.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOOK = "import sys, {backend} as b; print(b.build_wheel(sys.argv[1], {settings!r}))"


def hook(backend: str, project: Path, out: Path, settings: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds of a process that calls a wheel hook: by the clock, and of processors, its children's too."""
    out.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", HOOK.format(backend=backend, settings=settings), str(out)]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MAX_JOBS": "2"}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"bench_build: {backend} in {project} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return round(seconds, 3), round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, 3)


def several(count: int, *call: Any) -> dict[str, float]:
    times, processor = zip(*(hook(*call) for _ in range(count)), strict=True)
    return {
        "least": min(times),
        "median": round(statistics.median(times), 3),
        "processor": round(statistics.median(processor), 3),
    }


def commands(build: Path) -> dict[str, int]:
    """When each recorded command ran (ns)."""
    return {path.name: path.stat().st_mtime_ns for path in (build / "commands").glob("*.json")}


def measured(project: Path, out: Path, settings: dict[str, str]) -> dict[str, Any]:
    """A build, with the commands that it ran and those it did not have to."""
    build = Path(settings["build-dir"])
    before = commands(build)
    seconds, processor = hook("rocmbuild.build_meta", project, out, settings)
    now = commands(build)
    edges = len(json.loads((build / "record.json").read_text())["commands"])
    ran = sum(before.get(name) != at for name, at in now.items())
    return {"seconds": seconds, "processor": processor, "edges": edges, "run": ran, "saved": edges - ran}


def torch_project(folder: Path, files: int) -> Path:
    folder.mkdir(parents=True)
    names = [f"s{number}.cpp" for number in range(files)]
    for number, name in enumerate(names):
        (folder / name).write_text(f"int f{number}() {{ return {number}; }}\n")
    (folder / "setup.py").write_text(
        "from setuptools import setup\nfrom torch.utils.cpp_extension import BuildExtension, CppExtension\n"
        f"setup(name='b', version='1', py_modules=[], ext_modules=[CppExtension('b_c', {names!r})], "
        "cmdclass={'build_ext': BuildExtension})\n"
    )
    return folder


def cmake_project(folder: Path, files: int) -> Path:
    folder.mkdir(parents=True)
    names = [f"s{number}.cpp" for number in range(files)]
    for number, name in enumerate(names):
        (folder / name).write_text(f"int f{number}() {{ return {number}; }}\n")
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.22)\nproject(b LANGUAGES CXX)\nadd_library(b SHARED {' '.join(names)})\n"
        "install(TARGETS b LIBRARY DESTINATION b)\n"
    )
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'
        '[project]\nname = "b"\nversion = "1"\n[tool.scikit-build]\nbuild-dir = "build"\nwheel.packages = []\n'
    )
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", type=Path, default=ROOT / "kernels")
    parser.add_argument("--targets", default="gfx1100,gfx1201")
    parser.add_argument("--more", default="gfx1200", help="the target that is added")
    parser.add_argument("--header", default="csrc/device/activations.cuh", help="the header that is edited")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="build from nothing with one job, too")
    args = parser.parse_args()
    result: dict[str, Any] = {"load_before": os.getloadavg(), "processors": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="bench-build-") as name:
        work = Path(name)
        project, out = work / "project", work / "dist"
        shutil.copytree(args.project, project)
        settings = {"targets": args.targets, "build-dir": str(work / "build"), "jobs": "2"}
        result["cold, two jobs"] = measured(project, out, settings)
        own = several(args.count, "rocmbuild.build_meta", project, out, settings)
        compilations = sum(
            command["kind"] in ("device", "host", "cxx")
            for command in json.loads((work / "build/record.json").read_text())["commands"]
        )
        others = {}
        for label, backend, other in (
            ("torch's BuildExtension", "setuptools.build_meta", torch_project(work / "torch", compilations)),
            ("scikit-build-core", "scikit_build_core.build", cmake_project(work / "cmake", compilations)),
        ):
            hook(backend, other, work / "other")
            others[label] = several(args.count, backend, other, work / "other")
        own_again = several(args.count, "rocmbuild.build_meta", project, out, settings)
        result["no-op"] = {"rocmbuild": own, "rocmbuild, after the others": own_again, **others, "files": compilations}
        result["no-op"]["as many times rocmbuild's"] = {
            label: {key: round(times[key] / own_again[key], 1) for key in times} for label, times in others.items()
        }
        header = project / args.header
        header.write_text(header.read_text() + "// edited\n")
        result[f"edit of {args.header}"] = measured(project, out, settings)
        more = {**settings, "targets": f"{args.targets},{args.more}"}
        result[f"{args.more} added"] = measured(project, out, more)
        if args.cold:
            shutil.rmtree(work / "build")
            result["cold, one job"] = measured(project, out, {**settings, "jobs": "1"})
    result["load_after"] = os.getloadavg()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
