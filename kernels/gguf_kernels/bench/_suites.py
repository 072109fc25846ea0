"""The products of one device, checked, timed, and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

import gguf_kernels
from gguf_kernels.bench._baselines import Llama, Mma, Reader, torch_routed, torch_swiglu
from gguf_kernels.bench._inputs import copied, nmse, quantised, quantised_q8_k, random_weights, routing
from gguf_kernels.bench._records import Record, Shape
from gguf_kernels.bench._timing import time_cpu, time_gpu

__all__ = ["Bench", "WrongResult", "said"]

NMSE = 1e-4
"""Of a checked result in bfloat16, whose own rounding is about 3e-6; a wrong kernel is far above."""

LOOSE = 1e-3
"""Between results with activations that were quantised otherwise, or not at all, which moves them by some 1e-5."""

SAMPLE = 24
"""Slots that are checked one by one."""

FEW = 8
"""The most tokens for which the operators that take each slot by itself are measured."""


class WrongResult(RuntimeError):
    pass


def said(err: Exception) -> str:
    """One line of what went wrong."""
    return next(iter(str(err).strip().splitlines()), type(err).__name__)


class Bench:
    """The products of one device and what they are compared with.

    types: those that llama.cpp's kernels are built for. few, many: whether products with up to 8 vectors, and with
    more, will be measured. replays, seconds: at most so many and so long for a figure. deadline: of time.monotonic();
    what would begin later is left out.

    A row that fails is left out and named in `failures`; a baseline that fails, in `notes`.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        types: Sequence[str] = (),
        few: bool = True,
        many: bool = False,
        replays: int = 60,
        seconds: float = 0.3,
        baselines: bool = True,
        deadline: float = float("inf"),
    ) -> None:
        self.device = device
        self.replays = replays
        self.seconds = seconds
        self.baselines = baselines
        self.deadline = deadline
        self.notes: list[str] = []
        self.failures: list[str] = []
        self.ceilings: dict[str, float] = {}
        self.dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self.cache = 0 if device.type == "cpu" else 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self.llama: Llama | None = None
        if baselines and device.type == "cuda":
            try:
                self.llama = Llama(device, types if few else (), types if many else ())
                self.notes += [f"no llama.cpp baseline: {fault}" for fault in self.llama.faults]
            except RuntimeError as err:
                self.notes.append(f"no llama.cpp baseline: {err}")
        self.reader = Reader(device)
        if baselines and many and device.type == "cuda":
            try:
                self._measure_ceilings(Mma(device))
            except (RuntimeError, OSError) as err:
                self.notes.append(f"no mma.sync baseline: {err}")

    def _measure_ceilings(self, mma: Mma) -> None:
        for name, scaled in {"mma": False, "mma with scales": True}.items():

            def loop(_: int, scaled: bool = scaled) -> None:
                mma(scaled=scaled)

            self.ceilings[name] = mma.operations / self._time(loop, 1) / 1e6

    # --- of every suite ---

    def _time(self, call: Callable[[int], object], copies: int) -> float:
        if self.device.type == "cpu":
            return time_cpu(call, copies, self.seconds)
        return time_gpu(call, copies, self.replays, self.seconds)

    def _copies(self, weight: Tensor) -> list[Tensor]:
        """The weights, and as many others as fill four times the L2: the same bytes, elsewhere."""
        return [weight, *(copied(weight) for _ in range(-(-self.cache // weight.numel()) - 1))]

    def _record(self, label: str, measure: Callable[[], Record]) -> Iterator[Record]:
        """What `measure` gives, or nothing where it fails or where it is too late."""
        if time.monotonic() > self.deadline:
            return
        try:
            record = measure()
        except Exception as err:  # a row must not end the run
            self.failures.append(f"{label}: {said(err)}")
            return
        yield record

    def _compare(
        self,
        into: dict[str, float],
        name: str,
        call: Callable[[int], Tensor],
        *,
        label: str,
        copies: int,
        check: Callable[[Tensor], float],
    ) -> None:
        """The time of a baseline; none, and a note, where it fails or is wrong."""
        try:
            error = check(call(0))
            if not error <= LOOSE:
                raise WrongResult(f"NMSE {error:.1e}")
            into[name] = self._time(call, copies)
        except Exception as err:  # nor a baseline the row
            self.notes.append(f"{name} left out of {label}: {said(err)}")

    def _checked(self, op: str, type_name: str, error: float, most: float = NMSE) -> float:
        if not error <= most:
            raise WrongResult(f"{op} of {type_name} is wrong: NMSE {error:.1e}, at most {most:.0e} is wanted")
        return error

    def _exact(self, packed: Tensor, type_name: str, shape: Shape) -> Tensor:
        return gguf_kernels.ggml_dequantize(packed, type_name, shape.rows, shape.cols, torch.float32).double()

    def _mma(self, operations: int) -> dict[str, float]:
        speed = self.ceilings.get("mma with scales")
        return {} if speed is None else {"mma": operations / speed / 1e6}

    # --- suites ---

    def decode(self, type_name: str, shape: Shape, vectors: Sequence[int]) -> Iterator[Record]:
        """Records of ggml_mul_mat_vec_a8, one for each number of vectors."""
        return self._plain("ggml_mul_mat_vec_a8", type_name, shape, vectors)

    def prefill(self, type_name: str, shape: Shape, vectors: Sequence[int]) -> Iterator[Record]:
        """Records of ggml_mul_mat_a8, one for each number of vectors."""
        return self._plain("ggml_mul_mat_a8", type_name, shape, vectors)

    def _plain(self, op: str, type_name: str, shape: Shape, vectors: Sequence[int]) -> Iterator[Record]:
        product = _Plain(self, op, type_name, shape)
        for count in vectors:
            yield from self._record(f"{op} {type_name} {shape.name} n={count}", partial(product.record, count))

    def routed(self, type_name: str, shape: Shape, tokens: Sequence[int]) -> Iterator[Record]:
        """Records for each number of tokens: of ggml_moe_a8_vec to 8 tokens, of ggml_moe_a8 with moe_align_block_size
        from there on, and of gate and up with SwiGLU: of ggml_moe_gate_up_a8 to 8 tokens. For MXFP4 of
        mxfp4_moe_gate_up and mxfp4_moe_down too. Bytes are those of the experts that are named.
        """
        weights = self._copies(random_weights(type_name, self.device, shape.experts, shape.rows, shape.cols))
        for count in tokens:
            if time.monotonic() > self.deadline:
                continue
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # of the graphs before: gigabytes of dequantised experts
            try:
                case = _Routed(self, type_name, shape, count, weights)
            except RuntimeError as err:
                self.failures.append(f"{type_name} {shape.name} n={count}: {said(err)}")
                continue
            for op in case.operators:
                yield from self._record(f"{op} {case.label}", partial(case.record, op))


class _Plain:
    """Plain products with one set of weights."""

    def __init__(self, bench: Bench, op: str, type_name: str, shape: Shape) -> None:
        self.bench = bench
        self.op = op
        self.type_name = type_name
        self.shape = shape
        self.weights = bench._copies(random_weights(type_name, bench.device, shape.rows, shape.cols))
        self.exact = bench._exact(self.weights[0], type_name, shape)
        self.reads: dict[str, float] = {}
        if op == "ggml_mul_mat_vec_a8":
            self.reads["read"] = bench._time(lambda index: bench.reader(self.weights[index]), len(self.weights))

    def record(self, count: int) -> Record:
        bench, shape, type_name, weights = self.bench, self.shape, self.type_name, self.weights
        copies = len(weights)
        xs = [torch.randn(count, shape.cols, device=bench.device, dtype=bench.dtype) for _ in range(copies)]
        operator = getattr(gguf_kernels, self.op)
        wanted = quantised(xs[0]) @ self.exact.T
        operations = 2 * shape.rows * shape.cols * count
        baselines = dict(self.reads) or bench._mma(operations)

        def product(index: int) -> Tensor:
            result: Tensor = operator(weights[index], xs[index], type_name, shape.rows)
            return result

        def error(found: Tensor) -> float:
            return nmse(found, wanted)

        def matmul(index: int) -> Tensor:
            values = gguf_kernels.ggml_dequantize(weights[index], type_name, shape.rows, shape.cols, bench.dtype)
            return xs[index] @ values.T

        worst = bench._checked(self.op, type_name, error(product(0)))
        us = bench._time(product, copies)
        compare = partial(bench._compare, baselines, label=f"{self.op} {type_name} {shape.name} n={count}")
        if bench.baselines:
            compare("matmul", matmul, copies=copies, check=error)
            if bench.device.type == "cuda":
                self._unpacked(compare, xs, error)
            llama = bench.llama
            if llama is not None and llama.has(type_name, count):
                compare(
                    "llama.cpp",
                    lambda index: llama.plain(type_name, weights[index], xs[index]),
                    copies=copies,
                    check=error,
                )
        return Record(
            op=self.op,
            type=type_name,
            shape=shape.name,
            vectors=count,
            us=us,
            bytes=weights[0].numel(),
            nmse=worst,
            operations=operations,
            baselines=baselines,
        )

    def _unpacked(self, compare: Callable[..., None], xs: list[Tensor], error: Callable[[Tensor], float]) -> None:
        """The products with weights that are bfloat16, or int8, already."""
        bench = self.bench
        dense = self.exact.to(bench.dtype)
        # 3 to 16 times larger than the packed weights, so a few are more than the cache holds
        denses = [dense, *(dense.clone() for _ in range(max(1, -(-bench.cache // (2 * dense.numel())))))]
        compare("dense", lambda index: xs[index % len(xs)] @ denses[index].T, copies=len(denses), check=error)
        if len(xs[0]) > 16:  # what cuBLAS takes
            bytes_of = [torch.randint(-127, 128, each.shape, dtype=torch.int8, device=bench.device) for each in denses]
            whole = [(each * 30).clamp(-127, 127).to(torch.int8) for each in xs]
            wanted = whole[0].double() @ bytes_of[0].double().T
            compare(
                "int8",
                lambda index: torch._int_mm(whole[index % len(whole)], bytes_of[index].T),
                copies=len(bytes_of),
                check=lambda found: nmse(found, wanted),
            )


class _Routed:
    """Products by expert of a number of tokens, with the inputs that all contenders share."""

    def __init__(self, bench: Bench, type_name: str, shape: Shape, tokens: int, weights: list[Tensor]) -> None:
        self.bench = bench
        self.type_name = type_name
        self.shape = shape
        self.tokens = tokens
        self.weights = weights
        self.label = f"{type_name} {shape.name} n={tokens}"
        self.slots = tokens * shape.top_k
        of_expert = weights[0][0].numel()
        named = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** tokens)
        self.calls = min(64, max(3, -(-bench.cache // int(named * of_expert))))
        self.ids, self.factors = routing(self.calls, tokens, shape.experts, shape.top_k, bench.device)
        self.used: list[Tensor] = [torch.unique(each) for each in self.ids]
        self.bytes = sum(len(each) for each in self.used) * of_expert // self.calls
        inputs = self.slots if shape.down else tokens
        self.xs = [torch.randn(inputs, shape.cols, device=bench.device, dtype=bench.dtype) for _ in range(self.calls)]
        self._shared: dict[bool, dict[str, float]] = {}
        self._whole: dict[bool, Tensor] = {}
        mine = "ggml_moe_a8_vec" if tokens <= FEW else "ggml_moe_a8"
        operators = [mine] if shape.down or tokens > FEW else [mine, "ggml_moe_gate_up_a8"]
        if type_name == "MXFP4":
            operators.append("mxfp4_moe_down" if shape.down else "mxfp4_moe_gate_up")
        device = bench.device
        self.operators = [op for op in operators if gguf_kernels.supports(op, type_name, device)]

    def weight(self, index: int) -> Tensor:
        return self.weights[index % len(self.weights)]

    def call(self, op: str, index: int) -> Tensor:
        x, weight, ids, shape = self.xs[index], self.weight(index), self.ids[index], self.shape
        tokens, top_k = (self.slots, 1) if shape.down else (self.tokens, shape.top_k)
        half = shape.rows // 2
        if op == "ggml_moe_a8_vec":
            return gguf_kernels.ggml_moe_a8_vec(x, weight, ids, top_k, self.type_name, shape.rows, tokens)
        if op == "ggml_moe_a8":
            size = gguf_kernels.ggml_moe_get_block_size(self.type_name)
            aligned = gguf_kernels.moe_align_block_size(ids, size, shape.experts)
            return gguf_kernels.ggml_moe_a8(x, weight, *aligned, self.type_name, shape.rows, top_k, tokens)
        if op == "ggml_moe_gate_up_a8":
            gate, up = weight[:, :half], weight[:, half:]
            return gguf_kernels.ggml_moe_gate_up_a8(x, gate, up, ids, top_k, self.type_name, half, tokens)
        if op == "mxfp4_moe_gate_up":
            return gguf_kernels.mxfp4_moe_gate_up(x, weight[:, :half], weight[:, half:], ids)
        return gguf_kernels.mxfp4_moe_down(x, weight, ids, self.factors[index])

    def record(self, op: str) -> Record:
        """SwiGLU or not, the baselines of a number of tokens are measured once."""
        bench, shape = self.bench, self.shape
        swiglu = op in ("ggml_moe_gate_up_a8", "mxfp4_moe_gate_up")
        found = self.call(op, 0)
        error = bench._checked(op, self.type_name, self._error(op, found))
        us = bench._time(lambda index: self.call(op, index), self.calls)
        if swiglu not in self._shared:
            self._shared[swiglu] = self._baselines(swiglu)
        whole = self._whole.get(swiglu)
        if whole is not None:
            if op == "mxfp4_moe_down":
                factors = self.factors[0].reshape(-1, 1)
                whole = (whole.float() * factors).view(self.tokens, shape.top_k, -1).sum(1)
            bench._checked(op, self.type_name, nmse(found, whole.double()), LOOSE)
        return Record(
            op=op,
            type=self.type_name,
            shape=shape.name,
            vectors=self.tokens,
            us=us,
            bytes=self.bytes,
            nmse=error,
            operations=2 * self.slots * shape.rows * shape.cols,
            baselines=dict(self._shared[swiglu]),
        )

    def _wanted(self, slots: Tensor, seen: Callable[[Tensor], Tensor]) -> Tensor:
        """float64 products of some slots of the first call; seen: how activations are quantised."""
        x = self.xs[0] if self.shape.down else self.xs[0].repeat_interleave(self.shape.top_k, 0)
        values = seen(x[slots])
        experts = self.ids[0].reshape(-1)[slots].tolist()
        return torch.stack(
            [
                self.bench._exact(self.weights[0][expert], self.type_name, self.shape) @ value
                for expert, value in zip(experts, values, strict=True)
            ]
        )

    def _sample(self, count: int) -> Tensor:
        """Some of so many, the first and the last among them."""
        places = torch.linspace(0, count - 1, min(count, SAMPLE), device=self.bench.device).round().long()
        found: Tensor = torch.unique_consecutive(places)
        return found

    def _error(self, op: str, found: Tensor) -> float:
        """NMSE of a sample of an operator's result."""
        seen = quantised_q8_k if op.startswith("mxfp4_") else quantised
        if op == "mxfp4_moe_down":
            top_k = self.shape.top_k
            some = self._sample(self.tokens)[:: top_k // 2 or 1]
            slots = (some[:, None] * top_k + torch.arange(top_k, device=some.device)).reshape(-1)
            products = self._wanted(slots, seen).view(len(some), top_k, -1)
            return nmse(found[some], (products * self.factors[0][some].double()[:, :, None]).sum(1))
        slots = self._sample(self.slots)
        wanted = self._wanted(slots, seen)
        if op in ("ggml_moe_gate_up_a8", "mxfp4_moe_gate_up"):
            wanted = torch_swiglu(wanted)
        return nmse(found[slots], wanted)

    def _baselines(self, swiglu: bool) -> dict[str, float]:
        bench, type_name = self.bench, self.type_name
        times: dict[str, float] = {}
        if self.tokens <= FEW:
            packed = [self.weight(index)[used] for index, used in enumerate(self.used)]
            times["read"] = bench._time(lambda index: bench.reader(packed[index]), self.calls)
            del packed
        else:
            times.update(bench._mma(2 * self.slots * self.shape.rows * self.shape.cols))
        if not bench.baselines:
            return times
        slots = self._sample(self.slots)
        wanted = self._wanted(slots, quantised)
        if swiglu:
            wanted = torch_swiglu(wanted)

        def error(found: Tensor) -> float:
            result = nmse(found[slots], wanted)
            if result <= LOOSE:
                self._whole.setdefault(swiglu, found)
            return result

        def matmul(index: int) -> Tensor:
            product = torch_routed(type_name, self.weight(index), self.xs[index], self.ids[index])
            return torch_swiglu(product) if swiglu else product

        bench._compare(times, "matmul", matmul, label=self.label, copies=self.calls, check=error)
        llama = bench.llama
        if llama is not None and llama.has(type_name, self.tokens):

            def other(index: int) -> Tensor:
                call = llama.gate_up if swiglu else llama.routed
                return call(type_name, self.weight(index), self.xs[index], self.ids[index])

            bench._compare(times, "llama.cpp", other, label=self.label, copies=self.calls, check=error)
        return times
