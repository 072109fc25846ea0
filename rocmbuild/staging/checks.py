"""What HIPify leaves behind that would go wrong later, told at its line: the facts of one file. Text in, facts out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set

from rocmbuild.staging.convert import DEVICE_KINDS, Include, Problem
from rocmbuild.staging.facts import UNDEFINED, Facts, Macros
from rocmbuild.staging.text import Lines, flatten, is_word, mask, uses

__all__ = ["examine", "live_code"]

# --------------------------------------------------------------------------------------- live code

_DIRECTIVE = re.compile(r"#[ \t]*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif|pragma|error|warning|line)\b(.*)")
_DEFINED = {"__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__", "USE_ROCM", "__AMDGCN__"}
_DEFINED_IN_DEVICE_FILES = {"__HIPCC__", "__HIP__"}
_WORDS = re.compile(r"0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|&&|\|\||[=!<>]=|[!<>()]|\S")


def _condition(text: str, defined: Mapping[str, int | None], undefined: Set[str]) -> bool | None:
    """Whether a preprocessor condition holds when compiling for HIP; None where that is not known here.

    defined: macros and their values, None for a value that is no number.
    """
    words = _WORDS.findall(text)
    index = 0

    def known(name: str) -> int | None:
        return 1 if name in defined else 0 if name in undefined else None

    def value_of(name: str) -> int | None:
        return defined.get(name, 0 if name in undefined else None)

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
            return value_of(word)
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


def _given(path: str, defines: Mapping[str, str]) -> dict[str, int | None]:
    """Macros that are surely defined when a file is compiled for HIP, and their values."""
    device = path.endswith((".cu", ".cuh", ".hip", ".h", ".hpp", ".hh", ".hxx", ".inc", ".inl"))
    known: dict[str, int | None] = {
        name: int(text, 0) if re.fullmatch(r"0[xX][0-9a-fA-F]+|[1-9]\d*|0", text) else None
        for name, text in defines.items()
    }
    return {**known, **dict.fromkeys(_DEFINED | (_DEFINED_IN_DEVICE_FILES if device else set()), 1)}


def live_code(path: str, code: str, *, macros: Macros | None = None, defines: Mapping[str, str] | None = None) -> str:
    """Flattened, masked code with what cannot reach a HIP compiler blanked: conditions and dead branches.

    macros, defines: what is known beside the well-known ones. A condition that is not decidable counts as true in all
    its branches.
    """
    defined = _given(path, defines or {})
    macros = macros or Macros()
    undefined = UNDEFINED.difference(macros.unknown).union(macros.undefined).difference(defined)
    out: list[str] = []
    stack: list[tuple[bool | None, bool]] = []  # what was true of the chain so far, whether the outside is live
    last = 0
    live = True

    def copy(part: str) -> str:
        return part if live else _blank(part)

    for match in _DIRECTIVE.finditer(code):
        if code[code.rfind("\n", 0, match.start()) + 1 : match.start()].strip(" \t\ufeff"):
            continue
        out.append(copy(code[last : match.start()]))
        out.append(" " * (match.end() - match.start()))
        last = match.end()
        word, rest = match.groups()
        if word in ("if", "ifdef", "ifndef"):
            if not live:
                value: bool | None = None  # nothing in there is live, whatever it says
            else:
                value = _condition(rest if word == "if" else _first_word(rest), defined, undefined)
                if word == "ifndef" and value is not None:
                    value = not value
            stack.append((value, live))
            live = live and value is not False
        elif word in ("elif", "elifdef", "elifndef", "else") and stack:
            chain, outside = stack[-1]
            if word == "else":
                value = True
            elif not outside:
                value = None
            else:
                value = _condition(rest if word == "elif" else _first_word(rest), defined, undefined)
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


_NOT_NEWLINE = re.compile(r"[^\n]+")


def _blank(part: str) -> str:
    return _NOT_NEWLINE.sub(lambda match: " " * len(match.group()), part)


def _first_word(rest: str) -> str:
    words = rest.split(None, 1)
    return f"defined({words[0]})" if words else "defined()"


def _conditions(code: str) -> list[str]:
    """The macros that the conditions of a file name, but for those that are surely defined."""
    named: set[str] = set()
    for match in _DIRECTIVE.finditer(code):
        if match[1] in ("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef"):
            named.update(_NAMES.findall(match[2]))
    return sorted(named - _DEFINED - _DEFINED_IN_DEVICE_FILES - {"defined"})


_NAMES = re.compile(r"[A-Za-z_]\w*")
_MACRO = re.compile(r"#[ \t]*define[ \t]+([A-Za-z_]\w*)(?:[ \t]+(\S.*))?")


# ------------------------------------------------------------------------------------------- rules

# Patterns begin with literal characters, without \b in front, so that the search leaps; a match within a word is
# passed over by the code.
_LEFTOVER = re.compile(
    r"(?:cuda[A-Z]|CUDART_|cu[A-Z]|(?:cublas|cudnn|curand|cusparse|cusolver|cufft|cutensor|cufile|cupti)[A-Z]"
    r"|nv(?:tx|rtc|ml|JitLink)[A-Z]|__nv_\w|nv_(?:bfloat162?\b|half2?\b|fp8)|cub(?=\s*::)|nv(?:cuda|tx3)(?=\s*::)"
    r"|CUDA_[RC]_\d|CUDA_SUCCESS\b|CUDA_ERROR_[A-Z]|CU_[A-Z]|NVRTC_[A-Z]|NVML_[A-Z]"
    r"|(?:CUBLAS|CUBLASLT|CUDNN|CURAND|CUSPARSE|CUSOLVER|CUFFT|CUTENSOR)_[A-Z])\w*"
)
_CUDA_HEADER = re.compile(
    r"(?:cuda|cublas|cudnn|curand|cusparse|cusolver|cufft|cutensor|cufile|cupti|cub/|cute/|cutlass/|nvToolsExt|nvtx3|nvrtc|nvml|nvJit"
    r"|mma\.h|sm_\d+_|device_launch_parameters\.h|math_constants\.h|crt/|cooperative_groups|c10/cuda/|ATen/cuda/|thrust/system/cuda/).*"
)
# Headers of device code that come with torch or ROCm.
_LIBRARIES = ("ATen/", "c10/", "caffe2/", "torch/", "hip/", "hipcub/", "rocprim/", "thrust/")
_SHUFFLE = re.compile(
    r"(__(?:shfl(?:_up|_down|_xor)?|all|any|ballot|match_any|match_all|reduce_(?:add|min|max|and|or|xor))_sync|"
    r"__syncwarp(?=\s*\(\s*[^)\s]))\s*\(\s*"
)
_LITERAL = re.compile(r"[-~]?\s*(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlL]*\Z")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_WAVE_NAME = re.compile(r"\w*(?:warp|wave(?:front)?)_?size\w*\Z", re.I)
_IS_64 = re.compile(r"\(?64[uUlL]*\)?\s*\Z")
_SET_TO_64 = re.compile(r"[={]\s*64[uUlL]*\b")
_WAVE_CONSTANT = re.compile(
    r"\b(?:const|constexpr|enum)\b[^;={}()]*[\s{]\s*(\w*(?:warp|wave(?:front)?)_?size\w*)\s*\Z", re.I
)
_CONSTANT_CONTEXT = re.compile(r"\bconstexpr\b[^()]*=|\b__shared__\b[^=()]*\[[^]]*\Z|\bstatic_assert\s*\(")
_VECTOR = r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]"
_VECTOR_OPERATOR = re.compile(
    rf"\boperator\s*((?:[-+*/%&|^]|<<|>>)=?|==|!=)\s*\(\s*(?:const\s+)?({_VECTOR})\b[^,()]*,\s*(?:const\s+)?\2\b[^,()]*\)"
)
_LANES_OF_64 = re.compile(r"threadIdx\s*\.\s*[xyz]\s*\)*\s*(>>\s*6|/\s*64|%\s*64|&\s*(?:63|0x3[fF]))\b")
_ASM = re.compile(r"asm(?:__)?\b\s*(?:volatile\b|__volatile__\b)?\s*\(")
_PTX = re.compile(
    r"(?<![\w.])[a-z][a-z0-9]+\.[a-z]|%(?:laneid|warpid|smid|tid|ntid|ctaid|globaltimer|clock|lanemask|gridid)|\b(?:trap|exit|brkpt)\s*;"
)
_DEVICE = re.compile(r"__(?:device|global)__\b")
_NOT_TYPES = frozenset(
    ("return", "else", "case", "throw", "new", "delete", "goto", "sizeof", "operator", "co_return", "do", "if", "while")
)
_NARROW_TYPES = frozenset(("unsigned", "unsigned int", "int", "uint32_t", "int32_t", "uint", "std::uint32_t"))


def _literal_is_32_bit(text: str) -> bool:
    """Whether an integer literal, maybe with - or ~, has a type of at most 32 bits."""
    bare = text.strip().lstrip("-~ ")
    digits = bare.rstrip("uUlL")
    return "l" not in bare[len(digits) :].lower() and int(digits, 8 if re.fullmatch(r"0\d+", digits) else 0) < 1 << 32


_QUALIFIER = re.compile(r"\b(?:static|inline|volatile|const|constexpr|extern|__device__|__constant__|__host__)\b")
_CONSTANT = re.compile(r"const(?:expr)?\b([^;=(){}]*?[\s*&])([A-Za-z_]\w*)\s*[={]")


def _constants(code: str) -> dict[str, bool]:
    """Macros with a value and constants of live code -> whether their value is known to have at most 32 bits."""
    narrow: dict[str, bool] = {}

    def add(name: str, value: bool) -> None:
        narrow[name] = value and narrow.get(name, True)

    for match in _MACRO.finditer(code):
        if match[2] is not None:
            value = match[2].strip().strip("()")
            add(match[1], bool(_LITERAL.match(value)) and _literal_is_32_bit(value))
    for match in _CONSTANT.finditer(code):  # plain constants of functions are too many, and nobody else's
        if code.startswith("constexpr", match.start()) or "ask" in match[2] or "ASK" in match[2]:
            add(match[2], " ".join(_QUALIFIER.sub(" ", match[1]).split()) in _NARROW_TYPES)
    return narrow


def _own_width(code: str, name: str) -> bool | None:
    """Whether all definitions of a mask in this file have at most 32 bits; None where it has none."""
    quoted = re.escape(name)
    widths: list[bool] = []
    for match in re.finditer(rf"#[ \t]*define[ \t]+{quoted}[ \t]+(\S.*)", code):
        value = match[1].strip().strip("()")
        widths.append(bool(_LITERAL.match(value)) and _literal_is_32_bit(value))
    for match in re.finditer(rf"\b(unsigned(?:\s+int)?|[A-Za-z_][\w:]*(?:\s+long)*)\s+{quoted}\s*[=,;){{]", code):
        kind = " ".join(match[1].split())
        if kind not in _NOT_TYPES:
            widths.append(kind in _NARROW_TYPES)
    return all(widths) if widths else None


def _declares(code: str, start: int, end: int) -> bool:
    """Whether the name at start:end is declared there, as far as its neighbours tell."""
    line = code[code.rfind("\n", 0, start) + 1 : start]
    if line.lstrip(" \t\ufeff").startswith("#"):
        return _defines(code, start)
    before = code[max(0, start - 200) : start]
    bare = before.rstrip(" \t\r\n*&")
    between = before[len(bare) :]
    follow = code[end : end + 80].lstrip()[:1]
    if bare.endswith("}"):
        return follow in (";", ",")  # typedef struct { ... } name;
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


def _defines(code: str, start: int) -> bool:
    """Whether the name at start is that of a macro being defined."""
    return re.search(r"^[ \t\ufeff]*#[ \t]*define[ \t]+\Z", code[code.rfind("\n", 0, start) + 1 : start]) is not None


def _in_include(code: str, start: int) -> bool:
    """Whether the name at start is part of an include's file."""
    line = code[code.rfind("\n", 0, start) + 1 : start]
    return "<" in line and line.lstrip(" \t\ufeff")[:1] == "#" and "include" in line


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


