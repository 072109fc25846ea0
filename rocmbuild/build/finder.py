"""Finds what rocmbuild built for an editable install: libraries live in the build folder, Python in the checkout.

Written into the editable wheel, FACTS filled in; it needs the standard library. The first import of a package that
holds libraries looks at the times of the sources; where one is not that of the build, rocmbuild builds anew what it
touches, under the lock of the build folder, before the import goes on. ROCMBUILD_EDITABLE_REBUILD=0 in the environment,
or `-C editable-rebuild=false` at the installation, turn that off.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

FACTS: dict[str, Any] = {"places": {}, "watched": [], "project": "", "inputs": "", "settings": [], "rebuild": False}
"""places: folders by package. watched: modules found without this, before which the sources are looked at. project: the
checkout. inputs: file that names the sources. settings: KEY=VALUE."""

SWITCH = "ROCMBUILD_EDITABLE_REBUILD"
BUSY = "ROCMBUILD_EDITABLE_BUSY"
_LOCK = threading.RLock()


def changed(inputs: str) -> bool:
    """Whether a source or a folder of sources differs, by size and time, from what was built; True when unknown."""
    try:
        with open(inputs, encoding="utf-8") as file:  # noqa: PTH123 (pathlib costs start-up time)
            known = json.load(file)
        for path, (size, time) in known.items():
            info = os.stat(path)  # noqa: PTH116
            if info.st_mtime_ns != time or (size is not None and info.st_size != size):
                return True
    except (OSError, ValueError):
        return True
    return False


def rebuild() -> None:
    """Build anew what was edited. ImportError, with the next step, where that fails."""
    import subprocess

    project = FACTS["project"]
    off = f"set {SWITCH}=0 to import what was built last"
    if find_spec("rocmbuild") is None:
        raise ImportError(
            f"the sources of {project} changed since they were built, and rocmbuild is not installed for "
            f"{sys.executable}; install it here, or {off}"
        )
    words = [sys.executable, "-m", "rocmbuild", "build", project, "--in-place"]
    for setting in FACTS["settings"]:
        words += ["-C", setting]
    status = subprocess.run(words, env={**os.environ, BUSY: "1"}, stdout=subprocess.DEVNULL, check=False).returncode
    if status:
        raise ImportError(f"building {project} anew ended with status {status}; mend what it names, or {off}")


class Finder:
    """Looks at the sources once, then names the folders."""

    looked = False

    @classmethod
    def look(cls) -> None:
        with _LOCK:
            if cls.looked or not FACTS["rebuild"] or os.environ.get(BUSY):
                return
            if os.environ.get(SWITCH, "").strip().lower() in ("0", "false", "no", "off"):
                return
            if changed(FACTS["inputs"]):
                rebuild()
            cls.looked = True

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A folder that the checkout does not have, or a module in one."""
        places = FACTS["places"]
        if name in FACTS["watched"]:
            cls.look()
            return None
        if name in places:
            cls.look()
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [places[name]]
            return spec
        place = places.get(name.rpartition(".")[0])
        if place is None:
            return None
        cls.look()
        return PathFinder.find_spec(name, [place])


if FACTS["watched"]:
    sys.meta_path.insert(0, Finder)
else:
    sys.meta_path.append(Finder)
