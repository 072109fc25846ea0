"""What HIPify leaves behind that would go wrong later, told at its line. Pure: text in, findings out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from rocmbuild.staging.worker import DEVICE_KINDS, Include, Lines, Problem, flatten, mask

__all__ = ["Converted", "Finding", "check_tree", "live_code"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. path, line and column are those of the user's source; line and column count from 1.

    severity: "error" stops a build, "warning" does not. hint: the next step.
    """

    path: str
    line: int
    column: int
    rule: str
    severity: str
    message: str
    hint: str

    def to_json(self) -> dict[str, Any]:
        """As written into reports."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.severity}: {self.message} [{self.rule}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """One file as the checks want it: the source's text, the HIP text, and the lines added in front of it."""

    path: str
    source: str
    hip: str
    shift: int
    problems: Sequence[Problem] = ()
    includes: Sequence[Include] = ()


# --------------------------------------------------------------------------------------- live code

_DIRECTIVE = re.compile(
    r"^[ \t\ufeff]*#[ \t]*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif|pragma|error|warning|line)\b(.*)$", re.M
)
_DEFINED = {"__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__", "USE_ROCM", "__AMDGCN__"}
_DEFINED_IN_DEVICE_FILES = {"__HIPCC__", "__HIP__"}
_UNDEFINED = {
    *("__CUDA_ARCH__", "__CUDACC__", "__NVCC__", "__CUDACC_RTC__", "__HIP_PLATFORM_NVIDIA__", "__HIP_PLATFORM_NVCC__"),
    *("CUDART_VERSION", "ROCMBUILD_PLATFORM_CUDA", "_MSC_VER", "_WIN32", "__APPLE__", "__GFX8__", "__GFX9__"),
}
_WORDS = re.compile(r"0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|&&|\|\||[=!<>]=|[!<>()]|\S")


def _condition(text: str, defined: Set[str], undefined: Set[str]) -> bool | None:
    """Whether a preprocessor condition holds when compiling for HIP; None where that is not known here."""
    words = _WORDS.findall(text)
    index = 0

    def known(name: str) -> int | None:
        return 1 if name in defined else 0 if name in undefined else None

    def peek() -> str:
        return words[index] if index < len(words) else ""

    def take() -> str:
        nonlocal index
        index += 1
        return words[index - 1] if index <= len(words) else ""

    def primary() -> int | None:
        word = take()
        if word == "!":
            value = primary()
            return None if value is None else int(not value)
        if word == "(":
            value = either()
            if take() != ")":
                raise ValueError
            return value
        if word == "defined":
            bracket = peek() == "("
            if bracket:
                take()
            value = known(take())
            if bracket:
                take()
            return value
        if word[:1].isdigit():
            while peek() in ("L", "U", "l", "u"):
                take()
            return int(word, 0) if word != "0" * len(word) else 0
        if word[:1].isalpha() or word[:1] == "_":
            if peek() == "(":
                raise ValueError
            return known(word)
        raise ValueError

    def compared() -> int | None:
        left = primary()
        while peek() in ("==", "!=", "<", ">", "<=", ">="):
            operator, right = take(), primary()
            if left == 0 and right is None:
                right = 1  # `__CUDA_ARCH__ >= SOME_ARCHITECTURE`: whatever it stands for, it is more than nothing
            if left is None or right is None:
                left = None
            else:
                left = int(
                    {"==": left == right, "!=": left != right, "<": left < right}.get(operator, False)
                    or {">": left > right, "<=": left <= right, ">=": left >= right}.get(operator, False)
                )
        return left

    def both() -> int | None:
        value = compared()
        while peek() == "&&":
            take()
            right = compared()
            value = 0 if value == 0 or right == 0 else None if value is None or right is None else 1
        return value

    def either() -> int | None:
        value = both()
        while peek() == "||":
            take()
            right = both()
            value = 1 if value or right else None if value is None or right is None else 0
        return value

    try:
        result = either()
        return None if result is None or index < len(words) else bool(result)
    except (ValueError, RecursionError):
        return None


