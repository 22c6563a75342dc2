"""In: a kernel. Out: its counts as sympy expressions in the sizes, for people to read.

Rules, because sympy does not sum ceilings: independent loops multiply; a split axis with its guard or its clip counts as the
whole axis; a bound that can never be reached is dropped; polynomials are summed; Σ ⌊(a·i + b)/c⌋ is closed where a divides c
or c divides a. What has no closed form stays a written sum. `cost.count` does not use any of this: it is exact by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy as sp  # type: ignore[import-untyped]

from moapipe.algebra.index import add, affine, ceil_div, combine, constant, expression, extreme, simplify, subtract
from moapipe.algebra.scalar import Num, Op, Scalar, Var, op, text, variables
from moapipe.errors import LiftError
from moapipe.loops.cost import count
from moapipe.loops.onf import Kernel, Loop
from moapipe.loops.site import Life, lives, sites

Expr = Any
PROBES = (1, 2, 3, 5, 8, 13, 24, 61)
"""Sizes at which a footprint must equal the extents of its array before it is written as their product, for sizes above 0."""


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """loads, stores and calls by name, in times; read and written (only where the whole array is touched,
    and no size is 0) in elements."""

    loads: dict[str, Expr]
    stores: dict[str, Expr]
    calls: dict[str, Expr]
    read: dict[str, Expr]
    written: dict[str, Expr]

    def to_json(self) -> dict[str, dict[str, str]]:
        return {part: {name: str(e) for name, e in getattr(self, part).items()} for part in ("loads", "stores", "calls", "read", "written")}


@lru_cache(maxsize=64)
def closed_forms(kernel: Kernel) -> ClosedForms:
    """Accesses of every array and calls of every function as expressions; footprints where they are products of extents."""
    loads: dict[str, Expr] = {}
    stores: dict[str, Expr] = {}
    calls: dict[str, Expr] = {}
    for p in sites(kernel):
        n = iterations(p.loops, p.conditions)
        for r in p.loads:
            loads[r.array] = loads.get(r.array, 0) + n
        for r in p.stores:
            stores[r.array] = stores.get(r.array, 0) + n
        for name, times in p.calls.items():
            calls[name] = calls.get(name, 0) + times * n
    read, written = _footprints(kernel)
    tidy = [dict(sorted((k, sp.expand(e)) for k, e in part.items() if e != 0)) for part in (loads, stores, calls)]
    return ClosedForms(tidy[0], tidy[1], tidy[2], read, written)


def _footprints(kernel: Kernel) -> tuple[dict[str, Expr], dict[str, Expr]]:
    probes = [count(kernel, {s: n + k * (k + 1) for k, s in enumerate(kernel.sizes)}, 1).footprint for n in PROBES]
    allocs = lives(kernel)
    out: tuple[dict[str, Expr], dict[str, Expr]] = ({}, {})
    for a in kernel.arrays:
        mine: list[Life] = [x for x in allocs if x.array == a.name]
        born = sum((iterations(x.loops, x.conditions) for x in mine), sp.Integer(0)) if a.space in ("private", "register") else sp.Integer(1)
        whole = born * sp.prod([symbolic(s) for s in a.shape])
        for part, what in zip(out, ("read", "written"), strict=True):
            found = [getattr(p[a.name], what) for p in probes]
            if not any(found):
                continue
            if found == [p[a.name].elements * p[a.name].lives for p in probes]:
                part[a.name] = whole
    return out


def symbolic(e: Scalar) -> Expr:
    """An index expression in sympy; sizes and loop variables are non-negative integers."""
    match e:
        case Num(v):
            return sp.Integer(int(v))
        case Var(name):
            return sp.Symbol(name, integer=True, nonnegative=True)
        case Op("//", (a, Num(int() as f))):
            form = affine(a)
            if form.get(1, 0) == f - 1 and f > 1:
                return sp.ceiling(symbolic(expression({k: v for k, v in form.items() if k != 1})) / f)
            return sp.floor(symbolic(a) / f)
        case Op("+" | "-" | "*" | "min" | "max" | "//" | "%" as name, args):
            x, y = map(symbolic, args)
            made = {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "min": lambda: sp.Min(x, y), "max": lambda: sp.Max(x, y),
                    "//": lambda: sp.floor(x / y), "%": lambda: sp.Mod(x, y)}
            return made[name]()
        case Op("<" | "<=" | "==" as name, (a, b)):
            return {"<": sp.Lt, "<=": sp.Le, "==": sp.Eq}[name](symbolic(a), symbolic(b))
        case Op("not", (a,)):
            return sp.Not(symbolic(a))
        case Op("and" | "or" as name, (a, b)):
            return {"and": sp.And, "or": sp.Or}[name](symbolic(a), symbolic(b))
        case _:
            raise LiftError(f"{text(e)} is no expression over indices")


def iterations(loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> Expr:
    """How often a site runs, as an expression in the sizes."""
    axes = [replace(s, body=(), lo=simplify(s.lo), hi=simplify(s.hi)) for s in loops]
    rest = [a for c in conditions for a in _atoms(simplify(c))]
    return _iterations(axes, rest)


def _iterations(axes: list[Loop], rest: list[Scalar]) -> Expr:
    for c in rest:
        match c:
            case Op("<=", (x, a)) if any(_splits(o, i, [op("<", a, x)]) for i in axes for o in axes[: axes.index(i)]):
                others = [d for d in rest if d is not c]  # past the end of a split axis: all of it without what is inside
                return _iterations(axes, others) - _iterations(axes, [*others, op("<", a, x)])
    axes, rest = _whole_axes(axes, rest)
    axes = [replace(s, hi=_reachable(s.hi, axes[:k])) for k, s in enumerate(axes)]
    total: Expr = sp.Integer(1)
    for k in reversed(range(len(axes))):
        mine = [c for c in rest if axes[k].var in variables(c)]
        rest = [c for c in rest if c not in mine]
        total = _sum(total, axes[k], mine, axes[:k])
    for c in rest:
        total = _given(total, symbolic(c))
    return total


def _atoms(c: Scalar) -> list[Scalar]:
    """A conjunction as its parts, negated comparisons turned round."""
    match c:
        case Op("and", (a, b)):
            return _atoms(a) + _atoms(b)
        case Op("not", (Op("<", (a, b)),)):
            return [op("<=", b, a)]
        case Op("not", (Op("<=", (a, b)),)):
            return [op("<", b, a)]
        case _:
            return [c]


def _whole_axes(axes: list[Loop], conditions: list[Scalar]) -> tuple[list[Loop], list[Scalar]]:
    """Merge o < ⌈X/f⌉ and i < f under o·f + i < X (or i < min(f, X - o·f)) into one axis of extent X."""
    for i in axes:
        for o in axes[: axes.index(i)]:
            for f, extent, guard in _splits(o, i, conditions):
                others = [c for c in conditions if c != guard]
                uses = [s.lo for s in axes] + [s.hi for s in axes if s is not i] + others
                if any({o.var, i.var} & variables(e) for e in uses) or o.hi != ceil_div(extent, f) or o.lo != Num(0) or i.lo != Num(0):
                    continue
                merged = [replace(s, hi=extent) if s is o else s for s in axes if s is not i]
                return _whole_axes(merged, others)
    return axes, conditions


def _splits(o: Loop, i: Loop, conditions: list[Scalar]) -> list[tuple[int, Scalar, Scalar | None]]:
    """(factor, whole extent, guard) of the ways in which i may be the inner part of o; inside o's range X - o·f is positive."""
    out: list[tuple[int, Scalar, Scalar | None]] = []
    width = constant(i.hi)
    for c in conditions:
        match c:
            case Op("<", (a, b)) if width is not None and affine(a) == {Var(o.var): width, Var(i.var): 1}:
                out.append((width, b, c))
    match i.hi:
        case Op("min", (Op("max", (a, Num(0))), Num(int() as f))) | Op("min", (a, Num(int() as f))):
            out.append((f, expression(combine(affine(a), {Var(o.var): f})), None))
    return out


