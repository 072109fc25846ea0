"""The other ways: libraries built on demand by nvcc, and torch."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import gguf_kernels
from gguf_kernels.bench._inputs import block_shape, columns

__all__ = ["Llama", "Mma", "Reader", "llama_command", "llama_folder", "torch_routed", "torch_swiglu"]

BASELINES = Path(__file__).resolve().parent.parent / "baselines"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-kernels"


def _text(source: str) -> bytes:
    """Of a source with every header."""
    files = [path for path in sorted(BASELINES.iterdir()) if path.suffix in (".h", ".cuh") or path.name == source]
    return b"".join(path.read_bytes() for path in files)


def nvcc_command(nvcc: str, arch: str, source: str, flags: Sequence[str], output: Path) -> list[str]:
    fixed = ["-std=c++17", "-O3", f"-arch={arch}", "-Xcompiler", "-fPIC", "-shared", "-split-compile", "0"]
    return [nvcc, *fixed, *flags, str(BASELINES / source), "-o", str(output)]


def _architecture(device: torch.device) -> str:
    if torch.version.cuda is None:
        raise RuntimeError("needs a CUDA build of torch")
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def built(source: str, flags: Sequence[str], arch: str, *, of: str = "") -> Path:
    """A library from baselines/, compiled once and kept in the user's cache. RuntimeError when it cannot be.

    of: what else it is made of, so that folders in flags (which are no part of its key) may be anywhere.
    """
    own = [flag for flag in flags if not flag.startswith("-I")]
    key = hashlib.sha256(repr((own, arch, of, _text(source))).encode()).hexdigest()[:16]
    library = _cache() / f"{Path(source).stem}-{key}.so"
    if not library.exists():
        nvcc = shutil.which("nvcc")
        if nvcc is None:
            raise RuntimeError("needs nvcc on PATH")
        library.parent.mkdir(parents=True, exist_ok=True)
        work = library.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            nvcc_command(nvcc, arch, source, flags, work), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"nvcc: {(done.stderr.strip() or done.stdout.strip())[-400:]}")
        work.replace(library)
    return library


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _launched(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what}: CUDA error {status}")


def _at(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]


def _sizes(*numbers: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(number) for number in numbers]


class Reader:
    """Reads memory once."""

    def __init__(self, device: torch.device) -> None:
        self.by = "torch.sum of int64"
        self._library: ctypes.CDLL | None = None
        if device.type == "cuda":
            try:
                self._library = ctypes.CDLL(str(built("read.cu", (), _architecture(device))))
                self.by = "baselines/read.cu"
            except (RuntimeError, OSError) as err:
                self.by += f" (its own kernel: {err})"
        self._sink = torch.zeros(1, dtype=torch.int32, device=device)

    def __call__(self, data: Tensor) -> None:
        if self._library is None:
            flat = data.reshape(-1)
            flat[: flat.numel() // 8 * 8].view(torch.int64).sum()
            return
        (at, sink), (size,) = _at(data, self._sink), _sizes(data.numel())
        _launched(self._library.bench_read(at, size, sink, _stream()), "read")


class Mma:
    """The loop of matrix instructions, bare or with scales."""

    COUNT = 2048

    def __init__(self, device: torch.device) -> None:
        self._library = ctypes.CDLL(str(built("mma.cu", (), _architecture(device))))
        self._library.bench_mma_operations.restype = ctypes.c_int64
        self._sink = torch.zeros(1, device=device)
        self.operations = int(self._library.bench_mma_operations(self.COUNT))

    def __call__(self, *, scaled: bool) -> None:
        _launched(self._library.bench_mma(int(scaled), self.COUNT, *_at(self._sink), _stream()), "mma")


# --- llama.cpp --------------------------------------------------------------------------------------------------------


def llama_folder(root: Path, cache: Path) -> Path:
    """A folder with what of llama.cpp's files is wanted without the rest of them. root: of ggml in freetoken."""
    kernels, entry, _ = (
        (root / "ggml-cuda" / "mmvq.cu").read_text(encoding="utf-8").partition("\nvoid ggml_cuda_mul_mat_vec_q(\n")
    )
    _, switch, products = (
        (root / "ggml-cuda" / "mmq.cu").read_text(encoding="utf-8").partition("\n// overrides the src1 precision")
    )
    if not entry or not switch:
        raise RuntimeError(f"{root / 'ggml-cuda'} is not as in freetoken 0.2.1")
    folder = cache / f"llama-{hashlib.sha256((kernels + products).encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mmvq_kernels.cuh").write_text(kernels, encoding="utf-8")
    (folder / "mmq_entry.cuh").write_text(f"//{products}", encoding="utf-8")
    return folder


