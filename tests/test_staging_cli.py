"""`rocmbuild stage` and `rocmbuild cache`: what they print, in every format, and how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from support import digest_tree, needs_torch_sdk, read_only

from rocmbuild.cli import main
from rocmbuild.errors import InputError
from rocmbuild.locks import Lock
from rocmbuild.staging import upkeep
from rocmbuild.staging.findings import RULES

PYPROJECT = """
[tool.rocmbuild]
platforms = ["host"]
{options}
[[tool.rocmbuild.extensions]]
name = "p.lib.k"
sources = ["csrc/*.cu"]
defines = {{ OURS = "1" }}
[[tool.rocmbuild.extensions]]
name = "p.lib.m"
sources = ["csrc/*.cu"]
defines = {{ OURS = "1", APART = "2" }}
"""
GOOD = "__global__ void k(int* p) { *p = 1; }\nvoid f(int* p) { k<<<1, 32>>>(p); }\n"
BAD = GOOD + "int lane = threadIdx.x >> 6;\n  cudaNoTwin(1);\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "p p"
    (folder / "csrc").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(options=""))
    (folder / "csrc" / "a.cu").write_text(GOOD)
    yield folder
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")) == sorted(
        ["pyproject.toml", *(f"csrc/{path.name}" for path in (folder / "csrc").iterdir())]
    )


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


# ------------------------------------------------------------------------------------------- stage


@needs_torch_sdk
def test_a_good_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digest_tree(project)
    assert run(capsys, "stage", project, "--check") == (0, "0 errors, 0 warnings\n", "")
    code, out, _ = run(capsys, "stage", project)
    assert code == 0
    assert re.search(r"csrc/a\.cu +csrc/a\.hip +converted +1 +0 +0\n", out)
    assert "0 of 1 files converted now" in out  # the check has done it
    assert digest_tree(project) == before


@needs_torch_sdk
def test_findings_as_text(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "csrc" / "a.cu").write_text(BAD)
    code, out, _ = run(capsys, "stage", project, "--check")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("csrc/a.cu:3:24: warning: `>> 6` on a thread index")
    assert lines[1].startswith("    ")
    assert lines[2].startswith("csrc/a.cu:4:3: error: cudaNoTwin is left over")
    assert lines[-1] == "1 error, 1 warning"
    assert run(capsys, "stage", project)[0] == 1


@needs_torch_sdk
def test_findings_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "csrc" / "a.cu").write_text(BAD)
    for words in (["--json"], ["--format", "json"]):
        code, out, err = run(capsys, "stage", project, "--check", *words)
        value = json.loads(out)
        assert (code, err) == (1, "")
        assert (value["ok"], value["errors"], value["warnings"]) == (False, 1, 1)
        assert [(f["path"], f["line"], f["column"], f["rule"]) for f in value["findings"]] == [
            ("csrc/a.cu", 3, 24, "lane-arithmetic"),
            ("csrc/a.cu", 4, 3, "leftover"),
        ]
    value = json.loads(run(capsys, "stage", project, "--json")[1])
    assert value["files"][0]["status"] == "converted"
    assert value["leftovers"] == 1


def check_sarif(log: dict[str, Any], project: Path) -> list[dict[str, Any]]:
    """What SARIF 2.1.0 asks of a log, in so far as this one uses it; its results are returned."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    [one] = log["runs"]
    driver = one["tool"]["driver"]
    assert driver["name"] == "rocmbuild"
    ids = [rule["id"] for rule in driver["rules"]]
    assert ids == list(RULES)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["help"]["text"].endswith(".")
        assert rule["defaultConfiguration"]["level"] in ("error", "warning")
    base = urlparse(one["originalUriBaseIds"]["%SRCROOT%"]["uri"])
    assert base.scheme == "file"
    assert base.path.endswith("/")
    assert Path(unquote(base.path)) == project
    assert one["columnKind"] == "unicodeCodePoints"
    for result in one["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        assert result["message"]["text"]
        [location] = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
        uri = physical["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", uri)
        assert (project / unquote(uri)).is_file()
        assert physical["region"]["startLine"] >= 1
        assert physical["region"]["startColumn"] >= 1
        assert all(re.fullmatch("[0-9a-f]+", value) for value in result["partialFingerprints"].values())
    return one["results"]


@needs_torch_sdk
def test_findings_as_sarif(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "csrc" / "a b [1]ü.cu").write_text(BAD)
    (project / "csrc" / "wide.cuh").write_text("int x;\n", encoding="utf-16")
    code, out, _ = run(capsys, "stage", project, "--check", "--format", "sarif", "--sarif", tmp_path / "log.sarif")
    assert code == 1
    assert json.loads(out) == json.loads((tmp_path / "log.sarif").read_text())
    results = check_sarif(json.loads(out), project)
    assert [result["ruleId"] for result in results] == ["lane-arithmetic", "leftover", "skipped"]
    first = [result["partialFingerprints"] for result in results]
    (project / "csrc" / "a b [1]ü.cu").write_text("\n\n" + BAD)  # a moved line is the same finding
    run(capsys, "stage", project, "--check", "--sarif", tmp_path / "log.sarif")
    results = check_sarif(json.loads((tmp_path / "log.sarif").read_text()), project)
    assert [result["partialFingerprints"] for result in results] == first
    assert results[0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 5


@needs_torch_sdk
def test_files_that_cannot_be_staged_are_findings_too(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "csrc" / "b.cu").symlink_to(tmp_path / "gone.cu")
    (tmp_path / "out.cuh").touch()
    (project / "csrc" / "c.cuh").symlink_to(tmp_path / "out.cuh")
    code, out, _ = run(capsys, "stage", project, "--check", "--json")
    assert code == 2
    found = json.loads(out)["findings"]
    assert [(f["path"], f["rule"], f["severity"]) for f in found] == [
        ("csrc/b.cu", "unusable", "error"),
        ("csrc/c.cuh", "unusable", "error"),
    ]
    assert "is a link out of the project" in found[1]["message"]
    code, out, err = run(capsys, "stage", project)
    assert (code, out) == (2, "")
    assert "'csrc/c.cuh' is a link out of the project" in err


@needs_torch_sdk
def test_what_the_configuration_allows(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "csrc" / "a.cu").write_text(BAD + "#include <cutlass/cutlass.h>\n")
    assert run(capsys, "stage", project, "--check")[1].endswith("2 errors, 1 warning\n")
    (project / "pyproject.toml").write_text(
        PYPROJECT.format(options='hipify-allow = ["cudaNoTwin", "cutlass/cutlass.h"]\nhipify-engine = "torch"')
    )
    assert run(capsys, "stage", project, "--check")[0] == 0
    assert json.loads(run(capsys, "stage", project, "--json")[1])["leftovers"] == 2  # allowed, and still counted
    for wrong in ('hipify-allow = ["cuda*"]', 'hipify-allow = "x"', 'hipify-engine = "clang"', 'hipify-alow = ["x"]'):
        (project / "pyproject.toml").write_text(PYPROJECT.format(options=wrong))
        code, _, err = run(capsys, "stage", project, "--check")
        assert code == 2, wrong
        assert "hipify-" in err


@needs_torch_sdk
def test_macros_that_every_extension_is_given_decide_branches(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "csrc" / "a.cu").write_text(
        GOOD + "#if OURS\n#else\ncudaNoTwin1();\n#endif\n#ifndef OURS\ncudaNoTwin2();\n#endif\n#if OURS > 1\n"
        "cudaNoTwin3();\n#endif\n#ifdef APART\ncudaNoTwin4();\n#else\ncudaNoTwin5();\n#endif\n"
    )
    out = run(capsys, "stage", project, "--check")[1]
    assert re.findall(r"cudaNoTwin\d", out) == ["cudaNoTwin4", "cudaNoTwin5"]


@needs_torch_sdk
def test_a_check_needs_no_toolchain(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text(
        PYPROJECT.format(options="").replace('["host"]', '["rocm"]\ntoolchain = "no-such-toolchain"')
    )
    assert run(capsys, "stage", project, "--check")[0] == 0
    code, _, err = run(capsys, "stage", project)
    assert code != 0
    assert "no-such-toolchain" in err


@needs_torch_sdk
def test_the_trees_can_be_written_out(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "stage", project, "-o", tmp_path / "out")[0] == 0
    assert (tmp_path / "out/cuda/csrc/a.cu").read_text() == GOOD
    assert "hipLaunchKernelGGL" in (tmp_path / "out/hip/csrc/a.hip").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "hip").mkdir()
    (tmp_path / "mine" / "hip" / "thesis.tex").touch()
    code, _, err = run(capsys, "stage", project, "-o", tmp_path / "mine")
    assert code == 2
    assert "is not a folder of rocmbuild's" in err


def test_the_hook_for_pre_commit_is_this_command(root: Path) -> None:
    text = (root / ".pre-commit-hooks.yaml").read_text()
    assert re.findall(r"^- id: (.*)$", text, re.M) == ["rocmbuild-stage"]
    assert re.findall(r"^  entry: (.*)$", text, re.M) == ["rocmbuild stage --check"]
    assert "  pass_filenames: false\n" in text


# ------------------------------------------------------------------------------------------- cache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kinds(cache: Path) -> list[str]:
    return sorted(item.kind for item in upkeep.items(cache))


@needs_torch_sdk
def test_list_and_verify(project: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cache", "list")[:2] == (
        0,
        f"kind  name  size  last used\n----  ----  ----  ---------\n\n0 items, 0 B, in {cache}\n",
    )
    run(capsys, "stage", project)
    value = json.loads(run(capsys, "cache", "list", "--json")[1])
    assert [item["kind"] for item in value["items"]] == ["stage", "tables"]
    assert value["bytes"] == sum(item["bytes"] for item in value["items"]) > 0
    assert all(abs(item["used"] - time.time()) < 600 for item in value["items"])
    assert json.loads(run(capsys, "cache", "verify", "--json")[1]) == {"ok": True, "checked": 2, "damaged": []}
    path = Path(value["items"][0]["path"])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, out, _ = run(capsys, "cache", "verify")
    assert code == 1
    assert f"{path}: its content differs from its digest; it is made again" in out
    assert run(capsys, "stage", project)[0] == 0
    assert run(capsys, "cache", "verify")[:2] == (0, "2 entries, 0 damaged\n")


def entry(cache: Path, key: str, size: int, age: float) -> Path:
    path = cache / "stages" / (key * 64)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - age,) * 2)
    return path


