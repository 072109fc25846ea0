"""Compiler commands out of what other tools leave behind: logs of builds, and compilation databases.

Understood are compile_commands.json and `ninja -t compdb`, the records of a recording compiler, and text: `ninja -v`,
`make V=1`, `pip -v`, CMake (build logs, CMakeConfigureLog.yaml, CMakeError.log), HIPCC_VERBOSE, `clang -v`, `set -x`.
Text has no grammar, so a line counts only where a shell would start a compiler by it. A line that speaks of HIP and
that cannot be taken apart is a finding, never left out in silence.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from rocmbuild.audit.commands import COMPILERS, LAUNCHERS
from rocmbuild.audit.finding import Finding
from rocmbuild.audit.record import Command, Record
from rocmbuild.errors import InputError, printable

__all__ = ["Log", "is_text", "parse_log", "read_log"]

_MAX_LOG = 1 << 30
_MAX_LINE = 1 << 22
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_PREFIXES = re.compile(
    r"""\s*(?:
        \d{4}-\d\d-\d\d[T ][\d:.]+Z?\s          # a time stamp (GitHub Actions)
      | \#\d+\s+[\d.]+\s                        # docker buildx
      | \[\s*\d+/\d+\]\s | \[\s*\d+%\]\s        # ninja, make
      | \[\d[\w\s./%:+-]*\]\s                   # NINJA_STATUS of other shapes
      | libtool:\s(?:compile|link):\s+ | libtool:\s+
      | hipcc-cmd:\s                            # HIPCC_VERBOSE=1
      | \++\s                                   # set -x
      | Run\sBuild\sCommand\(s\):\s?            # CMake's try_compile
      | -\s                                     # a YAML list
    )""",
    re.VERBOSE,
)
_ENTERING = re.compile(r"make(?:\[\d+\])?: (Entering|Leaving) directory [`'\"](.*?)['\"]$")
_CHANGE = re.compile(r"\s*Change Dir: ['\"]?(.*?)['\"]?\s*$")
_MAY_START = re.compile(rf"(?:^|[\s/\"'&;(=])(?:{COMPILERS.pattern})(?:[\s\"']|$)")
_SPEAKS = re.compile(r"--offload-arch|--cuda-gpu-arch|--amdgpu-target|\bhipcc\s+-|-x hip\b")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SEPARATORS = {"&&", "||", ";", "|", "&", "(", ")", "|&", ";;"}
_REDIRECTIONS = {">", ">>", "<", ">&", "<&", "&>", "&>>", "<<", "<<<", ">|"}
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
_SOURCE = re.compile(r".*\.(?:hip|hipi|cu|cui|c|cc|cpp|cxx|C|c\+\+|s|S|o|obj|a|so|co|hipfb|bc|ll|lo)")
_VERBOSE = "hipcc-cmd: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a log gave: its commands as a record, and what could not be taken apart."""

    record: Record
    findings: tuple[Finding, ...]


