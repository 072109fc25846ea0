"""The walk over metadata notes finds what msgpack finds, whatever is in them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmbuild.audit.metadata import NamelessKernel, NoKernelList, read_note

KEYS = (".name", ".symbol", ".vgpr_count", ".flag", ".size")
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=40),
    st.binary(max_size=10),
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=17) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)
arguments = st.lists(
    st.fixed_dictionaries(
        {".value_kind": st.sampled_from(["by_value", "global_buffer", "hidden_none"]), ".size": st.integers(0, 300)}
    ),
    max_size=40,
)
rows = st.fixed_dictionaries(
    {".name": st.text(max_size=300), ".symbol": st.text(max_size=70)},
    optional={".args": arguments, ".vgpr_count": scalars, ".flag": scalars, ".size": values, ".other": values},
)


def by_msgpack(note: bytes) -> tuple[str, list[dict[str, Any]]]:
    tree = msgpack.unpackb(note, strict_map_key=False)
    found = []
    for row in tree.get("amdhsa.kernels", []):
        kinds = [f"{a['.value_kind']} {a['.size']}" for a in row.get(".args", [])]
        kept = {key: row[key] for key in row if key in KEYS}
        found.append({**kept, ".args": tuple(kind for kind in kinds if not kind.startswith("hidden"))})
    target = tree.get("amdhsa.target", "")
    return target if isinstance(target, str) else "", found


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, max_size=12), values, values)
def test_the_walk_finds_what_msgpack_finds(kernels: list[dict[str, Any]], target: Any, other: Any) -> None:
    """Rows repeat, as the kernels of a library do; keys in any order."""
    tree = {"other": other, "amdhsa.target": target, "amdhsa.kernels": kernels * 2, "amdhsa.version": [1, 2]}
    note = msgpack.packb(tree)
    assert read_note(note, KEYS) == by_msgpack(note)
    reversed_rows = [dict(reversed(row.items())) for row in kernels]
    note = msgpack.packb({"amdhsa.kernels": reversed_rows})
    assert read_note(note, KEYS) == by_msgpack(note)


def test_maps_and_lists_of_every_length() -> None:
    """The short forms end at 15 items, the next at 65535."""
    for number in (0, 1, 15, 16, 17, 70_000):
        kernels = [{".name": "k", ".symbol": "k.kd"}] * number
        note = msgpack.packb({"amdhsa.kernels": kernels})
        assert len(read_note(note, KEYS)[1]) == number
    for number in (3, 14, 40):
        row = {".name": "k", ".symbol": "k.kd", **{f"key{i}": i for i in range(number)}}
        note = msgpack.packb({"amdhsa.kernels": [row], **{f"key{i}": i for i in range(number)}})
        assert read_note(note, KEYS)[1] == [{".name": "k", ".symbol": "k.kd", ".args": ()}]


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, min_size=1, max_size=3), st.data())
def test_every_cut_is_noticed(kernels: list[dict[str, Any]], data: st.DataObject) -> None:
    note = msgpack.packb({"amdhsa.target": "amdgcn-amd-amdhsa--gfx1201", "amdhsa.kernels": kernels})
    length = data.draw(st.integers(0, len(note) - 1))
    with pytest.raises((ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException)):
        read_note(note[:length], KEYS)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    for note in (noise, b"\x81" + msgpack.packb("amdhsa.kernels") + b"\x91" + noise):
        with contextlib.suppress(ValueError, TypeError, IndexError, RecursionError, msgpack.UnpackException):
            read_note(note, KEYS)


def test_what_is_no_list_of_kernels() -> None:
    for tree in ([], {"amdhsa.kernels": {}}, {"amdhsa.kernels": [1]}, 7):
        with pytest.raises(NoKernelList):
            read_note(msgpack.packb(tree), KEYS)
    with pytest.raises(NamelessKernel, match=r"\.symbol is 3, wanted a name") as caught:
        good = {".name": "k", ".symbol": "k.kd"}
        read_note(msgpack.packb({"amdhsa.kernels": [good, {**good, ".symbol": 3}]}), KEYS)
    assert caught.value.index == 1
    with pytest.raises(TypeError, match="a key is 3, not a name"):
        read_note(msgpack.packb({3: 4}), KEYS)