def build(cache: Path, name: str, project: Path | None, *, editable: bool = False, age: float = 0) -> Path:
    path = cache / "builds" / name
    (path / "obj").mkdir(parents=True)
    (path / "obj" / "a.o").write_bytes(b"x" * 50000)
    (path / ".lock").touch()
    if project:
        upkeep.mark_build(path, project, editable=editable)
    for each in [*path.rglob("*"), path]:
        os.utime(each, (time.time() - age,) * 2)
    return path


def test_prune_by_age_and_size_takes_the_longest_unused_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(cache))
    old, middle, new = (entry(cache, key, 100_000, age) for key, age in (("a", 9e6), ("b", 1000), ("c", 10)))
    (cache / "probes").mkdir()
    (cache / "probes" / "p.json").write_text("{}")
    (cache / "elsewhere").mkdir()
    (cache / "elsewhere" / "x").touch()
    code, out, _ = run(capsys, "cache", "prune", "--older-than", "30d")
    assert code == 0
    assert out.startswith("1 items removed, 100.0 KiB")
    assert (old.exists(), middle.exists()) == (False, True)
    value = json.loads(run(capsys, "cache", "prune", "--max-size", "150k", "--json")[1])
    assert [item["name"][0] for item in value["removed"]] == ["b"]
    assert value["bytes_left"] <= 150 * 1024
    assert new.exists()
    run(capsys, "cache", "clear")
    assert kinds(cache) == []
    assert (cache / "elsewhere" / "x").exists()  # not rocmbuild's to remove


