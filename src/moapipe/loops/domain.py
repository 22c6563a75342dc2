"""In: bounds, guards, conditions and indices of a loop nest, and numbers for its sizes. Out: systems of linear constraints.

A condition becomes a disjunction of *disjoint* systems, so that counts add up. min, max, // and % by constants are exact:
they become further constraints where they bound from the right side, and cases or quotient variables elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from moapipe.algebra.index import Affine, affine, simplify
from moapipe.algebra.index import combine as merge
from moapipe.algebra.scalar import Num, Op, Scalar, Var, op, scalar, substitute, text
from moapipe.errors import LiftError
from moapipe.loops.lattice import Linear, System, combine, conjunction, system
from moapipe.loops.onf import Loop

Cases = tuple[System, ...]


class Domain:
    """Turns expressions at given sizes into linear constraints; remembers what it has seen."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._at = {name: Num(int(v)) for name, v in sizes.items()}
        self._conditions: dict[tuple[Scalar, bool], Cases] = {}
        self._values: dict[Scalar, tuple[tuple[Linear, System], ...]] = {}
        self._quotients: dict[tuple[tuple[tuple[str, int], ...], int], str] = {}

    def points(self, loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> Cases:
        """All iterations of `loops` in which every condition holds."""
        parts = [self.where(c) for s in loops for c in (op("<=", s.lo, s.var), op("<", s.var, s.hi))] + [self.where(c) for c in conditions]
        single = _nonempty((conjunction(*[p[0] for p in parts if len(p) == 1]),))
        if not all(parts):
            return ()
        for p in parts:
            single = both(single, p) if len(p) > 1 else single
        return single

    def where(self, e: Scalar, holds: bool = True) -> Cases:
        """The points where a condition over indices holds (or does not), as disjoint systems."""
        key = (e, holds)
        if key not in self._conditions:
            self._conditions[key] = self._where(e, holds)
        return self._conditions[key]

    def _where(self, e: Scalar, holds: bool) -> Cases:
        match e:
            case Op("not", (a,)):
                return self.where(a, not holds)
            case Op("and" | "or" as name, (a, b)):
                if (name == "and") == holds:
                    return both(self.where(a, holds), self.where(b, holds))
                return self.where(a, holds) + both(self.where(a, not holds), self.where(b, holds))
            case Op("<", (a, b)):
                return self._not_negative(op("-", op("-", b, a), 1) if holds else op("-", a, b))
            case Op("<=", (a, b)):
                return self._not_negative(op("-", b, a) if holds else op("-", op("-", a, b), 1))
            case Op("==", (a, b)):
                if holds:
                    return both(self.where(op("<=", a, b)), self.where(op("<=", b, a)))
                return self.where(op("<", a, b)) + self.where(op("<", b, a))
            case _:
                raise LiftError(f"{text(e)} is no condition over indices", hint="conditions compare loop variables and sizes")

    def _form(self, e: Scalar) -> Affine:
        return affine(simplify(substitute(e, self._at)))

    def _not_negative(self, e: Scalar) -> Cases:
        return self._at_least_zero(self._form(e))

    def _at_least_zero(self, form: Affine) -> Cases:
        """Σ c·atom + c₀ >= 0, opening one opaque atom after the other."""
        for atom, c in form.items():
            if atom == 1 or isinstance(atom, Var):
                continue
            rest = {k: v for k, v in form.items() if k != atom}
            match atom:
                case Op("min" | "max" as name, (a, b)):
                    x, y = (self._at_least_zero(merge(rest, _times(self._form(z), c))) for z in (a, b))
                    if (name == "min") == (c > 0):
                        return both(x, y)
                    first = self.where(op("<=", a, b) if name == "min" else op("<=", b, a))
                    second = self.where(op("<", b, a) if name == "min" else op("<", a, b))
                    return both(first, x) + both(second, y)
                case Op("//", (a, Num(int() as f))) if abs(c) == 1 and f > 0:
                    e = self._form(a)
                    if c == 1:
                        return self._at_least_zero(merge(e, _times(rest, f)))
                    return self._at_least_zero(merge(merge(_times(rest, f), {1: f - 1}), e, -1))
                case _:
                    return tuple(x for value, given in self._open(form) for x in both((given,), (system((value,)),)))
        return _nonempty((system((_linear(form),)),))

    def value(self, e: Scalar) -> tuple[tuple[Linear, System], ...]:
        """An index as linear forms, each with the (disjoint) system in which it holds; quotients are variables that others determine."""
        if e not in self._values:
            self._values[e] = self._open(self._form(e))
        return self._values[e]

    def _open(self, form: Affine) -> tuple[tuple[Linear, System], ...]:
        out: list[tuple[Linear, System]] = [({}, System(()))]
        for atom, c in form.items():
            options = self._atom(scalar(atom))
            out = [(combine(x, y, 1, c), z) for x, given in out for y, more in options if not (z := conjunction(given, more)).empty]
        return tuple(out)

    def _atom(self, e: Scalar) -> tuple[tuple[Linear, System], ...]:
        match e:
            case Num(int() as v):
                return (({"": v}, System(())),)
            case Var(name):
                return (({name: 1}, System(())),)
            case Op("min" | "max" as name, (a, b)):
                first = self.where(op("<=", a, b) if name == "min" else op("<=", b, a))
                second = self.where(op("<", b, a) if name == "min" else op("<", a, b))
                return tuple((x, z) for part, cases in ((a, first), (b, second)) for x, given in self.value(part)
                             for s in cases if not (z := conjunction(given, s)).empty)
            case Op("//", (a, Num(int() as f))) if f > 0:
                return tuple(self._quotient(x, f, given) for x, given in self.value(a))
            case Op("%", (a, Num(int() as f))) if f > 0:
                parts = ((x, self._quotient(x, f, given)) for x, given in self.value(a))
                return tuple((combine(x, q, 1, -f), s) for x, (q, s) in parts)
            case _:
                raise LiftError(f"{text(e)} is not linear in the loop variables", hint="divide by numbers or sizes, and multiply by them")

    def _quotient(self, x: Linear, f: int, given: System) -> tuple[Linear, System]:
        """⌊x/f⌋ as a variable q with f·q <= x < f·(q + 1); equal quotients share their variable."""
        key = (tuple(sorted(x.items())), f)
        q = self._quotients.setdefault(key, f"/{len(self._quotients)}")
        low, high = combine(x, {q: -f}), combine({q: f, "": f - 1}, x, 1, -1)
        return {q: 1}, conjunction(given, system((low, high)))


def both(a: Cases, b: Cases) -> Cases:
    """All conjunctions, contradictions left out."""
    return _nonempty(tuple(conjunction(x, y) for x in a for y in b))


def _nonempty(cases: Cases) -> Cases:
    return tuple(s for s in cases if not s.empty)


def _times(form: Affine, c: int) -> Affine:
    return {k: v * c for k, v in form.items() if c}


def _linear(form: Affine) -> Linear:
    return {"" if k == 1 else k.name: v for k, v in form.items() if k == 1 or isinstance(k, Var)}
