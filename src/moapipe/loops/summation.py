"""In: a formula and a range of a variable. Out: the formula of its sum: powers, quotients and tiles closed, anything else written."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import comb

from moapipe.loops.formula import ONE, ZERO, Atom, Extreme, Formula, Monomial, Quotient, Series, Size, atom, extreme, number, product


def total(body: Formula, var: str, lo: Formula, hi: Formula, sure: bool = False) -> Formula:
    """Σ body for lo <= var < hi, term by term: powers, quotients and tiles closed, anything else written. `sure`: lo <= hi is known."""
    sure = sure or (hi - lo).never_negative
    out = ZERO
    written: dict[Monomial, Formula] = {}
    for m, c in body.terms.items():
        rest = tuple(a for a in m if var in a.free)
        outside = Formula({tuple(a for a in m if var not in a.free): c})
        written[rest] = written.get(rest, ZERO) + outside
    for rest, outside in _clipped(written).items():
        out += outside * _summed(rest, var, lo, hi, sure)
    return out


def _clipped(written: Mapping[Monomial, Formula]) -> dict[Monomial, Formula]:
    """The same sum with min(c, max(0, x)) for min(c, x) - min(0, x), and with c less that for max(0, c - max(0, x))."""
    out = dict(written)
    for m, outside in written.items():
        match m:
            case (Extreme("Min", (Formula(constant=int() as c), x)),) if c > 0:
                below: Monomial = (Extreme("Min", (ZERO, x)),)
                if below in out and out[below] + outside == ZERO:
                    del out[m], out[below]
                    _gather(out, _clip(c, x), outside)
            case (Extreme("Max", (Formula(constant=0), y)),) if (top := y.terms.get((), 0)) > 0:
                match list((number(top) - y).terms.items()):
                    case [((Extreme("Max", (Formula(constant=0), x)),), 1)]:
                        del out[m]
                        _gather(out, (), outside * number(top))
                        _gather(out, _clip(top, x), outside * number(-1))
    return out


def _clip(c: int | Fraction, x: Formula) -> Monomial:
    return (Extreme("Min", (number(c), atom(Extreme("Max", (ZERO, x))))),)


def _gather(out: dict[Monomial, Formula], m: Monomial, outside: Formula) -> None:
    out[m] = out.get(m, ZERO) + outside


def _summed(m: Monomial, var: str, lo: Formula, hi: Formula, sure: bool) -> Formula:
    if not m:
        return hi - lo if sure else extreme("Max", (ZERO, hi - lo))
    end = hi if sure else extreme("Max", (lo, hi))
    if all(isinstance(a, Size) for a in m):
        return _powers(end, len(m)) - _powers(lo, len(m))
    if len(m) == 1:
        if lo == ZERO and (closed := _quotients(m[0], var, end)) is not None:
            return closed
        if (tiled := _tiles(m[0], var)) is not None:
            return _covered(*tiled, end) - _covered(*tiled, lo)
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


def _tiles(a: Atom, var: str) -> tuple[Formula, int] | None:
    """f and c of min(c, max(0, f - c·var)): how much of f the tile of c at var covers."""
    match a:
        case Extreme("Min", (Formula(constant=int() as c), rest)) if c > 0:
            match list(rest.terms.items()):
                case [((Extreme("Max", (Formula(constant=0), left)),), 1)]:
                    f = left + number(c) * atom(Size(var))
                    return (f, c) if var not in f.free else None
    return None


def _covered(f: Formula, c: int, tiles: Formula) -> Formula:
    """What the tiles of c before number `tiles` cover of f: min(f, c·tiles), whose differences telescope."""
    whole = number(c) * tiles
    down, up = (atom(Quotient(kind, f, number(c))) for kind in ("floor", "ceiling"))
    return whole if tiles == down else f if tiles == up else extreme("Min", (f, whole))
