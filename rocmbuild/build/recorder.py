"""Runs one command of a build and writes down what ran. A script by itself: it imports nothing of rocmbuild.

    recorder.py RECORD.json [NAME=VALUE ...] -- PROGRAM [WORD ...]

A word `@sha256:FILE@`, or a part of one, becomes the digest of FILE. The record holds the words as they
ran, the variables set for them, the variables of the environment through which compilers take flags, the
exit status, the seconds, and what the program printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time

INJECTING = ("HCC_AMDGPU_TARGET", "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS")


def digest(match: re.Match[str]) -> str:
    with open(match[1], "rb") as file:  # noqa: PTH123 (pathlib costs start-up time)
        return hashlib.sha256(file.read()).hexdigest()


def main(words: list[str]) -> int:
    record, rest = words[0], words[1:]
    split = rest.index("--")
    given = dict(word.split("=", 1) for word in rest[:split])
    argv = [re.sub(r"@sha256:([^@]+)@", digest, word) for word in rest[split + 1 :]]
    env = {**{name: os.environ[name] for name in INJECTING if name in os.environ}, **given}
    begin = time.monotonic()
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        status, output = done.returncode, done.stdout.decode("utf-8", "backslashreplace")
    except OSError as err:
        status, output = 127, f"{argv[0]}: {err.strerror}\n"
    value = {"argv": argv, "env": env, "exit": status, "seconds": round(time.monotonic() - begin, 3), "output": output}
    os.makedirs(os.path.dirname(record) or ".", exist_ok=True)  # noqa: PTH103, PTH120
    with open(f"{record}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(value, file)
    os.replace(f"{record}.new", record)  # noqa: PTH105
    sys.stdout.write(output)
    return status if 0 <= status < 256 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
