"""The grammar of FREETOKEN_ROCM_ARCH, the bridge to PyTorch's variable, and what compilers take on their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmbuild.errors import EnvironmentFailure, InputError
from rocmbuild.targets import (
    DECLARED,
    FAMILIES,
    GENERIC,
    TORCH_ARCH_ENV,
    InjectedFlag,
    TargetSet,
    bridge,
    injected_flags,
    is_generic,
    native_targets,
    parse_targets,
    refuse_smuggled,
    smuggled,
)

CASES = Path(__file__).parent / "data" / "targets.tsv"


def case_rows() -> list[tuple[str, str]]:
    """(value, expected) of every row; blanks at the ends of a value belong to it."""
    rows = []
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            value, expected = line.split("\t")
            rows.append((value.replace("\\n", "\n").replace("\\t", "\t"), expected))
    return rows


def names(value: str, **options: object) -> tuple[str, ...]:
    found = parse_targets(value, source="test", **options)  # type: ignore[arg-type]
    return found.names if found else ()


def fault(value: str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        parse_targets(value, source="FREETOKEN_ROCM_ARCH", **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value.message


def test_the_case_table_is_whole() -> None:
    assert len(case_rows()) == 28


@pytest.mark.parametrize(("value", "expected"), case_rows())
def test_case_table(value: str, expected: str) -> None:
    if expected.startswith("ERROR"):
        message = fault(value)
        assert [word for word in expected.split()[1:] if word not in message] == []
    elif expected == "UNSET":
        assert parse_targets(value, source="test") is None
    else:
        found = parse_targets(value, source="FREETOKEN_ROCM_ARCH")
        assert found is not None
        assert found.canonical == expected
        assert found.source == "FREETOKEN_ROCM_ARCH"


def test_the_declared_targets() -> None:
    numbers = (1100, 1101, 1102, 1103, 1150, 1151, 1152, 1153, 1200, 1201)
    assert tuple(f"gfx{number}" for number in numbers) == DECLARED


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("rdna3", "gfx1100 gfx1101 gfx1102 gfx1103"),
        ("gfx110x", "gfx1100 gfx1101 gfx1102 gfx1103"),
        ("gfx115x", "gfx1150 gfx1151 gfx1152 gfx1153"),
        ("gfx120X", "gfx1200 gfx1201"),
        ("gfx11", "gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153"),
        ("GFX12", "gfx1200 gfx1201"),
        ("RDNA3.5", "gfx1150 gfx1151 gfx1152 gfx1153"),
        ("All", " ".join(DECLARED)),
    ],
)
def test_families(family: str, expected: str) -> None:
    assert names(family) == tuple(expected.split())


def test_the_first_place_of_a_target_stays_when_a_family_names_it_again() -> None:
    assert names("gfx1201 rdna4 gfx1103 rdna3") == ("gfx1201", "gfx1200", "gfx1103", "gfx1100", "gfx1101", "gfx1102")


def test_generic_targets() -> None:
    found = parse_targets("GFX11-generic, gfx1201", source="test")
    assert found is not None
    assert found.names == ("gfx11-generic", "gfx1201")
    assert found.generics == ("gfx11-generic",)
    assert is_generic("gfx12-generic")
    assert not is_generic("gfx1201")
    assert {name for members in GENERIC.values() for name in members} == set(DECLARED)


@pytest.mark.parametrize("value", ["", ";", ",", " \t\n", ";, ;\r\n"])
def test_no_token_counts_as_unset(value: str) -> None:
    assert parse_targets(value, source="test") is None


WAVE64 = "gfx600 gfx701 gfx803 gfx900 gfx906 gfx908 gfx90a gfx90c gfx942 gfx950 gfx9-generic gfx9-4-generic gfx9 gfx90x"


@pytest.mark.parametrize("token", [*WAVE64.split(), "gfx90a:xnack+", "GFX942"])
def test_wave64_is_called_that_with_the_reason(token: str) -> None:
    message = fault(token)
    assert message.startswith(f"FREETOKEN_ROCM_ARCH: {token}: wave64")
    assert "32 lanes" in message


UNDECLARED = (
    "gfx1010 gfx1030 gfx1036 gfx1104 gfx1154 gfx1202 gfx1250 gfx1251 gfx1170 gfx1300 gfx10-1-generic gfx10-3-generic "
    "gfx10 gfx103x rdna1 RDNA2 gfx1012:xnack-"
)


@pytest.mark.parametrize("token", UNDECLARED.split())
def test_undeclared_targets_get_the_list(token: str) -> None:
    message = fault(token)
    assert message == f"FREETOKEN_ROCM_ARCH: {token}: not declared; declared are {', '.join(DECLARED)}"


@pytest.mark.parametrize(
    ("token", "bare"),
    [
        ("gfx1201:xnack-", "gfx1201"),
        ("GFX1100:sramecc+:xnack-", "gfx1100"),
        ("gfx11-generic:xnack-", "gfx11-generic"),
        ("rdna4:", "rdna4"),
    ],
)
def test_feature_suffix(token: str, bare: str) -> None:
    assert fault(token) == f"FREETOKEN_ROCM_ARCH: {token}: a feature suffix is not accepted, write {bare}"


@pytest.mark.parametrize(
    ("token", "near"),
    [
        ("gfx120l", "gfx1200, gfx1201, gfx120x"),
        ("1201", "gfx1201"),
        ("rdna5", "rdna3.5, rdna3, rdna4"),
        ("gxf1100", "gfx1100, gfx1101, gfx1102"),
        ("--offload-arch=gfx1151", "gfx1151"),
        ("natve", "native"),
        ("gfx110", "gfx1100, gfx1101, gfx1102"),
        ('"gfx1200"', "gfx1200"),
    ],
)
def test_unknown_words_get_up_to_three_nearest(token: str, near: str) -> None:
    message = fault(token)
    suggested = message.partition("; nearest known: ")[2].split(", ")
    assert suggested[: len(near.split(", "))] == near.split(", ")
    assert len(suggested) <= 3
    assert set(suggested) <= {*DECLARED, *FAMILIES, *GENERIC, "native"}


def test_a_word_like_nothing_gets_no_suggestion() -> None:
    assert fault("sm_90") == "FREETOKEN_ROCM_ARCH: sm_90: not a target"


def test_all_faults_of_a_value_are_one_message() -> None:
    message = fault("gfx1201 gfx942 sm_90 GFX942 gfx1030 gfx1100:xnack+ gfx90a native", allow_native=False)
    assert message.splitlines()[0] == "FREETOKEN_ROCM_ARCH: 5 problems:"
    assert [line.partition(": ")[0] for line in message.splitlines()[1:]] == [
        "  - sm_90",
        "  - gfx1100:xnack+",
        "  - native",
        "  - gfx942, gfx90a",
        "  - gfx1030",
    ]


def test_odd_characters_are_escaped_and_long_words_cut() -> None:
    assert "gfx\\x1b[31m" in fault("gfx\x1b[31m")
    assert "\\u200b" in fault("gfx1201\u200b")
    assert "\\udcff" in fault(os.fsdecode(b"gfx\xff"))
    assert len(fault("g" * 100_000)) < 200


def test_full_width_and_look_alike_characters_are_no_targets() -> None:
    for value in ("gfx\uff11\uff12\uff10\uff11", "gfx120\u0661", "\uff47\uff46\uff581201", "gfx1201\u0301"):
        assert "not a target" in fault(value)


def test_ten_thousand_bad_words_take_no_time() -> None:
    message = fault(" ".join(f"x{n}" for n in range(10_000)))
    assert message.startswith("FREETOKEN_ROCM_ARCH: 10000 problems:")


# native


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch):
    """rocm-bootstrap's own switch for saying which cards a machine has."""

    def put(names: str) -> None:
        monkeypatch.setenv("ROCM_BOOTSTRAP_FORCE_GFX_ARCH", names)

    monkeypatch.delenv("ROCM_BOOTSTRAP_DISABLE_DETECTION", raising=False)
    return put


