"""HIPify: one process turns the private copy of a tree into its HIP twin.

Run as a script (`python -I -S -B worker.py`, the job and the result being JSON on its standard streams) it
needs nothing but the standard library, so that neither torch nor rocmbuild is imported. The names, headers
and types it replaces come from the tables of the engine, `torch.utils.hipify`, loaded by its folder. The
functions are pure and also serve rocmbuild.staging.checks.

What differs from the engine's own driver, each for a reason:
- only code is changed: comments and literals are told apart first, so text stays text;
- files keep their names but for `.cu` -> `.hip`, in a tree of their own: an include that no rewriting
  reached finds the converted file, never the CUDA one, and includes need no recursion;
- bytes that are not UTF-8, a byte order mark, line ends and a missing last newline are kept;
- launches are parsed, so any kernel expression works, and what cannot be parsed is a problem with its
  line and not broken code;
- lines keep their numbers: an added include is followed by `#line 1`;
- `std::max` and its like stay: clang's HIP headers make them work in device code, and `::max` is
  ambiguous for mixed types.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import posixpath
import re
import signal
import sys
import types
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "DEVICE_KINDS",
    "Conversion",
    "Engine",
    "Include",
    "Lines",
    "Problem",
    "convert",
    "decode",
    "encode",
    "flatten",
    "load_engine",
    "main",
    "mask",
    "outputs_of",
]

DEVICE_KINDS = (".cu", ".cuh", ".hip")
"""File kinds that hold device code by their name."""

HIP_RUNTIME = "hip/hip_runtime.h"

# ---------------------------------------------------------------------------------------------- text


def decode(data: bytes) -> str:
    """Text whose encoding gives back the same bytes, whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The inverse of decode."""
    return text.encode("utf-8", "surrogateescape")


# Each alternative begins with one of / " ' R, so that the search leaps from one to the next.
_TOKEN = re.compile(
    r"""
      (?P<line>//(?:[^\\\n]|\\(?:\r?\n|.|\Z))*)
    | (?P<block>/\*.*?(?:\*/|\Z))
    | (?P<raw>R"(?P<delim>[^()\\\s"]{0,16})\(.*?\)(?P=delim)")
    | (?P<string>"(?:[^"\\\n]|\\(?:\r\n|.))*")
    | (?P<separator>'(?<=[0-9a-fA-F]')(?<!u8')(?=[0-9a-fA-F]))
    | (?P<char>'(?:[^'\\\n]|\\(?:\r\n|.))*')
    """,
    re.VERBOSE | re.DOTALL,
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_SPLICE = re.compile(r"\\\r?\n")


def mask(text: str) -> str:
    """The text with comments and the insides of literals blanked: same length, same lines."""

    def blank(match: re.Match[str]) -> str:
        whole = match.group()
        kind = match.lastgroup
        if kind == "separator":
            return whole
        if kind in ("string", "char"):
            inside = whole[1:-1]
            return whole[0] + (_blank(inside) if "\n" in inside else " " * len(inside)) + whole[-1]
        if match.group("raw") is not None:
            return '"' + _blank(whole[1:-1]) + '"'
        return _blank(whole) if "\n" in whole else " " * len(whole)

    return _TOKEN.sub(blank, text)


def _blank(text: str) -> str:
    return _NOT_NEWLINE.sub(" ", text)


def flatten(masked: str) -> str:
    """Masked text in which a line that continues runs on: the splices are blanks, same length."""
    return _SPLICE.sub(lambda match: " " * len(match.group()), masked) if "\\" in masked else masked


class Lines:
    """From offsets to line and column, both counted from 1."""

    def __init__(self, text: str) -> None:
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1


Edit = tuple[int, int, str]


def _edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with non-overlapping (start, end, new) replacements made."""
    parts: list[str] = []
    last = 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        parts += [text[last:start], new]
        last = end
    return "".join([*parts, text[last:]])


# -------------------------------------------------------------------------------------------- engine


