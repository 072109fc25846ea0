"""`rocmbuild audit ...`: parses words, calls one function, prints its result."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rocmbuild import console
from rocmbuild.errors import InputError
from rocmbuild.paths import write_atomic

if TYPE_CHECKING:
    from rocmbuild.audit.report import AuditReport
    from rocmbuild.config import AuditRule

__all__ = ["add_commands", "show"]

Command = Callable[..., argparse.ArgumentParser]


FORMATS = ("text", "json", "markdown", "sarif", "html")


def show(report: AuditReport) -> None:
    """Print a report as a table: as wide as the terminal, at least 80 columns and at most 120; 100 in files."""
    from rocmbuild.audit.table import to_table

    console.out(to_table(report, _width()))


def _width() -> int:
    return max(80, min(120, shutil.get_terminal_size((100, 24)).columns))


def _rendered(report: AuditReport, form: str) -> str:
    """The report in one of FORMATS but text."""
    if form == "markdown":
        from rocmbuild.audit.markdown import to_markdown

        return to_markdown(report)
    if form == "html":
        from rocmbuild.audit.page import to_page

        return to_page(report)
    if form == "sarif":
        from rocmbuild.audit.scanning import to_sarif

        return json.dumps(to_sarif(report, Path.cwd()), indent=2) + "\n"
    return json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"


def _diff(args: argparse.Namespace) -> int:
    """--diff OLD NEW."""
    from rocmbuild.audit.binary import inspect
    from rocmbuild.audit.diff import diff, to_table

    if len(args.paths) != 2:
        raise InputError(f"--diff: {len(args.paths)} files, wanted the old one and the new one")
    found = diff(inspect(args.paths[0]), inspect(args.paths[1]))
    if args.json:
        console.out_json(found.to_json())
    else:
        console.out(to_table(found, _width()))
    return 0


def _policy(given: Path | None) -> tuple[tuple[AuditRule, ...], Path | None]:
    """A project's rules, and the disassembler where one of them needs it."""
    if given is None:
        return (), None
    from rocmbuild.config import load_config
    from rocmbuild.toolchain.discover import find_toolchain

    project = given.parent if given.name == "pyproject.toml" else given
    rules = load_config(project, environ=os.environ, want_targets=False).audit
    if not rules:
        raise InputError(f"{project}/pyproject.toml: no [tool.rocmbuild.audit], so there is no policy")
    looks = any(rule.looks_at_code for rule in rules)
    return rules, find_toolchain(spec=None, environ=os.environ).objdump if looks else None


def _audit(args: argparse.Namespace) -> int:
    from rocmbuild.audit.meaning import card
    from rocmbuild.audit.report import audit_paths
    from rocmbuild.targets import parse_targets

    if args.schema:
        console.out((Path(__file__).parent / "audit" / "schema.json").read_text("utf-8").rstrip())
        return 0
    if args.diff:
        return _diff(args)
    targets = parse_targets(args.targets, source="--targets") if args.targets else None
    cards = [card(word) for given in args.cards or [] for word in given.split(",") if word.strip()]
    rules, objdump = _policy(args.policy)
    paths = [path for path in args.paths if str(path) != "-"]
    text = sys.stdin.buffer.read().decode("utf-8", "backslashreplace") if len(paths) < len(args.paths) else None
    named = targets.names if targets else None
    report = audit_paths(paths, targets=named, cards=cards, text=text, rules=rules, objdump=objdump)
    for form in FORMATS[1:]:
        path = None if form == "json" else getattr(args, form)
        if path:
            write_atomic(path, _rendered(report, form).encode("utf-8", "backslashreplace"))
    form = "json" if args.json else args.format
    if form == "text":
        show(report)
    else:
        console.out(_rendered(report, form).rstrip("\n"))
    return 0 if report.ok else 1


def add_commands(command: Command) -> None:
    """Add the command; command makes a parser with what all commands have in common."""
    audit = command("audit", _audit, "what was asked, what was compiled, what is inside")
    kinds = "a wheel, library, object, archive, code object or bundle; a record.json or its folder; "
    kinds += "compile_commands.json or the log of a verbose build, - for a log on stdin; with --diff two files"
    audit.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=kinds)
    audit.add_argument(
        "--targets", metavar="T", help="the targets that it must have (default: what its own record says)"
    )
    cards = "whether it runs on a card: gfx1151, gfx90a:xnack+, 'Radeon RX 9070 XT' (exit 1 if not); can be repeated"
    audit.add_argument("--for", dest="cards", action="append", metavar="CARD", help=cards)
    audit.add_argument("--policy", type=Path, metavar="PROJECT", help="the project whose [tool.rocmbuild.audit] counts")
    audit.add_argument("--format", choices=FORMATS, default="text", help="of what is printed")
    for form, what in (
        ("markdown", "for CI summaries"),
        ("sarif", "for code scanning"),
        ("html", "one page by itself"),
    ):
        audit.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write the report there too, {what}")
    audit.add_argument("--diff", action="store_true", help="compare two files: targets, kernels, figures, sizes")
    audit.add_argument("--schema", action="store_true", help="print the JSON schema of --json")
