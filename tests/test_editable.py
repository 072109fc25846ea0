"""Editable installs: what is edited is built anew on import, and only that; by the real pip in a real environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import CHECK_SAXPY, PROJECTS, ROOT, needs_toolchain, needs_torch_sdk

from rocmbuild.build import finder


def test_what_changed_is_told_by_size_and_time(tmp_path: Path) -> None:
    source, inputs = tmp_path / "a.cu", tmp_path / "inputs.json"
    source.write_text("1")
    info, folder = source.stat(), tmp_path / "folder"
    folder.mkdir()

    def write(**known: list[int | None]) -> None:
        inputs.write_text(json.dumps({str(tmp_path / name): value for name, value in known.items()}))

    assert finder.changed(str(inputs)), "nothing is known"
    inputs.write_text("{")
    assert finder.changed(str(inputs))
    write(**{"a.cu": [1, info.st_mtime_ns], "folder": [None, folder.stat().st_mtime_ns]})
    assert not finder.changed(str(inputs))
    (folder / "new.cu").write_text("")
    assert finder.changed(str(inputs))
    write(**{"a.cu": [1, info.st_mtime_ns - 1]})
    assert finder.changed(str(inputs))
    write(**{"a.cu": [2, info.st_mtime_ns]})
    assert finder.changed(str(inputs))
    write(**{"gone.cu": [1, 1]})
    assert finder.changed(str(inputs))


@pytest.mark.slow
@needs_toolchain
@needs_torch_sdk
def test_an_edit_is_built_on_import_and_only_what_uses_it(tmp_path: Path) -> None:
    """One story: install, import, edit a header, import at once by four, turn it off, break it, take rocmbuild away."""
    project, venv, build = tmp_path / "p", tmp_path / "venv", tmp_path / "b"
    shutil.copytree(PROJECTS / "saxpy", project)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin/python"
    settings = ("platforms=host", f"build-dir={build}", "debug=true", "jobs=2")
    words = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-build-isolation", "--no-deps"]
    # with --python pip builds in that environment, which must see rocmbuild and what it needs
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "here.pth").write_text("\n".join([str(ROOT), *(path for path in sys.path if "site-packages" in path)]))
    options = [word for setting in settings for word in ("--config-settings", setting)]
    subprocess.run([*words, *options, "-e", str(project)], check=True)

    def start(**environ: str) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environ
        pipe = subprocess.PIPE
        return subprocess.Popen([python, "-c", CHECK_SAXPY], env=env, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)

    def imported(**environ: str) -> tuple[str, str]:
        out, err = start(**environ).communicate()
        return out.strip(), err

    assert imported() == ("12.0", ""), "nothing was edited, so nothing is said"
    # debug builds: symbols are kept, and the code can be stepped through
    record = json.loads((build / "record.json").read_text())
    compiled = [command["argv"] for command in record["commands"] if command["kind"] == "cxx"]
    assert all("-g" in argv and "-O1" in argv for argv in compiled)
    assert b".debug_info" in (build / "lib/saxpy/lib/saxpy_host.so").read_bytes()

    def objects() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in build.rglob("obj/**/*.o")}

    before = objects()
    header = project / "csrc/scale.cuh"
    header.write_text(header.read_text().replace("a * SAXPY_SCALE", "a * SAXPY_SCALE * 10"))
    four = [start() for _ in range(4)]
    results = [process.communicate() for process in four]
    assert [out.strip() for out, _ in results] == ["120.0"] * 4, results
    after = objects()
    assert {name for name, time in after.items() if time != before[name]} == {"saxpy.cu.o", "sum.cu.o"}
    assert imported() == ("120.0", "")

    header.write_text(header.read_text().replace("* 10", "* 20"))
    assert imported(ROCMBUILD_EDITABLE_REBUILD="0") == ("120.0", "")
    assert imported()[0] == "240.0"

    header.write_text(header.read_text().replace("* 20", "* nonsense"))
    out, err = imported()
    assert out == ""
    assert "nonsense" in err
    assert "ended with status 1; mend what it names, or set ROCMBUILD_EDITABLE_REBUILD=0" in err
    (site / "here.pth").unlink()
    out, err = imported()
    assert "rocmbuild is not installed for" in err
    assert out == ""
