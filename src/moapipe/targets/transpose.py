"""In: two nested loops that copy an array into another order. Out: the copy as blocks that a vector unit transposes.

Packing K by features, or A by rows of a register tile, reads one index contiguously and writes another: element by element it
costs some 3 cycles an element, which is a fifth of attention at 512 keys. Blocks of E×E elements go through E vectors and
log2 E rounds of shuffles (Eklundh 1972); what is left over at the edges stays scalar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moapipe.algebra.index import add, affine, constant, gamma_row, maximum, simplify, subtract
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, references, substitute, variables
from moapipe.loops.legal import hull
from moapipe.loops.onf import Array, Assign, Loop
from moapipe.targets.expression import nonnegative


@dataclass(frozen=True, slots=True)
class Transpose:
    """leaf: target[…, column, …, row] = factor · source[…, row, …, column] for all `rows` and `columns`, E×E at a time.

    `source_step` and `target_step` are the distances in elements from one row of the source, and from one column of the
    target, to the next.
    """

    leaf: Assign
    rows: Loop
    columns: Loop
    source: Ref
    factor: Scalar | None
    edge: int
    source_step: Scalar
    target_step: Scalar


def transposition(s: Loop, arrays: Mapping[str, Array], lanes: int) -> Transpose | None:
    """The nest as a transposition, or None: two serial loops around one unguarded copy, at most scaled by what stays the same."""
    match s.body:
        case (Loop(kind="serial", mark="", body=(Assign(where=()) as leaf,)) as inner,) if s.kind == "serial" and not s.mark:
            pass
        case _:
            return None
    if s.var in variables(inner.lo) | variables(inner.hi):
        return None
    parts = _scaled(leaf.value, {s.var, inner.var})
    if parts is None or {arrays[r.array].space for r in (parts[1], leaf.target)} & {"register"} or leaf.target.array in _read(leaf):
        return None
    factor, source = parts
    for rows, columns in ((s, inner), (inner, s)):
        if _contiguous(leaf.target, rows.var, columns.var) and _contiguous(source, columns.var, rows.var):
            steps = (_step(source, rows.var, arrays), _step(leaf.target, columns.var, arrays))
            edge = _edge(rows, lanes)
            if edge > 1 and not any(variables(d) & {rows.var, columns.var} for d in steps):
                return Transpose(leaf, rows, columns, source, factor, edge, *steps)
    return None


def _read(leaf: Assign) -> set[str]:
    return {r.array for r in references(leaf.value)}


def _scaled(value: Scalar, axes: set[str]) -> tuple[Scalar | None, Ref] | None:
    """(factor, source) of a copy or of a product with something that does not change along the axes."""
    match value:
        case Ref():
            return (None, value) if axes <= variables(value) else None
        case Op("*", (a, Ref() as b)) if axes <= variables(b) and not axes & variables(a):
            return a, b
        case Op("*", (Ref() as a, b)) if axes <= variables(a) and not axes & variables(b):
            return b, a
        case _:
            return None


def _contiguous(r: Ref, along: str, other: str) -> bool:
    """The last index rises by one with `along` and does not know `other`."""
    form = affine(simplify(r.index[-1])) if r.index else {}
    return form.get(Var(along), 0) == 1 and not any(other in variables(k) for k in form if k != 1)


def _step(r: Ref, var: str, arrays: Mapping[str, Array]) -> Scalar:
    offset = gamma_row(r.index, arrays[r.array].shape)
    return subtract(simplify(substitute(offset, {var: add(var, 1)})), offset)


def _edge(rows: Loop, lanes: int) -> int:
    """The largest power of two up to V that divides the known bound of the rows; V when none is known."""
    top = constant(hull(rows)[1])
    edge = lanes
    while top is not None and top % edge:
        edge //= 2
    return edge


def whole(s: Loop, edge: int) -> Scalar:
    """Where the last whole block of a loop ends."""
    span = subtract(s.hi, s.lo)
    count = Op("//", (span if nonnegative(span) else maximum(span, 0), Num(edge)))
    return add(s.lo, Op("*", (count, Num(edge))))


def block(edge: int, scaled: bool, size: int) -> str:
    """The C function that transposes one block; `size` is the bytes of an element."""
    name = f"transpose{'_scaled' if scaled else ''}_{edge}"
    bits, width = 8 * size, size * edge
    lines = [f"static inline void {name}({'real factor, ' if scaled else ''}const real *x, int64_t xs, real *y, int64_t ys) {{",
             f"    typedef real row __attribute__((vector_size({width})));",
             f"    typedef real row_u __attribute__((vector_size({width}), aligned({size}), may_alias));",
             f"    typedef int{bits}_t pick __attribute__((vector_size({width})));"]
    lines += [f"    const row a{i} = {'factor * ' if scaled else ''}*(const row_u *)(x + {i} * xs);" for i in range(edge)]
    name, step = "a", 1
    while step < edge:
        low = ", ".join(str(l if not l & step else edge + l - step) for l in range(edge))
        high = ", ".join(str(l + step if not l & step else edge + l) for l in range(edge))
        after = chr(ord(name) + 1)
        for i in range(edge):
            if not i & step:
                pair = f"{name}{i}, {name}{i + step}"
                lines.append(f"    const row {after}{i} = __builtin_shuffle({pair}, (pick){{{low}}});")
                lines.append(f"    const row {after}{i + step} = __builtin_shuffle({pair}, (pick){{{high}}});")
        name, step = after, 2 * step
    lines += [f"    *(row_u *)(y + {i} * ys) = {name}{i};" for i in range(edge)]
    return "\n".join([*lines, "}"])
