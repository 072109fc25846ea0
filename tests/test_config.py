"""[tool.rocmbuild], the environment and config settings: precedence, sources, and every fault at once."""

from __future__ import annotations

import json
import os
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from rocmbuild.config import (
    EXTENSION_OPTIONS,
    OPTIONS,
    Config,
    Extension,
    check_platform,
    default_build_dir,
    load_config,
    reference,
)
from rocmbuild.errors import EnvironmentFailure, InputError

EXTENSION = """
[[tool.rocmbuild.extensions]]
name = "gguf_kernels.lib.gguf"
sources = ["csrc/**/*.cu", "csrc/binding.cpp"]
"""


@pytest.fixture
def load(tmp_path: Path):
    """Writes a pyproject.toml and loads it."""

    def do(text: str = "", settings: dict[str, Any] | None = None, **environ: str) -> Config:
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        (project / "pyproject.toml").write_text(text, encoding="utf-8")
        return load_config(project, settings=settings, environ=environ)

    return do


@pytest.fixture
def faults(load):
    """The faults of a configuration, one text each."""

    def do(text: str = "", settings: dict[str, Any] | None = None, **environ: str) -> list[str]:
        with pytest.raises(InputError) as caught:
            load(text, settings, **environ)
        head, _, rest = caught.value.message.partition(": ")
        assert head.startswith("configuration of /")
        if rest.split("\n")[0].endswith(" problems:"):
            lines = [line.removeprefix("  - ") for line in rest.split("\n")[1:]]
            assert rest.startswith(f"{len(lines)} problems:")
            return lines
        assert "\n" not in rest
        return [rest]

    return do


def rocmbuild(text: str) -> str:
    return f"[tool.rocmbuild]\n{text}\n"


# What is read


def test_the_configuration_of_the_design(load) -> None:
    config = load(
        """
[build-system]
requires = ["rocmbuild"]
build-backend = "rocmbuild.build_meta"

[tool.rocmbuild]
targets = ["gfx1100", "gfx1201"]
arch-env = "FREETOKEN_ROCM_ARCH"
toolchain = ">=6.4"
platforms = ["rocm", "host"]

[[tool.rocmbuild.extensions]]
name = "gguf_kernels.lib.gguf"
sources = ["csrc/**/*.cu", "csrc/binding.cpp"]
include-dirs = ["csrc"]
defines = { GGUF_FAST = "1" }
torch = "stable"
"""
    )
    assert config.targets is not None
    assert (config.targets.names, config.targets.source) == (("gfx1100", "gfx1201"), "pyproject.toml")
    assert (config.arch_env, config.toolchain, config.platforms) == ("FREETOKEN_ROCM_ARCH", ">=6.4", ("rocm", "host"))
    assert config.extensions == (
        Extension(
            name="gguf_kernels.lib.gguf",
            sources=("csrc/**/*.cu", "csrc/binding.cpp"),
            include_dirs=("csrc",),
            defines=(("GGUF_FAST", "1"),),
            torch="stable",
        ),
    )
    assert config.warnings == ()
    assert {name for name, source in config.sources.items() if source == "pyproject.toml"} == {
        "targets",
        "arch-env",
        "toolchain",
        "platforms",
        "extensions",
    }


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "[tool.other]\nx = 1\n", "[tool.rocmbuild]\n"])
def test_without_settings_all_is_default(load, tmp_path: Path, text: str) -> None:
    config = load(text)
    project = (tmp_path / "project").resolve()
    assert config == Config(
        project=project,
        targets=None,
        arch_env="FREETOKEN_ROCM_ARCH",
        toolchain=None,
        auto_install=False,
        platforms=("rocm",),
        build_dir=default_build_dir(project),
        jobs=None,
        verbose=False,
        debug=False,
        allow_native=False,
        cuda_archs=("80", "90"),
        audit=(),
        extensions=(),
        sources={option.name: "default" for option in OPTIONS},
        warnings=(),
    )


