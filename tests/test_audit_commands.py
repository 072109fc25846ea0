"""Every row of data/commands.tsv judged, and compared with what the compiler makes of it."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from audit_samples import SOURCE, WITHOUT_HEADERS
from hypothesis import given
from hypothesis import strategies as st

from rocmbuild.audit.binary import inspect
from rocmbuild.audit.commands import Verdict, judge, judge_links
from rocmbuild.toolchain.model import Toolchain

CONTRACT = ("gfx1201",)


@dataclass(frozen=True)
class Row:
    case: str
    command: str
    kind: str
    targets: tuple[str, ...]
    rules: frozenset[str]
    compiler: str


def read_rows() -> list[Row]:
    rows = []
    for line in (Path(__file__).parent / "data" / "commands.tsv").read_text().splitlines():
        if not line.startswith("#"):
            case, command, kind, targets, rules, compiler = line.split("\t")
            split = [() if cell == "-" else tuple(cell.split()) for cell in (targets, rules)]
            rows.append(Row(case, command, kind, split[0], frozenset(split[1]), compiler))
    return rows


ROWS = read_rows()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the commands run in."""
    path = tmp_path_factory.mktemp("commands")
    for name in ("a.hip", "a.cpp", "a.cu"):
        (path / name).write_text(SOURCE.replace("NAME", "plain"))
    (path / "k.cl").write_text("kernel void k(global int *p) { p[0] = 1; }\n")
    (path / "guard.h").write_text("\n")
    (path / "good.rsp").write_text('--offload-arch=gfx1201\n-mno-wavefrontsize64 -DX=\\"q\\"\n')
    (path / "flags.rsp").write_text("-mwavefrontsize64 '-DNOTE=a b' \"--offload-arch=gfx90a\"")
    (path / "nested.rsp").write_text("@flags.rsp\n--offload-arch=gfx908")
    (path / "loop.rsp").write_text("@loop.rsp")
    config = "# --offload-arch=gfx1100\n--offload-arch=gfx1201,gfx908 \\\n -mno-wavefrontsize64 -O3\n"
    (path / "flags.cfg").write_text(config)
    return path


def shown(verdict: Verdict) -> tuple[str, ...]:
    return tuple(f"{t}/{verdict.waves[t]}" if t in verdict.waves else t for t in verdict.targets)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case)
def test_row(row: Row, folder: Path) -> None:
    verdict = judge(shlex.split(row.command), {}, CONTRACT, cwd=folder)
    assert verdict.kind == row.kind, verdict
    assert set(shown(verdict)) == set(row.targets), verdict
    assert {finding.rule for finding in verdict.findings} == row.rules, verdict.summary
    good = not row.rules - {"no-optimisation", "rdc", "target-old-spelling", "word-unknown", "not-understood"}
    assert verdict.ok is good
    if row.kind in ("device", "bundle") and not row.rules:
        assert verdict.summary == "good"
    if row.kind not in ("device", "bundle"):
        assert not verdict.judged
        assert verdict.reason


def test_every_case_of_the_issue_is_there() -> None:
    assert {str(n) for n in range(1, 24)} <= {row.case for row in ROWS}


WORDS = {
    "4": ["extra target gfx942"],
    "5": ["extra targets gfx900", "gfx906"],
    "6": ["empty target", "gfx906", "wave64", "extra target"],
    "7": ["extra target gfx90a", "old spelling"],
    "9": ["missing target gfx1201", "default gfx906", "wave64"],
    "11": ["not fixed"],
    "13d": ["@missing.rsp", "cannot be read"],
    "14": ["host only"],
    "16": ["judged by its binary"],
    "18": ["extra target gfx906", "from HIPCC_COMPILE_FLAGS_APPEND"],
    "23": ["extra target gfx906", "from CCC_OVERRIDE_OPTIONS"],
}


@pytest.mark.parametrize("case", WORDS)
def test_words(case: str, folder: Path) -> None:
    row = next(row for row in ROWS if row.case == case)
    summary = judge(shlex.split(row.command), {}, CONTRACT, cwd=folder).summary
    assert [word for word in WORDS[case] if word not in summary] == [], summary


def clang_command(row: Row, clang: Path) -> tuple[list[str], dict[str, str]]:
    """The row for the installed clang. AMD's hipcc is put in plain words: targets, -O3, the source as HIP."""
    words = shlex.split(row.command)
    env: dict[str, str] = {}
    while words[0] in ("env", "ccache") or ("=" in words[0] and not words[0].startswith("-")):
        name, equals, value = words.pop(0).partition("=")
        if equals:
            env[name] = value
    tool = Path(words.pop(0)).name
    if tool == "hipcc":
        words = ["--offload-device-only" if word == "--genco" else word for word in words]
        if not any(word.startswith("-O") for word in words):
            words.insert(0, "-O3")
        if "HCC_AMDGPU_TARGET" in env and not any(word.startswith("--offload-arch") for word in words):
            words.insert(0, f"--offload-arch={env['HCC_AMDGPU_TARGET']}")
        words = ["-x", "hip", *words, *shlex.split(env.get("HIPCC_COMPILE_FLAGS_APPEND", ""))]
    return [str(clang), *words, *WITHOUT_HEADERS], env


FAST = {"2", "3", "5", "9", "12", "21", "22", "23"}
COMPILED = [  # a few always, all of them in the slow tier
    pytest.param(row, id=row.case, marks=() if row.case in FAST else pytest.mark.slow)
    for row in ROWS
    if row.compiler != "-"
]


