"""The only door to subprocess."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.errors import CheckError, EnvironmentFailure, RocmbuildError

__all__ = ["Completed", "Exchange", "Stream", "filter_lines", "held_by_children", "run", "stream"]

_held: list[int] = []


@contextlib.contextmanager
def held_by_children(handle: int) -> Iterator[None]:
    """Programs that are started meanwhile keep this file open until they end, even where this process is killed.

    The lock of a build folder is so held: what an orphan still writes there, nobody builds upon. A lock that ends with
    its last holder never keeps others for longer than the programs themselves run.
    """
    _held.append(handle)
    try:
        yield
    finally:
        _held.remove(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A process that has ended. stdout and stderr are decoded as UTF-8, odd bytes escaped."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, for messages."""
        return "\n".join(part.rstrip() for part in (self.stdout, self.stderr) if part.strip())


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    check: bool = True,
    error: type[RocmbuildError] = CheckError,
    hint: str = "",
) -> Completed:
    """Run a program to its end and return what it printed.

    what: the action for messages ("probing clang++"). check: a non-zero exit raises `error`, with
    the program's own lines. A missing program or a timeout raises EnvironmentFailure.
    """
    words = tuple(os.fspath(word) for word in argv)
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=timeout,
            check=False,
            pass_fds=tuple(_held),
        )
    except FileNotFoundError as err:
        raise EnvironmentFailure(f"{what}: {words[0]} was not found", hint=hint) from err
    except PermissionError as err:
        raise EnvironmentFailure(f"{what}: {words[0]} cannot be executed ({err.strerror})", hint=hint) from err
    except subprocess.TimeoutExpired as err:
        words_run = shlex.join(words)
        raise EnvironmentFailure(f"{what}: no answer within {timeout:g} s from: {words_run}", hint=hint) from err
    result = Completed(argv=words, returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)
    if check and result.returncode != 0:
        raise error(f"{what}: exit {result.returncode} from: {shlex.join(words)}\n{result.output}", hint=hint)
    return result


class Stream:
    """A running program whose lines (both streams together) are iterated as they come; status after the end."""

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        what: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        words = [os.fspath(word) for word in argv]
        self.status = -1
        try:
            self._process = subprocess.Popen(
                words,
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="backslashreplace",
                pass_fds=tuple(_held),
            )
        except FileNotFoundError as err:
            raise EnvironmentFailure(f"{what}: {words[0]} was not found") from err
        except PermissionError as err:
            raise EnvironmentFailure(f"{what}: {words[0]} cannot be executed ({err.strerror})") from err

    def __iter__(self) -> Iterator[str]:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                yield line.rstrip("\n")
            self.status = self._process.wait()
        except BaseException:
            self._process.terminate()
            self._process.wait()
            raise


def stream(
    argv: Sequence[str | os.PathLike[str]],
    *,
    what: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    errors_only: bool = False,
) -> int:
    """Run a program with this process's own output streams and return its exit status.

    errors_only: what it prints goes to standard error, for a caller whose standard output is a result.
    """
    words = tuple(os.fspath(word) for word in argv)
    try:
        return subprocess.call(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=2 if errors_only else None,
            pass_fds=tuple(_held),
        )
    except FileNotFoundError as err:
        raise EnvironmentFailure(f"{what}: {words[0]} was not found") from err
    except PermissionError as err:
        raise EnvironmentFailure(f"{what}: {words[0]} cannot be executed ({err.strerror})") from err


class Exchange:
    """A program that takes bytes and gives bytes, started before its input is known."""

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        what: str,
        env: Mapping[str, str] | None = None,
        error: type[RocmbuildError] = CheckError,
    ) -> None:
        self._words = [os.fspath(word) for word in argv]
        self._what = what
        self._error = error
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                self._words, env=None if env is None else dict(env), stdin=pipe, stdout=pipe, stderr=pipe
            )
        except (FileNotFoundError, PermissionError) as err:
            raise EnvironmentFailure(f"{what}: {self._words[0]} cannot be executed ({err.strerror})") from err

    def run(self, data: Sequence[bytes]) -> bytes:
        """Give it its input and return what it wrote; a non-zero exit raises the error, with its own lines."""
        try:
            out, err = self._process.communicate(b"".join(data))
        except BaseException:
            self.close()
            raise
        if self._process.returncode != 0:
            lines = err.decode("utf-8", "backslashreplace").rstrip()
            raise self._error(f"{self._what}: exit {self._process.returncode} from: {shlex.join(self._words)}\n{lines}")
        return out

    def close(self) -> None:
        """End it without a result."""
        self._process.kill()
        self._process.communicate()


def filter_lines(
    argv: Sequence[str | os.PathLike[str]], lines: Sequence[str], *, longest: int, memory: int, timeout: float
) -> list[str]:
    """What a filter program makes of lines, line by line; [] where it cannot be run.

    Ends early, with the lines that are whole, where the program ends, gives a line of more than `longest` bytes, wants
    more than `memory` bytes of address space, or is not done after `timeout` seconds: nothing that is fed to it can
    fill this process's memory.
    """
    limited = ("/bin/sh", "-c", f'ulimit -v {memory >> 10}; exec "$@"', "sh", *(os.fspath(word) for word in argv))
    found: list[str] = []
    rest = b""
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryFile() as given:
        given.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        given.seek(0)
        try:
            child = subprocess.Popen(limited, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            return []
    assert child.stdout is not None
    try:
        while len(found) < len(lines) and len(rest) <= longest:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            found += [line.decode("utf-8", "backslashreplace") for line in whole]
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    return found[: len(lines)]
