"""A finished wheel from a pure one: libraries, loader and evidence added, tagged, the same bytes each time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmbuild.errors import InputError
from rocmbuild.paths import as_json

if TYPE_CHECKING:
    from rocmbuild.audit.report import AuditReport
    from rocmbuild.build.tags import Variant

__all__ = ["dist_info", "evidence", "finish_wheel", "rename_metadata", "zip_time"]

_EPOCH = 315532800  # 1980-01-01, the first moment that a zip file can name


def zip_time(environ: Mapping[str, str]) -> tuple[int, int, int, int, int, int]:
    """Time of every member: SOURCE_DATE_EPOCH (seconds since 1970), else 1980-01-01."""
    text = environ.get("SOURCE_DATE_EPOCH", "")
    if text and not text.isdecimal():
        raise InputError(f"SOURCE_DATE_EPOCH: found {text!r}, wanted whole seconds since 1970")
    return time.gmtime(max(int(text or 0), _EPOCH))[:6]


def dist_info(names: list[str]) -> str:
    """Name of the .dist-info folder among a wheel's members."""
    return next(name.split("/")[0] for name in names if name.split("/")[0].endswith(".dist-info"))


def _record(members: Mapping[str, bytes], record: str) -> bytes:
    """RECORD of a wheel (PyPA's specification of installed projects): path, sha256, size; itself without."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(data)])
    writer.writerow([record, "", ""])
    return text.getvalue().encode()


def _tagged(wheel: bytes, tag: str) -> bytes:
    """The WHEEL file of a package with native code, of one tag."""
    lines = [line for line in wheel.decode().splitlines() if line and not re.match(r"(Tag|Root-Is-Purelib):", line)]
    return "\n".join([*lines, "Root-Is-Purelib: false", f"Tag: {tag}", ""]).encode()


def evidence(
    record: Mapping[str, Any], report: AuditReport, places: Sequence[tuple[str, str]], *, sort: bool = False
) -> bytes:
    """What is reproducible of the record, without this machine's folders and times.

    places: (path, the name that stands for it), inner ones first. sort: commands by their source and words, where the
    order in which they ran tells nothing.
    """

    def plain(word: str) -> str:
        for path, name in places:
            word = word.replace(path, name)
        return word

    kept = {key: value for key, value in record.items() if key != "build_dir"}
    commands = [
        {
            **{key: command[key] for key in ("kind", "platform", "extension", "target")},
            "source": plain(source) if (source := command["source"]) and source.startswith("/") else source,
            "argv": [plain(word) for word in command["argv"]],
            "env": command["env"],
        }
        for command in record["commands"]
    ]
    kept["commands"] = (
        sorted(commands, key=lambda command: (command["source"] or "", command["argv"])) if sort else commands
    )
    kept["code_objects"] = report.summary()
    return as_json(kept)


def rename_metadata(folder: str, metadata: bytes, local: str) -> tuple[str, bytes]:
    """The name of a .dist-info folder and its METADATA with a local part added to the version (PEP 440)."""
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    longer = f"{version}.{local}" if "+" in version else f"{version}+{local}"
    text = re.sub(rb"(?m)^Version: .*$", f"Version: {longer}".encode(), metadata, count=1)
    return f"{name}-{longer}.dist-info", text


def _renamed(folder: str, members: Mapping[str, bytes], local: str) -> tuple[str, dict[str, bytes]]:
    new, metadata = rename_metadata(folder, members[f"{folder}/METADATA"], local)
    heads = {folder: new, folder.replace(".dist-info", ".data"): new.replace(".dist-info", ".data")}

    def place(name: str) -> str:
        head, slash, rest = name.partition("/")
        return heads.get(head, head) + slash + rest

    return new, {place(name): data for name, data in members.items()} | {f"{new}/METADATA": metadata}


def finish_wheel(
    pure: Path,
    out: Path,
    *,
    added: Mapping[str, bytes],
    evidence: bytes,
    environ: Mapping[str, str],
    edit: tuple[str, str] | None = None,
    tag: str = "py3-none-linux_x86_64",
    keep_tags: bool = False,
    local: str = "",
    variant: Variant | None = None,
) -> Path:
    """Write the wheel into `out` and return its path; it appears whole or not at all.

    added: members by their path in the wheel. evidence: rocmbuild.json of the .dist-info folder. edit: a
    path and what stands for it in setuptools' finders of an editable install. keep_tags: the wheel's name and tags
    stay as setuptools made them. local: what is added to the version as its local part. variant: makes the wheel a
    variant (PEP 817).
    """
    with zipfile.ZipFile(pure) as source:
        members = {info.filename: source.read(info) for info in source.infolist() if not info.is_dir()}
        modes = {info.filename: (info.external_attr >> 16) & 0o777 for info in source.infolist()}
    folder = dist_info(list(members))
    if edit:
        old, new = (word.encode() for word in edit)
        members = {name: data.replace(old, new) if "__editable__" in name else data for name, data in members.items()}
    both = sorted(set(members) & set(added))
    if both:
        raise InputError(
            f"{both[0]}: the package has a file of this name, and rocmbuild would put a library there",
            hint="name the extension otherwise in [[tool.rocmbuild.extensions]]",
        )
    members |= added
    if local:
        folder, members = _renamed(folder, members, local)
    if not keep_tags:
        members[f"{folder}/WHEEL"] = _tagged(members[f"{folder}/WHEEL"], tag)
    members[f"{folder}/rocmbuild.json"] = evidence
    if variant:
        members[f"{folder}/variant.json"] = variant.metadata
    record = f"{folder}/RECORD"
    members.pop(record, None)
    last = [name for name in members if name.startswith(f"{folder}/")]
    order = sorted(set(members) - set(last)) + sorted(last)
    members = {name: members[name] for name in order}
    members[record] = _record(members, record)
    own = pure.stem.removeprefix("-".join(pure.stem.split("-")[:2]) + "-") if keep_tags else tag
    target = out / f"{folder.removesuffix('.dist-info')}-{own}{f'-{variant.label}' if variant else ''}.whl"
    out.mkdir(parents=True, exist_ok=True)
    stamp = zip_time(environ)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=out)
    try:
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as result,
        ):
            for member, data in members.items():
                info = zipfile.ZipInfo(member, stamp)
                mode = 0o755 if member.endswith(".so") else modes.get(member) or 0o644
                info.external_attr = (0o100000 | mode) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                info.create_system = 3
                result.writestr(info, data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target
