"""Editable installs: the finder in their wheel, and for projects with their own setup.py a tree of links.

The libraries that setup.py builds lie in that tree, beside links to the checkout's Python files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmbuild.errors import CheckError

__all__ = ["INPUTS", "finder_members", "libraries", "names", "publish"]

INPUTS = "inputs.json"
"""In the build folder: the sources of an editable install, with their times."""


def finder_members(project: Path, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The members of an editable wheel that find what was built, and build anew what was edited (build/finder.py)."""
    text = (Path(__file__).parent / "finder.py").read_text(encoding="utf-8")
    head, _, rest = text.partition("FACTS: dict[str, Any] = {")
    text = f"{head}FACTS: dict[str, Any] = {dict(facts)!r}\n{rest.partition(chr(10))[2]}"
    name = "_rocmbuild_editable_" + hashlib.sha256(str(project).encode()).hexdigest()[:8]
    return {f"{name}.py": text.encode(), f"{name}.pth": f"import {name}\n".encode()}


def publish(copy: Path, tree: Path, project: Path) -> Path:
    """Make `tree` of what setuptools' strict editable mode made in the copy, and return the folder of that.

    Each file that is a link to one that the checkout has becomes a link to the checkout's, and a folder of which all is
    in one folder of the checkout becomes one link, so that new modules are found there; what the build made is copied.
    The tree is a link itself, turned over at once: another process may be importing from it. Raises CheckError where
    setuptools made no such folder.
    """
    made = sorted((copy / "build").glob("__editable__.*"))
    if len(made) != 1:
        raise CheckError(f"setuptools made {len(made)} trees of links in {copy}/build, wanted one")
    new = Path(tempfile.mkdtemp(prefix=f"{tree.name}-", dir=tree.parent))
    new.chmod(0o755)
    for path in sorted(made[0].iterdir()):
        _link(path, new / path.name, copy.resolve(), project)
    link = tree.with_name(f".new-{tree.name}")
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    os.replace(link, tree)  # noqa: PTH105
    for other in tree.parent.glob(f"{tree.name}-*"):
        if other != new:
            shutil.rmtree(other, ignore_errors=True)
    return made[0]


def names(tree: Path) -> list[str]:
    """The top-level modules of a tree."""
    return sorted({path.name.split(".")[0] for path in tree.iterdir()})


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
