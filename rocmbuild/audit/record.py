"""The record of a build: what was asked for and every command that ran, read from record.json or a wheel's evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.errors import InputError, joined

__all__ = ["Command", "Record", "is_record", "parse_record", "read_record"]

_MAX_RECORD = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that ran. kind and platform as the builder meant it, "" where it did not say.

    cwd: where it ran, None for the record's folder. path and line: the line of a log that holds it.
    """

    kind: str
    platform: str
    extension: str
    target: str
    source: str
    output: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    exit: int
    cwd: Path | None = None
    path: str = ""
    line: int = 0

    @property
    def title(self) -> str:
        """What a person calls this command."""
        if self.path:
            return f"{self.path}:{self.line}"
        what = self.source or self.output or self.argv[0]
        return f"{what} for {self.target}" if self.target else what


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a build was asked for and did.

    where: the file it is from. targets: None where it does not say what was asked for (logs). stage_key: the sources it
    was made from. folder: where the commands ran. platforms: None where the record does not say. code_objects: the
    summary in a wheel's evidence. log: whether it was gathered from the words of others.
    """

    where: str
    targets: tuple[str, ...] | None
    targets_source: str
    platforms: tuple[str, ...] | None
    stage_key: str
    folder: Path
    commands: tuple[Command, ...]
    code_objects: Any
    log: bool = False

    @property
    def wants_device_code(self) -> bool:
        """Whether the build was to make ROCm libraries."""
        if self.platforms is not None:
            return "rocm" in self.platforms
        return not self.log and (any(command.platform == "rocm" for command in self.commands) or bool(self.targets))


def read_record(path: Path) -> Record:
    """Read a record.json, or the one in a build folder."""
    if path.is_dir():
        path = path / "record.json"
    try:
        if path.stat().st_size > _MAX_RECORD:
            raise InputError(f"{path}: larger than {_MAX_RECORD} bytes, no record of a build")
        value = json.loads(path.read_text("utf-8"))
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    except (ValueError, RecursionError) as err:
        raise InputError(f"{path}: not JSON ({err}); wanted the record.json of a build") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {type(value).__name__}, wanted the JSON object that a build records")
    return parse_record(value, where=str(path), folder=path.parent)


def is_record(path: Path) -> bool:
    """Whether a file is meant to be a record: JSON, an object with a format near its beginning."""
    if path.suffix != ".json":
        return False
    try:
        with path.open("rb") as file:
            head = file.read(4096).lstrip()
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror})") from err
    return not head.startswith(b"[") and not (head.startswith(b"{") and b'"argv"' in head and b'"format"' not in head)


def parse_record(value: Mapping[str, Any], *, where: str, folder: Path | None = None) -> Record:
    """Check a record's shape; InputError lists every fault by its key."""
    faults: list[str] = []

    def text(table: Mapping[str, Any], key: str, at: str) -> str:
        found = table.get(key)
        if found is not None and not isinstance(found, str):
            faults.append(f"{at}{key}: found {found!r:.60}, wanted a string")
            return ""
        return found or ""

    def texts(table: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
        found = table.get(key)
        if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
            faults.append(f"{at}{key}: found {found!r:.60}, wanted a list of strings")
            return ()
        return tuple(found)

    if value.get("format") != 1:
        raise InputError(f"{where}: format: found {value.get('format')!r:.40}, wanted 1, the record of a build")
    targets = texts(value, "targets", "")
    platforms = texts(value, "platforms", "") if value.get("platforms") is not None else None
    stage = value.get("stage")
    rows = value.get("commands", [])
    if not isinstance(rows, list):
        faults.append(f"commands: found {type(rows).__name__}, wanted a list")
        rows = []
    commands = []
    for number, row in enumerate(rows):
        at = f"commands[{number}]."
        if not isinstance(row, dict):
            faults.append(f"{at[:-1]}: found {row!r:.60}, wanted an object")
            continue
        argv = texts(row, "argv", at)
        env = row.get("env") or {}
        if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
            faults.append(f"{at}env: found {env!r:.60}, wanted strings by name")
            env = {}
        status = row.get("exit", 0)
        if not isinstance(status, int):
            faults.append(f"{at}exit: found {status!r:.60}, wanted a number")
            status = 0
        if not argv:
            faults.append(f"{at}argv: empty, wanted the words of the command")
        commands.append(
            Command(
                kind=text(row, "kind", at),
                platform=text(row, "platform", at),
                extension=text(row, "extension", at),
                target=text(row, "target", at),
                source=text(row, "source", at),
                output=text(row, "output", at),
                argv=argv,
                env=env,
                exit=status,
            )
        )
    build_dir = text(value, "build_dir", "")
    record = Record(
        where=where,
        targets=targets,
        targets_source=text(value, "targets_source", ""),
        platforms=platforms,
        stage_key=text(stage, "key", "stage.") if isinstance(stage, dict) else "",
        folder=Path(build_dir) if build_dir else folder or Path(),
        commands=tuple(commands),
        code_objects=value.get("code_objects"),
    )
    if faults:
        raise InputError(f"{where}: {joined(faults[:20])}")
    return record
