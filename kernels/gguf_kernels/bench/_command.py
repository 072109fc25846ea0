"""The command line."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import gguf_kernels
from gguf_kernels.bench._inputs import block_shape
from gguf_kernels.bench._records import SHAPES, Record, Shape, plot, render
from gguf_kernels.bench._suites import Bench, said

__all__ = ["main", "measure"]

SUITES = {
    "decode": ("ggml_mul_mat_vec_a8", ["8B"], [1, 2, 4, 8]),
    "prefill": ("ggml_mul_mat_a8", ["square"], [512, 4096]),
    "routed": ("ggml_moe_a8", ["30B-A3B", "256-experts"], [1, 2, 4, 8, 16, 32, 128, 512, 4096]),
}
"""Each: the operator whose types it measures, and, on a GPU, the shapes and numbers of vectors or tokens."""

ON_CPU = {"decode": [1, 2], "prefill": [12], "routed": [2, 12]}


def _chosen(values: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    unknown = [value for value in values if value not in known]
    if unknown:
        raise SystemExit(f"bench: {what} {', '.join(unknown)}: not known; wanted: {', '.join(known)}")
    return list(values) or list(known)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gguf_kernels.bench", description="Times the products of gguf_kernels, with baselines."
    )
    gpu = torch.cuda.is_available() and gguf_kernels.device_fault("cuda") is None
    parser.add_argument("--device", default="cuda" if gpu else "cpu", help="cpu or a GPU (default: %(default)s)")
    parser.add_argument(
        "--suite", nargs="*", default=["decode"], help=f"of {', '.join(SUITES)} (default: decode; without a name all)"
    )
    parser.add_argument("--types", nargs="*", default=[], metavar="TYPE", help="formats (default: all that are there)")
    parser.add_argument(
        "--shapes", nargs="*", default=[], metavar="SET", help=f"of {', '.join(SHAPES)} (default: the suite's)"
    )
    parser.add_argument(
        "--vectors", nargs="*", type=int, default=[], metavar="N", help="vectors or tokens (default: the suite's)"
    )
    parser.add_argument("--replays", type=int, default=60, help="of each graph at most, of which the median counts")
    parser.add_argument("--seconds", type=float, default=0.3, help="for a figure, at most (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no row is begun")
    parser.add_argument("--no-baselines", action="store_true", help="only the products and the pure read")
    parser.add_argument(
        "--json", metavar="FILE", help="write the records to a file, after each of them, or `-` to print them"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw them (needs matplotlib)")
    parser.add_argument(
        "--from", dest="sources", nargs="+", metavar="FILE", help="do not measure: take the records of these files"
    )
    given = parser.parse_args(arguments)
    report = _joined(given.sources) if given.sources else measure(given)
    records = [Record(**each) for each in report["records"]]
    if given.json == "-":
        print(json.dumps(report, indent=1))
    else:
        print(f"{report['device']}, torch {report['torch']}, read by {report['read_by']}, {report['date']}")
        ceilings = [f"{name}: {speed:.0f} TOPS" for name, speed in report.get("ceilings", {}).items()]
        print("\n".join([*ceilings, *report["notes"], render(records)]))
        if given.json:
            _write(report, Path(given.json))
    if given.plot:
        plot(report, Path(given.plot))
    failures = report.get("failures", [])
    print("".join(f"bench: left out: {failure}\n" for failure in failures), end="", file=sys.stderr)
    return 1 if failures else 0


def _write(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _joined(paths: Sequence[str]) -> dict[str, Any]:
    """The first report, with the records, notes and failures of all."""
    reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    lists = {
        key: [each for report in reports for each in report.get(key, [])] for key in ("notes", "failures", "records")
    }
    return {**reports[0], **lists}


def _line(record: Record) -> str:
    shares = {name: record.share(name) for name in ("llama.cpp", "matmul", "read", "mma")}
    known = [f"{name} {share:.2f}" for name, share in shares.items() if share is not None]
    return " ".join([record.op, record.type, record.shape, f"n={record.vectors}", f"{record.us:.1f} us;", *known])


def _guarded(bench: Bench, suite: str, type_name: str, shape: Shape, counts: Sequence[int]) -> Iterator[Record]:
    """The records of a suite, up to where it fails as a whole."""
    try:
        yield from getattr(bench, suite)(type_name, shape, counts)
    except RuntimeError as err:  # for one, no memory for the weights
        bench.failures.append(f"{suite} {type_name} {shape.name}: {said(err)}")


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run what the arguments ask for; a line to stderr for each record."""
    begin = time.monotonic()
    device = torch.device(given.device)
    fault = gguf_kernels.device_fault(device)
    if fault is not None:
        raise SystemExit(f"bench: --device {given.device}: {fault}")
    cpu = device.type == "cpu"
    table = gguf_kernels.capabilities()["cpu" if cpu else f"cuda:{device.index or 0}"]
    suites = _chosen(given.suite, list(SUITES), "--suite")
    names = [name.upper() for name in given.types]
    there = {suite: _chosen(names, table[SUITES[suite][0]], "--types") for suite in suites}
    counts = {suite: given.vectors or (ON_CPU[suite] if cpu else SUITES[suite][2]) for suite in suites}
    chosen = _chosen(given.shapes, list(SHAPES), "--shapes") if given.shapes else []
    sets = {suite: chosen or (["small"] if cpu else SUITES[suite][1]) for suite in suites}
    most = [count for suite in suites for count in counts[suite]]
    bench = Bench(
        device,
        types=list(dict.fromkeys(name for suite in suites for name in there[suite])),
        few=any(count <= 8 for count in most),
        many=any(count > 8 for count in most),
        replays=given.replays,
        seconds=given.seconds,
        baselines=not given.no_baselines,
        deadline=begin + given.budget,
    )
    report: dict[str, Any] = {
        "device": "the CPU" if cpu else torch.cuda.get_device_name(device),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "read_by": bench.reader.by,
        "rotated_bytes": bench.cache,
        "ceilings": bench.ceilings,
        "notes": bench.notes,
        "failures": bench.failures,
        "records": [],
    }
    print(f"bench: ready after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    with torch.inference_mode():
        for suite in suites:
            for shape in (shape for name in sets[suite] for shape in SHAPES[name]):
                if bool(shape.experts) != (suite == "routed"):
                    continue
                for type_name in there[suite]:
                    if shape.cols % block_shape(type_name)[0] or time.monotonic() > bench.deadline:
                        continue
                    torch.manual_seed(7)
                    for record in _guarded(bench, suite, type_name, shape, counts[suite]):
                        report["records"].append(asdict(record))
                        at = time.monotonic() - begin
                        print(f"bench: {at:.0f} s: {_line(record)}", file=sys.stderr, flush=True)
                        if given.json and given.json != "-":
                            _write(report, Path(given.json))
    if time.monotonic() > bench.deadline:
        bench.notes.append(f"stopped after {given.budget:.0f} s, before all was measured")
    return report
