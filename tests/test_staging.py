"""Whole stages: the key, the store, real processes that race and die, read-only and full disks, and the compilers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support import digest_tree, needs_toolchain, needs_torch_sdk, read_only, require

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.staging import stage as stage_module
from rocmbuild.staging.stage import FindingsError, Stage, make_stage, sync
from rocmbuild.toolchain.torch_sdk import find_torch_sdk

pytestmark = needs_torch_sdk


@dataclass(frozen=True)
class Sdk:
    """An engine and its release, as staging wants them."""

    version: str
    hipify: Path


PROJECT = {
    "csrc/a.cu": '# include "b.cuh"\n#include  "sub[1]/c.cuh"\nvoid f(float* p) { k<float><<<1, 32>>>(p); }\n',
    "csrc/b.cuh": "#pragma once\ntemplate <typename T> __global__ void k(T* p) { p[threadIdx.x] = 1; }\n",
    "csrc/sub[1]/c.cuh": "#pragma once\ninline cudaError_t last() { return cudaGetLastError(); }\n",
    "csrc/binding.cpp": "int host() { return 1; }\n",
    "csrc/data.json": "{}\n",
}


@pytest.fixture
def sdk() -> Sdk:
    found = find_torch_sdk()
    return Sdk(found.version, found.hipify)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project whose every byte is the same after the test, unless the test itself says otherwise."""
    folder = tmp_path / "project"
    write(folder, PROJECT)
    before = digest_tree(folder)
    yield folder
    if not (tmp_path / "edited").exists():
        assert digest_tree(folder) == before


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def stage_of(project: Path, sdk: Sdk, cache: Path, **options: object) -> Stage:
    given: dict[str, object] = {"globs": ["csrc/*"], "include_dirs": ["csrc"], "hip_version": "7.2.4", **options}
    return make_stage(project, engine=sdk, cache=cache, **given)  # type: ignore[arg-type]


def debris(cache: Path) -> list[str]:
    return [entry for entry in os.listdir(cache) if entry.startswith(".new-")]


# ------------------------------------------------------------------------------------------- result


