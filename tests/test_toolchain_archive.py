"""Installs from a whole small archive: resumed, killed, raced, pinned, on a full disk.

The archive is signed and read by the real apt; its compiler packages hold scripts that start the managed toolchain's
tools, so that one install takes seconds and its kernel is compiled all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from debian_repository import Repository
from support import require

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.toolchain import install as installs
from rocmbuild.toolchain import lock as locks
from rocmbuild.toolchain.debian import codename_of, parse_sources
from rocmbuild.toolchain.discover import managed_toolchain, toolchains_dir
from rocmbuild.toolchain.model import Toolchain
from rocmbuild.toolchain.store import entries, verify

KILLS = 50
LLVM = "lib/llvm-22"
TRIPLE = "lib/x86_64-linux-gnu"
INSTALL = """
import sys
from pathlib import Path
from rocmbuild.toolchain import install
from rocmbuild.toolchain.debian import parse_sources
install.machine_sources = lambda: parse_sources(Path(sys.argv[1]).read_text(), deb822=True)
found = install.install_debian(force="--force" in sys.argv)
print(found.prefix)
"""


@pytest.fixture(scope="module")
def real() -> Toolchain:
    made = [entry for entry in entries(toolchains_dir()) if entry.kind == "toolchain" and "layout" in str(entry.facts)]
    if not made:
        require("a managed toolchain (rocmbuild toolchain install)")
    return managed_toolchain(made[-1])


class Archive:
    """The archive, with a newer HIP to come."""

    def __init__(self, folder: Path, real: Toolchain) -> None:
        self.folder = folder
        self.real = real
        self.repository = Repository(folder)
        self.codename = codename_of(Path("/etc/os-release").read_text())
        self.key = self.repository.key("good")
        self.llvm = "1:22.1.8-1"
        self.tools("clang-22", "clang", "clang++", "clang-22")
        self.tools("clang-tools-22", "clang-offload-bundler")
        self.tools("lld-22", "lld", "ld.lld")
        self.tools("llvm-22", "llvm-readelf", "llvm-readobj", "llvm-objdump")
        resource = real.clang.parent.parent / "lib/clang"
        note = folder / "note"
        note.write_text("for a test\n")
        self.repository.add("libclang-common-22-dev", self.llvm, {f"usr/{LLVM}/lib/clang/22/note": note})
        self.repository.add("libclang-rt-22-dev", self.llvm, {f"usr/{LLVM}/lib/clang/22/lib": resource / "22/lib"})
        self.sign(self.codename)
        self.repository.records.clear()
        self.hip("7.2.4-1")
        self.sign("experimental", "sid")
        self.entry = folder / "entry.sources"
        suites = f"{self.codename} experimental sid"
        self.entry.write_text(self.repository.entry(suites, str(self.key / "public.asc")))

    def tools(self, package: str, *names: str) -> None:
        folder = self.folder / "tools" / package
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text(f'#!/bin/sh\nexec {self.real.clang.with_name(name)} "$@"\n')
            (folder / name).chmod(0o755)
        self.repository.add(package, self.llvm, {f"usr/{LLVM}/bin/{name}": folder / name for name in names})

    def hip(self, version: str) -> None:
        prefix = self.real.prefix
        library = (prefix / "lib/libamdhip64.so").resolve()
        links = self.folder / "links"
        links.mkdir(exist_ok=True)
        for name, target in (("libamdhip64.so", "libamdhip64.so.7"), ("libamdhip64.so.7", library.name)):
            (links / name).unlink(missing_ok=True)
            (links / name).symlink_to(target)
        for name in ("libamdhip64-dev", "libamdhip64-7", "rocm-device-libs-22"):
            subprocess.run(["rm", "-rf", self.folder / "build" / name], check=True)
        headers = {"usr/include/hip": prefix / "include/hip", f"usr/{TRIPLE}/libamdhip64.so": links / "libamdhip64.so"}
        headers[f"usr/{TRIPLE}/cmake/hip-lang"] = prefix / TRIPLE / "cmake/hip-lang"
        self.repository.add("libamdhip64-dev", version, headers, f"libamdhip64-7 (= {version})")
        files = {library.name: library, "libamdhip64.so.7": links / "libamdhip64.so.7"}
        self.repository.add("libamdhip64-7", version, {f"usr/{TRIPLE}/{name}": path for name, path in files.items()})
        bitcode = f"usr/{LLVM}/lib/clang/22/amdgcn/bitcode"
        self.repository.add("rocm-device-libs-22", version, {bitcode: self.real.device_libs})

    def sign(self, *suites: str) -> None:
        for suite in suites:
            self.repository.publish(suite, self.key)

    def start(self, data: Path, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", INSTALL, str(self.entry), *words],
            env={**os.environ, "ROCMBUILD_DATA_DIR": str(data)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def archive(real: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return Archive(tmp_path_factory.mktemp("archive"), real)


@pytest.fixture
def here(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """The archive is this process's own, and the store an empty one."""
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    text = archive.entry.read_text()
    monkeypatch.setattr(installs, "machine_sources", lambda: parse_sources(text, deb822=True))
    return archive


