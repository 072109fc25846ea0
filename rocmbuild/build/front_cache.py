"""Results of compiler commands, kept by what they were made from. Beside front.py, a script's part: it imports nothing.

A result is that of the same command (words, folder, variables that compilers read, identity of the tools) from files of
the same bytes: each source, header, object and library that the compiler itself said it read. What else there may be (a
library named by -l outside the build) is the identity's to say. Paths below the folders of `places` are kept by their
names, so that an isolated build, whose packages lie in another folder each time, finds what the last one made.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from typing import Any

VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
SOURCES = (".hip", ".cu", ".cpp", ".cxx", ".cc", ".c", ".C", ".c++", ".cuh")
OTHER_MODES = frozenset(("-E", "-M", "-MM", "-S", "-fsyntax-only", "--precompile", "-emit-llvm", "-"))


class Result:
    """One command's result in the cache. None of its methods raises for a cache that cannot be read or written."""

    def __init__(self, settings: dict[str, Any], argv: list[str], env: dict[str, str], *, hip: bool) -> None:
        self.folder: str = settings["cache"]
        self.places: list[tuple[str, str]] = [(old, new) for old, new in settings["places"]]
        self.hip = hip
        self.output = following(argv, "-o")
        self.inputs = [
            word
            for word in argv[1:]
            if not word.startswith("-") and word != self.output and os.path.isfile(word)  # noqa: PTH113
        ]
        self.compiles = "-c" in argv and sum(word.endswith(SOURCES) for word in self.inputs) == 1
        links = "-c" not in argv and "-shared" in argv
        self.usable = bool(self.output) and (self.compiles or links) and OTHER_MODES.isdisjoint(argv)
        self.wanted = ""  # the dependency file that the command asks for
        if {"-MD", "-MMD"} & set(argv):
            self.wanted = following(argv, "-MF") or f"{os.path.splitext(self.output)[0]}.d"  # noqa: PTH122
        if not self.usable:
            return
        words = [self.named(word.replace(self.output, "{output}")) for word in argv]
        if links:  # what is linked lies in another folder each time, where setuptools builds in temporary ones
            digests = {word: digest(word) for word in self.inputs}
            words = [digests.get(word, text) for word, text in zip(argv, words, strict=True)]
            words += [digest(name) for name in linked_files(argv)]
            self.inputs = []
        read = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        known = [settings["identity"], words, self.named(os.getcwd()), env, read]  # noqa: PTH109
        self.key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
        self.path = f"{self.folder}/{self.key}"
        self.depfile = self.wanted or following(argv, "-MF") or f"{self.path}.{os.getpid()}.d"

    def named(self, text: str) -> str:
        for old, new in self.places:
            text = text.replace(old, new)
        return text

    def place(self, name: str) -> str:
        for old, new in self.places:
            if name.startswith(new):
                return old + name[len(new) :]
        return name

    def words(self, run: list[str]) -> list[str]:
        """The command that also writes down what it reads."""
        if self.hip or not self.compiles:
            return run
        run = ["-MD" if word == "-MMD" else word for word in run]
        if not self.wanted:
            run = [*run, *(() if "-MF" in run else ("-MF", self.depfile)), "-MD"]
        return run

    def environment(self) -> dict[str, str]:
        """Variables with which clang lists the headers of the device's and the host's compilation alike."""
        if not (self.hip and self.compiles):
            return {}
        return {"CC_PRINT_HEADERS": "1", "CC_PRINT_HEADERS_FILE": f"{self.path}.{os.getpid()}.h"}

    def restore(self) -> dict[str, Any] | None:
        """Put the result in its place, if all that it was made from is as it was; what was kept with it."""
        try:
            with open(f"{self.path}.json", encoding="utf-8") as file:  # noqa: PTH123
                kept: dict[str, Any] = json.load(file)
            for name, seen in kept["read"].items():
                if not same(self.place(name), seen):
                    return None
            temporary = f"{self.output}.{os.getpid()}.new"
            shutil.copyfile(f"{self.path}.out", temporary)
            if digest(temporary) != kept["digest"]:
                os.unlink(temporary)  # noqa: PTH108
                return None
            os.chmod(temporary, kept["mode"])  # noqa: PTH101
            os.replace(temporary, self.output)  # noqa: PTH105
            if self.wanted:
                with open(self.wanted, "w", encoding="utf-8") as file:  # noqa: PTH123
                    file.write(kept["deps"].replace("{output}", self.output))
            os.utime(f"{self.path}.json")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return kept

    def keep(self, *, begin: float, seconds: float) -> None:
        """Keep what the command made, which began at this time."""
        text, listed = "", f"{self.path}.{os.getpid()}.h"
        try:
            names = list(self.inputs)
            if self.compiles and (self.wanted or not self.hip):
                with open(self.depfile, encoding="utf-8") as file:  # noqa: PTH123
                    text = file.read()
                names += depfile_names(text)
            if self.compiles and self.hip:
                with open(listed, encoding="utf-8") as file:  # noqa: PTH123
                    names += file.read().splitlines()
            read = {self.named(name): state(name) for name in dict.fromkeys(map(os.path.normpath, names))}
            if any(seen[1] >= begin * 1e9 for seen in read.values()):
                return  # something was edited meanwhile
            os.makedirs(self.folder, exist_ok=True)  # noqa: PTH103
            value = {
                "read": read,
                "digest": digest(self.output),
                "mode": os.stat(self.output).st_mode & 0o777,  # noqa: PTH116
                "deps": text.replace(self.output, "{output}"),
                "seconds": seconds,
            }
            temporary = f"{self.path}.{os.getpid()}.new"
            shutil.copyfile(self.output, temporary)
            os.replace(temporary, f"{self.path}.out")  # noqa: PTH105
            with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump(value, file)
            os.replace(temporary, f"{self.path}.json")  # noqa: PTH105
        except (OSError, ValueError):
            return
        finally:
            for name in (listed, *(() if self.wanted else (self.depfile,))):
                if os.path.exists(name):  # noqa: PTH110
                    os.unlink(name)  # noqa: PTH108


