"""The count of what a wave executes: its control is computed, and what is not computed is never guessed."""

from __future__ import annotations

from types import ModuleType

import pytest
from packages import kernel_tool

NAME = "void gguf::mul_mat_vec<gguf::Q8_0Format, 1, 1>(gguf::MatVecArgs)"
KERNEL = """
s_load_b64 s[2:3], s[0:1], 0x38
s_waitcnt lgkmcnt(0)
v_and_b32_e32 v1, 31, v0
s_lshr_b32 s2, s2, 5
s_mov_b32 s4, 0
loop:
v_dot4_i32_iu8 v2, v3, v4, v2 neg_lo:[1,1,0]
v_dual_mov_b32 v5, 0 :: v_dual_mov_b32 v6, 0
s_add_i32 s4, s4, 1
s_nop 0
s_cmp_lt_u32 s4, s2
s_cbranch_scc1 loop
v_cmp_gt_u32_e32 vcc_lo, 4, v1
s_and_saveexec_b32 s5, vcc_lo
s_cbranch_execz end
v_cmp_lt_u32_e32 vcc_lo, 3, v1
s_and_saveexec_b32 s5, vcc_lo
s_cbranch_execz end
global_store_b32 v1, v2, s[8:9]
end:
s_endpgm
"""
"""No kernel of the package: a loop over the columns / 32, and a store by the lanes that are below 4 and above 3."""


@pytest.fixture(scope="module")
def counts() -> ModuleType:
    """The script, imported."""
    return kernel_tool("loop_counts")


def disassembly(source: str) -> str:
    """What the disassembler would print: each instruction 4 bytes long, places behind branches as it names them."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    for line in source.split("\n"):
        if line.endswith(":"):
            labels[line[:-1]] = 4 * len(lines)
        elif line:
            lines.append(line)
    text = f"0000000000001000 <{NAME}>:\n"
    for number, line in enumerate(lines):
        word, _, label = line.partition(" ")
        to = f" <{NAME}+{labels[label]:#x}>" if "branch" in word else ""
        text += f"\t{word + ' 7' if to else line}  // {0x1000 + 4 * number:012X}: BF800000{to}\n"
    return text


def test_a_wave_is_run_as_its_arguments_and_lanes_say(counts: ModuleType) -> None:
    """5 times 5 instructions, 4 before and 7 behind: the wait and the no-op are no work, and no lane gets to store."""
    (name, lines), *others = counts.functions(disassembly(KERNEL))
    assert (name, others) == (NAME, [])
    executed = counts.run_wave(lines, counts._product(160, 1))
    assert len(executed) == 4 + 5 * 5 + 7
    assert sum(each.startswith("v_dot4") for each in executed) == 5
    assert not any(each.startswith("global_store") for each in executed)
    ((_, lines),) = counts.functions(disassembly(KERNEL.replace(" 3, v1", " 2, v1")))
    stores = counts.run_wave(lines, bytes(64))
    assert stores[-2].startswith("global_store")


def test_the_dot_products_have_to_be_those_of_the_weights(counts: ModuleType) -> None:
    """A wave that leaves early, or arguments that lie elsewhere, are no small count."""
    (one,) = counts.executed_of(disassembly(KERNEL.replace("s2, s2, 5", "s2, s2, 7")), 2048)
    assert (one.kernel, one.vectors, one.rows, one.instructions) == ("mul_mat_vec Q8_0", 1, 1, 4 + 16 * 5 + 7)
    assert one.per_256 == pytest.approx(91 / 8)
    assert list(counts.executed_of(disassembly(KERNEL), 2048, {("mul_mat_vec Q4_0", 1)})) == []
    with pytest.raises(ValueError, match="64 dot products for 1 rows, 1 vectors and 2048 columns"):
        list(counts.executed_of(disassembly(KERNEL), 2048))


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("v_cmp_gt_u32_e32 vcc_lo, 4, v1", "v_cmp_gt_f32_e32 vcc_lo, 4, v1"),  # floats
        ("v_cmp_gt_u32_e32 vcc_lo, 4, v1", "v_cmp_gt_u32_e32 vcc_lo, 4, v2"),  # of a dot product
        ("s_mov_b32 s4, 0", "s_cvt_f32_u32 s4, s4"),
        ("s_mov_b32 s4, 0", "v_readlane_b32 s4, v1, 3"),
    ],
)
def test_a_branch_on_what_is_unknown_is_an_error(counts: ModuleType, known: str, unknown: str) -> None:
    source = KERNEL.replace(known, unknown)
    assert source != KERNEL
    with pytest.raises(ValueError, match=r"s_cbranch_\w+: on what this does not compute"):
        list(counts.executed_of(disassembly(source), 2048))
