"""The conversion of one file from CUDA to HIP. Pure: text in, text out.

The names, headers and types that are replaced come from the tables of the engine, torch's own hipify or hipify_torch.
Together with text.py, layout.py and checks.py this is what the subprocess loads, so it imports little.

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

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rocmbuild.staging.layout import Resolver
from rocmbuild.staging.text import Edit, edited, flatten, is_word, line_column, literals, mask, uses

__all__ = ["DEVICE_KINDS", "Conversion", "Engine", "Include", "Problem", "convert", "resolving"]

DEVICE_KINDS = (".cu", ".cuh", ".hip")
"""File kinds that hold device code by their name."""

HIP_RUNTIME = "hip/hip_runtime.h"

# -------------------------------------------------------------------------------------------- engine


class Engine(NamedTuple):
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
        return edited(text, self.replacements(text))[len("#include <") : -1]

    def replacements(self, code: str) -> list[Edit]:
        """Where code, given without comments and literals, names something of CUDA's."""
        edits: list[Edit] = []
        spans: list[tuple[int, int]] = []
        known = set(_WORD.findall(code))
        for word in known & self.phrases.keys():
            for start in uses(code, word):
                for key, new in self.phrases[word]:
                    end = start + len(key)
                    # A key such as `cub::` ends in no word, and what follows it is the rest of the name.
                    if code.startswith(key, start) and not (is_word(key, len(key) - 1) and is_word(code, end)):
                        edits.append((start, end, new))
                        spans.append((start, end))
                        break
        for word in known & self.names.keys():
            new, length = self.names[word], len(word)
            edits += [
                (start, start + length, new)
                for start in uses(code, word)
                if not any(first <= start < end for first, end in spans)
            ]
        return sorted(edits)


_WORD = re.compile(r"[A-Za-z_]\w*")


# ------------------------------------------------------------------------------------------ outcomes


class Problem(NamedTuple):
    """Something that could not be converted; line and column are the source's, counted from 1."""

    line: int
    column: int
    rule: str
    detail: str


class Include(NamedTuple):
    """An include. asked, name: its file before and after conversion; both are the macro's where one names the file.

    kind: "staged" (a file of the tree), "other" (a file of the system or of nobody), "computed" (a macro names it).
    target: the path of the staged source; empty for the other kinds.
    """

    line: int
    column: int
    asked: str
    name: str
    quoted: bool
    kind: str
    target: str = ""


class Conversion:
    """What became of one file. masked: the text without comments and literals. shift: lines added at the top."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.masked = ""
        self.launches = 0
        self.replaced = 0
        self.shift = 0
        self.problems: list[Problem] = []
        self.includes: list[Include] = []


Resolve = Callable[[str, str, bool], "tuple[str, str]"]
"""(including file, name, quoted) -> (the name to write, the path of the staged source that it names or "")."""


# ------------------------------------------------------------------------------------------ includes

_INCLUDE = re.compile(r"#[ \t]*include(?:_next)?\b[ \t]*")
_TARGET = re.compile(r'"([^"\n]+)"|<([^>\n]+)>|([A-Za-z_]\w*)[ \t]*\r?$', re.MULTILINE)


def _includes(text: str, masked: str) -> list[tuple[int, int, str, str]]:
    """(start, end, name, mark) of each include's target; mark is its first character, a letter for a macro."""
    found = []
    for match in _INCLUDE.finditer(masked):
        if masked[masked.rfind("\n", 0, match.start()) + 1 : match.start()].strip(" \t\ufeff"):
            continue
        target = _TARGET.match(text, match.end())
        if target:
            found.append((target.start(), target.end(), target[1] or target[2] or target[3], text[target.start()]))
    return found


def resolving(resolver: Resolver, engine: Engine) -> Resolve:
    """How includes are rewritten: to a staged file, else by the tables."""

    def resolve(includer: str, name: str, quoted: bool) -> tuple[str, str]:
        staged = resolver.staged(includer, name, quoted)
        return (engine.include(name), "") if staged is None else staged

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
    while index >= 0 and is_word(code, index):
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


def _shared_edits(text: str, code: str) -> tuple[list[Edit], list[Problem]]:
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
                    problems.append(Problem(*line_column(text, match.start()), "dynamic-shared", ""))
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

_DEVICE_CODE = ("hipLaunchKernelGGL", "__global__", "__shared__", "HIP_DYNAMIC_SHARED", "__syncthreads")


def convert(text: str, path: str, engine: Engine, resolve: Resolve) -> Conversion:
    """The HIP twin of one file. path: relative to the tree, for its kind and its includes."""
    source, source_masked = text, mask(text)
    masked = source_masked
    result = Conversion(text)
    edits: list[Edit] = []
    code = masked
    for start, end, name, mark in _includes(text, masked):
        line, column = line_column(text, start)
        if mark not in '"<':
            result.includes.append(Include(line, column, name, name, False, "computed"))
            continue
        new, target = resolve(path, name, mark == '"')
        kind = "staged" if target else "other"
        result.includes.append(Include(line, column, name, new, mark == '"', kind, target))
        code = code[:start] + " " * (end - start) + code[end:]
        if new != name:
            edits.append((start + 1, end - 1, new))
    edits += engine.replacements(code)
    result.replaced = len(edits)
    if edits:
        text, masked = edited(text, edits), edited(masked, edits)

    if "<<<" in masked:
        code = flatten(masked)
        edits, blank = [], []
        after = 0
        while (launch := code.find("<<<", after)) >= 0:
            try:
                edits.append(_launch_edit(text, code, launch))
                blank.append(_launch_edit(masked, code, launch))
                after = edits[-1][1]
            except _Unparsed as err:
                result.problems.append(Problem(*line_column(text, launch), "launch", str(err)))
                after = launch + 3
        result.launches = len(edits)
        if edits:
            text, masked = edited(text, edits), edited(masked, blank)

    if "__shared__" in masked:
        edits, problems = _shared_edits(text, flatten(masked))
        result.problems += problems
        if edits:
            text = edited(text, edits)
            masked = mask(text)

    if text != source:
        result.problems += _changed_literals(source, source_masked, text, masked)

    device = path.endswith(".cu") or any(word in masked for word in _DEVICE_CODE)
    if device and all(include.name != HIP_RUNTIME for include in result.includes):
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        end_of_line = "\r\n" if text[: text.find("\n") + 1].endswith("\r\n") else "\n"
        added = f'{mark}#include "{HIP_RUNTIME}"{end_of_line}#line 1{end_of_line}'
        text, masked = added + text[len(mark) :], added + masked[len(mark) :]
        result.shift = 2
    result.text, result.masked = text, masked
    return result


def _changed_literals(source: str, source_masked: str, text: str, masked: str) -> list[Problem]:
    """The guard of the first rule: what stands in string literals is not CUDA's to rename. At most one problem."""
    before, after = literals(source, source_masked), literals(text, masked)
    for (offset, old), (_, new) in zip(before, after, strict=False):
        if old != new:
            message = f"a string literal was rewritten, from {old[:40]!r} to {new[:40]!r}"
            return [Problem(*line_column(source, offset), "string-literal", message)]
    if len(before) != len(after):
        return [Problem(1, 1, "string-literal", f"{len(before)} string literals became {len(after)}")]
    return []