def live_code(path: str, code: str, undefined: Set[str] = _UNDEFINED) -> str:
    """Flattened, masked code with what cannot reach a HIP compiler blanked: conditions and dead branches.

    A condition that is not decidable from the well-known macros counts as true in all its branches.
    """
    device = path.endswith((".cu", ".cuh", ".hip", ".h", ".hpp", ".hh", ".hxx", ".inc", ".inl"))
    defined = _DEFINED | (_DEFINED_IN_DEVICE_FILES if device else set())
    out: list[str] = []
    stack: list[tuple[bool | None, bool]] = []  # what was true of the chain so far, whether the outside is live
    last = 0
    live = True

    def copy(part: str) -> str:
        return part if live else re.sub(r"[^\n]", " ", part)

    for match in _DIRECTIVE.finditer(code):
        out.append(copy(code[last : match.start()]))
        out.append(" " * (match.end() - match.start()))
        last = match.end()
        word, rest = match.groups()
        if word in ("if", "ifdef", "ifndef"):
            value = _condition(
                rest if word == "if" else f"defined({rest.split()[0] if rest.split() else ''})", defined, undefined
            )
            if word == "ifndef" and value is not None:
                value = not value
            stack.append((value, live))
            live = live and value is not False
        elif word in ("elif", "elifdef", "elifndef", "else") and stack:
            chain, outside = stack[-1]
            if word == "else":
                value = True
            else:
                value = _condition(rest if word == "elif" else f"defined({rest})", defined, undefined)
                if word == "elifndef" and value is not None:
                    value = not value
            live = outside and chain is not True and value is not False
            stack[-1] = (
                True if chain is True or value is True else None if chain is None or value is None else False,
                outside,
            )
        elif word == "endif" and stack:
            live = stack.pop()[1]
    out.append(copy(code[last:]))
    return "".join(out)


_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)", re.M)


def _live_tree(texts: Mapping[str, str]) -> dict[str, str]:
    """live_code of every file; a macro that the tree defines in dead branches alone counts as undefined."""
    codes = {path: flatten(mask(text)) for path, text in texts.items()}
    macros = {name for code in codes.values() for name in _MACRO.findall(code)}
    undefined: Set[str] = _UNDEFINED
    while True:
        live = {path: live_code(path, code, undefined) for path, code in codes.items()}
        dead = macros - {name for code in live.values() for name in _MACRO.findall(code)}
        if dead <= undefined:
            return live
        undefined = undefined | dead


# ------------------------------------------------------------------------------------------- rules

