"""The schema of [tool.rocmbuild] says of a project what the configuration says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rocmbuild.config import EXTENSION_OPTIONS, MATRIX_OPTIONS, OPTIONS, RULE_OPTIONS, load_config
from rocmbuild.errors import InputError
from rocmbuild.schema import tool_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXTENSION = '[[tool.rocmbuild.extensions]]\nname = "a.b"\nsources = ["k.cu"]\n'
GOOD = (
    "",
    'targets = "rdna4"',
    'targets = ["gfx1201", "rdna3"]\nplatforms = ["rocm", "host"]\nallow-native = true',
    'toolchain = ">=6.4"\ntorch-sdk = "2.13.0"\nlauncher = "ccache"\nbuild-dir = "out"',
    "local-version = true\nvariant = true\neditable-rebuild = false",
    'toolchain = ""\nlauncher = ""\nhipify-engine = ""\ntargets = []',
    'cuda-archs = ["90a"]\nhipify-allow = ["cudaGraphConditionalHandleCreate", "x/y.h"]',
    EXTENSION + 'defines = { A = "1", B = 2 }\ninclude-dirs = ["."]\ntorch = "none"\ncxx-flags = ["-Wall"]',
    '[tool.rocmbuild.audit]\nspills = false\nwave = 32\n[[tool.rocmbuild.audit.rules]]\nkernels = "f*"\nmax-vgprs = 96',
    '[tool.rocmbuild.matrix]\ntorch = ["2.10.0", ">=2.13"]\ntoolchains = [">=7"]',
)
BAD = (
    'target = "gfx1201"',
    "targets = 1201",
    "jobs = 3",
    "verbose = true",
    'platforms = ["metal"]',
    'arch-env = "PYTORCH_ROCM_ARCH"',
    'arch-env = "A-B"',
    'toolchain = "7.2"',
    'launcher = "distcc"',
    'build-dir = "~/x"',
    'allow-native = "true"',
    "extensions = {}",
    '[[tool.rocmbuild.extensions]]\nname = "a.b"',
    '[[tool.rocmbuild.extensions]]\nname = "a"\nsources = ["k.cu"]',
    '[[tool.rocmbuild.extensions]]\nname = "a.b"\nsources = []',
    '[[tool.rocmbuild.extensions]]\nname = "a.b"\nsources = ["/k.cu"]',
    EXTENSION + "defines = { ROCMBUILD_X = 1 }",
    EXTENSION + "defines = { A = true }",
    EXTENSION + 'torch = "some"',
    "[tool.rocmbuild.audit]\nwave = 16",
    '[tool.rocmbuild.audit]\nkernels = "f"',
    "[[tool.rocmbuild.audit.rules]]\nmax-vgprs = 96",
    '[tool.rocmbuild.matrix]\ntargets = ["gfx1201"]',
)


def table(text: str) -> Any:
    whole = text if text.startswith("[") else f"[tool.rocmbuild]\n{text}\n"
    return tomllib.loads(whole)["tool"]["rocmbuild"], whole


def accepted_by_config(folder: Path, text: str) -> bool:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    try:
        load_config(folder, environ={})
    except InputError:
        return False
    return True


def test_it_is_a_schema_and_the_published_text_is_it(root: Path) -> None:
    jsonschema.Draft7Validator.check_schema(tool_schema())
    text = (root / "rocmbuild/schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == tool_schema(), "run `python -m rocmbuild.schema > rocmbuild/schema.json`"


def test_every_option_stands_in_it_with_its_help() -> None:
    schema = tool_schema()
    rules = schema["properties"]["audit"]["properties"]["rules"]["items"]
    for part, options in (
        (schema, OPTIONS),
        (schema["properties"]["extensions"]["items"], EXTENSION_OPTIONS),
        (schema["properties"]["matrix"], MATRIX_OPTIONS),
        (rules, RULE_OPTIONS),
    ):
        wanted = [option for option in options if option.in_pyproject]
        assert list(part["properties"]) == [option.name for option in wanted]
        assert part.get("required", []) == [option.name for option in wanted if option.required]
        for option in wanted:
            assert part["properties"][option.name]["description"] == option.help


@pytest.mark.parametrize("text", GOOD)
def test_what_the_configuration_takes_the_schema_takes(tmp_path: Path, text: str) -> None:
    value, whole = table(text)
    assert accepted_by_config(tmp_path, whole)
    jsonschema.Draft7Validator(tool_schema()).validate(value)


@pytest.mark.parametrize("text", BAD)
def test_what_the_schema_refuses_the_configuration_refuses(tmp_path: Path, text: str) -> None:
    value, whole = table(text)
    assert not jsonschema.Draft7Validator(tool_schema()).is_valid(value)
    assert not accepted_by_config(tmp_path, whole)


def test_validate_pyproject_finds_it_by_its_entry_point(tmp_path: Path) -> None:
    head = '[project]\nname = "a"\nversion = "1"\n'
    for name, text in (("good", GOOD[-1]), ("bad", 'launcher = "distcc"')):
        (tmp_path / f"{name}.toml").write_text(head + table(text)[1], encoding="utf-8")
    command = [Path(sys.executable).parent / "validate-pyproject"]
    good = subprocess.run([*command, tmp_path / "good.toml"], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stdout + good.stderr
    bad = subprocess.run([*command, tmp_path / "bad.toml"], capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    assert "tool.rocmbuild.launcher" in bad.stdout + bad.stderr
