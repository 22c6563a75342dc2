"""In: a marked fold loop, its register tile. Out: the comments that find it in a text, and its shape."""

from __future__ import annotations

from math import prod

from moapipe.algebra.index import constant
from moapipe.loops.onf import Accumulate, Loop, leaves


def comments(mark: str, number: int) -> tuple[str, str]:
    """The comments around a tile's fold loop, each of them once in a file."""
    return f"tile {mark} #{number}", f"end of tile {mark} #{number}"


def shape(s: Loop, lanes: int) -> tuple[int, int, int]:
    """(rows, columns, vector multiply-adds a step) of the accumulations inside a marked fold loop."""
    rows, columns, fma = 1, lanes, 0
    for leaf, loops, _ in leaves(s.body):
        if not isinstance(leaf, Accumulate):
            continue
        extents = {k: [constant(l.hi) or 0 for l in loops if l.kind == k] for k in ("unroll", "lane")}
        rows, columns = prod(extents["unroll"]), prod(extents["lane"])
        fma += rows * columns // lanes
    return rows, columns, fma
