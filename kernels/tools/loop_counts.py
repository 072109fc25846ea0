"""Counts the instructions of products in AMD code objects, per 256 weights: of the inner loop, and of a whole wave.

    python kernels/tools/loop_counts.py CODE_OBJECT... [--cols K ...] [--json]

A code object is what a build leaves in its build folder, `obj/**/*.co`. For every kernel that has the integer dot
product in a loop it takes the innermost such loop with the most of them. A dot product is 4 weights of one vector in
each of 32 lanes, so dots * 128 / vectors is the number of weights that one iteration covers; what else there is in the
loop, divided by that, is the price of a weight. Waits, and hints to the scheduler, are no work and not counted.

For --cols one wave is run, from its first instruction to its last, on arguments for rows of so many weights: all waves
of a product do the same, so its count over the weights of its rows is that of the product. Scalar control is computed,
and lane numbers with what is compared with them; floats are not. Scalar loads read zeros where no arguments are: expert
ids are 0. What is not computed is unknown, and a branch on what is unknown is an error, not a guess; so is a number of
dot products other than the weights ask for. Results are float32. The quantiser of activations is another kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from rocmbuild.toolchain.discover import find_toolchain

__all__ = ["Executed", "Loop", "disassemble", "executed_of", "loops_of", "run_wave"]

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s+(\S.*?)\s*// ([0-9A-F]+): ")
_OFFSET = re.compile(r"\+0x([0-9a-f]+)>$")  # of the place that the disassembler names behind a branch
_WAITS = re.compile(r"^s_(wait|delay_alu|nop|clause|sleep)")
_LOAD = re.compile(r"^(global|flat|buffer|scratch|ds)_load")
_KERNEL = re.compile(r"(\w+)<gguf::(\w+?)Format, (\d+)(?:, (\d+))?")

Lines = Sequence[tuple[int, str, str]]
"""(address, instruction, whole line) of each instruction of a function."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """One wave of a kernel from beginning to end. instructions: all but waits. rows: that the wave computes."""

    kernel: str
    vectors: int
    rows: int
    cols: int
    instructions: int

    @property
    def per_256(self) -> float:
        """Instructions per 256 weights, all vectors of the kernel together."""
        return self.instructions * 256 / (self.rows * self.cols)


def functions(text: str) -> Iterator[tuple[str, list[tuple[int, str, str]]]]:
    """(demangled name, [(address, instruction, whole line)]) of llvm-objdump's output."""
    name = ""
    lines: list[tuple[int, str, str]] = []
    for line in text.splitlines():
        if header := _FUNCTION.match(line):
            if lines:
                yield name, lines
            name, lines = header[1], []
        elif found := _INSTRUCTION.match(line):
            lines.append((int(found[2], 16), found[1], line.rstrip()))
    if lines:
        yield name, lines


def innermost(lines: Lines) -> list[list[str]]:
    """The instructions of each loop that holds no other: from the target of a branch back to the branch."""
    loops = []
    for address, instruction, line in lines:
        if instruction.startswith(("s_cbranch", "s_branch")):
            to = _target(lines, line)
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


def executed_of(text: str, cols: int, only: Container[tuple[str, int]] | None = None) -> Iterator[Executed]:
    """What one wave of every direct product kernel in a disassembly executes for rows of so many weights.

    only: the kernels and vectors that are wanted, as an Executed names them; None: all.
    """
    for name, lines in functions(text):
        kernel = _KERNEL.search(name)
        if kernel is None or kernel[1] not in ("mul_mat_vec", "moe_vec", "moe_gate_up"):
            continue
        vectors = int(kernel[3]) if kernel[1] == "mul_mat_vec" else 1
        if only is not None and (f"{kernel[1]} {kernel[2]}", vectors) not in only:
            continue
        if kernel[1] == "mul_mat_vec":
            rows, arguments = int(kernel[4]), _product(cols, vectors)
        elif kernel[1] == "moe_vec":
            rows, arguments = int(kernel[3]), _product(cols, 1) + struct.pack("<Q4q?7x", _IDS, 1, 1 << 20, 1, 0, False)
        else:
            rows, arguments = 2 * int(kernel[3]), _gate_up(cols)
        instructions = run_wave(lines, arguments)
        dots = sum(map(_is_dot, instructions))
        if dots * 128 != rows * vectors * cols:
            raise ValueError(f"{name}: {dots} dot products for {rows} rows, {vectors} vectors and {cols} columns")
        yield Executed(
            kernel=f"{kernel[1]} {kernel[2]}", vectors=vectors, rows=rows, cols=cols, instructions=len(instructions)
        )


