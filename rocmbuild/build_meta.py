"""PEP 517 and PEP 660 hooks: each reads the configuration, calls one function, returns a name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild.build.tools import find_ninja

if TYPE_CHECKING:
    from rocmbuild.config import Config

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None


def _hook(settings: Settings, act: Callable[[Config], str], *, want_targets: bool | None = True) -> str:
    """Run a hook; what the user can mend is one message and an exit code, not a traceback."""
    from rocmbuild import console  # late, here and below: front ends import this module to ask what it requires
    from rocmbuild.config import load_config
    from rocmbuild.errors import RocmbuildError

    try:
        return act(load_config(Path.cwd(), settings=settings, environ=os.environ, want_targets=want_targets))
    except RocmbuildError as err:
        console.note(f"rocmbuild: error: {err}")
        sys.exit(err.exit_code)


def _built(hook: str, config: Config, out: Path) -> str:
    """The name of the wheel in `out`: the one that was made before where nothing has changed since."""
    from rocmbuild import fresh

    name = fresh.unchanged(config, hook, out, os.environ)
    if name is not None:
        return name
    from rocmbuild import pipeline

    build = pipeline.build_editable if hook == "build_editable" else pipeline.build_wheel
    return build(config, out, os.environ).path.name


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """ninja where none is there; never torch."""
    return [] if find_ninja() else ["ninja"]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """As for a wheel."""
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Nothing: an sdist needs no compiler."""
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the .dist-info folder; returns its name."""
    from rocmbuild import pipeline

    def act(config: Config) -> str:
        return pipeline.metadata(config, Path(metadata_directory), os.environ)

    # targets, and what is wrong with them, matter to the version alone
    return _hook(config_settings, act, want_targets=None)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """As for a wheel."""
    return prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build and audit the wheel; returns its name."""
    return _hook(config_settings, lambda config: _built("build_wheel", config, Path(wheel_directory)))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the libraries and a wheel that points to them and to the checkout; returns its name."""
    return _hook(config_settings, lambda config: _built("build_editable", config, Path(wheel_directory)))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the sdist; returns its name."""
    from rocmbuild import pipeline

    def act(config: Config) -> str:
        return pipeline.build_sdist(config, Path(sdist_directory), os.environ).name

    return _hook(config_settings, act, want_targets=False)