@dataclass(frozen=True)
class Engine:
    """The engine's tables. names: whole identifiers. phrases: by their first word, longer keys first."""

    names: Mapping[str, str]
    phrases: Mapping[str, Sequence[tuple[str, str]]]

    def include(self, name: str) -> str:
        """The header that stands for a CUDA header; the name itself where there is none."""
        if name.startswith("hip"):
            return name  # the tables would turn hip/x.h into hip/hip/x.h
        if name.startswith(("ATen/cuda/", "ATen/native/cuda/", "THC")):
            return name.replace("cuda", "hip").replace("CUDA", "HIP").replace("THC", "THH")
        text = f"#include <{name}>"
        return _edited(text, self.replacements(text))[len("#include <") : -1]

    def replacements(self, code: str) -> list[Edit]:
        """Where code, given without comments and literals, names something of CUDA's."""
        names, phrases = self.names, self.phrases
        edits: list[Edit] = []
        after = 0
        for match in _WORD.finditer(code):
            word = match.group()
            start = match.start()
            if start < after:
                continue
            if word in phrases:
                for key, new in phrases[word]:
                    end = start + len(key)
                    if code.startswith(key, start) and not _is_word(code, end):
                        edits.append((start, end, new))
                        after = end
                        break
                if start < after:
                    continue
            replacement = names.get(word)
            if replacement is not None:
                edits.append((start, match.end(), replacement))
        return edits


_WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_]\w*")
_WORD_ONLY = re.compile(r"[A-Za-z_]\w*\Z")
# Rules of one company's source tree, such as mixed_utils -> hip/mixed_utils, that break other people's names.
_FOREIGN_TABLES = ("CAFFE2_SPECIFIC_MAPPINGS", "CAFFE2_PATH_MAPPINGS")


def _is_word(text: str, index: int) -> bool:
    return index < len(text) and (text[index].isalnum() or text[index] == "_")


def load_engine(folder: Path) -> Engine:
    """Load the tables of a `hipify` package from its folder, without the package above it.

    Both layouts are read: of version 2 (key -> name) and of version 1 (key -> (name, flags...)).
    """
    parent = "_rocmbuild_engine"
    package = types.ModuleType(parent)
    package.__path__ = [str(folder)]
    sys.modules[parent] = package
    try:
        module = importlib.import_module(f"{parent}.cuda_to_hip_mappings")
        tables = [
            t for t in module.CUDA_TO_HIP_MAPPINGS if all(t is not getattr(module, n, 0) for n in _FOREIGN_TABLES)
        ]
        constants = getattr(module, "API_CAFFE2", None), getattr(module, "API_SPECIAL", None)
    finally:
        for name in [name for name in sys.modules if name == parent or name.startswith(parent + ".")]:
            del sys.modules[name]
    caffe2, special = constants
    merged: dict[str, str] = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, str):
                merged[key] = value
            elif caffe2 is not None and caffe2 in value[1:]:
                continue
            elif key not in merged or special is None or special not in value[1:]:
                merged[key] = value[0]
    phrases: dict[str, list[tuple[str, str]]] = {}
    names: dict[str, str] = {}
    for key, new in merged.items():
        if _WORD_ONLY.match(key):
            names[key] = new
        elif head := _WORD.match(key):
            phrases.setdefault(head.group(), []).append((key, new))
    # '<nccl.h>' is the one kind of key that starts with no word; in an include it is a phrase all the same.
    for key, new in merged.items():
        if key.startswith("<") and key.endswith(">"):
            phrases.setdefault("include", []).append((f"include {key}", f"include {new}"))
    for keys in phrases.values():
        keys.sort(key=lambda pair: -len(pair[0]))
    return Engine(names=names, phrases=phrases)


# ------------------------------------------------------------------------------------------ outcomes


@dataclass(frozen=True)
class Problem:
    """Something that could not be converted; line and column are the source's, counted from 1."""

    line: int
    column: int
    rule: str
    severity: str
    message: str


@dataclass(frozen=True)
class Include:
    """An include as it stands after conversion. found: it names a staged file."""

    line: int
    column: int
    name: str
    quoted: bool
    found: bool


@dataclass
class Conversion:
    """What became of one file. shift: lines added in front of the source's first."""

    text: str
    launches: int = 0
    replaced: int = 0
    shift: int = 0
    problems: list[Problem] = field(default_factory=list)
    includes: list[Include] = field(default_factory=list)


Resolve = Callable[[str, str, bool], "tuple[str, bool]"]
"""(including file, name, quoted) -> (the name to write, whether it is a staged file)."""


# ------------------------------------------------------------------------------------------ includes

_INCLUDE = re.compile(r"^[ \t\ufeff]*#[ \t]*include(?:_next)?\b[ \t]*", re.MULTILINE)
_TARGET = re.compile(r'"([^"\n]+)"|<([^>\n]+)>')