def test_both_trees_the_files_and_the_report(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    stage = stage_of(project, sdk, tmp_path / "cache")
    assert {name: data.decode() for name, data in stage.tree("cuda").items()} == PROJECT
    hip = stage.tree("hip")
    assert sorted(hip) == ["csrc/a.hip", "csrc/b.cuh", "csrc/binding.cpp", "csrc/data.json", "csrc/sub[1]/c.cuh"]
    assert b"hipGetLastError" in hip["csrc/sub[1]/c.cuh"]
    assert hip["csrc/data.json"] == b"{}\n"
    assert stage.output_of("csrc/a.cu") == "csrc/a.hip"
    assert [(file.source, file.status, file.launches, file.replaced, file.leftovers) for file in stage.files] == [
        ("csrc/a.cu", "converted", 1, 0, 0),
        ("csrc/b.cuh", "converted", 0, 0, 0),
        ("csrc/binding.cpp", "unchanged", 0, 0, 0),
        ("csrc/data.json", "copied", 0, 0, 0),
        ("csrc/sub[1]/c.cuh", "converted", 0, 2, 0),
    ]
    report = json.loads(json.dumps(stage.report()))
    assert report["key"] == stage.key
    assert (report["launches_replaced"], report["names_replaced"], report["leftovers"]) == (1, 2, 0)
    assert str(tmp_path) not in json.dumps(report)
    assert [file.source for file in stage.matching(["csrc/*.c*"])] == ["csrc/a.cu", "csrc/b.cuh", "csrc/binding.cpp"]
    assert stage_of(project, sdk, tmp_path / "cache").report() == stage.report()  # from the cache
    assert debris(tmp_path / "cache") == []
    assert stage.fresh == tuple(sorted(set(PROJECT) - {"csrc/data.json"}))
    assert stage_of(project, sdk, tmp_path / "cache").fresh == ()


def test_errors_stop_and_warnings_do_not(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "edited").touch()
    write(project, {"csrc/w.cu": "__global__ void w(int* p) { p[0] = threadIdx.x >> 6; }\n"})
    assert [finding.severity for finding in stage_of(project, sdk, tmp_path / "c").findings] == ["warning"]
    write(
        project,
        {"csrc/e.cu": '\nvoid f() {\n  cudaNoTwin(1);\n  k<<<X>>>(2);\n}\n#include "../../out.h"\n', "../out.h": ""},
    )
    for _ in range(2):  # fresh, then from the cache
        with pytest.raises(FindingsError) as caught:
            stage_of(project, sdk, tmp_path / "c")
        text = str(caught.value)
        assert text.startswith("3 errors in the sources")
        assert "csrc/e.cu:3:3: error: cudaNoTwin is left over: HIPify knows no HIP name for it [leftover]" in text
        assert "csrc/e.cu:4:4: error: this kernel launch cannot be converted" in text
        assert 'csrc/e.cu:6:1: error: "../../out.h" leads out of the project' in text
        assert len(caught.value.findings) == 4
    lax = stage_of(project, sdk, tmp_path / "c", strict=False)
    assert len(lax.errors) == 3
    assert {file.source: file.leftovers for file in lax.files}["csrc/e.cu"] == 1
    assert len(stage_of(project, sdk, tmp_path / "c", allow=["cudaNoTwin"], strict=False).errors) == 2


def test_latin_1_bytes_and_a_file_that_is_no_text(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "edited").touch()
    (project / "csrc/latin.cu").write_bytes(b"// caf\xe9\r\n__global__ void l(float* p) { cudaError_t e; }")
    stage = stage_of(project, sdk, tmp_path / "cache")
    data = stage.tree("hip")["csrc/latin.hip"]
    assert data.endswith(b"// caf\xe9\r\n__global__ void l(float* p) { hipError_t e; }")
    (project / "csrc/wide.cuh").write_text("int x;\n", encoding="utf-16")
    for _ in range(2):
        with pytest.raises(FindingsError, match=r"csrc/wide\.cuh:1:4: error: this file was not converted: .*NUL byte"):
            stage_of(project, sdk, tmp_path / "cache")
    stage = stage_of(project, sdk, tmp_path / "cache", strict=False)
    assert [file.status for file in stage.files if file.source == "csrc/wide.cuh"] == ["skipped"]
    assert stage.tree("hip")["csrc/wide.cuh"] == stage.tree("cuda")["csrc/wide.cuh"]


def test_400_nested_includes(sdk: Sdk, tmp_path: Path) -> None:
    files = {f"csrc/h{n}.cuh": f'# include "h{n + 1}.cuh"\ninline cudaError_t f{n}();\n' for n in range(400)}
    write(tmp_path / "p", {**files, "csrc/h400.cuh": "", "csrc/a.cu": '#include "h0.cuh"\n'})
    stage = stage_of(tmp_path / "p", sdk, tmp_path / "cache", globs=["csrc/a.cu"], include_dirs=[])
    assert len(stage.files) == 402
    assert sum(file.status == "converted" for file in stage.files) == 401


def test_sources_of_one_name_and_folders_named_cuda(sdk: Sdk, tmp_path: Path) -> None:
    write(tmp_path / "p", {"src_cuda/a.cu": "", "b/a.cu": "", "b/a.hip": "int hand;\n"})
    stage = stage_of(tmp_path / "p", sdk, tmp_path / "cache", globs=["**/a.*"], include_dirs=[])
    assert stage.output_of("src_cuda/a.cu") == "src_cuda/a.hip"
    assert stage.output_of("b/a.cu") == "b/a_hip.hip"
    assert stage.tree("hip")["b/a.hip"] == b"int hand;\n"


def test_an_edit_in_the_same_process_gives_the_new_result(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "edited").touch()
    first = stage_of(project, sdk, tmp_path / "cache")
    write(project, {"csrc/b.cuh": "inline int changed;\n"})
    second = stage_of(project, sdk, tmp_path / "cache")
    assert first.key != second.key
    assert second.tree("hip")["csrc/b.cuh"] == b"inline int changed;\n"


def test_odd_names_survive(sdk: Sdk, tmp_path: Path) -> None:
    names = ["sp ace.cu", "new\nline.cu", "quo\"te'.cu", "ünï.cu", "[b].cu", "back\\slash.cu"]
    write(tmp_path / "p", {f"csrc/{name}": "void f() { k<<<1, 2>>>(); }\n" for name in names})
    with open(os.fsencode(tmp_path) + b"/p/csrc/caf\xe9.cu", "wb"):
        pass
    stage = stage_of(tmp_path / "p", sdk, tmp_path / "cache", include_dirs=[])
    assert len(stage.files) == 7
    dest = tmp_path / "dest"
    sync(stage_of(tmp_path / "p", sdk, tmp_path / "cache", include_dirs=[]), dest)
    for name in names:
        assert "hipLaunchKernelGGL" in (dest / "csrc" / (name[:-3] + ".hip")).read_text()
    assert os.path.exists(os.fsencode(dest) + b"/csrc/caf\xe9.hip")


def test_an_include_of_an_earlier_output_is_told_though_that_is_no_ingredient(
    project: Path, sdk: Sdk, tmp_path: Path
) -> None:
    (tmp_path / "edited").touch()
    generated = "// !!! This is a file automatically generated by hipify!!!\n"
    write(
        project,
        {"csrc/a.cu": '#include "lost_hip.cuh"\n#if 0\n#include "lost_hip.cuh"\n#endif\n#include "b_hip.cuh"\n'},
    )
    before = stage_of(project, sdk, tmp_path / "cache", strict=False)
    write(project, {"csrc/lost_hip.cuh": generated, "csrc/b_hip.cuh": generated})
    after = stage_of(project, sdk, tmp_path / "cache", strict=False)
    assert (after.key, after.fresh) == (before.key, ())
    assert [(found.line, found.rule) for found in before.findings] == [(1, "include")]
    assert [(found.path, found.line, found.rule) for found in after.findings] == [
        ("csrc/a.cu", 1, "include-left-out"), ("csrc/b_hip.cuh", 1, "generated"), ("csrc/lost_hip.cuh", 1, "generated"),
    ]  # fmt: skip
    assert b'#include "b.cuh"' in after.tree("hip")["csrc/a.hip"]


# ---------------------------------------------------------------------------------------------- key


def copied_engine(sdk: Sdk, folder: Path) -> Path:
    shutil.copytree(sdk.hipify, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_every_ingredient_changes_the_key(
    project: Path, sdk: Sdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edited").touch()
    cache = tmp_path / "cache"
    seen = {stage_of(project, sdk, cache).key}

    def fresh(changed: Stage) -> None:
        assert changed.key not in seen
        seen.add(changed.key)

    fresh(stage_of(project, sdk, cache, hip_version="7.2.5"))
    fresh(stage_of(project, replace(sdk, version="2.99.0"), cache))
    fresh(stage_of(project, sdk, cache, allow=["cudaX"]))
    fresh(stage_of(project, sdk, cache, defines={"FAST": "1"}))
    fresh(stage_of(project, sdk, cache, defines={"FAST": "2"}))
    fresh(stage_of(project, sdk, cache, include_dirs=[]))
    engine = copied_engine(sdk, tmp_path / "engine")
    assert stage_of(project, replace(sdk, hipify=engine), cache).key in seen
    with (engine / "cuda_to_hip_mappings.py").open("a") as file:
        file.write("# patched\n")
    fresh(stage_of(project, replace(sdk, hipify=engine), cache))
    with monkeypatch.context() as patch:
        patch.setattr(stage_module, "FORMAT", 1)
        fresh(stage_of(project, sdk, cache))
    with monkeypatch.context() as patch:
        patch.setattr(stage_module, "code_digest", lambda: "other code")
        fresh(stage_of(project, sdk, cache))
    write(project, {"csrc/b.cuh": PROJECT["csrc/b.cuh"] + "\n"})
    fresh(stage_of(project, sdk, cache))
    (project / "csrc/b.cuh").rename(project / "csrc/b2.cuh")
    fresh(stage_of(project, sdk, cache, strict=False))
    # the boundary between two files, and between a name and its bytes, counts
    write(tmp_path / "p1", {"csrc/a.h": "xy", "csrc/b.h": ""})
    write(tmp_path / "p2", {"csrc/a.h": "x", "csrc/b.h": "y"})
    fresh(stage_of(tmp_path / "p1", sdk, cache))
    fresh(stage_of(tmp_path / "p2", sdk, cache))


def test_what_is_no_ingredient_does_not(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "edited").touch()
    cache = tmp_path / "cache"
    first = stage_of(project, sdk, cache)
    elsewhere = tmp_path / "other place" / "p"
    for name in reversed(PROJECT):  # another order of creation
        write(elsewhere, {name: PROJECT[name]})
    os.utime(elsewhere / "csrc/a.cu", (1, 1))
    (elsewhere / "csrc/a.cu").chmod(0o600)
    write(elsewhere, {"README.md": "x", "csrc/a.hip": "// !!! This is a file automatically generated by hipify!!!\n"})
    second = stage_of(elsewhere, replace(sdk, version=sdk.version.partition("+")[0] + "+local"), tmp_path / "cache2")
    assert second.key == first.key
    assert second.tree("hip") == first.tree("hip")
    assert second.entry.read_bytes() == first.entry.read_bytes()
    assert [finding.rule for finding in second.findings] == ["generated"]


# -------------------------------------------------------------------------------------------- cache


def damage(stage: Stage, what: str) -> str:
    path = stage.entry
    data = bytearray(path.read_bytes())
    if what == "a directory":
        path.unlink()
        (path / "hip").mkdir(parents=True)
        return "it cannot be read: Is a directory"
    if what == "a link":
        path.rename(path.parent / "elsewhere")
        path.symlink_to("elsewhere")
        return "it cannot be read: Too many levels of symbolic links"
    if what in ("empty", "cut in the digest"):
        os.truncate(path, 0 if what == "empty" else 30)
        return "it is cut short or is no stage"
    if what == "cut in the files":
        os.truncate(path, len(data) - 1)
    elif what == "longer":
        path.write_bytes(data + b"x")
    else:
        place = {"digest": 3, "facts": 200, "files": len(data) - 3}[what.rpartition(" ")[2]]
        data[place] ^= 1
        path.write_bytes(data)
    return "its content differs from its digest"


@pytest.mark.parametrize(
    "what",
    [
        "flipped byte in the digest",
        "flipped byte in the facts",
        "flipped byte in the files",
        "empty",
        "cut in the digest",
        "cut in the files",
        "longer",
        "a link",
        "a directory",
    ],
)
def test_a_damaged_stage_is_found_made_again_and_said(
    project: Path, sdk: Sdk, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    cache = tmp_path / "cache"
    good = stage_of(project, sdk, cache)
    wanted = good.entry.read_bytes()
    reason = damage(good, what)
    again = stage_of(project, sdk, cache)
    assert again.entry.read_bytes() == wanted
    assert again.tree("hip") == good.tree("hip")
    assert again.fresh  # nothing of the damaged one was believed
    said = capsys.readouterr().err
    assert f"stage {good.key[:12]} in the cache was damaged ({reason}" in said
    stage_of(project, sdk, cache)
    assert capsys.readouterr().err == ""


def test_damaged_tables_and_a_damaged_last_stage_are_not_believed(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "edited").touch()
    cache = tmp_path / "cache"
    first = stage_of(project, sdk, cache)
    for path in cache.iterdir():
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[-3] ^= 1
            path.write_bytes(data)
    write(project, {"csrc/b.cuh": PROJECT["csrc/b.cuh"] + "\n"})
    second = stage_of(project, sdk, cache)
    assert len(second.fresh) == len(first.fresh)
    assert second.entry.read_bytes() == stage_of(project, sdk, tmp_path / "cache2").entry.read_bytes()


def test_a_read_only_checkout_builds(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    with read_only(project):
        stage = stage_of(project, sdk, tmp_path / "cache")
    assert "csrc/a.hip" in stage.tree("hip")


def test_a_read_only_cache_serves_hits_and_says_clearly_that_it_cannot_take_more(
    project: Path, sdk: Sdk, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = stage_of(project, sdk, cache)
    with read_only(cache):
        assert stage_of(project, sdk, cache).tree("hip") == first.tree("hip")
        with pytest.raises(
            EnvironmentFailure, match=f"the cache {cache} cannot be written: .*Read-only|denied"
        ) as caught:
            stage_of(project, sdk, cache, hip_version="other")
        assert "ROCMBUILD_CACHE_DIR" in caught.value.hint
    stage_of(project, sdk, cache, hip_version="other")


def test_a_full_disk_is_an_error_and_leaves_nothing(sdk: Sdk, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        require("root, to mount a small file system")
    write(tmp_path / "p", {f"csrc/a{n}.cu": f"// {n}\n" + "int x;\n" * 6000 for n in range(20)})
    for size in ("8k", "600k"):  # full before the lock; full while writing
        small = tmp_path / size
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", small], check=True)
        try:
            with pytest.raises(EnvironmentFailure, match="No space left on device") as caught:
                stage_of(tmp_path / "p", sdk, small / "cache", include_dirs=[])
            assert "free some space" in caught.value.hint
            if (small / "cache").exists():
                assert debris(small / "cache") == []
                assert stage_module.Store(small / "cache").load("0" * 64) is None
        finally:
            subprocess.run(["umount", small], check=True)


def test_a_cache_that_is_a_file(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        stage_of(project, sdk, tmp_path / "cache")


def test_an_engine_that_is_none(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    for folder in (tmp_path / "gone", project):
        with pytest.raises(EnvironmentFailure, match="hipify engine") as caught:
            stage_of(project, replace(sdk, hipify=folder), tmp_path / "cache")
        assert "toolchain install" in caught.value.hint
    engine = copied_engine(sdk, tmp_path / "broken")
    (engine / "cuda_to_hip_mappings.py").write_text("raise RuntimeError('no tables')\n")
    with pytest.raises(EnvironmentFailure, match="no tables"):
        stage_of(project, replace(sdk, hipify=engine), tmp_path / "cache")
    assert debris(tmp_path / "cache") == []


# ----------------------------------------------------------------------------------- real processes

RACER = """
import sys, time
from pathlib import Path
from rocmbuild.staging import stage as module
from types import SimpleNamespace
project, hipify, version, cache, log, start = sys.argv[1:]
real = module.Hipify.run
def counted(*args, **kwargs):
    with open(log, "a") as file:
        file.write("x")
    return real(*args, **kwargs)
module.Hipify.run = counted
print("ready", flush=True)
time.sleep(max(0, float(start) - time.time()))
stage = module.make_stage(Path(project), globs=["csrc/*"], include_dirs=["csrc"],
                          engine=SimpleNamespace(version=version, hipify=Path(hipify)), hip_version="7.2.4",
                          cache=Path(cache))
print(stage.key, len(stage.tree('hip')))
"""


def racer(project: Path, sdk: Sdk, cache: Path, log: Path, start: float = 0.0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", RACER, project, sdk.hipify, sdk.version, cache, log, str(start)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=project)


def race(project: Path, sdk: Sdk, cache: Path, log: Path, count: int) -> None:
    start = time.time() + 0.4 + 0.06 * count
    racers = [racer(project, sdk, cache, log, start) for _ in range(count)]
    results = [process.communicate() for process in racers]
    assert [process.returncode for process in racers] == [0] * count, results
    assert len({out for out, _ in results}) == 1
    assert log.read_text() == "x"
    assert debris(cache) == []


def test_builds_at_once_on_one_key_convert_once(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    race(project, sdk, tmp_path / "cache", tmp_path / "log", 6)


@pytest.mark.slow
def test_32_builds_at_once_on_one_key_convert_once(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    race(project, sdk, tmp_path / "cache", tmp_path / "log", 32)


def kill_at_random(project: Path, sdk: Sdk, tmp_path: Path, times: int) -> None:
    write(project, {f"csrc/m{n}.cu": PROJECT["csrc/a.cu"] * 40 for n in range(30)})
    (tmp_path / "edited").touch()
    begin = time.monotonic()
    wanted = stage_of(project, sdk, tmp_path / "reference")
    whole = time.monotonic() - begin
    cache = tmp_path / "cache"
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    killed = published = 0
    for _ in range(times):
        process = racer(project, sdk, cache, tmp_path / "log")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.communicate(timeout=chance.uniform(0, whole))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
        if (cache / wanted.key).exists():
            published += 1
            assert (cache / wanted.key).read_bytes() == wanted.entry.read_bytes(), f"seed {seed}"
            (cache / wanted.key).unlink()
    after = stage_of(project, sdk, cache)
    assert after.entry.read_bytes() == wanted.entry.read_bytes(), f"seed {seed}"
    assert debris(cache) == []
    assert killed, f"only {killed} of {times} were killed in time (seed {seed})"


def test_killed_builds_leave_nothing_that_is_used(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    kill_at_random(project, sdk, tmp_path, 5)


@pytest.mark.slow
def test_200_kills_leave_nothing_that_is_used(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    kill_at_random(project, sdk, tmp_path, 200)


def test_debris_of_another_key_is_swept(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / ".locks").mkdir(parents=True)
    (cache / f".new-{'0' * 64}-abc" / "hip").mkdir(parents=True)
    stage_of(project, sdk, cache)
    assert debris(cache) == []


# --------------------------------------------------------------------------------------------- sync


def test_sync_writes_only_what_differs_and_removes_what_is_stale(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "edited").touch()
    dest = tmp_path / "build" / "src"
    stage = stage_of(project, sdk, tmp_path / "cache")
    counts = sync(stage, dest)
    assert (counts.written, counts.kept, counts.removed) == (5, 0, 0)
    assert (dest / "csrc/a.hip").read_bytes() == stage.tree("hip")["csrc/a.hip"]
    before = (dest / "csrc/a.hip").stat().st_mtime_ns
    assert sync(stage, dest).kept == 5

    write(project, {"csrc/b.cuh": PROJECT["csrc/b.cuh"] + "\n"})
    (project / "csrc/data.json").unlink()
    (dest / "csrc/sub[1]/c.cuh").write_text("spoiled")
    (dest / "csrc/stale").mkdir()
    (dest / "csrc/stale/x.h").touch()
    (dest / "csrc/link.h").symlink_to("/etc/passwd")
    (dest / "csrc/binding.cpp").unlink()
    (dest / "csrc/binding.cpp").mkdir()
    (dest / "csrc/binding.cpp/y").touch()
    counts = sync(stage_of(project, sdk, tmp_path / "cache"), dest)
    assert (counts.written, counts.kept, counts.removed) == (3, 1, 4)
    assert (dest / "csrc/a.hip").stat().st_mtime_ns == before
    left = sorted(str(path.relative_to(dest)) for path in dest.rglob("*") if path.is_file())
    assert left == [".rocmbuild-tree", "csrc/a.hip", "csrc/b.cuh", "csrc/binding.cpp", "csrc/sub[1]/c.cuh"]
    assert not (dest / "csrc/stale").exists()
    counts = sync(stage, dest, tree="cuda")
    assert (dest / "csrc/a.cu").read_text() == PROJECT["csrc/a.cu"]


def test_sync_never_empties_a_folder_that_is_not_its_own(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    stage = stage_of(project, sdk, tmp_path / "cache")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not a folder of rocmbuild's"):
        sync(stage, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_sync_to_where_nothing_can_be_written(project: Path, sdk: Sdk, tmp_path: Path) -> None:
    stage = stage_of(project, sdk, tmp_path / "cache")
    (tmp_path / "build").mkdir()
    with read_only(tmp_path / "build"), pytest.raises(EnvironmentFailure, match="cannot be brought up to date"):
        sync(stage, tmp_path / "build" / "src")


# -------------------------------------------------------------------------------- the real kernels


def test_the_kernels_stage_clean_and_a_hit_is_quick(root: Path, sdk: Sdk, tmp_path: Path) -> None:
    before = digest_tree(root / "kernels" / "csrc")
    given = {"globs": ["csrc/**/*.cu", "csrc/binding.cpp"]}
    stage = stage_of(root / "kernels", sdk, tmp_path / "cache", **given)
    assert stage.errors == ()
    assert sum(file.launches for file in stage.files) >= 4
    assert sum(file.leftovers for file in stage.files) == 0
    times = []
    for _ in range(5):
        start = time.perf_counter()
        stage_of(root / "kernels", sdk, tmp_path / "cache", **given)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.030, times
    assert digest_tree(root / "kernels" / "csrc") == before


FORMS = {
    "csrc/forms.cu": """# include "forms.cuh"
#include <utility>
template <int N> __global__ void k(float* p) { if (threadIdx.x == 0) p[blockIdx.x] += N; }
template <typename T, int N> __global__ void s(T* p) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ alignas(16) T fixed[N];
  T* x = reinterpret_cast<T*>(raw);
  x[threadIdx.x] = T(threadIdx.x);
  fixed[threadIdx.x % N] = x[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = fixed[threadIdx.x % N];
}
__global__ void pairs(int* p) {
  extern __shared__ std::pair<int, int> both[];
  both[threadIdx.x].first = 1;
  p[threadIdx.x] = both[threadIdx.x].first;
}
__global__ void nothing() {}
static void (*table[1])(float*) = {k<3>};
static void (*get(int))(float*) { return k<4>; }
#define LAUNCH(n, grid) k<n> \\
  <<<grid, 32>>>(p)
extern "C" __attribute__((visibility("default"))) int run(float* p, int* q, cudaStream_t stream) {
  void (*fp)(float*) = k<1>;
  (*fp)<<<1, 32>>>(p);
  k<(3>1)><<<dim3(2, 1), 32, 0, stream>>>(p);
  if (p) table[0]<<<{1, 1, 1}, 32>>>(p); else get(1)<<<1, 32>>>(p);
  LAUNCH(2, 1);
  s<float, (4<5) ? 8 : 4><<<1, 32, 32 * sizeof(float), stream>>>(p);
  pairs<<<1 /* one, only */, // block
      32,
      std::max<size_t>(32 * sizeof(std::pair<int, int>), 1)>>>(q);
  nothing<<<1, 1>>>();
  return cudaGetLastError() == cudaSuccess ? largest(1.5f, 2) : 0;
}
""",
    "csrc/forms.cuh": "#pragma once\n#include <cuda_runtime.h>\n#include <algorithm>\n"
    "__host__ __device__ inline int largest(float a, long b) {\n"
    "  return int(std::max(std::floor(a), float(std::min(b, 3L))));\n}\n",
}  # fmt: skip


@needs_toolchain
@pytest.mark.slow
def test_what_is_staged_compiles_for_radeon(sdk: Sdk, tmp_path: Path) -> None:
    from rocmbuild.toolchain.discover import find_toolchain

    toolchain = find_toolchain(spec=None, environ=os.environ)
    write(tmp_path / "p", FORMS)
    stage = stage_of(tmp_path / "p", sdk, tmp_path / "cache")
    assert stage.findings == ()
    sync(stage, tmp_path / "hip")
    subprocess.run(
        [toolchain.clang, "-x", "hip", "csrc/forms.hip", "-c", "-o", tmp_path / "forms.o", "--offload-arch=gfx1201",
         "-std=c++17", "-O1", "-fPIC", "-Wall", "-Werror", *toolchain.compile_flags()],
        check=True, cwd=tmp_path / "hip",
    )  # fmt: skip


def test_what_is_staged_compiles_for_the_host(sdk: Sdk, tmp_path: Path) -> None:
    from rocmbuild import host

    compiler = shutil.which("g++") or shutil.which("clang++") or require("a C++ compiler")
    write(tmp_path / "p", FORMS)
    sync(stage_of(tmp_path / "p", sdk, tmp_path / "cache"), tmp_path / "hip")
    subprocess.run(
        [compiler, "-x", "c++", "-std=c++17", "-c", "csrc/forms.hip", "-o", tmp_path / "forms.o",
         "-I", host.include_dir(), *host.compile_flags()],
        check=True, cwd=tmp_path / "hip",
    )  # fmt: skip
