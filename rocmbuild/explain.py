"""Where every setting of a build comes from, what it is in the end, and what lost to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmbuild.config import OPTIONS, Config, Overridden
from rocmbuild.targets import TargetSet

__all__ = ["Setting", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. value: as JSON can hold it. text: for people. source: as Config.sources has it."""

    name: str
    value: Any
    text: str
    source: str
    overrides: tuple[Overridden, ...]

    def to_json(self) -> dict[str, Any]:
        """As `build --explain --json` gives it."""
        lost = [{"at": one.at, "value": one.value} for one in self.overrides]
        return {"name": self.name, "value": self.value, "source": self.source, "overrides": lost}


def explain(config: Config) -> tuple[Setting, ...]:
    """Every option in the order of its table."""
    found = []
    for option in OPTIONS:
        value = _plain(getattr(config, option.field))
        chosen = config.sources[option.name] != "default" or value not in (None, [])
        shown = _text(value) if chosen else option.shown_default or "none"
        found.append(
            Setting(
                name=option.name,
                value=value,
                text=shown,
                source=config.sources[option.name],
                overrides=config.overridden.get(option.name, ()),
            )
        )
    return tuple(found)


def _plain(value: Any) -> Any:
    if isinstance(value, TargetSet):
        return list(value.names)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(item["name"] if isinstance(item, dict) and "name" in item else _text(item) for item in value)
    if isinstance(value, dict):
        return (
            ", ".join(f"{name} {_text(item)}" for name, item in value.items() if item not in (None, [], True)) or "none"
        )
    return str(value)
