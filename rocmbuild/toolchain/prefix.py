"""One prefix like /opt/rocm, from unpacked Debian packages: what compiles, links, bundles and reads, and no more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rocmbuild.errors import EnvironmentFailure
from rocmbuild.toolchain.debian import Available, Dependency
from rocmbuild.toolchain.elf import read_dynamic, runpath_to_rpath
from rocmbuild.toolchain.packages import SYSTEM_LIBRARIES, Unpacked
from rocmbuild.toolchain.stubs import exported, needed_from, write_stub

__all__ = ["TRIPLE", "lay_out"]

TRIPLE = "x86_64-linux-gnu"
_TOOLS = """
    amdgpu-arch clang clang++ clang-cpp clang-linker-wrapper clang-offload-bundler clang-offload-packager
    clang-scan-deps ld.lld lld llc llvm-addr2line llvm-ar llvm-as llvm-bcanalyzer llvm-cxxfilt llvm-dis
    llvm-dwarfdump llvm-extract llvm-link llvm-mc llvm-nm llvm-objcopy llvm-objdump llvm-offload-binary
    llvm-offload-wrapper llvm-profdata llvm-ranlib llvm-readelf llvm-readobj llvm-size llvm-strip llvm-symbolizer
    offload-arch opt
"""
_COMPILER_RT = ("libclang_rt.builtins-*.a", "clang_rt.crtbegin-*.o", "clang_rt.crtend-*.o")
_HIP_LIBRARIES = ("libamdhip64", "libhiprtc", "libhiprtc-builtins", "libhsa-runtime64")
_CMAKE = ("hip", "hip-lang", "hiprtc", "hsa-runtime64")
_LINK_ONLY = "this copy is for linking only; run the program where ROCm's runtime is, or with torch's own"

_UNUSED = {
    r"libcurl\.so\.\d+": ("curl_", "no debug information is fetched from the network"),
    r"libxml2\.so\.\d+": ("xml", "Windows manifests cannot be merged"),
    r"libz3\.so\.\d+": ("Z3_", "the static analyzer cannot use Z3"),
}
"""Libraries that LLVM links and that no HIP compilation calls: their like in the prefix has the names alone, so that
some 70 MB, and a network stack that nobody would update, stay out of it."""

_COMGR = """# The code object manager is met where programs run; CMake packages of HIP ask for its name here.
if(NOT TARGET amd_comgr)
  add_library(amd_comgr INTERFACE IMPORTED)
endif()
set(amd_comgr_FOUND TRUE)
"""
_FORWARD = """set(_rocmbuild_real "${{CMAKE_CURRENT_LIST_DIR}}/../../{triple}/cmake/{package}")
get_filename_component(_rocmbuild_real "${{_rocmbuild_real}}" ABSOLUTE)
include("${{_rocmbuild_real}}/{file}")
"""


def lay_out(
    unpacked: Unpacked,
    tree: Path,
    *,
    llvm: int,
    release: str,
    math: Sequence[str],
    choose: Callable[[Dependency], Available | None],
) -> None:
    """Make the prefix. release: ROCm's, as 7.2.4. math: packages of which the headers are taken.

    choose: where a missing library of the compiler comes from.
    """
    usr = unpacked.root / "usr"
    home = tree / "lib/llvm"
    _copy_compiler(unpacked, usr / f"lib/llvm-{llvm}", home, llvm=llvm, choose=choose)
    clang = home / "bin/clang"
    _copy_hip(usr, tree, clang)
    for package in math:
        _copy_math(unpacked, package, tree)
    _link_like_rocm(tree, llvm, release)


def _copy_compiler(
    unpacked: Unpacked, source: Path, home: Path, *, llvm: int, choose: Callable[[Dependency], Available | None]
) -> None:
    tools = _copy_tools(source / "bin", home / "bin")
    shutil.copytree(source / "lib/clang", home / "lib/clang", symlinks=True, ignore=_ignore_runtimes)
    needed = unpacked.closure(
        [(home / "bin" / tool, owner) for tool, owner in _owners(tools, llvm).items()],
        choose=choose,
        provided=lambda soname: soname in SYSTEM_LIBRARIES or _unused(soname) is not None,
    )
    for soname, library in needed.items():
        shutil.copy2(library, home / "lib" / soname)
    files = [*(home / "bin" / tool for tool in tools), *(home / "lib" / soname for soname in needed)]
    for path in files:
        _hold_own_libraries(path)
    _stand_in(files, home)


def _ignore_runtimes(folder: str, names: list[str]) -> set[str]:
    """Of compiler-rt, the part that links plain programs; sanitizers and the like are ten times its size."""
    if Path(folder).name != "linux":
        return set()
    return {name for name in names if not any(Path(name).match(pattern) for pattern in _COMPILER_RT)}


def _unused(soname: str) -> tuple[str, str] | None:
    return next((value for pattern, value in _UNUSED.items() if re.fullmatch(pattern, soname)), None)


def _stand_in(files: Iterable[Path], home: Path) -> None:
    """The names of the libraries that nothing here calls.

    The compiler cannot run without them, so the system's makes the first ones; then it makes its own, so that the same
    packages give the same bytes on any machine.
    """
    users: dict[str, list[Path]] = {}
    for path in files:
        dynamic = read_dynamic(path)
        for soname in dynamic.needed if dynamic else ():
            if _unused(soname):
                users.setdefault(soname, []).append(path)
    system = next(filter(None, map(shutil.which, ("gcc", "cc"))), None)
    if users and system is None:
        raise EnvironmentFailure("no C compiler: neither gcc nor cc is on PATH", hint="apt-get install g++")
    for compiler in (Path(str(system)), home / "bin/clang"):
        for soname, paths in users.items():
            pattern, why = _unused(soname) or ("", "")
            made = home / "lib" / f".new-{soname}"
            write_stub(
                made,
                soname=soname,
                symbols=needed_from(paths, pattern),
                compiler=compiler,
                why=f"{soname}: {why}",
                quiet=soname.startswith("libcurl"),  # tools set it up before they know whether they will use it
            )
            made.rename(home / "lib" / soname)


def _copy_tools(source: Path, target: Path) -> list[str]:
    """Copy the tools that are kept, links as links; return the real files' names."""
    target.mkdir(parents=True)
    real = []
    pending = _TOOLS.split()
    done: set[str] = set()
    while pending:
        name = pending.pop()
        path = source / name
        if name in done or not path.exists():
            continue
        done.add(name)
        if path.is_symlink():
            link = path.readlink()
            (target / name).symlink_to(link.name)
            pending.append(link.name)
        else:
            shutil.copy2(path, target / name)
            real.append(name)
    return sorted(real)


