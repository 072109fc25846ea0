"""The build as a list of commands: a pure function of configuration, toolchain, SDK and stage.

Every path in a plan is relative to the build folder, so that objects and wheels come out the same in any
folder; only the tools themselves are named by absolute path. Layout of a build folder:

    src/hip, src/cuda   the stage, synced
    support/            headers, the recorder, stubs and stamps that rocmbuild puts there
    obj/                objects: <extension>/<platform>/<source>...
    lib/                libraries at their place inside the wheel
    commands/           one JSON record for each command that ran
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rocmbuild.config import Config, Extension
from rocmbuild.errors import InputError, joined
from rocmbuild.targets import TargetSet, is_generic

if TYPE_CHECKING:
    from rocmbuild.staging.stage import Stage
    from rocmbuild.toolchain.model import Toolchain

__all__ = [
    "COMPILATIONS",
    "DIGEST_MARK",
    "TORCH_TARGET_VERSION",
    "BuildPlan",
    "Edge",
    "Library",
    "PlanInput",
    "library_path",
    "make_plan",
]

TORCH_TARGET_VERSION = "0x020a000000000000"  # torch 2.10: newer headers then add no newer symbols
DIGEST_MARK = "@sha256:"  # "@sha256:FILE@" in a command becomes FILE's digest when the command runs
COMPILATIONS = frozenset({"device", "host", "cuda", "cxx"})  # kinds of edges that a compiler cache may answer
DEVICE_SUFFIXES = {".hip", ".cu"}
CXX_SUFFIXES = {".cpp", ".cc", ".cxx", ".c"}
BUNDLE_FORMAT = "2"  # compressed bundles of format 3 are not read by ROCm before 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One command. inputs, implicit and output are relative to the build folder."""

    kind: str  # device | bundle | host | cuda | cxx | stub | link
    platform: str
    extension: str
    target: str | None = None
    source: str | None = None  # the project's own path of the source
    inputs: tuple[str, ...] = ()
    implicit: tuple[str, ...] = ()
    output: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    depfile: str | None = None

    @property
    def key(self) -> str:
        """Name of the record of this command: stable while the output is."""
        return hashlib.sha256(self.output.encode()).hexdigest()[:20]

    @property
    def title(self) -> str:
        """What a person calls this command."""
        what = self.source or self.output
        return f"{what} for {self.target}" if self.target else f"{what} ({self.platform} {self.kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library of the wheel; path is its place in the wheel, and below lib/ in the build folder."""

    extension: str
    platform: str
    path: str

    @property
    def built(self) -> str:
        """Its path in the build folder."""
        return f"lib/{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """All commands of a build, in an order in which each input is made before it is used.

    launcher: the program that runs compilers (a compiler cache), or "". It is no part of any edge's words, so that what
    a build tells of itself is the same with it and without.
    """

    edges: tuple[Edge, ...]
    libraries: tuple[Library, ...]
    launcher: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """What a plan is made from, beside the configuration.

    cxx: the C++ compiler of host code. host_sources, host_flags, host_link_flags: those of the CPU executor,
    its folders copied below support/. torch_include: folders of the torch SDK's headers. uncompilable: targets that
    the toolchain was seen to refuse, each with the reason. launcher: the compiler cache's program, or "". words: for
    every compilation, of device and host code alike, such as include folders outside of the project.
    """

    stage: Stage
    targets: TargetSet | None
    toolchain: Toolchain | None
    cxx: str
    torch_include: tuple[str, ...] = ()
    host_sources: tuple[str, ...] = ()
    host_flags: tuple[str, ...] = ()
    host_link_flags: tuple[str, ...] = ()
    nvcc: str = ""
    prefix_maps: tuple[tuple[str, str], ...] = ()
    uncompilable: tuple[tuple[str, str], ...] = ()
    launcher: str = ""
    words: tuple[str, ...] = ()


def library_path(extension: str, platform: str) -> str:
    """Place of an extension's library in the wheel: `a.b.c` on rocm is `a/b/c_rocm.so`."""
    return "/".join(extension.split(".")) + f"_{platform}.so"


