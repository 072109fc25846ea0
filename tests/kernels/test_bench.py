"""The benchmark and the run on a GPU, on the CPU: results are checked before they are timed, reports can be read."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import oracle
import pytest
import routed_oracle
import torch
from cases import FORMATS
from support import require

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bench(kernels: ModuleType) -> ModuleType:
    return importlib.import_module("gguf_kernels.bench")


@pytest.fixture(scope="module")
def inputs(bench: ModuleType) -> ModuleType:
    return importlib.import_module("gguf_kernels.bench._inputs")


@pytest.fixture(scope="module")
def baselines(bench: ModuleType) -> ModuleType:
    return importlib.import_module("gguf_kernels.bench._baselines")


@pytest.fixture(scope="module")
def kept(bench: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of every suite."""
    path = tmp_path_factory.mktemp("bench") / "report.json"
    words = ["--device", "cpu", "--types", "Q8_0", "mxfp4", "--seconds", "0", "--json", str(path)]
    assert bench.main([*words, "--suite"]) == 0
    return path


def test_a_report_holds_what_was_asked_for(bench: ModuleType, kept: Path) -> None:
    report = json.loads(kept.read_text())
    records = [bench.Record(**each) for each in report["records"]]
    both = ("Q8_0", "MXFP4")
    assert [(each.op, each.type, each.shape, each.vectors) for each in records] == [
        *(("ggml_mul_mat_vec_a8", name, "256x1024", n) for name in both for n in (1, 2)),
        *(("ggml_mul_mat_a8", name, "256x1024", 12) for name in both),
        ("ggml_moe_a8_vec", "Q8_0", "64x512 8e2", 2),
        ("ggml_moe_gate_up_a8", "Q8_0", "64x512 8e2", 2),
        ("ggml_moe_a8", "Q8_0", "64x512 8e2", 12),
        ("ggml_moe_a8_vec", "MXFP4", "64x512 8e2", 2),
        ("ggml_moe_gate_up_a8", "MXFP4", "64x512 8e2", 2),
        ("mxfp4_moe_gate_up", "MXFP4", "64x512 8e2", 2),
        ("ggml_moe_a8", "MXFP4", "64x512 8e2", 12),
        ("mxfp4_moe_gate_up", "MXFP4", "64x512 8e2", 12),
        ("ggml_moe_a8_vec", "Q8_0", "64x256 8e2", 2),
        ("ggml_moe_a8", "Q8_0", "64x256 8e2", 12),
        ("ggml_moe_a8_vec", "MXFP4", "64x256 8e2", 2),
        ("mxfp4_moe_down", "MXFP4", "64x256 8e2", 2),
        ("ggml_moe_a8", "MXFP4", "64x256 8e2", 12),
        ("mxfp4_moe_down", "MXFP4", "64x256 8e2", 12),
    ]
    for each in records:
        assert each.us > 0 and 0 <= each.nmse < 1e-9
        assert set(each.baselines) == ({"matmul"} if each.vectors > 8 else {"read", "matmul"})
        assert each.share("matmul") == each.baselines["matmul"] / each.us
    assert records[0].bytes == 256 * 1024 // 32 * 34
    assert records[0].gigabytes_a_second == pytest.approx(records[0].bytes / records[0].us / 1000)
    assert records[0].operations == 2 * 256 * 1024
    assert records[8].operations == 2 * 12 * 2 * 64 * 512
    of_expert = 64 * 512 // 32 * 34
    assert 6 * of_expert < records[8].bytes <= 8 * of_expert  # those that 12 tokens with two each name
    assert report["device"] == "the CPU" and report["read_by"] == "torch.sum of int64"
    assert (report["notes"], report["failures"], report["ceilings"]) == ([], [], {})
    lines = bench.render(records).splitlines()
    assert lines[0].split()[:7] == ["op", "type", "shape", "n", "us", "GB/s", "TOPS"]
    assert lines[0].endswith("of read  x matmul")
    assert len(lines) == 1 + len(records)