def test_all_keys_of_an_extension(load) -> None:
    (extension,) = load(
        EXTENSION
        + """
include-dirs = [".", "csrc/", "./csrc", "third party/include"]
defines = { A = "", B = 2, C = "a b", D = "\\"x\\"" }
torch = "none"
cxx-flags = ["-Wall"]
device-flags = ["-ffp-contract=off", "-mno-wavefrontsize64", "-DNOTE=--offload-arch=gfx942"]
link-flags = ["-Wl,-z,now"]
"""
    ).extensions
    assert extension.include_dirs == (".", "csrc", "third party/include")
    assert extension.defines == (("A", ""), ("B", "2"), ("C", "a b"), ("D", '"x"'))
    assert extension.torch == "none"
    assert extension.cxx_flags == ("-Wall",)
    assert extension.device_flags == ("-ffp-contract=off", "-mno-wavefrontsize64", "-DNOTE=--offload-arch=gfx942")
    assert extension.link_flags == ("-Wl,-z,now",)


def test_config_is_frozen(load) -> None:
    config = load(EXTENSION)
    with pytest.raises(FrozenInstanceError):
        config.jobs = 3
    with pytest.raises(TypeError):
        config.sources["jobs"] = "elsewhere"


def test_settings_as_pip_passes_them(load) -> None:
    config = load(
        EXTENSION,
        {
            "targets": "gfx1201,gfx1100",
            "platforms": ["host", "rocm"],
            "jobs": "8",
            "verbose": "true",
            "build-dir": "/somewhere/else",
            "toolchain": "debian-7.2.4",
            "debug": "true",
            "auto-install": "off",
            "allow-native": "1",
        },
    )
    assert config.targets is not None
    assert (config.targets.canonical, config.targets.source) == ("gfx1201;gfx1100", "-C targets")
    assert config.platforms == ("host", "rocm")
    assert (config.jobs, config.verbose, config.debug) == (8, True, True)
    assert (config.auto_install, config.allow_native) == (False, True)
    assert config.build_dir == Path("/somewhere/else")
    assert config.toolchain == "debian-7.2.4"
    assert config.sources["jobs"] == "-C jobs"
    assert config.sources["extensions"] == "pyproject.toml"


@pytest.mark.parametrize(
    "given", ["gfx1201;gfx1100", ["gfx1201", "gfx1100"], ["gfx1201, gfx1100"], " GFX1201\tgfx1100;"]
)
def test_targets_as_text_and_as_list(load, given: str | list[str]) -> None:
    config = load("", {"targets": given})
    assert config.targets is not None
    assert config.targets.canonical == "gfx1201;gfx1100"


def test_a_switch_of_a_command_line_may_be_a_bool(load) -> None:
    assert load("", {"verbose": True, "debug": False}).verbose is True


@pytest.mark.parametrize("same", [["4", "4"], ["4", " 4 "]])
def test_one_value_given_twice_is_one_value(load, same: list[str]) -> None:
    assert load("", {"jobs": same}).jobs == 4


def test_targets_in_pyproject_may_be_one_text(load) -> None:
    config = load(rocmbuild('targets = "rdna4; gfx1100"'))
    assert config.targets is not None
    assert config.targets.canonical == "gfx1200;gfx1201;gfx1100"


# Precedence

SAID = {
    "-C targets": {"settings": {"targets": "gfx1100"}},
    "FREETOKEN_ROCM_ARCH": {"FREETOKEN_ROCM_ARCH": "gfx1101"},
    "pyproject.toml": {"text": rocmbuild('targets = ["gfx1102"]')},
    "PYTORCH_ROCM_ARCH": {"PYTORCH_ROCM_ARCH": "gfx1103"},
}


@pytest.mark.parametrize("said", range(1, 16))
def test_targets_precedence_in_every_combination(load, said: int) -> None:
    chosen = [source for bit, source in enumerate(SAID) if said & (1 << bit)]
    arguments: dict[str, Any] = {}
    for source in chosen:
        arguments.update(SAID[source])
    config = load(**arguments)
    assert config.targets is not None
    assert config.targets.source == chosen[0] == config.sources["targets"]
    assert config.targets.names == (f"gfx110{list(SAID).index(chosen[0])}",)
    assert len(config.warnings) == len(chosen) - 1
    for warning, loser in zip(config.warnings, chosen[1:], strict=True):
        assert warning.startswith("tool.rocmbuild.targets = " if loser == "pyproject.toml" else f"{loser} = ")
        assert warning.endswith(f" is overridden by {chosen[0]}")


