"""The wheel's loader, on real shared libraries, each case in a process of its own.

Stand-ins: a HIP runtime under its two kinds of name, a device library that leaves `hip*` undefined, and a torch package
that says which build it is and loads what such a build loads. Against AMD's own runtime: test_runtime.py.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import require

from rocmbuild.build import loader

RUNTIME = """
int hipGetDeviceCount(int *count) { *count = 0; return 100; }
int hipIdentity(void) { return ID; }
static int registered;
void **__hipRegisterFatBinary(const void *data) { ++registered; return 0; }
int hipRegistered(void) { return registered; }
"""
DEVICE = """
void **__hipRegisterFatBinary(const void *);
int hipIdentity(void);
int hipRegistered(void);
#ifdef MISSING
int hipFromTheFuture(void);
int future(void) { return hipFromTheFuture(); }
#endif
__attribute__((constructor)) static void start(void) { __hipRegisterFatBinary(0); }
int identity(void) { return hipIdentity(); }
int registered(void) { return hipRegistered(); }
"""
SLOW = """
#include <unistd.h>
__attribute__((constructor)) static void start(void) { usleep(300000); }
"""
PRELUDE = """
import ctypes, json, os, sys, warnings
from pathlib import Path

def show(report, **more):
    print(json.dumps({"loaded": dict(report.loaded), "refused": dict(report.refused), "runtime": report.runtime,
                      "hints": list(report.hints), "targets": list(report.targets), "device": report.device, **more}))

def identity(report):
    return ctypes.CDLL(report.loaded["rocm"]).identity()
"""


def compile_library(path: Path, source: str, *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc") or require("a C compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = [compiler, "-x", "c", "-", "-x", "none", "-shared", "-fPIC", "-o", os.fspath(path), *flags]
    subprocess.run(argv, input=source, text=True, check=True)
    return path


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once: the runtime as versioned/, plain/ and third/ name it; rocm.so, future.so, host.so, slow.so."""
    root = tmp_path_factory.mktemp("loader parts")
    compile_library(root / "versioned/libamdhip64.so.7", RUNTIME, "-DID=7", "-Wl,-soname,libamdhip64.so.7")
    compile_library(root / "plain/libamdhip64.so", RUNTIME, "-DID=1", "-Wl,-soname,libamdhip64.so")
    compile_library(root / "third/libamdhip64.so.6", RUNTIME, "-DID=6", "-Wl,-soname,libamdhip64.so.6")
    compile_library(root / "rocm.so", DEVICE)
    compile_library(root / "future.so", DEVICE, "-DMISSING")
    compile_library(root / "host.so", "int identity(void) { return 0; }")
    compile_library(root / "slow.so", SLOW)
    return root


class Site:
    """A site-packages folder with the package `pkg`, its libraries and loader, and a torch of some build."""

    def __init__(self, root: Path, parts: Path) -> None:
        self.root, self.parts = root, parts
        self.lib = root / "pkg/lib"
        self.lib.mkdir(parents=True)
        shutil.copy(loader.__file__, self.lib / "_rocmbuild_loader.py")

    def add(self, **libraries: str) -> Site:
        for platform, part in libraries.items():
            shutil.copy(self.parts / part, self.lib / f"demo_{platform}.so")
        return self

    def torch(self, build: str, runtime: Path | None = None) -> Site:
        """build: cpu, cuda or hip; runtime: the file that torch's HIP library depends on."""
        folder = self.root / "torch"
        folder.mkdir()
        lines = ["import ctypes, types", f"__version__ = '2.10.0+{build}'"]
        lines.append(f"version = types.SimpleNamespace(hip={build == 'hip'} or None, cuda={build == 'cuda'} or None)")
        if runtime:
            flags = ["-Wl,--no-as-needed", os.fspath(runtime), f"-Wl,-rpath,{runtime.parent}"]
            library = compile_library(folder / "lib/libc10_hip.so", "int c10(void) { return 1; }", *flags)
            lines.append(f"c10 = ctypes.CDLL({os.fspath(library)!r})")
        (folder / "__init__.py").write_text("\n".join(lines))
        return self

    def python(self, script: str, *options: str, env: dict[str, str] | None = None) -> Any:
        """Run a script that prints one JSON value, with this site alone beside the standard library."""
        text = f"import sys; sys.path.insert(0, {os.fspath(self.root)!r})\n{PRELUDE}\n{script}"
        argv = [sys.executable, "-S", *options, "-c", text]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def site(tmp_path: Path, parts: Path) -> Site:
    return Site(tmp_path / "site", parts)


