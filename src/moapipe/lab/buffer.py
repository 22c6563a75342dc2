"""In: sizes in elements. Out: numpy arrays on memory of our own: 64-byte aligned, between a canary and a page that may not be touched.

A guarded buffer ends where a protected page begins (the last cache line apart), so reading or writing past it stops the
process, and a canary of NaNs before it and behind it shows every smaller trespass.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

DTYPES: dict[str, type[Any]] = {"f32": np.float32, "f64": np.float64, "bf16": bfloat16}
"""Elements of a buffer, by dtype; a cast to them rounds to nearest, ties to even."""
LINE = 64
PAGE = mmap.PAGESIZE
PROT_NONE = 0
PATTERNS = {"f32": np.uint32(0x7FC5A5A5), "f64": np.uint64(0x7FF8_5A5A_C3C3_A5A5), "bf16": np.uint16(0x7FE5)}
"""Quiet NaNs with a payload: a kernel that reads one shows NaN, and one that was overwritten shows another pattern."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def aligned(elements: int, dtype: str) -> NDArray[Any]:
    """A flat array of NaNs that starts on a cache line."""
    size = np.dtype(DTYPES[dtype]).itemsize
    raw = np.empty(elements * size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    out = raw[start : start + elements * size].view(DTYPES[dtype])
    poison(out, dtype)
    return out


def poison(a: NDArray[Any], dtype: str) -> None:
    """Fill with the NaN pattern."""
    a.view(PATTERNS[dtype].dtype)[:] = PATTERNS[dtype]


def tensor(torch: Any, elements: NDArray[Any], dtype: str) -> Any:
    """The same elements as a tensor of PyTorch, which knows numpy's own dtypes only."""
    return torch.from_numpy(elements.view(PATTERNS[dtype].dtype)).view(getattr(torch, np.dtype(DTYPES[dtype]).name))


@dataclass(frozen=True)
class Guarded:
    """`data` are the elements; `before` and `after` the canaries, as bit patterns; `memory` keeps the mapping alive."""

    data: NDArray[Any]
    before: NDArray[Any]
    after: NDArray[Any]
    dtype: str
    memory: mmap.mmap

    def trespassed(self) -> str:
        """Which canary died, in words; empty when both live."""
        for place, canary in (("before", self.before), ("after", self.after)):
            if dead := np.flatnonzero(canary != PATTERNS[self.dtype]).size:
                return f"{dead} elements written {place} its buffer"
        return ""


def guarded(elements: int, dtype: str) -> Guarded:
    """A NaN-filled buffer: one page or more, a canary of at least a cache line, the elements, a canary to the end of the line, and
    a page that may not be touched."""
    size = np.dtype(DTYPES[dtype]).itemsize
    body = -(-elements * size // LINE) * LINE
    room = -(-(body + LINE) // PAGE) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    raw = np.frombuffer(memory, np.uint8)
    if _libc.mprotect(raw.ctypes.data + room, PAGE, PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    start, pattern = room - body, PATTERNS[dtype].dtype
    every = raw[:room].view(pattern)
    every[:] = PATTERNS[dtype]
    first, last = start // size, start // size + elements
    return Guarded(raw[start : start + elements * size].view(DTYPES[dtype]), every[:first], every[last:], dtype, memory)
