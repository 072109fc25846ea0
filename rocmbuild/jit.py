"""`rocmbuild.load`: build an extension at its first use, and load it.

The signature is that of torch.utils.cpp_extension.load, so that a script changes its import. What differs: the build is
rocmbuild's own (staged, guarded, audited, incremental by every header), on a machine without a card too, where the CPU
executor serves; the lock is the operating system's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rocmbuild import pipeline
from rocmbuild.config import PLATFORMS, Config, Extension, check_platform, load_config
from rocmbuild.errors import CheckError, EnvironmentFailure, InputError, joined, nearest
from rocmbuild.paths import cache_dir, write_atomic
from rocmbuild.targets import ARCH_ENV, TargetSet, asked_targets, native_targets, parse_targets, smuggled

__all__ = ["load"]

_loaded: dict[str, str] = {}  # of operators: name -> digest of its libraries, which a process takes in once


def load(  # noqa: PLR0917 (torch's signature)
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike[str]] | None = None,
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
    *,
    platforms: Sequence[str] | None = None,
    targets: str | None = None,
    toolchain: str | None = None,
    debug: bool = False,
    jobs: int | None = None,
) -> Any:
    """Build the extension `name` from CUDA and C++ sources where that is not done yet, and load it.

    is_python_module: the sources hold PYBIND11_MODULE(TORCH_EXTENSION_NAME, m); the module is returned. Otherwise they
    register operators (torch's stable C ABI, or its C++ one), which torch.ops then has; the path of the library is
    returned. platforms: rocm, cuda, host; by default the one of this process's torch: host, the CPU executor, for a CPU
    build. with_cuda=False is host; with_cuda=True wants a GPU build of torch. targets: as in FREETOKEN_ROCM_ARCH; by
    default that variable, then PYTORCH_ROCM_ARCH, then the cards of this machine. extra_cuda_cflags: for device code;
    the executor takes the defines and include folders among them. build_directory: by default a folder of the user's
    cache, by name, sources and flags.

    Nothing is compiled where nothing has changed, edited headers included. Processes that ask at once share one build;
    the lock ends with its holder, killed or not. Raises InputError for arguments that make no sense or a call that this
    process cannot follow, CheckError with the compiler's lines, EnvironmentFailure.
    """
    _refuse(name, extra_sycl_cflags, with_sycl, is_standalone, keep_intermediates)
    torch = _torch()
    config, words = _config(
        name,
        [sources] if isinstance(sources, str | os.PathLike) else list(sources),
        torch,
        cflags=list(extra_cflags or ()),
        device_flags=list(extra_cuda_cflags or ()),
        ldflags=list(extra_ldflags or ()),
        include=[Path(path).absolute() for path in extra_include_paths or ()],
        build_directory=Path(build_directory) if build_directory else None,
        platforms=_platforms(platforms, torch, with_cuda),
        module=is_python_module,
        targets=targets,
        options={"toolchain": toolchain, "debug": debug, "jobs": jobs, "verbose": verbose},
    )
    libraries = _build(config, words)
    return _module(name, libraries[0]) if is_python_module else _operators(name, libraries)


def _refuse(name: str, sycl_flags: object, sycl: object, standalone: bool, keep: bool) -> None:
    import platform

    check_platform(platform.system(), platform.machine())
    faults = []
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        faults.append(f"name: found {name!r}, wanted a Python identifier")
    if sycl or sycl_flags:
        faults.append("with_sycl, extra_sycl_cflags: SYCL is not built; leave them out")
    if standalone:
        faults.append("is_standalone: programs are not built, only libraries that are loaded")
    if not keep:
        faults.append("keep_intermediates=False: objects are kept, so that the next call compiles only what changed")
    if faults:
        raise InputError(f"rocmbuild.load: {joined(faults)}")


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as err:
        raise EnvironmentFailure(f"rocmbuild.load loads into torch, and {err}", hint="install torch") from None


def _platforms(given: Sequence[str] | None, torch: Any, with_cuda: bool | None) -> tuple[str, ...]:
    """The platforms to build: those given, or the one that this torch can use."""
    own = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "host"
    if given is None:
        if with_cuda and own == "host":
            raise InputError(
                f"rocmbuild.load: with_cuda=True, and torch {torch.__version__} is a CPU build",
                hint="install a ROCm build of torch, or leave with_cuda out: the CPU executor then runs the kernels",
            )
        return ("host",) if with_cuda is False else (own,)
    for platform in given:
        if platform not in PLATFORMS:
            near = nearest(platform, PLATFORMS)
            raise InputError(
                f"rocmbuild.load: platforms: found {platform!r}, wanted some of {', '.join(PLATFORMS)}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
    if not {own, "host"} & set(given):
        raise InputError(
            f"rocmbuild.load: platforms {', '.join(given)}: torch {torch.__version__} can load {own} and host alone",
            hint="build a wheel to compile for another platform: rocmbuild build",
        )
    return tuple(dict.fromkeys(given))


def _targets(given: str | None, platforms: Sequence[str]) -> TargetSet | None:
    if "rocm" not in platforms:
        return None
    if found := asked_targets(given, os.environ, source="targets"):
        return found
    cards = native_targets()
    if not cards:
        raise InputError("rocmbuild.load: no target, and no AMD card is here", hint=f"set {ARCH_ENV}, or give targets=")
    return parse_targets(";".join(cards), source="the cards of this machine")


def _config(
    name: str,
    sources: Sequence[str | os.PathLike[str]],
    torch: Any,
    *,
    cflags: list[str],
    device_flags: list[str],
    ldflags: list[str],
    include: list[Path],
    build_directory: Path | None,
    platforms: tuple[str, ...],
    module: bool,
    targets: str | None,
    options: Mapping[str, Any],
) -> tuple[Config, tuple[str, ...]]:
    """The configuration of the build, and the words for every compilation beside it."""
    if module and len(platforms) > 1:
        raise InputError("rocmbuild.load: a Python module is built for one platform; name one, or register operators")
    files = [Path(os.path.realpath(source)) for source in sources]
    faults = [f"sources: {path}: no such file" for path in files if not path.is_file()]
    faults += ["sources: found none"] if not files else []
    faults += [f"extra flags: {reason}" for reason in smuggled([*cflags, *device_flags, *ldflags])]
    if faults:
        raise InputError(f"rocmbuild.load: {joined(faults)}", hint="targets are given as targets=, or by the variable")
    root, inside, outside = _root(files, include)
    defines = [word[2:].partition("=") for word in device_flags if word.startswith("-D")]
    passed = [word for word in device_flags if not word.startswith(("-D", "-I"))]
    words = [f"-I{path}" for path in outside] + [word for word in device_flags if word.startswith("-I")]
    if module:
        words += _torch_words(torch)
        defines.append(("TORCH_EXTENSION_NAME", "=", name))
        ldflags = [*_torch_links(torch, platforms[0]), *ldflags]
    key = json.dumps(
        [
            *(name, list(map(str, files)), cflags, device_flags, ldflags, list(map(str, include)), platforms, module),
            *(torch.__version__, sys.version if module else "", options["debug"], options["toolchain"]),
        ]
    )
    build_dir = cache_dir() / "builds" / f"jit-{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    extension = Extension(
        name=f"{name}.{name}",
        sources=tuple(path.relative_to(root).as_posix() for path in files),
        include_dirs=tuple(path.relative_to(root).as_posix() for path in inside),
        defines=tuple((word, value) for word, _, value in defines),
        torch="none" if module else "stable",
        cxx_flags=tuple(cflags),
        device_flags=tuple(passed),
        link_flags=tuple(ldflags),
    )
    place = (build_directory or build_dir).absolute()
    write_atomic(place / "settings" / "pyproject.toml", b"")  # what else can be set comes from the environment
    settings = {option: str(value).lower() if option != "toolchain" else value for option, value in options.items()}
    base = load_config(
        place / "settings",
        settings={option: value for option, value in settings.items() if options[option] not in (None, False)},
        environ=os.environ,
        want_targets=False,
    )
    config = replace(
        base,
        project=root,
        targets=_targets(targets, platforms),
        platforms=platforms,
        extensions=(extension,),
        build_dir=place,
    )
    return config, tuple(words)


def _root(files: Sequence[Path], include: Sequence[Path]) -> tuple[Path, list[Path], list[Path]]:
    """The folder that is staged: around all sources and the include folders near them; then the latter, and the others.

    An include folder is near when it lies beside the sources' folder or below its parent.
    """
    root = Path(os.path.commonpath([path.parent for path in files]))
    real = [Path(os.path.realpath(path)) for path in include]
    around = root.parent
    near = [path for path in real if path.is_relative_to(root) or (around.parent != around and around in path.parents)]
    if any(not path.is_relative_to(root) for path in near):
        root = around
    return root, [path for path in near if path.is_dir()], [path for path in real if path not in near]


def _torch_words(torch: Any) -> list[str]:
    """Include folders of torch's and Python's own headers."""
    home = Path(torch.__file__).parent / "include"
    folders = [home, home / "torch/csrc/api/include", Path(sysconfig.get_paths()["include"])]
    return [f"-I{folder}" for folder in folders] + [
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        "-std=c++20",  # which torch's headers want; the last one counts
    ]


def _torch_links(torch: Any, platform: str) -> list[str]:
    device = {"rocm": ("c10_hip", "torch_hip"), "cuda": ("c10_cuda", "torch_cuda"), "host": ()}[platform]
    names = ("c10", "torch_cpu", "torch", "torch_python", *device)
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-Wl,--no-as-needed", *(f"-l{name}" for name in names)]


def _build(config: Config, words: tuple[str, ...]) -> list[Path]:
    """Build under the lock; the libraries, under names of their own that no later build writes to."""
    from rocmbuild.audit.report import audit
    from rocmbuild.staging.upkeep import mark_build

    with pipeline.locked(config.build_dir):
        prepared = pipeline.prepare(config, os.environ, words=words)
        mark_build(config.build_dir, config.project, editable=False)
        _, record = pipeline.compile_project(prepared, dict(os.environ), quiet=not config.verbose)
        built = [config.build_dir / library.built for library in prepared.plan.libraries]
        report = audit(built, record=record, targets=prepared.targets.names if prepared.targets else ())
        report.require_ok("rocmbuild.load: ")
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in built)).hexdigest()[:16]
        place = config.build_dir / "loaded" / digest
        for path in built:
            if not (place / path.name).is_file():
                write_atomic(place / path.name, path.read_bytes())
        loader = Path(__file__).parent / "build" / "loader.py"
        write_atomic(place / pipeline.LOADER, loader.read_bytes())
        _forget(config.build_dir / "loaded", keep=place)
        return [place / path.name for path in built]


def _forget(folder: Path, *, keep: Path, count: int = 4) -> None:
    """Remove all but the newest few: processes that run have theirs open, which removal does not take from them."""
    others = sorted((path for path in folder.iterdir() if path != keep), key=lambda path: path.stat().st_mtime)
    for path in others[: -count or None]:
        shutil.rmtree(path, ignore_errors=True)


def _module(name: str, library: Path) -> ModuleType:
    """The module that a library holds, under this name whatever its file is called."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(library):
        return known
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise CheckError(f"rocmbuild.load: {library} is no library that Python can import")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as err:
        raise CheckError(
            f"rocmbuild.load: {name} was built and does not load: {err}",
            hint="the sources need PYBIND11_MODULE(TORCH_EXTENSION_NAME, m); is_python_module=False is for operators",
        ) from err
    sys.modules[name] = module
    return module


def _operators(name: str, libraries: Sequence[Path]) -> str:
    """Load the libraries, the host's first, and return the path of the one that serves this torch."""
    place = libraries[0].parent
    if _loaded.get(name) == place.name:
        return str(libraries[0])
    if name in _loaded:
        raise InputError(
            f"rocmbuild.load: operators of {name} are loaded already, and their sources have changed since",
            hint="start a new process: operators cannot be registered twice",
        )
    spec = importlib.util.spec_from_file_location(f"_rocmbuild_loader_{place.name}", place / pipeline.LOADER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    report = module.load(name).require()
    _loaded[name] = place.name
    return str(report.loaded.get(report.device or "host") or next(iter(report.loaded.values())))
