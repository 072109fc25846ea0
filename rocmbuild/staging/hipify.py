"""The engines of HIPify: which one serves, what identifies it, and the one subprocess in which it runs.

An engine is a folder with the tables of torch's hipify, `cuda_to_hip_mappings.py`: torch's own `torch/utils/hipify`, or
the same code as a package of its own, hipify_torch, whose newer releases keep the tables for today's torch in `v2`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild import process
from rocmbuild.errors import EnvironmentFailure

__all__ = ["ENGINES", "Engine", "EngineIdentity", "Hipified", "Hipify", "code_digest", "find_engine", "identify"]

ENGINES = ("auto", "torch", "hipify_torch")
"""What can be asked for: hipify_torch where it is installed and torch's own elsewhere, or one of the two."""

_INSTALL = "install the torch SDK component with `rocmbuild toolchain install torch-sdk`"
_TABLES = "cuda_to_hip_mappings.py"
_TORCH = "torch.utils.hipify"
_PACKAGE = "hipify_torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that was found. version: of its package; "" where its folder says it itself."""

    name: str
    folder: Path
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """What decides an engine's result. digest: over its Python files, so that a patched one is another one."""

    name: str
    version: str
    digest: str


def find_engine(wanted: str, torch: Path, *, path: Sequence[str] | None = None) -> Engine:
    """The engine to use. wanted: one of ENGINES; torch: the folder of torch's own.

    path: where hipify_torch may be installed (default: sys.path, so the build's own environment). Nothing is imported.
    Raises EnvironmentFailure where hipify_torch is asked for by name and not installed.
    """
    if wanted not in ENGINES:
        raise ValueError(wanted)
    if wanted != "torch":
        for place in dict.fromkeys(sys.path if path is None else path):
            package = os.path.join(place, _PACKAGE)
            for folder in (os.path.join(package, "v2"), package):
                if place and os.path.isfile(os.path.join(folder, _TABLES)):
                    return Engine(name=_PACKAGE, folder=Path(folder), version=_installed_version(place))
    if wanted == _PACKAGE:
        raise EnvironmentFailure(
            f"{_PACKAGE} is wanted as the engine of HIPify and is not installed in this environment",
            hint=f'install it, name it in build-system.requires, or set hipify-engine = "torch" ({_INSTALL})',
        )
    return Engine(name=_TORCH, folder=torch)


def _installed_version(place: str) -> str:
    """The version of hipify_torch by the name of its metadata folder."""
    for name in sorted(os.listdir(place)):
        if match := re.fullmatch(r"hipify[_-]torch-([^-]+)(?:-.*)?\.(?:dist|egg)-info", name):
            return match[1]
    return ""


def identify(engine: Engine) -> EngineIdentity:
    """Identify an engine without running it. EnvironmentFailure where its folder holds none."""
    folder = engine.folder
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
        contents = {name: (folder / name).read_bytes() for name in files}
    except OSError as err:
        raise EnvironmentFailure(
            f"the hipify engine {folder} cannot be read ({err.strerror})",
            hint=_INSTALL,
        ) from err
    if _TABLES not in contents:
        raise EnvironmentFailure(
            f"{folder} holds no hipify engine: {_TABLES} is missing",
            hint=_INSTALL,
        )
    stated = re.search(rb"""__version__\s*=\s*['"]([^'"]+)""", contents.get("version.py", b""))
    whole = hashlib.sha256()
    for name, data in contents.items():
        whole.update(f"{name}\n{len(data)}\n".encode() + data)
    return EngineIdentity(
        name=engine.name,
        version=engine.version or (stated.group(1).decode("ascii", "replace") if stated else "unknown"),
        digest=whole.hexdigest(),
    )


@functools.cache
def code_digest() -> str:
    """The digest of the code that makes a stage of its inputs; part of every key."""
    folder = Path(__file__).parent
    whole = hashlib.sha256()
    for name in (
        "checks.py",
        "convert.py",
        "facts.py",
        "findings.py",
        "layout.py",
        "tables.py",
        "text.py",
        "worker.py",
    ):
        data = (folder / name).read_bytes()
        whole.update(f"{name}\n{len(data)}\n".encode() + data)
    return whole.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hipified:
    """One file's outcome. record: JSON, as worker.py writes it. data: the HIP bytes, or None for the source's own."""

    record: Mapping[str, Any]
    data: bytes | memoryview | None


_START = "import sys; sys.path.append(sys.argv[1]); from rocmbuild.staging.worker import main; sys.exit(main())"


class Hipify:
    """The subprocess. Started early, it gets ready while its job is put together; it ends with its job or the block."""

    def __init__(self) -> None:
        self._process: process.Exchange | None = None

    def __enter__(self) -> Hipify:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.close()

    def start(self) -> process.Exchange:
        """Start it, if it is not started yet."""
        if self._process is None:
            environment = {name: value for name, value in os.environ.items() if name != "IS_FBCODE"}  # of the tables
            self._process = process.Exchange(
                [sys.executable, "-I", "-S", "-B", "-c", _START, str(Path(__file__).parents[2])],
                what="HIPify",
                env=environment,
                error=EnvironmentFailure,
            )
        return self._process

    def run(
        self,
        files: Sequence[tuple[str, bytes]],
        *,
        engine: Path,
        tables: bytes,
        outputs: Mapping[str, str],
        include_dirs: Sequence[str],
        defines: Mapping[str, str],
    ) -> tuple[list[Hipified], bytes]:
        """Convert and examine files, (path, bytes) each; the outcomes are in their order.

        engine: its folder. tables: the engine's, as an earlier run gave them, or nothing; then they come back.
        outputs: where each file of the whole tree goes. A file that cannot be converted has the status "skipped" and
        the reason in its record; no file is left without an outcome.
        """
        job = {
            "engine": str(engine),
            "outputs": dict(outputs),
            "include_dirs": list(include_dirs),
            "defines": dict(defines),
            "files": [(path, len(data)) for path, data in files],
        }
        ran = self.start().run([json.dumps(job).encode("ascii"), b"\n", tables, b"\n", *(data for _, data in files)])
        head, _, rest = ran.partition(b"\n")
        new_tables, _, body = rest.partition(b"\n")
        try:
            result: dict[str, Any] = json.loads(head)
        except ValueError as err:
            raise EnvironmentFailure("HIPify ended without a result") from err
        if "engine" in result:
            raise EnvironmentFailure(f"the hipify engine {engine} cannot be loaded ({result['engine']})", hint=_INSTALL)
        records: list[dict[str, Any]] = result["files"]
        if len(records) != len(files) or sum(record["size"] for record in records) != len(body):
            raise EnvironmentFailure(f"HIPify gave {len(records)} files and {len(body)} bytes for {len(files)} files")
        done = []
        offset = 0
        for record in records:
            size = record.pop("size")
            data = body[offset : offset + size] if record["status"] == "converted" else None
            offset += size
            done.append(Hipified(record=record, data=data))
        return done, new_tables
