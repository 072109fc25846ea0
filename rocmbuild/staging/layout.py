"""Where staged files go in the HIP tree, and which staged file an include names. Paths only: no file is read."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Resolver", "engine_name", "outputs_of"]


def outputs_of(sources: Iterable[str]) -> dict[str, str]:
    """Where each staged file goes in the HIP tree: `.cu` becomes `.hip`, everything else keeps its name.

    A name that is taken gets `_hip` before its suffix, as often as needed.
    """
    names = sorted(sources)
    taken = {name for name in names if not name.endswith(".cu")}
    outputs: dict[str, str] = {}
    for name in names:
        output = name
        if name.endswith(".cu"):
            stem = name[:-3]
            while (output := stem + ".hip") in taken:
                stem += "_hip"
            taken.add(output)
        outputs[name] = output
    return outputs


def engine_name(path: str) -> str:
    """The name that torch's own driver gives to a converted file, for sources that include it by that."""
    folder, file = posixpath.split(path)
    stem, suffix = posixpath.splitext(file)
    suffix = ".hip" if suffix == ".cu" else suffix
    new_folder, new_stem = (
        part.replace("cuda", "hip").replace("CUDA", "HIP").replace("THC", "THH") for part in (folder, stem)
    )
    if new_folder == folder and new_stem + suffix == file:
        new_stem += "_hip"
    return posixpath.join(new_folder, new_stem + suffix)


class Resolver:
    """Includes of a staged tree: searched beside the includer when quoted, then in the include folders.

    left_out: files of the project that exist and are not staged, being outputs of an earlier hipify run.
    """

    def __init__(self, outputs: Mapping[str, str], include_dirs: Sequence[str]) -> None:
        self._outputs = outputs
        self._aliases = {engine_name(source): source for source in outputs}
        self._include_dirs = ["" if name == "." else name for name in include_dirs]

    def paths(self, includer: str, name: str, quoted: bool) -> list[tuple[str, str]]:
        """(folder, path of the file in it) for each place where an include is searched for."""
        bases = [posixpath.dirname(includer)] if quoted else []
        bases += self._include_dirs
        return [(base, posixpath.normpath(posixpath.join(base, name))) for base in bases]

    def staged(self, includer: str, name: str, quoted: bool) -> tuple[str, str] | None:
        """What to write for an include that names a staged file, and that file's source path; None for others."""
        paths = self.paths(includer, name, quoted)
        for _, path in paths:
            output = self._outputs.get(path)
            if output is not None:
                new = name if output == path else posixpath.join(posixpath.dirname(name), posixpath.basename(output))
                return new, path
        for base, path in paths:
            if path in self._aliases:
                source = self._aliases[path]
                return posixpath.relpath(self._outputs[source], base or "."), source
        return None