def test_native_is_the_cards_of_this_machine(cards) -> None:
    cards("gfx1201,gfx1100,gfx1201")
    assert native_targets() == ("gfx1201", "gfx1100")
    assert names("gfx1100 NATIVE") == ("gfx1100", "gfx1201")


def test_native_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_BOOTSTRAP_DISABLE_DETECTION", "1")
    assert native_targets() == ()
    assert "no AMD card was found" in fault("native")
    assert "no AMD card was found" in fault("gfx1201;native")


def test_native_never_drops_a_card_in_silence(cards) -> None:
    cards("gfx1100,gfx1036,gfx942")
    message = fault("native")
    assert "gfx1036 (a card of this machine, from native): not declared" in message
    assert "gfx942 (a card of this machine, from native): wave64" in message


def test_native_on_a_card_that_nobody_knows(cards) -> None:
    cards("gfx1999")
    with pytest.raises(EnvironmentFailure, match="gfx1999"):
        native_targets()
    assert "native: the cards of this machine cannot be told" in fault("native")


def test_native_is_refused_for_wheels_before_any_card_is_looked_for() -> None:
    def never() -> tuple[str, ...]:
        raise AssertionError("looked for cards")

    assert "allow-native = true" in fault("native", native=never, allow_native=False)
    assert names("gfx1201", native=never) == ("gfx1201",)


def test_native_is_asked_once() -> None:
    calls = []

    def cards() -> tuple[str, ...]:
        calls.append(1)
        return ("gfx1151",)

    assert names("native Native, NATIVE", native=cards) == ("gfx1151",)
    assert calls == [1]


# TargetSet and the bridge


