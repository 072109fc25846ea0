"""`python -m gguf_kernels.bench`: times the products, next to what memory allows and to other ways of computing them.

On a GPU each figure is the median over replays of a CUDA graph that runs the product on as many different weights as
fill four times the L2 cache, divided by their number; quantising the activations is part of it. On the CPU, whose
library is an oracle and no fast path, it is the median of plain calls. Every result is checked first, against the
dequantised weights times the activations quantised alike.

Baselines, where they can be had: `read`, reading the same bytes once (baselines/read.cu where nvcc is on PATH, else
torch's sum of them as int64; `read_by` says which); `matmul`, dequantising to bfloat16 and torch's matmul, as one does
without such kernels; `dense`, torch's matmul with weights that are bfloat16 already; `llama.cpp`, its decode kernel
from the sources that the package freetoken carries, built on demand by nvcc.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import gguf_kernels
from gguf_kernels import _library

__all__ = ["SHAPES", "Bench", "Record", "Shape", "main", "plot", "render"]

HERE = Path(__file__).resolve().parent
NMSE = 1e-4
"""Of a checked result in bfloat16, whose own rounding is about 3e-6; a wrong kernel is far above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One product. experts 0: a plain one of `vectors` vectors; else a routed one of `vectors` tokens, top_k each."""

    rows: int
    cols: int
    experts: int = 0
    top_k: int = 1

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.cols}" + (f" {self.experts}e{self.top_k}" if self.experts else "")


SHAPES = {
    "8B": (Shape(rows=4096, cols=4096), Shape(rows=14336, cols=4096), Shape(rows=4096, cols=14336)),
    "30B-A3B": (Shape(rows=1536, cols=2048, experts=128, top_k=8), Shape(rows=2048, cols=768, experts=128, top_k=8)),
    "small": (Shape(rows=256, cols=1024), Shape(rows=64, cols=512, experts=8, top_k=2)),
}
"""Of models of that name: attention, up and down; and the experts' gate with up, and down (a row of X a slot)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement. Times in microseconds; bytes: of the weights that the product reads."""

    op: str
    type: str
    shape: str
    vectors: int
    us: float
    bytes: int
    nmse: float
    baselines: dict[str, float] = field(default_factory=dict)

    @property
    def gigabytes_a_second(self) -> float:
        return self.bytes / self.us / 1e3

    @property
    def read_share(self) -> float | None:
        """The time of reading the same bytes over the time of the product."""
        read = self.baselines.get("read")
        return None if read is None else read / self.us


