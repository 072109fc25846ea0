"""What a wheel is called: by what real libraries import, and by what it is for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from support import PROJECTS, needs_toolchain, needs_torch_sdk, require

from rocmbuild import pipeline
from rocmbuild.build.tags import Imports, local_version, make_variant, read_imports, short_targets, wheel_tag
from rocmbuild.config import load_config
from rocmbuild.errors import InputError

OWN = next(iter(sys_tags()))


def library(folder: Path, text: str, *words: str) -> Imports:
    """What a library made of this text by the C compiler imports."""
    compiler = shutil.which("gcc") or require("gcc")
    (folder / "a.c").write_text(text)
    include = sysconfig.get_paths()["include"]
    command = [compiler, "-shared", "-fPIC", "-O2", f"-I{include}", folder / "a.c", "-o", folder / "liba.so", *words]
    subprocess.run(command, check=True)
    return read_imports(folder / "liba.so")


def imports(*python: str, needed: tuple[str, ...] = (), **versions: str) -> Imports:
    numbers = {family: frozenset(text.split()) for family, text in versions.items()}
    return Imports(python=frozenset(python), versions=numbers, needed=frozenset(needed))


MODULE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "a", 0, -1, 0};
PyMODINIT_FUNC PyInit_a(void) { PyObject* m = PyModule_Create(&module); %s; return m; }
"""


def test_a_library_without_python_is_for_every_interpreter(tmp_path: Path) -> None:
    found = library(tmp_path, '#include <stdio.h>\nint a(void) { return puts("a"); }\n')
    assert found.python == frozenset()
    assert "libc.so.6" in found.needed
    assert found.versions["GLIBC"] == {"2.2.5"}
    assert wheel_tag([found]) == "py3-none-manylinux_2_5_x86_64"


def test_the_limited_api_alone_is_abi3_from_the_release_that_has_it_all(tmp_path: Path) -> None:
    limited = "#define Py_LIMITED_API 0x030a0000\n" + MODULE
    found = library(tmp_path, limited % 'PyModule_AddIntConstant(m, "one", 1)')
    assert "PyModule_AddIntConstant" in found.python
    assert wheel_tag([found]).startswith("cp310-abi3-manylinux_2_")
    newer = limited.replace("030a", "030b") % "Py_DECREF(PyMemoryView_FromBuffer(0))"
    if sys.version_info >= (3, 11):
        found = library(tmp_path, newer)
        assert "PyMemoryView_FromBuffer" in found.python
        assert wheel_tag([found]).startswith("cp311-abi3-")


def test_one_symbol_outside_the_limited_api_is_for_one_interpreter(tmp_path: Path) -> None:
    found = library(tmp_path, "extern int _PyPrivate_Thing(void*);\n" + MODULE % "_PyPrivate_Thing(m)")
    assert wheel_tag([found]).startswith(f"{OWN.interpreter}-{OWN.abi}-manylinux_2_")
    limited = imports("PyModule_Create2")
    assert wheel_tag([limited, imports("_Py_NotInAnyTable")], own="cp399-cp399") == "cp399-cp399-manylinux_2_5_x86_64"


@pytest.mark.parametrize(
    ("found", "platform"),
    [
        (imports(GLIBC="2.17", needed=("libc.so.6",)), "manylinux_2_17_x86_64"),
        (imports(GLIBC="2.2.5 2.18"), "manylinux_2_24_x86_64"),
        (imports(GLIBC="2.34", GLIBCXX="3.4.21"), "manylinux_2_34_x86_64"),
        (imports(GLIBC="2.17", GLIBCXX="3.4.30", needed=("libstdc++.so.6",)), "manylinux_2_35_x86_64"),
        (imports(GLIBC="2.999"), "linux_x86_64"),
        (imports(GLIBC="2.17", needed=("libtorch.so", "libc10.so", "libtorch_hip.so")), "manylinux_2_17_x86_64"),
        (imports(GLIBC="2.17", needed=("libcurl.so.4",)), "linux_x86_64"),
    ],
)
def test_the_platform_is_the_oldest_policy_that_has_all(found: Imports, platform: str) -> None:
    assert wheel_tag([found]) == f"py3-none-{platform}"


def test_libraries_of_the_wheel_itself_are_no_matter_and_the_neediest_decides() -> None:
    other = Imports(python=frozenset(), versions={}, needed=frozenset(), name="libmine.so")
    found = [imports(needed=("libmine.so",), GLIBC="2.4"), other, imports(GLIBC="2.27")]
    assert wheel_tag(found) == "py3-none-manylinux_2_27_x86_64"