def test_the_command_reads_joins_and_draws_reports(
    bench: ModuleType, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined, drawn = tmp_path / "joined.json", tmp_path / "plot.svg"
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        require("matplotlib")
    words = ["--from", str(kept), str(kept), "--plot", str(drawn), "--json", str(joined)]
    assert bench.main(words) == 0
    assert "mul_mat_vec_a8     Q8_0   256x1024" in capsys.readouterr().out
    assert drawn.read_text().startswith("<?xml")
    assert json.loads(joined.read_text())["records"] == 2 * json.loads(kept.read_text())["records"]


def test_wrong_words_are_named(bench: ModuleType) -> None:
    for arguments, text in {
        ("--types", "Q9"): "bench: --types Q9: not known; wanted: Q4_0",
        ("--shapes", "7B"): "bench: --shapes 7B: not known; wanted: 8B, 30B-A3B, 256-experts, square, small",
        ("--suite", "encode"): "bench: --suite encode: not known; wanted: decode, prefill, routed",
        ("--device", "xpu"): "bench: --device xpu: there are no kernels for devices of type 'xpu'",
    }.items():
        with pytest.raises(SystemExit) as caught:
            bench.main(["--device", "cpu", *arguments])
        assert str(caught.value).startswith(text)


def test_no_row_begins_after_the_budget(bench: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert bench.main(["--device", "cpu", "--types", "Q8_0", "--suite", "--budget", "0", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert (report["records"], report["notes"]) == ([], ["stopped after 0 s, before all was measured"])


@pytest.mark.parametrize(
    ("suite", "op", "down"),
    [
        ("decode", "ggml_mul_mat_vec_a8", False),
        ("prefill", "ggml_mul_mat_a8", False),
        ("routed", "ggml_moe_a8_vec", True),
        ("routed", "ggml_moe_a8", True),
        ("routed", "ggml_moe_gate_up_a8", False),
        ("routed", "mxfp4_moe_gate_up", False),
        ("routed", "mxfp4_moe_down", True),
    ],
)
def test_a_wrong_result_is_not_recorded(
    bench: ModuleType, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, suite: str, op: str, down: bool
) -> None:
    """It is named, and the other rows are measured."""
    right = getattr(kernels, op)
    monkeypatch.setattr(kernels, op, lambda *given: 1.02 * right(*given))
    torch.manual_seed(3)
    timer = bench.Bench(CPU, seconds=0.0)
    routed = {"experts": 4, "top_k": 2, "down": down} if suite == "routed" else {}
    counts = [9] if op in ("ggml_moe_a8", "ggml_mul_mat_a8") else [2]
    records = list(getattr(timer, suite)("MXFP4", bench.Shape(rows=32, cols=256, **routed), counts))
    assert op not in {each.op for each in records}
    assert len(records) == (0 if suite != "routed" else 1 if down else 2)
    (failure,) = timer.failures
    assert failure.startswith(f"{op} MXFP4 32x256") and f"{op} of MXFP4 is wrong: NMSE 4.0e-04" in failure


class OtherWay:
    """In the place of llama.cpp's kernels, which need a GPU: torch's products, wrong or failing for some types."""

    def __init__(self, baselines: ModuleType) -> None:
        self.baselines = baselines

    def has(self, type_name: str, vectors: int) -> bool:
        return type_name != "Q4_0"

    def plain(self, type_name: str, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ids = torch.zeros(len(x), 1, dtype=torch.int32)
        return self.routed(type_name, weight[None], x, ids)

    def routed(self, type_name: str, weight: torch.Tensor, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if type_name == "Q5_0":
            raise RuntimeError("no such luck\nat all")
        result: torch.Tensor = self.baselines.torch_routed(type_name, weight, x, ids)
        return 1.1 * result if type_name == "Q4_1" else result

    def gate_up(self, type_name: str, weight: torch.Tensor, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.baselines.torch_swiglu(self.routed(type_name, weight, x, ids))
        return result


def test_a_baseline_is_timed_only_where_it_is_right(bench: ModuleType, baselines: ModuleType) -> None:
    torch.manual_seed(3)
    timer = bench.Bench(CPU, seconds=0.0)
    timer.llama = OtherWay(baselines)
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0"):
        records = list(timer.decode(name, bench.Shape(rows=32, cols=256), [2]))
        records += timer.routed(name, bench.Shape(rows=32, cols=256, experts=4, top_k=2), [2])
        assert [each.op for each in records] == ["ggml_mul_mat_vec_a8", "ggml_moe_a8_vec", "ggml_moe_gate_up_a8"]
        for each in records:
            assert ("llama.cpp" in each.baselines) == (name == "Q8_0")
    assert timer.failures == []
    assert [note.partition(": ")[0] for note in timer.notes] == [
        f"llama.cpp left out of {row}"
        for name in ("Q4_1", "Q5_0")
        for row in (f"ggml_mul_mat_vec_a8 {name} 32x256 n=2", *[f"{name} 32x256 4e2 n=2"] * 2)
    ]
    assert timer.notes[-1].endswith(": no such luck")


def test_routings_are_random_distinct_and_the_same_again(inputs: ModuleType) -> None:
    ids, weights = inputs.routing(3, 5, 16, 4, CPU)
    torch.rand(7)
    again, _ = inputs.routing(3, 5, 16, 4, CPU)
    assert ids.dtype == torch.int32 and ids.shape == weights.shape == (3, 5, 4)
    assert torch.equal(ids, again)
    assert not torch.equal(ids[0], ids[1])
    assert all(len(set(each.tolist())) == 4 for each in ids.reshape(-1, 4))
    assert torch.allclose(weights.sum(-1), torch.ones(3, 5))


@pytest.mark.parametrize("tokens", [2, 9])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_way_by_expert(
    inputs: ModuleType, baselines: ModuleType, tokens: int, down: bool, dtype: torch.dtype
) -> None:
    """With fewer slots than experts, and with more, of which some have none."""
    experts, top_k, rows, cols = 6, 2, 16, 64
    weight = inputs.random_weights("Q8_0", CPU, experts, rows, cols)
    ids = inputs.routing(1, tokens, experts - 1, top_k, CPU)[0][0]
    x = torch.randn(tokens * top_k if down else tokens, cols).to(dtype)
    found = baselines.torch_routed("Q8_0", weight, x, ids)
    values = oracle.dequantize(weight.numpy(), "Q8_0").astype(float)
    own = x.double().numpy() if down else np.repeat(x.double().numpy(), top_k, axis=0)
    wanted = np.stack([values[expert] @ row for expert, row in zip(ids.reshape(-1).tolist(), own, strict=True)])
    assert found.dtype == dtype
    assert oracle.nmse(found.double().numpy(), wanted) < (1e-10 if dtype == torch.float32 else 1e-4)


def test_activations_are_quantised_as_the_oracle_does(inputs: ModuleType) -> None:
    x = torch.randn(3, 512) * torch.tensor([[1e-3], [1.0], [300.0]])
    x[1, :256] = 0
    assert np.array_equal(inputs.quantised(x).numpy(), routed_oracle.blocks_of_32(x.numpy()))
    assert np.allclose(inputs.quantised_q8_k(x).numpy(), routed_oracle.q8_k(x.numpy()), rtol=3e-7, atol=0)


@pytest.mark.parametrize("type_name", FORMATS)
def test_random_weights_are_of_ordinary_size(bench: ModuleType, type_name: str) -> None:
    """Of every format, without knowing its layout; and the values differ."""
    torch.manual_seed(1)
    weight = bench.random_weights(type_name, torch.device("cpu"), 4, 1024)
    values = oracle.dequantize(weight.numpy(), type_name)
    assert values.shape == (4, 1024)
    assert abs(values).max() < 64
    assert len(set(values.reshape(-1).tolist())) >= 3
    assert bench.block_shape(type_name)[1] * (1024 // bench.block_shape(type_name)[0]) == weight.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["read.cu", "mma.cu", "llama.cu"])
def test_the_baselines_compile(baselines: ModuleType, tmp_path: Path, source: str) -> None:
    """All but llama_mmq.cu, which takes minutes. Undefined symbols show when the library is loaded."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc, which the machines of the results have")
    flags: list[str] = []
    if source == "llama.cu":
        try:
            root = baselines.llama_root()
        except RuntimeError as err:
            pytest.skip(str(err))
        flags = baselines.llama_command(root, baselines.llama_folder(root, tmp_path), "MXFP4")
    library = tmp_path / "baseline.so"
    subprocess.run(baselines.nvcc_command(nvcc, "sm_90a", source, flags, library), check=True)
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})"], check=True)


@pytest.mark.slow
def test_the_run_on_a_gpu_writes_its_results(package: Path, tmp_path: Path) -> None:
    """On the CPU, with the wheel's library as it is: the same script, tests that need a GPU skipped and counted."""
    wheel = tmp_path / "kernels.whl"
    shutil.make_archive(str(tmp_path / "kernels"), "zip", package)
    (tmp_path / "kernels.zip").rename(wheel)
    script = Path(__file__).with_name("cuda_run.py")
    words = [wheel, "--device", "cpu", "--out", tmp_path / "out", "--only", "test_graph.py"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    (path,) = (tmp_path / "out").glob("cpu-*.json")
    found = json.loads(path.read_text())
    assert (found["passed"], found["failed"]) == (0, {}), done.stdout
    assert list(found["skipped"].values()) == [1]
    assert list(found["formats"]) == list(FORMATS)
    for name, each in found["formats"].items():
        assert each["dequantize_exact"], name
        assert each["worst_nmse"]["float32"] < 1e-9
