"""In: a scatter, Σ over some variables of a value sent to an element whose index is an expression in them. Out: the gather.

An operator reads by a map of indices (its ψ-law is a gather), so its adjoint sends back by the same map: dA[j] = Σ_i [index(i) = j] t(i).
The laws here solve index(i) = j for the variables: each solved variable leaves the sum, its bounds become conditions on j, and
what no law solves stays as a condition under the sum, which is right for any map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moapipe.algebra.condition import Bounds, compared, cut, decided, indexed, larger, negated, simplified, smaller, within
from moapipe.algebra.cotangent import Range
from moapipe.algebra.index import Affine, Atom, affine, combine, expression, multiply, simplify, subtract
from moapipe.algebra.scalar import Fold, Num, Op, Scalar, Var, op, scalar, substitute, variables
from moapipe.algebra.term import private

AFFINE, STRIDE, RADIX, TURN, BOUNDS = "affine inverse", "stride inverse", "radix inverse", "turn inverse", "bounds"
LAWS = {
    AFFINE: "Σ_{l ≤ i < h} [±i + b = j] t(i) = [l ≤ i < h] t(i) at i = ±(j − b)",
    STRIDE: "Σ_{l ≤ i < h} [c·i + b = j] t(i) = [(j − b) mod c = 0] [l ≤ i < h] t(i) at i = (j − b) // c, c > 1",
    RADIX: "[m // n = p] = Σ_{0 ≤ r < n} [m = p·n + r];  [m // n = p and m mod n = q] = [m = p·n + q], 0 ≤ q < n;  [i·n + k = m] = [i = m // n] [k = m mod n], 0 ≤ k < n",
    TURN: "Σ_{0 ≤ i < n} [(b ± i) mod n = j] t(i) = t(i) at i = ±(j − b) mod n, 0 ≤ j < n",
    BOUNDS: "Σ_{l ≤ i < h} [a ≤ i < b] t(i) = Σ_{max(l, a) ≤ i < min(h, b)} t(i);  a condition that holds at every index is left out; "
            "a sum over one value is that value",
}


@dataclass(frozen=True, slots=True)
class Scatter:
    """Σ over `ranges` of `value` where all `equal` pairs are equal and all `conditions` hold; `axes` bounds the free variables."""

    axes: tuple[Range, ...]
    ranges: tuple[Range, ...]
    equal: tuple[tuple[Scalar, Scalar], ...]
    conditions: tuple[Scalar, ...]
    value: Scalar

    def bounds(self) -> Bounds:
        return {v: (lo, hi) for v, lo, hi in (*self.axes, *self.ranges)}

    def scalar(self) -> Scalar:
        """The sum as one expression."""
        conditions = [*(simplified(Op("==", pair)) for pair in self.equal), *self.conditions]
        out = self.value
        if conditions:
            whole = conditions[0]
            for c in conditions[1:]:
                whole = Op("and", (whole, c))
            out = Op("select", (whole, out, Num(0)))
        for v, lo, hi in reversed(self.ranges):
            out = Fold("sum", v, lo, hi, out)
        return out


def gather(s: Scatter) -> tuple[Scatter, tuple[tuple[str, Scatter], ...]]:
    """The scatter with every variable solved that a law solves; and the laws in the order of their use, each with what it made."""
    states: list[tuple[str, Scatter]] = []
    while step := _radix(s) or _digits(s) or _turn(s) or _affine(s) or _stride(s) or _quotient(s):
        s, law = step
        if states and states[-1][0] == law:
            states.pop()
        states.append((law, s))
    new = _bounded(s)
    return new, (*states, *([(BOUNDS, new)] if new != s else []))


def _without(s: Scatter, k: int) -> tuple[tuple[Scalar, Scalar], ...]:
    return s.equal[:k] + s.equal[k + 1 :]


def _affine(s: Scatter) -> tuple[Scatter, str] | None:
    """Solve one equation for a variable that is summed over, or drop one that always holds."""
    names = [v for v, _, _ in s.ranges]
    for k, (left, right) in enumerate(s.equal):
        form = combine(affine(simplify(left)), affine(simplify(right)), -1)
        if not form:
            return replace(s, equal=_without(s, k)), AFFINE
        for v in names:
            rest = {a: c for a, c in form.items() if a != Var(v)}
            if abs(form.get(Var(v), 0)) == 1 and not any(v in variables(scalar(a)) for a in rest):
                solution = expression({a: -c * form[Var(v)] for a, c in rest.items()})
                return _solved(replace(s, equal=_without(s, k)), {v: solution}), AFFINE
    return None


def _stride(s: Scatter) -> tuple[Scatter, str] | None:
    """Solve for a variable that an equation has more than once: c·i = j − b where c divides j − b."""
    names = {v for v, _, _ in s.ranges}
    for k, (left, right) in enumerate(s.equal):
        form = combine(affine(simplify(left)), affine(simplify(right)), -1)
        found = {v for v in names if any(v in variables(scalar(a)) for a in form)}
        v = found.pop() if len(found) == 1 else ""
        c = form.get(Var(v), 0)
        rest = {a: x * (-1 if c > 0 else 1) for a, x in form.items() if a != Var(v)}
        if abs(c) > 1 and not any(v in variables(scalar(a)) for a in rest):
            goal, size = expression(rest), Num(abs(c))
            whole = Op("==", (simplify(op("%", goal, size)), Num(0)))
            solved = _solved(replace(s, equal=_without(s, k)), {v: simplify(op("//", goal, size))})
            return replace(solved, conditions=(whole, *solved.conditions)), STRIDE
    return None


def _solved(s: Scatter, by: Mapping[str, Scalar]) -> Scatter:
    """The variables of `by` replaced; their bounds become conditions."""
    put = dict(by)

    def new(e: Scalar) -> Scalar:
        return simplify(substitute(e, put))

    limits = [c for v, lo, hi in s.ranges if v in by for c in (compared("<=", new(lo), new(Var(v))), compared("<", new(Var(v)), new(hi)))]
    ranges = tuple((v, new(lo), new(hi)) for v, lo, hi in s.ranges if v not in by)
    equal = tuple((new(a), new(b)) for a, b in s.equal)
    conditions = (*(simplified(substitute(c, put)) for c in s.conditions), *limits)
    return Scatter(s.axes, _ordered(ranges), equal, conditions, indexed(substitute(s.value, put)))


def _ordered(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Each variable after those that its bounds need, else in the given order."""
    todo, out = list(ranges), []
    while todo:
        names = {v for v, _, _ in todo}
        first = next((r for r in todo if not (variables(r[1]) | variables(r[2])) & names), todo[0])
        todo.remove(first)
        out.append(first)
    return tuple(out)


