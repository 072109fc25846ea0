"""Counts the instructions of the inner loops of products in AMD code objects, per 256 weights.

    python kernels/tools/loop_counts.py CODE_OBJECT... [--json]

A code object is what a build leaves in its build folder, `obj/**/*.co`. For every kernel that has the integer dot
product in a loop it takes the innermost such loop with the most of them. A dot product is 4 weights of one vector in
each of 32 lanes, so dots * 128 / vectors is the number of weights that one iteration covers; what else there is in the
loop, divided by that, is the price of a weight. Waits, and hints to the scheduler, are no work and not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rocmbuild.toolchain.discover import find_toolchain

__all__ = ["Loop", "loops_of", "measure"]

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s+(\S.*?)\s*// ([0-9A-F]+): ")
_OFFSET = re.compile(r"\+0x([0-9a-f]+)>$")  # of the place that the disassembler names behind a branch
_WAITS = re.compile(r"^s_(wait|delay_alu|nop|clause|sleep)")
_LOAD = re.compile(r"^(global|flat|buffer|scratch|ds)_load")
_KERNEL = re.compile(r"(\w+)<gguf::(\w+?)Format, (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The inner loop of one kernel. instructions: all but waits. lookups: v_perm_b32."""

    kernel: str
    vectors: int
    instructions: int
    dots: int
    loads: int
    lookups: int

    @property
    def per_256(self) -> float:
        """Instructions per 256 weights, all vectors of the kernel together."""
        return self.instructions * 2 * self.vectors / self.dots

    @property
    def loads_per_256(self) -> float:
        """Loads from memory, of any width, per 256 weights."""
        return self.loads * 2 * self.vectors / self.dots


def functions(text: str) -> Iterator[tuple[str, list[tuple[int, str, str]]]]:
    """(demangled name, [(address, instruction, whole line)]) of llvm-objdump's output."""
    name, lines = "", []
    for line in text.splitlines():
        if header := _FUNCTION.match(line):
            if lines:
                yield name, lines
            name, lines = header[1], []
        elif found := _INSTRUCTION.match(line):
            lines.append((int(found[2], 16), found[1], line.rstrip()))
    if lines:
        yield name, lines


def innermost(lines: Sequence[tuple[int, str, str]]) -> list[list[str]]:
    """The instructions of each loop that holds no other: from the target of a branch back to the branch."""
    start = lines[0][0]
    loops = []
    for address, instruction, line in lines:
        if instruction.startswith(("s_cbranch", "s_branch")):
            offset = _OFFSET.search(line)
            to = start + int(offset[1] if offset else "0", 16)
            if to <= address:
                loops.append((to, address))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [[text for address, text, _ in lines if begin <= address <= end] for begin, end in inner]


def loops_of(text: str) -> Iterator[Loop]:
    """The loop of every product kernel in a disassembly with demangled names."""
    for name, lines in functions(text):
        best = max(innermost(lines), key=lambda loop: sum(_is_dot(each) for each in loop), default=[])
        dots = sum(map(_is_dot, best))
        kernel = _KERNEL.search(name)
        if not dots or kernel is None:
            continue
        counted = [each for each in best if not _WAITS.match(each)]
        vectors = int(kernel[3]) if kernel[1].startswith("mul_mat_vec") else 1
        yield Loop(
            kernel=f"{kernel[1]} {kernel[2]}",
            vectors=vectors,
            instructions=len(counted),
            dots=dots,
            loads=sum(_LOAD.match(each) is not None for each in counted),
            lookups=sum(each.startswith("v_perm") for each in counted),
        )


def _is_dot(instruction: str) -> bool:
    return instruction.startswith("v_dot4_i32_iu8")


def measure(code_object: Path, objdump: Path) -> list[Loop]:
    """The loops of one code object."""
    command = [str(objdump), "-d", "--demangle", str(code_object)]
    return list(loops_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description="Count the instructions of products' inner loops, per 256 weights.")
    parser.add_argument("code_objects", nargs="+", type=Path, metavar="CODE_OBJECT")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    objdump = find_toolchain(spec=None, environ=os.environ).objdump
    assert objdump is not None, "the toolchain has no llvm-objdump"
    for path in options.code_objects:
        target = path.suffixes[-2].lstrip(".") if len(path.suffixes) > 1 else ""
        for loop in measure(path, objdump):
            if options.json:
                row = {"target": target, **asdict(loop), "per_256": loop.per_256}
                sys.stdout.write(json.dumps(row) + "\n")
            else:
                sys.stdout.write(
                    f"{loop.kernel:22} {loop.vectors} {target:8} {loop.per_256:6.1f} per 256 weights: "
                    f"{loop.instructions} instructions, {loop.dots} dots, {loop.loads} loads, {loop.lookups} lookups\n"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
