"""In: a kernel and the element size. Out: where its workspace and private arrays lie in the one workspace buffer.

The buffer holds the workspace arrays, then one slice a thread with the private arrays. Every array starts on a cache line of
64 bytes, so two threads never share one. Offsets and sizes are index expressions in the kernel's sizes and `threads`, in
elements; the emitted text, the manifest and the caller use the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moapipe.algebra.index import add, constant, multiply, simplify
from moapipe.algebra.scalar import Num, Op, Scalar, Var, text, variables
from moapipe.errors import TargetError
from moapipe.loops.onf import Array, Kernel

LINE = 64
"""Bytes of a cache line, the alignment of every buffer and array."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One array: its element count (unrounded) and its offset, from the buffer's start or from its thread's slice."""

    array: Array
    elements: Scalar
    offset: Scalar


@dataclass(frozen=True, slots=True)
class Workspace:
    """`shared` elements for all threads, then `slice` elements a thread; `elements` = shared + threads·slice."""

    slots: tuple[Slot, ...]
    shared: Scalar
    slice: Scalar

    @property
    def elements(self) -> Scalar:
        return add(self.shared, multiply(Var("threads"), self.slice))

    def manifest(self) -> dict[str, object]:
        """The manifest's `workspace` entry."""
        rows = [{"name": s.array.name, "space": s.array.space, "elements": text(s.elements), "offset": text(s.offset)} for s in self.slots]
        return {"elements": text(self.elements), "arrays": rows}


def workspace(kernel: Kernel, size: int) -> Workspace:
    """The layout for elements of `size` bytes. TargetError when an extent depends on anything but the kernel's sizes."""
    shared, slots = _row([a for a in kernel.arrays if a.space == "workspace"], size, kernel)
    own, private = _row([a for a in kernel.arrays if a.space == "private"], size, kernel)
    return Workspace((*slots, *private), shared, own)


def _row(arrays: Sequence[Array], size: int, kernel: Kernel) -> tuple[Scalar, list[Slot]]:
    offset: Scalar = Num(0)
    slots = []
    for a in arrays:
        elements: Scalar = Num(1)
        for s in a.shape:
            if loose := variables(s) - set(kernel.sizes):
                raise TargetError(f"extent {text(s)} of {a.name} uses {sorted(loose)}, which no caller knows", where=kernel.name,
                                  hint="extents of workspace and private arrays are expressions in the sizes")
            elements = multiply(elements, s)
        slots.append(Slot(a, elements, offset))
        offset = add(offset, rounded(elements, LINE // size))
    return offset, slots


def rounded(e: Scalar, to: int) -> Scalar:
    """The least multiple of `to` that is not below `e`."""
    if (k := constant(e)) is not None:
        return Num(-(-k // to) * to)
    return multiply(simplify(Op("//", (Op("+", (e, Num(to - 1))), Num(to)))), to)
