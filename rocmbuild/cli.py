"""The command line: parses words, calls one function, prints its result."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild import __version__, audit_cli, console, staging_cli
from rocmbuild.errors import EnvironmentFailure, InputError, RocmbuildError
from rocmbuild.toolchain_cli import add_commands

if TYPE_CHECKING:
    from rocmbuild.config import Config

__all__ = ["main"]


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Config settings of the command line: -C key=value, and the options that stand for some of them."""
    settings: dict[str, Any] = {}
    for word in args.setting or []:
        key, sign, value = word.partition("=")
        if not sign:
            raise InputError(f"-C {word}: wanted key=value")
        known = settings.get(key)
        settings[key] = value if known is None else [*([known] if isinstance(known, str) else known), value]
    for key, value in (("targets", args.targets), ("platforms", getattr(args, "platforms", None))):
        if value is not None:
            settings[key] = value
    if getattr(args, "verbose", False):
        settings["verbose"] = "true"
    return settings


def _targets(args: argparse.Namespace) -> int:
    from rocmbuild.targets import DECLARED, FAMILIES, GENERIC, parse_targets

    if args.spec is None:
        if args.json:
            families = {name: list(members) for name, members in FAMILIES.items()}
            console.out_json({"declared": list(DECLARED), "generic": list(GENERIC), "families": families})
        else:
            rows = [(name, " ".join(members)) for name, members in FAMILIES.items()]
            console.out(console.table(("family", "targets"), rows))
            console.out(f"\ngeneric: {' '.join(GENERIC)}")
        return 0
    parsed = parse_targets(args.spec, source="SPEC")
    names = list(parsed.names) if parsed else []
    if args.json:
        console.out_json({"targets": names})
    else:
        console.out(parsed.canonical if parsed else "unset")
    return 0


def _build(args: argparse.Namespace) -> int:
    from rocmbuild import pipeline
    from rocmbuild.config import load_config

    config = load_config(args.project, settings=_settings(args), environ=os.environ)
    if args.explain:
        return _explain(config, as_json=args.json)
    if args.in_place:
        report, ran = pipeline.build_in_place(config, os.environ)
        if args.json:
            console.out_json({"build_dir": str(config.build_dir), "commands_run": ran, "audit": report.to_json()})
        else:
            audit_cli.show(report)
        return 0
    built = pipeline.build_wheel(config, args.out.resolve(), os.environ)
    if args.json:
        console.out_json(
            {"wheel": str(built.path), "commands_run": built.ran, "record": str(config.build_dir / "record.json")}
            | {"audit": built.report.to_json()}
        )
        return 0
    audit_cli.show(built.report)
    console.out(f"\n{built.path}")
    return 0


def _explain(config: Config, *, as_json: bool) -> int:
    """Every setting with its source, and what the machine makes of those that are left to it."""
    from rocmbuild.build.jobs import MEMORY, choose_jobs, read_machine
    from rocmbuild.explain import explain
    from rocmbuild.toolchain.discover import find_toolchain
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    settings = explain(config)
    jobs = choose_jobs(read_machine(), MEMORY)
    found: dict[str, dict[str, Any]] = {"jobs": {"value": config.jobs or jobs.count, "because": jobs.reason}}
    if config.jobs:
        found["jobs"]["because"] = config.sources["jobs"]
    try:
        if "rocm" in config.platforms:
            toolchain = find_toolchain(spec=config.toolchain, environ=os.environ)
            found["toolchain"] = {"value": toolchain.name, "because": f"{toolchain.origin}: {toolchain.prefix}"}
        sdk = find_torch_sdk(wanted=config.torch_sdk)
        found["torch-sdk"] = {"value": sdk.version, "because": f"{sdk.origin}: {sdk.include.parent}"}
    except EnvironmentFailure as err:  # said, and no reason not to tell the rest
        found["missing"] = {"value": "", "because": err.message}
    if as_json:
        console.out_json({"project": str(config.project), "settings": [s.to_json() for s in settings], "found": found})
        return 0
    rows = [(s.name, s.text, s.source, "; ".join(f"{o.at} = {o.value}" for o in s.overrides)) for s in settings]
    console.out(console.table(("setting", "value", "from", "overrides"), rows))
    console.out()
    console.out(console.table(("found", "value", "because"), [(name, *f.values()) for name, f in found.items()]))
    return 0


def _matrix(args: argparse.Namespace) -> int:
    from rocmbuild.config import load_config
    from rocmbuild.matrix import make_matrix

    config = load_config(args.project, settings=_settings(args), environ=os.environ)
    if config.targets is None:
        raise InputError(
            f"no target: neither --targets, {config.arch_env} nor tool.rocmbuild.targets names one",
            hint="rocmbuild matrix --targets rdna4",
        )
    console.out_json(make_matrix(config, config.targets, torch=args.torch or (), toolchains=args.toolchain or ()))
    return 0


