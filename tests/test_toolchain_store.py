"""The managed store: folders that appear whole or not at all, whatever is killed, full or read-only."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import require

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.toolchain import store as stores

PUBLISH = """
import sys, pathlib
from rocmbuild.toolchain.store import locked, publish, system_errors, work
store, mark, count, size = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with locked(store, what="a test"), system_errors("a test"), work(store) as folder:
    tree = folder / "tree"
    (tree / "sub").mkdir(parents=True)
    for index in range(count):
        (tree / "sub" / f"{index}.txt").write_text(mark * size)
    publish(store, tree, name="entry", kind="test", facts={"mark": mark})
"""


def in_mounts(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own, where it may mount what it likes."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0:
        require("mount namespaces (unshare -rm)")
    return subprocess.run(
        ["unshare", "-rm", "sh", "-ec", script], check=False, capture_output=True, text=True, timeout=120
    )


def publish_argv(store: Path, mark: str = "a", count: int = 3, size: int = 10) -> list[str]:
    return [sys.executable, "-c", PUBLISH, str(store), mark, str(count), str(size)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "things"
    with stores.locked(folder, what="a test"), stores.work(folder) as work:
        tree = work / "tree"
        (tree / "bin").mkdir(parents=True)
        (tree / "bin" / "tool").write_text("tool")
        (tree / "bin" / "alias").symlink_to("tool")
        (tree / "libs").symlink_to("bin")
        stores.publish(folder, tree, name="one", kind="test", facts={"version": "1"})
    return folder


def test_an_entry_says_what_it_is(store: Path) -> None:
    (entry,) = stores.entries(store)
    assert (entry.name, entry.kind, dict(entry.facts)) == ("one", "test", {"version": "1"})
    assert entry.folder == store / "one"
    assert stores.verify(entry) == ()
    assert not (store / ".work").exists()


def test_sha256sum_reads_the_list_of_files(store: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--strict", "-c", "files.sha256"], cwd=store / "one", check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "bin/tool: OK" in done.stdout


def test_the_digest_names_contents_paths_and_links_and_nothing_else(tmp_path: Path) -> None:
    def digest(number: int, name: str = "f", text: str = "x", link: str = "f") -> str:
        folder = tmp_path / str(number)
        with stores.locked(folder, what="a test"), stores.work(folder) as work:
            (work / "tree").mkdir()
            (work / "tree" / name).write_text(text)
            (work / "tree" / "link").symlink_to(link)
            return stores.publish(folder, work / "tree", name=f"n{number}", kind="k", facts={"n": number}).digest

    same = {digest(1), digest(2)}
    assert len(same) == 1
    assert len(same | {digest(3, name="g"), digest(4, text="y"), digest(5, link="g")}) == 4


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("printf tooL > one/bin/tool", "bin/tool: contents changed"),
        ("rm one/bin/tool", "bin/tool: missing"),
        ("touch one/extra", "extra: not part of what was installed"),
        ("ln -sfn other one/bin/alias", "bin/alias: links to other, wanted tool"),
        ("rm one/libs", "libs: missing"),
        ("sed -i s/bin/bim/ one/files.sha256", "files.sha256: differs from the digest in manifest.json"),
    ],
)
def test_verify_finds_each_kind_of_damage(store: Path, damage: str, expected: str) -> None:
    subprocess.run(["sh", "-ec", damage], cwd=store, check=True)
    (entry,) = stores.entries(store)
    assert expected in stores.verify(entry)


def test_publishing_again_replaces_the_entry(store: Path) -> None:
    subprocess.run(publish_argv(store, "a"), check=True)
    subprocess.run(publish_argv(store, "b"), check=True)
    assert [(entry.name, entry.facts.get("mark")) for entry in stores.entries(store)] == [("entry", "b"), ("one", None)]
    assert sorted(path.name for path in store.iterdir()) == [".lock", "entry", "one"]


def test_remove_takes_one_entry_and_names_the_known_ones(store: Path) -> None:
    with pytest.raises(InputError, match=r"'two' \(installed: one\)"):
        stores.remove(store, "two")
    with pytest.raises(InputError, match="nothing is installed"):
        stores.remove(store, "../things/one")
    stores.remove(store, "one")
    assert stores.entries(store) == ()
    assert [path.name for path in store.iterdir()] == [".lock"]


def test_what_is_no_entry_is_not_listed(store: Path) -> None:
    (store / "empty").mkdir()
    (store / "old").mkdir()
    (store / "old" / "manifest.json").write_text('{"format": 0, "facts": {}}')
    (store / "broken").mkdir()
    (store / "broken" / "manifest.json").write_text("{")
    assert [entry.name for entry in stores.entries(store)] == ["one"]
    assert stores.entries(store / "one" / "bin" / "tool") == ()


def test_a_killed_install_leaves_the_old_entry_or_the_new_one(store: Path) -> None:
    """SIGKILL at points spread over an install: what is there afterwards is always whole."""
    subprocess.run(publish_argv(store, "old", 400, 100), check=True)
    started = time.monotonic()
    subprocess.run(publish_argv(store, "old", 400, 100), check=True)
    whole = time.monotonic() - started
    kills, left_work = 0, 0
    for step in range(10):
        process = subprocess.Popen(publish_argv(store, "new", 400, 100))
        time.sleep(whole * (0.3 + 0.07 * step))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        left_work += (store / ".work").exists()
        entry = stores.read_entry(store / "entry")
        assert entry is not None
        assert stores.verify(entry) == ()
        assert entry.facts["mark"] in ("old", "new")
    assert kills > 0
    assert left_work > 0
    subprocess.run(publish_argv(store, "last"), check=True)
    assert sorted(path.name for path in store.iterdir()) == [".lock", "entry", "one"]


def test_the_second_of_two_processes_waits(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stores.locked(store, what="the first"):
        process = subprocess.Popen(publish_argv(store, "b"), stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "waiting for another process" in process.stderr.readline()
        assert stores.read_entry(store / "entry") is None
    assert process.wait(timeout=30) == 0
    process.stderr.close()
    assert stores.read_entry(store / "entry") is not None


def test_a_full_disk_is_one_clear_error_without_debris(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = shlex.join(publish_argv(disk / "things", "x", 4, 1_000_000))
    done = in_mounts(
        f"mount -t tmpfs -o size=2m none {disk}; {command} || true; ls -A {disk}/things; df --output=pcent {disk}"
    )
    error = done.stderr.splitlines()[-2:]
    assert error[0].endswith("No space left on device"), done.stderr
    assert error[1] == "  next step: free some space, or set ROCMBUILD_DATA_DIR to a folder on another disk"
    assert done.stdout.split()[0] == ".lock"
    assert done.stdout.split()[-1] in ("0%", "1%")


def test_a_read_only_store_is_one_clear_error(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "things").mkdir(parents=True)
    command = shlex.join(publish_argv(disk / "things"))
    done = in_mounts(
        f"mount --bind {disk} {disk}; mount -o remount,ro,bind {disk}; "
        f"if touch {disk}/things/x 2>/dev/null; then echo a write worked; exit 9; fi; {command} || exit 7"
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert "Read-only file system" in done.stderr.splitlines()[-2]
    assert done.stderr.splitlines()[-1] == "  next step: set ROCMBUILD_DATA_DIR to a folder that can be written"


def test_an_error_inside_leaves_nothing(store: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"installing it: .*: No such file"):  # noqa: SIM117
        with (
            stores.locked(store, what="installing it"),
            stores.system_errors("installing it"),
            stores.work(store) as work,
        ):
            (work / "tree" / "locked").mkdir(parents=True)
            (work / "tree" / "locked" / "file").write_text("x")
            os.chmod(work / "tree" / "locked", 0o500)
            (work / "absent" / "file").write_text("x")
    assert sorted(path.name for path in store.iterdir()) == [".lock", "one"]


def test_bytecode_that_python_leaves_beside_sources_is_no_damage(store: Path) -> None:
    (store / "one" / "bin" / "__pycache__").mkdir()
    (store / "one" / "bin" / "__pycache__" / "tool.cpython-311.pyc").write_bytes(b"x")
    assert stores.verify(stores.entries(store)[0]) == ()
