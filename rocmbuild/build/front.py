"""Stands in front of a compiler: adds the wave32 guard to HIP compilations, runs the compiler, writes down what ran.

A script by itself: it imports nothing of rocmbuild but its neighbour front_cache.py, where results are kept.

    front.py SETTINGS.json NAME [WORD ...]

SETTINGS.json: `records` (a folder; one JSON file for each command), `programs` (NAME -> the real compiler), `guard` (a
header), `flags` (NAME -> words for HIP compilations by that program), `common` (words for every compilation),
`compiler_rt` (whether clang has its own runtime library, which HIP's CMake package asks for; libgcc serves too),
`level` (the optimisation of HIP compilations that name none), `hip` (its version), `cache` ("" or a folder of results,
see front_cache.py; then `places` and `identity` too). The streams are the compiler's own. A record holds the words as
they ran, response files read, with the folder, the variables through which compilers take flags, the exit status, the
seconds, and whether the result is that of an earlier run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from typing import Any

INJECTING = ("HCC_AMDGPU_TARGET", "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS")
SOURCE = re.compile(r".*\.(hip|cu|cpp|cxx|cc|C|c\+\+)")
WORDS = """-o -x -I -D -U -L -l -T -u -z -isystem -idirafter -iquote -include -MF -MT -MQ -Xclang -Xlinker
-Xpreprocessor -Xassembler -Xarch_host -Xarch_device -mllvm -target -arch"""
TAKES_A_WORD = frozenset(WORDS.split())
PRINTS = re.compile(r"-###|--?(version|help|print-.*|dumpversion|dumpmachine)|-v")
IDENTIFICATION = "CMakeHIPCompilerId.hip"  # by which CMake learns the compiler's name, for no target at all
MAX_DEPTH = 8


def expanded(words: list[str], depth: int = 0) -> list[str]:
    """The words with those of response files in their place, as far as these can be read."""
    out: list[str] = []
    for word in words:
        if word.startswith("@") and len(word) > 1 and depth < MAX_DEPTH:
            try:
                with open(word[1:], encoding="utf-8") as file:  # noqa: PTH123 (pathlib costs start-up time)
                    out += expanded(shlex.split(file.read()), depth + 1)
                continue
            except (OSError, ValueError):
                pass
        out.append(word)
    return out


def compiles_hip(words: list[str], *, hipcc: bool) -> bool:
    """Whether these words compile a source as HIP. hipcc: the program takes every C++ source for HIP."""
    language = ""
    following = ""
    found = False
    for word in words:
        if following:
            if following == "-x":
                language = word
            following = ""
        elif word in TAKES_A_WORD:
            following = word
        elif word.startswith("-x"):
            language = word[2:]
        elif word in ("-E", "-M", "-MM", "-fsyntax-only"):
            return False
        elif word == "-" or not word.startswith("-"):
            if language not in ("", "none"):
                found = found or language == "hip"
            elif SOURCE.fullmatch(word):
                found = found or hipcc or word.endswith(".hip")
    return found


def run_and_keep(run: list[str], result: Any, program: str) -> int:
    """Run the compiler; keep what it made in the cache. Its exit status."""
    words = result.words(run) if result else run
    extra = result.environment() if result else {}
    begin = time.time()
    try:
        if extra or words != run:
            os.makedirs(result.folder, exist_ok=True)  # noqa: PTH103
        status = subprocess.run(words, env={**os.environ, **extra}, check=False).returncode
    except OSError as err:
        sys.stderr.write(f"{program}: {err.strerror}\n")
        return 127
    if result and status == 0:
        result.keep(begin=begin, seconds=round(time.time() - begin, 3))
    return status


def tell_version(program: str, words: list[str], hip: str) -> int:
    """AMD's hipcc says the version of HIP before clang's, and setup.py files read it there; not every hipcc does."""
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, check=False)
    if b"HIP version" not in done.stdout:
        sys.stdout.write(f"HIP version: {hip}\n")
        sys.stdout.flush()
    sys.stdout.buffer.write(done.stdout)
    return done.returncode


def main(words: list[str]) -> int:
    with open(words[0], encoding="utf-8") as file:  # noqa: PTH123
        settings = json.load(file)
    name, given = words[1], expanded(words[2:])
    if name == "hipcc" and given == ["--version"]:
        return tell_version(settings["programs"][name], given, settings["hip"])
    added: list[str] = list(settings["common"]) if "-c" in given else []
    hip = False
    if given and given[-1].endswith(IDENTIFICATION) and not any(word.startswith("--offload-arch") for word in given):
        added = ["--offload-host-only"]
    elif compiles_hip(given, hipcc="hipcc" in name):
        hip = True
        added += [*settings["flags"].get(name, []), "-mno-wavefrontsize64", "-include", settings["guard"]]
        if not any(word.startswith("-O") for word in given):
            added += settings["level"]
    links = "hipcc" not in name and not any(word in ("-c", "-S", "-E", "-M", "-MM", "-###") for word in given)
    if links and ("--hip-link" in given or hip):
        added.append("-Wl,--allow-shlib-undefined")  # the HIP library's own needs are met where it runs
    last = ["--rtlib=libgcc"] if "--rtlib=compiler-rt" in given and not settings["compiler_rt"] else []
    # in front, so that what a project says itself has the last word, and the guard answers it
    argv = [settings["programs"][name], *added, *given, *last]
    run = [argv[0], *added, *words[2:], *last]
    env = {variable: os.environ[variable] for variable in INJECTING if variable in os.environ}
    stamp, begin = time.time_ns(), time.monotonic()
    result = cached = None
    if settings["cache"] and given == words[2:]:
        sys.path.insert(0, os.path.dirname(words[0]))  # noqa: PTH120
        from front_cache import Result  # type: ignore[import-not-found]  # beside this script

        result = Result(settings, argv, env, hip=hip)
        cached = result.restore() if result.usable else None
    status = 0 if cached else run_and_keep(run, result if result and result.usable else None, argv[0])
    seconds = cached["seconds"] if cached else round(time.monotonic() - begin, 3)
    if given not in ([], ["-v"]) and not any(PRINTS.fullmatch(word) for word in given if word != "-v"):
        value = {
            "argv": argv,
            "cwd": os.getcwd(),  # noqa: PTH109
            "env": env,
            "exit": status,
            "seconds": seconds,
            "cached": cached is not None,
            "result": result.key if result and result.usable else "",
        }
        record = f"{settings['records']}/{stamp}-{os.getpid()}.json"
        with open(f"{record}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(value, file)
        os.replace(f"{record}.new", record)  # noqa: PTH105
    return status if 0 <= status < 256 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