# The kernels' arguments, as device/mat_vec.cuh and device/routed.cuh declare them; any address does.
_ARGUMENTS, _WEIGHT, _Q, _SCALE, _OUT, _IDS = (number << 36 for number in range(1, 7))
_ROWS = 4096


def _product(cols: int, vectors: int) -> bytes:
    """MatVecArgs."""
    addresses = struct.pack("<4Qi4x", _WEIGHT, _Q, _SCALE, _OUT, 0)
    return addresses + struct.pack("<6qQq", cols, _ROWS, cols, 0, 0, vectors, 0, 0)


def _gate_up(cols: int) -> bytes:
    """GateUpArgs, of one token and one expert."""
    experts = struct.pack("<Qqq", _WEIGHT, 1 << 20, cols)
    routing = struct.pack("<Qqq?7x", _IDS, 1, 1, False)
    activation = struct.pack("<2Q3f4x", _Q, _SCALE, 1.0, float("inf"), 0.0)
    return experts + experts + routing + activation + struct.pack("<Qi4x5q?7x", _OUT, 0, _ROWS, cols, 0, 0, 0, False)


def run_wave(lines: Lines, arguments: bytes) -> list[str]:
    """The instructions, waits left out, that wave 0 of block 0 executes with these arguments in memory."""
    wave = _Wave(arguments)
    places = {address: number for number, (address, _, _) in enumerate(lines)}
    at = 0
    executed = []
    while True:
        _, text, line = lines[at]
        at += 1
        if _WAITS.match(text):
            continue
        executed.append(text)
        if text == "s_endpgm":
            return executed
        if text.startswith(("s_branch", "s_cbranch")):
            if wave.takes(text.split()[0]):
                at = places[_target(lines, line)]
        elif len(executed) > 1_000_000:
            raise ValueError(f"{text}: a wave without an end")
        else:
            for half in text.split(" :: "):
                wave.execute(half)


def _target(lines: Lines, line: str) -> int:
    offset = _OFFSET.search(line)
    return lines[0][0] + int(offset[1] if offset else "0", 16)


def _is_dot(instruction: str) -> bool:
    return instruction.startswith("v_dot4_i32_iu8")


_LANES = range(32)
_ALL = 0xFFFFFFFF
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lg": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "bitcmp0": lambda a, b: not a >> (b & 31) & 1,
    "bitcmp1": lambda a, b: bool(a >> (b & 31) & 1),
}
# Results before they are cut to the width of the instruction.
_COMPUTE: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "readfirstlane": lambda a: a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "and_not1": lambda a, b: a & ~b,
    "lshl": lambda a, b: a << (b & 63),
    "lshr": lambda a, b: a >> (b & 63),
    "ashr": lambda a, b: a >> (b & 63),
    "lshlrev": lambda a, b: b << (a & 31),
    "lshrrev": lambda a, b: b >> (a & 31),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mul_lo": lambda a, b: a * b,
    "mul_hi": lambda a, b: a * b >> 32,
    "min": min,
    "max": max,
    "and_or": lambda a, b, c: a & b | c,
    "add3": lambda a, b, c: a + b + c,
    "lshl_or": lambda a, b, c: a << (b & 31) | c,
    "lshl_add": lambda a, b, c: (a << (b & 31)) + c,
}
_CARRIES = {"addc": 1, "add_co_ci": 1, "subb": -1, "sub_co_ci": -1}
_SCC_STAYS = ("mov", "mul", "mul_hi", "add_nc", "sub_nc")
_OPERATION = re.compile(r"^[sv]_(?P<name>\w+?)_(?P<kind>[biu])(?P<bits>32|64)(_e32|_e64)?$")


def _scc(what: str, kind: str, bits: int, value: int, first: int) -> bool:
    """The scalar condition code that a result leaves: what was chosen, whether it overflows, or whether it is not 0."""
    if what in ("min", "max"):
        return value == first
    if "add" in what or "sub" in what:
        return not (0 <= value < 1 << bits if kind == "u" else -(1 << bits - 1) <= value < 1 << bits - 1)
    return value % (1 << bits) != 0


