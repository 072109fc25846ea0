"""torch's stable symbols by release: the table against the headers it is from, and against what torch exports."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from audit_samples import Samples
from support import needs_torch_sdk, require

from rocmbuild.audit import torch_abi
from rocmbuild.audit.binary import inspect
from rocmbuild.audit.elf import read_elf
from rocmbuild.audit.source import open_file
from rocmbuild.audit.table import host_lines
from rocmbuild.audit.torch_abi import OLDER, is_stable, table, torch_need
from rocmbuild.toolchain.model import Toolchain


def declared(path: Path) -> dict[str, str]:
    """Function -> the newest TORCH_FEATURE_VERSION guard around its declaration."""
    found: dict[str, str] = {}
    guards: list[str] = []
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL).replace("\\\n", " ")
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(if\w*|endif)\b(.*)", line)
        if directive and directive[1] == "endif":
            guards.pop()
        elif directive:
            version = re.search(r"TORCH_FEATURE_VERSION\s*>=\s*TORCH_VERSION_(\d+)_(\d+)_0", directive[2])
            guards.append(f"{version[1]}.{version[2]}" if version else "")
        else:
            for name in re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", line):
                found.setdefault(
                    name, max(guards, default="", key=lambda g: tuple(map(int, g.split("."))) if g else ())
                )
    return found


@needs_torch_sdk
def test_the_table_is_what_the_headers_say() -> None:
    from rocmbuild.toolchain.torch_sdk import find_torch_sdk

    sdk = find_torch_sdk()
    if not sdk.version.startswith("2.13."):
        require("the torch SDK of 2.13, which the table is from")
    shims = sdk.include / "torch/csrc"
    if not shims.exists():
        shims = next(folder / "torch/csrc" for folder in sdk.include_dirs() if (folder / "torch/csrc/stable").exists())
    said: dict[str, str] = {}
    for pattern in ("stable/c/*.h", "inductor/aoti_torch/c/*.h", "inductor/aoti_torch/generated/*.h"):
        for path in shims.glob(pattern):
            for name, release in declared(path).items():
                said[name] = min(
                    said.get(name, release), release, key=lambda r: tuple(map(int, r.split("."))) if r else ()
                )
    assert dict(table()) == {name: release or OLDER for name, release in said.items()}


@pytest.mark.needs_torch
def test_what_torch_exports_is_in_the_table() -> None:
    """Every symbol of the kind in the installed libraries, none newer than they are."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        require("torch")
    folder = Path(spec.origin).parent
    version = re.search(r"__version__ = '(\d+)\.(\d+)", (folder / "version.py").read_text())
    assert version is not None
    here = (int(version[1]), int(version[2]))
    with open_file(folder / "lib/libtorch_cpu.so") as data:
        exported = {s.name for s in read_elf(data).symbols(".dynsym") if s.section and is_stable(s.name)}
    assert len(exported) > 300
    assert exported <= set(table()), "newer than the table"
    for name in exported:
        assert tuple(map(int, table()[name].split("."))) <= here
    of_this = {name for name, release in table().items() if tuple(map(int, release.split("."))) <= here}
    cards = re.compile(r"cuda|xpu|mps|sycl")
    assert {name for name in of_this if re.match("torch_(?!cuda|c10_cuda|.*cuda)", name)} - exported == set()
    assert all(cards.search(name) or name in exported for name in of_this if re.match(r"aoti_torch_cpu_", name))


def test_releases() -> None:
    assert torch_need([]).release == ""
    assert torch_need(["printf", "aoti_torch_get_dim"]).release == OLDER
    need = torch_need(["aoti_torch_get_dim", "torch_call_dispatcher", "torch_list_size"])
    assert (need.release, need.newest, need.unknown) == ("2.10", ("torch_call_dispatcher", "torch_list_size"), ())
    need = torch_need(["torch_stream_native_handle", "torch_from_blob", "torch_of_tomorrow"])
    assert (need.release, need.newest, need.unknown) == (
        "2.13",
        ("torch_stream_native_handle",),
        ("torch_of_tomorrow",),
    )


def test_a_weak_symbol_ties_to_no_release(toolchain: Toolchain, tmp_path: Path) -> None:
    samples = Samples(tmp_path, toolchain)
    source = tmp_path / "weak.c"
    source.write_text(
        "int torch_stream_native_handle() __attribute__((weak)); int torch_list_size(); int torch_of_tomorrow();\n"
        "int f() { return torch_list_size() + torch_of_tomorrow() +"
        " (torch_stream_native_handle ? torch_stream_native_handle() : 0); }\n"
    )
    out = tmp_path / "weak.so"
    samples.run("cc", "-shared", "-fPIC", source, "-o", out)
    host = inspect(out).libraries[0].host
    assert host is not None
    assert host.torch_need.release == "2.10"
    assert host.torch_stable == ("torch_list_size", "torch_of_tomorrow", "torch_stream_native_handle")
    assert host.to_json()["torch_release"] == "2.10"
    text = "\n".join(host_lines(host))
    assert "3 symbols of torch's stable ABI (torch 2.10 or newer)" in text
    assert "torch 2.10 for torch_list_size" in text
    assert "torch symbols of no known release: torch_of_tomorrow" in text


def test_the_file_is_a_table() -> None:
    text = (Path(torch_abi.__file__).parent / "torch_abi.tsv").read_text()
    rows = [row.split("\t") for row in text.splitlines() if not row.startswith("#")]
    assert rows == sorted(rows)
    assert {release for _, release in rows} == {"-", "2.10", "2.11", "2.12", "2.13"}