def llama_command(root: Path, folder: Path, type_name: str) -> list[str]:
    """nvcc's flags for a type."""
    folders = [folder, BASELINES, root / "include", root / "src", root / "ggml-cuda"]
    elements, size = block_shape(type_name)
    own = [f"-DBENCH_TYPE=GGML_TYPE_{type_name}", f"-DBENCH_BLOCK={elements}", f"-DBENCH_BYTES={size}"]
    return ["-use_fast_math", "--extended-lambda", *(f"-I{folder}" for folder in folders), *own]


def llama_root() -> Path:
    spec = importlib.util.find_spec("freetoken")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package freetoken, whose sources these are, is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "kernel" / "csrc" / "ggml"


class Llama:
    """llama.cpp's products in bfloat16: two libraries a type, all compiled at once."""

    LACKS = frozenset({"TQ1_0", "TQ2_0"})
    LACKS_MANY = LACKS | {"IQ1_M"}

    def __init__(self, device: torch.device, few: Sequence[str], many: Sequence[str]) -> None:
        """few, many: the types whose products with up to 8 vectors, and with more, are wanted."""
        root = llama_root()
        folder = llama_folder(root, _cache())
        arch = _architecture(device)

        def build(job: tuple[str, str]) -> ctypes.CDLL | RuntimeError | OSError:
            source, type_name = job
            try:
                path = built(source, llama_command(root, folder, type_name), arch, of=folder.name)
                return ctypes.CDLL(str(path))
            except (RuntimeError, OSError) as err:
                return err

        jobs = [("llama_mmq.cu", name) for name in many if name not in self.LACKS_MANY]
        jobs += [("llama.cu", name) for name in few if name not in self.LACKS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made = dict(zip(jobs, pool.map(build, jobs), strict=True))
        self.faults = [f"{source} of {name}: {it}" for (source, name), it in made.items() if isinstance(it, Exception)]
        libraries = {job: it for job, it in made.items() if isinstance(it, ctypes.CDLL)}
        for library in libraries.values():
            library.bench_llama_error.restype = ctypes.c_char_p
        self._few = {name: it for (source, name), it in libraries.items() if source == "llama.cu"}
        self._many = {name: it for (source, name), it in libraries.items() if source == "llama_mmq.cu"}
        for library in self._few.values():
            library.bench_llama_scratch.restype = ctypes.c_int64
        for library in self._many.values():
            library.bench_llama_mmq_scratch.restype = ctypes.c_int64

    def _done(self, library: ctypes.CDLL, status: int) -> None:
        if status == -1:
            raise RuntimeError(f"llama.cpp: {library.bench_llama_error().decode()}")
        _launched(status, "llama.cpp")

    def has(self, type_name: str, vectors: int) -> bool:
        return type_name in (self._few if vectors <= 8 else self._many)

    def plain(self, type_name: str, weight: Tensor, x: Tensor) -> Tensor:
        """X times the transpose of W, as ggml_mul_mat_a8."""
        vectors, cols = x.shape
        rows = weight.shape[0]
        out = torch.empty(vectors, rows, dtype=torch.bfloat16, device=x.device)
        if vectors <= 8:
            few = self._few[type_name]
            scratch = self._scratch(few.bench_llama_scratch(*_sizes(vectors, cols)), x)
            sizes = _sizes(vectors, rows, cols)
            self._done(few, few.bench_llama(*_at(weight, x, out, scratch), *sizes, _stream()))
        else:
            many = self._many[type_name]
            scratch = self._scratch(many.bench_llama_mmq_scratch(*_sizes(vectors, rows, cols, 0)), x)
            sizes = _sizes(scratch.numel(), vectors, rows, cols)
            self._done(many, many.bench_llama_mmq(*_at(weight, x, out, scratch), *sizes, _stream()))
        return out

    def routed(self, type_name: str, weight: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        """A row a slot: as ggml_moe_a8. x: a row a token, or a row a slot. ids: int32 [tokens, top_k]."""
        if self._takes_few(type_name, len(ids)):
            return self._routed_few(type_name, weight, None, x, ids)
        many = self._many[type_name]
        tokens, top_k = ids.shape
        experts, rows, _ = weight.shape
        cols, size = columns(type_name, weight)
        out = torch.empty(tokens * top_k, rows, dtype=torch.bfloat16, device=x.device)
        scratch = self._scratch(many.bench_llama_mmq_scratch(*_sizes(tokens * top_k, rows, cols, experts)), x)
        sizes = _sizes(scratch.numel(), tokens, top_k, len(x) // tokens, experts, weight.stride(0) // size, rows, cols)
        self._done(many, many.bench_llama_mmq_id(*_at(weight, x, ids, out, scratch), *sizes, _stream()))
        return out

    def gate_up(self, type_name: str, weight: Tensor, x: Tensor, ids: Tensor) -> Tensor:
        """SiLU of the gate times up, for experts that hold the rows of gate, then those of up."""
        rows = weight.shape[1] // 2
        if self._takes_few(type_name, len(ids)):
            return self._routed_few(type_name, weight[:, rows:], weight[:, :rows], x, ids)
        both = self.routed(type_name, weight, x, ids)
        out = torch.empty(len(both), rows, dtype=torch.bfloat16, device=x.device)
        many = self._many[type_name]
        self._done(many, many.bench_llama_swiglu(*_at(both, out), *_sizes(len(both), rows), _stream()))
        return out

    def _takes_few(self, type_name: str, tokens: int) -> bool:
        few = self._few.get(type_name)
        return few is not None and tokens <= few.bench_llama_most_tokens()

    def _routed_few(self, type_name: str, weight: Tensor, gate: Tensor | None, x: Tensor, ids: Tensor) -> Tensor:
        few = self._few[type_name]
        tokens, top_k = ids.shape
        experts, rows, _ = weight.shape
        cols, size = columns(type_name, weight)
        out = torch.empty(tokens * top_k, rows, dtype=torch.bfloat16, device=x.device)
        scratch = self._scratch(few.bench_llama_scratch(*_sizes(len(x), cols)), x)
        sizes = _sizes(tokens, top_k, len(x) // tokens, experts, weight.stride(0) // size, rows, cols)
        self._done(few, few.bench_llama_id(*_at(weight, gate, x, ids, out, scratch), *sizes, _stream()))
        return out

    def _scratch(self, size: int, x: Tensor) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=x.device)


# --- torch ------------------------------------------------------------------------------------------------------------


def torch_routed(type_name: str, weight: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """As ggml_moe_a8, with dequantised weights in the dtype of X. Nothing is read on the host."""
    experts, rows, _ = weight.shape
    cols, _ = columns(type_name, weight)
    slots = ids.numel()
    flat = ids.reshape(-1)
    each = slots // len(x)  # slots that share a row of X
    if slots <= experts:
        packed = weight.index_select(0, flat)
        values = gguf_kernels.ggml_dequantize(packed, type_name, slots * rows, cols, x.dtype).view(slots, rows, cols)
        own = x.unsqueeze(1).expand(-1, each, -1).reshape(slots, cols)
        return torch.bmm(values, own.unsqueeze(2)).squeeze(2)
    values = gguf_kernels.ggml_dequantize(weight, type_name, experts * rows, cols, x.dtype).view(experts, rows, cols)
    by_expert, order = flat.sort(stable=True)
    ends = torch.searchsorted(by_expert, torch.arange(experts, dtype=torch.int32, device=x.device), right=True)
    own = x.index_select(0, order.div(each, rounding_mode="floor"))
    out = functional.grouped_mm(own, values.transpose(1, 2), offs=ends.int())
    return torch.empty_like(out).index_copy_(0, order, out)


def torch_swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up
