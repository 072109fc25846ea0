"""The JSON schema of [tool.rocmbuild], for editors and for validate-pyproject; schema.json beside this is its text.

`python -m rocmbuild.schema > rocmbuild/schema.json` writes it anew after a change of the table of options.
"""

from __future__ import annotations

from typing import Any

from rocmbuild import console
from rocmbuild.config import pyproject_schema

__all__ = ["tool_schema"]


def tool_schema(tool: str = "rocmbuild") -> dict[str, Any]:
    """The schema (draft 7) of the table of a tool; entry point of validate-pyproject, which names the tool."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://rocmbuild.invalid/schema.json",
        "title": f"[tool.{tool}]",
        "description": "PyTorch GPU extensions for Radeon, built by rocmbuild.",
        **pyproject_schema(),
    }


if __name__ == "__main__":
    console.out_json(tool_schema())