@pytest.mark.parametrize("blank", ["", ";", " , \t"])
def test_a_value_without_a_word_is_unset_at_every_level(load, blank: str) -> None:
    config = load(
        rocmbuild(f"targets = [{json.dumps(blank)}]\ntoolchain = ''\nplatforms = []"),
        {"targets": blank, "platforms": [], "jobs": " ", "toolchain": ""},
        FREETOKEN_ROCM_ARCH=blank,
        PYTORCH_ROCM_ARCH="gfx1103",
    )
    assert config.targets is not None
    assert config.targets.source == "PYTORCH_ROCM_ARCH"
    assert (config.platforms, config.jobs, config.toolchain) == (("rocm",), None, None)
    assert config.warnings == ()


def test_overridden_values_are_never_validated(load) -> None:
    config = load(
        rocmbuild('targets = 5\ntoolchain = 7\nplatforms = ["rcom"]\nbuild-dir = false'),
        {"targets": "gfx1201", "toolchain": "sys", "platforms": "rocm", "build-dir": "/b"},
        FREETOKEN_ROCM_ARCH="gfx90a;no such thing",
        PYTORCH_ROCM_ARCH="gfx900;gfx906:xnack-",
    )
    assert config.targets is not None
    assert config.targets.names == ("gfx1201",)
    assert config.warnings == (
        "tool.rocmbuild.toolchain = 7 is overridden by -C toolchain",
        'tool.rocmbuild.platforms = ["rcom"] is overridden by -C platforms',
        "tool.rocmbuild.build-dir = false is overridden by -C build-dir",
        'FREETOKEN_ROCM_ARCH = "gfx90a;no such thing" is overridden by -C targets',
        "tool.rocmbuild.targets = 5 is overridden by -C targets",
        'PYTORCH_ROCM_ARCH = "gfx900;gfx906:xnack-" is overridden by -C targets',
    )


def test_the_same_words_are_no_override(load) -> None:
    config = load(
        rocmbuild('targets = ["GFX1201", "gfx1100"]\nplatforms = ["host", "rocm"]'),
        {"platforms": "host,rocm"},
        FREETOKEN_ROCM_ARCH="gfx1201 gfx1100",
        PYTORCH_ROCM_ARCH="gfx1201;gfx1100",
    )
    assert config.warnings == ()


def test_a_projects_own_variable(load) -> None:
    text = rocmbuild('arch-env = "GGUF_ARCH"')
    config = load(text, GGUF_ARCH="gfx1151", FREETOKEN_ROCM_ARCH="gfx1201")
    assert config.targets is not None
    assert (config.targets.names, config.targets.source) == (("gfx1151",), "GGUF_ARCH")
    assert config.warnings == ("FREETOKEN_ROCM_ARCH is set, but this project reads GGUF_ARCH",)
    assert load(text, FREETOKEN_ROCM_ARCH="gfx1201").targets is None


def test_a_preset_variable_stops_no_build_that_has_no_targets(load, faults) -> None:
    image = "gfx900;gfx90a;gfx942"
    assert load(rocmbuild('platforms = ["host"]'), PYTORCH_ROCM_ARCH=image).targets is None
    assert "wave64" in faults(rocmbuild('platforms = ["host", "rocm"]'), PYTORCH_ROCM_ARCH=image)[0]


