"""In: linear constraints over integer variables, with numbers for all sizes. Out: their conjunction and exact projections.

A constraint Σ c·v + c₀ >= 0 is kept as (terms, c₀), terms = ((v, c), …) sorted and divided by their gcd, c₀ rounded down.
Projection is exact: substitution through unit coefficients, quotients, and Fourier-Motzkin where one side has unit
coefficients (Pugh, The Omega test, CACM 35(8), 1992). Variables that no rule removes are handed back by kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from moapipe.errors import LiftError

Terms = tuple[tuple[str, int], ...]
Row = tuple[Terms, int]
Linear = dict[str, int]
"""{variable: coefficient}; the key "" holds the constant."""


@dataclass(frozen=True, slots=True)
class System:
    """A conjunction of constraints; `empty` when it was found contradictory."""

    rows: tuple[tuple[Terms, int], ...]
    empty: bool = False

    def variables(self) -> frozenset[str]:
        return frozenset(v for terms, _ in self.rows for v, _ in terms)


EMPTY = System((), True)


def system(constraints: Iterable[Linear]) -> System:
    """Normalised: gcd divided out, constants rounded down, of parallel constraints the tightest."""
    return _tightest(map(_normal, constraints))


def _tightest(normal: Iterable[Row]) -> System:
    rows: dict[Terms, int] = {}
    for terms, constant in normal:
        if not terms:
            if constant < 0:
                return EMPTY
        elif constant < rows.get(terms, constant + 1):
            rows[terms] = constant
    for terms, constant in rows.items():
        opposite = rows.get(tuple([(v, -c) for v, c in terms]))
        if opposite is not None and constant + opposite < 0:
            return EMPTY
    return System(tuple(sorted(rows.items())))


def _normal(c: Linear) -> Row:
    terms = sorted([t for t in c.items() if t[0] and t[1]])
    divisor = gcd(*[k for _, k in terms]) if terms else 1
    constant = c.get("", 0)
    return (tuple(terms), constant) if divisor == 1 else (tuple([(v, k // divisor) for v, k in terms]), constant // divisor)


def linears(s: System) -> list[Linear]:
    return [dict(terms) | {"": constant} for terms, constant in s.rows]


def conjunction(*systems: System) -> System:
    """Rows are normal already, so they need only be compared."""
    if any(s.empty for s in systems):
        return EMPTY
    parts = [s for s in systems if s.rows]
    return parts[0] if len(parts) == 1 else _tightest([row for s in parts for row in s.rows])


def combine(a: Linear, b: Linear, p: int = 1, q: int = 1) -> Linear:
    """p·a + q·b."""
    out = dict(a) if p == 1 else {v: p * c for v, c in a.items()}
    for v, c in b.items():
        out[v] = out.get(v, 0) + q * c
    return {v: c for v, c in out.items() if c}


# ------------------------------------------------------------------ projection


def replace_variable(s: System, var: str, by: Linear) -> System:
    if s.empty:
        return s
    rows: list[Row] = []
    for row in s.rows:
        c = dict(row[0])
        k = c.pop(var, 0)
        rows.append(_normal(combine({**c, "": row[1]}, by, 1, k)) if k else row)
    return _tightest(rows)


def project(s: System, away: Iterable[str]) -> tuple[System, frozenset[str], frozenset[str]]:
    """Eliminate variables. Returns the system, those that stayed though the others determine them, and those that stayed free.

    Points over the kept and the determined variables are as many as points over the kept ones alone.
    """
    left = set(away) & s.variables()
    progress = True
    while progress and left and not s.empty:
        progress = False
        for x in sorted(left, key=lambda v: sum(v in dict(terms) for terms, _ in s.rows)):
            t = _eliminate(s, x)
            if t is not None:
                s, progress = t, True
                left.discard(x)
                break
        left &= s.variables()
    determined: set[str] = set()
    while more := {x for x in left - determined if _determined(s, x, left - determined - {x})}:
        determined |= more
    return s, frozenset(determined), frozenset(left - determined)


def _eliminate(s: System, x: str) -> System | None:
    """∃x, if one of the exact rules applies."""
    lower = [c for c in linears(s) if c.get(x, 0) > 0]
    upper = [c for c in linears(s) if c.get(x, 0) < 0]
    rest = [c for c in linears(s) if not c.get(x, 0)]
    if not lower or not upper:
        raise LiftError(f"{x} is unbounded")
    if all(c[x] == 1 for c in lower) or all(c[x] == -1 for c in upper):
        return system([*rest, *(combine(a, b, -b[x], a[x]) for a in lower for b in upper)])
    for a in upper:
        for b in lower:
            f, gap = b[x], combine(a, b)
            if a[x] == -f and gap.get(x, 0) == 0 and set(gap) <= {""} and gap.get("", 0) == f - 1:
                return _quotient(s, x, f, {v: c for v, c in a.items() if v != x})
    return None


def _quotient(s: System, x: str, f: int, e: Linear) -> System | None:
    """x = ⌊e/f⌋ by the pair f·x <= e <= f·x + f - 1; x >= r is then e >= f·r, and x <= r is e <= f·r + f - 1."""
    out: list[Linear] = []
    for c in linears(s):
        k = c.get(x, 0)
        rest = {v: q for v, q in c.items() if v != x}
        if k == 0:
            out.append(c)
        elif k == 1:
            out.append(combine(e, rest, 1, f))
        elif k == -1:
            out.append(combine(combine(rest, e, f, -1), {"": f - 1}))
        elif not ((k == -f and rest == e) or (k == f and combine(rest, e) == {"": f - 1})):
            return None
    return system(out)


def _determined(s: System, x: str, unknown: set[str]) -> bool:
    """At most one x for each value of the other variables, none of which is itself unknown."""
    for terms, constant in s.rows:
        c = dict(terms)
        if c.get(x, 0) <= 0 or unknown & set(c):
            continue
        opposite = tuple((v, -k) for v, k in terms)
        if any(t == opposite and constant + k < c[x] for t, k in s.rows):
            return True
    return False
