"""`rocmbuild stage` and `rocmbuild cache ...`: parses words, calls one function, prints its result."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild import console

if TYPE_CHECKING:  # what costs start-up time is imported where it is used
    from rocmbuild.staging.findings import Finding
    from rocmbuild.staging.stage import Stage
    from rocmbuild.staging.upkeep import Pruned

__all__ = ["add_commands"]

Command = Callable[..., argparse.ArgumentParser]
Settings = Callable[[argparse.Namespace], dict[str, Any]]


def _stage(args: argparse.Namespace, settings: Settings) -> int:
    from rocmbuild import pipeline
    from rocmbuild.config import load_config
    from rocmbuild.staging.sources import SourcesError

    config = load_config(args.project, settings=settings(args), environ=os.environ, want_targets=False)
    if not args.check:
        stage = pipeline.stage_project(config, os.environ, strict=False)
        _write_sarif(args, stage.findings, config.project)
        if args.out:
            _write_trees(stage, args.out)
        return _show_stage(args, stage, config.project)
    try:
        findings = pipeline.stage_project(config, os.environ, strict=False, build=False).findings
    except SourcesError as err:
        from rocmbuild.staging.findings import finding

        findings = tuple(finding(path, "unusable", detail=fault) for path, fault in sorted(err.faults.items()))
        _write_sarif(args, findings, config.project)
        _show_findings(args, findings, config.project)
        return err.exit_code
    _write_sarif(args, findings, config.project)
    _show_findings(args, findings, config.project)
    return 1 if any(found.severity == "error" for found in findings) else 0


def _write_trees(stage: Stage, out: Path) -> None:
    from rocmbuild.staging.stage import TREES, sync

    for tree in TREES:
        sync(stage, out / tree, tree=tree)


def _show_stage(args: argparse.Namespace, stage: Stage, project: Path) -> int:
    if args.format == "json":
        console.out_json({**stage.report(), "converted_now": len(stage.fresh), "entry": str(stage.entry)})
    elif args.format == "sarif":
        _show_findings(args, stage.findings, project)
    else:
        rows = [
            (_shown(file.source), _shown(file.output), file.status, file.launches, file.replaced, file.leftovers)
            for file in stage.files
        ]
        console.out(console.table(("source", "staged as", "status", "launches", "names", "left"), rows))
        from rocmbuild.staging.report import to_text

        console.note(to_text(stage.findings))
        console.out(f"\n{len(stage.fresh)} of {len(stage.files)} files converted now\n{stage.key}  {stage.entry}")
    return 1 if stage.errors else 0


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def _show_findings(args: argparse.Namespace, findings: tuple[Finding, ...], project: Path) -> None:
    from rocmbuild.staging.report import to_json, to_sarif, to_text

    if args.format == "sarif":
        console.out_json(to_sarif(findings, project))
    elif args.format == "json":
        console.out_json(to_json(findings))
    else:
        console.out(to_text(findings))


def _write_sarif(args: argparse.Namespace, findings: tuple[Finding, ...], project: Path) -> None:
    if args.sarif:
        from rocmbuild.paths import write_atomic
        from rocmbuild.staging.report import to_sarif

        write_atomic(args.sarif, (json.dumps(to_sarif(findings, project), indent=2) + "\n").encode("ascii"))


def _list(args: argparse.Namespace) -> int:
    from rocmbuild.paths import cache_dir
    from rocmbuild.staging.upkeep import items

    found = items(cache_dir())
    total = sum(item.bytes for item in found)
    if args.json:
        console.out_json({"cache": str(cache_dir()), "bytes": total, "items": [item.to_json() for item in found]})
        return 0
    rows = [
        (
            item.kind,
            item.name[:24],
            _size(item.bytes),
            _when(item.used),
            " ".join(filter(None, (item.note, item.project))),
        )
        for item in found
    ]
    console.out(console.table(("kind", "name", "size", "last used", ""), rows))
    console.out(f"\n{len(found)} items, {_size(total)}, in {cache_dir()}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from rocmbuild.paths import cache_dir
    from rocmbuild.staging.upkeep import items, verify

    faults = verify(cache_dir())
    checked = sum(item.kind in ("stage", "tables") for item in items(cache_dir()))
    if args.json:
        listed = [{"name": item.name, "path": str(item.path), "reason": reason} for item, reason in faults]
        console.out_json({"ok": not faults, "checked": checked, "damaged": listed})
    else:
        for item, reason in faults:
            console.out(f"{item.path}: {reason}; it is made again when it is next needed")
        console.out(f"{checked} entries, {len(faults)} damaged")
    return 1 if faults else 0


def _prune(args: argparse.Namespace) -> int:
    from rocmbuild.paths import cache_dir
    from rocmbuild.staging import upkeep

    done = upkeep.prune(
        cache_dir(),
        max_size=upkeep.size(args.max_size) if args.max_size else None,
        older_than=upkeep.age(args.older_than) if args.older_than else None,
        editable=args.editable,
    )
    return _show_removal(args, done)


def _clear(args: argparse.Namespace) -> int:
    from rocmbuild.paths import cache_dir
    from rocmbuild.staging.upkeep import clear

    return _show_removal(args, clear(cache_dir(), editable=args.editable))


def _show_removal(args: argparse.Namespace, done: Pruned) -> int:
    freed = sum(item.bytes for item in done.removed)
    if args.json:
        console.out_json(
            {
                "removed": [item.to_json() for item in done.removed],
                "kept": [{**kept.item.to_json(), "reason": kept.reason} for kept in done.kept],
                "bytes_removed": freed,
                "bytes_left": done.left,
            }
        )
        return 0
    for kept in done.kept:
        console.note(f"rocmbuild: {kept.item.path} stays: {kept.reason}")
    console.out(f"{len(done.removed)} items removed, {_size(freed)}; {_size(done.left)} left")
    return 0


def _size(count: int) -> str:
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}" if units[0] != "B" else f"{count} B"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def add_commands(
    commands: Any, command: Command, project: Callable[[argparse.ArgumentParser], None], settings: Settings
) -> None:
    """Add `stage` and `cache ...` to the parser. command, project, settings: as cli.py has them."""

    def act(args: argparse.Namespace) -> int:
        if args.json:
            args.format = "json"
        return _stage(args, settings)

    made = command("stage", act, "copy and HIPify a project's sources, and say what came of each")
    project(made)
    made.add_argument("--check", action="store_true", help="only say what would go wrong (exit 1 for errors)")
    made.add_argument("--format", choices=("text", "json", "sarif"), default="text", help="of what is printed")
    made.add_argument("--sarif", type=Path, metavar="FILE", help="write the findings there, in SARIF 2.1.0")
    made.add_argument("-o", "--out", type=Path, metavar="DIR", help="write the trees there, as DIR/hip and DIR/cuda")

    cache = commands.add_parser("cache", help="what is kept between builds: list, verify, prune, clear")
    kinds = cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    command("list", _list, "stages, build folders and answers of tools, with size and last use", kinds)
    command("verify", _verify, "hold every stage against its digest (exit 1 where one differs)", kinds)
    prune = command(
        "prune", _prune, "remove debris and builds of projects that are gone, and what is told below", kinds
    )
    prune.add_argument("--max-size", metavar="SIZE", help="the longest unused, until no more is left: 500M, 2G")
    prune.add_argument("--older-than", metavar="AGE", help="what was not used for so long: 12h, 30d, 4w")
    clear = command("clear", _clear, "remove all that no running build uses", kinds)
    for made in (prune, clear):
        made.add_argument("--editable", action="store_true", help="builds that editable installs load from, too")
