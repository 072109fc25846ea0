"""The subprocess that converts: the one place where code of an engine runs.

Standard input is a line of JSON, the job; a line with the engine's tables as JSON, or an empty one where they are not
known yet; then the bytes of the job's files, one after the other. Standard output is a line of JSON, the results in the
job's order; a line with the tables, if they were loaded; the bytes of the files that were converted. Nothing is read
but the engine's own files, and nothing is written. It starts for each edit of a source, so it imports little.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from rocmbuild.staging.checks import examine
from rocmbuild.staging.convert import Engine, Resolve, convert, resolving
from rocmbuild.staging.layout import Resolver
from rocmbuild.staging.text import decode, encode

__all__ = ["main", "serve"]


def _one(
    path: str, data: bytes, engine: Engine, resolve: Resolve, defines: Mapping[str, str]
) -> tuple[dict[str, Any], bytes]:
    """The record of one file, and its bytes where they differ from the source's."""
    if (end := data.find(b"\0")) >= 0:
        line, column = data.count(b"\n", 0, end) + 1, end - data.rfind(b"\n", 0, end)
        return _skipped(line, column, f"it holds a NUL byte at line {line}, column {column}"), b""
    text = decode(data)
    done = convert(text, path, engine, resolve)
    facts = examine(
        path,
        text,
        done.text,
        masked=done.masked,
        shift=done.shift,
        problems=done.problems,
        includes=done.includes,
        defines=defines,
    )
    new = encode(done.text)
    record = {
        "status": "unchanged" if new == data else "converted",
        "launches": done.launches,
        "replaced": done.replaced,
        "shift": done.shift,
        "problems": done.problems,
        "includes": done.includes,
        "facts": facts,
    }
    return record, b"" if new == data else new


def _skipped(line: int, column: int, reason: str) -> dict[str, Any]:
    return {"status": "skipped", "launches": 0, "replaced": 0, "line": line, "column": column, "reason": reason}


def serve(job: Mapping[str, Any], tables: bytes, data: bytes) -> tuple[dict[str, Any], bytes, list[bytes]]:
    """Convert the files of a job, whose bytes follow each other in data. A file that fails is a skipped one."""
    new_tables = b""
    if tables:
        engine = Engine(*json.loads(tables))
    else:
        from rocmbuild.staging.tables import load_engine  # once for each engine

        try:
            engine = load_engine(job["engine"])
        except Exception as err:  # an engine is code that somebody else wrote
            return {"engine": f"{type(err).__name__}: {err}"}, b"", []
        new_tables = json.dumps(engine).encode("ascii")
    resolve = resolving(Resolver(job["outputs"], job["include_dirs"]), engine)
    records: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    offset = 0
    for path, size in job["files"]:
        try:
            record, new = _one(path, data[offset : offset + size], engine, resolve, job["defines"])
        except Exception as err:  # one bad file is reported by its name, and the others too
            record, new = _skipped(1, 1, f"{type(err).__name__}: {err}"), b""
        offset += size
        records.append({**record, "size": len(new)})
        blobs.append(new)
    return {"files": records}, new_tables, blobs


def main(source: BinaryIO | None = None, target: BinaryIO | None = None) -> int:
    """Serve one job from standard input to standard output; none at all is a job that was called off."""
    source, target = source or sys.stdin.buffer, target or sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever an engine prints, it is no result
    job = source.readline()
    if not job:
        return 0
    tables = source.readline().rstrip(b"\n")
    result, new_tables, blobs = serve(json.loads(job), tables, source.read())
    target.write(json.dumps(result).encode("ascii") + b"\n" + new_tables + b"\n")
    target.writelines(blobs)
    target.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
