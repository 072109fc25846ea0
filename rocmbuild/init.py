"""`rocmbuild init`: a new project, of the files of examples/declarative, which the package carries as `template`."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from rocmbuild.errors import InputError, joined, shown
from rocmbuild.paths import write_atomic

__all__ = ["create", "project_name", "template"]

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "my_kernels"  # of the template's package
_KINDS = (".toml", ".md", ".py", ".cu", ".h", ".cpp")


def project_name(folder: Path, name: str | None) -> str:
    """The name of the package: the one given, else the folder's. InputError where it names no Python package."""
    found = name if name is not None else re.sub(r"\W+", "_", folder.resolve().name, flags=re.ASCII).lower()
    if (
        not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", found)
        or keyword.iskeyword(found)
        or found in ("torch", "test", "tests")
    ):
        raise InputError(
            f"name: found {shown(found)}, wanted the name of a new Python package",
            hint="rocmbuild init --name NAME [DIR]",
        )
    return found


def template(name: str) -> dict[str, str]:
    """The files of a new project, path to text, its package called name."""
    files = {}
    for path in sorted(_TEMPLATE.resolve().rglob("*")):
        relative = path.relative_to(_TEMPLATE.resolve())
        if (
            path.is_file()
            and path.suffix in _KINDS
            and not any(part.startswith((".", "__py")) for part in relative.parts)
        ):
            text = path.read_text(encoding="utf-8")
            files[relative.as_posix().replace(_NAME, name)] = text.replace(_NAME, name)
    return files


def create(folder: Path, name: str) -> list[str]:
    """Write the files into a folder, which is made where it is missing; returns their paths in it.

    InputError, before anything is written, where one of them is there already.
    """
    files = template(name)
    there = [path for path in files if (folder / path).exists() or (folder / path).is_symlink()]
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is no folder", hint="rocmbuild init DIR")
    if there:
        raise InputError(
            f"{folder}: {joined([f'{path} is there already' for path in there])}",
            hint="name an empty folder: rocmbuild init DIR",
        )
    for path, text in files.items():
        write_atomic(folder / path, text.encode())
    return list(files)
