"""In: a loop over elements that lie side by side. Out: whether they are fetched as one, and where.

A `vector` loop inside thread loops copies consecutive elements out of memory that all teams see. One access fetches them where all of
them are wanted and the first lies at a multiple of their number: arrays begin at such places, the places of the first ones are
multiples in their row, so what is left to ask is whether a row's length is one too. Elsewhere they are fetched one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moapipe.algebra.index import affine, coefficient, constant, is_affine_in, is_index, simplify
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, op, references, substitute, text, variables
from moapipe.errors import LiftError
from moapipe.loops.legal import negation
from moapipe.loops.onf import Array, Assign, Kernel, Leaf, Loop, statements
from moapipe.loops.tally import GLOBAL


@dataclass(frozen=True, slots=True)
class Wide:
    """`first`: the first of `width` elements. They are fetched as one where all of `whole` holds, which is the same for all of them."""

    leaf: Assign
    source: Ref
    first: Ref
    width: int
    whole: tuple[Scalar, ...]


def wide(s: Loop, arrays: Mapping[str, Array]) -> Wide:
    """What a loop fetches as one. LiftError where it is no copy of consecutive elements, with what to change."""
    width = constant(s.hi)
    if s.lo != Num(0) or width is None or not all(isinstance(q, Leaf) for q in s.body):
        raise LiftError(f"{s.var} runs from {text(s.lo)} to {text(s.hi)} around {len(s.body)} statements", where=s.var, hint="split the axis by V, innermost")
    copies = [q for q in s.body if isinstance(q, Assign) and isinstance(q.value, Ref) and arrays[q.value.array].space in GLOBAL and s.var in variables(q.value)]
    if len(copies) != 1:
        raise LiftError(f"{len(copies)} leaves copy elements along {s.var} out of memory, one is needed", where=s.var, hint="bind the copy that `stage` makes")
    leaf, source = copies[0], copies[0].value
    assert isinstance(source, Ref)
    others = [q for q in s.body if q is not leaf]
    if any(not any(negation(w) in q.where for w in leaf.where) for q in others if isinstance(q, Leaf)):
        raise LiftError(f"what else runs over {s.var} may run beside the copy of {source.array}", where=leaf.name, hint="only what fills the other side of its guards may")
    if arrays[leaf.target.array].space in GLOBAL or any(references(w) for w in leaf.where):
        raise LiftError(f"{text(leaf.target)} is no memory of the team, or a guard is read", where=leaf.name, hint="stage into shared memory or registers")
    _side_by_side(source, s.var, width, leaf.name)
    return Wide(leaf, source, _at(source, s.var, 0), width, (*_aligned(arrays[source.array], width), *(_everywhere(w, s.var, width, leaf.name) for w in leaf.where)))


def _at(r: Ref, var: str, value: int) -> Ref:
    return Ref(r.array, tuple(simplify(substitute(i, {var: Num(value)})) for i in r.index))


def _side_by_side(r: Ref, var: str, width: int, name: str) -> None:
    """LiftError unless the elements are consecutive, and the first lies at a multiple of `width` in its row."""
    *outer, last = r.index
    if any(var in variables(i) for i in outer) or not is_affine_in(last, var) or coefficient(last, var) != 1:
        raise LiftError(f"{text(r)} is not unit-stride in {var}", where=f"{name} {var}", hint="take the axis that is the last of the array's layout")
    if any(c % width for k, c in affine(last).items() if k != Var(var)):
        raise LiftError(f"{text(r)} begins at {text(_at(r, var, 0).index[-1])}, which need not be a multiple of {width}", where=f"{name} {var}",
                        hint=f"split the axis by {width} innermost, and those around it by multiples of it")


def _aligned(a: Array, width: int) -> tuple[Scalar, ...]:
    """Where rows begin at multiples of `width`: nothing to ask of one row, or of rows of such a length."""
    if len(a.shape) == 1 or all(c % width == 0 for c in affine(a.shape[-1]).values()):
        return ()
    return (op("==", op("%", a.shape[-1], width), 0),)


def _everywhere(w: Scalar, var: str, width: int, name: str) -> Scalar:
    """A guard for all elements at once: at the last of them, where it bounds them from above."""
    if var not in variables(w):
        return w
    match w:
        case Op("<" | "<=", (a, b)) if is_index(w) and is_affine_in(a, var) and coefficient(a, var) == 1 and var not in variables(b):
            return substitute(w, {var: Num(width - 1)})
        case _:
            raise LiftError(f"the guard {text(w)} is no bound from above", where=f"{name} {var}", hint="vector a copy that is guarded by extents alone")


def widths(kernel: Kernel) -> frozenset[int]:
    """How many elements are fetched as one, in some loop."""
    return frozenset(constant(s.hi) or 0 for s in statements(kernel.body) if isinstance(s, Loop) and s.kind == "vector")


def vectors(kernel: Kernel) -> int:
    """Loops that fetch elements of 16 bytes together; narrow ones are of 8."""
    arrays = {a.name: a for a in kernel.arrays}
    found = [wide(s, arrays).source.array for s in statements(kernel.body) if isinstance(s, Loop) and s.kind == "vector"]
    return sum(not arrays[a].narrow for a in found)