class _Wave:
    """The registers of a wave as far as control needs them; None is unknown."""

    def __init__(self, arguments: bytes) -> None:
        self._arguments = arguments
        # Block 0 on either family: numbers of blocks are zero, in scalar registers or ttmp7 and ttmp9.
        self._scalar: dict[str, int | None] = {f"s{i}": 0 for i in range(106)}
        self._scalar |= {"ttmp7": 0, "ttmp9": 0, "vcc_lo": None, "m0": None, "exec_lo": _ALL, "scc": None}
        self._scalar |= {"s0": _ARGUMENTS & 0xFFFFFFFF, "s1": _ARGUMENTS >> 32}
        self._vector: dict[str, list[int | None]] = {"v0": list(_LANES)}

    def takes(self, branch: str) -> bool:
        """Whether a branch is taken."""
        if branch == "s_branch":
            return True
        where, wanted = {
            "s_cbranch_scc0": ("scc", False),
            "s_cbranch_scc1": ("scc", True),
            "s_cbranch_vccz": ("vcc_lo", False),
            "s_cbranch_vccnz": ("vcc_lo", True),
            "s_cbranch_execz": ("exec_lo", False),
            "s_cbranch_execnz": ("exec_lo", True),
        }[branch]
        value = self._scalar[where]
        if value is None:
            raise ValueError(f"{branch}: on what this does not compute")
        return (value != 0) == wanted

    def execute(self, text: str) -> None:
        """One instruction that is no branch."""
        name, _, rest = text.partition(" ")
        operands = [each.split()[0] for each in rest.split(", ") if each.strip()]
        modified = any(" " in each.strip() for each in rest.split(", "))  # DPP and the like: other lanes' values
        if name.startswith("s_load"):
            self._load(operands)
        elif _LOAD.match(name):
            self._unknown(operands[:1])
        elif name.startswith("s_"):
            self._execute_scalar(name, operands)
        elif name.startswith("v_"):
            self._execute_vector(name, operands, modified)
        # else a store

    def _load(self, operands: list[str]) -> None:
        base = self._read(operands[1], 64)
        offset = self._read(operands[2], 32)
        for number, register in enumerate(_registers(operands[0])):
            at = -1 if base is None or offset is None else base + offset - _ARGUMENTS + 4 * number
            inside = 0 <= at < len(self._arguments)
            self._scalar[register] = int.from_bytes(self._arguments[at : at + 4], "little") if inside else 0

    def _execute_scalar(self, name: str, operands: list[str]) -> None:
        found = _OPERATION.match(name)
        if found is None:  # of floats, and what control has no use for
            self._unknown(operands[:1])
            self._scalar["scc"] = None
            return
        what, bits = found["name"], int(found["bits"])
        if what.endswith("saveexec"):  # and_saveexec, or_saveexec, and_not1_saveexec
            old, mask = self._scalar["exec_lo"], self._read(operands[1], 32)
            value = None if old is None or mask is None else _COMPUTE[what.removesuffix("_saveexec")](mask, old)
            self._scalar[operands[0]] = old
            self._scalar["exec_lo"] = value
            self._scalar["scc"] = None if value is None else int(value != 0)
            return
        compares = what.startswith(("cmp_", "cmpk_", "bitcmp"))
        sources = [self._read(each, bits, found["kind"]) for each in operands[0 if compares else 1 :]]
        numbers = [each for each in sources if each is not None]
        scc = self._scalar["scc"]
        if what == "cselect":
            self._write(operands[0], None if scc is None else sources[0 if scc else 1], bits)
        elif compares and len(numbers) == 2:
            self._scalar["scc"] = int(_COMPARE[what.removeprefix("cmp_").removeprefix("cmpk_")](*numbers))
        elif compares:
            self._scalar["scc"] = None
        else:
            value = self._compute(what, numbers, scc) if len(numbers) == len(sources) else None
            self._write(operands[0], value, bits)
            if what not in _SCC_STAYS:
                self._scalar["scc"] = None if value is None else int(_scc(what, found["kind"], bits, value, numbers[0]))

    def _compute(self, what: str, numbers: list[int], scc: int | None) -> int | None:
        if what in _CARRIES:
            return None if scc is None else numbers[0] + _CARRIES[what] * (numbers[1] + scc)
        if shift := re.fullmatch(r"lshl([1-4])_add", what):
            return (numbers[0] << int(shift[1])) + numbers[1]
        plain = what.removesuffix("_co").removesuffix("_nc")
        return _COMPUTE[plain](*numbers) if plain in _COMPUTE else None

    def _execute_vector(self, name: str, operands: list[str], modified: bool) -> None:
        found = _OPERATION.match(name.replace("v_dual_", "v_"))
        active = self._scalar["exec_lo"]
        what = found["name"].removesuffix("_nc") if found else ""
        compares = what.startswith(("cmp_", "cmpx_"))
        known = compares or (what in _COMPUTE and found is not None and found["bits"] == "32")
        sources = [register for each in operands[1:] for register in _registers(each)]
        absent = any(re.match(r"v\d", each) and each not in self._vector for each in sources)
        if found is None or modified or active is None or not known or absent:
            two = 2 if re.search(r"_co_|div_scale|mad_[iu]64", name) else 1
            self._unknown(operands[:two])
            if what.startswith("cmpx_"):
                self._scalar["exec_lo"] = None
            return
        bits, kind = int(found["bits"]), found["kind"]
        first = 0 if what.startswith("cmpx_") else 1
        compute = _COMPARE[what.rpartition("_")[2]] if compares else _COMPUTE[what]
        values: list[int | None] = [None] * 32
        for lane in _LANES:
            own = [self._read(each, bits, kind, lane) for each in operands[first:]]
            numbers = [each for each in own if each is not None]
            if len(numbers) == len(own):
                values[lane] = int(compute(*numbers)) % (1 << bits)
        running = [lane for lane in _LANES if active >> lane & 1]
        if compares:
            bits_of_lanes = [values[lane] for lane in running]
            mask = None if None in bits_of_lanes else sum(1 << lane for lane in running if values[lane])
            self._scalar["exec_lo" if first == 0 else operands[0]] = mask
        elif what == "readfirstlane":
            self._scalar[operands[0]] = values[running[0] if running else 0]
        else:
            old = self._vector.get(operands[0], [None] * 32)
            self._vector[operands[0]] = [values[lane] if lane in running else old[lane] for lane in _LANES]

    def _unknown(self, operands: Sequence[str]) -> None:
        for operand in operands:
            for register in _registers(operand):
                if register.startswith("v") and register != "vcc_lo":
                    self._vector.pop(register, None)
                elif register in self._scalar:
                    self._scalar[register] = None

    def _write(self, operand: str, value: int | None, bits: int) -> None:
        for number, register in enumerate(_registers(operand)):
            if register in self._scalar:
                self._scalar[register] = None if value is None else value % (1 << bits) >> 32 * number & 0xFFFFFFFF

    def _read(self, operand: str, bits: int, kind: str = "u", lane: int = 0) -> int | None:
        """An operand as the number that an instruction of this width and kind takes it for."""
        value = _literal(operand)
        if value is None:
            value = 0
            for number, register in enumerate(_registers(operand)):
                lanes = self._vector.get(register)
                part = self._scalar.get(register) if lanes is None else lanes[lane]
                if part is None:
                    return None
                value |= part << 32 * number
        value %= 1 << bits
        return value - (1 << bits) if kind == "i" and value >> bits - 1 else value


