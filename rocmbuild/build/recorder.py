"""Runs one command of a build and writes down what ran. A script by itself: it imports nothing of rocmbuild.

    recorder.py RECORD.json [--launch] [NAME=VALUE ...] -- PROGRAM [WORD ...]

A word `@sha256:FILE@`, or a part of one, becomes the digest of FILE. The record holds the words as they
ran, the variables set for them, the variables of the environment through which compilers take flags, the
exit status, the seconds, and what the program printed.

--launch: the compiler cache that ROCMBUILD_LAUNCH_PROGRAM names, if it names one, is put in front of the words; the
record's words are without it. A cache restores objects, not the dependency file that `-Xclang -dependency-file` writes,
so the words from there on are left out of what it runs, and the compiler itself writes that file afterwards, by
preprocessing. What ccache says of the result is in the record, as `cache`: "local", "remote" (of a store that builders
share) or "miss".
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time

INJECTING = ("HCC_AMDGPU_TARGET", "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS")
LAUNCH = "--launch"


def digest(match: re.Match[str]) -> str:
    with open(match[1], "rb") as file:  # noqa: PTH123 (pathlib costs start-up time)
        return hashlib.sha256(file.read()).hexdigest()


def run(argv: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Exit status, and what it printed."""
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as err:
        return 127, f"{argv[0]}: {err.strerror}\n"
    return done.returncode, done.stdout.decode("utf-8", "backslashreplace")


def preprocessing(argv: list[str]) -> list[str]:
    """The words that write the dependency file of a compilation and nothing else."""
    words = ["-E" if word == "-c" else word for word in argv]
    words[words.index("-o") + 1] = os.devnull
    return words


def launch(launcher: str, argv: list[str], env: dict[str, str], log: str) -> tuple[int, str, str]:
    """Run a compilation through a compiler cache: exit status, what was printed, what the cache says."""
    start = argv.index("-dependency-file") - 1 if "-dependency-file" in argv else len(argv)
    status, output = run([launcher, *argv[:start]], {"CCACHE_STATSLOG": log, **env})
    said = ""
    with contextlib.suppress(OSError):
        with open(log, encoding="utf-8") as file:  # noqa: PTH123
            events = file.read().split("\n")
        os.unlink(log)  # noqa: PTH108
        hit = "direct_cache_hit" in events or "preprocessed_cache_hit" in events
        remote = "remote_storage_hit" in events
        said = ("remote" if remote else "local") if hit else "miss" if "cache_miss" in events else ""
    if status == 0 and start < len(argv):
        status, more = run(preprocessing(argv), env)
        output += more
    return status, output, said


def main(words: list[str]) -> int:
    record, rest = words[0], words[1:]
    split = rest.index("--")
    launcher = os.environ.get("ROCMBUILD_LAUNCH_PROGRAM", "") if LAUNCH in rest[:split] else ""
    given = dict(word.split("=", 1) for word in rest[:split] if word != LAUNCH)
    argv = [re.sub(r"@sha256:([^@]+)@", digest, word) for word in rest[split + 1 :]]
    env = {**{name: os.environ[name] for name in INJECTING if name in os.environ}, **given}
    os.makedirs(os.path.dirname(record) or ".", exist_ok=True)  # noqa: PTH103, PTH120
    begin = time.monotonic()
    said = ""
    if launcher:
        status, output, said = launch(launcher, argv, {**os.environ, **given}, f"{os.path.abspath(record)}.log")  # noqa: PTH100
    else:
        status, output = run(argv, {**os.environ, **given})
    value = {"argv": argv, "env": env, "exit": status, "seconds": round(time.monotonic() - begin, 3), "output": output}
    if said:
        value["cache"] = said
    with open(f"{record}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(value, file)
    os.replace(f"{record}.new", record)  # noqa: PTH105
    sys.stdout.write(output)
    return status if 0 <= status < 256 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