@pytest.mark.parametrize("row", COMPILED)
def test_row_against_what_the_compiler_emits(row: Row, folder: Path, tmp_path: Path, toolchain: Toolchain) -> None:
    """The targets and widths that the verdict foretells are those in the code objects."""
    verdict = judge(shlex.split(row.command), {}, CONTRACT, cwd=folder)
    argv, env = clang_command(row, toolchain.clang)
    out = tmp_path / "out"
    argv[argv.index("-o") + 1] = str(out)
    done = subprocess.run(argv, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if row.compiler == "refuses":
        assert done.returncode != 0, "the compiler takes it now: move the row to `accepts`"
        return
    assert done.returncode == 0, done.stderr
    codes = [code for library in inspect(out).libraries for code in library.code_objects]
    assert {code.target for code in codes} == set(verdict.targets)
    if row.compiler == "bitcode":
        assert {code.format for code in codes} == {"bitcode"}
        return
    widths = {(code.target, kernel.wave) for code in codes for kernel in code.kernels}
    assert widths == set(verdict.waves.items())


def test_the_parts_of_a_contract_may_come_from_several_commands() -> None:
    targets = ("gfx1201", "gfx1100")
    one = "clang++ -x hip a.hip -c --offload-device-only --offload-arch=gfx1100 -mno-wavefrontsize64 -O3"
    assert judge(one.split(), {}, targets).summary == "good"
    whole = one.replace("--offload-device-only ", "")
    assert judge(whole.split(), {}, targets).summary == "missing target gfx1201"
    both = whole.replace("gfx1100", "gfx1100,gfx1201")
    assert judge(both.split(), {}, targets).ok
    assert judge(whole.split(), {}, ()).ok  # nothing was asked for: nothing is missing


def test_rdc_objects_need_the_device_link() -> None:
    unit = judge(
        ["hipcc", "-fgpu-rdc", "-c", "a.hip", "-o", "a.o", "--offload-arch=gfx1201", "-mno-wavefrontsize64"],
        {},
        CONTRACT,
    )
    plain = judge(["clang++", "-shared", "a.o", "b.o", "-o", "lib.so"], {}, CONTRACT)
    assert [f.rule for f in judge_links([unit, plain])] == ["rdc-not-linked"]
    assert "will not load" in judge_links([unit, plain])[0].message
    for linker in ("clang++ -shared a.o -o lib.so --hip-link -fgpu-rdc", "hipcc -shared a.o -o lib.so -fgpu-rdc"):
        assert judge_links([unit, judge(linker.split(), {}, CONTRACT)]) == ()


def test_the_environment_argument_counts_like_an_assignment() -> None:
    argv = ["hipcc", "-c", "a.hip", "-o", "a.o", "--offload-arch=gfx1201", "-mno-wavefrontsize64"]
    environ = {"HIPCC_COMPILE_FLAGS_APPEND": "-mwavefrontsize64"}
    assert judge(argv, environ, CONTRACT).waves == {"gfx1201": 64}
    assert environ == {"HIPCC_COMPILE_FLAGS_APPEND": "-mwavefrontsize64"}
    assert judge(["env", "-u", "HIPCC_COMPILE_FLAGS_APPEND", *argv], environ, CONTRACT).ok


def test_odd_commands_are_not_errors_of_the_program(tmp_path: Path) -> None:
    for argv in ([], [""], ["hipcc"], ["clang++", "-x"], ["clang++", "-Xarch_device"], ["hipcc", "-o"], ["env"]):
        assert not judge(argv, {}, CONTRACT, cwd=tmp_path).judged
    (tmp_path / "wide.rsp").write_bytes(b"\xff\xfe-\0O\0")
    odd = judge(["clang++", "@wide.rsp", "@."], {}, CONTRACT, cwd=tmp_path)
    assert (odd.judged, [finding.rule for finding in odd.findings]) == (False, ["response-file"])
    environ = {"CCC_OVERRIDE_OPTIONS": "# s/(/x/ ? s/a X"}
    verdict = judge(["clang++", "-x", "hip", "-c", "a.hip", "--offload-arch=gfx1201"], environ, CONTRACT)
    assert {"environment"} <= {finding.rule for finding in verdict.findings}


FLAGS = st.sampled_from(
    [
        "--offload-arch=gfx1201",
        "--offload-arch=gfx1100,gfx942",
        "--offload-arch=",
        "--no-offload-arch=gfx1201",
        "--no-offload-arch=all",
        "-mwavefrontsize64",
        "-mno-wavefrontsize64",
        "-Xarch_gfx1201",
        "-Xarch_device",
        "-Xclang",
        "-target-feature",
        "+wavefrontsize64",
        "-o",
        "-c",
        "-x",
        "hip",
        "a.hip",
        "@good.rsp",
        "-O0",
        "--",
    ]
)


@given(st.lists(FLAGS, max_size=12), st.sampled_from(["hipcc", "clang++", "g++"]))
def test_any_words_give_a_consistent_verdict(words: list[str], tool: str) -> None:
    """A verdict is ok only if what comes out is exactly asked for, 32 lanes wide."""
    verdict = judge([tool, *words], {}, CONTRACT)
    assert set(verdict.waves) == (set(verdict.targets) if verdict.kind == "device" else set())
    if verdict.kind == "device" and verdict.ok:
        assert dict(verdict.waves) == {"gfx1201": 32}
    if verdict.kind == "device" and dict(verdict.waves) != {"gfx1201": 32}:
        assert not verdict.ok