def _includes(text: str, masked: str) -> list[tuple[int, int, str, bool]]:
    """(start, end, name, quoted) of each include's target."""
    found = []
    for match in _INCLUDE.finditer(masked):
        target = _TARGET.match(text, match.end())
        if target:
            quoted = target.group(1) is not None
            found.append((target.start(), target.end(), target.group(1) if quoted else target.group(2), quoted))
    return found


def outputs_of(sources: Iterable[str]) -> dict[str, str]:
    """Where each staged file goes in the HIP tree: `.cu` becomes `.hip`, everything else keeps its name.

    A name that is taken gets `_hip` before its suffix, as often as needed.
    """
    names = sorted(sources)
    taken = {name for name in names if not name.endswith(".cu")}
    outputs: dict[str, str] = {}
    for name in names:
        output = name
        if name.endswith(".cu"):
            stem = name[:-3]
            while (output := stem + ".hip") in taken:
                stem += "_hip"
            taken.add(output)
        outputs[name] = output
    return outputs


def engine_name(path: str) -> str:
    """The name that the engine's own driver gives to a converted file, for sources that include it by that."""
    folder, file = posixpath.split(path)
    stem, suffix = posixpath.splitext(file)
    suffix = ".hip" if suffix == ".cu" else suffix
    new_folder, new_stem = (
        part.replace("cuda", "hip").replace("CUDA", "HIP").replace("THC", "THH") for part in (folder, stem)
    )
    if new_folder == folder and new_stem + suffix == file:
        new_stem += "_hip"
    return posixpath.join(new_folder, new_stem + suffix)


def resolver(outputs: Mapping[str, str], include_dirs: Sequence[str], engine: Engine) -> Resolve:
    """How an include is rewritten: staged files (beside the includer, in the include folders), then the tables."""
    aliases = {engine_name(source): source for source in outputs}

    def resolve(includer: str, name: str, quoted: bool) -> tuple[str, bool]:
        bases = [posixpath.dirname(includer)] if quoted else []
        bases += include_dirs
        for table in (outputs, aliases):
            for base in bases:
                path = posixpath.normpath(posixpath.join(base, name))
                if path not in table:
                    continue
                if table is outputs:
                    output = outputs[path]
                    if output == path:
                        return name, True
                    return posixpath.join(posixpath.dirname(name), posixpath.basename(output)), True
                return posixpath.relpath(outputs[aliases[path]], base or "."), True
        return engine.include(name), False

    return resolve


# ------------------------------------------------------------------------------------------ launches

_SPACE = " \t\r\n\v\f"
_OPEN = {")": "(", "]": "["}
_CONTROL = {"if", "while", "for", "switch", "catch"}
_STOP = {"return", "else", "do", "case", "co_return", "throw", "goto", "and", "or", "not"} | _CONTROL


class _Unparsed(Exception):
    """A launch that cannot be told apart; the text says why."""


def _skip_back(code: str, index: int) -> int:
    """The index of the last non-blank before or at index, or -1."""
    while index >= 0 and code[index] in _SPACE:
        index -= 1
    return index


def _match_back(code: str, index: int) -> int:
    """The opening bracket that belongs to the `)` or `]` at index."""
    depth: list[str] = []
    while index >= 0:
        char = code[index]
        if char in _OPEN:
            depth.append(_OPEN[char])
        elif char in "([":
            if not depth or depth.pop() != char:
                break
            if not depth:
                return index
        elif char in ";{}":
            break
        index -= 1
    raise _Unparsed("its kernel has unbalanced brackets")


def _template_back(code: str, index: int) -> int:
    """The `<` that belongs to the `>` at index; brackets inside hide their comparisons."""
    depth = 0
    while index >= 0:
        char = code[index]
        if char in _OPEN:
            index = _match_back(code, index)
        elif char == ">":
            depth += 1
        elif char == "<":
            if index and code[index - 1] == "<":
                index -= 1  # a shift
            else:
                depth -= 1
                if depth == 0:
                    return index
        elif char in ";{}([":
            break
        index -= 1
    raise _Unparsed("its kernel's template arguments have no beginning")


def _word_before(code: str, index: int) -> str:
    """The identifier that ends at index; empty where none does."""
    end = index + 1
    while index >= 0 and _is_word(code, index):
        index -= 1
    return code[index + 1 : end]


def _part_back(code: str, index: int) -> int:
    """Where the part of an expression that ends at index begins: name, name<...>, (...) or [...]."""
    if index >= 0 and code[index] in _OPEN:
        return _match_back(code, index)
    if index >= 0 and code[index] == ">":
        index = _skip_back(code, _template_back(code, index) - 1)
    word = _word_before(code, index)
    if not word or word in _STOP:
        raise _Unparsed("its kernel's name is not found")
    start = index + 1 - len(word)
    before = _skip_back(code, start - 1)
    return before - len("template") + 1 if _word_before(code, before) == "template" else start


