"""In: references with the loops around them. Out: at how many places within a page the lines lie that a walk goes over.

Caches are found by the low bits of an address. Lines at one place in their pages, a slot, share 1/64 of a cache (64 lines of 64
bytes a page), however large it is: a column of a matrix whose rows are whole pages has one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import gcd, prod

from moapipe.algebra.index import add, affine, multiply
from moapipe.algebra.scalar import Num, Ref, Scalar, Var, variables
from moapipe.loops.onf import Loop

PAGE_BYTES = 4096


def stride(r: Ref, shape: Sequence[int], var: str) -> int | None:
    """By how many elements γ moves the reference when the variable moves by one; None where that is not always the same."""
    flat: Scalar = Num(0)
    for i, n in zip(r.index, shape, strict=True):
        flat = add(multiply(flat, n), i)
    form = affine(flat)
    return None if any(var in variables(k) for k in form if k != 1 and k != Var(var)) else form.get(Var(var), 0)


def slots(moves: Iterable[tuple[int, int]], line_bytes: int) -> int:
    """Lines of a page, pages laid one over the other, that Σ step·t falls on for all 0 ≤ t < trips of the `moves` (step in bytes, trips)."""
    at = {0}
    for step, trips in moves:
        turn = range(0, step * min(max(1, trips), PAGE_BYTES // gcd(step, PAGE_BYTES)), step) if step else range(1)
        at = {(a + t) % PAGE_BYTES for a in at for t in turn}
        if len({a // line_bytes for a in at}) == PAGE_BYTES // line_bytes:
            break
    return len({a // line_bytes for a in at})


def moves(r: Ref, shape: Sequence[int], loops: Sequence[Loop], trips: Callable[[int], int], element_bytes: int) -> list[tuple[int, int]] | None:
    """(Step in bytes, trips) of each loop that moves the reference, innermost first; `trips` of the loop with a number. None where a step
    is not always the same."""
    out = []
    for k in reversed(range(len(loops))):
        step = stride(r, shape, loops[k].var)
        if step is None:
            return None
        if step:
            out.append((abs(step) * element_bytes, trips(k)))
    return out


def recent(walk: Sequence[tuple[int, int]], line_bytes: int) -> list[tuple[int, int]]:
    """The innermost of the moves that together go over a page's worth of lines: what is asked for at about the same time."""
    for k in range(len(walk) + 1):
        if prod(max(1, trips * min(step, line_bytes) // line_bytes) for step, trips in walk[:k]) >= PAGE_BYTES // line_bytes:
            return list(walk[:k])
    return list(walk)
