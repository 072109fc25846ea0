"""Finished wheels: tags, RECORD, same bytes, nothing half-written."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from rocmbuild.build.wheel import finish_wheel, zip_time
from rocmbuild.errors import InputError


@pytest.fixture
def pure(tmp_path: Path) -> Path:
    path = tmp_path / "thing-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("thing/__init__.py", "x = 1\n")
        file.writestr("thing-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n")
        file.writestr("thing-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.2\n")
        file.writestr("thing-1.2.dist-info/RECORD", "")
    return path


def finish(pure: Path, out: Path, **more: str) -> Path:
    return finish_wheel(pure, out, added={"thing/lib/a_rocm.so": b"\x7fELF"}, evidence=b"{}\n", environ=more)


def test_tag_record_and_evidence(pure: Path, tmp_path: Path) -> None:
    path = finish(pure, tmp_path / "out")
    assert path.name == "thing-1.2-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(path) as file:
        wheel = file.read("thing-1.2.dist-info/WHEEL").decode()
        assert "Root-Is-Purelib: false" in wheel
        assert "Tag: py3-none-linux_x86_64" in wheel
        assert "any" not in wheel
        rows = {row[0]: row for row in csv.reader(io.StringIO(file.read("thing-1.2.dist-info/RECORD").decode()))}
        assert sorted(rows) == sorted(file.namelist())
        for name, (_, digest, size) in rows.items():
            if name.endswith("/RECORD"):
                assert (digest, size) == ("", "")
                continue
            data = file.read(name)
            want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={want}", str(len(data)))
        assert file.read("thing-1.2.dist-info/rocmbuild.json") == b"{}\n"
        assert file.getinfo("thing/lib/a_rocm.so").external_attr >> 16 == 0o100755


def test_same_input_same_bytes(pure: Path, tmp_path: Path) -> None:
    one, two = finish(pure, tmp_path / "one"), finish(pure, tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
    three = finish(pure, tmp_path / "three", SOURCE_DATE_EPOCH="1700000000")
    assert three.read_bytes() != one.read_bytes()


def test_source_date_epoch() -> None:
    assert zip_time({}) == (1980, 1, 1, 0, 0, 0)
    assert zip_time({"SOURCE_DATE_EPOCH": "0"}) == (1980, 1, 1, 0, 0, 0)
    assert zip_time({"SOURCE_DATE_EPOCH": "1700000000"}) == (2023, 11, 14, 22, 13, 20)
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH: found 'yesterday'"):
        zip_time({"SOURCE_DATE_EPOCH": "yesterday"})


def test_a_file_in_the_place_of_a_library_is_refused(pure: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"thing/__init__\.py"):
        finish_wheel(pure, tmp_path / "out", added={"thing/__init__.py": b""}, evidence=b"", environ={})
    assert not (tmp_path / "out").exists()