def test_a_clock_that_was_set_back_makes_nothing_old(cache: Path) -> None:
    future = entry(cache, "d", 10, -1e9)
    assert upkeep.prune(cache, older_than=1.0).removed == ()
    assert future.exists()


def test_build_folders(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "here").mkdir()
    gone = build(cache, "gone-1", tmp_path / "gone")
    kept = build(cache, "here-2", tmp_path / "here", age=1e6)
    editable = build(cache, "here-3", tmp_path / "here", editable=True, age=1e6)
    unknown = build(cache, "unknown-4", None, age=1e6)
    upkeep.mark_build(editable, tmp_path / "here", editable=False)  # a wheel built since: the install is still there
    assert {item.name: item.note for item in upkeep.items(cache)} == {
        "gone-1": "project gone", "here-2": "", "here-3": "editable", "unknown-4": "",
    }  # fmt: skip
    assert [item.name for item in upkeep.prune(cache).removed] == ["gone-1"]
    assert not gone.exists()
    done = upkeep.prune(cache, older_than=1000)
    assert sorted(item.name for item in done.removed) == ["here-2", "unknown-4"]
    assert not kept.exists()
    assert not unknown.exists()
    assert [item.item.name for item in upkeep.clear(cache).kept] == ["here-3"]
    assert editable.exists()
    assert [item.name for item in upkeep.clear(cache, editable=True).removed] == ["here-3"]
    assert list((cache / "builds").iterdir()) == []