def block_shape(type_name: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    handle = next(iter(_library._HANDLES.values()))
    elements, size = ctypes.c_int32(), ctypes.c_int32()
    number = int(gguf_kernels.GGMLType[type_name])
    if handle.gguf_block_shape(number, ctypes.byref(elements), ctypes.byref(size), None) != 0:
        raise RuntimeError(f"type {type_name} has no kernels")
    return elements.value, size.value


def _chosen(values: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    unknown = [value for value in values if value not in known]
    if unknown:
        raise SystemExit(f"bench: {what} {', '.join(unknown)}: not known; wanted: {', '.join(known)}")
    return list(values) or list(known)


# --- libraries built on demand ----------------------------------------------------------------------------------------


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-kernels"


def _built(source: str, flags: Sequence[str], device: torch.device) -> ctypes.CDLL:
    """A library from baselines/, compiled once for a card and kept in the user's cache. RuntimeError when it cannot."""
    nvcc = shutil.which("nvcc")
    if nvcc is None or torch.version.cuda is None:
        raise RuntimeError("needs nvcc on PATH and a CUDA build of torch")
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        f"-arch={arch}",
        "-Xcompiler",
        "-fPIC",
        "-shared",
        "-split-compile",
        "0",
        *flags,
    ]
    key = hashlib.sha256(repr((command, (HERE / "baselines" / source).read_bytes())).encode()).hexdigest()[:16]
    library = _cache() / f"{Path(source).stem}-{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        work = library.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [*command, str(HERE / "baselines" / source), "-o", str(work)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"nvcc: {(done.stderr.strip() or done.stdout.strip())[-400:]}")
        work.replace(library)
    return ctypes.CDLL(str(library))


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _launched(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what}: CUDA error {status}")


class Reader:
    """Reads memory once."""

    def __init__(self, device: torch.device) -> None:
        self.by = "torch.sum of int64"
        self._library: ctypes.CDLL | None = None
        if device.type == "cuda":
            try:
                self._library = _built("read.cu", (), device)
                self.by = "baselines/read.cu"
            except RuntimeError as err:
                self.by += f" (its own kernel: {err})"
        self._sink = torch.zeros(1, dtype=torch.int32, device=device)

    def __call__(self, data: torch.Tensor) -> None:
        if self._library is None:
            flat = data.reshape(-1)
            flat[: flat.numel() // 8 * 8].view(torch.int64).sum()
            return
        size = ctypes.c_int64(data.numel())
        at, sink = ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(self._sink.data_ptr())
        _launched(self._library.bench_read(at, size, sink, _stream()), "read")


class Llama:
    """llama.cpp's decode product for 1 to 8 vectors in bfloat16: a library a type, all compiled at once."""

    LACKS = frozenset({"TQ1_0", "TQ2_0"})
    _ENTRY = "\nvoid ggml_cuda_mul_mat_vec_q(\n"

    def __init__(self, device: torch.device, types: Sequence[str]) -> None:
        spec = importlib.util.find_spec("freetoken")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("the package freetoken, whose sources these are, is not installed")
        root = Path(next(iter(spec.submodule_search_locations))) / "kernel" / "csrc" / "ggml"
        kernels, entry, _ = (root / "ggml-cuda" / "mmvq.cu").read_text(encoding="utf-8").partition(self._ENTRY)
        if not entry:
            raise RuntimeError(f"{root / 'ggml-cuda' / 'mmvq.cu'} is not as in freetoken 0.2.1")
        folder = _cache() / f"llama-{hashlib.sha256(kernels.encode()).hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mmvq_kernels.cuh").write_text(kernels, encoding="utf-8")
        folders = [folder, HERE / "baselines", root / "include", root / "src", root / "ggml-cuda"]
        flags = ["-use_fast_math", "--extended-lambda", *(f"-I{folder}" for folder in folders)]

        def build(type_name: str) -> ctypes.CDLL:
            block = block_shape(type_name)[0]
            own = (f"-DBENCH_TYPE=GGML_TYPE_{type_name}", f"-DBENCH_BLOCK={block}")
            library = _built("llama.cu", [*flags, *own], device)
            library.bench_llama_scratch.restype = ctypes.c_int64
            return library

        wanted = [name for name in types if name not in self.LACKS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._libraries = dict(zip(wanted, pool.map(build, wanted), strict=True))

    def has(self, type_name: str) -> bool:
        return type_name in self._libraries

    def __call__(self, type_name: str, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        library = self._libraries[type_name]
        vectors, cols = x.shape
        rows = weight.shape[0]
        size = library.bench_llama_scratch(ctypes.c_int64(vectors), ctypes.c_int64(cols))
        scratch = torch.empty(size, dtype=torch.uint8, device=x.device)
        out = torch.empty(vectors, rows, dtype=torch.bfloat16, device=x.device)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, x, out, scratch)]
        sizes = [ctypes.c_int64(number) for number in (vectors, rows, cols)]
        _launched(library.bench_llama(*pointers, *sizes, _stream()), "llama.cpp")
        return out


# --- inputs -----------------------------------------------------------------------------------------------------------


def random_weights(type_name: str, device: torch.device, *shape: int) -> torch.Tensor:
    """uint8 [..., bytes of a row] for weights [..., cols]: random blocks whose values are of ordinary size.

    Blocks of random bytes, of which those with a NaN, an infinity or a scale out of proportion are not used.
    """
    elements, size = block_shape(type_name)
    *rows, cols = shape
    pool = torch.empty(0, size, dtype=torch.uint8)
    while len(pool) < 512:
        some = torch.randint(0, 256, (8192, size), dtype=torch.uint8)
        if type_name == "MXFP4":  # of a whole byte of exponent nearly every value is out of proportion
            some[:, 0] = torch.randint(122, 130, (len(some),), dtype=torch.uint8)
        values = gguf_kernels.ggml_dequantize(some, type_name, len(some), elements, torch.float32)
        largest = values.abs().amax(1)
        good = torch.isfinite(values).all(1) & (largest < 64.0) & (largest > 2.0**-6)
        pool = torch.cat([pool, some[good]])
    pool = pool.to(device)
    count = math.prod(rows) * (cols // elements)
    picked = torch.randint(0, len(pool), (count,), device=device)
    return pool[picked].reshape(*rows, cols // elements * size)


def quantised(x: torch.Tensor) -> torch.Tensor:
    """X as the kernels see it, in float64: blocks of 32, d = max|x| / 127, q = x / d rounded half away from zero."""
    blocks = x.float().reshape(x.shape[0], -1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127.0
    quotient = (blocks / d).double()
    q = torch.where(d > 0, torch.trunc(quotient + torch.copysign(torch.full_like(quotient, 0.5), quotient)), 0.0)
    return (q * d.double()).reshape(x.shape)


def nmse(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).square().sum() / wanted.square().sum())


# --- timing -----------------------------------------------------------------------------------------------------------


def time_cpu(call: Callable[[int], object], copies: int, seconds: float) -> float:
    """Median microseconds of call(0), call(1), ... for about `seconds`."""
    call(0)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call(len(taken) % copies)
        taken.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(taken)


def time_gpu(call: Callable[[int], object], copies: int, replays: int) -> float:
    """Median microseconds of one call, over replays of a graph that runs call(0) to call(copies - 1)."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(min(copies, 3)):
            call(index)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(copies):
            call(index)
    for _ in range(3):
        graph.replay()

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    events = [(event(), event()) for _ in range(replays)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    taken = statistics.median(begin.elapsed_time(end) for begin, end in events) * 1e3 / copies
    graph.reset()
    return float(taken)


class Bench:
    """The products of one device and what they are compared with."""

    def __init__(
        self,
        device: torch.device,
        *,
        types: Sequence[str] = (),
        replays: int = 60,
        seconds: float = 0.3,
        baselines: bool = True,
    ) -> None:
        self.device = device
        self.replays = replays
        self.seconds = seconds
        self.baselines = baselines
        self.notes: list[str] = []
        self.reader = Reader(device)
        self.llama: Llama | None = None
        if baselines and device.type == "cuda":
            try:
                self.llama = Llama(device, types)
            except RuntimeError as err:
                self.notes.append(f"no llama.cpp baseline: {err}")
        self.cache = 0 if device.type == "cpu" else 4 * torch.cuda.get_device_properties(device).L2_cache_size

    def _time(self, call: Callable[[int], object], copies: int) -> float:
        if self.device.type == "cpu":
            return time_cpu(call, copies, self.seconds)
        return time_gpu(call, copies, self.replays)

    def _copies(self, weight: torch.Tensor) -> list[torch.Tensor]:
        """The weights, and as many others as fill four times the L2: the same bytes, elsewhere."""
        count = 1 if self.device.type == "cpu" else max(2, -(-self.cache // weight.numel()))
        return [weight, *(weight.clone() for _ in range(count - 1))]

    def plain(self, type_name: str, shape: Shape, vectors: Sequence[int]) -> Iterator[Record]:
        """Records of ggml_mul_mat_vec_a8, one for each number of vectors."""
        weights = self._copies(random_weights(type_name, self.device, shape.rows, shape.cols))
        copies = len(weights)
        size = weights[0].numel()
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        exact = gguf_kernels.ggml_dequantize(weights[0], type_name, shape.rows, shape.cols, torch.float32)
        read = self._time(lambda index: self.reader(weights[index]), copies)
        dense = None if self.device.type == "cpu" else exact.to(dtype)
        for count in vectors:
            xs = [torch.randn(count, shape.cols, device=self.device, dtype=dtype) for _ in range(copies)]

            def product(index: int, xs: list[torch.Tensor] = xs) -> torch.Tensor:
                return gguf_kernels.ggml_mul_mat_vec_a8(weights[index], xs[index], type_name, shape.rows)

            wanted = quantised(xs[0]) @ exact.double().T
            error = self._checked("ggml_mul_mat_vec_a8", type_name, product(0), wanted)
            baselines = {"read": read}
            us = self._time(product, copies)
            if self.baselines:

                def matmul(index: int, xs: list[torch.Tensor] = xs) -> torch.Tensor:
                    W = gguf_kernels.ggml_dequantize(weights[index], type_name, shape.rows, shape.cols, dtype)
                    return xs[index] @ W.T

                baselines["matmul"] = self._time(matmul, copies)
                if dense is not None:
                    # 3 to 16 times larger than the packed weights, so a few are more than the cache holds
                    denses = [dense, *(dense.clone() for _ in range(max(1, -(-self.cache // (2 * dense.numel())))))]

                    def already(
                        index: int, xs: list[torch.Tensor] = xs, denses: list[torch.Tensor] = denses
                    ) -> torch.Tensor:
                        return xs[index % len(xs)] @ denses[index].T

                    baselines["dense"] = self._time(already, len(denses))
                if self.llama is not None and self.llama.has(type_name) and count <= 8:
                    llama = self.llama
                    other = nmse(llama(type_name, weights[0], xs[0]), wanted)
                    if not other <= 1e-3:
                        self.notes.append(f"llama.cpp's {type_name} was left out: NMSE {other:.1e}")
                    else:

                        def other_way(index: int, xs: list[torch.Tensor] = xs, llama: Llama = llama) -> torch.Tensor:
                            return llama(type_name, weights[index], xs[index])

                        baselines["llama.cpp"] = self._time(other_way, copies)
            yield Record(
                op="ggml_mul_mat_vec_a8",
                type=type_name,
                shape=shape.name,
                vectors=count,
                us=us,
                bytes=size,
                nmse=error,
                baselines=baselines,
            )

    def routed(self, type_name: str, shape: Shape, tokens: Sequence[int]) -> Iterator[Record]:
        """Records of ggml_moe_a8_vec, one for each number of tokens. Bytes are those of the experts that are named."""
        weights = self._copies(random_weights(type_name, self.device, shape.experts, shape.rows, shape.cols))
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        for count in tokens:
            copies = len(weights) if self.device.type == "cpu" else max(len(weights), 8)
            scores = torch.rand(copies, count, shape.experts, device=self.device)
            ids = scores.topk(shape.top_k, dim=-1).indices
            xs = [torch.randn(count, shape.cols, device=self.device, dtype=dtype) for _ in range(copies)]

            def product(index: int, ids: torch.Tensor = ids, xs: list[torch.Tensor] = xs) -> torch.Tensor:
                x, weight = xs[index], weights[index % len(weights)]
                return gguf_kernels.ggml_moe_a8_vec(x, weight, ids[index], shape.top_k, type_name, shape.rows, len(x))

            used = [row.unique() for row in ids]
            seen = quantised(xs[0])[0]
            wanted = torch.stack([self._exact(weights[0][expert], type_name, shape) @ seen for expert in ids[0, 0]])
            error = self._checked("ggml_moe_a8_vec", type_name, product(0)[: shape.top_k], wanted)
            us = self._time(product, copies)
            packed = [weights[index % len(weights)][used[index]] for index in range(copies)]

            def reading(index: int, packed: list[torch.Tensor] = packed) -> None:
                self.reader(packed[index])

            read = self._time(reading, copies)
            yield Record(
                op="ggml_moe_a8_vec",
                type=type_name,
                shape=shape.name,
                vectors=count,
                us=us,
                bytes=sum(part.numel() for part in packed) // copies,
                nmse=error,
                baselines={"read": read},
            )

    def _exact(self, packed: torch.Tensor, type_name: str, shape: Shape) -> torch.Tensor:
        return gguf_kernels.ggml_dequantize(packed, type_name, shape.rows, shape.cols, torch.float32).double()

    def _checked(self, op: str, type_name: str, found: torch.Tensor, wanted: torch.Tensor) -> float:
        error = nmse(found, wanted)
        if not error <= NMSE:
            raise SystemExit(f"bench: {op} of {type_name} is wrong: NMSE {error:.1e}, at most {NMSE:.0e} is wanted")
        return error


# --- output -----------------------------------------------------------------------------------------------------------


def render(records: Sequence[Record]) -> str:
    """A table: microseconds, GB/s, the share of a pure read, and how many times as long each baseline takes."""
    others = [name for name in ("llama.cpp", "matmul", "dense") if any(name in each.baselines for each in records)]
    head = ["op", "type", "shape", "n", "us", "GB/s", "of read", *(f"x {name}" for name in others)]
    rows = [head]
    for each in records:
        share = each.read_share
        times = [f"{each.baselines[name] / each.us:.2f}" if name in each.baselines else "-" for name in others]
        rows.append(
            [
                each.op.removeprefix("ggml_"),
                each.type,
                each.shape,
                str(each.vectors),
                f"{each.us:.1f}",
                f"{each.gigabytes_a_second:.3g}",
                "-" if share is None else f"{share:.0%}",
                *times,
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw a report: for each format how much of a pure read's speed the product reaches, beside llama.cpp's."""
    try:
        import matplotlib  # late: only the plot wants it
    except ModuleNotFoundError:
        raise SystemExit("bench: --plot needs matplotlib; install it (`pip install matplotlib`)") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = [each for each in report["records"] if each["op"] == "ggml_mul_mat_vec_a8"]
    shapes = list(dict.fromkeys(each["shape"] for each in records))
    counts = sorted({each["vectors"] for each in records})[:1]
    figure, axes = pyplot.subplots(1, len(shapes), figsize=(4.2 * len(shapes), 5), sharey=True, squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        here = [each for each in records if each["shape"] == shape and each["vectors"] in counts]
        names = [each["type"] for each in here]
        places = range(len(here))
        read = [each["baselines"]["read"] for each in here]
        axis.barh(
            [place - 0.2 for place in places],
            [100 * one / each["us"] for one, each in zip(read, here, strict=True)],
            0.4,
            label="gguf_kernels",
        )
        axis.barh(
            [place + 0.2 for place in places],
            [
                100 * one / each["baselines"]["llama.cpp"] if "llama.cpp" in each["baselines"] else 0
                for one, each in zip(read, here, strict=True)
            ],
            0.4,
            label="llama.cpp",
        )
        axis.set_yticks(list(places), names)
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_xlabel("% of a pure read")
        axis.set_title(shape)
    axes[0][0].legend(loc="lower right")
    figure.suptitle(f"{report['device']}, {', '.join(map(str, counts))} vector, {report['date']}")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gguf_kernels.bench", description="Times the products of gguf_kernels, with baselines."
    )
    gpu = torch.cuda.is_available() and gguf_kernels.device_fault("cuda") is None
    parser.add_argument("--device", default="cuda" if gpu else "cpu", help="cpu or a GPU (default: %(default)s)")
    parser.add_argument("--types", nargs="*", default=[], metavar="TYPE", help="formats (default: all that are there)")
    parser.add_argument(
        "--shapes", nargs="*", metavar="SET", help=f"of {', '.join(SHAPES)} (default: the first two; on the CPU small)"
    )
    parser.add_argument("--vectors", nargs="*", type=int, default=[1, 2, 4, 8], metavar="N", help="vectors or tokens")
    parser.add_argument("--replays", type=int, default=60, help="of each graph, of which the median counts")
    parser.add_argument("--no-baselines", action="store_true", help="only the products and the pure read")
    parser.add_argument("--json", metavar="FILE", help="write the records to a file, or `-` to print them")
    parser.add_argument("--plot", metavar="FILE", help="draw them (needs matplotlib)")
    parser.add_argument("--from", dest="source", metavar="FILE", help="do not measure: take the records of this file")
    given = parser.parse_args(arguments)
    if given.source:
        report = json.loads(Path(given.source).read_text(encoding="utf-8"))
        records = [Record(**each) for each in report["records"]]
    else:
        report, records = measure(given)
    if given.json == "-":
        print(json.dumps(report, indent=1))
    else:
        print(f"{report['device']}, torch {report['torch']}, read by {report['read_by']}, {report['date']}")
        print("\n".join([*report["notes"], render(records)]))
        if given.json:
            Path(given.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if given.plot:
        plot(report, Path(given.plot))
    return 0


def measure(given: argparse.Namespace) -> tuple[dict[str, Any], list[Record]]:
    """Run what the arguments ask for; a line to stderr for each record."""
    device = torch.device(given.device)
    fault = gguf_kernels.device_fault(device)
    if fault is not None:
        raise SystemExit(f"bench: --device {given.device}: {fault}")
    table = gguf_kernels.capabilities()["cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"]
    types = _chosen([name.upper() for name in given.types], table["ggml_mul_mat_vec_a8"], "--types")
    sets = _chosen(given.shapes or (["small"] if device.type == "cpu" else ["8B", "30B-A3B"]), list(SHAPES), "--shapes")
    bench = Bench(device, types=types, replays=given.replays, baselines=not given.no_baselines)
    records: list[Record] = []
    torch.manual_seed(7)
    with torch.inference_mode():
        for shape in (shape for name in sets for shape in SHAPES[name]):
            for type_name in types:
                if shape.cols % block_shape(type_name)[0]:
                    continue
                for record in (bench.routed if shape.experts else bench.plain)(type_name, shape, given.vectors):
                    records.append(record)
                    print(f"bench: {record.op} {record.type} {record.shape} n={record.vectors}", file=sys.stderr)
    report = {
        "device": "the CPU" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "read_by": bench.reader.by,
        "rotated_bytes": bench.cache,
        "notes": bench.notes,
        "records": [asdict(record) for record in records],
    }
    return report, records


if __name__ == "__main__":
    raise SystemExit(main())
