"""What a compiler command will emit: which targets, how wide their waves are, and whether that was asked for.

The command is read the way its programs read it: hipcc turns its words into clang's and appends what the
environment says; clang expands response files, applies CCC_OVERRIDE_OPTIONS, then takes its options from
left to right. Behaviour checked against clang 22 (`-###` and the code objects) and, for hipcc, against its
source (hipBin_amd.h of ROCm 7); the cases are tests/data/commands.tsv.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rocmbuild.audit.codeobject import default_wave, target_of_triple
from rocmbuild.audit.finding import Finding, Severity, has_errors

__all__ = ["COMPILERS", "DEFAULT_TARGET", "LAUNCHERS", "Kind", "Verdict", "judge", "judge_links"]

DEFAULT_TARGET = "gfx906"
"""What clang compiles HIP for when no target is named (clang 16 to 22), a wave64 processor."""

Kind = Literal["device", "host", "link", "bundle", "none"]

_HIPCC = re.compile(r"hipcc(\.bin|\.pl|\.exe|-[\d.]+)?")
_CLANG = re.compile(r"(?:[\w.]+-)*(?:amd)?clang(?:\+\+|-cpp)?(?:-[\d.]+)?")
# "{cxx}" is the host's compiler in the normalised commands of a wheel's evidence
_OTHER_COMPILER = re.compile(r"(?:[\w.]+-)*(?:g\+\+|gcc|c\+\+|cc|nvcc|icpx|icx|mpicxx|mpicc)(?:-[\d.]+)?|\{cxx\}")
_BUNDLER = re.compile(r"clang-offload-bundler(?:-[\d.]+)?")
COMPILERS = re.compile("|".join(pattern.pattern for pattern in (_HIPCC, _CLANG, _OTHER_COMPILER, _BUNDLER)))
"""The names of programs that are judged."""
LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache", "env", "nice", "time", "nohup"})
"""Programs that run the compiler in their arguments."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_MAX_RESPONSE = 1 << 24
_MAX_DEPTH = 16

