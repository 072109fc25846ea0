"""The table of traps is whole, and every mutant in it is killed by the tests that it names."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from packages import CSRC_VARIABLE, KERNELS, ROOT, formats_of, trimmed_copy
from traps import ALL_TRAPS, ELSEWHERE, TRAPS, Trap
from warm import WarmPytest

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


def run_named(warm: WarmPytest, names: Sequence[str], csrc: Path) -> subprocess.CompletedProcess[str]:
    """Run tests against another csrc folder; of a parametrized one no more cases than until the first fails."""
    words = [
        "-q",
        "-rf",
        "-p",
        "no:cacheprovider",
        "-p",
        "first_failure",
        "--no-header",
        *(str(HERE / name) for name in names),
    ]
    return warm.run(words, {**os.environ, CSRC_VARIABLE: str(csrc), "PYTHONPATH": str(HERE)})


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPytest]:
    process = WarmPytest(ROOT)
    yield process
    process.close()


def killed_by(name: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a test failed, crashed alone, or found that the package refuses to be imported."""
    refused = "ImportError: gguf_kernels loaded" in done.stdout
    test = re.escape(name) if name.endswith("]") else rf"{re.escape(name)}(\[|\b)"
    return refused or re.search(rf"^FAILED \S*{test}", done.stdout, re.MULTILINE) is not None


def formats_for(trap: Trap) -> set[str]:
    """The formats that a mutant is built with: two simple ones, its own file's, and what else its tests need."""
    own = {name for name in formats_of(KERNELS / "csrc") if trap.file == f"formats/{name.lower()}.cu"}
    return {"Q4_0", "Q8_0", *own, *trap.formats}


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.id)
def test_mutant_is_killed(trap: Trap, tmp_path: Path, build: Callable[..., Path], warm: WarmPytest) -> None:
    """Each named test fails with the mutant, or crashes; that it passes without, the normal run shows."""
    csrc = tmp_path / "csrc"
    trimmed_copy(KERNELS / "csrc", csrc, formats_for(trap))
    path = csrc / trap.file
    path.write_text(path.read_text().replace(trap.old, trap.new))
    build(csrc)  # a mutant that does not compile proves nothing
    done = run_named(warm, trap.tests, csrc)
    for name in trap.tests:
        if done.returncode < 0:  # a crash ends the run: ask each by itself
            alone = run_named(warm, [name], csrc)
            assert alone.returncode < 0 or killed_by(name, alone), f"{name} survived {trap.id}:\n{alone.stdout[-3000:]}"
        else:
            assert killed_by(name, done), f"{name} survived {trap.id}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
