"""What surrounds the results: registration, fake kernels, torch.compile, capabilities, errors that name their cause."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import oracle
import pytest
import torch
from cases import ALL_FORMATS, FORMATS, fit
from native import TYPES
from packages import KERNELS, csrc_folder, formats_of
from test_products import activations, rng_of

OPERATORS = ("ggml_dequantize", "ggml_mul_mat_vec_a8", "ggml_moe_a8_vec")
W = {name: torch.from_numpy(oracle.random_blocks(rng_of(name), name, 3, 5, fit(name, 64))) for name in FORMATS}


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


# --- registration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_registered(kernels: ModuleType, name: str) -> None:
    """Trap 11: a missing registration fails here and is never a skip."""
    packet = getattr(torch.ops.gguf_kernels, name)
    assert packet.overloads() == ["default"]
    for key in ("CPU", "Meta"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"gguf_kernels::{name}", key), key


def test_schemas_keep_the_known_names_and_order(kernels: ModuleType) -> None:
    wanted = {
        "ggml_dequantize": ["W", "type", "m", "n", "dtype"],
        "ggml_mul_mat_vec_a8": ["W", "X", "type", "row"],
        "ggml_moe_a8_vec": ["X", "W", "topk_ids", "top_k", "type", "row", "tokens"],
    }
    for name, arguments in wanted.items():
        schema = getattr(torch.ops.gguf_kernels, name).default._schema
        assert [argument.name for argument in schema.arguments] == arguments
        assert not schema.is_mutable
        function = getattr(kernels, name)
        code = function.__code__
        assert list(code.co_varnames[: code.co_argcount]) == arguments


def test_types_are_those_of_the_gguf_package(kernels: ModuleType) -> None:
    for member in kernels.GGMLType:
        assert gguf.GGMLQuantizationType[member.name] == member.value
    others = {"I8", "I16", "I32", "I64", "F64", "Q1_0"}  # not quantised, or not in the table of formats yet
    quantised = set(gguf.GGMLQuantizationType.__members__) - others
    assert set(kernels.GGMLType.__members__) == quantised


@pytest.mark.slow
def test_without_native_libraries_the_import_says_so(package: Path, tmp_path: Path) -> None:
    source = tmp_path / "gguf_kernels"
    (source / "lib").mkdir(parents=True)
    for path in (package / "gguf_kernels").glob("*.py"):
        (source / path.name).write_text(path.read_text())
    (source / "lib" / "__init__.py").touch()
    done = run_python("import gguf_kernels", tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: gguf_kernels has no native libraries beside it")
    assert "rocmbuild build" in last
    loader = package / "gguf_kernels" / "lib" / "_rocmbuild_loader.py"
    (source / "lib" / loader.name).write_text(loader.read_text())
    done = run_python("import gguf_kernels", tmp_path)
    assert done.returncode == 1
    assert "ImportError: no library of 'gguf' could be loaded" in done.stderr


# --- capabilities ----------------------------------------------------------------------------------------------------


def test_supports_answers_by_operator_format_and_device(kernels: ModuleType) -> None:
    """Trap 10: what it promises works, and what it denies is refused."""
    x = torch.ones(1, 256)
    for name in kernels.GGMLType.__members__:
        promised = kernels.supports("ggml_mul_mat_vec_a8", name, "cpu")
        assert promised == (name in FORMATS), name
        assert kernels.supports("ggml_dequantize", kernels.GGMLType[name], "cpu") == promised
        assert kernels.supports("ggml_moe_a8_vec", int(kernels.GGMLType[name]), torch.device("cpu")) == promised
        assert not kernels.supports("ggml_mul_mat_vec_a8", name, "meta")
        if not promised:
            with pytest.raises(RuntimeError, match=rf"type {name} \("):
                kernels.ggml_mul_mat_vec_a8(torch.zeros(1, 1024, dtype=torch.uint8), x, name, 1)
    if not torch.cuda.is_available():
        assert not kernels.supports("ggml_dequantize", "Q4_0", "cuda")
    with pytest.raises(ValueError, match="op is 'ggml_mul'; wanted one of ggml_dequantize"):
        kernels.supports("ggml_mul", "Q4_0", "cpu")


def test_capabilities_say_the_same_for_every_device(kernels: ModuleType) -> None:
    found = kernels.capabilities()
    places = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    assert list(found) == places
    for place, table in found.items():
        assert list(table) == list(importlib.import_module("gguf_kernels._library").OPERATORS)
        for op, types in table.items():
            assert [name for name in kernels.GGMLType.__members__ if kernels.supports(op, name, place)] == list(types)
    assert all(set(found["cpu"][op]) == set(FORMATS) for op in OPERATORS)


def test_a_device_that_no_library_serves_is_refused_by_name(kernels: ModuleType, monkeypatch: Any) -> None:
    """Trap 10: what the library was not built for is told before anything is launched, and supports() knew it."""
    library = importlib.import_module("gguf_kernels._library")
    ops = importlib.import_module("gguf_kernels._ops")
    assert kernels.device_fault("cpu") is None
    assert "there are no kernels for devices of type 'xpu'" in kernels.device_fault("xpu")
    if not torch.cuda.is_available():
        assert kernels.device_fault("cuda") == "torch sees no GPU"
    w, x = W["Q8_0"], torch.ones(2, 64)
    monkeypatch.setattr(ops, "_READY", set())
    monkeypatch.setattr(library, "_HANDLES", {})
    assert not kernels.supports("ggml_dequantize", "Q8_0", "cpu")
    assert kernels.capabilities()["cpu"]["ggml_dequantize"] == ()
    text = "W is on cpu, where nothing can run: the host library is not loaded: this wheel was built without it; "
    for op, call in {
        "ggml_dequantize": lambda: kernels.ggml_dequantize(w, "Q8_0", 15, 64),
        "ggml_mul_mat_vec_a8": lambda: kernels.ggml_mul_mat_vec_a8(w[0], x, "Q8_0", 5),
        "ggml_moe_a8_vec": lambda: kernels.ggml_moe_a8_vec(x, w, torch.zeros(2, 1).int(), 1, "Q8_0", 5, 2),
    }.items():
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value).startswith(f"{op}: {text}")


@dataclasses.dataclass
class Card:
    """What torch says of a GPU."""

    name: str
    gcnArchName: str


@pytest.mark.parametrize(
    ("arch", "targets", "code", "wanted"),
    [
        ("gfx1201", ("gfx1100", "gfx1201"), 0, None),
        ("gfx1201:sramecc-", ("gfx1201",), 0, None),
        ("gfx1103", ("gfx11-generic",), 0, None),
        ("gfx1103", (), 0, None),
        ("gfx1030", ("gfx1100", "gfx1201"), 0, "GPU 1 (a card) is gfx1030, and this wheel is for gfx1100, gfx1201"),
        ("gfx1201", ("gfx1201",), 3, "GPU 1 (a card): no kernel image (error 209)"),
    ],
)
def test_a_gpu_is_served_where_the_library_holds_its_code(
    kernels: ModuleType, monkeypatch: Any, arch: str, targets: tuple[str, ...], code: int, wanted: str | None
) -> None:
    """A ROCm build of torch, as it answers: no card is here, so torch's answers and the runtime's are stood in for."""
    library = importlib.import_module("gguf_kernels._library")

    class Handle:
        @staticmethod
        def gguf_device_ready(error: Any) -> int:
            error.value = b"no kernel image (error 209)" if code else b""
            return code

        @staticmethod
        def gguf_supports(op: int, number: int, error: None) -> int:
            return 0 if number == 8 else 2

    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Card("a card", arch))
    monkeypatch.setattr(library, "_HANDLES", {"rocm": Handle})
    monkeypatch.setattr(library, "REPORT", dataclasses.replace(library.REPORT, targets=targets))
    library._gpu_fault.cache_clear()
    try:
        assert kernels.device_fault("cuda:1") == kernels.device_fault("cuda") == wanted
        assert kernels.device_fault("cuda:2") == "torch sees 2 GPUs"
        assert kernels.supports("ggml_dequantize", "Q8_0", "cuda:1") == (wanted is None)
        assert not kernels.supports("ggml_dequantize", "Q4_0", "cuda:1")
    finally:
        library._gpu_fault.cache_clear()


def test_the_command_prints_what_is_there(kernels: ModuleType, package: Path) -> None:
    command = [sys.executable, "-m", "gguf_kernels"]
    environ = {"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, "--json"], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found["loaded"]) == {"host"} and found["devices"]["cpu"]["fault"] is None
    listed = {
        place: {op: list(types) for op, types in table.items()} for place, table in kernels.capabilities().items()
    }
    assert found["capabilities"] == listed
    text = importlib.import_module("gguf_kernels.__main__").render(found)
    assert f"host  loaded: {found['loaded']['host']}" in text
    for name in FORMATS:
        assert re.search(rf"^  {name} +yes +yes +yes( |$)", text, re.MULTILINE)
    refused = {**found, "refused": {"rocm": "torch is a CPU build"}, "hints": ["unset it"]}
    refused["devices"] = {**found["devices"], "cuda:0": {"name": "a card", "fault": "no code for it"}}
    text = importlib.import_module("gguf_kernels.__main__").render(refused)
    assert "rocm  not loaded: torch is a CPU build" in text
    assert "note: unset it" in text
    assert "cuda:0: a card\n  nothing can run here: no code for it" in text


def test_every_format_of_the_sources_is_in_the_list_of_cases() -> None:
    assert set(formats_of(KERNELS / "csrc")) == set(ALL_FORMATS)
    for name in ALL_FORMATS:
        assert (KERNELS / "csrc" / "formats" / f"{name.lower()}.cu").exists()


def test_a_report_says_what_was_loaded(kernels: ModuleType, library: Path) -> None:
    assert kernels.REPORT.loaded["host"] == str(library)


# --- torch.compile and fake tensors ----------------------------------------------------------------------------------


def calls(kernels: ModuleType, type_name: str) -> dict[str, tuple[object, tuple[object, ...]]]:
    cols = fit(type_name, 64)
    x, _ = activations(rng_of(type_name), 4, cols, "float32")
    number = int(kernels.GGMLType[type_name])
    ids = torch.tensor([[0, 2], [1, -1], [2, 2], [0, 1]])
    return {
        "ggml_dequantize": (
            torch.ops.gguf_kernels.ggml_dequantize.default,
            (W[type_name], number, 15, cols, torch.bfloat16),
        ),
        "ggml_mul_mat_vec_a8": (torch.ops.gguf_kernels.ggml_mul_mat_vec_a8.default, (W[type_name][1], x, number, 5)),
        "ggml_moe_a8_vec": (torch.ops.gguf_kernels.ggml_moe_a8_vec.default, (x, W[type_name], ids, 2, number, 5, 4)),
    }


@pytest.mark.parametrize("type_name", FORMATS)
@pytest.mark.parametrize("name", OPERATORS)
def test_fake_kernels_give_the_shape_and_dtype_of_the_real_ones(kernels: ModuleType, name: str, type_name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    operator, arguments = calls(kernels, type_name)[name]
    real = operator(*arguments)
    with FakeTensorMode() as mode:
        fake = operator(*(mode.from_tensor(item) if isinstance(item, torch.Tensor) else item for item in arguments))
    assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (real.shape, real.dtype, real.device, real.stride())


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(kernels: ModuleType, name: str) -> None:
    operator, arguments = calls(kernels, "Q4_0")[name]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, arguments, test_utils=checks)


def test_compile_fullgraph(kernels: ModuleType) -> None:
    """The whole of a small routed layer in one graph; compiled again for another batch, also with symbolic shapes."""
    weight = W["Q8_0"]

    def layer(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[0]
        routed = kernels.ggml_moe_a8_vec(x, weight, ids, 2, "Q8_0", 5, tokens)
        dense = kernels.ggml_mul_mat_vec_a8(weight[0], x, "Q8_0", 5)
        return routed.reshape(tokens, 2, 5).sum(1) + dense.relu()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=None)
    for tokens in (3, 4, 7):
        x, _ = activations(rng_of(tokens), tokens, 64, "float32")
        ids = torch.randint(0, 3, (tokens, 2))
        assert torch.equal(compiled(x, ids), layer(x, ids))


def test_inference_mode_and_threads(kernels: ModuleType) -> None:
    from concurrent.futures import ThreadPoolExecutor

    x, _ = activations(rng_of(), 5, 64, "float32")
    wanted = kernels.ggml_mul_mat_vec_a8(W["Q4_0"][0], x, "Q4_0", 5)

    def once(_: int) -> torch.Tensor:
        with torch.inference_mode():
            return kernels.ggml_mul_mat_vec_a8(W["Q4_0"][0], x, "Q4_0", 5)

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, wanted) for found in pool.map(once, range(16)))


# --- errors ----------------------------------------------------------------------------------------------------------


def refused(kernels: ModuleType) -> dict[str, tuple[object, str]]:
    """What is called -> the whole of what it says."""
    w, x = W["Q4_0"], torch.ones(2, 64)
    ids = torch.zeros(2, 2, dtype=torch.int32)
    dequantize, product, routed = kernels.ggml_dequantize, kernels.ggml_mul_mat_vec_a8, kernels.ggml_moe_a8_vec
    odd = torch.zeros(5 * 36 + 1, dtype=torch.uint8)[1:].reshape(5, 36)
    known = "supported: " + ", ".join(f"{name} ({TYPES[name]})" for name in formats_of(csrc_folder()))
    return {
        "unknown type": (lambda: product(w[0], x, 5, 5), f"ggml_mul_mat_vec_a8: type 5 is no GGUF type; {known}"),
        "negative type": (lambda: dequantize(w, -1, 15, 64), f"ggml_dequantize: type -1 is no GGUF type; {known}"),
        "huge type": (lambda: dequantize(w, 2**32 + 2, 15, 64), f"ggml_dequantize: type -1 is no GGUF type; {known}"),
        "activation type": (
            lambda: routed(x, w, ids, 2, "Q8_1", 5, 2),
            f"ggml_moe_a8_vec: type Q8_1 (9) is a format of activations, never of weights; {known}",
        ),
        "other activation type": (
            lambda: dequantize(w, "Q8_K", 15, 64),
            f"ggml_dequantize: type Q8_K (15) is a format of activations, never of weights; {known}",
        ),
        "scalar type": (
            lambda: dequantize(w, "F16", 15, 64),
            f"ggml_dequantize: type F16 (1) is not quantised; {known}",
        ),
        "misspelt": (lambda: product(w[0], x, "Q4-0", 5), "type is 'Q4-0', which is no GGUF type; did you mean Q4_0"),
        "W of int8": (
            lambda: product(w[0].view(torch.int8), x, 2, 5),
            "ggml_mul_mat_vec_a8: W has dtype Char; wanted: Byte (uint8)",
        ),
        "W with gaps": (
            lambda: product(w[0].repeat(1, 2)[:, :36], x, 2, 5),
            "ggml_mul_mat_vec_a8: W of shape [5, 36] is not contiguous; wanted: whole rows without gaps",
        ),
        "W at an odd address": (
            lambda: product(odd, x, 2, 5),
            "ggml_mul_mat_vec_a8: W starts at an odd address; wanted: a multiple of 2 bytes (clone it)",
        ),
        "W of other rows": (
            lambda: product(w[0], x, 2, 6),
            "ggml_mul_mat_vec_a8: W has shape [5, 36]; wanted: [6, 36] for row = 6 and X of shape [2, 64]",
        ),
        "W of another type": (
            lambda: product(w[0], x, "Q8_0", 5),
            "ggml_mul_mat_vec_a8: W has shape [5, 36]; wanted: [5, 68] for row = 5 and X of shape [2, 64]",
        ),
        "W of experts where one matrix is wanted": (
            lambda: product(w, x, 2, 5),
            "ggml_mul_mat_vec_a8: W has shape [3, 5, 36]; wanted: [5, 36] for row = 5 and X of shape [2, 64]",
        ),
        "one matrix where experts are wanted": (
            lambda: routed(x, w[0], ids, 2, 2, 5, 2),
            "ggml_moe_a8_vec: W has shape [5, 36]; wanted: [experts, 5, 36] for row = 5 and X of shape [2, 64]",
        ),
        "X of float64": (
            lambda: product(w[0], x.double(), 2, 5),
            "ggml_mul_mat_vec_a8: the dtype of X is Double; wanted: Float, Half or BFloat16",
        ),
        "X of one dimension": (
            lambda: product(w[0], x[0], 2, 5),
            "ggml_mul_mat_vec_a8: X has shape [64]; wanted: 2 dimensions, [n, col]",
        ),
        "columns that are no blocks": (
            lambda: product(w[0], torch.ones(2, 48), 2, 5),
            "ggml_mul_mat_vec_a8: the number of columns of X is 48; wanted: a multiple of 32, the block of this type",
        ),
        "a negative row": (
            lambda: product(w[0], x, 2, -1),
            "ggml_mul_mat_vec_a8: W has shape [5, 36]; wanted: [-1, 36] for row = -1 and X of shape [2, 64]",
        ),
        "another number of tokens": (
            lambda: routed(x, w, ids, 2, 2, 5, 3),
            "ggml_moe_a8_vec: X has shape [2, 64]; wanted: [3, col] for tokens = 3",
        ),
        "ids of int16": (
            lambda: routed(x, w, ids.short(), 2, 2, 5, 2),
            "ggml_moe_a8_vec: topk_ids has dtype Short; wanted: Int (int32) or Long (int64)",
        ),
        "too few ids": (
            lambda: routed(x, w, ids[:1], 2, 2, 5, 2),
            "ggml_moe_a8_vec: topk_ids has shape [1, 2]; wanted: tokens * top_k elements for tokens = 2 and top_k = 2",
        ),
        "a negative top_k": (
            lambda: routed(x, w, ids, -2, 2, 5, 2),
            "ggml_moe_a8_vec: topk_ids has shape [2, 2]; wanted: tokens * top_k elements for tokens = 2 and top_k = -2",
        ),
        "more values than bytes": (
            lambda: dequantize(w, 2, 16, 64),
            "ggml_dequantize: W of shape [3, 5, 36] holds 540 bytes; wanted: 16 rows of 36 bytes for m = 16 and n = 64",
        ),
        "values past 64 bits": (
            lambda: dequantize(w, 2, 2**61, 64),
            f"ggml_dequantize: W of shape [3, 5, 36] holds 540 bytes; wanted: {2**61} rows of 36 bytes for m = {2**61}",
        ),
        "values in float64": (
            lambda: dequantize(w, 2, 15, 64, torch.float64),
            "ggml_dequantize: dtype is Double; wanted: Float, Half or BFloat16",
        ),
        "part of a block": (
            lambda: dequantize(w, 2, 30, 16),
            "ggml_dequantize: n is 16; wanted: a multiple of 32, the block of this type",
        ),
    }


REFUSED = [
    "unknown type",
    "negative type",
    "huge type",
    "activation type",
    "other activation type",
    "scalar type",
    "misspelt",
    "W of int8",
    "W with gaps",
    "W at an odd address",
    "W of other rows",
    "W of another type",
    "W of experts where one matrix is wanted",
    "one matrix where experts are wanted",
    "X of float64",
    "X of one dimension",
    "columns that are no blocks",
    "a negative row",
    "another number of tokens",
    "ids of int16",
    "too few ids",
    "a negative top_k",
    "more values than bytes",
    "values past 64 bits",
    "values in float64",
    "part of a block",
]


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_is_refused_in_words(kernels: ModuleType, name: str) -> None:
    call, text = refused(kernels)[name]
    with pytest.raises((RuntimeError, ValueError)) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value).startswith(text), str(caught.value)


@pytest.mark.parametrize("width", [torch.int32, torch.int64], ids=str)
def test_ids_are_checked_where_asked_for(kernels: ModuleType, width: torch.dtype) -> None:
    """An id that names no expert gives a row of zeros; with check=True it raises, unless it is -1, which means none."""
    w, x = W["Q8_0"], torch.ones(2, 64)
    for wrong in (3, -2, 2**31 - 1):
        ids = torch.tensor([[0, -1], [2, wrong]], dtype=width)
        assert (kernels.ggml_moe_a8_vec(x, w, ids, 2, "Q8_0", 5, 2)[[1, 3]] == 0).all()
        with pytest.raises(RuntimeError) as caught:
            kernels.ggml_moe_a8_vec(x, w, ids, 2, "Q8_0", 5, 2, check=True)
        assert str(caught.value) == (
            f"ggml_moe_a8_vec: topk_ids[1, 1] is {wrong}; wanted: 0 to 2 for W with 3 experts, or -1 for no expert"
        )
    good = torch.tensor([[0, -1], [2, 1]], dtype=width)
    checked = kernels.ggml_moe_a8_vec(x, w, good, 2, "Q8_0", 5, 2, check=True)
    assert torch.equal(checked, kernels.ggml_moe_a8_vec(x, w, good, 2, "Q8_0", 5, 2))


def test_tensors_on_two_devices_are_refused_while_traced_too(kernels: ModuleType) -> None:
    """On one machine with no second card: what a fake tensor says of its device must be the weight's."""
    w, x, ids = W["Q8_0"], torch.ones(2, 64, device="meta"), torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="ggml_mul_mat_vec_a8: X is on meta and W on cpu; wanted: one device"):
        kernels.ggml_mul_mat_vec_a8(w[0], x, "Q8_0", 5)
    with pytest.raises(RuntimeError, match="ggml_moe_a8_vec: topk_ids is on cpu and W on meta; wanted: one device"):
        kernels.ggml_moe_a8_vec(x, w.to("meta"), ids, 2, "Q8_0", 5, 2)


def test_every_refusal_is_tested(kernels: ModuleType) -> None:
    assert list(refused(kernels)) == REFUSED
