"""What the figures mean: how full a kernel can make a card, which cards a file serves, how old a ROCm may be."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rocmbuild.audit.binary import BinaryReport, Library
from rocmbuild.audit.codeobject import PROCESSORS, CodeObject, Kernel, default_wave, target_of_triple
from rocmbuild.audit.processors import GENERIC, PRODUCTS, Limits, Occupancy, limits, occupancy, products, runs
from rocmbuild.errors import InputError, nearest, shown

__all__ = ["Floor", "Served", "ServedLibrary", "card", "kernel_occupancy", "oldest_rocm", "serves"]

Answer = Literal["yes", "partly", "no"]
SPIRV = "amdgcnspirv"


def kernel_occupancy(kernel: Kernel, processor: str) -> Occupancy | None:
    """How many waves of a kernel fit on a SIMD of a processor; None where its limits are not known.

    processor: that of the code object, or the card's own where a generic code object runs on it.
    """
    if kernel.workgroup:
        exact = kernel.workgroup[0] * kernel.workgroup[1] * kernel.workgroup[2]
        groups = (exact, exact)
    else:
        groups = (1, kernel.max_workgroup or 1024)
    wave = kernel.descriptor_wave or kernel.wave
    mode = kernel.workgroup_mode or kernel.descriptor_wave is None
    bounds = limits(processor, wave, workgroup_mode=mode) if wave in (32, 64) else None
    if bounds is None:
        return None
    vgprs = max(kernel.vgpr, kernel.vgpr_allocated)
    least, largest = min(groups[0], 1024), min(groups[1], 1024)
    return _occupancy(bounds, wave=wave, vgprs=vgprs, sgprs=kernel.sgpr, lds=kernel.lds, least=least, largest=largest)


@functools.lru_cache(maxsize=1 << 14)
def _occupancy(  # the kernels of a library repeat few combinations
    bounds: Limits, *, wave: int, vgprs: int, sgprs: int, lds: int, least: int, largest: int
) -> Occupancy:
    return occupancy(bounds, wave=wave, vgprs=vgprs, sgprs=sgprs, lds=lds, groups=(least, largest))


# The oldest ROCm


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The oldest ROCm whose runtime can read something, and why; version "" where no bound is known."""

    version: str
    reason: str


_CODE_OBJECT = {6: Floor(version="6.3", reason="code object version 6")}
_BUNDLE = {
    2: Floor(version="6.2", reason="compressed bundles of format 2"),
    3: Floor(version="7.1", reason="compressed bundles of format 3"),
}


def oldest_rocm(library: Library) -> Floor:
    """The oldest ROCm that can read the bundles and code objects of a library.

    Code object version 6 needs ROCm 6.3 (llvm/llvm-project#130963, ROCm/ROCR-Runtime#321); generic targets come with
    it. Of compressed bundles, the runtime of ROCm 6.2 reads format 2 (ROCm/clr#99); format 3, which compilers write
    since llvm/llvm-project#152600, is first written by the compiler of ROCm 7.1 (7.0 still writes 2). Plain bundles and
    versions up to 5 set no bound that is known here. Whether that ROCm knows the card is another question.
    """
    floors = [_BUNDLE[bundle.version] for bundle in library.bundles if bundle.version in _BUNDLE]
    floors += [_CODE_OBJECT[code.version] for code in library.code_objects if code.version in _CODE_OBJECT]
    return max(floors, key=lambda f: tuple(map(int, f.version.split("."))), default=Floor(version="", reason=""))


# Which cards


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLibrary:
    """A library's answer. through: the targets whose code a card takes, of all bundles. reason: why not, "" for yes."""

    name: str
    answer: Answer
    through: tuple[str, ...]
    reason: str
    oldest_rocm: str
    lowest_occupancy: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Whether a file serves a card: "yes" when each of its libraries does, "partly" when only some do."""

    path: str
    card: str
    products: tuple[str, ...]
    answer: Answer
    libraries: tuple[ServedLibrary, ...]

    def to_json(self) -> dict[str, Any]:
        """The answer with stable keys in a stable order."""
        return {
            "path": self.path,
            "card": self.card,
            "products": list(self.products),
            "answer": self.answer,
            "libraries": [
                {
                    "name": library.name,
                    "answer": library.answer,
                    "through": list(library.through),
                    "reason": library.reason,
                    "oldest_rocm": library.oldest_rocm,
                    "lowest_occupancy": library.lowest_occupancy,
                }
                for library in self.libraries
            ],
        }


def card(word: str) -> str:
    """The processor that a person names, by its own name (with ":xnack+" and the like) or a product's."""
    text = word.strip()
    names = [name for name in PROCESSORS.values() if name not in GENERIC and "generic" not in name]
    processor, *features = text.lower().split(":")
    if processor in names:
        wrong = [f for f in features if f not in ("xnack+", "xnack-", "sramecc+", "sramecc-")]
        if wrong:
            raise InputError(
                f"--for {shown(word)}: {shown(wrong[0])} is no feature; wanted xnack or sramecc with + or -"
            )
        return ":".join([processor, *sorted(features)])
    by_product = {name.lower(): target for target, all_names in PRODUCTS.items() for name in all_names}
    plain = text.lower().removeprefix("amd ")
    if plain in by_product:
        return by_product[plain]
    if processor in GENERIC:
        raise InputError(
            f"--for {shown(word)}: a generic target is no card; wanted one of {', '.join(GENERIC[processor])}"
        )
    every = [*names, *(name for all_names in PRODUCTS.values() for name in all_names)]
    near = [name for name in every if plain and plain in name.lower()][:3] or nearest(text, every)
    advice = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"--for {shown(word)}: no processor or product of that name is known{advice}")


