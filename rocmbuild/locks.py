"""Locks between processes: the operating system's, on a file, so that they end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["Lock"]


class Lock:
    """An exclusive lock that is held. As a context manager it is released at the end.

    A lock's file may be removed by its holder (`remove`): whoever waited for it notices that its file is gone, and
    takes the new one.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    @classmethod
    def acquire(cls, path: Path, *, waiting: Callable[[], None] | None = None) -> Lock:
        """Wait for the lock; waiting is called once if another holds it. Makes its folder. OSError as it comes."""
        told = False
        while True:
            lock = cls.attempt(path, create=True)
            if lock is not None:
                return lock
            if waiting and not told:
                waiting()
                told = True
            try:
                handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # removed since
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except BaseException:
                os.close(handle)
                raise
            if _same(handle, path):
                return cls(path, handle)
            os.close(handle)

    @classmethod
    def attempt(cls, path: Path, *, create: bool = True) -> Lock | None:
        """The lock if nobody holds it. create=False: None too where there is no such file."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        missed = 0
        while True:
            try:
                handle = os.open(path, flags, 0o644)
            except FileNotFoundError:
                if not create:
                    return None
                missed += 1
                if missed > 100:  # nobody removes a folder that often: nothing can be made there
                    raise
                path.parent.mkdir(parents=True, exist_ok=True)
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
            except BaseException:
                os.close(handle)
                raise
            if _same(handle, path):
                return cls(path, handle)
            os.close(handle)

    @property
    def handle(self) -> int:
        """The open file that the lock is on."""
        return self._handle

    def release(self) -> None:
        """Let others have it, though a process that was started meanwhile still has the file open."""
        if self._handle >= 0:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            os.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Remove the lock's file, which only its holder may, and release it."""
        self.path.unlink(missing_ok=True)
        self.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _same(handle: int, path: Path) -> bool:
    """Whether an open file still stands at its path."""
    held = os.fstat(handle)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)