def make_plan(config: Config, given: PlanInput) -> BuildPlan:
    """All commands for all extensions and platforms of a configuration.

    Raises InputError for an extension without a source, a platform without what it needs, a target that
    the toolchain cannot compile.
    """
    if given.uncompilable:
        told = [f"{target} cannot be compiled by {_name(given)}: {reason}" for target, reason in given.uncompilable]
        raise InputError(joined(told), hint="`rocmbuild toolchain probe` shows what it compiles")
    faults = [
        f'tool.rocmbuild.extensions {extension.name!r}: torch = "full" is not built declaratively; '
        "wanted stable or none, or a setup.py of the project's own"
        for extension in config.extensions
        if extension.torch == "full"
    ]
    edges: list[Edge] = []
    libraries: list[Library] = []
    for extension in config.extensions:
        sources = [file.source for file in given.stage.matching(extension.sources)]
        if not sources:
            faults.append(
                f"tool.rocmbuild.extensions {extension.name!r}: no file of {config.project} "
                f"matches sources {list(extension.sources)}"
            )
            continue
        for platform in config.platforms:
            library = Library(extension=extension.name, platform=platform, path=library_path(extension.name, platform))
            libraries.append(library)
            maker = _Maker(config, given, extension, platform, library)
            edges += {"rocm": maker.rocm, "host": maker.host, "cuda": maker.cuda}[platform](sources)
    if faults:
        raise InputError(joined(faults), hint="correct [[tool.rocmbuild.extensions]] in pyproject.toml")
    return BuildPlan(edges=tuple(edges), libraries=tuple(libraries), launcher=given.launcher)


def _name(given: PlanInput) -> str:
    return f"the toolchain {given.toolchain.name}" if given.toolchain else "this toolchain"


