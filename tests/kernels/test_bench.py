"""The benchmark and the run on a GPU, on the CPU: results are checked before they are timed, reports can be read."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import oracle
import pytest
import torch
from cases import FORMATS
from packages import KERNELS
from support import require


@pytest.fixture(scope="module")
def bench(kernels: ModuleType) -> ModuleType:
    return importlib.import_module("gguf_kernels.bench")


@pytest.fixture(scope="module")
def report(bench: ModuleType) -> dict:
    given = argparse.Namespace(
        device="cpu", types=["Q8_0", "q4_0"], shapes=["small"], vectors=[1, 2], replays=1, no_baselines=False
    )
    return bench.measure(given)[0]


def test_a_report_holds_what_was_asked_for(bench: ModuleType, report: dict) -> None:
    records = [bench.Record(**each) for each in report["records"]]
    assert [(each.op, each.type, each.shape, each.vectors) for each in records] == [
        *(("ggml_mul_mat_vec_a8", name, "256x1024", n) for name in ("Q8_0", "Q4_0") for n in (1, 2)),
        *(("ggml_moe_a8_vec", name, "64x512 8e2", n) for name in ("Q8_0", "Q4_0") for n in (1, 2)),
    ]
    for each in records:
        assert each.us > 0 and 0 <= each.nmse < 1e-9
        assert set(each.baselines) == ({"read", "matmul"} if "mul_mat" in each.op else {"read"})
        assert each.read_share == each.baselines["read"] / each.us
    assert records[0].bytes == 256 * 1024 // 32 * 34
    assert records[0].gigabytes_a_second == pytest.approx(records[0].bytes / records[0].us / 1000)
    assert report["device"] == "the CPU" and report["read_by"] == "torch.sum of int64"
    lines = bench.render(records).splitlines()
    assert lines[0].split()[:5] == ["op", "type", "shape", "n", "us"]
    assert len(lines) == 1 + len(records)


def test_the_command_reads_and_draws_a_report(bench: ModuleType, report: dict, tmp_path: Path, capsys: object) -> None:
    kept, drawn = tmp_path / "report.json", tmp_path / "plot.svg"
    kept.write_text(json.dumps(report))
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        require("matplotlib")
    assert bench.main(["--from", str(kept), "--plot", str(drawn)]) == 0
    assert "mul_mat_vec_a8  Q8_0  256x1024" in capsys.readouterr().out  # type: ignore[attr-defined]
    assert drawn.read_text().startswith("<?xml")


def test_wrong_words_are_named(bench: ModuleType) -> None:
    for arguments, text in {
        ("--types", "Q9"): "bench: --types Q9: not known; wanted: Q4_0",
        ("--shapes", "7B"): "bench: --shapes 7B: not known; wanted: 8B, 30B-A3B, small",
        ("--device", "xpu"): "bench: --device xpu: there are no kernels for devices of type 'xpu'",
    }.items():
        with pytest.raises(SystemExit) as caught:
            bench.main(["--device", "cpu", *arguments])
        assert str(caught.value).startswith(text)


def test_a_wrong_result_is_never_timed(bench: ModuleType, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.ggml_mul_mat_vec_a8
    monkeypatch.setattr(bench.gguf_kernels, "ggml_mul_mat_vec_a8", lambda *given: 1.02 * right(*given))
    timer = bench.Bench(torch.device("cpu"), seconds=0.01)
    with pytest.raises(SystemExit, match=r"ggml_mul_mat_vec_a8 of Q8_0 is wrong: NMSE 4\.0e-04"):
        list(timer.plain("Q8_0", bench.Shape(rows=8, cols=64), [1]))


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
def test_the_reader_compiles(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc, which the machines of the results have")
    source = KERNELS / "gguf_kernels" / "baselines" / "read.cu"
    command = ["nvcc", "-std=c++17", "-O3", "-arch=sm_90a", "-Xcompiler", "-fPIC", "-shared", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "read.so")], check=True)


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