def serves(binary: BinaryReport, card: str) -> Served:
    """Whether a card can run the device code of a file.

    A library serves it when each of its bundles, which are its translation units, has an entry that the card takes.
    Bare code objects are alternatives of each other: together they serve it when one of them does.
    """
    rows = [_library(library, card) for library in binary.device_libraries if library.kind != "code object"]
    bare = [library for library in binary.device_libraries if library.kind == "code object"]
    if bare:
        rows.append(_bare(bare, card))
    if not rows:
        name = Path(binary.path).name
        rows = [_answered(name=name, answer="no", taken=(), reason="no device code", codes=(), libraries=(), card=card)]
    answers = {row.answer for row in rows}
    answer: Answer = "no" if answers == {"no"} else "yes" if answers == {"yes"} else "partly"
    return Served(
        path=binary.path,
        card=card,
        products=products(card.partition(":")[0]),
        answer=answer,
        libraries=tuple(rows),
    )


def _fitting(targets: Iterable[str], card: str) -> str:
    """The target that a card takes, its own before a generic one; "" where none fits."""
    there = [target for target in targets if target == SPIRV or runs(target, card)]
    return min(there, key=lambda target: (target == SPIRV, target.split(":")[0] in GENERIC, target), default="")


def _library(library: Library, card: str) -> ServedLibrary:
    units = [
        [target_of_triple(entry) or SPIRV for entry in bundle.entries if "-gfx" in entry or SPIRV in entry]
        for bundle in library.bundles
    ]
    units = [unit for unit in units if unit] or [list(library.targets)]
    taken = [_fitting(unit, card) for unit in units]
    missing = sum(not target for target in taken)
    codes = [code for code in library.code_objects if code.target in taken]
    answer: Answer = "yes" if not missing else "no" if missing == len(taken) else "partly"
    reason = "" if not missing else _why_not(library.targets, card)
    if answer == "partly":
        reason = f"{missing} of {len(taken)} bundles have no code for it: {reason}"
    if any(code.format == "bitcode" for code in codes):
        answer, reason = "no", "its device code is not linked"
    return _answered(
        name=library.name, answer=answer, taken=taken, reason=reason, codes=codes, libraries=[library], card=card
    )


def _bare(libraries: Sequence[Library], card: str) -> ServedLibrary:
    """Loose code objects, taken together."""
    fit = [library for library in libraries if _fitting(library.targets, card)]
    name = libraries[0].name if len(libraries) == 1 else f"{len(fit)} of {len(libraries)} code objects"
    targets = sorted({target for library in libraries for target in library.targets})
    reason = "" if fit else _why_not(targets, card)
    codes = [code for library in fit for code in library.code_objects]
    taken = [code.target for code in codes]
    answer: Answer = "yes" if fit else "no"
    return _answered(name=name, answer=answer, taken=taken, reason=reason, codes=codes, libraries=fit, card=card)


def _answered(
    *,
    name: str,
    answer: Answer,
    taken: Sequence[str],
    reason: str,
    codes: Sequence[CodeObject],
    libraries: Sequence[Library],
    card: str,
) -> ServedLibrary:
    processor = card.partition(":")[0]
    found = [kernel_occupancy(kernel, processor) for code in codes for kernel in code.kernels]
    floors = [oldest_rocm(library).version for library in libraries]
    return ServedLibrary(
        name=name,
        answer=answer,
        through=tuple(sorted(set(taken) - {""})),
        reason=reason,
        oldest_rocm=max(floors, key=lambda text: tuple(map(int, text.split("."))) if text else (), default=""),
        lowest_occupancy=min((one.waves for one in found if one), default=None) if answer == "yes" else None,
    )


def _why_not(targets: Sequence[str], card: str) -> str:
    """Why none of the targets fits, for people."""
    processor = card.partition(":")[0]
    near = [target for target in targets if target.split(":")[0] == processor]
    if near:
        return f"its code is for {', '.join(near)} only, the card is {card}" + (
            ", where xnack is off by default" if "xnack" not in card and any("xnack+" in t for t in near) else ""
        )
    wide = " (whose waves have 64 lanes)" if default_wave(processor) == 64 else ""
    return f"no code for {processor}{wide}; there is {', '.join(targets) or 'none'}"
