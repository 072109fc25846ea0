"""The header of the IQ grids is what its script makes of the installed `gguf` package's tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pytest
from packages import KERNELS, kernel_tool

SCRIPT = KERNELS / "tools" / "iq_grids.py"


@pytest.fixture(scope="module")
def grids() -> ModuleType:
    """The script, imported."""
    return kernel_tool("iq_grids")


def test_the_header_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_header_is_seen(
    grids: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One digit changed, and no header at all; writing puts it right."""
    copy = tmp_path / "iq_grids.h"
    monkeypatch.setattr(grids, "HEADER", copy)
    assert grids.main(["--check"]) == 1
    copy.write_text(grids.header().replace("0x2b", "0x2c", 1))
    assert grids.main(["--check"]) == 1
    assert "is not what iq_grids.py writes" in capsys.readouterr().err
    assert grids.main([]) == 0
    assert grids.main(["--check"]) == 0


def test_words_hold_the_packages_values(grids: ModuleType) -> None:
    """Unpacked in the obvious way they are the table that the `gguf` package's own dequantiser uses."""
    for name, entries in {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024, "IQ3_XXS": 256, "IQ3_S": 512}.items():
        grid = grids.grid_of(name)
        assert len(grid) == entries
        unpacked = [word >> 8 * i & 255 for word in grids.byte_words(grid).tolist() for i in range(4)]
        assert np.array_equal(
            np.reshape(unpacked, grid.shape), gguf.quants._type_traits[gguf.GGMLQuantizationType[name]].grid[0, 0]
        )
    words = grids.code_words(grids.grid_of("IQ1_S")).tolist()
    unpacked = [[(word >> 8 * (i % 4) + 4 * (i // 4) & 15) - 1 for i in range(8)] for word in words]
    assert len(words) == 2048
    assert np.array_equal(unpacked, gguf.quants.IQ1_S.grid[0, 0])