# Options whose argument may be the next word: it is never an option itself.
_SEPARATE_WORDS = """
-o -x -I -D -U -L -l -F -B -T -u -z -e -b -G -include -include-pch -imacros -isystem -isystem-after -iquote -idirafter
-iprefix -iwithprefix -iwithprefixbefore -iwithsysroot -isysroot -imultilib -cxx-isystem -ivfsoverlay -iframework
-MF -MT -MQ -MJ -Xclang -Xlinker -Xassembler -Xpreprocessor -Xanalyzer -Xcuda-fatbinary -Xcuda-ptxas -Xoffload-linker
-Xoffload-compiler -Xclangas -Xopenmp-target -mllvm -mmlir -target -arch -dependency-file -dependency-dot
-serialize-diagnostics -working-directory -resource-dir -framework -dumpdir -gen-cdb-fragment-path -rpath
-ccc-gcc-name -ccc-install-dir --config --param --include --language --output --sysroot --include-directory
--define-macro --undefine-macro --library-directory
"""
_SEPARATE = frozenset(_SEPARATE_WORDS.split())
_HIP_LANGUAGES = {"hip", "hip-cpp-output"}
_SOURCES = {
    **dict.fromkeys((".hip", ".hipi"), "hip"),
    **dict.fromkeys((".cu", ".cui"), "cuda"),
    **dict.fromkeys((".cpp", ".cc", ".cxx", ".C", ".c++", ".CPP", ".cp", ".ii"), "c++"),
    **dict.fromkeys((".c", ".i"), "c"),
    **dict.fromkeys((".s", ".S", ".sx"), "assembler"),
    **dict.fromkeys((".ll", ".bc"), "ir"),
    **dict.fromkeys((".cl", ".clcpp"), "cl"),
}
_INFORMATION = re.compile(
    r"--?(version|help|help-hidden|dumpversion|dumpmachine|autocomplete=.*|print-.*)|-h|-###|--(cxxflags|ldflags|short-version)"
)
_OVERRIDDEN_LEVEL = re.compile(r"-O(?:|[0-9s])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a command does, and what is wrong with it.

    kind: "device" emits device code; "host" compiles without any; "link"; "bundle" puts code objects
    together; "none" emits nothing or is no compiler. targets: those it emits code for, in the order in
    which they were named. waves: the wave width of each. partial: it emits a part of the targets on
    purpose (device only), so that a target may come from another command. reason: why there is nothing
    to judge, "" where there is.
    """

    kind: Kind
    tool: str
    targets: tuple[str, ...] = ()
    waves: Mapping[str, int] = field(default_factory=dict)
    partial: bool = False
    rdc: bool = False
    hip_link: bool = False
    inputs: tuple[str, ...] = ()
    output: str = ""
    embeds: str = ""
    reason: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether the command decides about device code."""
        return self.kind in ("device", "bundle")

    @property
    def ok(self) -> bool:
        """No error."""
        return not has_errors(self.findings)

    @property
    def summary(self) -> str:
        """The verdict in words."""
        if self.findings:
            return "; ".join(finding.message for finding in self.findings)
        return "good" if self.judged else f"not judged: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The verdict with stable keys in a stable order."""
        return {
            "kind": self.kind,
            "tool": self.tool,
            "targets": list(self.targets),
            "waves": {target: self.waves[target] for target in self.targets if target in self.waves},
            "partial": self.partial,
            "output": self.output,
            "ok": self.ok,
            "summary": self.summary,
            "findings": [finding.to_json() for finding in self.findings],
        }


def judge(
    argv: Sequence[str], environ: Mapping[str, str], targets: Sequence[str], *, cwd: Path | None = None
) -> Verdict:
    """Judge one command against the targets that were asked for (none: only what it does is told).

    environ: the variables it ran with; those through which compilers take flags are followed. cwd: the
    folder it ran in, for response files. Never raises for an odd command: what cannot be followed is
    a finding.
    """
    reader = _Reader(environ=dict(environ), cwd=cwd or Path())
    words = reader.program(argv)
    if not words:
        return Verdict(kind="none", tool="", reason="no command")
    tool = PurePosixPath(words[0].text).name
    if _BUNDLER.fullmatch(tool):
        return _bundler(reader, tool, reader.expanded(words[1:]), targets)
    if _HIPCC.fullmatch(tool) and reader.environ.get("HIP_PLATFORM", "amd") not in ("nvidia", "nvcc"):
        options = _read_options(reader.clang(reader.from_hipcc(words)))
    elif _CLANG.fullmatch(tool) or (_OTHER_COMPILER.fullmatch(tool) and _looks_like_hip(words)):
        options = _read_options(reader.clang(words))
    elif _OTHER_COMPILER.fullmatch(tool):
        options = _read_options(reader.expanded(words))
        options.plain = True
    else:
        if any("--offload-arch" in word.text or "hipcc" in word.text for word in words):
            reader.find("warning", "not-understood", f"{tool} is not known, but its words speak of HIP: not judged")
        return Verdict(kind="none", tool=tool, reason="no compiler", findings=tuple(reader.findings))
    return _verdict(reader, tool, options, targets)


def judge_links(verdicts: Iterable[Verdict]) -> tuple[Finding, ...]:
    """What only several commands together show: -fgpu-rdc objects that are linked without the device link."""
    verdicts = tuple(verdicts)
    rdc = {verdict.output: verdict for verdict in verdicts if verdict.rdc and verdict.kind == "device"}
    found = []
    for link in verdicts:
        if link.kind != "link" or link.hip_link:
            continue
        for name in link.inputs:
            if name in rdc:
                message = (
                    f"links {name}, compiled with -fgpu-rdc, without --hip-link: "
                    "it will not load (undefined fat binary)"
                )
                found.append(Finding(severity="error", rule="rdc-not-linked", message=message, where=link.output))
    return tuple(found)


# Words and where they come from


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    text: str
    origin: str = ""  # "" the command itself, else the variable or file

    def __str__(self) -> str:
        return f"{self.text} (from {self.origin})" if self.origin else self.text


class _Reader:
    """Turns the words of a command into those that clang ends up with, and notes what is odd about them."""

    def __init__(self, *, environ: dict[str, str], cwd: Path) -> None:
        self.environ = environ
        self.cwd = cwd
        self.findings: list[Finding] = []
        self.default_level = False  # hipcc adds -O3
        self.hip_link = False

    def find(self, severity: Severity, rule: str, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(severity=severity, rule=rule, message=message))

    def program(self, argv: Sequence[str]) -> list[_Word]:
        """The words from the compiler on, without launchers; assignments before it go to the environment."""
        words = list(argv)
        while words:
            if _ASSIGNMENT.match(words[0]):
                name, _, value = words.pop(0).partition("=")
                self.environ[name] = value
            elif PurePosixPath(words[0]).name in LAUNCHERS:
                launcher = PurePosixPath(words.pop(0)).name
                while words and launcher in ("env", "nice", "time") and words[0].startswith("-"):
                    option = words.pop(0)
                    if option in ("-u", "-n", "-C", "-f", "-o") and words:
                        value = words.pop(0)
                        if option == "-u" and launcher == "env":
                            self.environ.pop(value, None)
                    elif option in ("-i", "-"):
                        self.environ.clear()
            else:
                break
        return [_Word(text=word) for word in words]

    def shell_words(self, variable: str) -> list[_Word]:
        """A variable's value as the shell splits it; hipcc pastes it into its command line."""
        value = self.environ.get(variable, "")
        try:
            return [_Word(text=word, origin=variable) for word in shlex.split(value)]
        except ValueError as err:
            self.find("error", "environment", f"{variable}={value!r} is not a list of shell words ({err})")
            return []

    def from_hipcc(self, words: Sequence[_Word]) -> list[_Word]:
        """The clang command of a hipcc command: its own options first, the given ones, then the environment's."""
        front: list[_Word] = []
        archs: list[_Word] = []
        rest: list[_Word] = []
        level = False
        chosen = False
        compile_only = False
        named = False  # a language was named: hipcc does not guess any more
        hip = compiles = False
        previous = ""
        as_hip = self.environ.get("HIP_COMPILE_CXX_AS_HIP", "") or "1"
        for word in words[1:]:
            text = word.text
            if previous == "-o":
                rest.append(word)
                previous = text
                continue
            compile_only = compile_only or text in ("-c", "--genco", "-E", "-M")
            level = level or text.startswith("-O")
            option = next((o for o in ("--offload-arch=", "--amdgpu-target=") if text.startswith(o)), "")
            if option:
                chosen = True
                if option == "--amdgpu-target=":
                    self.find("warning", "target-old-spelling", f"{text}: an old spelling of --offload-arch")
                values = [value for value in text[len(option) :].split(",") if value not in ("", "gfx000")]
                archs += [_Word(text=f"--offload-arch={value}", origin=word.origin) for value in values]
                if not values:
                    archs.append(_Word(text="--offload-arch=", origin=word.origin))
                previous = text
                continue
            if text == "-x":
                named = True
            elif previous == "-x" or text in ("-xhip", "-xc", "-xc++"):
                named = True
                hip = (text if previous == "-x" else text[2:]) == "hip"
                compiles = True
            elif not text.startswith("-") and not text.startswith("@"):
                suffix = PurePosixPath(text).suffix
                source = _SOURCES.get(suffix) or ("hip" if suffix == ".cuh" else None)
                compiles = compiles or source is not None or (named and hip)
                if not named and source == "c":
                    rest += [_Word(text="-x"), _Word(text="c")]
                elif not named and (source == "hip" or (source in ("c++", "cuda") and as_hip != "0")):
                    hip = True
                    rest += [_Word(text="-x"), _Word(text="hip")]
            if "--genco" in text:
                rest.append(_Word(text="--cuda-device-only", origin=word.origin))
            elif not (text.startswith("--hipcc") or text in ("-use-staticlib", "-use-sharedlib")):
                rest.append(word)
            previous = text
        if not chosen:
            value = self.environ.get("HCC_AMDGPU_TARGET", "")
            for name in (name for name in value.split(",") if name):
                archs.append(_Word(text=f"--offload-arch={name}", origin="HCC_AMDGPU_TARGET"))
        if hip:
            front += archs
        if not level:
            self.default_level = True
            front.append(_Word(text="-O3", origin="hipcc's default"))
        if not compile_only:
            self.hip_link = True
        if compiles:
            rest += self.shell_words("HIPCC_COMPILE_FLAGS_APPEND")
        if not compile_only:
            rest += self.shell_words("HIPCC_LINK_FLAGS_APPEND")
        return [words[0], *front, *rest]

    def clang(self, words: Sequence[_Word]) -> list[_Word]:
        """Response files, then CCC_OVERRIDE_OPTIONS, then configuration files, in clang's order."""
        full = self.overridden([words[0], *self.expanded(words[1:])])
        before: list[_Word] = []
        kept: list[_Word] = []
        position = 0
        while position < len(full):
            text = full[position].text
            name = text.removeprefix("--config=") if text.startswith("--config=") else ""
            if text == "--config" and position + 1 < len(full):
                position += 1
                name = full[position].text
            if name:
                before += self.file_words(name, 0, comments=True)
            else:
                kept.append(full[position])
            position += 1
        return [kept[0], *before, *kept[1:]]

    def expanded(self, words: Sequence[_Word], depth: int = 0) -> list[_Word]:
        """The words with those of response files (`@FILE`) in their place."""
        out: list[_Word] = []
        for word in words:
            if len(word.text) > 1 and word.text.startswith("@"):
                out += self.file_words(word.text[1:], depth)
            else:
                out.append(word)
        return out

    def file_words(self, name: str, depth: int, *, comments: bool = False) -> list[_Word]:
        """The words in a response or configuration file, relative to the command's folder."""
        if depth >= _MAX_DEPTH:
            self.find("error", "response-file", f"@{name}: response files name each other without end")
            return []
        path = self.cwd / name
        try:
            if path.stat().st_size > _MAX_RESPONSE:
                raise OSError(0, f"larger than {_MAX_RESPONSE} bytes")
            text = path.read_text("utf-8", "backslashreplace")
        except (OSError, ValueError) as err:
            what = err.strerror if isinstance(err, OSError) else err
            self.find("error", "response-file", f"@{name} cannot be read ({what}): its words are not known")
            return []
        if comments:
            text = re.sub(r"(?m)^[ \t]*#.*$", "", text.replace("\\\n", ""))
        return self.expanded([_Word(text=word, origin=name) for word in _gnu_words(text)], depth + 1)

    def overridden(self, words: list[_Word]) -> list[_Word]:
        """CCC_OVERRIDE_OPTIONS applied (LLVM, clang/lib/Driver/Driver.cpp, applyOverrideOptions)."""
        origin = "CCC_OVERRIDE_OPTIONS"
        for edit in self.environ.get(origin, "").removeprefix("#").split(" "):
            if not edit:
                continue
            if edit[0] == "^":
                words.insert(1, _Word(text=edit[1:], origin=origin))
            elif edit[0] == "+":
                words.append(_Word(text=edit[1:], origin=origin))
            elif edit.startswith("s/") and edit.endswith("/") and "/" in edit[2:-1]:
                wanted, _, instead = edit[2:-1].partition("/")
                try:
                    pattern = re.compile(wanted)
                    changed = [(w, pattern.sub(instead, w.text, count=1)) for w in words[1:]]
                except (re.error, IndexError) as err:
                    self.find("error", "environment", f"{origin}: {edit} is no substitution ({err})")
                    continue
                words[1:] = [w if new == w.text else _Word(text=new, origin=origin) for w, new in changed]
            elif edit[0] in "xX":
                kept = [words[0]]
                position = 1
                while position < len(words):
                    if words[position].text == edit[1:]:
                        position += 1 if edit[0] == "x" else 2
                    else:
                        kept.append(words[position])
                        position += 1
                words = kept
            elif edit[0] == "O":
                words = [words[0], *(w for w in words[1:] if not _OVERRIDDEN_LEVEL.fullmatch(w.text))]
                words.append(_Word(text=f"-{edit}", origin=origin))
            else:
                self.find("warning", "environment", f"{origin}: the edit {edit!r} is not known")
        return words


def _gnu_words(text: str) -> list[str]:
    """The words of a response file: white space parts them, quotes and backslashes keep it (LLVM's GNU rules)."""
    words: list[str] = []
    word: list[str] = []
    quote = ""
    inside = False
    position = 0
    while position < len(text):
        char = text[position]
        if char == "\\" and position + 1 < len(text):
            position += 1
            word.append(text[position])
            inside = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word.append(char)
        elif char in "'\"":
            quote = char
            inside = True
        elif char.isspace():
            if inside:
                words.append("".join(word))
            word, inside = [], False
        else:
            word.append(char)
            inside = True
        position += 1
    if inside:
        words.append("".join(word))
    return words


def _looks_like_hip(words: Sequence[_Word]) -> bool:
    """Whether a compiler under a plain name (cc, c++) is told to compile HIP."""
    texts = [word.text for word in words]
    return any(t.startswith(("--offload-arch=", "--cuda-gpu-arch=")) or t == "-xhip" for t in texts) or any(
        a == "-x" and b in _HIP_LANGUAGES for a, b in pairwise(texts)
    )


# The options that decide


@dataclass(slots=True, kw_only=True)
class _Options:
    """What was read from left to right. scope: the part of -Xarch_ that an option was limited to, or ""."""

    archs: list[tuple[bool, str, _Word]] = field(default_factory=list)  # added or taken away, value, word
    waves: list[tuple[int, str]] = field(default_factory=list)  # width, scope
    levels: list[tuple[str, str]] = field(default_factory=list)  # -O level, scope
    frontend: list[_Word] = field(default_factory=list)  # words for cc1
    inputs: list[tuple[str, str]] = field(default_factory=list)  # path, language ("" for the linker)
    unplaced: list[_Word] = field(default_factory=list)
    old_spelling: list[_Word] = field(default_factory=list)
    processor: str = ""
    triple: str = ""
    output: str = ""
    half: Literal["", "device", "host"] = ""
    stops: str = ""
    information: bool = False
    compile_only: bool = False
    rdc: bool = False
    hip_link: bool = False
    openmp: bool = False
    cc1: bool = False
    plain: bool = False  # a compiler that knows no HIP


_HALVES: Mapping[str, Literal["", "device", "host"]] = {
    "--offload-device-only": "device",
    "--cuda-device-only": "device",
    "--offload-host-only": "host",
    "--cuda-host-only": "host",
    "--offload-host-device": "",
    "--cuda-compile-host-device": "",
}
_STOPS = {"-E": "preprocesses only", "--preprocess": "preprocesses only", "-fsyntax-only": "checks only"}
_STOPS |= {"-M": "lists dependencies only", "-MM": "lists dependencies only", "--analyze": "analyses only"}


def _read_options(words: Sequence[_Word]) -> _Options:
    """Clang's command line, from left to right."""
    options = _Options()
    language = ""
    position = 1
    only_inputs = False
    while position < len(words):
        word = words[position]
        text = word.text
        position += 1
        following = words[position] if position < len(words) else None
        if only_inputs or text == "-" or not text.startswith("-"):
            options.inputs.append((text, language or _SOURCES.get(PurePosixPath(text).suffix, "")))
        elif text == "--":
            only_inputs = True
        elif text.startswith("-Xarch_"):
            position += 1
            if following is not None:
                _scoped(options, text.removeprefix("-Xarch_"), following)
        elif text.startswith("-Xopenmp-target="):
            position += 1
            if following is not None:
                _unplaced(options, following)
        elif text in _SEPARATE:
            position += 1
            if following is None:
                continue
            if text in ("-x", "--language"):
                language = "" if following.text == "none" else following.text
            else:
                _separate(options, text, following)
        elif text.startswith("-x") or text.startswith("--language="):
            name = text[2:] if text.startswith("-x") else text.partition("=")[2]
            language = "" if name == "none" else name
        elif options.cc1 and text in ("-triple", "-target-cpu", "-target-feature", "-main-file-name", "-aux-triple"):
            position += 1
            if following is not None:
                if text == "-triple":
                    options.triple = following.text
                else:
                    options.frontend += [word, following]
        else:
            _single(options, word)
    return options


def _single(options: _Options, word: _Word) -> None:
    """One option that is one word."""
    text = word.text
    name, equals, value = text.partition("=")
    if equals and name in ("--offload-arch", "--no-offload-arch"):
        options.archs += [(name == "--offload-arch", part, word) for part in value.split(",")]
    elif equals and name in ("--cuda-gpu-arch", "--no-cuda-gpu-arch"):
        options.archs.append((name == "--cuda-gpu-arch", value, word))
    elif equals and name == "--amdgpu-target":
        options.old_spelling.append(word)
        options.archs += [(True, part, word) for part in value.split(",")]
    elif text in ("-mwavefrontsize64", "-mno-wavefrontsize64"):
        options.waves.append((64 if text == "-mwavefrontsize64" else 32, ""))
    elif text.startswith("-O"):
        options.levels.append((text[2:] or "1", ""))
    elif equals and name == "--optimize":
        options.levels.append((value, ""))
    elif equals and name == "-Xclang":
        options.frontend.append(_Word(text=value, origin=word.origin))
    elif equals and name in ("-mllvm", "-Xoffload-linker", "-Xoffload-compiler", "--offload", "--offload-targets"):
        if value != "amdgcn-amd-amdhsa":
            _unplaced(options, word)
    elif text in _HALVES:
        options.half = _HALVES[text]
    elif text in _STOPS:
        options.stops = _STOPS[text]
    elif text in ("-c", "-S", "--compile", "--assemble", "-emit-llvm", "-emit-obj", "--precompile"):
        options.compile_only = True
    elif text in ("-fgpu-rdc", "-fno-gpu-rdc", "-fcuda-rdc", "-fno-cuda-rdc"):
        options.rdc = "-fno" not in text
    elif text in ("--hip-link", "--no-hip-link"):
        options.hip_link = text == "--hip-link"
    elif text.startswith("-fopenmp"):
        options.openmp = True
    elif equals and name == "--target":
        options.triple = value
    elif equals and name in ("-mcpu", "-march"):
        options.processor = value
    elif equals and name == "--output":
        options.output = value
    elif text.startswith("-o") and len(text) > 2:
        options.output = text[2:]
    elif text == "-cc1":
        options.cc1 = True
    elif _INFORMATION.fullmatch(text):
        options.information = True


def _separate(options: _Options, name: str, following: _Word) -> None:
    """An option and the word after it."""
    if name in ("-o", "--output"):
        options.output = following.text
    elif name == "-Xclang":
        options.frontend.append(following)
    elif name == "-target":
        options.triple = following.text
    elif name in ("-mllvm", "-Xoffload-linker", "-Xoffload-compiler", "-Xopenmp-target"):
        _unplaced(options, following)


def _scoped(options: _Options, scope: str, word: _Word) -> None:
    """An option after -Xarch_SCOPE."""
    text = word.text
    if text in ("-mwavefrontsize64", "-mno-wavefrontsize64"):
        options.waves.append((64 if text == "-mwavefrontsize64" else 32, scope))
    elif text.startswith("-O"):
        options.levels.append((text[2:] or "1", scope))
    elif scope == "device" and text.startswith(("--offload-arch=", "--no-offload-arch=")):
        _single(options, word)  # clang 22 takes these for the whole compilation
    else:
        _unplaced(options, word)


def _unplaced(options: _Options, word: _Word) -> None:
    """Keep a word that is passed on to another tool, where it speaks of waves or targets."""
    if "wavefrontsize" in word.text or re.search(r"gfx\d|spirv", word.text):
        options.unplaced.append(word)


def _applies(scope: str, target: str) -> bool:
    return scope in ("", "device", "amdgcn", target)


# The verdict


def _verdict(reader: _Reader, tool: str, options: _Options, wanted: Sequence[str]) -> Verdict:
    kind, reason, effective = _kind(options)
    if kind == "device" and effective is None:
        effective = _offload_targets(reader, tool, options, bool(wanted))
    targets = effective or ()
    waves: dict[str, int] = {}
    partial = options.half == "device" or options.cc1 or bool(options.triple)
    if kind == "device":
        for word in options.old_spelling:
            reader.find("warning", "target-old-spelling", f"{word}: an old spelling of --offload-arch")
        waves = _waves(reader, options, targets)
        if wanted:
            _compare(reader, options, targets, wanted, waves, partial=partial)
        _level(reader, options, targets)
        for word in options.unplaced:
            reader.find("warning", "word-unknown", f"{word}: its effect on targets or waves is not known to this audit")
        if options.rdc and options.compile_only:
            message = "-fgpu-rdc: the library must be linked with --hip-link, or it will not load"
            reader.find("note", "rdc", message)
    embeds = ""
    for first, second in pairwise(options.frontend):
        if first.text in ("-fcuda-include-gpubinary", "-fhip-include-gpubinary"):
            embeds = second.text
    found = reader.findings
    if kind in ("host", "link"):  # what else there may be is of no weight there
        found = [replace(f, severity="warning") for f in found if f.rule == "response-file"]
    return Verdict(
        kind=kind,
        tool=tool,
        targets=targets,
        waves=waves,
        partial=partial and kind == "device",
        rdc=options.rdc,
        hip_link=options.hip_link or reader.hip_link,
        inputs=tuple(path for path, _ in options.inputs),
        output=options.output,
        embeds=embeds,
        reason=reason,
        findings=tuple(found),
    )


def _kind(options: _Options) -> tuple[Kind, str, tuple[str, ...] | None]:
    """(kind, why there is nothing to judge, the targets where they do not come from offload options)."""
    if options.information:
        return "none", "it only prints", None
    if not options.inputs:
        return "none", "no input, no compilation", None
    if options.stops:
        return "none", options.stops, None
    languages = {language for _, language in options.inputs if language}
    if options.plain:
        return ("host", "host only", None) if languages else ("link", "a link: judged by its binary", None)
    if options.cc1:
        cpu = _frontend_value(options, "-target-cpu")
        device = options.triple.startswith("amdgcn") and cpu
        return ("device", "", (cpu,)) if device else ("host", "host only", None)
    gfx = any(value.startswith("gfx") for _, value, _ in options.archs)
    if languages & _HIP_LANGUAGES or (gfx and ("cuda" in languages or (options.openmp and languages))):
        if options.half == "host":
            return "host", "the host half of a HIP unit, without device code", None
        return "device", "", None
    if options.triple.startswith("amdgcn"):
        return "device", "", ((options.processor or "generic"),)
    if "cuda" in languages:
        return "none", "CUDA for NVIDIA cards", None
    if languages:
        return "host", "host only", None
    return "link", "a link: judged by its binary", None


def _frontend_value(options: _Options, name: str) -> str:
    """The last value that cc1 is given for an option."""
    values = [b.text for a, b in pairwise(options.frontend) if a.text == name]
    return values[-1] if values else ""


def _offload_targets(reader: _Reader, tool: str, options: _Options, wanted: bool) -> tuple[str, ...]:
    """The targets after every option has had its say, in order; the compiler's default where none is left."""
    names: dict[str, None] = {}
    empty = False
    for added, value, word in options.archs:
        if not added:
            names = {} if value == "all" else {name: None for name in names if name != value}
        elif value == "native":
            message = f"{word}: the target is not fixed, it is the card of the machine that compiles"
            reader.find("error" if wanted else "warning", "target-not-fixed", message)
        elif value:
            name = target_of_triple(f"-{value}") or value
            names.setdefault(name)
        else:
            empty = True
    native = any(value == "native" and added for added, value, _ in options.archs)
    if not names and not native:
        names = {DEFAULT_TARGET: None}
        cards = " or, with hipcc, the cards of the machine" if _HIPCC.fullmatch(tool) and not options.archs else ""
        why = "an empty target" if empty else "no target is left" if options.archs else "no target is named"
        message = f"{why}: the compiler takes its default {DEFAULT_TARGET}{cards}"
        reader.find("error" if wanted else "warning", "target-empty" if empty else "target-default", message)
    override = _frontend_value(options, "-target-cpu")
    if override:
        message = f"-Xclang -target-cpu -Xclang {override}: the processor is changed behind the driver's back"
        reader.find("error", "target-override", message)
        names = {override: None}
    return tuple(names)


def _waves(reader: _Reader, options: _Options, targets: Sequence[str]) -> dict[str, int]:
    """The width for each target; findings for wave64, and where nothing holds it at 32."""
    feature = 0
    for first, second in pairwise(options.frontend):
        if first.text == "-target-feature" and second.text in _FEATURES:
            feature = _FEATURES[second.text]
    waves: dict[str, int] = {}
    loose = []
    for target in targets:
        flags = [width for width, scope in options.waves if _applies(scope, target)]
        said = feature or (flags[-1] if flags else 0)
        if default_wave(target) == 64:
            waves[target] = 64
        elif _WAVE32_ONLY.match(target):
            waves[target] = 32
        else:
            waves[target] = said or 32
            if not said and not options.cc1:
                loose.append(target)
    wide = [target for target in targets if waves[target] == 64]
    if wide:
        capable = [target for target in wide if default_wave(target) == 32]
        why = "by the flags" if capable else "these processors have no other"
        reader.find("error", "wave64", f"wave64 code for {', '.join(wide)} ({why})")
    if loose:
        message = f"-mno-wavefrontsize64 is missing for {', '.join(loose)}: only the processor's default holds 32 lanes"
        reader.find("error", "flag-missing", message)
    return waves


_FEATURES = {"+wavefrontsize64": 64, "-wavefrontsize64": 32, "+wavefrontsize32": 32}
_WAVE32_ONLY = re.compile(r"gfx125|gfx12-5-|gfx13")


def _compare(
    reader: _Reader,
    options: _Options,
    targets: Sequence[str],
    wanted: Sequence[str],
    waves: Mapping[str, int],
    *,
    partial: bool,
) -> None:
    """Findings for targets that are too many or too few."""
    extra = [target for target in targets if target not in wanted]
    if extra:
        names = [f"{target} (wave64)" if waves.get(target) == 64 else target for target in extra]
        origins = {
            word.origin for added, value, word in options.archs if added and word.origin and value in (*extra, "")
        }
        source = f" (from {', '.join(sorted(origins))})" if origins else ""
        reader.find("error", "target-extra", f"extra target{'s' if len(extra) > 1 else ''} {', '.join(names)}{source}")
    missing = [target for target in wanted if target not in targets]
    unfixed = any(finding.rule == "target-not-fixed" for finding in reader.findings)
    if missing and not unfixed and not partial:
        reader.find("error", "target-missing", f"missing target{'s' if len(missing) > 1 else ''} {', '.join(missing)}")


def _level(reader: _Reader, options: _Options, targets: Sequence[str]) -> None:
    """A warning where device code is compiled without optimisation."""
    for word in options.frontend:
        if word.text.startswith("-O"):
            options.levels.append((word.text[2:] or "1", ""))
    slow = []
    for target in targets:
        levels = [level for level, scope in options.levels if _applies(scope, target)]
        if not levels or levels[-1] == "0":
            slow.append(target)
    if slow:
        why = "-O0" if any(level == "0" for level, _ in options.levels) else "no -O option"
        reader.find("warning", "no-optimisation", f"no optimisation ({why}) for {', '.join(slow)}")


def _bundler(reader: _Reader, tool: str, words: Sequence[_Word], wanted: Sequence[str]) -> Verdict:
    """clang-offload-bundler: the targets it puts together."""
    values: dict[str, list[str]] = {"targets": [], "input": [], "inputs": [], "output": [], "outputs": []}
    flags = set()
    position = 0
    while position < len(words):
        text = words[position].text
        position += 1
        name, equals, value = text.lstrip("-").partition("=")
        if text.startswith("-") and name in values:
            if not equals and position < len(words):
                value = words[position].text
                position += 1
            values[name].append(value)
        else:
            flags.add(name)
    if flags & {"unbundle", "list", "check-input-archive", "version", "help"} or not values["targets"]:
        return Verdict(kind="none", tool=tool, reason="no bundle is made")
    entries = [entry for entry in values["targets"][-1].split(",") if entry]
    targets = tuple(
        dict.fromkeys(target_of_triple(e) or e.split("-", 1)[-1] for e in entries if not e.startswith("host"))
    )
    if wanted:
        waves = {target: default_wave(target) for target in targets}
        _compare(reader, _Options(), targets, wanted, waves, partial=False)
    return Verdict(
        kind="bundle",
        tool=tool,
        targets=targets,
        inputs=tuple(values["input"] or ",".join(values["inputs"]).split(",")),
        output=(values["output"] or values["outputs"] or [""])[-1],
        findings=tuple(reader.findings),
    )