def test_names_of_targets_and_local_versions() -> None:
    assert short_targets(["gfx1201", "gfx1100", "gfx1200"]) == ("gfx120x", "gfx1100")
    assert local_version(hip="7.2.53211", targets=["gfx1200", "gfx1201"]) == "rocm7.2.gfx120x"
    for targets in (["gfx1201"], ["gfx1100", "gfx1201"], ["gfx11-generic", "gfx1200"]):
        text = f"1.0+{local_version(hip='6.4.3', targets=targets)}"
        assert str(Version(text)) == text


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
def test_a_wheel_without_device_code_has_no_local_version(tmp_path: Path) -> None:
    settings = {"build-dir": str(tmp_path / "b"), "platforms": "host", "local-version": "true"}
    config = load_config(PROJECTS / "saxpy", settings=settings, environ={})
    assert pipeline.build_wheel(config, tmp_path, dict(os.environ)).path.name.startswith("saxpy-1.0-py3-none-")
    assert pipeline.metadata(config, tmp_path, dict(os.environ)) == "saxpy-1.0.dist-info"


def member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as file:
        return file.read(next(found for found in file.namelist() if found.endswith(f".dist-info/{name}")))


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
def test_a_variant_with_a_local_version_is_what_variantlib_and_pip_take(tmp_path: Path) -> None:
    """The metadata against variantlib's reader, its digest and the provider's own list of values."""
    from rocm_bootstrap.variant_provider import AMDVariantPlugin
    from variantlib.constants import VALIDATION_WHEEL_NAME_REGEX
    from variantlib.models.variant import VariantDescription, VariantProperty
    from variantlib.variant_dist_info import VariantDistInfo

    given = {"build-dir": str(tmp_path / "b"), "platforms": "rocm", "targets": "gfx1200,gfx1201"}
    config = load_config(PROJECTS / "saxpy", settings={**given, "local-version": "true"}, environ={})
    plain = pipeline.build_wheel(config, tmp_path, dict(os.environ)).path
    name, version, _, _ = parse_wheel_filename(plain.name)
    assert (name, str(version)) == ("saxpy", f"1.0+{local_version(hip=hip(plain), targets=config.targets.names)}")
    assert f"Version: {version}\n".encode() in member(plain, "METADATA")
    assert pipeline.metadata(config, tmp_path / "m", dict(os.environ)) == f"saxpy-{version}.dist-info"
    assert f"Version: {version}\n" in (tmp_path / f"m/saxpy-{version}.dist-info/METADATA").read_text()
    site = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path / "site")]
    subprocess.run([*site, str(plain)], check=True)
    assert (tmp_path / f"site/saxpy-{version}.dist-info/RECORD").is_file()

    config = load_config(PROJECTS / "saxpy", settings={**given, "variant": "true"}, environ={})
    wheel = pipeline.build_wheel(config, tmp_path, dict(os.environ)).path
    match = VALIDATION_WHEEL_NAME_REGEX.fullmatch(wheel.name)
    assert match is not None
    assert match["variant_label"] == "gfx120x"
    info = VariantDistInfo(member(wheel, "variant.json"), expected_label="gfx120x")
    values = {(prop.namespace, prop.feature): set() for prop in info.variant_desc.properties}
    for prop in info.variant_desc.properties:
        values[prop.namespace, prop.feature].add(prop.value)
    assert values == {("amd", "gfx_arch"): {"gfx1200", "gfx1201"}}
    (config_of_provider,) = AMDVariantPlugin.get_all_configs()
    assert config_of_provider.multi_value
    assert values["amd", config_of_provider.name] <= set(config_of_provider.values)
    assert info.providers["amd"].plugin_api == "rocm_bootstrap.variant_provider:AMDVariantPlugin"

    many = make_variant(["gfx11-generic", "gfx1201"])
    long = VariantDistInfo(many.metadata)
    properties = [VariantProperty("amd", "gfx_arch", prop.value) for prop in long.variant_desc.properties]
    assert long.variant_label == many.label == VariantDescription(properties).label


def hip(wheel: Path) -> str:
    return str(json.loads(member(wheel, "rocmbuild.json"))["toolchain"]["hip"])


@pytest.mark.parametrize("name", ["local-version", "variant"])
def test_a_project_with_its_own_setup_py_keeps_its_name(tmp_path: Path, name: str) -> None:
    config = load_config(PROJECTS / "wrapped_stream", settings={name: "true", "targets": "gfx1201"}, environ={})
    with pytest.raises(InputError, match=rf"{name} \(-C {name}\)"):
        pipeline.build_wheel(config, tmp_path, dict(os.environ))