def following(argv: list[str], option: str) -> str:
    """The word after the last of an option, or what is glued to it; "" without one."""
    found = ""
    for place, word in enumerate(argv):
        if word == option and place + 1 < len(argv):
            found = argv[place + 1]
    return found


def linked_files(argv: list[str]) -> list[str]:
    """Files that a link reads without naming them as inputs: libraries of -l in folders of -L, files in -Wl words."""
    folders = [word[2:] for word in argv if word.startswith("-L") and len(word) > 2]
    names = [word[2:] for word in argv if word.startswith("-l") and len(word) > 2]
    candidates = [f"{folder}/lib{name}.{end}" for folder in folders for name in names for end in ("so", "a")]
    candidates += [part for word in argv if word.startswith("-Wl,") for part in re.split("[,=]", word)[1:]]
    return [name for name in candidates if os.path.isfile(name) and os.path.getsize(name) < 1 << 26]  # noqa: PTH113, PTH202


def depfile_names(text: str) -> list[str]:
    """The names in a rule for make, after its target."""
    rule = text.replace("\\\n", " ").partition(": ")[2].split("\n", 1)[0]
    return [re.sub(r"\\([ #\\])", r"\1", word).replace("$$", "$") for word in re.findall(r"(?:\\.|\S)+", rule)]


def digest(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.sha256(file.read()).hexdigest()


def state(path: str) -> list[Any]:
    """Size, time and digest of a file."""
    info = os.stat(path)  # noqa: PTH116
    return [info.st_size, info.st_mtime_ns, digest(path)]


def same(path: str, seen: list[Any]) -> bool:
    """Whether a file holds the bytes it held; one of the same size and time is taken to."""
    info = os.stat(path)  # noqa: PTH116
    if info.st_size != seen[0]:
        return False
    return bool(info.st_mtime_ns == seen[1] or digest(path) == seen[2])