def test_what_needs_no_targets_does_not_look_at_them(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(rocmbuild('targets = ["gfx942"]'))
    environ = {"FREETOKEN_ROCM_ARCH": "gfx90a"}
    assert load_config(tmp_path, environ=environ, want_targets=False).targets is None


def test_native_needs_leave(load, faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_BOOTSTRAP_FORCE_GFX_ARCH", "gfx1201")
    assert "refused for a wheel" in faults("", FREETOKEN_ROCM_ARCH="native")[0]
    config = load(rocmbuild("allow-native = true"), FREETOKEN_ROCM_ARCH="native")
    assert config.targets is not None
    assert config.targets.names == ("gfx1201",)


# Faults


def test_faults_of_targets_name_the_source_and_what_to_do(load) -> None:
    with pytest.raises(InputError) as caught:
        load("", FREETOKEN_ROCM_ARCH="gfx90a gfx120l")
    assert caught.value.exit_code == 2
    assert "FREETOKEN_ROCM_ARCH: gfx90a: wave64" in str(caught.value)
    assert "FREETOKEN_ROCM_ARCH: gfx120l: not a target; nearest known: gfx1200, gfx1201, gfx120x" in str(caught.value)
    assert "`rocmbuild targets`" in caught.value.hint
    with pytest.raises(InputError) as caught:
        load("", PYTORCH_ROCM_ARCH="gfx900")
    assert "set FREETOKEN_ROCM_ARCH" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("targets = 5", "tool.rocmbuild.targets: found 5, wanted a list of targets"),
        (
            'targets = ["gfx1201", 5]',
            "tool.rocmbuild.targets[1]: found 5, wanted a target, as a string",
        ),
        (
            'targets = ["gfx1201:xnack-"]',
            "tool.rocmbuild.targets: gfx1201:xnack-: a feature suffix is not accepted, write gfx1201",
        ),
        (
            'platforms = ["rcom"]',
            'tool.rocmbuild.platforms[0]: found "rcom", wanted one of cuda, host, rocm; did you mean rocm?',
        ),
        ('platforms = "rocm"', 'tool.rocmbuild.platforms: found "rocm", wanted a list of platforms'),
        ('auto-install = "yes"', 'tool.rocmbuild.auto-install: found "yes", wanted true or false'),
        ("allow-native = 1", "tool.rocmbuild.allow-native: found 1, wanted true or false"),
        ('arch-env = "A B"', 'tool.rocmbuild.arch-env: found "A B", wanted the name of an environment variable'),
        ("build-dir = 5", "tool.rocmbuild.build-dir: found 5, wanted a folder"),
        ('build-dir = "~/x"', 'tool.rocmbuild.build-dir: found "~/x", wanted a folder'),
        ('build-dir = "."', 'tool.rocmbuild.build-dir: found ".", wanted a folder that does not hold the project'),
        ('build-dir = "../.."', 'tool.rocmbuild.build-dir: found "../..", wanted a folder that does not hold'),
        ("jobs = 4", "tool.rocmbuild.jobs: is given as `-C jobs=...` only"),
        ("build_dir = 'x'", "tool.rocmbuild.build_dir: no such key; did you mean build-dir?"),
        ("target = []", "tool.rocmbuild.target: no such key; did you mean targets?"),
        ('"a b" = 1', 'tool.rocmbuild."a b": no such key'),
        ("audit = { spills = 0 }", "tool.rocmbuild.audit.spills: found 0, wanted true or false"),
        ("extensions = 5", "tool.rocmbuild.extensions: found 5, wanted an array of tables"),
        ("extensions = { name = 'a.b' }", "tool.rocmbuild.extensions: found a table, wanted an array of tables"),
        ("extensions = [5]", "tool.rocmbuild.extensions[0]: found 5, wanted a table"),
    ],
)
def test_one_fault_of_pyproject(faults, text: str, expected: str) -> None:
    (fault,) = faults(rocmbuild(text))
    assert fault.startswith(expected)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (">=6.4", True),
        (">=6.4,<8", True),
        ("==7.2.*", True),
        ("~=7.0", True),
        ("!=7.0.1", True),
        ("debian-7.2.4", True),
        ("rocm_7", True),
        (">=six", False),
        ("7.2", False),
        ("/opt/rocm", False),
        ("a b", False),
        ("=>7", False),
    ],
)
def test_toolchain_is_a_name_or_a_range(load, faults, value: str, good: bool) -> None:
    for text, settings, at in (
        (rocmbuild(f'toolchain = "{value}"'), {}, "tool.rocmbuild.toolchain"),
        ("", {"toolchain": value}, "-C toolchain"),
    ):
        if good:
            assert load(text, settings).toolchain == value
        else:
            (fault,) = faults(text, settings)
            assert fault.startswith(f'{at}: found "{value}", wanted the name of a toolchain or a version range')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name = 'a.b'", ".sources: missing; wanted patterns of source files"),
        ("sources = ['a.cu']", ".name: missing; wanted the dotted module path"),
        ("name = 'a'\nsources = ['a.cu']", '.name: found "a", wanted a dotted module path inside a package'),
        ("name = 'a.class'\nsources = ['a.cu']", '.name: found "a.class"'),
        ("name = 'a..b'\nsources = ['a.cu']", '.name: found "a..b"'),
        ("name = 'a/b.c'\nsources = ['a.cu']", '.name: found "a/b.c"'),
        ("name = 5\nsources = ['a.cu']", ".name: found 5"),
        ("name = 'a.b'\nsources = []", ".sources: found [], wanted at least one pattern"),
        ("name = 'a.b'\nsources = 'a.cu'", '.sources: found "a.cu", wanted a list of patterns'),
        ("name = 'a.b'\nsources = ['/etc/a.cu']", '.sources[0]: found "/etc/a.cu", wanted a path relative to'),
        ("name = 'a.b'\nsources = ['a.cu', '../b.cu']", '.sources[1]: found "../b.cu", wanted a path inside the'),
        ("name = 'a.b'\nsources = ['x/../../b.cu']", '.sources[0]: found "x/../../b.cu", wanted a path inside'),
        ("name = 'a.b'\nsources = ['.']", '.sources[0]: found ".", wanted a pattern that names files'),
        ("name = 'a.b'\nsources = ['']", '.sources[0]: found ""'),
        ("name = 'a.b'\nsources = ['a.cu']\ninclude-dirs = ['/usr/include']", ".include-dirs[0]: found "),
        ("name = 'a.b'\nsources = ['a.cu']\ninclude-dirs = ['..']", '.include-dirs[0]: found ".."'),
        ("name = 'a.b'\nsources = ['a.cu']\ndefines = ['X']", '.defines: found ["X"], wanted a table'),
        ("name = 'a.b'\nsources = ['a.cu']\ndefines = {'a-b' = '1'}", ".defines.a-b: not the name of a macro"),
        ("name = 'a.b'\nsources = ['a.cu']\ndefines = {A = true}", ".defines.A: found true, wanted a string"),
        ("name = 'a.b'\nsources = ['a.cu']\ndefines = {A = '''\nx\n'''}", ".defines.A: found "),
        ("name = 'a.b'\nsources = ['a.cu']\ndefines = {ROCMBUILD_X = '1'}", ".defines.ROCMBUILD_X: names that start"),
        ("name = 'a.b'\nsources = ['a.cu']\ntorch = 'stabel'", '.torch: found "stabel", wanted one of full, none, st'),
        ("name = 'a.b'\nsources = ['a.cu']\ncxx-flags = '-O3'", '.cxx-flags: found "-O3", wanted a list of compiler'),
        ("name = 'a.b'\nsources = ['a.cu']\ncxxflags = []", ".cxxflags: no such key; did you mean cxx-flags"),
        (
            "name = 'a.b'\nsources = ['a.cu']\ndevice-flags = ['--offload-arch=gfx906']",
            ".device-flags: --offload-arch=gfx906 sets a target; targets and wave width are rocmbuild's to set",
        ),
        (
            "name = 'a.b'\nsources = ['a.cu']\ndevice-flags = ['-mwavefrontsize64']",
            ".device-flags: -mwavefrontsize64 sets the wave width",
        ),
        (
            "name = 'a.b'\nsources = ['a.cu']\nlink-flags = ['a\\nb']".replace("'a\\nb'", '"a\\nb"'),
            ".link-flags[0]: a l",
        ),
    ],
)
def test_one_fault_of_an_extension(faults, text: str, expected: str) -> None:
    (fault,) = faults(f"[[tool.rocmbuild.extensions]]\n{text}\n")
    assert fault.startswith(f"tool.rocmbuild.extensions[0]{expected}")


