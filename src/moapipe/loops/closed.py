"""In: a kernel. Out: its counts as formulas in the sizes, for people to read.

Rules: independent loops multiply; a split axis with its guard or its clip counts as the whole axis; a bound that can never be
reached is dropped; polynomials are summed; Σ ⌊(a·i + b)/c⌋ is closed where a divides c or c divides a (loops/summation.py).
What has no closed form stays a written sum. `cost.count` does not use any of this: it is exact by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from moapipe.algebra.index import add, affine, ceil_div, combine, constant, expression, extreme, simplify, subtract
from moapipe.algebra.scalar import Num, Op, Scalar, Var, op, variables, walk
from moapipe.loops.footprint import Census, touched
from moapipe.loops.formula import ONE, ZERO, Formula, Memo, given, number, product, symbolic
from moapipe.loops.formula import extreme as pick
from moapipe.loops.onf import LOCAL, Kernel, Loop
from moapipe.loops.site import fullest, lives, sites
from moapipe.loops.summation import total

WHATS = ("read", "written")


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """loads, stores and calls by name, in times; read and written (only where the whole array is touched,
    and no size is 0) in elements."""

    loads: dict[str, Formula]
    stores: dict[str, Formula]
    calls: dict[str, Formula]
    read: dict[str, Formula]
    written: dict[str, Formula]

    def to_json(self) -> dict[str, dict[str, str]]:
        return {part: {name: str(e) for name, e in getattr(self, part).items()} for part in ("loads", "stores", "calls", "read", "written")}


@lru_cache(maxsize=64)
def closed_forms(kernel: Kernel) -> ClosedForms:
    """Accesses of every array and calls of every function as expressions; footprints where they are products of extents."""
    kernel = fullest(kernel)
    loads: dict[str, Formula] = {}
    stores: dict[str, Formula] = {}
    calls: dict[str, Formula] = {}
    for p in sites(kernel):
        n = iterations(p.loops, p.conditions)
        for r in p.loads:
            loads[r.array] = loads.get(r.array, ZERO) + n
        for r in p.stores:
            stores[r.array] = stores.get(r.array, ZERO) + n
        for name, times in p.calls.items():
            calls[name] = calls.get(name, ZERO) + n * number(times)
    read, written = _footprints(kernel)
    tidy = [dict(sorted((k, e) for k, e in part.items() if e != ZERO)) for part in (loads, stores, calls)]
    return ClosedForms(tidy[0], tidy[1], tidy[2], read, written)


def _footprints(kernel: Kernel) -> tuple[dict[str, Formula], dict[str, Formula]]:
    """Of arrays that are touched as a whole at every probe; one that is not is not counted at the next."""
    pieces, allocs = sites(kernel), lives(kernel)
    left = {(a.name, what): 0 for a in kernel.arrays for what in WHATS}
    for sizes in _probes(kernel):
        found = touched(kernel, pieces, Census(sizes), left)
        left = {(a, what): most for (a, what), most in left.items()
                if (times := getattr(found[a], what)) == found[a].elements * found[a].lives for most in (max(most, times),)}
    out: dict[str, dict[str, Formula]] = {what: {} for what in WHATS}
    for a in kernel.arrays:
        born = ONE
        if a.space in LOCAL:
            born = sum((iterations(x.loops, x.conditions) for x in allocs if x.array == a.name), ZERO)
        for what in WHATS:
            if left.get((a.name, what)):
                out[what][a.name] = product([born, *map(symbolic, a.shape)])
    return out["read"], out["written"]


def _probes(kernel: Kernel) -> list[dict[str, int]]:
    """Sizes above 0 at which a footprint must equal the extents of its array before it is written as their product: all 1, all
    small, all beyond every tile, and each size by itself on the other side of the others."""
    tile = max((x.value for p in sites(kernel) for s in p.loops for x in walk(s.hi) if isinstance(x, Num)), default=1)
    small = {s: 2 + k for k, s in enumerate(kernel.sizes)}
    beyond = {s: int(tile) + 1 + k * (k + 1) for k, s in enumerate(kernel.sizes)}
    alone = [probe for s in kernel.sizes for probe in ({**beyond, s: 1}, {**small, s: beyond[s]})]
    return [dict.fromkeys(kernel.sizes, 1), small, *alone, beyond]


def iterations(loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> Formula:
    """How often a site runs, as a formula in the sizes."""
    return _counted(tuple(Loop(s.var, s.lo, s.hi, ()) for s in loops), conditions)


@lru_cache(maxsize=4096)
def _counted(loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> Formula:
    """Of bare loops, so that all sites, forms and languages that share a nest share its formula."""
    axes = [replace(s, lo=simplify(s.lo), hi=simplify(s.hi)) for s in loops]
    return _iterations(axes, [a for c in conditions for a in _atoms(simplify(c))])


def _iterations(axes: list[Loop], rest: list[Scalar]) -> Formula:
    for c in rest:
        match c:
            case Op("<=", (x, a)) if any(_splits(o, i, [op("<", a, x)]) for i in axes for o in axes[: axes.index(i)]):
                others = [d for d in rest if d is not c]  # past the end of a split axis: all of it without what is inside
                return _iterations(axes, others) - _iterations(axes, [*others, op("<", a, x)])
    axes, rest = _whole_axes(axes, rest)
    axes = [replace(s, hi=_reachable(s.hi, axes[:k])) for k, s in enumerate(axes)]
    out = ONE
    for k in reversed(range(len(axes))):
        mine = [c for c in rest if axes[k].var in variables(c)]
        rest = [c for c in rest if c not in mine]
        out = _sum(out, axes[k], mine, axes[:k])
    return product([out, *map(given, rest)])


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


def _sum(body: Formula, axis: Loop, conditions: list[Scalar], outside: list[Loop]) -> Formula:
    """Σ over one axis, its conditions turned into bounds where they are affine in it with coefficient ±1."""
    lows, highs = [axis.lo], [axis.hi]
    for c in conditions:
        bound = _bound(c, axis.var)
        if bound is None:
            body *= given(c)
        elif bound[0]:
            highs.append(bound[1])
        else:
            lows.append(bound[1])
    highs = _tightest(highs, lambda x, y: _never_above(x, y, outside))
    lows = _tightest(lows, lambda x, y: _never_above(y, x, outside))
    sure = len(highs) == len(lows) == 1 and lows[0] == Num(0) and _not_negative(highs[0], outside)
    return total(body, axis.var, pick("Max", map(symbolic, lows)), pick("Min", map(symbolic, highs)), sure)


def _tightest(ends: list[Scalar], within: Callable[[Scalar, Scalar], bool]) -> list[Scalar]:
    """Without the ends that another one is always within; of two that are always equal, the first."""
    return [x for k, x in enumerate(ends)
            if not any(within(y, x) and (j < k or not within(x, y)) for j, y in enumerate(ends) if j != k)]


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


def evaluate(e: Formula, sizes: Mapping[str, int], memo: Memo | None = None) -> int:
    """The whole number that a closed form is at given sizes; written sums are added up. Forms of one kernel have atoms in common: with
    one `memo` for all of them at the same sizes, each is worked out once."""
    return int(e.value(sizes, {} if memo is None else memo))
