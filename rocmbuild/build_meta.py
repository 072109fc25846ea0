"""PEP 517 and PEP 660 hooks: each reads the configuration, calls one function, returns a name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rocmbuild import console, pipeline
from rocmbuild.build.ninja import find_ninja
from rocmbuild.config import Config, load_config
from rocmbuild.errors import RocmbuildError

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None
T = TypeVar("T")


def _hook(settings: Settings, act: Callable[[Config], T], *, want_targets: bool = True) -> T:
    """Run a hook; what the user can mend is one message and an exit code, not a traceback."""
    try:
        return act(load_config(Path.cwd(), settings=settings, environ=os.environ, want_targets=want_targets))
    except RocmbuildError as err:
        console.note(f"rocmbuild: error: {err}")
        sys.exit(err.exit_code)


def _ninja() -> list[str]:
    return [] if find_ninja() else ["ninja"]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """ninja where none is there."""
    return _ninja()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """ninja where none is there."""
    return _ninja()


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Nothing: an sdist needs no compiler."""
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the .dist-info folder; returns its name."""
    return _hook(
        config_settings,
        lambda config: pipeline.metadata(config, Path(metadata_directory), os.environ),
        want_targets=False,
    )


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build and audit the wheel; returns its name."""
    return _hook(
        config_settings, lambda config: pipeline.build_wheel(config, Path(wheel_directory), os.environ).path.name
    )


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the libraries and a wheel that points to them and to the checkout; returns its name."""
    return _hook(
        config_settings, lambda config: pipeline.build_editable(config, Path(wheel_directory), os.environ).path.name
    )


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the sdist; returns its name."""
    return _hook(config_settings, lambda config: pipeline.build_sdist(config, Path(sdist_directory), os.environ).name)