LOAD = "from pkg.lib import _rocmbuild_loader as loader\n"


# --- Which library loads under which torch ----------------------------------------------------------------------------


def test_a_cpu_torch_gets_the_host_library_and_one_sentence_about_the_other(site: Site) -> None:
    got = site.add(host="host.so", rocm="rocm.so").torch("cpu").python(LOAD + "show(loader.load('demo').require())")
    assert got["loaded"] == {"host": str(site.lib / "demo_host.so")}
    assert got["refused"] == {
        "rocm": "torch 2.10.0+cpu is a CPU build; to use a Radeon card install a ROCm build of torch",
    }
    assert got["device"] is None
    assert got["hints"] == []


def test_a_cuda_torch_takes_the_cuda_library(site: Site) -> None:
    site.add(host="host.so", rocm="rocm.so", cuda="host.so").torch("cuda")
    got = site.python(LOAD + "show(loader.load('demo'))")
    assert sorted(got["loaded"]) == ["cuda", "host"]
    assert "is a CUDA build" in got["refused"]["rocm"]
    assert got["device"] == "cuda"


@pytest.mark.parametrize(("runtime", "identity"), [("versioned/libamdhip64.so.7", 7), ("plain/libamdhip64.so", 1)])
def test_a_rocm_torch_lends_its_runtime_under_either_name(site: Site, parts: Path, runtime: str, identity: int) -> None:
    site.add(host="host.so", rocm="rocm.so", cuda="host.so").torch("hip", parts / runtime)
    got = site.python(LOAD + "r = loader.load('demo'); show(r, identity=identity(r))")
    assert sorted(got["loaded"]) == ["host", "rocm"]
    assert got["identity"] == identity
    assert got["runtime"] == str(parts / runtime)  # the folder's name has a space in it
    assert "is a ROCm build" in got["refused"]["cuda"]


def test_the_device_library_alone_does_not_load(parts: Path) -> None:
    """What the binding is for: without it the dynamic linker refuses."""
    script = f"import ctypes; ctypes.CDLL({os.fspath(parts / 'rocm.so')!r})"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "undefined symbol: " in done.stderr
    assert "hip" in done.stderr.rsplit("undefined symbol:", 1)[1]


def test_a_device_library_serves_alone_where_no_host_library_was_built(site: Site, parts: Path) -> None:
    site.add(rocm="rocm.so").torch("hip", parts / "plain/libamdhip64.so")
    got = site.python(LOAD + "r = loader.load('demo').require(); show(r, identity=identity(r))")
    assert list(got["loaded"]) == ["rocm"]
    assert got["identity"] == 1


def test_a_rocm_torch_without_a_runtime_leaves_the_host_library(site: Site) -> None:
    got = site.add(host="host.so", rocm="rocm.so").torch("hip").python(LOAD + "show(loader.load('demo').require())")
    assert list(got["loaded"]) == ["host"]
    assert "no HIP runtime" in got["refused"]["rocm"]
    assert got["hints"] == [
        f"demo_rocm.so is not in use: {got['refused']['rocm']}"
    ]  # or the card would idle in silence


@pytest.mark.parametrize(("build", "platform"), [("hip", "rocm"), ("cuda", "cuda")])
def test_a_wheel_without_the_library_that_this_torch_could_use_says_so(site: Site, build: str, platform: str) -> None:
    got = site.add(host="host.so").torch(build).python(LOAD + "show(loader.load('demo').require())")
    assert got["refused"] == {platform: "this wheel was built without it, for host alone"}
    assert got["hints"] == []