def _kernel_start(code: str, launch: int) -> int:
    """Where the kernel's expression begins, read backwards from the `<<<` at launch."""
    index = _skip_back(code, launch - 1)
    while True:
        start = _part_back(code, index)
        index = _skip_back(code, start - 1)
        joint = code[max(0, index - 1) : index + 1]
        if joint in ("->", "##"):
            index = _skip_back(code, index - 2)
        elif joint == "::":
            start, index = index - 1, _skip_back(code, index - 2)
            word = _word_before(code, index)
            if word in _STOP or not (word or code[index : index + 1] == ">"):
                return _checked(code, start)
        elif index >= 0 and code[index] == ".":
            index = _skip_back(code, index - 1)
        elif code[start] in "([" and _applies(code, index):
            pass  # a call or an element of what stands before
        elif code[start] == "[":
            raise _Unparsed("its kernel's name is not found")
        else:
            return _checked(code, start)


def _applies(code: str, index: int) -> bool:
    """Whether brackets that follow index call or index what ends there."""
    if index < 0:
        return False
    if code[index] in _OPEN:
        opening = _match_back(code, index)
        return _word_before(code, _skip_back(code, opening - 1)) not in _CONTROL
    word = _word_before(code, index)
    return code[index] == ">" if not word else word not in _STOP


def _checked(code: str, start: int) -> int:
    before = _skip_back(code, start - 1)
    if before >= 0 and code[before] in "<.":
        raise _Unparsed("its kernel's template arguments are ambiguous; put comparisons in parentheses")
    return start


_CLOSERS = {"(": ")", "[": "]", "{": "}"}


def _configuration(code: str, start: int) -> tuple[list[tuple[int, int]], int]:
    """The parts of a launch configuration that begins after its `<<<`, and the index after its `>>>`."""
    stack: list[str] = []
    parts: list[tuple[int, int]] = []
    part = index = start
    while index < len(code):
        char = code[index]
        if char in _CLOSERS:
            stack.append(_CLOSERS[char])
        elif char in ")]}":
            if not stack or stack.pop() != char:
                break
        elif stack:
            pass
        elif char == ";":
            break
        elif char == "<":
            index = _template_forward(code, index)
        elif char == ",":
            parts.append((part, index))
            part = index + 1
        elif code.startswith(">>>", index):
            while code.startswith(">>>>", index):
                index += 1
            return [*parts, (part, index)], index + 3
        index += 1
    raise _Unparsed("its >>> is missing")


def _template_forward(code: str, index: int) -> int:
    """The `>` that closes template arguments opened at index, or index itself where `<` only compares."""
    stack: list[str] = []
    depth = 1
    for end in range(index + 1, min(len(code), index + 4000)):
        char = code[end]
        if char in _CLOSERS:
            stack.append(_CLOSERS[char])
        elif char in ")]}":
            if not stack or stack.pop() != char:
                return index
        elif stack:
            continue
        elif char == ";":
            return index
        elif char == "<":
            depth += 1
        elif char == ">" and code[end - 1] != "-":
            depth -= 1
            if depth == 0:
                return end if code[end + 1 : end + 40].lstrip(_SPACE).startswith(("(", "{", "::")) else index
    return index


def _has_open_comma(code: str) -> bool:
    """Whether a macro would split this argument: a comma outside parentheses."""
    depth = 0
    for char in code:
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            return True
    return False


