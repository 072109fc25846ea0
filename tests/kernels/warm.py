"""Runs pytest many times in one interpreter's forks, so that torch and numpy are imported once.

As a program it reads lines of JSON, {"words", "environ", "output"}, runs pytest in a fork for each, its output in the
file named, and answers with a line: the exit status, negative for the number of a signal. What hangs is ended by one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["WarmPytest"]

LIMIT = 300
"""Seconds for a run."""


class WarmPytest:
    """A process that has imported what the tests of the kernels import, but not the package under test."""

    def __init__(self, cwd: Path) -> None:
        words = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(words, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """pytest with these words and this environment, in a fork."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("r", suffix=".txt") as output:
            asked = {"words": list(words), "environ": dict(environ), "output": output.name}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            status = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(list(words), status, stdout=output.read(), stderr="")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def _serve() -> None:
    import gguf  # noqa: F401
    import numpy  # noqa: F401
    import pytest
    import torch  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(LIMIT)
            with open(asked["output"], "w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.environ.clear()
            os.environ.update(asked["environ"])
            sys.path[:0] = [each for each in asked["environ"].get("PYTHONPATH", "").split(os.pathsep) if each]
            status = int(pytest.main(asked["words"]))
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