def test_without_torch_what_loads_serves(site: Site, parts: Path) -> None:
    site.add(host="host.so", rocm="rocm.so")
    got = site.python(LOAD + "show(loader.load('demo'))")
    assert list(got["loaded"]) == ["host"]
    assert "no HIP runtime" in got["refused"]["rocm"]
    first = f"ctypes.CDLL({os.fspath(parts / 'plain/libamdhip64.so')!r})\n"
    got = site.python(first + LOAD + "r = loader.load('demo'); show(r, identity=identity(r))")
    assert got["identity"] == 1


def test_a_torch_that_fails_to_import_keeps_its_own_error(site: Site) -> None:
    site.add(host="host.so")
    (site.root / "torch.py").write_text("import typing_extensions_that_are_missing")
    script = "try: loader.load('demo')\nexcept ModuleNotFoundError as err: print(json.dumps(err.name))"
    assert site.python(LOAD + script) == "typing_extensions_that_are_missing"


# --- What goes wrong --------------------------------------------------------------------------------------------------


def test_the_linkers_words_reach_the_user(site: Site, parts: Path) -> None:
    site.add(host="host.so", rocm="future.so").torch("hip", parts / "versioned/libamdhip64.so.7")
    got = site.python(LOAD + "show(loader.load('demo').require())")
    assert "undefined symbol: hipFromTheFuture" in got["refused"]["rocm"]
    assert "libamdhip64.so.7 lacks what the library needs; install a newer ROCm build" in got["refused"]["rocm"]
    assert got["runtime"] is None
    assert got["hints"] == [f"demo_rocm.so is not in use: {got['refused']['rocm']}"]


def test_nothing_is_loaded_over_missing_operators(site: Site, parts: Path) -> None:
    """The host library defines the operators; a device library only adds to them."""
    site.add(rocm="rocm.so").torch("hip", parts / "plain/libamdhip64.so")
    (site.lib / "demo_host.so").write_bytes(b"not a library")
    script = "r = loader.load('demo')\ntry: r.require()\nexcept ImportError as err: show(r, error=str(err))"
    got = site.python(LOAD + script)
    assert got["loaded"] == {}
    lines = got["error"].split("\n")
    assert lines[0] == "no library of 'demo' could be loaded"
    assert lines[1].startswith("  - host: ")
    assert "demo_host.so: file too short; " in lines[1]
    assert lines[2] == "  - rocm: demo_host.so, which defines the operators, did not load; mend that first"
    assert len(lines) == 3


def test_a_name_without_libraries(site: Site) -> None:
    site.add(host="host.so").torch("cpu")
    script = "r = loader.load('dmeo')\ntry: r.require()\nexcept ImportError as err: show(r, error=str(err))"
    got = site.python(LOAD + script)
    assert f"no dmeo_<platform>.so lies in {site.lib} (that folder holds demo_host.so)" in got["error"]


