"""`rocmbuild run`: what another build system compiles is seen, held to 32 lanes and judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs_toolchain, require

from rocmbuild.build.front import compiles_hip, expanded
from rocmbuild.toolchain.model import Toolchain

KERNEL = """#include <hip/hip_runtime.h>
__global__ void scale(float* y, float a) { y[threadIdx.x] *= a; }
void launch(float* y) { scale<<<1, 32>>>(y, 2.0f); }
"""
MAKEFILE = "k.o: k.hip\n\t$(HIPCC) -fPIC $(FLAGS) -c $< -o $@\n"


def run(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocmbuild", "run", *words],
        env={**os.environ, **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def make_project(tmp_path: Path) -> Path:
    if not shutil.which("make"):
        require("make")
    (tmp_path / "k.hip").write_text(KERNEL)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "hip", "by_hipcc"),
    [
        ("-c k.hip -o k.o", True, True),
        ("-c k.cu", False, True),
        ("-x hip -c k.cu", True, True),
        ("-xhip -c k.anything", True, True),
        ("-x c++ -c k.hip", False, False),
        ("-c k.cpp -o k.hip", False, True),
        ("k.o -o libk.so -shared", False, False),
        ("-E k.hip", False, False),
        ("--version", False, False),
    ],
)
def test_what_compiles_hip(words: str, hip: bool, by_hipcc: bool) -> None:
    assert compiles_hip(words.split(), hipcc=False) == hip
    assert compiles_hip(words.split(), hipcc=True) == by_hipcc


def test_response_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "words.rsp"
    file.write_text("-c 'a b.hip' @missing")
    assert expanded(["-O2", f"@{file}"]) == ["-O2", "-c", "a b.hip", "@missing"]


@needs_toolchain
def test_a_makefile_is_recorded_and_judged(make_project: Path) -> None:
    done = run(
        make_project, "--targets", "gfx1201", "--json", "--audit", "*.o", "--", "make", "FLAGS=--offload-arch=gfx1201"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # make's own lines are on standard error
    assert result["audit"]["compiled"]["targets"] == result["audit"]["emitted"]["targets"] == ["gfx1201"]
    assert result["audit"]["compiled"]["device_commands"] == 1


@needs_toolchain
def test_another_target_than_asked_for_fails(make_project: Path) -> None:
    done = run(
        make_project,
        "--record",
        "record.json",
        "--",
        "make",
        "FLAGS=--offload-arch=gfx1100",
        FREETOKEN_ROCM_ARCH="gfx1201",
    )
    assert done.returncode == 1
    assert "extra target gfx1100" in done.stderr
    assert "missing target gfx1201" in done.stderr
    record = json.loads((make_project / "record.json").read_text())
    (command,) = record["commands"]
    assert command["source"] == str(make_project / "k.hip")
    assert "-mno-wavefrontsize64" in command["argv"]
    assert any(word.startswith("-O") for word in command["argv"])


@needs_toolchain
@pytest.mark.parametrize("flags", ["--offload-arch=gfx90a", "--offload-arch=gfx1201 -mwavefrontsize64"])
def test_64_lanes_do_not_compile(make_project: Path, flags: str) -> None:
    done = run(make_project, "--targets", "gfx1201", "--", "make", f"FLAGS={flags}")
    assert done.returncode == 1
    assert "needs target feature wavefrontsize32" in done.stderr
    assert not (make_project / "k.o").exists()


@needs_toolchain
def test_the_command_sees_the_environment_and_this_one_is_left_alone(tmp_path: Path, toolchain: Toolchain) -> None:
    done = run(
        tmp_path,
        "--targets",
        "rdna4",
        "--",
        "sh",
        "-c",
        'echo "$PYTORCH_ROCM_ARCH"; ls "$ROCM_HOME/include"; command -v hipcc',
    )
    arch, *headers, hipcc = done.stdout.split()
    assert arch == "gfx1200;gfx1201"
    assert "hip" in headers
    assert Path(hipcc).parent.name == "bin"
    assert Path(hipcc).parent != toolchain.prefix / "bin"
    assert done.returncode == 1  # ROCm was asked for, and nothing was compiled
    assert not Path(hipcc).exists()  # it was there for the command only


def test_wrong_usage(tmp_path: Path) -> None:
    assert "no target" in run(tmp_path, "--", "true").stderr
    assert run(tmp_path, "--", "true").returncode == 2
    assert run(tmp_path, "--targets", "gfx90a", "--", "true").returncode == 2


@needs_toolchain
def test_no_command_and_a_missing_one(tmp_path: Path) -> None:
    assert run(tmp_path, "--targets", "gfx1201").returncode == 2
    done = run(tmp_path, "--targets", "gfx1201", "--", "no-such-program")
    assert done.returncode == 3
    assert "no-such-program was not found" in done.stderr
    assert "Traceback" not in done.stderr
