"""Lifts that make one of two: ravel joins two dimensions of an array, coalesce two loops. In and out: a Kernel."""

from __future__ import annotations

from dataclasses import replace

from moapipe.algebra.index import add, multiply, subtract
from moapipe.algebra.scalar import Num, Ref, Scalar, text, variables
from moapipe.loops.lift.scope import (
    Names,
    all_of,
    axes_of,
    known,
    listed,
    map_chosen,
    refusal,
    replaced,
    temporary,
    with_arrays,
)
from moapipe.loops.onf import Body, Kernel, Loop, binds, expressions, map_array


def ravel(k: Kernel, *, array: str, dim: int) -> Kernel:
    """Join a dimension of a temporary with the next: index (x, y) → x·(extent of the next) + y, the elements of MoA's rav A where they
    were (γ is row-major). Always legal."""
    a = temporary(k, "ravel", array)
    if not 0 <= dim < len(a.shape) - 1:
        raise refusal("ravel", array, f"no dimensions {dim} and {dim + 1}, {array} has {len(a.shape)}")
    extent = a.shape[dim + 1]

    def joined(r: Ref) -> Scalar:
        return Ref(array, (*r.index[:dim], add(multiply(r.index[dim], extent), r.index[dim + 1]), *r.index[dim + 2 :]))

    shape = (*a.shape[:dim], multiply(a.shape[dim], extent), *a.shape[dim + 2 :])
    return with_arrays(k, map_array(k.body, array, joined), change=(replace(a, shape=shape),))


def coalesce(k: Kernel, *, axis: Names, into: str, only: Names = ()) -> Kernel:
    """Two loops, the second alone inside the first, become one over `into` = first·(extent of the second) + second, which runs through
    the same iterations in the same order (Polychronopoulos, Loop coalescing, ICPP 1987). Legal when nothing tells the two apart: every
    use of them is that sum."""
    known(k, "coalesce", only)
    if len(axis) != 2:
        raise refusal("coalesce", listed(axis), f"two axes become one, found {len(axis)}")
    first, second = axis
    taken = {*k.sizes, *(a.name for a in k.arrays)}
    found: list[Loop] = []

    def joined(s: Loop) -> Body:
        inner = s.body[0] if len(s.body) == 1 else s
        if not (isinstance(inner, Loop) and inner.var == second):
            raise refusal("coalesce", f"{first} {second}", f"a loop over {second} is not alone inside of {first}", "coalesce before fusing, or reorder first")
        if into in taken | binds((s,)):
            raise refusal("coalesce", into, "the name is taken", "choose another name")
        _plain(s, inner)
        found.append(s)
        body = replaced(inner.body, {second: subtract(into, multiply(first, inner.hi))})
        if apart := [e for e in expressions(body) if first in variables(e)]:
            raise refusal("coalesce", f"{first} {second}", f"{text(apart[0])} is no function of {first}·{text(inner.hi)} + {second}", "ravel the arrays first")
        return (Loop(into, _ZERO, multiply(s.hi, inner.hi), body),)

    body = map_chosen(k.body, first, lambda s, _: all_of(s.body, only), joined)
    if not found:
        raise refusal("coalesce", first, f"no loop {first} around {listed(only)} alone", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


_ZERO = Num(0)


def _plain(first: Loop, second: Loop) -> None:
    """Refuse loops that do not start at 0, whose extents need each other, or that are bound."""
    for s in (first, second):
        if s.lo != _ZERO or s.kind != "serial" or s.mark:
            raise refusal("coalesce", s.var, f"found {s.kind} {text(s.lo)}..{text(s.hi)}, not a serial loop from 0", "coalesce before binding")
    if first.var in variables(second.hi):
        raise refusal("coalesce", f"{first.var} {second.var}", f"the extent {text(second.hi)} of {second.var} changes with {first.var}")