@pytest.mark.parametrize("name", ["", "../demo", "/demo", "a b"])
def test_a_name_is_a_file_stem(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a library"):
        loader.load(name)


def test_a_library_for_a_newer_torch(site: Site) -> None:
    site.torch("cpu")
    source = "int torch_from_the_future(void); int f(void) { return torch_from_the_future(); }"
    compile_library(site.lib / "demo_host.so", source)
    got = site.python(LOAD + "show(loader.load('demo'))")
    assert "torch 2.10.0+cpu lacks what the library needs; install a newer torch" in got["refused"]["host"]


def test_a_missing_torch_is_named(site: Site, tmp_path: Path) -> None:
    stub = compile_library(tmp_path / "stub/libtorch.so", "", "-Wl,-soname,libtorch.so")
    compile_library(site.lib / "demo_host.so", "int f(void) { return 1; }", "-Wl,--no-as-needed", os.fspath(stub))
    stub.unlink()
    got = site.python(LOAD + "show(loader.load('demo'))")
    assert got["refused"]["host"].startswith("libtorch.so: ")
    assert got["refused"]["host"].endswith("torch is not installed; install it")


# --- Which copy of the runtime ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("torch_first", [True, False])
@pytest.mark.parametrize(
    ("torchs", "other", "identity"),
    [
        ("versioned/libamdhip64.so.7", "plain/libamdhip64.so", 7),
        ("plain/libamdhip64.so", "versioned/libamdhip64.so.7", 1),
    ],
)
def test_of_two_copies_torchs_own_is_taken_and_it_is_said(
    site: Site, parts: Path, torchs: str, other: str, identity: int, torch_first: bool
) -> None:
    site.add(host="host.so", rocm="rocm.so").torch("hip", parts / torchs)
    loads = ["import torch", f"ctypes.CDLL({os.fspath(parts / other)!r})"]
    script = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    r = loader.load("demo")
    loader.load("demo")
show(r, identity=identity(r), warned=[str(w.message) for w in caught])
"""
    got = site.python("\n".join(loads if torch_first else reversed(loads)) + "\n" + LOAD + script)
    assert got["identity"] == identity
    assert got["runtime"] == str(parts / torchs)
    assert got["warned"] == got["hints"]
    assert len(got["hints"]) == 1
    for part in ("2 copies", str(parts / other), "issues/141014", "the one that torch depends on"):
        assert part in got["hints"][0]


def test_a_copy_in_front_of_torchs_is_never_called(site: Site, parts: Path) -> None:
    site.add(host="host.so", rocm="rocm.so").torch("hip", parts / "versioned/libamdhip64.so.7")
    first = f"import torch; ctypes.CDLL({os.fspath(parts / 'plain/libamdhip64.so')!r}, mode=os.RTLD_GLOBAL)\n"
    got = site.python(first + LOAD + "show(loader.load('demo').require())")
    assert list(got["loaded"]) == ["host"]
    assert f"{parts / 'plain/libamdhip64.so'} is in front of" in got["refused"]["rocm"]


def test_a_runtime_replaced_on_disk_is_still_the_one_in_memory(site: Site, parts: Path, tmp_path: Path) -> None:
    """An upgrade while the process runs; the runtime was reached through a link, as distributions lay it out."""
    folder = tmp_path / "upgraded"
    folder.mkdir()
    shutil.copy(parts / "plain/libamdhip64.so", folder / "libamdhip64.so.7.2.53211")
    (folder / "libamdhip64.so").symlink_to("libamdhip64.so.7.2.53211")
    script = f"""
folder = Path({os.fspath(folder)!r})
ctypes.CDLL(str(folder / "libamdhip64.so"))
file = folder / "libamdhip64.so.7.2.53211"
file.unlink()
file.write_bytes(Path({os.fspath(parts / "versioned/libamdhip64.so.7")!r}).read_bytes())
r = loader.load("demo")
show(r, identity=identity(r))
"""
    got = site.add(rocm="rocm.so").python(LOAD + script)
    assert got["identity"] == 1
    assert got["hints"] == [
        f"{folder}/libamdhip64.so.7.2.53211 has been replaced on disk since this process loaded it; restart the process"
    ]


def test_a_file_that_is_only_mapped_is_no_runtime(site: Site, parts: Path) -> None:
    script = f"""
import mmap
with open({os.fspath(parts / "plain/libamdhip64.so")!r}, "rb") as file:
    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
try: loader.bind_hip_runtime()
except ImportError as err: print(json.dumps(str(err)))
"""
    assert "no HIP runtime" in site.python(LOAD + script)


def test_a_library_of_that_name_which_is_no_runtime(site: Site, tmp_path: Path) -> None:
    fake = compile_library(tmp_path / "fake/libamdhip64.so", "int nothing(void) { return 0; }")
    script = f"""
ctypes.CDLL({os.fspath(fake)!r})
try: loader.bind_hip_runtime()
except ImportError as err: print(json.dumps(str(err)))
"""
    assert "so it is no HIP runtime" in site.python(LOAD + script)


def test_binding_without_torch(site: Site, parts: Path) -> None:
    script = f"""
ctypes.CDLL({os.fspath(parts / "versioned/libamdhip64.so.7")!r})
paths = [loader.bind_hip_runtime(), loader.bind_hip_runtime()]
print(json.dumps([paths, ctypes.CDLL({os.fspath(parts / "rocm.so")!r}).identity()]))
"""
    runtime = str(parts / "versioned/libamdhip64.so.7")
    assert site.python(LOAD + script) == [[runtime, runtime], 7]


def test_without_torch_the_copy_in_front_is_the_one(site: Site, parts: Path) -> None:
    """What a library loaded next calls anyway; the order of loading does not decide it."""
    script = f"""
ctypes.CDLL({os.fspath(parts / "versioned/libamdhip64.so.7")!r})
ctypes.CDLL({os.fspath(parts / "plain/libamdhip64.so")!r}, mode=os.RTLD_GLOBAL)
ctypes.CDLL({os.fspath(parts / "third/libamdhip64.so.6")!r})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    path = loader.bind_hip_runtime()
rocm = ctypes.CDLL({os.fspath(parts / "rocm.so")!r})
print(json.dumps([path, rocm.identity(), [str(w.message) for w in caught]]))
"""
    path, identity, warned = site.python(LOAD + script)
    assert (path, identity) == (str(parts / "plain/libamdhip64.so"), 1)
    assert len(warned) == 1
    assert warned[0].startswith("3 copies of the HIP runtime are loaded")
    assert "the one in front" in warned[0]


def test_an_upgrade_loaded_beside_the_old_copy_is_a_second_copy(site: Site, parts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "upgraded"
    folder.mkdir()
    shutil.copy(parts / "plain/libamdhip64.so", folder / "libamdhip64.so.7.2")
    (folder / "libamdhip64.so.7").symlink_to("libamdhip64.so.7.2")
    (folder / "libamdhip64.so").symlink_to("libamdhip64.so.7.2")
    script = f"""
folder = Path({os.fspath(folder)!r})
ctypes.CDLL(str(folder / "libamdhip64.so"))
(folder / "libamdhip64.so.7.2").unlink()
(folder / "libamdhip64.so.7.2").write_bytes(Path({os.fspath(parts / "third/libamdhip64.so.6")!r}).read_bytes())
ctypes.CDLL(str(folder / "libamdhip64.so.7"))
warnings.simplefilter("ignore")
print(json.dumps(list(loader.load("demo").hints)))
"""
    assert "2 copies" in site.add(rocm="rocm.so").python(LOAD + script)[0]


MAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11 /usr/bin/python3.11
7f0000000000-7f0000100000 r--p 00000000 fe:00 42                         /opt/with two  spaces/libamdhip64.so.7.2.0
7f0000100000-7f0000200000 r-xp 00100000 fe:00 42                         /opt/with two  spaces/libamdhip64.so.7.2.0
7f0000300000-7f0000400000 r--p 00000000 fe:00 43                         /opt/new\\012line/libamdhip64.so (deleted)
7f0000410000-7f0000420000 r--p 00000000 fe:00 44                         /opt/v\x0bt\u2028ls/libamdhip64.so
7f0000500000-7f0000600000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
"""


def test_reading_the_map_of_the_process() -> None:
    files = list(loader._parse_maps(MAPS))
    assert [(file.path, file.deleted) for file in files] == [
        ("/usr/bin/python3.11", False),
        ("/opt/with two  spaces/libamdhip64.so.7.2.0", False),
        ("/opt/with two  spaces/libamdhip64.so.7.2.0", False),
        ("/opt/new\nline/libamdhip64.so", True),
        ("/opt/v\x0bt\u2028ls/libamdhip64.so", False),
    ]
    assert files[1].address == 0x7F0000000000
    assert files[1].identity == files[2].identity != files[3].identity


@pytest.mark.parametrize(
    ("name", "is_runtime"),
    [
        ("libamdhip64.so", True),
        ("libamdhip64.so.7", True),
        ("libamdhip64.so.7.2.53211", True),
        ("libamdhip64.so.7.2.70204-0~24.04", True),
        ("libamdhip64-4c3b9a2f.so.6", True),
        ("libamdhip64_stub.so", False),
        ("libamdhip64.so.7/other", False),
        ("libhipblas.so.2", False),
        ("notlibamdhip64.so", False),
    ],
)
def test_the_names_of_the_runtime(name: str, is_runtime: bool) -> None:
    assert bool(loader._RUNTIME_NAME.fullmatch(name)) is is_runtime


def test_libraries_lie_beside_the_loader_where_an_installer_linked_it(site: Site, tmp_path: Path) -> None:
    file = site.add(host="host.so").torch("cpu").lib / "_rocmbuild_loader.py"
    store = tmp_path / "store"
    store.mkdir()
    shutil.move(file, store / "cached.py")
    file.symlink_to(store / "cached.py")
    assert site.python(LOAD + "show(loader.load('demo'))")["loaded"] == {"host": str(site.lib / "demo_host.so")}


# --- Once, from any thread --------------------------------------------------------------------------------------------


def test_many_threads_load_once(site: Site, parts: Path) -> None:
    """The slow start of the host library holds the first thread while the others come."""
    site.add(host="slow.so", rocm="rocm.so").torch("hip", parts / "plain/libamdhip64.so")
    script = """
import threading
gate, reports = threading.Barrier(8), []
def work():
    gate.wait()
    reports.append(loader.load("demo"))
threads = [threading.Thread(target=work) for _ in range(8)]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for t in threads: t.start()
    for t in threads: t.join()
registered = ctypes.CDLL(reports[0].loaded["rocm"]).registered()
show(reports[0], same=len({id(r) for r in reports}), count=len(reports), registered=registered, warned=len(caught))
"""
    got = site.python(LOAD + script, env={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    assert (got["count"], got["same"], got["registered"], got["warned"]) == (8, 1, 1, 1)


def test_libraries_keep_their_symbols_to_themselves(site: Site, parts: Path) -> None:
    """Two platforms' libraries have the same functions, and so may another package's."""
    site.add(host="host.so", rocm="rocm.so").torch("hip", parts / "plain/libamdhip64.so")
    script = (
        "loader.load('demo'); print(json.dumps([hasattr(ctypes.CDLL(None), n) for n in ('identity', 'hipIdentity')]))"
    )
    assert site.python(LOAD + script) == [False, True]


def test_a_report_cannot_be_changed(site: Site) -> None:
    script = """
r = loader.load("demo")
faults = []
for action in (lambda: r.loaded.update(a="b"), lambda: r.refused.clear(), lambda: setattr(r, "loaded", {})):
    try: action()
    except (AttributeError, TypeError) as err: faults.append(type(err).__name__)
print(json.dumps(len(faults)))
"""
    assert site.add(host="host.so").torch("cpu").python(LOAD + script) == 3


def test_the_override_variable_is_warned_about_once(site: Site) -> None:
    script = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    loader.load("demo"); loader.load("demo")
print(json.dumps([[str(w.message), w.category.__name__, w.filename] for w in caught]))
"""
    site.add(host="host.so", rocm="rocm.so").torch("cpu")
    got = site.python(LOAD + script, env={"HSA_OVERRIDE_GFX_VERSION": "11.0.0"})
    assert len(got) == 1
    message, category, place = got[0]
    assert message.startswith("HSA_OVERRIDE_GFX_VERSION=11.0.0 makes the card pass for another one")
    assert (category, place) == ("RuntimeWarning", "<string>")  # blamed on the caller, not on the loader
    assert site.python(LOAD + script) == []


# --- The wheel's evidence ---------------------------------------------------------------------------------------------


def test_the_targets_come_from_the_wheels_own_evidence(site: Site, parts: Path) -> None:
    site.add(rocm="rocm.so").torch("hip", parts / "plain/libamdhip64.so")
    for name, targets, record in [
        ("another-1.dist-info", ["gfx1030"], "another/lib/_rocmbuild_loader.py,sha256=0,1\n"),
        ("pkg-1.dist-info", ["gfx1201", "gfx1100"], "pkg/lib/_rocmbuild_loader.py,sha256=0,1\n"),
    ]:
        folder = site.root / name
        folder.mkdir()
        (folder / "rocmbuild.json").write_text(json.dumps({"targets": targets}))
        (folder / "RECORD").write_text(record)
    assert site.python(LOAD + "show(loader.load('demo'))")["targets"] == ["gfx1201", "gfx1100"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"targets": 3}', "\xff"])
def test_evidence_that_cannot_be_read_says_nothing(site: Site, parts: Path, text: str) -> None:
    site.add(rocm="rocm.so").torch("hip", parts / "plain/libamdhip64.so")
    folder = site.root / "pkg-1.dist-info"
    folder.mkdir()
    (folder / "rocmbuild.json").write_text(text, encoding="latin-1")
    (folder / "RECORD").write_text("pkg/lib/_rocmbuild_loader.py,,\n")
    assert site.python(LOAD + "show(loader.load('demo'))")["targets"] == []


# --- The file itself --------------------------------------------------------------------------------------------------


def test_the_loader_stands_alone() -> None:
    """It is copied into wheels of other people: the standard library only."""
    tree = ast.parse(Path(loader.__file__).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add((node.module or "").split(".")[0])
    assert names <= sys.stdlib_module_names


def test_importing_the_loader_is_cheap(site: Site) -> None:
    script = """
import time
start = time.process_time()
from pkg.lib import _rocmbuild_loader
print(json.dumps([time.process_time() - start, sorted(sys.modules)]))
"""
    site.torch("cpu")
    runs = [site.python(script) for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.2  # of the processor, so that a busy machine does not count
    assert not {"torch", "rocmbuild", "subprocess", "asyncio", "email", "importlib.metadata"} & set(runs[0][1])


# --- The real torch ---------------------------------------------------------------------------------------------------

OPERATOR = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
static void answer(StableIValue* stack, uint64_t, uint64_t) { stack[0] = torch::stable::detail::from(int64_t(42)); }
STABLE_TORCH_LIBRARY(rocmbuild_loader_test, m) { m.def("answer(Tensor x) -> int"); }
STABLE_TORCH_LIBRARY_IMPL(rocmbuild_loader_test, CPU, m) { m.impl("answer", &answer); }
"""


@pytest.fixture
def real_torch() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        require("torch")
    return Path(spec.submodule_search_locations[0])


@pytest.mark.slow
def test_an_operator_of_the_host_library_under_the_real_torch(tmp_path: Path, parts: Path, real_torch: Path) -> None:
    compiler = shutil.which("g++") or require("a C++ compiler")
    site = Site(tmp_path / "site", parts).add(rocm="rocm.so")
    stub = compile_library(tmp_path / "stub/libtorch.so", "", "-Wl,-soname,libtorch.so")
    flags = ["-std=c++17", "-fvisibility=hidden", "-fno-gnu-unique", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
    argv = [compiler, "-x", "c++", "-", *flags, "-shared", "-fPIC", "-o", os.fspath(site.lib / "demo_host.so")]
    argv += ["-isystem", os.fspath(real_torch / "include"), "-x", "none", "-Wl,--no-as-needed", os.fspath(stub)]
    subprocess.run(argv, input=OPERATOR, text=True, check=True)
    where = os.fspath(real_torch.parent)
    script = f"""
sys.path.append({where!r})
r = loader.load("demo").require()
import torch
show(r, answer=torch.ops.rocmbuild_loader_test.answer(torch.zeros(1)), version=torch.__version__,
     build="ROCm" if torch.version.hip else "CUDA" if torch.version.cuda else "CPU")
"""
    got = site.python(LOAD + script)
    assert got["answer"] == 42
    assert list(got["loaded"]) == ["host"]
    if got["build"] != "ROCm":
        assert got["refused"]["rocm"].startswith(f"torch {got['version']} is a {got['build']} build; ")
