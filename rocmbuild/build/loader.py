"""Loads the native libraries that lie beside this file, those that the running torch can use.

Written into the wheel by its build; it needs the standard library, and torch where torch is installed.

A library is `<name>_<platform>.so`. The host library loads first: it defines the operators and serves CPU tensors. Then
comes the device library that torch was built for: `rocm` under a ROCm build, `cuda` under a CUDA build. The rocm
library is not linked against the HIP runtime, because the runtime has another file name in each distribution of ROCm,
and a second copy in one process breaks both (https://github.com/pytorch/pytorch/issues/141014). Its `hip*` symbols are
bound to the copy that torch has loaded already.

A library that cannot serve is never an error by itself: the report says why, and `LoadReport.require` raises when
nothing is left.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["PLATFORMS", "LoadReport", "bind_hip_runtime", "load", "served_targets"]

PLATFORMS = ("host", "rocm", "cuda")

_HERE = Path(__file__).absolute().parent  # links not followed: an installer may link each file on its own
_ISSUE = "https://github.com/pytorch/pytorch/issues/141014"
_ONE_COPY = "keep other copies out of LD_LIBRARY_PATH and LD_PRELOAD"
# libamdhip64.so in torch's wheels, libamdhip64.so.7.2.0 in ROCm's packages, libamdhip64-0123abcd.so.7 after auditwheel.
_RUNTIME_NAME = re.compile(r"libamdhip64(-[0-9a-f]+)?\.so(\.[0-9A-Za-z.+~-]+)?")
_TORCH_HIP_NAME = re.compile(r"lib(c10|torch)_hip\.so")
_PROBE = "hipGetDeviceCount"  # in every HIP runtime since the first

_LOCK = threading.RLock()
_REPORTS: dict[str, LoadReport] = {}
_HANDLES: list[ctypes.CDLL] = []  # a library stays loaded for the life of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What `load` did. Each platform that the wheel has, and the one that torch could use, is in `loaded` or `refused`.

    loaded: platform -> path of the library. refused: platform -> why, with the next step. runtime: path of the HIP
    runtime that the rocm library is bound to. targets: the cards that the rocm library was built for, as the wheel's
    evidence says; empty when it says nothing. hints: what else the user should know, warned about once too.
    """

    name: str
    loaded: Mapping[str, str]
    refused: Mapping[str, str]
    runtime: str | None = None
    targets: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The GPU platform that serves: "rocm", "cuda" or None."""
        return next((platform for platform in PLATFORMS[1:] if platform in self.loaded), None)

    def require(self) -> LoadReport:
        """The report itself; ImportError, naming every platform and its reason, when no library is loaded."""
        if self.loaded:
            return self
        reasons = [f"  - {platform}: {reason}" for platform, reason in self.refused.items()]
        raise ImportError("\n".join([f"no library of {self.name!r} could be loaded", *reasons]), name=self.name)


def load(name: str) -> LoadReport:
    """Load the libraries of the extension `name`, once per process; every further call returns the same report.

    name is the last part of the extension's dotted name: "gguf" for gguf_host.so and gguf_rocm.so. May be called from
    any thread. Raises ValueError for a name that is no file stem; what cannot be loaded is reported, not raised.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(f"not the name of a library: {name!r}")
    torch = _torch()  # outside the lock: importing torch may import other users of this loader
    with _LOCK:
        known = _REPORTS.get(name)
        report = known or _REPORTS.setdefault(name, _load(name, torch))
    if known is None:
        for hint in report.hints:
            warnings.warn(hint, RuntimeWarning, stacklevel=2)
    return report


def bind_hip_runtime() -> str:
    """Make the symbols of the HIP runtime in this process visible to libraries loaded later; returns its path.

    Needs no torch: whatever loaded the runtime will do. Of several copies torch's own is taken, else the one in
    front. Never loads a copy. Raises ImportError when there is none, or when another is in front of torch's.
    """
    with _LOCK:
        path, hints = _bind()
    for hint in hints:
        warnings.warn(hint, RuntimeWarning, stacklevel=2)
    return path