def _launch_edit(text: str, code: str, launch: int) -> Edit:
    """The replacement of one launch, from its kernel's first character to its arguments' parenthesis."""
    start = _kernel_start(code, launch)
    parts, end = _configuration(code, launch + 3)
    if not 2 <= len(parts) <= 4:
        raise _Unparsed(f"its configuration has {len(parts)} part{'s' * (len(parts) != 1)}; 2 to 4 are wanted")
    opening = end
    while opening < len(code) and code[opening] in _SPACE:
        opening += 1
    if opening >= len(code) or code[opening] != "(":
        raise _Unparsed("its arguments are missing")
    name_end = _skip_back(code, launch - 1) + 1
    pieces = [f"hipLaunchKernelGGL(({text[start:name_end]}){text[name_end:launch]}"]
    for number, (first, last) in enumerate(parts):
        core_first, core_last = first, _skip_back(code, last - 1) + 1
        while core_first < core_last and code[core_first] in _SPACE:
            core_first += 1
        if core_first >= core_last:
            raise _Unparsed(f"part {number + 1} of its configuration is empty")
        core = text[core_first:core_last]
        if number < 2:
            core = f"dim3({core})"
        elif _has_open_comma(code[core_first:core_last]):
            core = f"({core})"
        lead = text[first:core_first] or " "
        pieces.append(f"{lead}{core}{text[core_last:last]}")
    pieces += [" 0"] * (4 - len(parts))
    first = opening + 1
    while first < len(code) and code[first] in _SPACE:
        first += 1
    blank = text[end:opening]
    # No comma without arguments: the empty one is an error where the macro ends in a function call.
    return start, opening + 1, ",".join(pieces) + (blank if code[first : first + 1] == ")" else f",{blank or ' '}")


# ------------------------------------------------------------------------------------ shared memory

_SPECIFIER = re.compile(
    r"\s*(?:(?P<word>extern|static|const|volatile|constexpr|inline|__shared__)\b"
    r"|(?P<align>alignas|__align__|__attribute__)(?=\s*\())"
)
_DYNAMIC = re.compile(
    r"(?P<type>[\w:<>,\s*&]*?[\w>*&])(?P<gap>\s*)(?<![\w])(?P<name>[A-Za-z_]\w*)\s*(?P<tail>\[\s*\])\s*;"
)


def _closing(code: str, index: int) -> int:
    """The index after the parenthesis that closes the one at or after index; -1 where none does."""
    depth = 0
    for end in range(index, len(code)):
        if code[end] == "(":
            depth += 1
        elif code[end] == ")":
            depth -= 1
            if depth == 0:
                return end + 1
        elif code[end] in ";{}":
            return -1
    return -1


_BEFORE_SHARED = re.compile(
    r"(?:(?:(?:extern|static|const|volatile|constexpr|inline)\b|(?:alignas|__align__|__attribute__)\s*\((?:[^();{}]|\((?:[^();{}]|\([^();{}]*\))*\))*\))\s*)+\Z"
)


def _shared_edits(text: str, code: str, line_of: Callable[[int], tuple[int, int]]) -> tuple[list[Edit], list[Problem]]:
    """Dynamic shared memory becomes HIP_DYNAMIC_SHARED(type, name); alignas moves in front of __shared__."""
    edits: list[Edit] = []
    problems: list[Problem] = []
    for match in re.finditer(r"\b__shared__\b", code):
        window = max(0, match.start() - 400)
        earlier = _BEFORE_SHARED.search(code, window, match.start())
        begin = earlier.start() if earlier else match.start()
        specifiers: list[tuple[int, int, str]] = []  # start, end, kind
        index = begin
        while spec := _SPECIFIER.match(code, index):
            first = spec.start("word") if spec.group("word") else spec.start("align")
            end = spec.end() if spec.group("word") else _closing(code, spec.end())
            if end < 0:
                break
            specifiers.append((first, end, spec.group("word") or spec.group("align")))
            index = end
        kinds = [kind for _, _, kind in specifiers]
        if "extern" in kinds:
            declared = _DYNAMIC.match(code, index)
            if not declared:
                if re.compile(r"[^;{}()]*\[\s*\]").match(code, index):
                    message = "dynamic shared memory of this form cannot run on the host platform"
                    problems.append(Problem(*line_of(match.start()), "dynamic-shared", "warning", message))
                continue
            edits.append((specifiers[0][0], specifiers[0][0], "HIP_DYNAMIC_SHARED("))
            for first, end, kind in specifiers:
                if kind in ("extern", "__shared__"):
                    edits.append((first, end + (text[end : end + 1] == " "), ""))
                elif kind == "alignas":
                    edits.append((first, first + len(kind), "__align__"))
            type_first = declared.start("type") + len(declared["type"]) - len(declared["type"].lstrip())
            if "," in declared["type"]:
                edits += [(type_first, type_first, "__typeof__("), (declared.end("type"), declared.end("type"), ")")]
            gap = "," + (text[declared.start("gap") : declared.end("gap")] or " ")
            edits.append((declared.start("gap"), declared.end("gap"), gap))
            edits.append((declared.end("name"), declared.end("tail"), ")"))
        else:
            shared = kinds.index("__shared__")
            late = [(first, end) for first, end, kind in specifiers[shared + 1 :] if kind == "alignas"]
            moved = "".join(code[first:end] + " " for first, end in late)
            if moved and "\n" not in moved:
                edits.append((specifiers[0][0], specifiers[0][0], moved))
                edits += [(first, end + (text[end : end + 1] == " "), "") for first, end in late]
    return edits, problems