def names_in(store: Path) -> list[str]:
    return sorted(path.name for path in store.iterdir())


def test_an_install_is_whole_counted_and_done_once(here: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress in bytes; nothing but the entry is left; a second call asks nobody; a flipped byte is found."""
    parts = []
    monkeypatch.setattr(installs.Progress, "part", lambda self, done, total: parts.append((done, total)))
    made = installs.install_debian(quiet=True)
    assert made.name == "debian-7.2.4-llvm22"
    assert parts[-1][0] == parts[-1][1]
    assert max(total for _, total in parts) > 100_000
    assert all(done <= total for done, total in parts)
    (entry,) = entries(toolchains_dir())
    assert verify(entry) == ()
    assert names_in(toolchains_dir()) == [".lock", made.name]
    assert entry.facts["download_bytes"] > 100_000
    monkeypatch.setattr(installs, "open_archive", lambda *a, **k: pytest.fail("it asked the archive"))
    assert installs.install_debian(quiet=True) == made
    path = made.device_libs / "ocml.bc"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    assert verify(entry) == (f"{path.relative_to(made.prefix)}: contents changed",)


@pytest.mark.slow
def test_what_was_downloaded_is_not_fetched_again(here: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run dies after its downloads; one file is spoilt; the second run fetches that one alone."""
    with monkeypatch.context() as patch:
        patch.setattr(installs, "lay_out", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            installs.install_debian(quiet=True)
    kept = toolchains_dir() / ".downloads"
    files = sorted(kept.glob("*.deb"))
    assert len(files) == 9
    spoilt = next(file for file in files if file.name.startswith("libamdhip64-dev"))
    spoilt.write_bytes(spoilt.read_bytes()[:-100])
    fetched = []
    genuine = installs.Apt._run

    def watch(self: object, argv: list[str], **options: object) -> object:
        if argv[:3] == ["apt-get", "-q", "download"]:
            fetched.extend(argv[3:])
        return genuine(self, argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(installs.Apt, "_run", watch)
    installs.install_debian(quiet=True)
    assert fetched == ["libamdhip64-dev=7.2.4-1"]
    assert not kept.exists()


@pytest.mark.slow
def test_two_installs_at_once_do_the_work_once(archive: Archive, tmp_path: Path) -> None:
    both = [archive.start(tmp_path) for _ in "ab"]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum("installing debian-" in err for _, err in said) == 1
    assert sum("waiting for another process" in err for _, err in said) == 1


@pytest.mark.slow
def test_a_full_disk_is_one_clear_error_without_debris(archive: Archive, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0:
        require("mount namespaces (unshare -rm)")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = shlex.join([sys.executable, "-c", INSTALL, str(archive.entry)])
    for size in ("1m", "4m", "9m"):
        script = f"mount -t tmpfs -o size={size} none {disk}; export ROCMBUILD_DATA_DIR={disk}; "
        script += f"{command} 2>&1 | tail -3; ls -A {disk}/toolchains; df --output=used {disk} | tail -1"
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], check=False, capture_output=True, text=True)
        assert "free some space, or set ROCMBUILD_DATA_DIR" in done.stdout, (size, done.stdout, done.stderr)
        *_, left, used = done.stdout.split()
        assert left == ".lock", done.stdout
        assert int(used) < 64


def test_an_untrusted_source_is_an_error(here: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    other = here.repository.folder / "other"
    key = other if other.exists() else here.repository.key("other")
    text = here.entry.read_text().replace(str(here.key), str(key))
    monkeypatch.setattr(installs, "machine_sources", lambda: parse_sources(text, deb822=True))
    with pytest.raises(EnvironmentFailure, match=r"not signed|NO_PUBKEY"):
        installs.install_debian(quiet=True)
    assert names_in(toolchains_dir()) == [".lock"]


@pytest.mark.slow
def test_a_lock_installs_the_same_elsewhere(here: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = installs.install_debian(quiet=True)
    lock = locks.write_lock(None, tmp_path / "rocmbuild.lock")
    assert {package["name"] for package in lock.packages} >= {"clang-22", "libamdhip64-dev", "rocm-device-libs-22"}
    lock = locks.read_lock(tmp_path / "rocmbuild.lock")
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "second"))
    monkeypatch.setattr(locks, "install_torch_sdk", lambda *a, **k: pytest.fail("no torch SDK was locked"))
    second = locks.install_locked(lock, quiet=True)
    assert second.prefix != first.prefix
    assert second.identity() == first.identity()  # the same bytes throughout


@pytest.mark.slow
def test_a_lock_whose_packages_are_gone_is_told_so(
    real: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive moves on: what the lock names is there no more, and nothing else is installed in its place."""
    archive = Archive(tmp_path / "moving", real)
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "data"))
    text = archive.entry.read_text()
    monkeypatch.setattr(installs, "machine_sources", lambda: parse_sources(text, deb822=True))
    installs.install_debian(quiet=True)
    locks.write_lock(None, tmp_path / "lock")
    archive.repository.records.clear()
    archive.hip("7.2.5-1")
    archive.sign("experimental", "sid")
    monkeypatch.setenv("ROCMBUILD_DATA_DIR", str(tmp_path / "second"))
    lock = locks.read_lock(tmp_path / "lock")
    with pytest.raises(EnvironmentFailure) as err:
        locks.install_locked(lock, quiet=True)
    assert "libamdhip64-dev 7.2.4-1: not there any more; it has 7.2.5-1 (experimental)" in err.value.message
    assert "clang-22" not in err.value.message
    assert "toolchain lock" in err.value.hint or "lock" in err.value.hint
    assert names_in(toolchains_dir()) == [".lock"]
    assert installs.install_debian(quiet=True).name == "debian-7.2.5-llvm22"
    other = json.loads((tmp_path / "lock").read_text())
    other["packages"] = [{**package, "sha256": "0" * 64} for package in other["packages"]]
    (tmp_path / "other").write_text(json.dumps(other).replace("7.2.4-1", "7.2.5-1"))
    with pytest.raises(EnvironmentFailure, match=r"its digest is [0-9a-f]{64}, the lock file's 0000"):
        locks.install_locked(locks.read_lock(tmp_path / "other"), quiet=True)


def test_a_lock_of_another_release_is_refused(here: Archive) -> None:
    with pytest.raises(EnvironmentFailure, match="made on potato") as err:
        installs.install_debian(quiet=True, pin=installs.Pin(release="potato", packages={("x", "1"): "0" * 64}))
    assert "each release" in err.value.hint
    assert names_in(toolchains_dir()) == [".lock"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not a lock file"),
        ("[]", "format null|format None|format"),
        ('{"format": 9}', "format 9, wanted 1"),
        ('{"format": 1, "packages": [{"name": "x"}]}', r"name, hip, clang, release, digest, request, packages\[0\]"),
    ],
)
def test_a_bad_lock_names_what_is_wrong(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(text)
    with pytest.raises(InputError, match=fault):
        locks.read_lock(tmp_path / "lock")


@pytest.mark.slow
def test_fifty_kills_leave_the_old_state_or_the_new(archive: Archive, tmp_path: Path) -> None:
    """Each at a random moment of an install, over nothing and over an older one; the seed is in the failure."""
    seed = int(os.environ.get("ROCMBUILD_TEST_SEED", "0")) or time.time_ns()
    chance = random.Random(seed)
    started = time.perf_counter()
    process = archive.start(tmp_path / "measured")
    assert process.wait(timeout=120) == 0
    process.communicate()
    whole = time.perf_counter() - started
    store = tmp_path / "data/toolchains"
    states = {"none": 0, "whole": 0, "working": 0}
    for kill in range(KILLS):
        words = ("--force",) if kill % 2 else ()
        if kill % 10 == 0:
            subprocess.run(["rm", "-rf", store], check=True)
        process = archive.start(tmp_path / "data", *words)
        time.sleep(chance.uniform(0.02, whole))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = entries(store)
        assert len(found) <= 1, seed
        for entry in found:
            assert verify(entry) == (), (seed, kill)
        rest = set(names_in(store)) - {".lock", ".work", ".downloads"} if store.exists() else set()
        assert rest == {entry.name for entry in found}, (seed, kill, rest)
        states["whole" if found else "none"] += 1
        states["working"] += (store / ".work").exists()
    assert states["none"] + states["whole"] == KILLS
    assert states["working"] > KILLS // 4, f"too few kills fell into the work: {states}, seed {seed}"
    last = archive.start(tmp_path / "data", "--force")
    _, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    (entry,) = entries(store)
    assert verify(entry) == ()
    assert names_in(store) == [".lock", entry.name]