def test_two_extensions_of_one_name(faults) -> None:
    (fault,) = faults(EXTENSION + EXTENSION.replace("gguf_kernels.lib.gguf", "other.one") + EXTENSION)
    assert fault == (
        'tool.rocmbuild.extensions[2].name: "gguf_kernels.lib.gguf" is the name of tool.rocmbuild.extensions[0] already'
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"target": "gfx1201"}, "-C target: no such setting; did you mean targets?"),
        ({"build_dir": "x"}, "-C build_dir: no such setting; did you mean build-dir?"),
        ({"--global-option": "x"}, "-C --global-option: no such setting"),
        ({"extensions": "x"}, "-C extensions: stands in pyproject.toml only"),
        ({"jobs": "many"}, '-C jobs: found "many", wanted a whole number of at least 1'),
        ({"jobs": "0"}, "-C jobs: found 0, wanted a whole number of at least 1"),
        ({"jobs": "-1"}, '-C jobs: found "-1", wanted a whole number of at least 1'),
        ({"jobs": "9" * 5000}, "-C jobs: found "),
        ({"jobs": ["4", "8"]}, '-C jobs: given 2 times with different values: ["4", "8"]'),
        ({"jobs": True}, "-C jobs: found true, wanted a whole number of at least 1"),
        ({"jobs": None}, "-C jobs: found None, wanted text"),
        ({"verbose": "loud"}, '-C verbose: found "loud", wanted true or false'),
        (
            {"platforms": "rocm,hots"},
            '-C platforms[1]: found "hots", wanted one of cuda, host, rocm; did you mean host?',
        ),
        ({"targets": "gfx1201,gfx90a"}, "-C targets: gfx90a: wave64"),
        ({"build-dir": "."}, '-C build-dir: found ".", wanted a folder that does not hold the project itself'),
    ],
)
def test_one_fault_of_the_settings(faults, settings: dict[str, Any], expected: str) -> None:
    (fault,) = faults("", settings)
    assert fault.startswith(expected)