def _reachable(hi: Scalar, outside: list[Loop]) -> Scalar:
    """Drop the arm of a min that the other can never exceed."""
    match hi:
        case Op("min", (a, b)):
            for x, y in ((a, b), (b, a)):
                if _never_above(x, y, outside):
                    return x
    return hi


def _never_above(x: Scalar, y: Scalar, outside: list[Loop]) -> bool:
    """x <= y at every point of the loops outside: by affine extremes, or ⌊(o·Br + Br - 1)/Bc⌋ + 1 <= ⌈X/Bc⌉ where Br divides Bc."""
    gap = subtract(x, y)
    for s in reversed(outside):
        gap = extreme(gap, {s.var: (s.lo, s.hi)}, largest=True)
    worst = constant(gap)
    if worst is not None and worst <= 0:
        return True
    match x, y:
        case Op("+", (Op("//", (a, Num(int() as c))), Num(1))), Op("//", (b, Num(int() as d))) if c == d:
            whole = combine(affine(b), {1: -(c - 1)})
            for s in outside:
                step = affine(a).get(Var(s.var), 0)
                if step > 0 and c % step == 0 and affine(a) == {Var(s.var): step, 1: step - 1}:
                    return s.hi == ceil_div(expression(whole), step)
    return False


def _sum(body: Expr, axis: Loop, conditions: list[Scalar], outside: list[Loop]) -> Expr:
    """Σ over one axis, its conditions turned into bounds where they are affine in it with coefficient ±1."""
    v = symbolic(Var(axis.var))
    lows, highs = [axis.lo], [axis.hi]
    for c in conditions:
        bound = _bound(c, axis.var)
        if bound is None:
            body = _given(body, symbolic(c))
        elif bound[0]:
            highs.append(bound[1])
        else:
            lows.append(bound[1])
    highs = [x for k, x in enumerate(highs) if not any(_never_above(y, x, outside) for j, y in enumerate(highs) if j != k and (j < k or not _never_above(x, y, outside)))]
    lows = [x for k, x in enumerate(lows) if not any(_never_above(x, y, outside) for j, y in enumerate(lows) if j != k and (j < k or not _never_above(y, x, outside)))]
    lo, hi = sp.Max(*map(symbolic, lows)), sp.Min(*map(symbolic, highs))
    if not body.has(v):
        sure = len(highs) == len(lows) == 1 and lows[0] == Num(0) and _not_negative(highs[0], outside)
        return body * (hi - lo if sure else sp.Max(0, hi - lo))
    return _summation(sp.expand(body), v, lo, hi)