class _Maker:
    """The commands of one extension on one platform."""

    def __init__(self, config: Config, given: PlanInput, extension: Extension, platform: str, library: Library) -> None:
        self.config = config
        self.given = given
        self.extension = extension
        self.platform = platform
        self.library = library
        self.objects = f"obj/{extension.name}/{platform}"

    def edge(self, kind: str, *, output: str, argv: Sequence[str], **rest: object) -> Edge:
        return Edge(
            kind=kind,
            platform=self.platform,
            extension=self.extension.name,
            output=output,
            argv=tuple(argv),
            **rest,  # type: ignore[arg-type]
        )

    # The flags that more than one kind of command shares

    def optimisation(self, level: str) -> tuple[str, ...]:
        return ("-O1", "-g") if self.config.debug else (level,)

    def paths(self) -> tuple[str, ...]:
        """Include folders of the project, and the path-prefix map."""
        tree = self.tree
        includes = [f"-I{tree}/{folder}" if folder != "." else f"-I{tree}" for folder in self.extension.include_dirs]
        maps = [f"-ffile-prefix-map={old}={new}" for old, new in self.given.prefix_maps]
        return (*includes, *self.given.words, *maps)

    @property
    def tree(self) -> str:
        return "src/cuda" if self.platform == "cuda" else "src/hip"

    def defines(self) -> tuple[str, ...]:
        """Defines of the platform and of the project."""
        words = [f"-DROCMBUILD_PLATFORM_{self.platform.upper()}=1"]
        if self.platform == "host" or "host" not in self.config.platforms:
            words.append("-DROCMBUILD_DEFINE_SCHEMAS=1")
        if self.platform == "rocm":
            words.append("-DUSE_ROCM=1")
        words += [f"-D{name}={value}" if value else f"-D{name}" for name, value in self.extension.defines]
        return tuple(words)

    def staged(self, source: str) -> str:
        """Where a source stands in the build folder: CUDA compiles what the project wrote, the others the HIPified."""
        name = source if self.platform == "cuda" else self.given.stage.output_of(source)
        return f"{self.tree}/{name}"

    def object(self, source: str, suffix: str) -> str:
        return f"{self.objects}/{source}{suffix}"

    # Kinds of commands

    def cxx(self, source: str) -> Edge:
        """A C++ source, by the host's compiler."""
        staged = self.staged(source)
        output = self.object(source, ".o")
        torch: tuple[str, ...] = ()
        implicit: tuple[str, ...] = ("support/cxx.json",)
        if self.extension.torch == "stable":
            torch = (
                f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
                *(f"-isystem{folder}" for folder in self.given.torch_include),
            )
            implicit = (*implicit, "support/torch_sdk.json")
        argv = (
            self.given.cxx,
            *("-c", staged, "-o", output, "-std=c++20", *self.optimisation("-O2"), "-fPIC"),
            *_HIDDEN_GNU,
            *self.defines(),
            *self.paths(),
            *torch,
            *self.extension.cxx_flags,
            *("-MD", "-MF", f"{output}.d"),
        )
        return self.edge(
            "cxx", source=source, inputs=(staged,), implicit=implicit, output=output, argv=argv, depfile=f"{output}.d"
        )

    def rocm(self, sources: Sequence[str]) -> list[Edge]:
        """Device code by target, its bundle, the host object around the bundle, the library."""
        toolchain, targets = self.given.toolchain, self.given.targets
        if toolchain is None or targets is None:
            raise InputError(f"{self.extension.name}: the platform rocm needs a toolchain and targets")
        edges: list[Edge] = []
        objects: list[str] = []
        for source in sources:
            suffix = PurePosixPath(source).suffix
            if suffix in CXX_SUFFIXES:
                edges.append(self.cxx(source))
            elif suffix in DEVICE_SUFFIXES:
                edges += self.device_unit(source, toolchain, targets)
            else:
                raise InputError(
                    f"{source}: rocmbuild cannot compile files that end in {suffix or 'nothing'}",
                    hint=f"sources end in one of {', '.join(sorted(DEVICE_SUFFIXES | CXX_SUFFIXES))}",
                )
            objects.append(edges[-1].output)
        return [*edges, *self.link(objects)]

    def hip_flags(self, source: str, toolchain: Toolchain) -> tuple[str, ...]:
        """What the device and the host half of one HIP unit share; they must agree on all of it."""
        return (
            *("-x", "hip", "-std=c++17", *self.optimisation("-O3"), "-D__HIP_PLATFORM_AMD__=1"),
            *("-Wno-unused-command-line-argument", f"-cuid={hashlib.sha256(source.encode()).hexdigest()[:16]}"),
            f"-DROCMBUILD_TOOLCHAIN={_toolchain_digest(toolchain)}",
            *self.defines(),
            *self.paths(),
            *toolchain.compile_flags(),
        )

    def device_unit(self, source: str, toolchain: Toolchain, targets: TargetSet) -> list[Edge]:
        staged = self.staged(source)
        shared = self.hip_flags(source, toolchain)
        stamps = ("support/toolchain.json",)
        guard = "support/include/rocmbuild/wave32.h"
        edges = []
        codes = []
        for target in targets.names:
            code = self.object(source, f".{target}.co")
            argv = (
                str(toolchain.clang),
                *("-c", staged, "-o", code, "--offload-device-only", "--no-gpu-bundle-output"),
                *(f"--offload-arch={target}", "-mno-wavefrontsize64", "-include", guard),
                *(("-mcode-object-version=6",) if is_generic(target) else ()),
                *shared,
                *self.extension.device_flags,
                # -MD writes nothing in a device-only compilation
                *("-Xclang", "-dependency-file", "-Xclang", f"{code}.d", "-Xclang", "-MT", "-Xclang", code),
            )
            edges.append(
                self.edge(
                    "device",
                    target=target,
                    source=source,
                    inputs=(staged,),
                    implicit=stamps,
                    output=code,
                    argv=argv,
                    depfile=f"{code}.d",
                )
            )
            codes.append(code)
        bundle = self.object(source, ".hipfb")
        names = ["host-x86_64-unknown-linux-gnu-", *(f"hipv4-amdgcn-amd-amdhsa--{name}" for name in targets.names)]
        edges.append(
            self.edge(
                "bundle",
                source=source,
                inputs=tuple(codes),
                implicit=stamps,
                output=bundle,
                argv=(
                    str(toolchain.bundler),
                    *("-type=o", "-bundle-align=4096", "-compress", f"-targets={','.join(names)}"),
                    *("-input=/dev/null", *(f"-input={code}" for code in codes), f"-output={bundle}"),
                ),
                env=(("COMPRESSED_BUNDLE_FORMAT_VERSION", BUNDLE_FORMAT),),
            )
        )
        output = self.object(source, ".o")
        edges.append(
            self.edge(
                "host",
                source=source,
                inputs=(staged,),
                implicit=(bundle, *stamps),
                output=output,
                argv=(
                    str(toolchain.clang),
                    *("-c", staged, "-o", output, "--offload-host-only", "-fPIC", *_HIDDEN),
                    *shared,
                    # A compiler cache does not know the bundle, and one that preprocesses leaves macros out of its
                    # key; the header puts the digest into the preprocessed text.
                    *(f"-DROCMBUILD_BUNDLE_DIGEST={DIGEST_MARK}{bundle}@", "-include", _BUNDLE_HEADER),
                    *("-Xclang", "-fcuda-include-gpubinary", "-Xclang", bundle),
                    *("-MD", "-MF", f"{output}.d"),
                ),
                depfile=f"{output}.d",
            )
        )
        return edges

    def host(self, sources: Sequence[str]) -> list[Edge]:
        """The HIPified sources and the CPU executor, all by the C++ compiler."""
        edges: list[Edge] = []
        flags = self.given.host_flags
        for source in sources:
            if PurePosixPath(source).suffix in CXX_SUFFIXES:
                edges.append(self.cxx(source))
                continue
            staged = self.staged(source)
            edges.append(self.executor_unit(staged, source, self.object(source, ".o"), flags, ("-x", "c++")))
        for runtime in self.given.host_sources:
            output = f"{self.objects}/executor/{PurePosixPath(runtime).name}.o"
            edges.append(self.executor_unit(runtime, None, output, flags, ()))
        return [*edges, *self.link([edge.output for edge in edges])]

    def cuda(self, sources: Sequence[str]) -> list[Edge]:
        """The untouched sources by nvcc; the CUDA runtime, too, is the one that torch has loaded."""
        edges: list[Edge] = []
        hidden = ",".join(("-fPIC", *_HIDDEN_GNU, *(f"-ffile-prefix-map={a}={b}" for a, b in self.given.prefix_maps)))
        includes = [word for word in self.paths() if word.startswith("-I")]
        for source in sources:
            if PurePosixPath(source).suffix in CXX_SUFFIXES:
                edges.append(self.cxx(source))
                continue
            staged, output = self.staged(source), self.object(source, ".o")
            argv = (
                *(self.given.nvcc, "-x", "cu", "-c", staged, "-o", output, "-std=c++17"),
                *self.optimisation("-O3"),
                *(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in self.config.cuda_archs),
                *("-ccbin", self.given.cxx, "-Xcompiler", hidden, "--threads", "0", "--cudart", "none"),
                *self.defines(),
                *includes,
                *("-MD", "-MF", f"{output}.d"),
            )
            edges.append(
                self.edge(
                    "cuda",
                    source=source,
                    inputs=(staged,),
                    implicit=("support/nvcc.json", "support/cxx.json"),
                    output=output,
                    argv=argv,
                    depfile=f"{output}.d",
                )
            )
        return [*edges, *self.link([edge.output for edge in edges])]

    def executor_unit(
        self, path: str, source: str | None, output: str, flags: tuple[str, ...], language: tuple[str, ...]
    ) -> Edge:
        argv = (
            self.given.cxx,
            *(*language, "-c", path, "-o", output, *self.optimisation("-O2"), "-fPIC", *_HIDDEN_GNU),
            *flags,
            *self.defines(),
            *self.paths(),
            *self.extension.cxx_flags,
            *("-MD", "-MF", f"{output}.d"),
        )
        return self.edge(
            "cxx",
            source=source,
            inputs=(path,),
            implicit=("support/cxx.json",),
            output=output,
            argv=argv,
            depfile=f"{output}.d",
        )

    def link(self, objects: Sequence[str]) -> list[Edge]:
        """The library, and where torch's C ABI is used the stub that gives it DT_NEEDED libtorch.so."""
        edges: list[Edge] = []
        needed: tuple[str, ...] = ()
        if self.extension.torch == "stable":
            stub = f"{self.objects}/stub/libtorch.so"
            edges.append(
                self.edge(
                    "stub",
                    inputs=("support/empty.c",),
                    implicit=("support/cxx.json",),
                    output=stub,
                    argv=(
                        self.given.cxx,
                        *("-x", "c", "support/empty.c", "-shared", "-fPIC", "-nostdlib", "-o", stub),
                        "-Wl,-soname,libtorch.so",
                    ),
                )
            )
            needed = ("-Wl,--no-as-needed", stub, "-Wl,--as-needed")
        strip = () if self.config.debug else ("-Wl,--strip-all",)
        link_flags = self.given.host_link_flags if self.platform == "host" else ()
        edges.append(
            self.edge(
                "link",
                inputs=tuple(objects),
                implicit=(*(edge.output for edge in edges), "support/cxx.json"),
                output=self.library.built,
                argv=(
                    self.given.cxx,
                    *("-shared", "-o", self.library.built, *objects, "-Wl,-z,now", "-Wl,-z,relro", *strip),
                    f"-Wl,-soname,{PurePosixPath(self.library.path).name}",
                    *needed,
                    *link_flags,
                    *self.extension.link_flags,
                ),
            )
        )
        return edges


_BUNDLE_HEADER = "support/include/rocmbuild/bundle.h"


def _toolchain_digest(toolchain: Toolchain) -> str:
    """What names a toolchain, its device libraries too, which a compiler cache does not know either."""
    return hashlib.sha256(repr(sorted(toolchain.identity().items())).encode()).hexdigest()[:16]


_HIDDEN = ("-fvisibility=hidden", "-fvisibility-inlines-hidden")
_HIDDEN_GNU = (*_HIDDEN, "-fno-gnu-unique")


def prefix_maps(
    build_dir: Path | None, toolchain: Toolchain | None, torch_include: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Maps that take the machine's paths out of debug information and __FILE__.

    build_dir: None where there is no debug information, which alone names it; then no command does either, and builders
    with folders of their own share a compiler cache.
    """
    maps = [] if build_dir is None else [(str(build_dir), ".")]
    if toolchain is not None:
        maps.append((str(toolchain.prefix), "/toolchain"))
    maps += [(folder, f"/torch{index}") for index, folder in enumerate(torch_include)]
    return tuple(maps)