def _narrow(argument: str, code: str) -> bool | str:
    """Whether a mask argument has at most 32 bits, or the name that decides it and that this file does not define."""
    text = argument.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if _LITERAL.match(text):
        return _literal_is_32_bit(text)
    if re.match(r"\(?\s*(?:unsigned(?:\s+int)?|int|uint32_t)\s*\)", argument.strip()):
        return True
    if not _NAME.match(text):
        return False
    own = _own_width(code, text)
    return text if own is None else own


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


def _body_end(code: str, start: int) -> int:
    """Where the braces that open at start are closed."""
    depth = 0
    for match in re.compile("[{}]").finditer(code, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(code)


def examine(
    path: str,
    source: str,
    hip: str,
    *,
    masked: str | None = None,
    shift: int = 0,
    problems: Sequence[Problem] = (),
    includes: Sequence[Include] = (),
    defines: Mapping[str, str] | None = None,
    macros: Macros | None = None,
) -> Facts:
    """The facts of one file: source is the user's text, hip its conversion, masked that without comments and literals.

    shift: lines added in front of the source's first. defines, macros: as for live_code.
    """
    whole = flatten(mask(hip) if masked is None else masked)
    code = live_code(path, whole, macros=macros, defines=defines)
    lines: Lines | None = None
    source_lines: list[str] = []
    found: list[list[int | str]] = []
    own: set[str] = set()

    def add(offset: int, rule: str, name: str = "", detail: str = "", *, shown: str = "", mask: str = "") -> None:
        nonlocal lines
        if lines is None:
            lines = Lines(hip)
            source_lines.extend(source.split("\n"))
        line, column = lines.at(offset)
        line = max(1, line - shift)
        original = source_lines[line - 1].find(shown or name) if line <= len(source_lines) else -1
        found.append([rule, line, original + 1 if original >= 0 else column, name, detail, mask])

    for match in _LEFTOVER.finditer(code):
        name = match.group()
        if is_word(code, match.start() - 1) or _in_include(code, match.start()):
            continue
        if _declares(code, match.start(), match.end()):
            own.add(name)
        else:
            add(match.start(), "leftover", name)
    live = {match[1] for match in _MACRO.finditer(code)}
    dead = {match[1] for match in _MACRO.finditer(whole)} - live
    widths: dict[str, bool | str] = {}
    wrappers = {name for name in live if _SHUFFLE.match(f"{name}(x")}
    overload, overload_end = "", 0  # the body of a function of a shuffle's own name: there the name means the shuffle
    for match in _SHUFFLE.finditer(code):
        if is_word(code, match.start() - 1):
            continue
        if _declares(code, match.start(), match.end(1)):
            wrappers.add(match[1])  # the project's own
            begin = match.end() + len(_argument_list(code, match.end())) + 1
            if code[begin : begin + 80].lstrip()[:1] == "{":
                overload, overload_end = match[1], _body_end(code, code.index("{", begin))
            continue
        argument = _argument(code, match.end())
        if argument not in widths:
            widths[argument] = _narrow(argument, code)
        if narrow := widths[argument]:
            mask_name = narrow if isinstance(narrow, str) else ""
            inside = match[1] == overload and match.start() < overload_end
            rule = "shuffle-overload" if inside else "shuffle-mask"
            add(match.start(), rule, match[1], argument.strip(), mask=mask_name)
    for match in _MACRO.finditer(code):
        if match[2] is not None and _IS_64.match(match[2]) and _WAVE_NAME.match(match[1]):
            add(match.start(1), "wave-size", match[1])
    for match in _SET_TO_64.finditer(code):
        constant = _WAVE_CONSTANT.search(code, max(0, match.start() - 200), match.start())
        if constant:
            add(constant.start(1), "wave-size", constant[1])
    for start in uses(code, "warpSize"):
        statement = re.split("[;{}]", code[max(0, start - 400) : start])[-1]
        if _CONSTANT_CONTEXT.search(statement) or _template_argument(code, start, start + len("warpSize")):
            add(start, "warp-size-constant", "warpSize")
    for match in _LANES_OF_64.finditer(code):
        if not is_word(code, match.start() - 1):
            add(match.start(), "lane-arithmetic", detail=match[1], shown=match[1])
    operators = list(_VECTOR_OPERATOR.finditer(code)) if "operator" in code else []
    if operators:  # one for a file: there are headers that hold a hundred
        first, more = operators[0], len(operators) - 1
        named = f"{first[2]}{f' (and {more} more in this file)' if more else ''}"
        add(first.start(), "vector-operator", f"operator{first[1]}", named, shown="operator")
    if "asm" in code and (path.endswith(DEVICE_KINDS) or _DEVICE.search(code)):
        for match in _ASM.finditer(code):
            start = match.start() - 2 * code.startswith("__", match.start() - 2)
            if is_word(code, start - 1):
                continue
            body = hip[match.end() : match.end() + len(_argument_list(code, match.end()))]
            template = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', body.split(":")[0] if '"' in body else ""))
            if _PTX.search(template):
                add(start, "inline-ptx", detail=repr(template[:40]), shown="asm")
    reaches: set[str] = set()
    passes: set[str] = set()
    if problems or includes:
        alive = code.split("\n")
        for include in includes:
            if include.target:
                # blanked in the live code where its branch is dead: the directive's word tells
                (reaches if "include" in alive[include.line - 1 + shift] else passes).add(include.target)
                continue
            faults = _include_faults(include)
            if not faults or "include" not in alive[include.line - 1 + shift]:
                continue
            for rule, shown in faults:
                original = source.split("\n")[include.line - 1].find(shown)
                column = original + 1 if original >= 0 else include.column
                found.append([rule, include.line, column, include.name, shown, ""])
        found += [
            [problem.rule, problem.line, problem.column, "", problem.detail, ""]
            for problem in problems
            if alive[min(problem.line - 1 + shift, len(alive) - 1)].strip()
        ]
    return Facts(
        conditions=[name for name in _conditions(whole) if name not in (defines or {})],
        live=sorted(live),
        dead=sorted(dead),
        constants=_constants(code),
        own=sorted(own),
        wrappers=sorted(wrappers),
        reaches=sorted(reaches),
        passes=sorted(passes - reaches),
        found=found,
    )


def _template_argument(code: str, start: int, end: int) -> bool:
    """Whether what stands at start:end is the first argument of a template, as far as its neighbours tell."""
    before = code[max(0, start - 40) : start].rstrip()
    return before.endswith("<") and is_word(before, len(before) - 2) and code[end : end + 40].lstrip()[:1] in (",", ">")


def _include_faults(include: Include) -> list[tuple[str, str]]:
    """The rules that an include breaks, and how it is written after conversion.

    Whether it breaks include-left-out is for the tree to say.
    """
    shown = f'"{include.name}"' if include.quoted else f"<{include.name}>"
    if include.kind == "computed":
        return [("include-computed", include.name)]
    if include.kind == "staged":
        return []
    if _CUDA_HEADER.match(include.name):
        return [("cuda-include", shown)]
    if not include.quoted:
        return []
    device = include.name.endswith((".cu", ".cuh")) and not include.name.startswith(_LIBRARIES)
    return [("include", shown)] * device + [("include-left-out", shown)]
