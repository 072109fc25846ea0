"""Which instructions a kernel has, as the toolchain's own disassembler prints them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmbuild.audit.binary import inspect
from rocmbuild.audit.codeobject import CodeObject
from rocmbuild.audit.source import Data
from rocmbuild.errors import CheckError, printable
from rocmbuild.process import Stream

__all__ = ["Instructions", "base_name", "disassemble", "parse"]

_HEADER = re.compile(r"(?:[0-9a-f]+ )?<(.+)>:")
_WORD = re.compile(r"\s+([a-z][a-z0-9_]+)\b")
_DUAL = re.compile(r":: ([a-z][a-z0-9_]+)\b")
_ENCODING = re.compile(r"(?:_(?:e32|e64|dpp|dpp8|sdwa|e64_dpp|e64_dpp8))+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """A code object's instructions by kernel symbol. called: those of functions that are no kernels."""

    kernels: Mapping[str, frozenset[str]]
    called: frozenset[str]

    def of(self, kernel: str) -> frozenset[str]:
        """What runs when a kernel does: its own instructions, and those of any function that it may call."""
        return self.kernels.get(kernel, frozenset()) | self.called


def base_name(instruction: str) -> str:
    """An instruction without the suffix of its encoding: v_add_f32_e32 and v_add_f32_e64_dpp are v_add_f32."""
    return _ENCODING.sub("", instruction)


def parse(lines: Iterable[str], kernels: Iterable[str]) -> Instructions:
    """Read what llvm-objdump -d prints; kernels: the symbols that are kernels.

    A pair in one instruction (v_dual_mul_f32 ... :: v_dual_add_f32 ...) counts as both.
    """
    wanted = set(kernels)
    found: dict[str, set[str]] = {}
    here: set[str] | None = None
    for line in lines:
        if header := _HEADER.fullmatch(line):
            here = found.setdefault(header[1], set())
        elif here is not None and (word := _WORD.match(line)):
            here.add(word[1])
            if "::" in line:
                here.update(_DUAL.findall(line))
    return Instructions(
        kernels={name: frozenset(words) for name, words in found.items() if name in wanted},
        called=frozenset(word for name, words in found.items() if name not in wanted for word in words),
    )


def disassemble(path: Path, wanted: Iterable[str], objdump: Path) -> dict[str, Instructions]:
    """The instructions of the code objects of a file whose place (CodeObject.where and index) is wanted.

    Each is written into a temporary folder, disassembled and removed. CheckError where the disassembler fails.
    """
    places = set(wanted)
    result: dict[str, Instructions] = {}
    seen: dict[str, int] = {}

    def look(code: CodeObject, data: Data) -> None:
        index = seen[code.where] = seen.get(code.where, -1) + 1
        place = f"{code.where}#{index}"
        if place in places and code.format == "elf":
            with tempfile.TemporaryDirectory(prefix="rocmbuild-") as folder:
                file = Path(folder) / "code.co"
                file.write_bytes(data.read(0, data.size, "code object"))
                result[place] = _run(objdump, file, place, [kernel.name for kernel in code.kernels])

    inspect(path, demangle=False, look=look)
    return result


def _run(objdump: Path, file: Path, place: str, kernels: list[str]) -> Instructions:
    words: list[str | Path] = [objdump, "-d", "--no-show-raw-insn", "--no-leading-addr", file]
    stream = Stream(words, what=f"disassembling {place}")
    last = ""

    def lines() -> Iterable[str]:
        nonlocal last
        for line in stream:
            if "error:" in line:
                last = line
            yield line

    found = parse(lines(), kernels)
    if stream.status or (kernels and not set(kernels) <= set(found.kernels)):
        why = printable(last, limit=300) or f"exit {stream.status}"
        raise CheckError(f"{place}: {objdump.name} does not disassemble it ({why})")
    return found
