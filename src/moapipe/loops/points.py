"""In: a system of linear constraints with numeric bounds. Out: how many integer points satisfy it, exactly.

Counting takes no time that grows with the product of the extents: independent groups of variables multiply; within a group
one variable after another is summed out, by interval lengths and differences of prefix sums, in numpy tables over its
neighbours (variable elimination). What would need a large table is enumerated row by row, within the bounds that the
constraints leave. Variables under an ∃ are eliminated first, with "any" for "sum".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LiftError
from moapipe.loops.lattice import EMPTY, Linear, System, Terms, combine, linears, system

Bounds = dict[str, tuple[int, int]]
Values = NDArray[np.int64]
Table = tuple[tuple[str, ...], Values]
TABLE = 1 << 18
"""Entries of a table above which rows are enumerated instead."""
LARGEST = 1 << 24
"""Entries of the largest table that is ever made."""
ROWS = 1 << 26
"""Rows that are ever gone through at once: gigabytes."""


def count(s: System, exists: Iterable[str] = (), order: tuple[str, ...] = ()) -> int:
    """Points of the system over its variables; those in `exists` only have to exist. `order` lists variables outermost first.

    Raises LiftError when a variable is unbounded, or when the points of one group of variables would not fit 62 bits.
    """
    s, bounds = tighten(_merge(s, frozenset(exists)))
    out = 0 if s.empty else 1
    for group in _groups(_needed(s)):
        out *= _count_group(group, {v: bounds[v] for v in group.variables()}, frozenset(exists), order) if out else 0
    return out


def profile(s: System, keep: tuple[str, ...]) -> Values:
    """Points for every value of the variables `keep` (>= 0): an array with one axis for each, in that order.

    Raises LiftError where that would need a table of more than LARGEST entries.
    """
    s, bounds = tighten(s)
    if s.empty:
        return np.zeros([0] * len(keep), np.int64)
    out, scale = np.ones([1] * len(keep), np.int64), 1
    for group in _groups(s):
        away = sorted(group.variables() - set(keep))
        left, tables, factor = _sum_out(group, bounds, away, frozenset(), limit=LARGEST)
        scale *= factor
        if left.variables() - set(keep):
            raise LiftError(f"a profile over {', '.join(keep)} needs a table of more than {LARGEST} entries")
        for t in tables:
            out = out * _spread(t, keep)
        for c in linears(left):
            out = out * (_affine(c, bounds, keep) >= 0)
    full = np.zeros([bounds[v][1] + 1 for v in keep], np.int64)
    full[tuple(slice(bounds[v][0], bounds[v][1] + 1) for v in keep)] = out * scale
    return full


def _needed(s: System) -> System:
    """Drop what two other constraints imply together: fewer neighbours, smaller tables."""
    rows = list(s.rows)
    for row in s.rows:
        others = [r for r in rows if r is not row and len(r[0]) > 1]
        if len(row[0]) > 1 and any(_implies(a, b, row) for k, a in enumerate(others) for b in others[:k]):
            rows.remove(row)
    return System(tuple(rows), s.empty)


def _implies(a: tuple[Terms, int], b: tuple[Terms, int], row: tuple[Terms, int]) -> bool:
    """Is the row what remains of two others when a variable that they bound from opposite sides is eliminated?"""
    x, y, wanted = dict(a[0]), dict(b[0]), {v for v, _ in row[0]}
    for v in (x.keys() & y.keys()) - wanted:
        if x[v] * y[v] < 0 and wanted <= x.keys() | y.keys():
            made = system((combine({**x, "": a[1]}, {**y, "": b[1]}, abs(y[v]), abs(x[v])),)).rows
            if made and made[0][0] == row[0] and made[0][1] <= row[1]:
                return True
    return False


def _merge(s: System, exists: frozenset[str]) -> System:
    """Replace a pair (o, i), 0 <= i < f, that occurs only as f·o + i, by one variable: split axes count as whole ones."""
    unary = {(terms[0][0], terms[0][1]): constant for terms, constant in s.rows if len(terms) == 1}
    for i in sorted(s.variables() - exists):
        if unary.get((i, 1)) != 0 or (i, -1) not in unary:
            continue
        f = unary[i, -1] + 1
        mixed = [dict(terms) for terms, _ in s.rows if len(terms) > 1 and i in dict(terms)]
        for o in sorted(set().union(*mixed) - {i} - exists) if mixed else ():
            everywhere = [dict(terms) for terms, _ in s.rows if len(terms) > 1 and (i in dict(terms) or o in dict(terms))]
            if f > 1 and (o, 1) in unary and (o, -1) in unary and all(c.get(o, 0) == f * c.get(i, 0) for c in everywhere):
                return _merge(_merged(s, o, i, f), exists)
    return s


def _merged(s: System, o: str, i: str, f: int) -> System:
    out: list[Linear] = []
    for terms, constant in s.rows:
        c = dict(terms)
        if set(c) == {i}:
            continue
        if set(c) == {o}:
            out.append({o: c[o], "": f * constant + (f - 1 if c[o] < 0 else 0)})
        elif o in c:
            out.append({**{v: k for v, k in c.items() if v not in (o, i)}, o: c[i], "": constant})
        else:
            out.append({**c, "": constant})
    return system(out)


def tighten(s: System) -> tuple[System, Bounds]:
    """Numeric bounds for every variable, made explicit; constraints that they imply are dropped."""
    if s.empty:
        return EMPTY, {}
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for _ in range(2 * len(s.variables()) + 2):
        before = (dict(low), dict(high))
        for terms, constant in s.rows:
            _narrow(terms, constant, low, high)
        if any(v in low and v in high and low[v] > high[v] for v in s.variables()):
            return EMPTY, {}
        if before == (low, high):
            break
    if loose := sorted(v for v in s.variables() if v not in low or v not in high):
        raise LiftError(f"the range of {', '.join(loose)} is unbounded", hint="every loop needs a lower and an upper bound")
    kept = [dict(terms) | {"": constant} for terms, constant in s.rows
            if len(terms) > 1 and constant + sum(c * (low[v] if c > 0 else high[v]) for v, c in terms) < 0]
    unary = [{v: 1, "": -low[v]} for v in low] + [{v: -1, "": high[v]} for v in high]
    return system([*kept, *unary]), {v: (low[v], high[v]) for v in low}


def _narrow(terms: Terms, constant: int, low: dict[str, int], high: dict[str, int]) -> None:
    """One step of bound propagation through Σ c·v + constant >= 0."""
    ends = [(c * high[v] if v in high else None) if c > 0 else (c * low[v] if v in low else None) for v, c in terms]
    missing = sum(e is None for e in ends)
    if missing > 1:
        return
    total = constant + sum(e for e in ends if e is not None)
    for (v, c), e in zip(terms, ends, strict=True):
        if missing and e is not None:
            continue
        others = total - (e or 0)
        if c > 0:
            low[v] = max(low.get(v, -(others // c)), -(others // c))
        else:
            high[v] = min(high.get(v, others // -c), others // -c)


def _groups(s: System) -> list[System]:
    """Connected components of variables."""
    home: dict[str, int] = {}
    members: dict[int, list[tuple[Terms, int]]] = {}
    for k, (terms, constant) in enumerate(s.rows):
        old = {home[v] for v, _ in terms if v in home}
        members[k] = [row for o in old for row in members.pop(o)] + [(terms, constant)]
        home.update({v: k for t, _ in members[k] for v, _ in t})
    return [System(tuple(rows)) for rows in members.values()]


def _count_group(s: System, bounds: Bounds, exists: frozenset[str], order: tuple[str, ...]) -> int:
    if len(bounds) == 1:
        ((v, (lo, hi)),) = bounds.items()
        return 1 if v in exists else hi - lo + 1
    present = exists & s.variables()
    s, tables, scale = _sum_out(s, bounds, sorted(present), present, limit=LARGEST)
    rest = sorted(bounds.keys() - present, key=lambda v: (order.index(v) if v in order else len(order), v))
    s, tables, more = _sum_out(s, bounds, rest, frozenset(), tables=tables)
    left = [v for v in rest if v in s.variables() or any(v in names for names, _ in tables)]
    return scale * more * (_enumerate(s, bounds, left, tables) if left else 1)


def _sum_out(
    s: System, bounds: Bounds, variables: list[str], exists: frozenset[str], *, limit: int = TABLE, tables: list[Table] | None = None,
) -> tuple[System, list[Table], int]:
    """Sum out those of `variables` whose tables stay within `limit`: the system that is left, tables over its variables, a factor."""
    rows = [(dict(terms), constant) for terms, constant in s.rows if len(terms) > 1]
    tables, scale, todo = list(tables or []), 1, set(variables)
    while todo:
        cost = {v: _cost(v, rows, tables, bounds) for v in todo}
        v = min(sorted(todo), key=lambda x: cost[x])
        if cost[v] > limit:
            if v in exists:
                raise LiftError(f"cannot decide how many elements {v} reaches: a table of {cost[v]} entries")
            break
        todo.discard(v)
        mine = [r for r in rows if v in r[0]]
        names, values = _sum_one(v, mine, [t for t in tables if v in t[0]], bounds)
        if v in exists:
            values = (values > 0).astype(np.int64)
        rows = [r for r in rows if v not in r[0]]
        tables = [t for t in tables if v not in t[0]]
        if names:
            tables.append((names, values))
        else:
            scale *= int(values)
    return System(tuple((tuple(c.items()), constant) for c, constant in rows)), tables, scale


def _cost(v: str, rows: list[tuple[dict[str, int], int]], tables: list[Table], bounds: Bounds) -> int:
    near = {u for c, _ in rows if v in c for u in c} | {u for names, _ in tables if v in names for u in names}
    weighted = any(v in names and len(names) > 1 for names, _ in tables)
    return prod(bounds[u][1] - bounds[u][0] + 1 for u in (near if weighted else near - {v}))


def _sum_one(v: str, rows: list[tuple[dict[str, int], int]], tables: list[Table], bounds: Bounds) -> Table:
    """Σ_v over its interval, weighted by its tables: interval lengths, or differences of prefix sums."""
    names = tuple(sorted(({u for c, _ in rows for u in c} | {u for t, _ in tables for u in t}) - {v}))
    lo, hi = bounds[v]
    low, high = np.asarray(np.int64(lo)), np.asarray(np.int64(hi))
    for c, constant in rows:
        k = c[v]
        rest = _affine({**{u: q for u, q in c.items() if u != v}, "": constant}, bounds, names)
        if k > 0:
            low = np.maximum(low, -(rest // k))
        else:
            high = np.minimum(high, rest // -k)
    if not tables:
        return names, _fit(np.maximum(high - low + 1, 0), names, bounds)
    weight = np.ones((), np.int64)
    for t in tables:
        weight = _product(weight, _spread(t, (*names, v)))
    _fits(float(weight.max(initial=0)) * (hi - lo + 1))
    prefix = np.concatenate([np.zeros((*weight.shape[:-1], 1), np.int64), np.cumsum(weight, axis=-1)], axis=-1)
    first = np.clip(low - lo, 0, hi - lo + 1)
    last = np.clip(high - lo + 1, first, hi - lo + 1)
    return names, _fit(_gather(prefix, last, names) - _gather(prefix, first, names), names, bounds)


def _product(a: Values, b: Values) -> Values:
    _fits(float(a.max(initial=0)) * float(b.max(initial=0)))
    return a * b


def _fits(bound: float) -> None:
    if bound >= 2.0**62:
        raise LiftError(f"a count of up to {bound:.1e} points does not fit 62 bits")


def _gather(prefix: Values, at: Values, names: tuple[str, ...]) -> Values:
    if prefix.ndim == 1 or all(n == 1 for n in prefix.shape[:-1]):
        return prefix.reshape(-1)[at]
    shape = np.broadcast_shapes(prefix.shape[:-1], at.shape if at.shape else (1,) * len(names))
    wide = np.broadcast_to(prefix, (*shape, prefix.shape[-1]))
    return np.take_along_axis(wide, np.broadcast_to(at, shape)[..., None], axis=-1)[..., 0]


def _fit(values: Values, names: tuple[str, ...], bounds: Bounds) -> Values:
    return np.broadcast_to(values, tuple(bounds[u][1] - bounds[u][0] + 1 for u in names)) if names else values


def _affine(c: Mapping[str, int], bounds: Bounds, names: tuple[str, ...]) -> Values:
    """Values of an affine form over a grid of the variables `names`."""
    out = np.full([1] * len(names), c.get("", 0), np.int64)
    for axis, u in enumerate(names):
        if c.get(u, 0):
            lo, hi = bounds[u]
            out = out + (c[u] * np.arange(lo, hi + 1, dtype=np.int64)).reshape([-1 if a == axis else 1 for a in range(len(names))])
    return out


def _spread(t: Table, names: tuple[str, ...]) -> Values:
    """A table with its axes in the order of `names`, of extent 1 where it does not depend on one."""
    order = sorted(range(len(t[0])), key=lambda a: names.index(t[0][a]))
    values = t[1].transpose(order) if t[0] else t[1]
    extents = iter(values.shape)
    return values.reshape([next(extents) if u in t[0] else 1 for u in names])


def _enumerate(s: System, bounds: Bounds, variables: list[str], tables: list[Table]) -> int:
    """Row by row: each variable in turn takes the values that the constraints leave, given those before it."""
    columns: dict[str, Values] = {}
    weight = np.ones(1, np.int64)
    for k, v in enumerate(variables):
        low, high = _range(s, v, columns, bounds, len(weight))
        lengths = np.maximum(high - low + 1, 0)
        mine = [t for t in tables if v in t[0] and all(u in columns or u == v for u in t[0])]
        if k == len(variables) - 1 and not mine:
            _fits(float((weight.astype(float) * lengths).sum()))
            return int((weight * lengths).sum())
        if lengths.sum() > ROWS:
            raise LiftError(f"counting over {', '.join(variables)} goes through {lengths.sum():.1e} rows", hint="count at smaller sizes; closed forms hold for all")
        at = np.repeat(np.arange(len(lengths)), lengths)
        start = np.cumsum(lengths) - lengths
        columns = {u: x[at] for u, x in columns.items()} | {v: np.arange(len(at), dtype=np.int64) - start[at] + low[at]}
        weight = weight[at]
        for names, values in mine:
            weight = _product(weight, values[tuple(columns[u] - bounds[u][0] for u in names)])
    _fits(float(weight.astype(float).sum()))
    return int(weight.sum())


def _range(s: System, v: str, columns: Mapping[str, Values], bounds: Bounds, size: int) -> tuple[Values, Values]:
    """Bounds of v in every row; a variable that comes later counts with its most favourable value."""
    low, high = np.full(size, bounds[v][0], np.int64), np.full(size, bounds[v][1], np.int64)
    for terms, constant in s.rows:
        c = dict(terms)
        if v not in c:
            continue
        rest = np.full(size, constant, np.int64)
        for u, k in c.items():
            if u in columns:
                rest = rest + k * columns[u]
            elif u != v:
                rest = rest + max(k * bounds[u][0], k * bounds[u][1])
        if c[v] > 0:
            low = np.maximum(low, -(rest // c[v]))
        else:
            high = np.minimum(high, rest // -c[v])
    return low, high