def is_text(path: Path) -> bool:
    """Whether a file is text, and so a log or a record and no binary."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    if b"\0" in head or not head.strip() or head.startswith((b"!<arch>", b"!<thin>", b"CCOB", b"__CLANG_OFFLOAD")):
        return False
    return sum(byte < 32 and byte not in b"\t\n\r\x1b\f\b" for byte in head) == 0


def read_log(path: Path) -> Log:
    """Read a log, a compilation database, or a folder of a recording compiler's files.

    InputError where there is no compiler command in it.
    """
    if path.is_dir():
        files = sorted(path.rglob("*.json"))
        parts = [_recorded(_json(file), str(file), 1, file.parent) for file in files]
        commands = [command for command in parts if command is not None]
        if not commands:
            raise InputError(f"{path}: no record.json, and no file of a recording compiler below it")
        return Log(record=_record(str(path), path, commands), findings=())
    try:
        size = path.stat().st_size
        if size > _MAX_LOG:
            raise InputError(f"{path}: {size} bytes are too many for a log")
        text = path.read_text("utf-8", "backslashreplace")
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    return parse_log(text, name=str(path), folder=path.parent)


def parse_log(text: str, *, name: str, folder: Path = Path()) -> Log:
    """The commands in a text. name: what findings call it; folder: where its commands ran when it does not say."""
    stripped = text.lstrip("\ufeff \t\r\n")
    if stripped.startswith("[") and re.match(r"\[\s*(?:\{|\])", stripped):
        log = _database(text, name, folder)
    elif stripped.startswith("{"):
        log = _records(text, name, folder)
    else:
        reader = _Reader(name, folder)
        for number, line in _lines(text):
            reader.line(number, line)
        log = Log(record=_record(name, folder, _without_wrappers(reader.found)), findings=tuple(reader.findings))
    if not log.record.commands and not log.findings:
        raise InputError(
            f"{name}: no compiler command in it",
            hint="make the build verbose: ninja -v, make V=1, pip -v, cmake --build . -v, HIPCC_VERBOSE=1",
        )
    return log


def _record(where: str, folder: Path, commands: Sequence[Command]) -> Record:
    return Record(
        where=where,
        targets=None,
        targets_source="",
        platforms=None,
        stage_key="",
        folder=folder,
        commands=tuple(commands),
        code_objects=None,
        log=True,
    )


def _command(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: Path, path: str, line: int, source: str = "", status: int = 0
) -> Command:
    return Command(
        kind="",
        platform="",
        extension="",
        target="",
        source=source,
        output="",
        argv=tuple(argv),
        env=env,
        exit=status,
        cwd=cwd,
        path=path,
        line=line,
    )


# JSON


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    except (ValueError, RecursionError) as err:
        raise InputError(f"{path}: not JSON ({err})") from None


def _database(text: str, name: str, folder: Path) -> Log:
    """compile_commands.json (clang's JSONCompilationDatabase), each entry at the line where it begins."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise InputError(f"{name}: not JSON ({err}); wanted a compilation database") from None
    lines = _entry_lines(text)
    commands: list[Command] = []
    faults: list[Finding] = []
    for index, row in enumerate(rows):
        line = lines[index] if index < len(lines) else 1
        where = f"{name}:{line}"
        if not isinstance(row, dict):
            raise InputError(f"{where}: entry {index} is {row!r:.40}, wanted an object with command or arguments")
        words, command = row.get("arguments"), row.get("command")
        place = row.get("directory")
        cwd = folder / place if isinstance(place, str) else folder
        source = row.get("file")
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            if _is_compiler(words):
                commands.append(_command(words, {}, cwd=cwd, path=name, line=line, source=str(source or "")))
        elif isinstance(command, str):
            reader = _Reader(name, cwd)
            reader.line(line, command, prefixes=False)
            commands += [found for _, found in reader.found]
            faults += reader.findings
        else:
            raise InputError(f"{where}: entry {index} has neither command nor arguments as text")
    return Log(record=_record(name, folder, commands), findings=tuple(faults))


def _entry_lines(text: str) -> list[int]:
    """The line on which each object of the outermost list begins."""
    lines, line, depth = [], 1, 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\]\n]', text, re.DOTALL):
        char = match[0]
        if char == "{":
            if depth == 1:
                lines.append(line)
            depth += 1
        elif char == "[":
            depth += 1
        elif char in "}]":
            depth -= 1
        line += char.count("\n")
    return lines


def _records(text: str, name: str, folder: Path) -> Log:
    """What a recording compiler wrote: one object, or one on each line."""
    try:
        rows = [(1, json.loads(text))]
    except (ValueError, RecursionError):
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    rows.append((number, json.loads(line)))
                except (ValueError, RecursionError) as err:
                    raise InputError(f"{name}:{number}: not JSON ({err})") from None
    found = [_recorded(row, name, number, folder) for number, row in rows]
    commands = [command for command in found if command is not None]
    if not commands:
        raise InputError(f"{name}: no command in it; wanted objects with argv, a list of strings")
    return Log(record=_record(name, folder, commands), findings=())


def _recorded(row: Any, name: str, line: int, folder: Path) -> Command | None:
    """One command as a recorder writes it; None for anything else."""
    if not isinstance(row, dict):
        return None
    argv, env, place, status = row.get("argv"), row.get("env") or {}, row.get("cwd"), row.get("exit", 0)
    if not isinstance(argv, list) or not argv or not isinstance(env, dict):
        return None
    if not all(isinstance(word, str) for word in argv):
        return None
    return _command(
        argv,
        {str(key): str(value) for key, value in env.items()},
        cwd=folder / place if isinstance(place, str) else folder,
        path=name,
        line=line,
        status=status if isinstance(status, int) else 0,
    )


# Text


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text), lines that end in a backslash joined with the next."""
    start, parts, size = 0, [], 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r").rpartition("\r")[2]  # what a progress line left on the terminal
        start = start or number
        if line.endswith("\\") and not line.endswith("\\\\") and size < _MAX_LINE:
            parts.append(line[:-1])
            size += len(line)
            continue
        yield start, "".join([*parts, line])
        start, parts, size = 0, [], 0
    if parts:
        yield start, "".join(parts)


@dataclass(slots=True)
class _Place:
    """The folder and the variables that hold in a shell's list of commands."""

    cwd: Path
    env: dict[str, str] = field(default_factory=dict)


