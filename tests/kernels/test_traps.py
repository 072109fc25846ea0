"""The table of traps is whole, and every mutant in it is killed by the tests that it names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CSRC_VARIABLE, KERNELS, ROOT
from traps import ALL_TRAPS, ELSEWHERE, TRAPS, Trap

HERE = Path(__file__).resolve().parent


def test_every_trap_is_held_or_excused() -> None:
    held = {trap.number for trap in TRAPS}
    assert held | set(ELSEWHERE) == set(ALL_TRAPS)
    assert not held & set(ELSEWHERE)
    assert all(reason.strip() for reason in ELSEWHERE.values())
    assert len({trap.id for trap in TRAPS}) == len(TRAPS)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.id)
def test_a_mutants_text_occurs_once(trap: Trap) -> None:
    text = (KERNELS / "csrc" / trap.file).read_text()
    assert text.count(trap.old) == 1
    assert trap.new != trap.old


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.id)
def test_a_traps_tests_exist(trap: Trap) -> None:
    assert trap.tests
    for name in trap.tests:
        file, _, function = name.partition("::")
        text = (HERE / file).read_text()
        assert not function or f"def {function.partition('[')[0]}(" in text


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.id)
def test_mutant_is_killed(trap: Trap, tmp_path: Path, build: Callable[..., Path]) -> None:
    """Each named test by itself fails with the mutant, or crashes, or finds that the package refuses to be imported.

    That it passes without, the normal run shows.
    """
    csrc = tmp_path / "csrc"
    shutil.copytree(KERNELS / "csrc", csrc)
    path = csrc / trap.file
    path.write_text(path.read_text().replace(trap.old, trap.new))
    build(csrc)  # a mutant that does not compile proves nothing
    for name in trap.tests:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--no-header",
            str(HERE / name),
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, CSRC_VARIABLE: str(csrc)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        killed = done.returncode == 1 and (
            " failed" in done.stdout or "ImportError: gguf_kernels loaded" in done.stdout
        )
        crashed = done.returncode < 0
        assert killed or crashed, (
            f"{name} survived {trap.id} (exit {done.returncode}):\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
        )
