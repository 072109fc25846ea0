"""Locks between real processes: held by one, freed by its death, and safe while their files are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rocmbuild.locks import Lock

HOLDER = """
import sys, time
from pathlib import Path
from rocmbuild.locks import Lock
lock = Lock.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_holder_at_a_time_and_death_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lock"
    process = holder(path)
    try:
        assert Lock.attempt(path) is None
        waited: list[int] = []
        timer = threading.Timer(0.2, lambda: process.send_signal(signal.SIGKILL))
        timer.start()
        with Lock.acquire(path, waiting=lambda: waited.append(1)):
            assert waited == [1]
            assert Lock.attempt(path) is None
        again = Lock.attempt(path)
        assert again is not None
        again.release()
        again.release()  # once is enough, twice does no harm
    finally:
        process.kill()
        process.communicate()


def test_a_lock_file_that_its_holder_removes_is_no_lock_for_those_who_waited(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    held = Lock.acquire(path)
    got: list[Lock] = []
    thread = threading.Thread(target=lambda: got.append(Lock.acquire(path)))
    thread.start()
    thread.join(0.2)
    assert got == []
    held.remove()
    thread.join(10)
    assert path.exists()  # the new one, which the waiting thread made
    assert Lock.attempt(path) is None
    got[0].release()


def test_without_a_file_there_may_be_no_lock_to_attempt(tmp_path: Path) -> None:
    assert Lock.attempt(tmp_path / "gone" / "a.lock", create=False) is None
    assert not (tmp_path / "gone").exists()
    with pytest.raises(OSError):
        Lock.acquire(Path("/proc/a.lock"))


def test_a_child_does_not_inherit_it(tmp_path: Path) -> None:
    lock = Lock.acquire(tmp_path / "a.lock")
    child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        lock.release()
        again = Lock.attempt(tmp_path / "a.lock")
        assert again is not None
        again.release()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