@pytest.mark.parametrize("wrong", [(), ("gfx942",), ("gfx1201", "gfx1201"), ("GFX1201",)])
def test_no_other_target_set_exists(wrong: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not a set of declared targets"):
        TargetSet(names=wrong, source="test")


TWO = TargetSet(names=("gfx1201", "gfx1100"), source="test")


@pytest.mark.parametrize("before", [None, "", "gfx900;gfx906", " odd ; value "])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("inside", ["keeps", "changes", "removes"])
def test_bridge_puts_back_exactly_what_was_there(
    monkeypatch: pytest.MonkeyPatch, before: str | None, fails: bool, inside: str
) -> None:
    if before is not None:
        monkeypatch.setenv(TORCH_ARCH_ENV, before)
    everything = dict(os.environ)

    def work() -> None:
        with bridge(os.environ, TWO):
            assert os.environ[TORCH_ARCH_ENV] == "gfx1201;gfx1100"
            if inside == "changes":
                os.environ[TORCH_ARCH_ENV] = "gfx90a"
            elif inside == "removes":
                del os.environ[TORCH_ARCH_ENV]
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            work()
    else:
        work()
    assert dict(os.environ) == everything


def test_bridges_nest() -> None:
    environ: dict[str, str] = {}
    with bridge(environ, TWO):
        with bridge(environ, TargetSet(names=("gfx1151",), source="test")):
            assert environ == {TORCH_ARCH_ENV: "gfx1151"}
        assert environ == {TORCH_ARCH_ENV: "gfx1201;gfx1100"}
    assert environ == {}


# What compilers take on their own


def only(environ: dict[str, str]) -> InjectedFlag:
    (found,) = injected_flags(environ)
    return found


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HCC_AMDGPU_TARGET", "gfx1201"),
        ("HCC_AMDGPU_TARGET", "gfx900,gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "--offload-arch=gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-O2 '--offload-arch=gfx906'"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "--cuda-gpu-arch=gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "--no-offload-arch=all"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "--amdgpu-target=gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-march=gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-Xclang -target-cpu -Xclang gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-mwavefrontsize64"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-Xarch_gfx1201 -mwavefrontsize64"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-Xclang -target-feature -Xclang +wavefrontsize64"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "@more.rsp"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "--config=more.cfg"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "$(cat flags)"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-DX='"),
        ("HIPCC_LINK_FLAGS_APPEND", "-Wl,-plugin-opt=mcpu=gfx906"),
        ("HIPCC_LINK_FLAGS_APPEND", "--offload-arch=gfx906"),
        ("CCC_OVERRIDE_OPTIONS", "+--offload-arch=gfx906"),
        ("CCC_OVERRIDE_OPTIONS", "# O3 ^--offload-arch=gfx906"),
        ("CCC_OVERRIDE_OPTIONS", "x--offload-arch=gfx1201"),
        ("CCC_OVERRIDE_OPTIONS", "x-mno-wavefrontsize64"),
        ("CCC_OVERRIDE_OPTIONS", "s/1201/906/"),
        ("CCC_OVERRIDE_OPTIONS", "+-Xclang +-target-feature +-Xclang ++wavefrontsize64"),
    ],
)
def test_smuggling_is_an_error(variable: str, value: str) -> None:
    found = only({variable: value})
    assert found.severity == "error"
    assert found.variable == variable
    assert f"{variable}={value}" in found.message
    with pytest.raises(InputError, match=variable) as caught:
        refuse_smuggled({variable: value})
    assert variable in caught.value.hint


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HIPCC_COMPILE_FLAGS_APPEND", "-O2 -g"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-mno-wavefrontsize64"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-DNOTE='--offload-arch=gfx942'"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-D NOTE=mcpu=gfx906 -I/opt/wavefrontsize/gfx906"),
        ("HIPCC_COMPILE_FLAGS_APPEND", "-march=native"),
        ("HIPCC_LINK_FLAGS_APPEND", "-Wl,--as-needed -L/opt/rocm/lib"),
        ("CCC_OVERRIDE_OPTIONS", "#"),
        ("CCC_OVERRIDE_OPTIONS", "O2 x-Werror +-g"),
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0"),
    ],
)
def test_other_flags_are_reported(variable: str, value: str) -> None:
    found = only({variable: value})
    assert (found.severity, found.variable, found.value) == ("warning", variable, value)
    assert found.hint
    assert refuse_smuggled({variable: value}) == (found,)


def test_blank_and_other_variables_are_not_reported() -> None:
    assert injected_flags({"HCC_AMDGPU_TARGET": "", "CCC_OVERRIDE_OPTIONS": " ", "PATH": "/usr/bin"}) == ()


def test_all_smuggling_variables_are_one_error() -> None:
    environ = {"CCC_OVERRIDE_OPTIONS": "s/a/b/", "HCC_AMDGPU_TARGET": "gfx900", "HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    assert [found.variable for found in injected_flags(environ)] == [
        "HCC_AMDGPU_TARGET",
        "CCC_OVERRIDE_OPTIONS",
        "HSA_OVERRIDE_GFX_VERSION",
    ]
    with pytest.raises(InputError, match="2 problems"):
        refuse_smuggled(environ)


def test_smuggled_tells_which_word() -> None:
    assert smuggled(["-O3", "--offload-arch=gfx906", "-mwavefrontsize64"]) == (
        "--offload-arch=gfx906 sets a target",
        "-mwavefrontsize64 sets the wave width",
    )