def served_targets() -> tuple[str, ...]:
    """The cards (gfx names) that this wheel's rocm libraries were built for; () when the wheel does not say."""
    for root in list(_HERE.parents)[:6]:
        for evidence in sorted(root.glob("*.dist-info/rocmbuild.json")):
            try:
                record = evidence.with_name("RECORD").read_text(encoding="utf-8")
                if f"{(_HERE / Path(__file__).name).relative_to(root).as_posix()}," not in record:
                    continue
                return tuple(str(target) for target in json.loads(evidence.read_text(encoding="utf-8"))["targets"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return ()


def _torch() -> Any:
    """The torch module, or None when it is not installed; an installed torch that fails to import raises as it does."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as err:
        if err.name != "torch":
            raise
        return None


def _load(name: str, torch: Any) -> LoadReport:
    files = {platform: path for platform in PLATFORMS if (path := _HERE / f"{name}_{platform}.so").exists()}
    if not files:
        others = sorted(path.name for path in _HERE.glob("*.so"))
        found = f"that folder holds {', '.join(others)}" if others else "that folder holds no library"
        reason = f"no {name}_<platform>.so lies in {_HERE} ({found}); install the wheel again"
        return LoadReport(
            name=name, loaded=MappingProxyType({}), refused=MappingProxyType(dict.fromkeys(PLATFORMS, reason))
        )

    loaded: dict[str, str] = {}
    refused: dict[str, str] = {}
    hints: list[str] = []
    runtime: str | None = None
    for platform, path in files.items():
        try:
            if "host" in refused:
                raise ImportError(f"{files['host'].name}, which defines the operators, did not load; mend that first")
            _check_build(platform, torch)
            if platform == "rocm":
                runtime, notes = _bind()
                hints += notes
            _open(path, torch, runtime)
        except ImportError as err:
            refused[platform] = str(err)
        else:
            loaded[platform] = str(path)
    wanted = _platform_of(torch)
    if wanted in files and wanted in refused:  # a GPU that would go unused without a word
        hints.append(f"{files[wanted].name} is not in use: {refused[wanted]}")
    elif wanted and wanted not in files:
        refused[wanted] = f"this wheel was built without it, for {', '.join(files)} alone"
    if "rocm" in files:
        hints += _override(os.environ)
    return LoadReport(
        name=name,
        loaded=MappingProxyType(loaded),
        refused=MappingProxyType(refused),
        runtime=runtime if "rocm" in loaded else None,
        targets=served_targets() if "rocm" in loaded else (),
        hints=tuple(hints),
    )


def _platform_of(torch: Any) -> str | None:
    """The platform whose library serves the GPUs of this build of torch; "host" for a CPU build, None without torch."""
    if torch is None:
        return None
    version = getattr(torch, "version", None)
    return "rocm" if getattr(version, "hip", None) else "cuda" if getattr(version, "cuda", None) else "host"


def _check_build(platform: str, torch: Any) -> None:
    """ImportError when a device library is not for the torch that runs. Without torch, what loads will do."""
    found = _platform_of(torch)
    if platform == "host" or found in {None, platform}:
        return
    names = {"host": "CPU", "rocm": "ROCm", "cuda": "CUDA"}
    card = {"rocm": "a Radeon card", "cuda": "an NVIDIA card"}[platform]
    raise ImportError(
        f"torch {getattr(torch, '__version__', '?')} is a {names[str(found)]} build; "
        f"to use {card} install a {names[platform]} build of torch"
    )


def _open(path: Path, torch: Any, runtime: str | None) -> None:
    """Load one library, its symbols to itself; ImportError with the dynamic linker's words when it refuses."""
    try:
        # ctypes adds RTLD_NOW: what is missing shows here, not in the middle of a call.
        _HANDLES.append(ctypes.CDLL(str(path), mode=os.RTLD_LOCAL))
    except OSError as err:
        text = str(err).replace("\n", " ")
        undefined = re.search(r"undefined symbol: ([^\s,]+)", text)
        symbol = undefined[1] if undefined else ""
        if torch is None and "libtorch" in text:
            step = "torch is not installed; install it"
        elif symbol.startswith(("aoti_torch_", "torch_")):
            step = f"torch {getattr(torch, '__version__', '?')} lacks what the library needs; install a newer torch"
        elif re.match(r"_*hip[A-Z]", symbol):
            step = f"the HIP runtime {runtime} lacks what the library needs; install a newer ROCm build of torch"
        else:
            step = "mend what the linker names, or install the wheel again"
        raise ImportError(f"{text}; {step}") from err


def _override(environ: Mapping[str, str]) -> list[str]:
    value = environ.get("HSA_OVERRIDE_GFX_VERSION")
    if not value:
        return []
    return [
        f"HSA_OVERRIDE_GFX_VERSION={value} makes the card pass for another one: its own kernels are not found, and "
        "those of the other card may compute wrong results; unset it"
    ]


# --- The HIP runtime of this process ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A mapping of a file in this process. deleted: replaced on disk since, by an upgrade for instance."""

    path: str
    address: int
    identity: tuple[str, str]  # device and inode: one file under two names is one copy
    deleted: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _loaded(name: re.Pattern[str]) -> list[_Mapped]:
    """The files of that name that the dynamic linker has loaded, each copy once; merely mapped ones do not count."""
    try:
        text = os.fsdecode(Path("/proc/self/maps").read_bytes())
    except OSError:
        return []
    copies: dict[tuple[str, str], _Mapped] = {}
    for file in _parse_maps(text):
        if file.identity not in copies and name.fullmatch(file.name) and _linked_name(file.address):
            copies[file.identity] = file
    return list(copies.values())


def _parse_maps(text: str) -> Iterator[_Mapped]:
    """The file mappings of /proc/self/maps (proc(5)), in order of address; a file has one for each of its segments."""
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        path = fields[5].replace("\\012", "\n")
        yield _Mapped(
            path=path.removesuffix(" (deleted)"),
            address=int(fields[0].partition("-")[0], 16),
            identity=(fields[3], fields[4]),
            deleted=path.endswith(" (deleted)"),
        )


def _linked_name(address: int) -> str | None:
    """The name under which the dynamic linker keeps the library at an address, or None.

    Opening it again by this name finds the loaded copy even when the file has been deleted or replaced.
    """
    info = _DlInfo()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info)) or not info.file:
        return None
    return os.fsdecode(info.file)