def _owners(tools: Sequence[str], llvm: int) -> dict[str, str]:
    """The package of each tool, so that its libraries are looked for among that package's dependencies."""
    stems = {"lld": f"lld-{llvm}", "clang-offload-bundler": f"clang-tools-{llvm}", "clang": f"clang-{llvm}"}
    return {tool: stems.get(tool, f"llvm-{llvm}") for tool in tools}


def _hold_own_libraries(path: Path) -> None:
    dynamic = read_dynamic(path)
    if dynamic is not None and dynamic.runpath:
        path.chmod(path.stat().st_mode | 0o200)
        runpath_to_rpath(path)


def _copy_hip(usr: Path, tree: Path, clang: Path) -> None:
    for name in ("hip", "hsa"):
        if (usr / "include" / name).is_dir():
            shutil.copytree(usr / "include" / name, tree / "include" / name, symlinks=True)
    version = usr / "share/hip/version"
    if version.is_file():
        (tree / "share/hip").mkdir(parents=True)
        shutil.copyfile(version, tree / "share/hip/version")
    libraries = tree / "lib" / TRIPLE
    libraries.mkdir(parents=True)
    found = [path for stem in _HIP_LIBRARIES for path in sorted((usr / "lib" / TRIPLE).glob(f"{stem}.so*"))]
    for library in found:
        if library.is_symlink():
            (libraries / library.name).symlink_to(library.readlink())
        else:
            dynamic = read_dynamic(library)
            soname = dynamic.soname if dynamic else library.name
            write_stub(
                libraries / library.name,
                soname=soname,
                symbols=exported(library),
                compiler=clang,
                why=f"{soname}: {_LINK_ONLY}",
            )
        (tree / "lib" / library.name).symlink_to(f"{TRIPLE}/{library.name}")
    cmake = usr / "lib" / TRIPLE / "cmake"
    for folder in (cmake / name for name in _CMAKE):
        if folder.is_dir():
            shutil.copytree(folder, libraries / "cmake" / folder.name, symlinks=True)
            _forward(tree, folder)
    comgr = tree / "lib/cmake/amd_comgr"
    comgr.mkdir(parents=True)
    (comgr / "amd_comgr-config.cmake").write_text(_COMGR)


def _forward(tree: Path, package: Path) -> None:
    """lib/cmake is where AMD has its packages; a link there would make them compute another prefix."""
    folder = tree / "lib/cmake" / package.name
    folder.mkdir(parents=True)
    for file in sorted(package.glob("*onfig*.cmake")):
        if re.fullmatch(r".*[-]?[cC]onfig(-version|Version)?\.cmake", file.name):
            text = _FORWARD.format(triple=TRIPLE, package=package.name, file=file.name)
            (folder / file.name).write_text(text)


def _copy_math(unpacked: Unpacked, package: str, tree: Path) -> None:
    """A package's headers, and its CMake files where it is headers alone."""
    usr = unpacked.root / "usr"
    headers_alone = not any(".so" in path.name for path in unpacked.files_of(package))
    for path in unpacked.files_of(package):
        if not path.is_relative_to(usr):
            continue
        relative = path.relative_to(usr)
        if relative.parts[0] == "include":
            target = tree / relative
        elif headers_alone and "cmake" in relative.parts:
            target = tree / "lib/cmake" / Path(*relative.parts[relative.parts.index("cmake") + 1 :])
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)


def _link_like_rocm(tree: Path, llvm: int, release: str) -> None:
    """The names that tools expect below a ROCm folder."""
    libs = tree / f"lib/llvm/lib/clang/{llvm}/amdgcn"
    if libs.is_dir():
        (tree / "amdgcn").symlink_to(libs.relative_to(tree))
    (tree / "llvm").symlink_to("lib/llvm")
    (tree / ".info").mkdir()
    (tree / ".info/version").write_text(f"{release}\n")
    binaries = tree / "bin"
    binaries.mkdir()
    for path in sorted((tree / "lib/llvm/bin").iterdir()):
        (binaries / path.name).symlink_to(f"../lib/llvm/bin/{path.name}")
    for name in ("clang", "clang++"):
        (binaries / f"amd{name}").symlink_to(f"../lib/llvm/bin/{name}")
    for name in ("hipcc", "hipconfig", "rocm_agent_enumerator"):
        script = binaries / name
        script.write_bytes(Path(__file__).with_name(f"{name}.in").read_bytes())
        script.chmod(0o755)