def test_a_switch_without_a_value_is_said_to_be_unset(load) -> None:
    config = load("", {"verbose": ""})
    assert config.verbose is False
    assert config.warnings == ("-C verbose has no value and counts as unset; write verbose=true",)


def test_every_fault_is_reported_at_once(faults) -> None:
    found = faults(
        """
[tool.rocmbuild]
platform = ["rocm"]
toolchain = ">=x"
auto-install = "no"

[[tool.rocmbuild.extensions]]
name = "bad name"
sources = ["/abs.cu", "../up.cu"]
torch = "ful"

[[tool.rocmbuild.extensions]]
souces = []
""",
        {"job": "2", "verbose": "maybe"},
        FREETOKEN_ROCM_ARCH="gfx942 gfx1030",
    )
    assert [fault.split(": ")[0] for fault in found] == [
        "tool.rocmbuild.platform",
        "-C job",
        "tool.rocmbuild.toolchain",
        "tool.rocmbuild.auto-install",
        "-C verbose",
        "tool.rocmbuild.extensions[0].name",
        "tool.rocmbuild.extensions[0].sources[0]",
        "tool.rocmbuild.extensions[0].sources[1]",
        "tool.rocmbuild.extensions[0].torch",
        "tool.rocmbuild.extensions[1].souces",
        "tool.rocmbuild.extensions[1].name",
        "tool.rocmbuild.extensions[1].sources",
        "FREETOKEN_ROCM_ARCH",
        "FREETOKEN_ROCM_ARCH",
    ]


@pytest.mark.parametrize("value", ["PYTORCH_ROCM_ARCH", "1X"])
def test_a_bad_arch_env_makes_no_further_faults(faults, value: str) -> None:
    (fault,) = faults(rocmbuild(f'arch-env = "{value}"'), FREETOKEN_ROCM_ARCH="gfx90a")
    assert fault.startswith(f'tool.rocmbuild.arch-env: found "{value}"')


# The file


