"""`rocmbuild run`: another build system's command, run with recording compilers, then judged."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild import __version__, console, process
from rocmbuild.build.fronts import make_front, read_records
from rocmbuild.errors import InputError
from rocmbuild.paths import as_json, write_atomic
from rocmbuild.targets import TargetSet, bridge, refuse_smuggled
from rocmbuild.toolchain.model import Toolchain

if TYPE_CHECKING:  # what costs start-up time is imported where it is used
    from rocmbuild.audit.report import AuditReport

__all__ = ["Ran", "run_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a command. status: its exit status; failed: compiler commands that ended with an error."""

    status: int
    report: AuditReport
    record: dict[str, Any]
    failed: int

    @property
    def ok(self) -> bool:
        """Whether the command succeeded, compiled device code that was seen, and the audit holds."""
        return self.status == 0 and self.report.ok and self.report.compiled.device_commands > 0


def run_command(
    words: Sequence[str],
    *,
    targets: TargetSet,
    toolchain: Toolchain,
    environ: Mapping[str, str],
    patterns: Sequence[str] = (),
    keep: Path | None = None,
    quiet: bool = False,
) -> Ran:
    """Run a command, record what the HIP compilers compiled, and judge it against the targets.

    It only sets the environment: ROCM_HOME, ROCM_PATH, HIP_PATH, HIP_PLATFORM, HIPCC, HIPCXX, CMAKE_ARGS, PATH and
    PYTORCH_ROCM_ARCH. The compilers that these name hold the guard against 64 lanes in every HIP compilation, and never
    add a target: a command without the right ones fails the audit. Compilations that ended with an error (a configure
    step's trials) emit nothing and are counted, not judged. patterns: globs of wheels and libraries that the command
    makes, audited too. keep: where the record goes. quiet: the command prints to standard error only.

    Raises InputError for no command, or a pattern that matches nothing after a good run.
    """
    from rocmbuild.audit.report import audit

    if not words:
        raise InputError("run: no command", hint="write it after two dashes: rocmbuild run -- make")
    for flag in refuse_smuggled(environ):
        console.warn(f"{flag.message}; {flag.hint}")
    with tempfile.TemporaryDirectory(prefix="rocmbuild-run-") as name:
        front = make_front(Path(name).resolve() / "front", toolchain)
        env = front.environment(environ, targets)
        with bridge(env, targets):
            status = process.stream(words, what=f"running {words[0]}", env=env, errors_only=quiet)
        commands = read_records(front, targets.names)
    good = [command for command in commands if command["exit"] == 0]
    record = {
        "format": 1,
        "rocmbuild": __version__,
        "targets": list(targets.names),
        "targets_source": targets.source,
        "platforms": ["rocm"],
        "toolchain": toolchain.identity(),
        "command": list(words),
        "status": status,
        "build_dir": str(Path.cwd()),
        "commands": good,
        "commands_failed": [command for command in commands if command["exit"] != 0],
    }
    if keep:
        write_atomic(keep, as_json(record))
    paths = []
    for pattern in patterns:
        found = sorted(Path(match) for match in glob.glob(pattern, recursive=True))  # noqa: PTH207 (absolute ones too)
        if not found and status == 0:
            raise InputError(f"--audit {pattern}: the command made no such file")
        paths += found
    report = audit(paths, record=record, targets=targets.names)
    return Ran(status=status, report=report, record=record, failed=len(commands) - len(good))