def test_what_a_running_build_uses_stays(tmp_path: Path, cache: Path) -> None:
    busy = build(cache, "busy-1", tmp_path / "gone", age=1e9)
    made = cache / "stages" / f".new-{'e' * 64}-xyz"
    made.parent.mkdir(parents=True)
    made.touch()
    left = cache / "stages" / f".new-{'f' * 64}-xyz"
    left.touch()
    old_layout = cache / "stages" / ("0" * 64)
    (old_layout / "hip").mkdir(parents=True)
    with Lock.acquire(busy / ".lock"), Lock.acquire(cache / "stages" / ".locks" / f"{'e' * 64}.lock"):
        assert {item.note for item in upkeep.items(cache) if item.name == "busy-1"} == {"in use"}
        for removal in (upkeep.prune(cache, max_size=0, older_than=0.0), upkeep.clear(cache, editable=True)):
            assert busy.exists()
            assert made.exists()
            assert [kept.reason for kept in removal.kept] == ["in use"]
        assert not left.exists()
        assert not old_layout.exists()
    upkeep.clear(cache)
    assert kinds(cache) == []
    assert list((cache / "stages" / ".locks").iterdir()) == []


BUSY = """
import sys
from pathlib import Path
from rocmbuild import pipeline
with pipeline.locked(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "made").write_text("here")
    print("done", flush=True)
"""


def test_a_build_that_waits_while_its_folder_is_removed_gets_a_new_one(tmp_path: Path, cache: Path) -> None:
    folder = build(cache, "p-1", tmp_path / "gone")
    lock = Lock.acquire(folder / ".lock")
    waiting = subprocess.Popen(
        [sys.executable, "-c", BUSY, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr is not None
    assert "waiting for another build" in waiting.stderr.readline()
    trash = folder.with_name(".trash-test")
    folder.rename(trash)  # as a removal does that holds the lock
    lock.release()
    out, err = waiting.communicate(timeout=30)
    assert (out, waiting.returncode) == ("done\n", 0), err
    assert (folder / "made").read_text() == "here"
    assert upkeep.prune(cache).removed
    assert not trash.exists()


@needs_torch_sdk
@pytest.mark.slow
def test_builds_go_on_while_the_cache_is_cleared_again_and_again(project: Path, cache: Path) -> None:
    """Stages read, made and cleared at once by real processes: every stage is whole."""
    code = (
        "import sys; from rocmbuild.cli import main\n"
        "for _ in range(12):\n    assert main(['stage', sys.argv[1], '--check']) == 0\n"
    )
    builds = [subprocess.Popen([sys.executable, "-c", code, project], stdout=subprocess.DEVNULL) for _ in range(3)]
    rounds = 0
    while any(process.poll() is None for process in builds):
        upkeep.clear(cache)
        rounds += 1
    assert [process.returncode for process in builds] == [0, 0, 0]
    assert rounds > 3


@needs_torch_sdk
def test_a_read_only_cache_can_be_listed_and_says_what_stays(
    project: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "stage", project)
    with read_only(cache):
        assert run(capsys, "cache", "list")[0] == 0
        assert run(capsys, "cache", "verify")[0] == 0
        done = upkeep.clear(cache)
        assert done.removed == ()
        assert done.kept
        assert all(re.search("Read-only|denied", kept.reason) for kept in done.kept)


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("500k", 512000), ("2G", 2 << 30), ("1.5 MiB", 3 << 19), ("1tb", 1 << 40)]
)
def test_sizes(text: str, value: int) -> None:
    assert upkeep.size(text) == value


@pytest.mark.parametrize(("text", "value"), [("90m", 5400), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)])
def test_ages(text: str, value: int) -> None:
    assert upkeep.age(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1M", "5 apples", "1e9", "30"])
def test_what_is_no_age_or_size(text: str) -> None:
    with pytest.raises(InputError):
        upkeep.age(text)
    if text != "30":
        with pytest.raises(InputError):
            upkeep.size(text)


def test_a_size_that_is_none_ends_with_2(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(cache))
    code, out, err = run(capsys, "cache", "prune", "--max-size", "lots")
    assert (code, out) == (2, "")
    assert "'lots': not a size" in err
