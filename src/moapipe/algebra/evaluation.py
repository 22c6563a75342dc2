"""In: a scalar expression over index variables, arrays. Out: its values by numpy at all indices at once, in the arrays' dtype.

`select` is lazy, as it is in the normal form: the branch that is not taken may read past an array's end, and only that one.
`meaning_expr` is the other road to the same values, from the MoA expression through numpy's own array functions (the `meaning`
column of OPS): the oracle of ψ-reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import numpy as np

from moapipe.algebra.expr import Apply, Cell, Definitions, Expr, Leaf, Value
from moapipe.algebra.index import evaluate as evaluate_index
from moapipe.algebra.ops import FUNCS, MONOIDS, OPS
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, text
from moapipe.errors import AlgebraError

Array = Any


def evaluate(e: Scalar, at: Mapping[str, Array], arrays: Mapping[str, Array], live: Array = True) -> Array:
    """The values of `e`. `at` gives variables (integers, or integer arrays that broadcast), `live` where the value matters."""
    match e:
        case Num(value):
            return value
        case Var(name):
            return at[name]
        case Op("select", (condition, a, b)):
            c = evaluate(condition, at, arrays, live)
            yes = evaluate(a, at, arrays, np.logical_and(live, c))
            return np.where(c, yes, evaluate(b, at, arrays, np.logical_and(live, np.logical_not(c))))
        case Op(name, args):
            return FUNCS[name].meaning(*(evaluate(a, at, arrays, live) for a in args))
        case Ref():
            return _element(e, at, arrays, live)
        case Fold():
            return _fold(e, at, arrays, live)
        case _:
            assert_never(e)


def _element(e: Ref, at: Mapping[str, Array], arrays: Mapping[str, Array], live: Array) -> Array:
    a = arrays[e.array]
    index = np.broadcast_arrays(*(np.asarray(evaluate(i, at, arrays, live)) for i in e.index))
    bad: Array = False
    for i, n in zip(index, a.shape, strict=True):
        bad = np.logical_or(bad, np.logical_or(i < 0, i >= n))
    if np.any(np.logical_and(bad, live)):
        raise AlgebraError(f"{text(e)} reads outside {e.array}, whose shape is {a.shape}", hint="the sizes do not satisfy the derivation's constraints")
    if a.size == 0:
        return np.zeros(np.shape(bad), a.dtype)
    return a[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, a.shape, strict=True))]


def _fold(e: Fold, at: Mapping[str, Array], arrays: Mapping[str, Array], live: Array) -> Array:
    """Ascending, one value of the variable at a time; where the range depends on the index, only the indices inside it count."""
    row = MONOIDS[e.monoid]
    lo, hi = (np.asarray(evaluate(x, at, arrays, live)) for x in (e.lo, e.hi))
    total: Array = row.unit
    if lo.size == 0 or hi.size == 0:
        return total
    for v in range(int(lo.min()), int(hi.max())):
        inside = np.logical_and(lo <= v, v < hi)
        term = evaluate(e.body, {**at, e.var: v}, arrays, np.logical_and(live, inside))
        total = np.where(inside, FUNCS[row.function].meaning(total, term), total)
    return total


def tabulate(e: Scalar, axes: tuple[tuple[str, int], ...], at: Mapping[str, int], arrays: Mapping[str, Array], dtype: Any) -> Array:
    """The array of `e` over its axes, ((variable, extent), …); floating values come in `dtype`."""
    shape = tuple(n for _, n in axes)
    grid = {v: i for (v, _), i in zip(axes, np.ogrid[tuple(slice(n) for n in shape)], strict=True)} if axes else {}
    if 0 in shape:
        return np.zeros(shape, dtype)
    with np.errstate(all="ignore"):
        value = np.asarray(evaluate(e, {**at, **grid}, arrays))
    out = np.broadcast_to(value, shape).copy()
    return out.astype(dtype) if out.dtype.kind == "f" else out


def meaning_expr(e: Expr, arrays: Mapping[str, Array], sizes: Mapping[str, int], cells: Mapping[tuple[int, int], Array] | None = None) -> Array:
    """The array of a MoA expression, directly by numpy: no index ever appears. `cells` are Ω's, by (side, depth)."""
    match e:
        case Leaf(name, _):
            return np.asarray(arrays[name])
        case Value(value):
            return np.asarray(evaluate(value, sizes, {}))[()]
        case Cell(side, depth, _):
            return (cells or {})[side, depth]
        case Apply(operator, args, data, _, body):
            values = [np.asarray(meaning_expr(a, arrays, sizes, cells)) if a.shape else meaning_expr(a, arrays, sizes, cells) for a in args]

            def apply_body(*parts: Array) -> Array:
                assert body is not None
                own = {(2 - len(parts) + k, data.depth): p for k, p in enumerate(parts)}
                return meaning_expr(body, arrays, sizes, {**(cells or {}), **own})

            with np.errstate(all="ignore"):
                return OPS[operator].meaning(data, values, lambda x: evaluate_index(x, sizes), apply_body)
        case _:
            assert_never(e)


def meaning_definitions(d: Definitions, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Every definition's array by `meaning_expr`, in order of use."""
    out: dict[str, Array] = {}
    for x in d.definitions:
        out[x.name] = np.asarray(meaning_expr(x.expr, {**inputs, **out}, sizes))
    return out