def _symbol(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(library[name], ctypes.c_void_p).value
    except AttributeError:
        return None


def _torch_runtime() -> str | None:
    """The linker's name of the HIP runtime that torch's own libraries depend on, or None when none is loaded."""
    for file in _loaded(_TORCH_HIP_NAME):
        library = ctypes.CDLL(_linked_name(file.address), mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
        address = _symbol(library, _PROBE)  # looked up in the library and in what it depends on
        if address is not None:
            return _linked_name(address)
    return None


def _bind() -> tuple[str, list[str]]:
    """Make the process's HIP runtime global. Returns its path and hints; ImportError says why it cannot be."""
    copies = _loaded(_RUNTIME_NAME)
    if not copies:
        raise ImportError("no HIP runtime (libamdhip64.so) is loaded in this process; a ROCm build of torch loads one")
    names = {copy: _linked_name(copy.address) or copy.path for copy in copies}
    torchs, in_front = _torch_runtime(), _global_runtime()
    wanted = torchs if torchs in names.values() else in_front
    chosen = next((copy for copy in copies if names[copy] == wanted), copies[0])
    hints = []
    if len(copies) > 1:
        listed = ", ".join(copy.path for copy in copies)
        whose = "the one that torch depends on" if names[chosen] == torchs else "the one in front"
        hints.append(
            f"{len(copies)} copies of the HIP runtime are loaded in this process: {listed}. {chosen.path} is used, "
            f"{whose}, but two copies break each other ({_ISSUE}); {_ONE_COPY}"
        )
    if chosen.deleted:
        hints.append(f"{chosen.path} has been replaced on disk since this process loaded it; restart the process")
    try:
        runtime = ctypes.CDLL(names[chosen], mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL)
    except OSError as err:
        raise ImportError(f"the HIP runtime {chosen.path} cannot be opened again ({err}); restart the process") from err
    if _symbol(runtime, _PROBE) is None:
        raise ImportError(f"{chosen.path} has no {_PROBE}, so it is no HIP runtime; install torch again")
    in_front = _global_runtime()
    for copy in copies:
        if copy is not chosen and names[copy] == in_front:
            raise ImportError(
                f"the HIP runtime {copy.path} is in front of {chosen.path}, which torch depends on, so the library "
                f"would call the wrong one ({_ISSUE}); {_ONE_COPY}"
            )
    _HANDLES.append(runtime)
    return chosen.path, hints


def _global_runtime() -> str | None:
    """The linker's name of what a library loaded now would find first for the runtime's functions."""
    address = _symbol(ctypes.CDLL(None), _PROBE)
    return None if address is None else _linked_name(address)