@cache
def _literal(operand: str) -> int | None:
    if operand == "null":
        return 0
    return int(operand, 0) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", operand) else None


@cache
def _registers(operand: str) -> list[str]:
    """The names of the registers of 32 bits that an operand is."""
    if operand in ("vcc", "exec"):
        return [f"{operand}_lo"]
    if found := re.fullmatch(r"([a-z]+)\[(\d+):(\d+)\]", operand):
        return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]
    return [operand]


def disassemble(code_object: Path, objdump: Path) -> str:
    """A code object's instructions, with demangled names."""
    command = [str(objdump), "-d", "--demangle", str(code_object)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description="Count the instructions of products, per 256 weights.")
    parser.add_argument("code_objects", nargs="+", type=Path, metavar="CODE_OBJECT")
    parser.add_argument("--cols", nargs="*", type=int, default=[], metavar="K", help="whole waves, for rows so long")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    objdump = find_toolchain(spec=None, environ=os.environ).objdump
    assert objdump is not None, "the toolchain has no llvm-objdump"
    for path in options.code_objects:
        target = path.suffixes[-2].lstrip(".") if len(path.suffixes) > 1 else ""
        text = disassemble(path, objdump)
        counts: list[Loop | Executed] = [*loops_of(text)]
        for cols in options.cols:
            counts += executed_of(text, cols)
        for count in counts:
            row = {"target": target, **asdict(count), "per_256": count.per_256}
            if options.json:
                sys.stdout.write(json.dumps(row) + "\n")
                continue
            if isinstance(count, Loop):
                rest = f"{count.dots} dots, {count.loads} loads, {count.lookups} lookups in the loop"
            else:
                rest = f"{count.rows} rows of {count.cols}"
            sys.stdout.write(
                f"{count.kernel:22} {count.vectors} {target:8} {count.per_256:6.1f} per 256 weights: "
                f"{count.instructions} instructions, {rest}\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
