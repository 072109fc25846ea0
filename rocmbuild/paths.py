"""The user's folders, and files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import platformdirs

__all__ = ["as_json", "cache_dir", "data_dir", "write_atomic", "write_changed"]


def data_dir() -> Path:
    """Where toolchains and SDK components are kept: ROCMBUILD_DATA_DIR or the user's data folder."""
    return Path(os.environ.get("ROCMBUILD_DATA_DIR") or platformdirs.user_data_dir("rocmbuild", appauthor=False))


def cache_dir() -> Path:
    """Where stages, probes and build folders are kept: ROCMBUILD_CACHE_DIR or the user's cache folder."""
    return Path(os.environ.get("ROCMBUILD_CACHE_DIR") or platformdirs.user_cache_dir("rocmbuild", appauthor=False))


def write_atomic(path: Path, data: bytes) -> None:
    """Write data under a temporary name in path's folder and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_changed(path: Path, data: bytes) -> None:
    """Write only what differs: a build looks at times."""
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)


def as_json(value: Any) -> bytes:
    """A value as JSON for a file that people read too."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