# ----------------------------------------------------------------------------------------- one file

_DEVICE_CODE = re.compile(r"\b(?:hipLaunchKernelGGL|__global__|__shared__|HIP_DYNAMIC_SHARED|__syncthreads)\b")


def convert(text: str, path: str, engine: Engine, resolve: Resolve) -> Conversion:
    """The HIP twin of one file. path: relative to the tree, for its kind and its includes."""
    result = Conversion(text)
    masked = mask(text)
    lines = Lines(text)
    edits: list[Edit] = []
    code = masked
    for start, end, name, quoted in _includes(text, masked):
        new, found = resolve(path, name, quoted)
        result.includes.append(Include(*lines.at(start), new, quoted, found))
        code = code[:start] + " " * (end - start) + code[end:]
        if new != name:
            edits.append((start + 1, end - 1, new))
    edits += engine.replacements(code)
    result.replaced = len(edits)
    if edits:
        text, masked = _edited(text, edits), _edited(masked, edits)

    if "<<<" in masked:
        code = flatten(masked)
        lines = Lines(text)
        edits = []
        after = 0
        while (launch := code.find("<<<", after)) >= 0:
            try:
                edits.append(_launch_edit(text, code, launch))
                after = edits[-1][1]
            except _Unparsed as err:
                message = f"this kernel launch cannot be converted: {err}"
                result.problems.append(Problem(*lines.at(launch), "launch", "error", message))
                after = launch + 3
        result.launches = len(edits)
        text = _edited(text, edits)
        masked = mask(text)

    if "__shared__" in masked:
        edits, problems = _shared_edits(text, flatten(masked), Lines(text).at)
        result.problems += problems
        text = _edited(text, edits)

    device = path.endswith(".cu") or _DEVICE_CODE.search(masked)
    if device and all(include.name != HIP_RUNTIME for include in result.includes):
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        end_of_line = "\r\n" if text[: text.find("\n") + 1].endswith("\r\n") else "\n"
        text = f'{mark}#include "{HIP_RUNTIME}"{end_of_line}#line 1{end_of_line}{text[len(mark) :]}'
        result.shift = 2
    result.text = text
    return result


# -------------------------------------------------------------------------------------------- script


def _work(job: Mapping[str, Any]) -> dict[str, Any]:
    source, target = Path(job["source"]), Path(job["target"])
    try:
        engine = load_engine(Path(job["engine"]))
    except Exception as err:  # an engine is code that somebody else wrote
        return {"engine": f"{type(err).__name__}: {err}"}
    outputs: dict[str, str] = job["outputs"]
    resolve = resolver(outputs, job["include_dirs"], engine)
    convertible = set(job["convert"])
    files = []
    for name, output in outputs.items():
        entry: dict[str, Any] = {"source": name, "output": output}
        try:
            data = (source / name).read_bytes()
            if name in convertible:
                if b"\0" in data:
                    raise ValueError(f"NUL byte at offset {data.index(0)}: not a source in UTF-8 or Latin-1")
                done = convert(decode(data), name, engine, resolve)
                new = encode(done.text)
                entry.update(
                    status="converted" if new != data else "unchanged",
                    launches=done.launches,
                    replaced=done.replaced,
                    shift=done.shift,
                    problems=[vars(problem) for problem in done.problems],
                    includes=[vars(include) for include in done.includes],
                )
                data = new
            else:
                entry.update(status="copied", launches=0, replaced=0, shift=0, problems=[], includes=[])
            path = target / output
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
        except OSError as err:
            entry.update(status="failed", reason=err.strerror or str(err), errno=err.errno)
        except Exception as err:  # one bad file is reported by its name, and the others too
            entry.update(status="failed", reason=f"{type(err).__name__}: {err}")
        files.append(entry)
    return {"files": files}


def _die_with(parent: int) -> None:
    """End with the process that asked, however that ends: nobody is left to write into a folder given up."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the process that asked for this is gone")


def main() -> int:
    """Read the job as JSON from standard input and write the result as JSON to standard output."""
    job = json.load(sys.stdin)
    _die_with(job["parent"])
    result, sys.stdout = sys.stdout, sys.stderr  # whatever an engine prints, it is no result
    json.dump(_work(job), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