def _not_negative(e: Scalar, outside: list[Loop]) -> bool:
    """Sizes are non-negative, and so are quotients and minima of what is."""
    match e:
        case Num(v):
            return v >= 0
        case Var():
            return True
        case Op("+" | "*" | "//" | "min" | "max", (a, b)):
            return _not_negative(a, outside) and _not_negative(b, outside)
        case Op("-", (a, b)):
            return _never_above(b, a, outside)
        case _:
            return False


def _bound(c: Scalar, var: str) -> tuple[bool, Scalar] | None:
    """(is it an upper bound?, the exclusive upper or inclusive lower end) of a comparison."""
    match c:
        case Op("<" | "<=" as name, (a, b)):
            form = combine(affine(b), affine(a), -1)
            k = form.pop(Var(var), 0)
            if any(var in variables(atom) for atom in form if atom != 1):
                return None
            if k == -1:
                return True, add(expression(form), 0 if name == "<" else 1)
            if k == 1:
                return False, subtract(1 if name == "<" else 0, expression(form))
    return None


def _given(body: Expr, condition: Expr) -> Expr:
    return body if condition is sp.true else sp.Integer(0) if condition is sp.false else sp.Piecewise((body, condition), (0, True))


def _summation(body: Expr, v: Expr, lo: Expr, hi: Expr) -> Expr:
    """Term by term: polynomials and quotients closed, anything else a written sum."""
    out: Expr = sp.Integer(0)
    for term in sp.Add.make_args(body):
        factor, rest = term.as_independent(v)
        out += factor * _term(rest, v, lo, hi)
    return out


def _term(rest: Expr, v: Expr, lo: Expr, hi: Expr) -> Expr:
    if rest.is_polynomial(v):
        n, m = sp.Dummy("n", integer=True), sp.Dummy("m", integer=True)
        return sp.factor(sp.summation(rest, (v, m, n - 1))).subs({n: hi, m: lo})
    if rest.func is sp.floor and lo == 0:
        b, a = rest.args[0].as_independent(v, as_Add=True)
        step = a / v
        if step.is_Rational and step.p == 1 and b.is_Rational and b >= 0:
            skip = sp.floor(b * step.q)
            return _quotients(hi + skip, step.q) - _quotients(skip, step.q)
    return sp.Sum(rest, (v, lo, hi - 1))


def _quotients(m: Expr, r: int) -> Expr:
    """Σ_{k<m} ⌊k/r⌋ = r·q(q - 1)/2 + q·(m - r·q), q = ⌊m/r⌋."""
    q = sp.floor(sp.sympify(m) / r)
    return r * q * (q - 1) / 2 + q * (m - r * q)


def evaluate(e: Expr, sizes: Mapping[str, int]) -> int:
    """The whole number that a closed form is at given sizes; written sums are added up."""
    return int(_evaluate(sp.sympify(e), {symbolic(Var(k)): sp.Integer(v) for k, v in sizes.items()}))


def _evaluate(e: Expr, at: dict[Expr, Expr]) -> Expr:
    match e:
        case sp.Sum():
            (v, lo, hi), *more = reversed(e.limits)
            inner = sp.Sum(e.function, *reversed(more)) if more else e.function
            span = range(int(_evaluate(lo, at)), int(_evaluate(hi, at)) + 1)
            return sum((_evaluate(inner, {**at, v: sp.Integer(k)}) for k in span), sp.Integer(0))
        case sp.Piecewise():
            return next((_evaluate(value, at) for value, c in e.args if _evaluate(c, at) == sp.true), sp.Integer(0))
        case sp.Symbol():
            return at[e]
        case _:
            return e.func(*(_evaluate(a, at) for a in e.args)) if e.args else e
