"""Editable installs of projects with their own setup.py: a tree of links to the checkout, with the libraries beside."""

from __future__ import annotations

import shutil
from pathlib import Path

from rocmbuild.errors import CheckError

__all__ = ["libraries", "move"]


def move(copy: Path, tree: Path, project: Path) -> Path:
    """Make `tree` of what setuptools' strict editable mode made in the copy, and return the folder of that.

    Each file that is a link to one that the checkout has becomes a link to the checkout's, and a folder of which all is
    in one folder of the checkout becomes one link, so that new modules are found there; what the build made is copied.
    Raises CheckError where setuptools made no such folder.
    """
    made = sorted((copy / "build").glob("__editable__.*"))
    if len(made) != 1:
        raise CheckError(f"setuptools made {len(made)} trees of links in {copy}/build, wanted one")
    new = tree.with_name(f".new-{tree.name}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for path in sorted(made[0].iterdir()):
        _link(path, new / path.name, copy.resolve(), project)
    shutil.rmtree(tree, ignore_errors=True)
    new.rename(tree)
    return made[0]


def _link(path: Path, target: Path, copy: Path, project: Path) -> None:
    origin = _origin(path, copy, project)
    if origin is not None:
        target.symlink_to(origin)
    elif path.is_dir():
        target.mkdir()
        for child in sorted(path.iterdir()):
            _link(child, target / child.name, copy, project)
    else:
        shutil.copy2(path, target)


def _origin(path: Path, copy: Path, project: Path) -> Path | None:
    """The checkout's file that a link stands for, or its folder that a folder of such links stands for; else None."""
    if path.is_symlink():
        real = path.resolve()
        origin = project / real.relative_to(copy) if real.is_relative_to(copy) else None
        return origin if origin and origin.is_file() else None
    if not path.is_dir():
        return None
    origins = {child.name: _origin(child, copy, project) for child in path.iterdir()}
    parents = {origin.parent if origin and origin.name == name else None for name, origin in origins.items()}
    (parent,) = parents if len(parents) == 1 else (None,)
    return parent if parent is not None and parent.name == path.name else None


def libraries(tree: Path) -> list[Path]:
    """The native libraries of a tree that are its own, not the checkout's."""
    return [path for path in sorted(tree.rglob("*.so")) if not path.is_symlink()]
