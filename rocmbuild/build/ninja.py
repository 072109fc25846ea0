"""A build plan as a ninja file, and the run of it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild import console, process
from rocmbuild.build.plan import COMPILATIONS, BuildPlan, Edge
from rocmbuild.build.tools import find_ninja
from rocmbuild.errors import CheckError, EnvironmentFailure, InputError
from rocmbuild.paths import write_changed

__all__ = ["Command", "cached", "compile_commands", "headers_outside", "ninja_file", "read_commands", "run_ninja"]

LAUNCH_VARIABLE = "ROCMBUILD_LAUNCH_PROGRAM"  # of recorder.py
_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
_SHELL_SAFE = re.compile(r"^[A-Za-z0-9_@%+=:,./-]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that ran: the words after substitution, its exit status, its time in seconds, its output.

    cache: what a compiler cache said of it ("local", "remote", "miss"), or "".
    """

    edge: Edge
    argv: tuple[str, ...]
    env: dict[str, str]
    exit: int
    seconds: float
    output: str
    cache: str = ""


def _path(text: str) -> str:
    """A path as ninja reads it."""
    if "\n" in text or "\r" in text:
        raise InputError(f"{text!r}: a file name with a line break cannot be built", hint="rename the file")
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _word(text: str) -> str:
    """A word of a command as ninja and then the shell read it."""
    if "\n" in text or "\r" in text:
        raise InputError(f"{text!r}: a word of a command with a line break cannot be built")
    quoted = text if _SHELL_SAFE.match(text) else "'" + text.replace("'", "'\"'\"'") + "'"
    return quoted.replace("$", "$$")


def ninja_file(plan: BuildPlan) -> str:
    """The plan in ninja's language; each command runs through support/record, which writes what ran."""
    lines = [
        "ninja_required_version = 1.8",
        "rule run",
        "  command = $cmd",
        "  description = $title",
        "",
    ]
    for edge in plan.edges:
        env = [f"{name}={value}" for name, value in edge.env]
        if edge.kind in COMPILATIONS:
            env = ["--launch", *env]
        words = ["sh", "support/record", f"commands/{edge.key}.json", *env, "--", *edge.argv]
        line = f"build {_path(edge.output)}: run {' '.join(map(_path, edge.inputs))}"
        if edge.implicit:
            line += " | " + " ".join(map(_path, edge.implicit))
        lines += [
            line,
            f"  cmd = {' '.join(map(_word, words))}",
            f"  title = {edge.title.replace('$', '$$')}",
        ]
        if edge.depfile:
            lines += [f"  depfile = {_path(edge.depfile)}", "  deps = gcc"]
        lines.append("")
    lines.append("default " + " ".join(_path(library.built) for library in plan.libraries))
    return "\n".join(lines) + "\n"


def compile_commands(plan: BuildPlan, build_dir: Path) -> str:
    """compile_commands.json: each compilation, for editors and analysers."""
    entries = [
        {"directory": str(build_dir), "file": edge.inputs[0], "output": edge.output, "arguments": list(edge.argv)}
        for edge in plan.edges
        if edge.kind in COMPILATIONS
    ]
    return json.dumps(entries, indent=1) + "\n"


def _records(plan: BuildPlan, build_dir: Path) -> Iterator[tuple[Edge, dict[str, Any]]]:
    for edge in plan.edges:
        path = build_dir / "commands" / f"{edge.key}.json"
        if path.exists():
            yield edge, json.loads(path.read_text(encoding="utf-8"))


def read_commands(plan: BuildPlan, build_dir: Path) -> tuple[Command, ...]:
    """What ran, in the plan's order. A command that never ran is missing: the caller decides what that means."""
    return tuple(
        Command(
            edge=edge,
            argv=tuple(record["argv"]),
            env=dict(record["env"]),
            exit=int(record["exit"]),
            seconds=float(record["seconds"]),
            output=str(record["output"]),
            cache=str(record.get("cache", "")),
        )
        for edge, record in _records(plan, build_dir)
    )


def cached(plan: BuildPlan, build_dir: Path, *, since: int) -> dict[str, int]:
    """How many compilations that ran since a time (ns since the epoch) a compiler cache answered, by its answer."""
    counts = {"local": 0, "remote": 0, "miss": 0}
    for edge, record in _records(plan, build_dir):
        answer = record.get("cache")
        if answer in counts and (build_dir / "commands" / f"{edge.key}.json").stat().st_mtime_ns >= since:
            counts[answer] += 1
    return counts


def run_ninja(plan: BuildPlan, build_dir: Path, *, jobs: int | None, verbose: bool, env: dict[str, str]) -> int:
    """Write the ninja file, run ninja, and return how many commands it ran.

    Raises CheckError with the compiler's own lines, source and target named, when commands fail;
    EnvironmentFailure where there is no ninja.
    """
    ninja = find_ninja()
    if ninja is None:
        raise EnvironmentFailure("ninja was not found", hint="pip install ninja")
    write_changed(build_dir / "build.ninja", ninja_file(plan).encode())
    _forget_times_ahead(build_dir)
    words = [str(ninja), "-k", "0", *(["-v"] if verbose else []), *(["-j", str(jobs)] if jobs else [])]
    ran = 0
    tail: list[str] = []
    with console.Progress("rocmbuild: compiling", enabled=not verbose) as progress:
        # the compiler cache is no word of a command: another one, or none, is no reason to build anew
        more = {"NINJA_STATUS": "[%f/%t] ", LAUNCH_VARIABLE: plan.launcher}
        ninja_run = process.Stream(words, what="building", cwd=build_dir, env={**env, **more})
        for line in ninja_run:
            match = _STATUS.match(line)
            if match:
                ran = max(ran, int(match[1]))
                progress.update(int(match[1]), int(match[2]), match[3])
            tail = [*tail[-40:], line]
            if verbose:
                console.note(line)
    if ninja_run.status != 0:
        raise _failure(plan, build_dir, tail)
    return ran


def headers_outside(build_dir: Path) -> set[str]:
    """The absolute paths in ninja's log of dependencies: headers of tools and SDKs; others are in the build folder."""
    ninja = find_ninja()
    if ninja is None:
        return set()
    listed = process.run([ninja, "-t", "deps"], what="asking ninja for dependencies", cwd=build_dir, check=False)
    return {line.strip() for line in listed.stdout.splitlines() if line.startswith("    /")}


def _forget_times_ahead(build_dir: Path) -> None:
    """Build all anew where the last build's times lie ahead of the clock, which was set back since.

    Ninja compares times: an edit made now would look older than what was built of the source before it, and what was
    built from inputs ahead of the clock would never look done.
    """
    log, now = build_dir / ".ninja_log", time.time() + 2
    if not log.exists() or log.stat().st_mtime <= now:
        return
    log.unlink()
    for path in build_dir.rglob("*"):
        if not path.is_symlink() and path.stat().st_mtime > now:
            os.utime(path)


def _failure(plan: BuildPlan, build_dir: Path, tail: list[str]) -> CheckError:
    """One error for all commands that failed, each with its source, its target and the compiler's lines."""
    failed = [command for command in read_commands(plan, build_dir) if command.exit != 0]
    if not failed:
        return CheckError("building: ninja failed\n" + "\n".join(tail))
    parts = [f"{command.edge.title}: exit {command.exit}\n{command.output.rstrip()}" for command in failed]
    return CheckError("compilation failed: " + "\n\n".join(parts), hint="correct the source, then build again")
