"""Whatever stands under [tool.rocmbuild] or in the settings: a Config or one InputError, and nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rocmbuild.config import EXTENSION_OPTIONS, OPTIONS, Config, load_config
from rocmbuild.errors import InputError
from rocmbuild.targets import DECLARED, GENERIC

# TOML allows no surrogates and, in these JSON-like spellings, no DEL
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=12)
likely = st.sampled_from(
    [
        "gfx1201",
        "gfx90a",
        "rocm",
        "host",
        ">=7",
        "stable",
        "a.b",
        "csrc/*.cu",
        "../x",
        "/x",
        ".",
        "-O3",
        "true",
        "",
        "A",
    ]
)
scalars = st.one_of(likely, texts, st.booleans(), st.integers(-(2**31), 2**31), st.floats(allow_nan=False, width=32))
keys = st.sampled_from([option.name for option in (*OPTIONS, *EXTENSION_OPTIONS)])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.one_of(keys, texts), inner, max_size=4))


values = st.recursive(scalars, containers, max_leaves=8)
extensions = st.lists(
    st.fixed_dictionaries(
        {}, optional={option.name: st.one_of(values, st.lists(likely, max_size=3)) for option in EXTENSION_OPTIONS}
    ),
    max_size=3,
)
tables = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            option.name: extensions if option.name == "extensions" else st.one_of(values, st.lists(likely, max_size=3))
            for option in OPTIONS
        },
    ),
)
passed = st.dictionaries(
    st.one_of(keys, texts), st.one_of(likely, texts, st.booleans(), st.lists(likely, max_size=3)), max_size=4
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value) if "inf" not in repr(value) else repr(value).replace("+", "")
    return json.dumps(value, ensure_ascii=False)


def loaded(project: Path, table: Any, given_settings: dict[str, Any], environ: dict[str, str]) -> Config | None:
    (project / "pyproject.toml").write_text(f"tool.rocmbuild = {toml(table)}\n", encoding="utf-8")
    try:
        return load_config(project, settings=given_settings, environ=environ)
    except InputError as err:
        assert "not valid TOML" not in err.message, (project / "pyproject.toml").read_text()
        assert all(c.isprintable() or c == "\n" for c in err.message)
        return None


@settings(max_examples=200, deadline=None)
@given(tables, passed, st.one_of(likely, texts), st.one_of(likely, texts))
def test_anything_is_a_config_or_one_error(table: Any, given_settings: Any, freetoken: str, pytorch: str) -> None:
    environ = {"FREETOKEN_ROCM_ARCH": freetoken, "PYTORCH_ROCM_ARCH": pytorch}
    with tempfile.TemporaryDirectory() as folder:
        config = loaded(Path(folder), table, given_settings, environ)
        if config is None:
            return
        assert config.build_dir.is_absolute()
        assert set(config.sources) == {option.name for option in OPTIONS}
        if config.targets is not None:
            assert set(config.targets.names) <= {*DECLARED, *GENERIC}
        for extension in config.extensions:
            for path in (*extension.sources, *extension.include_dirs):
                assert not path.startswith("/")
                assert ".." not in path.split("/")
        again = loaded(Path(folder), table, given_settings, environ)
        assert again == config