# ------------------------------------------------------------------ reshape and rotate


def _digits(s: Scatter) -> tuple[Scatter, str] | None:
    """m // n = p and m mod n = q become m = p·n + q."""
    for k, (left, p) in enumerate(s.equal):
        match left:
            case Op("//", (m, n)):
                for j, (other, q) in enumerate(s.equal):
                    low = _remainder(other, m, n)
                    if j != k and low:
                        rest = tuple(x for i, x in enumerate(s.equal) if i not in (j, k))
                        return replace(s, equal=(*rest, (m, simplify(op("+", op("*", p, n), q))))), RADIX
            case _:
                pass
    return None


def _quotient(s: Scatter) -> tuple[Scatter, str] | None:
    """m // n = p alone: m = p·n + r, summed over the remainder r."""
    names = {v for v, _, _ in s.ranges}
    for k, (left, p) in enumerate(s.equal):
        match left:
            case Op("//", (m, n)) if variables(m) & names:
                r = private("r")
                equal = (*_without(s, k), (m, simplify(op("+", op("*", p, n), r))))
                return replace(s, ranges=(*s.ranges, (r, Num(0), n)), equal=equal), RADIX
            case _:
                pass
    return None


def _remainder(e: Scalar, m: Scalar, n: Scalar) -> bool:
    """e is m mod n, as simplification may have written it."""
    return simplify(op("%", m, n)) == e or (isinstance(e, Op) and e.name == "%" and e.args == (m, n))