def _init(args: argparse.Namespace) -> int:
    from rocmbuild.init import create, project_name

    name = project_name(args.folder, args.name)
    files = create(args.folder, name)
    if args.json:
        console.out_json({"name": name, "folder": str(args.folder.resolve()), "files": files})
        return 0
    console.out("\n".join(files))
    console.note(f"rocmbuild: {name} is ready; next: rocmbuild build {args.folder} --targets gfx1201")
    return 0


def _run(args: argparse.Namespace) -> int:
    from rocmbuild.running import run_command
    from rocmbuild.targets import ARCH_ENV, asked_targets
    from rocmbuild.toolchain.discover import find_toolchain

    targets = asked_targets(args.targets, os.environ, source="--targets")
    if targets is None:
        raise InputError(
            f"no target: neither --targets nor {ARCH_ENV} names one", hint="rocmbuild run --targets gfx1201 -- COMMAND"
        )
    ran = run_command(
        args.words[1:] if args.words[:1] == ["--"] else args.words,
        targets=targets,
        toolchain=find_toolchain(spec=args.toolchain, environ=os.environ),
        environ=os.environ,
        patterns=args.audit or (),
        keep=args.record,
        quiet=args.json,
    )
    if args.json:
        console.out_json(
            {"ok": ran.ok, "status": ran.status, "commands_failed": ran.failed, "audit": ran.report.to_json()}
        )
        return 0 if ran.ok else 1
    if ran.status:
        console.note(f"rocmbuild: the command ended with status {ran.status}")
    for finding in ran.report.findings:
        console.note(f"rocmbuild: {finding}")
    compiled = ran.report.compiled
    if not compiled.device_commands:
        console.note(
            "rocmbuild: error: no good compilation of device code was seen; a build that names its compilers by itself "
            "must take hipcc from PATH or ROCM_HOME, or HIPCXX"
        )
    console.note(
        f"rocmbuild: requested {' '.join(targets.names)} ({targets.source}); "
        f"compiled {' '.join(compiled.targets) or 'none'} in "
        f"{compiled.device_commands} device commands of {compiled.commands}, {ran.failed} more ended with an error"
        + (f"; emitted {' '.join(ran.report.emitted) or 'none'}" if ran.report.binaries else "")
        + ("" if ran.ok else "; not good")
    )
    return 0 if ran.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocmbuild", description="PyTorch GPU extensions for Radeon, from CUDA sources, proved."
    )
    parser.add_argument("--version", action="version", version=f"rocmbuild {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, act: Any, text: str, among: Any = commands) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = among.add_parser(name, help=text, description=text)
        made.set_defaults(act=act)
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        return made

    targets = command("targets", _targets, "show the targets, or what a value of FREETOKEN_ROCM_ARCH means")
    targets.add_argument("spec", nargs="?", metavar="SPEC")

    add_commands(commands, command)

    def project(made: argparse.ArgumentParser) -> None:
        made.add_argument("project", nargs="?", type=Path, default=Path(), metavar="PROJECT")
        made.add_argument("--targets", metavar="T", help="targets, as in FREETOKEN_ROCM_ARCH")
        made.add_argument("-C", dest="setting", action="append", metavar="KEY=VALUE", help="a config setting")

    staging_cli.add_commands(commands, command, project, _settings)

    build = command("build", _build, "build the wheel of a project, and audit it")
    project(build)
    build.add_argument("--platforms", metavar="P", help="rocm, host")
    build.add_argument("-o", "--out", type=Path, default=Path("dist"), metavar="DIR", help="folder of the wheel (dist)")
    build.add_argument("--explain", action="store_true", help="tell where each setting comes from, and build nothing")
    build.add_argument("--in-place", action="store_true", help="build what an editable install loads, and no wheel")
    build.add_argument("-v", "--verbose", action="store_true", help="show the commands")

    matrix = command("matrix", _matrix, "print the jobs of a build farm as JSON: targets, torch, toolchains")
    project(matrix)
    matrix.add_argument("--torch", action="append", metavar="V", help="a version or range of torch (more than once)")
    matrix.add_argument(
        "--toolchain", action="append", metavar="T", help="a toolchain's name or range (more than once)"
    )

    init = command("init", _init, "make a new project: kernels, an operator, a test")
    init.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR")
    init.add_argument("--name", metavar="NAME", help="the name of its package (the folder's)")

    audit_cli.add_commands(command)

    run = command("run", _run, "run another build system with recording compilers, and judge what it compiled")
    run.add_argument("--targets", metavar="T", help="targets, as in FREETOKEN_ROCM_ARCH")
    run.add_argument("--toolchain", metavar="NAME", help="a toolchain's name, its path or a range of versions")
    run.add_argument("--audit", action="append", metavar="GLOB", help="wheels and libraries that the command makes")
    run.add_argument("--record", type=Path, metavar="FILE", help="keep the record of the commands there")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 good, 1 a check failed, 2 bad input, 3 environment)."""
    args = _parser().parse_args(argv)
    try:
        return int(args.act(args))
    except RocmbuildError as err:
        if args.json:
            console.out_json({"error": err.message, "hint": err.hint, "exit": err.exit_code})
        console.note(f"rocmbuild: error: {err}")
        return err.exit_code
    except KeyboardInterrupt:
        console.note("rocmbuild: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
