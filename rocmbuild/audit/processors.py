"""What AMD's processors are: their products, the generic targets that they run, and how many waves fit on a SIMD.

Sources, by table:
- products: AMD's "GPU hardware specifications" (rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html, 2026-02)
  and the processor table of LLVM's AMDGPUUsage (llvm.org/docs/AMDGPUUsage.html#processors).
- generic targets: AMDGPUUsage, "Generic processor code objects".
- limits: LLVM 22, llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp (IsaInfo: getTotalNumVGPRs, getVGPRAllocGranule,
  getMaxWavesPerEU, getEUsPerCU, getMaxWorkGroupsPerCU) and GCNSubtarget.cpp (getOccupancyWithNumSGPRs); the sizes of
  VGPR files and LDS stand in AMD's table too. The tests compare occupancy() with what clang itself prints
  (-Rpass-analysis=kernel-resource-usage) for every processor that it knows.
- the granule in which LDS is given out, which clang leaves out: AMDGPUUsage (GRANULATED_LDS_SIZE: 512 bytes from gfx7
  on, 1280 on gfx950) and Mesa (src/amd/compiler/aco_ir.cpp, lds_alloc_granule: 1024 bytes from gfx10.3 on).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["GENERIC", "PRODUCTS", "Limits", "Occupancy", "limits", "occupancy", "products", "runs", "vgpr_encoding"]

PRODUCTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gfx803": ("Radeon Instinct MI8", "Radeon Instinct MI6", "Radeon R9 Nano", "Radeon RX 480"),
        "gfx900": ("Radeon Instinct MI25", "Radeon RX Vega 64", "Radeon RX Vega 56"),
        "gfx902": ("Ryzen 5 2400G", "Ryzen 3 2200G"),
        "gfx906": ("Radeon Instinct MI60", "Radeon Instinct MI50", "Radeon Pro VII", "Radeon VII"),
        "gfx908": ("Instinct MI100",),
        "gfx90a": ("Instinct MI250X", "Instinct MI250", "Instinct MI210"),
        "gfx90c": ("Ryzen 7 4700G", "Ryzen 5 4600G"),
        "gfx942": ("Instinct MI325X", "Instinct MI300X", "Instinct MI300A"),
        "gfx950": ("Instinct MI355X", "Instinct MI350X"),
        "gfx1010": ("Radeon RX 5700 XT", "Radeon RX 5700", "Radeon Pro 5600M"),
        "gfx1011": ("Radeon Pro V520",),
        "gfx1012": ("Radeon Pro W5500", "Radeon RX 5500 XT", "Radeon RX 5500"),
        "gfx1030": (
            *("Radeon PRO W6800", "Radeon PRO V620", "Radeon RX 6950 XT", "Radeon RX 6900 XT", "Radeon RX 6800 XT"),
            "Radeon RX 6800",
        ),
        "gfx1031": ("Radeon RX 6750 XT", "Radeon RX 6700 XT", "Radeon RX 6700"),
        "gfx1032": ("Radeon PRO W6600", "Radeon RX 6650 XT", "Radeon RX 6600 XT", "Radeon RX 6600"),
        "gfx1100": (
            *("Radeon RX 7900 XTX", "Radeon RX 7900 XT", "Radeon RX 7900 GRE", "Radeon PRO W7900"),
            *("Radeon PRO W7900 Dual Slot", "Radeon PRO W7800", "Radeon PRO W7800 48GB"),
        ),
        "gfx1101": (
            *("Radeon RX 7800 XT", "Radeon RX 7700 XT", "Radeon RX 7700", "Radeon PRO W7700", "Radeon PRO V710"),
        ),
        "gfx1102": ("Radeon RX 7600 XT", "Radeon RX 7600"),
        "gfx1103": ("Radeon 780M",),
        "gfx1150": ("Radeon 890M",),
        "gfx1151": ("Radeon 8060S",),
        "gfx1152": ("Radeon 860M",),
        "gfx1200": ("Radeon RX 9060 XT", "Radeon RX 9060"),
        "gfx1201": ("Radeon RX 9070 XT", "Radeon RX 9070", "Radeon RX 9070 GRE", "Radeon AI PRO R9700"),
    }
)
"""Processor -> products, as AMD names them without its own name; not every product is there."""

GENERIC: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
        "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
        "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
        "gfx10-3-generic": ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
        "gfx11-generic": (*("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),),
        "gfx12-generic": ("gfx1200", "gfx1201"),
        "gfx12-5-generic": ("gfx1250", "gfx1251"),
    }
)
"""Generic target -> the processors that run its code objects."""


def products(processor: str) -> tuple[str, ...]:
    """The products with a processor; of a generic target those of all its members; () where none is known."""
    return tuple(name for member in GENERIC.get(processor, (processor,)) for name in PRODUCTS.get(member, ()))


def runs(target: str, card: str) -> bool:
    """Whether a card (a processor, with ":xnack+" and the like where its mode is known) runs a code object's target.

    The processor must be the same or a member of the generic one. A feature that the code object fixes must not be
    the opposite of the card's; where the card's mode is not given, off is taken, which is what drivers start with.
    """
    name, *fixed = target.split(":")
    processor, *modes = card.split(":")
    if name != processor and processor not in GENERIC.get(name, ()):
        return False
    mode = {text[:-1]: text[-1] for text in modes}
    # sramecc is on wherever the card has it: only xnack is a choice of the driver's
    return all(text[-1] == mode.get(text[:-1], "-" if text[:-1] == "xnack" else text[-1]) for text in fixed)


class Limits(NamedTuple):  # not a dataclass: looked up by its values for every kernel
    """What the waves of a workgroup share, for one width of waves.

    vgprs: registers of a SIMD per lane, given out in granules. waves: slots of a SIMD. simds: those among which one
    workgroup is spread (4 of a gfx6 to gfx9 compute unit or of a workgroup processor, 2 of a compute unit of gfx10 or
    later in CU mode). lds: bytes that they share. groups: workgroups of more than one wave at a time (barriers).
    sgprs: (most SGPRs, waves) steps up to gfx9, () where SGPRs never limit.
    """

    vgprs: int
    granule: int
    waves: int
    simds: int
    lds: int
    lds_granule: int
    groups: int
    sgprs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """waves: most waves of the kernel on a SIMD, of most. limited_by: "VGPR", "SGPR", "LDS", "workgroup" or ""."""

    waves: int
    most: int
    limited_by: str


_UNIFIED = re.compile(r"gfx90a|gfx94[0-2]|gfx950|gfx9-4-generic")  # one file of 512 for VGPRs and AGPRs
_LARGE = re.compile(r"gfx110[01]|gfx1151|gfx120[01]|gfx12-generic")  # 1.5 times the registers
_GFX10_1 = re.compile(r"gfx101[0-3]|gfx10-1-generic")
_GFX12_5 = re.compile(r"gfx125[01]|gfx12-5-generic")
_KNOWN = re.compile(r"gfx(?:[6-9][0-9a-f]{2}|10[13][0-9]|110[0-3]|115[0-3]|120[01]|(?:9|9-4|10-1|10-3|11|12)-generic)")
_SGPRS_GFX8 = ((80, 10), (88, 9), (100, 8), (1 << 30, 7))
_SGPRS_GFX6 = ((48, 10), (56, 9), (64, 8), (72, 7), (80, 6), (1 << 30, 5))


@functools.lru_cache(maxsize=1 << 8)
def limits(processor: str, wave: int, *, workgroup_mode: bool = True) -> Limits | None:
    """The limits of a processor, or of what every member of a generic target has; None where they are not known.

    wave: 32 or 64. workgroup_mode: whether the kernel runs in workgroup processor mode (gfx10 to gfx12.0), in which a
    workgroup is spread over the four SIMDs of two compute units and may use the LDS of both.
    """
    if _GFX12_5.fullmatch(processor):
        return Limits(vgprs=1024, granule=16, waves=16, simds=4, lds=320 << 10, lds_granule=1024, groups=32)
    if not _KNOWN.fullmatch(processor):
        return None
    if processor[3] in "6789":
        unified = bool(_UNIFIED.fullmatch(processor))
        return Limits(
            vgprs=512 if unified else 256,
            granule=8 if unified else 4,
            waves=8 if unified else 10,
            simds=4,
            lds=(160 << 10) if processor == "gfx950" else (64 << 10),
            lds_granule=1280 if processor == "gfx950" else 256 if processor[3] == "6" else 512,
            groups=16,
            sgprs=_SGPRS_GFX6 if processor[3] in "67" else _SGPRS_GFX8,
        )
    first = bool(_GFX10_1.fullmatch(processor))
    vgprs, granule = (1536, 24) if _LARGE.fullmatch(processor) else (1024, 8 if first else 16)
    share = wave // 32
    units = 2 if workgroup_mode else 1
    return Limits(
        vgprs=vgprs // share,
        granule=granule // share,
        waves=20 if first else 16,
        simds=2 * units,
        lds=(64 << 10) * units,
        lds_granule=512 if first else 1024,
        groups=16 * units,
    )


def vgpr_encoding(processor: str, wave: int) -> int:
    """The registers that one step of GRANULATED_WORKITEM_VGPR_COUNT in a kernel descriptor stands for (AMDGPUUsage)."""
    if _GFX12_5.fullmatch(processor):
        return 16
    return 8 if _UNIFIED.fullmatch(processor) or wave == 32 else 4


def occupancy(
    bounds: Limits, *, wave: int, vgprs: int, sgprs: int, lds: int, groups: Sequence[int] = (1, 1024)
) -> Occupancy:
    """How many waves of a kernel fit on a SIMD, with the workgroup size that fits best.

    vgprs: allocated registers per lane. lds: static bytes per workgroup; what a launch adds is not known here. groups:
    (least, most) lanes of a workgroup; equal where the kernel fixes them.

    registers: vgprs rounded up to the granule, R; floor(file / R) waves, at least 1.
    LDS:       lds rounded up to its granule, L; floor(lds of the block / L) workgroups, at least 1.
    workgroup: of w waves (w from the least to the most that the bounds allow) floor(slots / w) fit, and not more than
               there are barriers where w > 1; their waves are spread evenly, the fullest SIMD counts.

    The result is the smallest of the three. clang's remark is the same with two differences: it does not round
    LDS up, and between the least and the largest workgroup it tries one size only, so that it may say one wave less.
    """
    most = bounds.waves
    blocks = -(-max(vgprs, 1) // bounds.granule)
    by_vgpr = min(most, max(1, bounds.vgprs // (blocks * bounds.granule)))
    by_sgpr = min(most, next((waves for limit, waves in bounds.sgprs if sgprs <= limit), most))
    least, largest = (max(1, -(-size // wave)) for size in groups)
    by_group = _spread(bounds, least, largest, bounds.waves * bounds.simds)
    room = bounds.lds // (-(-lds // bounds.lds_granule) * bounds.lds_granule) if lds else bounds.waves * bounds.simds
    by_lds = _spread(bounds, least, largest, room) if room else 1
    found = {"VGPR": by_vgpr, "SGPR": by_sgpr, "workgroup": by_group, "LDS": by_lds}
    waves = min(found.values())
    return Occupancy(waves=waves, most=most, limited_by="" if waves == most else min(found, key=lambda k: found[k]))


@functools.lru_cache(maxsize=1 << 12)
def _spread(bounds: Limits, least: int, largest: int, room: int) -> int:
    """Waves on the fullest SIMD when at most `room` workgroups of least to largest waves each are there."""
    slots = bounds.waves * bounds.simds
    best = 1
    for size in range(least, max(least, largest) + 1):
        there = min(room, slots if size == 1 else min(slots // size, bounds.groups))
        best = max(best, there * size)
    return min(bounds.waves, -(-best // bounds.simds))
