"""What holds for every value of FREETOKEN_ROCM_ARCH, not only for the cases somebody thought of.

The rule (docs of the grammar): tokens separated by `;`, `,` or white space; case does not matter; empty tokens are
dropped; duplicates go, first order stays; a value with no token counts as unset; everything else is refused.
"""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from rocmbuild.errors import InputError
from rocmbuild.targets import TORCH_ARCH_ENV, TargetSet, bridge, injected_flags, parse_targets

# Written out again on purpose: the test's own table, not the module's.
RDNA3 = ["gfx1100", "gfx1101", "gfx1102", "gfx1103"]
RDNA35 = ["gfx1150", "gfx1151", "gfx1152", "gfx1153"]
RDNA4 = ["gfx1200", "gfx1201"]
MEANS = {
    **{name: [name] for name in (*RDNA3, *RDNA35, *RDNA4, "gfx11-generic", "gfx12-generic")},
    "rdna3": RDNA3,
    "gfx110x": RDNA3,
    "rdna3.5": RDNA35,
    "gfx115x": RDNA35,
    "gfx11": [*RDNA3, *RDNA35],
    "rdna4": RDNA4,
    "gfx120x": RDNA4,
    "gfx12": RDNA4,
    "all": [*RDNA3, *RDNA35, *RDNA4],
}
NAMES = [word for word, means in MEANS.items() if means == [word]]

any_pace = settings(deadline=None)  # a busy machine is no fault of the code

separators = st.text(alphabet=";, \t\n\r\v\f", min_size=1, max_size=4)
edges = st.text(alphabet=";, \t\n", max_size=3)
words = st.lists(st.sampled_from(list(MEANS)), min_size=1, max_size=12)
WRONG = "gfx90a gfx942 gfx1030 gfx1250 gfx9-generic sm_90 gfx1201:xnack- 1201 gfx120l nativ"
wrong_words = st.sampled_from(WRONG.split())


def expected(asked: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for word in asked for name in MEANS[word]))


def respelled(draw: st.DrawFn, asked: list[str]) -> str:
    """The words with any separators and any case."""
    text = draw(edges)
    for place, word in enumerate(asked):
        upper = draw(st.lists(st.booleans(), min_size=len(word), max_size=len(word)))
        text += draw(separators) if place else ""
        text += "".join(c.upper() if up else c for c, up in zip(word, upper, strict=True))
    return text + draw(edges)


@st.composite
def spelled(draw: st.DrawFn) -> tuple[list[str], str]:
    asked = draw(words)
    return asked, respelled(draw, asked)


@any_pace
@given(spelled())
def test_separators_case_and_duplicates_do_not_matter(case: tuple[list[str], str]) -> None:
    asked, value = case
    found = parse_targets(value, source="test")
    assert found is not None
    assert found.names == expected(asked)


@any_pace
@given(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_a_canonical_list_parses_back_to_itself(chosen: list[str]) -> None:
    first = TargetSet(names=tuple(chosen), source="test")
    assert parse_targets(first.canonical, source="test") == first


@any_pace
@given(spelled())
def test_parsing_is_idempotent(case: tuple[list[str], str]) -> None:
    once = parse_targets(case[1], source="test")
    assert once is not None
    assert parse_targets(once.canonical, source="test") == once


@any_pace
@given(words, wrong_words, st.data())
def test_one_wrong_word_refuses_the_whole_value(asked: list[str], wrong: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(asked)))
    value = ";".join([*asked[:place], wrong, *asked[place:]])
    try:
        parse_targets(value, source="test")
    except InputError as err:
        assert wrong in err.message
    else:
        raise AssertionError(f"{value} was taken")


almost = st.lists(
    st.one_of(
        st.sampled_from([*MEANS, "gfx", "gfx9", "gfx12", "native", ":xnack-", "-generic", "rdna", "0", "x"]),
        st.text(alphabet="gfxGFX0123456789abcdrnl-.:_+;, \t", max_size=8),
        st.text(max_size=4),
    ),
    max_size=8,
).map("".join)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(), almost))
def test_any_text_parses_or_is_refused_and_nothing_unasked_comes_out(value: str) -> None:
    try:
        found = parse_targets(value, source="test", native=lambda: ("gfx1151",))
    except InputError as err:
        assert err.message.startswith("test: ")
        assert all(c.isprintable() or c == "\n" for c in err.message)
        return
    written = [word for word in re.split(r"[;,\s]+", value.lower()) if word]
    if found is None:
        assert written == []
        return
    assert set(written) <= {*MEANS, "native"}
    allowed = {name for word in written for name in {**MEANS, "native": ["gfx1151"]}[word]}
    assert set(found.names) == allowed


@any_pace
@given(st.dictionaries(st.sampled_from([TORCH_ARCH_ENV, "PATH", "HOME"]), st.text()), st.booleans())
def test_bridge_leaves_no_trace(environ: dict[str, str], fails: bool) -> None:
    before = dict(environ)
    try:
        with bridge(environ, TargetSet(names=("gfx1201",), source="test")):
            assert environ == {**before, TORCH_ARCH_ENV: "gfx1201"}
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert environ == before


VARIABLES = st.sampled_from(
    ["HCC_AMDGPU_TARGET", "HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "CCC_OVERRIDE_OPTIONS"]
)


@any_pace
@given(VARIABLES, st.text())
def test_any_value_of_an_injecting_variable_is_reported(variable: str, value: str) -> None:
    found = injected_flags({variable: value})
    assert [item.variable for item in found] == ([variable] if value.strip() else [])


@any_pace
@given(VARIABLES, st.sampled_from(["--offload-arch=gfx906", "-mwavefrontsize64"]), st.data())
def test_no_harmless_words_hide_a_target(variable: str, bad: str, data: st.DataObject) -> None:
    harmless = data.draw(st.lists(st.sampled_from(["-O3", "-g", "-DX=1", "-I/usr/include", "-Wall"]), max_size=4))
    place = data.draw(st.integers(0, len(harmless)))
    listed = [*harmless[:place], bad, *harmless[place:]]
    value = " ".join(f"+{word}" for word in listed) if variable == "CCC_OVERRIDE_OPTIONS" else " ".join(listed)
    (found,) = injected_flags({variable: value})
    assert found.severity == "error"
