"""Runs the shared cases on a GPU and writes what came out: `python tests/kernels/cuda_run.py WHEEL`.

Builds nothing and needs no rocmbuild: a wheel of the kernels with the platform of the GPU (`rocmbuild build kernels
--platforms cuda,host`), torch for it, numpy, pytest, filelock and gguf. Exit 0 when every test passed.

The results go to kernels/results/NAME.json, NAME from the card and the date: how many tests passed, failed and were
skipped and why, and for each format whether the values are exactly those of `gguf`, and the worst NMSE of products.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pytest  # noqa: E402
from on_device import DEVICE_VARIABLE, OnDevice  # noqa: E402
from packages import PACKAGE_VARIABLE  # noqa: E402

TESTS = ("test_products.py", "test_graph.py", "test_routed.py", "test_mat_mat.py", "test_full_size.py")
"""Those of results: what they call through the fixture `kernels` runs on the GPU."""


class Counter:
    """A pytest plugin that keeps what came of each test."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: dict[str, str] = {}
        self.skipped: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-1500:]
        elif report.skipped:
            self._skip(report.longrepr)
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-1500:]
        elif report.skipped:
            self._skip(report.longrepr)

    def _skip(self, why: object) -> None:
        reason = str(why[2] if isinstance(why, tuple) else why)
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def worst(kernels: ModuleType) -> dict[str, dict[str, Any]]:
    """For each format: are all values exact, and the largest NMSE of its products by dtype, one vector at a time."""
    import cases
    import numpy as np
    import oracle
    import torch
    from test_products import activations, rng_of

    found: dict[str, dict[str, Any]] = {}
    for type_name in cases.FORMATS:
        exact = True
        errors = dict.fromkeys(cases.SCALARS, 0.0)
        for case in cases.PRODUCT_CASES:
            cols = cases.fit(type_name, case.cols)
            weight = oracle.random_blocks(rng_of(type_name, case), type_name, case.rows, cols)
            packed = torch.from_numpy(weight)
            values = kernels.ggml_dequantize(packed, type_name, case.rows, cols, torch.float32).numpy()
            exact &= bool(np.array_equal(values, oracle.dequantize(weight, type_name), equal_nan=True))
            for dtype in cases.SCALARS:
                x, seen = activations(rng_of(type_name, case, dtype), case.vectors, cols, dtype)
                got = kernels.ggml_mul_mat_vec_a8(packed, x, type_name, case.rows).double().numpy()
                wanted = oracle.mat_vec(weight, type_name, seen)
                one = max(oracle.nmse(got[row], wanted[row]) for row in range(case.vectors))
                errors[dtype] = max(errors[dtype], one)
        found[type_name] = {"dequantize_exact": exact, "worst_nmse": errors}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the kernels' shared cases on a GPU, and write the results.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "kernels" / "results", help="folder (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="as torch names it (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=TESTS, metavar="FILE", help="test files (default: all of results)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    with zipfile.ZipFile(given.wheel) as wheel:
        wheel.extractall(folder)
    os.environ[PACKAGE_VARIABLE] = str(folder)
    os.environ[DEVICE_VARIABLE] = given.device
    sys.path.insert(0, str(folder))
    import gguf_kernels
    import torch

    fault = gguf_kernels.device_fault(given.device)
    if fault is not None:
        raise SystemExit(f"cuda_run: nothing can run on {given.device}: {fault}")
    counter = Counter()
    files = [str(HERE / name) for name in given.only if (HERE / name).exists()]
    status = int(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *files], plugins=[counter]))
    kernels: Any = OnDevice(gguf_kernels, given.device)
    gpu = given.device.startswith("cuda")
    name = torch.cuda.get_device_name(given.device) if gpu else "cpu"
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    report = {
        "device": name,
        "date": date,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "wheel_sha256": hashlib.sha256(given.wheel.read_bytes()).hexdigest(),
        "tests": [Path(file).name for file in files],
        "passed": counter.passed,
        "failed": counter.failed,
        "skipped": counter.skipped,
        "formats": worst(kernels),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{date}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    skipped = sum(counter.skipped.values())
    print(f"cuda_run: {counter.passed} passed, {len(counter.failed)} failed, {skipped} skipped; {path}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
