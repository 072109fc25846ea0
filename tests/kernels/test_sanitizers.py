"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, driven through the C functions without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packages import csrc_folder, trimmed_copy
from support import require
from traps import TRAPS

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
SCRIPT = Path(__file__).with_name("sanitized.py")


def run_sanitized(package: Path) -> subprocess.CompletedProcess[str]:
    runtime = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        if not Path(done.stdout.strip()).is_absolute():
            require(f"g++'s {name}")
        runtime.append(done.stdout.strip())
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtime),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=86",
        "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=87",
    }
    library = package / "gguf_kernels" / "lib" / "gguf_host.so"
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(library)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.slow
def test_no_sanitizer_has_anything_to_say(build: Callable[..., Path]) -> None:
    done = run_sanitized(build(csrc_folder(), flags=FLAGS, binding=False))
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr[-4000:]
    assert "runtime error" not in done.stderr


@pytest.mark.slow
def test_the_sanitizer_sees_a_mutant(build: Callable[..., Path], tmp_path: Path) -> None:
    """The run above means something: reading a row past the end is reported, in the very kernel."""
    trap = next(trap for trap in TRAPS if trap.what == "row past the last read")
    csrc = tmp_path / "csrc"
    trimmed_copy(csrc_folder(), csrc, {"Q4_0", "Q8_0"})
    path = csrc / trap.file
    path.write_text(path.read_text().replace(trap.old, trap.new))
    done = run_sanitized(build(csrc, flags=FLAGS, binding=False))
    assert done.returncode == 86
    assert "heap-buffer-overflow" in done.stderr
    assert "Q4_0Format::load(" in done.stderr, done.stderr