def error_of(project: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_config(project, environ={})
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("data", "line", "about"),
    [
        (b"[tool.rocmbuild]\ntargets = [\n  gfx1201\n]\n", 3, "column 3"),
        (b'[tool.rocmbuild]\na = "x\n', 2, ""),
        (b"[tool]\n[tool]\n", 2, "Cannot declare"),
        (b"[tool.rocmbuild]\nx = [1,", 2, ""),
        (b"a = 1\nb = '\xe9'\n", 2, "not UTF-8"),
        (b"\xef\xbb\xbfa = 1\n", 1, ""),
    ],
)
def test_bad_toml_is_one_error_with_file_and_line(tmp_path: Path, data: bytes, line: int, about: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(data)
    message = error_of(tmp_path)
    assert message.startswith(f"{tmp_path / 'pyproject.toml'}:{line}: not ")
    assert about in message


def test_numbers_and_nesting_that_no_parser_likes(tmp_path: Path) -> None:
    for text in (f"a = {'9' * 100_000}", f"a = {'[' * 100_000}"):
        (tmp_path / "pyproject.toml").write_text(text)
        assert "not valid TOML" in error_of(tmp_path)


def test_no_project_there(tmp_path: Path) -> None:
    assert error_of(tmp_path / "missing").endswith("missing: not a folder")
    (tmp_path / "file").touch()
    assert error_of(tmp_path / "file").endswith("file: not a folder")
    assert error_of(tmp_path).endswith("pyproject.toml: no such file")
    (tmp_path / "pyproject.toml").mkdir()
    assert "cannot be read" in error_of(tmp_path)
    (tmp_path / "pyproject.toml").rmdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert error_of(tmp_path / "loop").endswith("loop: not a folder")


@pytest.mark.parametrize(("text", "name"), [("tool = 5", "tool"), ("[tool]\nrocmbuild = 5", "tool.rocmbuild")])
def test_tables_that_are_none(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert f"{name}: found 5, wanted a table" in error_of(tmp_path)


# The build folder


def test_build_dir_is_keyed_by_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("one/kernels", "two/kernels", "odd [name]\n"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").touch()

    def build_dir(name: str) -> Path:
        return load_config(tmp_path / name, environ={}).build_dir

    one, two, odd = build_dir("one/kernels"), build_dir("two/kernels"), build_dir("odd [name]\n")
    assert one.parent == two.parent == odd.parent == tmp_path / "cache" / "builds"
    assert one.name.startswith("kernels-")
    assert two.name.startswith("kernels-")
    assert one != two
    assert odd.name.startswith("odd__name__-")

    (tmp_path / "link").symlink_to(tmp_path / "one" / "kernels")
    assert build_dir("link") == build_dir("one/../one/kernels") == one
    monkeypatch.chdir(tmp_path / "one")
    assert load_config(Path("kernels"), environ={}).build_dir == one


def test_a_given_build_dir(load, tmp_path: Path) -> None:
    project = tmp_path / "project"
    assert load(rocmbuild('build-dir = "out/b"')).build_dir == project / "out" / "b"
    assert load("", {"build-dir": "../b"}).build_dir == tmp_path / "b"
    assert load("", {"build-dir": str(tmp_path / "c")}).build_dir == tmp_path / "c"
    assert load(rocmbuild('build-dir = "x"'), {"build-dir": "y"}).build_dir == project / "y"


def test_nothing_is_written(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    before = dict(os.environ)
    load(EXTENSION, {"targets": "gfx1201"})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["project", "pyproject.toml"]
    assert dict(os.environ) == before


# The machine, and the table


def test_only_linux_on_x86_64() -> None:
    check_platform("Linux", "x86_64")
    for system, machine in (("Windows", "AMD64"), ("Darwin", "arm64"), ("Linux", "aarch64"), ("", "")):
        with pytest.raises(EnvironmentFailure) as caught:
            check_platform(system, machine)
        assert caught.value.exit_code == 3
        assert caught.value.message.count(".") == 1
        assert (system or "unknown") in caught.value.message
        assert (machine or "unknown") in caught.value.message


def test_a_configuration_is_refused_elsewhere(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(EnvironmentFailure, match="Linux on x86-64 only"):
        load()


def test_every_option_is_described_and_has_its_place() -> None:
    text = reference()
    for option in (*OPTIONS, *EXTENSION_OPTIONS):
        assert option.help
        assert f".{option.name}` |" in text
    fields = set(Config.__dataclass_fields__)
    about = {"project", "sources", "warnings", "overridden", "settings"}
    assert {option.name.replace("-", "_") for option in OPTIONS} == fields - about
    assert {option.name.replace("-", "_") for option in EXTENSION_OPTIONS} == set(Extension.__dataclass_fields__)
    settings = {option.name for option in OPTIONS if option.setting}
    assert settings >= {"targets", "platforms", "jobs", "verbose", "build-dir", "toolchain", "debug"}


def test_defaults_of_the_table_are_those_of_the_dataclass() -> None:
    made = Extension(name="a.b", sources=("a.cu",))
    for option in EXTENSION_OPTIONS:
        if not option.required:
            assert getattr(made, option.name.replace("-", "_")) == option.default


def test_cuda_archs_are_compute_capabilities_without_a_dot(load) -> None:
    assert load('[tool.rocmbuild]\ncuda-archs = ["90a", "80", "90a"]\n').cuda_archs == ("90a", "80")
    with pytest.raises(InputError, match=r'cuda-archs\[0\]: found "9\.0", wanted a compute capability without a dot'):
        load('[tool.rocmbuild]\ncuda-archs = ["9.0"]\n')