# No \b in front, so that the search leaps; a match within a word is passed over.
_LEFTOVER = re.compile(
    r"(?:cuda[A-Z]|CUDART_|cu[A-Z]|(?:cublas|cudnn|curand|cusparse|cusolver|cufft|cutensor|cufile|cupti)[A-Z]"
    r"|nv(?:tx|rtc|ml|JitLink)[A-Z]|__nv_\w|nv_(?:bfloat162?\b|half2?\b|fp8)|cub(?=\s*::)|nv(?:cuda|tx3)(?=\s*::))\w*"
)
_CUDA_HEADER = re.compile(
    r"(?:cuda|cublas|cudnn|curand|cusparse|cusolver|cufft|cutensor|cufile|cupti|cub/|cute/|cutlass/|nvToolsExt|nvtx3|nvrtc|nvml|nvJit"
    r"|mma\.h|sm_\d+_|device_launch_parameters\.h|math_constants\.h|crt/|cooperative_groups|c10/cuda/|ATen/cuda/|thrust/system/cuda/).*"
)
_SHUFFLE = re.compile(
    r"\b(__(?:shfl(?:_up|_down|_xor)?|all|any|ballot|match_any|match_all|reduce_(?:add|min|max|and|or|xor))_sync)\s*\(\s*"
)
_SYNCWARP = re.compile(r"\b(__syncwarp)\s*\(\s*(?=[^)\s])")
_LITERAL = re.compile(r"[-~]?\s*(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlL]*\Z")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_WAVE_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w*(?:warp|wave(?:front)?)_?size\w*)[ \t]+\(?64[uUlL]*\)?[ \t]*$", re.M | re.I
)
_WAVE_CONSTANT = re.compile(
    r"\b(?:const|constexpr|enum)\b[^;={}()]*[\s{]\s*(\w*(?:warp|wave(?:front)?)_?size\w*)\s*(?:=\s*|\{\s*)64[uUlL]*\b",
    re.I,
)
_WARPSIZE = re.compile(
    r"\bconstexpr\b[^;{}()]*=[^;{}]*\bwarpSize\b|\b__shared__\b[^;={}()]*\[[^];]*\bwarpSize\b|\w<\s*warpSize\s*[,>]|\bstatic_assert\s*\([^;]*\bwarpSize\b"
)
_LANES_OF_64 = re.compile(r"\bthreadIdx\s*\.\s*[xyz]\s*\)*\s*(>>\s*6|/\s*64|%\s*64|&\s*(?:63|0x3[fF]))\b")
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile\b|__volatile__\b)?\s*\(")
_PTX = re.compile(
    r"(?<![\w.])[a-z][a-z0-9]+\.[a-z]|%(?:laneid|warpid|smid|tid|ntid|ctaid|globaltimer|clock|lanemask|gridid)|\b(?:trap|exit|brkpt)\s*;"
)
_DEVICE = re.compile(r"\b__(?:device|global)__\b")
_NOT_TYPES = frozenset(
    ("return", "else", "case", "throw", "new", "delete", "goto", "sizeof", "operator", "co_return", "do", "if", "while")
)
_NARROW_TYPES = frozenset(("unsigned", "unsigned int", "int", "uint32_t", "int32_t", "uint", "std::uint32_t"))

_ALLOW = "port it, keep it in an `#ifndef USE_ROCM` branch, or allow it by name"
_MASK_HINT = "write the mask as a 64-bit value, such as 0xffffffffull"


def _literal_is_32_bit(text: str) -> bool:
    """Whether an integer literal, maybe with - or ~, has a type of at most 32 bits."""
    bare = text.strip().lstrip("-~ ")
    digits = bare.rstrip("uUlL")
    return "l" not in bare[len(digits) :].lower() and int(digits, 8 if re.fullmatch(r"0\d+", digits) else 0) < 1 << 32


class _Names:
    """What the tree itself declares: names that are the project's own, and the width of its masks."""

    def __init__(self, live: Mapping[str, str]) -> None:
        self.live = live
        self._macros: dict[str, bool] = {}

    def own(self, name: str) -> bool:
        """Whether the tree declares this name, so that it is no CUDA name for all its looks."""
        return any(
            _declares(code, start, start + len(name)) for code in self.live.values() for start in _uses(code, name)
        )

    def macro(self, name: str) -> bool:
        """Whether the tree defines a macro of this name."""
        if name not in self._macros:
            self._macros[name] = any(
                _defines(code, start) for code in self.live.values() for start in _uses(code, name)
            )
        return self._macros[name]

    def narrow_mask(self, path: str, name: str) -> bool:
        """Whether every definition of this mask is known and at most 32 bits wide; the file's own hide the others."""
        quoted = re.escape(name)
        macro = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+{quoted}[ \t]+(\S.*)$", re.M)
        variable = re.compile(rf"\b(unsigned(?:\s+int)?|[A-Za-z_][\w:]*(?:\s+long)*)\s+{quoted}\s*[=,;){{]")
        widths: list[bool] = []
        for codes in ([self.live[path]], self.live.values()):
            for code in codes:
                if name not in code:
                    continue
                for match in macro.finditer(code):
                    value = match.group(1).strip().strip("()")
                    widths.append(bool(_LITERAL.match(value)) and _literal_is_32_bit(value))
                for match in variable.finditer(code):
                    kind = re.sub(r"\s+", " ", match.group(1))
                    if kind not in _NOT_TYPES:
                        widths.append(kind in _NARROW_TYPES)
            if widths:
                break
        return bool(widths) and all(widths)


def _uses(code: str, name: str) -> Iterator[int]:
    """Where a name stands as a whole word."""
    start = code.find(name)
    while start >= 0:
        end = start + len(name)
        if not _is_word(code, start - 1) and not _is_word(code, end):
            yield start
        start = code.find(name, end)


def _is_word(code: str, index: int) -> bool:
    return 0 <= index < len(code) and (code[index].isalnum() or code[index] == "_")


def _defines(code: str, start: int) -> bool:
    """Whether the name at start is that of a macro being defined."""
    return re.search(r"^[ \t\ufeff]*#[ \t]*define[ \t]+\Z", code[code.rfind("\n", 0, start) + 1 : start]) is not None


def _declares(code: str, start: int, end: int) -> bool:
    """Whether the name at start:end is declared there, as far as its neighbours tell."""
    line = code[code.rfind("\n", 0, start) + 1 : start]
    if line.lstrip(" \t\ufeff").startswith("#"):
        return _defines(code, start)
    before = code[max(0, start - 200) : start]
    bare = before.rstrip(" \t\r\n*&")
    between = before[len(bare) :]
    follow = code[end : end + 80].lstrip()[:1]
    word = re.search(r"[A-Za-z_]\w*\Z", bare)
    if word and word.group() in ("struct", "class", "enum", "union", "namespace", "using", "concept"):
        return True
    if (
        not between
        or follow not in tuple("(=;,)[{:")
        or (re.search(r"[*&]", between) and between[0] == " " and between[-1] == " ")
    ):
        return False  # `flags & name` is an expression, `T* name` a declaration
    if word:
        return word.group() not in _NOT_TYPES
    return re.search(r"[\w>*&]>\Z", bare) is not None


def _argument(code: str, start: int) -> str:
    """The call's argument that begins at start."""
    depth = 0
    for index in range(start, min(len(code), start + 400)):
        char = code[index]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                return code[start:index]
            depth -= 1
        elif char == "," and depth == 0:
            return code[start:index]
    return ""


def _narrow(argument: str, names: _Names, path: str) -> bool:
    """Whether a mask argument has at most 32 bits, as far as the tree tells."""
    text = argument.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if _LITERAL.match(text):
        return _literal_is_32_bit(text)
    if re.match(r"\(?\s*(?:unsigned(?:\s+int)?|int|uint32_t)\s*\)", argument.strip()):
        return True
    return bool(_NAME.match(text)) and names.narrow_mask(path, text)


def check_tree(files: Sequence[Converted], *, allow: Iterable[str] = ()) -> tuple[list[Finding], Mapping[str, int]]:
    """All findings, sorted, and how many CUDA names each file has left over (allowed ones too).

    allow: names that may stay, as they stand in the source.
    """
    allowed = set(allow)
    live = _live_tree({file.path: file.hip for file in files})
    names = _Names(live)
    own: dict[str, bool] = {}
    findings: list[Finding] = []
    leftovers: Counter[str] = Counter()
    for file in files:
        code = live[file.path]
        lines = Lines(file.hip)
        source_lines = file.source.split("\n")
        alive = code.split("\n")

        def add(  # noqa: PLR0917 - one line for each finding reads better
            offset: int,
            rule: str,
            severity: str,
            message: str,
            hint: str,
            token: str = "",
            *,
            file: Converted = file,
            lines: Lines = lines,
            source_lines: list[str] = source_lines,
        ) -> None:
            line, column = lines.at(offset)
            line = max(1, line - file.shift)
            original = source_lines[line - 1].find(token) if token and line <= len(source_lines) else -1
            findings.append(
                Finding(
                    path=file.path,
                    line=line,
                    column=original + 1 if original >= 0 else column,
                    rule=rule,
                    severity=severity,
                    message=message,
                    hint=hint,
                )
            )

        for match in _LEFTOVER.finditer(code):
            name = match.group()
            if _is_word(code, match.start() - 1):
                continue
            if name not in own:
                own[name] = names.own(name)
            if own[name]:
                continue
            leftovers[file.path] += 1
            if name not in allowed:
                add(match.start(), "leftover", "error", f"{name} has no HIP twin and is left over", _ALLOW, name)
        for pattern in (_SHUFFLE, _SYNCWARP) if "__s" in code or "_sync" in code else ():
            for match in pattern.finditer(code):
                argument = _argument(code, match.end())
                if names.macro(match.group(1)):
                    continue  # a wrapper of the project's own
                if _narrow(argument, names, file.path):
                    message = f"{match.group(1)} has a mask of 32 bits, {argument.strip()}; HIP takes 64 bits only"
                    add(match.start(1), "shuffle-mask", "error", message, _MASK_HINT, match.group(1))
        wave_sizes = [*_WAVE_MACRO.finditer(code), *_WAVE_CONSTANT.finditer(code)] if "64" in code else []
        for match in wave_sizes:
            message = f"{match.group(1)} is 64; Radeon waves have 32 lanes"
            add(match.start(1), "wave-size", "error", message, "use 32", match.group(1))
        for match in _WARPSIZE.finditer(code) if "warpSize" in code else ():
            offset = match.start() + match.group().index("warpSize")
            message = "warpSize is used as a constant; in HIP it is none"
            add(offset, "wave-size", "error", message, "use a constant of your own that is 32", "warpSize")
        for match in _LANES_OF_64.finditer(code) if "threadIdx" in code else ():
            message = f"`{match.group(1)}` on a thread index looks like a wave of 64 lanes; Radeon waves have 32"
            hint = "nothing to do where 64 is a tile of your own"
            add(match.start(), "wave-size", "warning", message, hint, match.group(1))
        device = file.path.endswith(DEVICE_KINDS) or _DEVICE.search(code)
        for match in _ASM.finditer(code) if "asm" in code else ():
            closing = len(_argument_list(code, match.end()))
            body = file.hip[match.end() : match.end() + closing]
            template = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', body.split(":")[0] if '"' in body else ""))
            if _PTX.search(template) and device:
                message = f"inline PTX: {template[:40]!r}"
                hint = "write it in C++ or with an AMD builtin, and keep the PTX in an `#ifndef USE_ROCM` branch"
                add(match.start(), "inline-ptx", "error", message, hint, "asm")
        for include in file.includes:
            # blanked in the live code where its branch is dead: the directive's word tells
            if "include" not in alive[include.line - 1 + file.shift]:
                continue
            shown = f'"{include.name}"' if include.quoted else f"<{include.name}>"
            offset = lines.starts[include.line - 1 + file.shift] + include.column - 1
            if include.found or include.name in allowed:
                continue
            if _CUDA_HEADER.match(include.name):
                leftovers[file.path] += 1
                add(offset, "cuda-include", "error", f"the CUDA header {shown} has no HIP twin", _ALLOW, shown)
            elif include.quoted and include.name.endswith((".cu", ".cuh")):
                hint = "add its folder to include-dirs"
                add(offset, "include", "error", f"{shown} is not among the staged files", hint, shown)
        for problem in file.problems:
            if not alive[min(problem.line - 1 + file.shift, len(alive) - 1)].strip():
                continue
            hint = "write the launch out plainly" if problem.rule == "launch" else "use `extern __shared__ T name[];`"
            findings.append(
                Finding(
                    path=file.path,
                    line=problem.line,
                    column=problem.column,
                    rule=problem.rule,
                    severity=problem.severity,
                    message=problem.message,
                    hint=hint,
                )
            )
    findings.sort(key=lambda found: (found.path, found.line, found.column, found.rule))
    return findings, leftovers


def _argument_list(code: str, start: int) -> str:
    """What stands in the parentheses that opened just before start."""
    depth = 0
    for index in range(start, len(code)):
        if code[index] == "(":
            depth += 1
        elif code[index] == ")":
            if depth == 0:
                return code[start:index]
            depth -= 1
    return code[start:]