def _radix(s: Scatter) -> tuple[Scatter, str] | None:
    """i·n + k = m with k below n: k = m mod n, and i·n = n·(m // n)."""
    bounds = s.bounds()
    for at, (left, right) in enumerate(s.equal):
        form = combine(affine(simplify(left)), affine(simplify(right)), -1)
        mine = [v for v, _, _ in s.ranges if any(v in variables(scalar(a)) for a in form)]
        for k in mine:
            lo, n = bounds[k]
            if len(mine) < 2 or form.get(Var(k)) != 1 or lo != Num(0) or any(a != Var(k) and k in variables(scalar(a)) for a in form):
                continue
            high = {a: c for a, c in form.items() if any(v != k and v in variables(scalar(a)) for v in mine)}
            quotient = divided(high, n)
            if quotient is None:
                continue
            m = expression({a: -c for a, c in form.items() if a not in high and a != Var(k)})
            equal = (*_without(s, at), (expression(quotient), simplify(op("//", m, n))))
            return _solved(replace(s, equal=equal), {k: simplify(op("%", m, n))}), RADIX
    return None


def divided(form: Affine, n: Scalar) -> Affine | None:
    """form ÷ n when every term has the factor n."""
    out: Affine = {}
    for atom, c in form.items():
        term = _divided(multiply(scalar(atom), c), n)
        if term is None:
            return None
        out = combine(out, affine(term))
    return out


def _divided(term: Scalar, n: Scalar) -> Scalar | None:
    """A product without one factor n; n may be a product itself."""
    left, wanted = _factors(term), _factors(n)
    for f in wanted:
        if isinstance(f, Num):
            at = next((i for i, x in enumerate(left) if isinstance(x, Num) and x.value % f.value == 0), None)
            if at is None:
                return None
            left[at] = Num(left[at].value // f.value)  # type: ignore[union-attr]
        elif f in left:
            left.remove(f)
        else:
            return None
    out: Scalar = Num(1)
    for x in left:
        out = multiply(out, x)
    return out


def _factors(e: Scalar) -> list[Scalar]:
    return [*_factors(e.args[0]), *_factors(e.args[1])] if isinstance(e, Op) and e.name == "*" else [e]


def _turn(s: Scatter) -> tuple[Scatter, str] | None:
    """(b ± i) mod n = j with i running over 0..n−1."""
    bounds = s.bounds()
    for k, (left, right) in enumerate(s.equal):
        match left:
            case Op("%", (m, n)):
                form = affine(simplify(m))
                for v, _, _ in s.ranges:
                    c = form.get(Var(v), 0)
                    rest: dict[Atom, int] = {a: x for a, x in form.items() if a != Var(v)}
                    if abs(c) == 1 and bounds[v] == (Num(0), n) and not any(v in variables(scalar(a)) for a in rest):
                        turned = simplify(op("%", multiply(c, subtract(right, expression(rest))), n))
                        return _solved(replace(s, equal=_without(s, k)), {v: turned}), TURN
            case _:
                pass
    return None


# ------------------------------------------------------------------ bounds


def _bounded(s: Scatter) -> Scatter:
    """Conditions decided by the bounds of the axes leave; those that bound one summed variable become its range; a range of one
    value is that value."""
    s = replace(s, conditions=tuple(within(c, s.bounds()) for c in s.conditions), value=within(s.value, s.bounds()))
    kept: list[Scalar] = []
    ranges = {v: (lo, hi) for v, lo, hi in s.ranges}
    for c in s.conditions:
        if decided(c, s.bounds()):
            continue
        if decided(negated(c), s.bounds()):
            return replace(s, ranges=(), equal=(), conditions=(), value=Num(0))
        limit = next((x for v in reversed(ranges) if (x := cut(c, v))), None)
        if limit is None:
            kept.append(c)
            continue
        v, low, high = limit
        lo, hi = ranges[v]
        ranges[v] = (lo if low is None else larger(lo, low, s.bounds()), hi if high is None else smaller(hi, high, s.bounds()))
    new = replace(s, ranges=_ordered(tuple((v, *ranges[v]) for v in ranges)), conditions=tuple(kept))
    single = next((r for r in new.ranges if subtract(r[2], r[1]) == Num(1)), None)
    if single is None:
        return new
    v, lo, _ = single
    return _bounded(_solved(new, {v: lo}))