class _Reader:
    """Reads a text line by line and keeps the commands; remembers the folder that make or CMake last named."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folders = [folder]
        self.found: list[tuple[bool, Command]] = []  # whether hipcc itself printed it
        self.findings: list[Finding] = []

    def line(self, number: int, text: str, *, prefixes: bool = True) -> None:
        """Look at one line."""
        if len(text) > _MAX_LINE:
            self.doubt(number, text, "is too long")
            return
        if prefixes:
            text = _ESCAPES.sub("", text)
            if moved := _ENTERING.search(text):
                if moved[1] == "Entering":
                    self.folders.append(self.folders[0] / moved[2])
                elif len(self.folders) > 1:
                    self.folders.pop()
                return
            if changed := _CHANGE.match(text):
                self.folders[-1] = self.folders[0] / changed[1]
                return
        if not _MAY_START.search(text):
            return
        verbose = _VERBOSE in text
        while prefixes and (match := _PREFIXES.match(text)):
            text = text[match.end() :]
        self.shell(number, text.strip(), _Place(self.folders[-1]), verbose=verbose, depth=0)

    def shell(self, number: int, text: str, place: _Place, *, verbose: bool, depth: int) -> None:
        """A list of commands as a shell reads it."""
        lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            tokens = list(lexer)
        except ValueError as err:
            self.doubt(number, text, f"cannot be split into words ({err})")
            return
        words: list[str] = []
        skip = False
        for token in tokens:
            if skip:
                skip = False
            elif token in _SEPARATORS:
                self.simple(number, words, place, verbose=verbose, depth=depth)
                words = []
            elif token in _REDIRECTIONS:
                skip = True
                if words and words[-1].isdigit():
                    words.pop()
            else:
                words.append(token)
        self.simple(number, words, place, verbose=verbose, depth=depth)

    def simple(self, number: int, words: list[str], place: _Place, *, verbose: bool, depth: int) -> None:
        """One command: a compiler is kept, `cd` and `export` change the place, a shell in the shell is looked into."""
        while words and words[0] in ("{", "}", "!", "then", "else", "do", "exec", "command"):
            words = words[1:]
        first = [i for i, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)]
        program = PurePosixPath(words[first[0]]).name if first else ""
        if not first:
            place.env |= {m[1]: m[2] for word in words if (m := _ASSIGNMENT.fullmatch(word))}
        elif program == "cd" and len(words) > first[0] + 1:
            place.cwd = place.cwd / words[-1]
        elif program == "export":
            place.env |= {m[1]: m[2] for word in words[1:] if (m := _ASSIGNMENT.fullmatch(word))}
        elif program in _SHELLS and depth < 4:
            flags = [i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c[a-z]*", word)]
            if flags and len(words) > flags[0] + 1:
                self.shell(number, words[flags[0] + 1], place, verbose=verbose, depth=depth + 1)
        elif program == "cmake" and words[first[0] + 1 : first[0] + 3] == ["-E", "env"]:
            rest = [word for word in words[first[0] + 3 :] if word != "--"]
            self.simple(number, ["env", *rest], place, verbose=verbose, depth=depth + 1)
        elif program == "cmake" and "--" in words and words[first[0] + 1 : first[0] + 2] == ["-E"]:
            rest = words[words.index("--") + 1 :]  # __run_co_compile and the like
            self.simple(number, rest, place, verbose=verbose, depth=depth + 1)
        elif _is_compiler(words):
            command = _command(words, dict(place.env), cwd=place.cwd, path=self.name, line=number)
            self.found.append((verbose, command))

    def doubt(self, number: int, text: str, why: str) -> None:
        """Say what cannot be followed, where it speaks of HIP."""
        if _SPEAKS.search(text[:_MAX_LINE]):
            message = f"the line speaks of HIP and {why}: not judged ({printable(text, limit=60)})"
            self.findings.append(
                Finding(
                    severity="warning",
                    rule="not-understood",
                    message=message,
                    where=f"{self.name}:{number}",
                    path=self.name,
                    line=number,
                )
            )


def _is_compiler(words: Sequence[str]) -> bool:
    """Whether words start a compiler, perhaps through launchers, and are not prose."""
    rest = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    for position, word in enumerate(rest):
        if COMPILERS.fullmatch(PurePosixPath(word).name):
            after = rest[position + 1 :]
            if after[:2] == ["-cc1", "version"]:  # how clang -v begins
                return False
            return any((len(w) > 1 and w[0] in "-@") or _SOURCE.fullmatch(w) for w in after)
        if position > 8:
            break
        if not (word.startswith("-") or PurePosixPath(word).name in LAUNCHERS or word.isdigit()):
            break
    return False


def _without_wrappers(found: Sequence[tuple[bool, Command]]) -> list[Command]:
    """The commands without those of hipcc whose own command HIPCC_VERBOSE printed: the same, seen from outside."""
    said = {_identity(command) for verbose, command in found if verbose}
    kept = []
    for verbose, command in found:
        outer = not verbose and any("hipcc" in PurePosixPath(word).name for word in command.argv[:4])
        if not (outer and said and _identity(command) in said):
            kept.append(command)
    return kept


def _identity(command: Command) -> tuple[str, ...]:
    """What a compilation makes of what: its output and its inputs."""
    words = list(command.argv)
    outputs = [b for a, b in pairwise(words) if a == "-o"]
    inputs = [word for word in words[1:] if not word.startswith("-") and _SOURCE.fullmatch(word)]
    return (*outputs, *sorted(set(inputs)))
