"""In: a formula and a range of a variable. Out: the formula of its sum: powers and quotients closed, anything else written."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import comb

from moapipe.loops.formula import ONE, ZERO, Atom, Formula, Monomial, Quotient, Series, Size, atom, extreme, number, product


def total(body: Formula, var: str, lo: Formula, hi: Formula, sure: bool = False) -> Formula:
    """Σ body for lo <= var < hi, term by term: powers and quotients closed, anything else written. `sure`: lo <= hi is known."""
    sure = sure or (hi - lo).never_negative
    out = ZERO
    written: dict[Monomial, Formula] = {}
    for m, c in body.terms.items():
        rest = tuple(a for a in m if var in a.free)
        outside = Formula({tuple(a for a in m if var not in a.free): c})
        written[rest] = written.get(rest, ZERO) + outside
    for rest, outside in written.items():
        out += outside * _summed(rest, var, lo, hi, sure)
    return out


def _summed(m: Monomial, var: str, lo: Formula, hi: Formula, sure: bool) -> Formula:
    if not m:
        return hi - lo if sure else extreme("Max", (ZERO, hi - lo))
    end = hi if sure else extreme("Max", (lo, hi))
    if all(isinstance(a, Size) for a in m):
        return _powers(end, len(m)) - _powers(lo, len(m))
    if len(m) == 1 and lo == ZERO and (closed := _quotients(m[0], var, end)) is not None:
        return closed
    return atom(Series(Formula({m: 1}), var, lo, hi))


@lru_cache(maxsize=1024)
def _powers(n: Formula, k: int) -> Formula:
    """Σ_{i<n} i^k, by (k + 1)·S_k = n^{k+1} - Σ_{j<k} C(k + 1, j)·S_j."""
    rest = ZERO
    for j in range(k):
        rest += _powers(n, j) * number(comb(k + 1, j))
    return (product([n] * (k + 1)) - rest) * number(Fraction(1, k + 1))


def _quotients(a: Atom, var: str, n: Formula) -> Formula | None:
    """Σ_{i<n} ⌊(s·i + b)/c⌋ where s divides c: it is Σ ⌊(i + ⌊b/s⌋)/r⌋, r = c/s."""
    match a:
        case Quotient("floor" | "ceiling" as kind, of, Formula(constant=int() as c)):
            s, b = of.terms.get((Size(var),), 0), of.terms.get((), 0) + (c - 1 if kind == "ceiling" else 0)
            if set(of.terms) <= {(), (Size(var),)} and isinstance(s, int) and isinstance(b, int) and s > 0 and b >= 0 and c % s == 0:
                skip = number(b // s)
                return _steps(n + skip, c // s) - _steps(skip, c // s)
    return None


def _steps(m: Formula, r: int) -> Formula:
    """Σ_{k<m} ⌊k/r⌋ = r·q(q - 1)/2 + q·(m - r·q), q = ⌊m/r⌋."""
    q = number(m.constant // r) if m.constant is not None else atom(Quotient("floor", m, number(r)))
    return q * (q - ONE) * number(Fraction(r, 2)) + q * (m - q * number(r))
