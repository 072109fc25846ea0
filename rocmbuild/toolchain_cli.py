"""`rocmbuild toolchain ...` and `rocmbuild doctor`: parses words, calls one function, prints its result."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocmbuild import console
from rocmbuild.errors import InputError

__all__ = ["add_commands"]

Command = Callable[..., argparse.ArgumentParser]


def _list(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.discover import candidates

    found = candidates(os.environ, args.spec)
    chosen = next((candidate for candidate in found if candidate.toolchain), None)
    if chosen is not None:
        first = found[0] if found[0].binding and not found[0].toolchain else None
        chosen = None if first else chosen
    if args.json:
        console.out_json(
            [
                {
                    "name": candidate.name,
                    "kind": candidate.kind,
                    "origin": candidate.origin,
                    "prefix": str(candidate.prefix) if candidate.prefix else None,
                    "chosen": candidate is chosen,
                    "identity": candidate.toolchain.identity() if candidate.toolchain else None,
                    "reasons": list(candidate.reasons),
                    "notes": list(candidate.toolchain.notes) if candidate.toolchain else [],
                }
                for candidate in found
            ]
        )
    else:
        for candidate in found:
            console.out(f"{'*' if candidate is chosen else ' '} {candidate.name}: {candidate.describe()}")
    if not chosen:
        console.note("rocmbuild: no toolchain can be used; next step: rocmbuild toolchain install")
    return 0 if chosen else 3


def _install(args: argparse.Namespace) -> int:
    result: dict[str, Any]
    if args.locked is not None:
        from rocmbuild.toolchain.lock import install_locked, read_lock

        result = _described(install_locked(read_lock(args.locked)))
    elif args.what == "debian":
        from rocmbuild.toolchain.install import EXTRAS, install_debian

        unknown = [name for name in args.extras if name not in EXTRAS]
        if unknown:
            raise InputError(f"--with {', '.join(unknown)}: unknown; there is {', '.join(EXTRAS)}")
        result = _described(install_debian(suite=args.suite, extras=args.extras, force=args.force))
    elif args.what == "sdk":
        from rocmbuild.toolchain.sdk import DEFAULT_REQUIREMENTS, install_sdk

        if not args.index_url:
            raise InputError(
                "install sdk: --index-url is missing", hint="AMD's pages list the index of each family of cards"
            )
        wanted = args.packages or DEFAULT_REQUIREMENTS
        result = _described(install_sdk(index_url=args.index_url, requirements=wanted, force=args.force))
    elif args.what == "torch-sdk":
        from rocmbuild.toolchain.torch_sdk import DEFAULT_TORCH, install_torch_sdk

        sdk = install_torch_sdk(args.torch or DEFAULT_TORCH, force=args.force)
        result = {"version": sdk.version, "include": str(sdk.include), "digest": sdk.digest}
    else:
        from rocmbuild.toolchain.runtime import install_runtime

        runtime = install_runtime(suite=args.suite, force=args.force)
        result = {"name": runtime.name, "prefix": str(runtime.prefix)}
    return _show(args, result)


def _described(toolchain: Any) -> dict[str, Any]:
    return {"name": toolchain.name, "prefix": str(toolchain.prefix), **toolchain.identity()}


def _show(args: argparse.Namespace, result: Mapping[str, Any]) -> int:
    if args.json:
        console.out_json(dict(result))
    else:
        console.out(console.table(("key", "value"), list(result.items())))
    return 0


def _use(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.selection import choose, pin_project, unchoose

    if args.unset == (args.name is not None):
        raise InputError("toolchain use: wanted one of NAME and --unset")
    if args.unset:
        return _show(args, {"chosen": None, "before": unchoose()})
    if args.project is not None:
        return _show(args, {"pinned": args.name, "in": str(pin_project(args.project, args.name, os.environ))})
    return _show(args, {"chosen": choose(args.name, os.environ).name})


def _remove(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.selection import remove_installed

    return _show(args, {"removed": args.name, "prefix": str(remove_installed(args.name, force=args.force))})


def _verify(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.selection import verify_installed

    faults = verify_installed(args.name)
    if args.json:
        console.out_json({name: list(lines) for name, lines in faults.items()})
    else:
        for name, lines in faults.items():
            console.out(f"{name}: {'as installed' if not lines else f'{len(lines)} differences'}")
            for line in lines:
                console.out(f"  {line}")
    if any(faults.values()):
        console.note("rocmbuild: next step: remove what differs and install it again")
        return 1
    return 0


def _lock(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.lock import write_lock

    lock = write_lock(args.name, args.out)
    return _show(args, {"locked": lock.name, "packages": len(lock.packages), "in": str(args.out)})


def _env(args: argparse.Namespace) -> int:
    from rocmbuild.targets import ARCH_ENV, parse_targets
    from rocmbuild.toolchain.discover import find_toolchain
    from rocmbuild.toolchain.environment import cmake_file, environment_of, shell_text

    toolchain = find_toolchain(spec=args.name, environ=os.environ)
    if args.cmake:
        targets = parse_targets(os.environ.get(ARCH_ENV, ""), source=ARCH_ENV)
        console.out(cmake_file(toolchain, targets.names if targets else ()).rstrip())
        return 0
    environment = environment_of(toolchain)
    if args.json:
        console.out_json(environment.to_json())
    else:
        console.out(shell_text(environment))
        if sys.stdout.isatty():
            console.note('rocmbuild: eval "$(rocmbuild toolchain env)" sets them in this shell')
    return 0


def _probe(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.discover import find_toolchain
    from rocmbuild.toolchain.probe import probe

    facts = probe(find_toolchain(spec=args.name, environ=os.environ), fresh=args.fresh)
    good = not facts.headers and any(fact.ok for fact in facts.targets)
    if args.json:
        console.out_json(facts.to_json())
        return 0 if good else 1
    console.out(f"{facts.name}: HIP {facts.hip_version}, clang {facts.clang_version}\n")
    rows = [
        (fact.target, fact.wave or "-", fact.code_object or "-", fact.reason or "compiles") for fact in facts.targets
    ]
    console.out(console.table(("target", "wave", "code object", "answer"), rows))
    formats = ", ".join(map(str, facts.bundle_formats))
    compressed = f"{facts.compression}, formats {formats} (first by default)" if formats else "cannot be compressed"
    told = [("HIP's headers", facts.headers or "compile"), ("bundles", compressed)]
    told.append(("hipcc", facts.hipcc.reason or facts.hipcc.version))
    for runtime in facts.runtimes:
        answer = "loads" if runtime.loads else runtime.reason
        told.append((f"{runtime.soname} ({runtime.kind})", f"{answer}: {runtime.path}"))
    console.out("\n" + console.table(("what", "answer"), told))
    return 0 if good else 1


def _doctor(args: argparse.Namespace) -> int:
    from rocmbuild.toolchain.doctor import examine, healthy

    checks = examine(os.environ, spec=args.name)
    if args.json:
        console.out_json({"healthy": healthy(checks), "checks": [check.to_json() for check in checks]})
    else:
        for check in checks:
            console.out(f"{check.status:4}  {check.name}: {check.text}")
            if check.step:
                console.out(f"      {'next step' if check.status != 'pass' else 'note'}: {check.step}")
    return 0 if healthy(checks) else 1


def add_commands(commands: Any, command: Command) -> None:
    """Add `toolchain ...` and `doctor` to the parser. command: makes one, as cli.py does."""
    toolchain = commands.add_parser("toolchain", help="find, install, check and choose ROCm compilers and SDKs")
    kinds = toolchain.add_subparsers(dest="action", required=True, metavar="ACTION")

    made = command("list", _list, "every candidate, the chosen one marked, each refused one with its reason", kinds)
    made.add_argument("--spec", help="as `-C toolchain`: a name, a path or a version range")

    made = command("install", _install, "install a toolchain without root, or an SDK component", kinds)
    made.add_argument("what", nargs="?", default="debian", choices=["debian", "sdk", "torch-sdk", "runtime"])
    made.add_argument("--suite", help="Debian suite of the HIP headers and device libraries (default: the newest)")
    made.add_argument("--with", dest="extras", action="append", default=[], metavar="math", help="more headers")
    made.add_argument("--index-url", metavar="URL", help="pip index of AMD's SDK, for sdk")
    made.add_argument("--package", dest="packages", action="append", metavar="NAME", help="of the SDK (rocm[devel])")
    made.add_argument("--torch", metavar="VERSION", help="release of torch, for torch-sdk")
    made.add_argument("--locked", type=Path, metavar="FILE", help="install the very packages of a lock file")
    made.add_argument("--force", action="store_true", help="install what there is now, whatever is installed")

    made = command("probe", _probe, "what a toolchain can do, asked of itself", kinds)
    made.add_argument("name", nargs="?", metavar="NAME")
    made.add_argument("--fresh", action="store_true", help="ask again, whatever is kept")

    made = command("use", _use, "choose a toolchain for yourself, or for a project", kinds)
    made.add_argument("name", nargs="?", metavar="NAME")
    made.add_argument("--project", nargs="?", type=Path, const=Path(), metavar="DIR", help="pin it there")
    made.add_argument("--unset", action="store_true", help="take your choice back")

    made = command("lock", _lock, "write the packages of a managed toolchain down, by version and digest", kinds)
    made.add_argument("name", nargs="?", metavar="NAME")
    made.add_argument("-o", "--out", type=Path, default=Path("rocmbuild.lock"), metavar="FILE")

    made = command("env", _env, "variables for a shell, or a CMake toolchain file", kinds)
    made.add_argument("name", nargs="?", metavar="NAME")
    made.add_argument("--cmake", action="store_true", help="print a CMake toolchain file")

    made = command("verify", _verify, "hold what is installed against its manifest, byte by byte", kinds)
    made.add_argument("name", nargs="?", metavar="NAME")

    made = command("remove", _remove, "take a managed component away", kinds)
    made.add_argument("name", metavar="NAME")
    made.add_argument("--force", action="store_true", help="also when it is in use")

    for among in (commands, kinds):
        made = command("doctor", _doctor, "what is wrong with this machine, and the next step of each", among)
        made.add_argument("name", nargs="?", metavar="NAME", help="the toolchain to examine")
