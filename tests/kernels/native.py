"""The C interface of the launch layer (kernels/csrc/api.h) through ctypes, and memory with guard pages."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np

__all__ = ["DTYPES", "TYPES", "NativeError", "NativeLibrary", "Place", "guarded", "read"]

TYPES = {name: int(number) for name, number in gguf.GGMLQuantizationType.__members__.items()}
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
I32, I64, PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p

Place = Callable[[np.ndarray], int]
"""Puts a copy of an array somewhere and returns its address."""


def read(address: int, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """A copy of what lies at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape).copy()


class _Error(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char * 512),)


class DequantizeParams(ctypes.Structure):
    _fields_ = (
        ("weight", PTR),
        ("out", PTR),
        ("block_begin", I64),
        ("block_end", I64),
        ("type", I32),
        ("out_dtype", I32),
        ("stream", PTR),
    )


class MulMatVecParams(ctypes.Structure):
    _fields_ = (
        ("weight", PTR),
        ("x", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("vectors", I64),
        ("rows", I64),
        ("cols", I64),
        ("type", I32),
        ("dtype", I32),
        ("stream", PTR),
    )


class MoeVecParams(ctypes.Structure):
    _fields_ = (
        ("weight", PTR),
        ("x", PTR),
        ("ids", PTR),
        ("out", PTR),
        ("scratch", PTR),
        ("scratch_bytes", I64),
        ("x_stride", I64),
        ("experts", I64),
        ("tokens", I64),
        ("top_k", I64),
        ("rows", I64),
        ("cols", I64),
        ("ids_bits", I32),
        ("type", I32),
        ("dtype", I32),
        ("stream", PTR),
    )


class NativeError(RuntimeError):
    """A launch function's code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class NativeLibrary:
    """The launch functions of one built library."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path))
        self._dll.gguf_activation_bytes.restype = I64
        self._dll.gguf_activation_bytes.argtypes = (I64, I64)

    def place(self, array: np.ndarray, *, result: bool = False) -> int:
        """The address at which the next call finds an array, or leaves its result."""
        return int(array.ctypes.data)

    def call(self, name: str, params: ctypes.Structure) -> None:
        """Run a launch function; NativeError for every code but 0."""
        error = _Error()
        code = getattr(self._dll, name)(ctypes.byref(params), ctypes.byref(error))
        if code != 0:
            raise NativeError(code, error.text.decode())

    def size(self, name: str, params: ctypes.Structure) -> int:
        """What a function that takes nothing but parameters says, in bytes."""
        function = getattr(self._dll, name)
        function.restype = I64
        return int(function(ctypes.byref(params)))

    def activation_bytes(self, vectors: int, cols: int) -> int:
        return int(self._dll.gguf_activation_bytes(vectors, cols))


@contextmanager
def guarded(*arrays: np.ndarray) -> Iterator[list[int]]:
    """Addresses of copies of the arrays, each ending where a page begins that nobody may touch, as is one before it.

    A read or write past the end is a segmentation fault. Arrays whose size is no multiple of their alignment keep it
    only as far as their size allows, which is the point; but all begin at even addresses, as weights must.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (PTR, ctypes.c_size_t, ctypes.c_int)
    page = mmap.PAGESIZE
    maps = []
    addresses = []
    try:
        for array in arrays:
            size = -(-max(array.nbytes, 1) // page) * page
            area = mmap.mmap(-1, size + 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            base = ctypes.addressof(ctypes.c_char.from_buffer(area))
            at = base + page + size - array.nbytes // 2 * 2 - array.nbytes % 2 * 2
            ctypes.memmove(at, np.ascontiguousarray(array).ctypes.data, array.nbytes)
            for guard in (base, base + page + size):
                assert libc.mprotect(guard, page, 0) == 0, ctypes.get_errno()
            maps.append((area, base, size + 2 * page))
            addresses.append(at)
        yield addresses
    finally:
        for _area, base, size in maps:
            assert libc.mprotect(base, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0
