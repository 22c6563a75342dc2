"""In: a scalar expression. Out: it as a sum of terms, Σ over variables of [conditions] c · Π factors, and back as an expression.

Two expressions that differ by associativity, commutativity, distributivity, the order of sums and the names of their variables
have the same terms. `[c]` is 1 where the condition holds and 0, whatever the factors, where it does not: select(c, x, 0).
Powers of one factor are added: x·(1/x) = 1, equal wherever both are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, groupby, permutations, product
from typing import Any

from moapipe.algebra.cotangent import Range
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, op, references, substitute, text, variables

MOST = 256
"""An expression with more terms is left as it is."""
_NUMBERS = count()


class Overflow(Exception):
    """More than MOST terms."""


@dataclass(frozen=True, slots=True)
class Term:
    """Σ_{sums} [guards] coefficient · Π factors; a factor is (expression, power). Summed variables have names that nothing else has."""

    coefficient: int | float = 1
    guards: tuple[Scalar, ...] = ()
    sums: tuple[Range, ...] = ()
    factors: tuple[tuple[Scalar, int], ...] = ()
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def arrays(self) -> frozenset[str]:
        """What its factors read."""
        if "arrays" not in self.memo:
            self.memo["arrays"] = frozenset(r.array for x, _ in self.factors for r in references(x))
        return frozenset(self.memo["arrays"])

    def times(self, other: Term) -> Term:
        powers = dict(self.factors)
        for x, p in other.factors:
            powers[x] = powers.get(x, 0) + p
        factors = tuple((x, p) for x, p in powers.items() if p)
        guards = tuple(dict.fromkeys((*self.guards, *other.guards)))
        return Term(self.coefficient * other.coefficient, guards, (*self.sums, *other.sums), factors)


Terms = tuple[Term, ...]
ONE = Term()


def private(name: str) -> str:
    """A name for a summed variable that no other has: k#7."""
    return f"{name.partition('#')[0]}#{next(_NUMBERS)}"


def expand(e: Scalar) -> Terms:
    """The terms of an expression, like ones collected. Raises Overflow."""
    return collect(_expand(e))


def _expand(e: Scalar) -> Terms:
    match e:
        case Num(v):
            return (Term(v),) if v else ()
        case Op("+", (a, b)):
            return _few((*_expand(a), *_expand(b)))
        case Op("-", (a, b)):
            return _few((*_expand(a), *_scaled(_expand(b), -1)))
        case Op("neg", (a,)):
            return _scaled(_expand(a), -1)
        case Op("*", (a, b)):
            return _few(tuple(x.times(y) for x in _expand(a) for y in _apart(_expand(b))))
        case Op("/", (a, b)):
            return _few(tuple(x.times(y) for x in _expand(a) for y in _inverse(b)))
        case Op("reciprocal", (a,)):
            return _inverse(a)
        case Op("select", (c, a, b)):
            return _few((*_where(c, True, _expand(a)), *_where(c, False, _expand(b))))
        case Fold("sum", var, lo, hi, body):
            own = private(var)
            return tuple(replace(t, sums=((own, lo, hi), *t.sums)) for t in _expand(substitute(body, {var: Var(own)})))
        case _:
            return (Term(factors=((e, 1),)),)


def _few(terms: Terms) -> Terms:
    if len(terms) > MOST:
        raise Overflow
    return terms


def _scaled(terms: Terms, c: int | float) -> Terms:
    return tuple(replace(t, coefficient=c * t.coefficient) for t in terms)


def _apart(terms: Terms) -> Terms:
    """The same with fresh names for summed variables: x·x has the sums of x twice."""
    return tuple(renamed(t, {v: private(v) for v, _, _ in t.sums}) for t in terms)


def renamed(t: Term, names: Mapping[str, str]) -> Term:
    if not names:
        return t
    by: dict[str, Scalar] = {old: Var(new) for old, new in names.items()}
    sums = tuple((names.get(v, v), substitute(lo, by), substitute(hi, by)) for v, lo, hi in t.sums)
    return Term(t.coefficient, tuple(substitute(g, by) for g in t.guards), sums, tuple((substitute(x, by), p) for x, p in t.factors))


def replaced(t: Term, by: Mapping[str, Scalar]) -> Term:
    """Free variables replaced."""
    sums = tuple((v, substitute(lo, by), substitute(hi, by)) for v, lo, hi in t.sums)
    return Term(t.coefficient, tuple(substitute(g, by) for g in t.guards), sums, tuple((substitute(x, by), p) for x, p in t.factors))


def _inverse(e: Scalar) -> Terms:
    """1/e: of a product factor by factor, of a sum as one factor."""
    match e:
        case Op("*", (a, b)):
            return _few(tuple(x.times(y) for x in _inverse(a) for y in _apart(_inverse(b))))
        case Op("neg", (a,)):
            return _scaled(_inverse(a), -1)
        case _:
            pass
    terms = _expand(e)
    match terms:
        case (Term(c, (), (), factors),):
            return (Term(1 / c if c not in (1, -1) else c, (), (), tuple((x, -p) for x, p in factors)),)
        case _:
            return (Term(factors=((e, -1),)),)


def _where(c: Scalar, when: bool, terms: Terms) -> Terms:
    """The terms where the condition is `when`; alternatives become disjoint conditions one after the other."""
    match c:
        case Num(v):
            return terms if bool(v) == when else ()
        case Op("not", (a,)):
            return _where(a, not when, terms)
        case Op("and", (a, b)) if when:
            return _where(a, True, _where(b, True, terms))
        case Op("or", (a, b)) if not when:
            return _where(a, False, _where(b, False, terms))
        case _:
            guard = c if when else Op("not", (c,))
            return tuple(replace(t, guards=tuple(dict.fromkeys((*t.guards, guard)))) for t in terms if opposite(guard) not in t.guards)


def opposite(guard: Scalar) -> Scalar:
    return guard.args[0] if isinstance(guard, Op) and guard.name == "not" else Op("not", (guard,))


# ------------------------------------------------------------------ like terms


def key(t: Term) -> str:
    """Text that equals that of a term which differs by coefficient, order, and names of summed variables only."""
    if "key" not in t.memo:
        t.memo["key"] = min(_key(t, order) for order in _orders(t))
    return str(t.memo["key"])


def _orders(t: Term) -> Iterator[tuple[int, ...]]:
    """The orders of the sums that may give the smallest text: by what a variable stands in, ties in every order."""
    blank: dict[str, Scalar] = {v: Var("_") for v, _, _ in t.sums}
    marks = []
    for v, lo, hi in t.sums:
        by = {**blank, v: Var("__")}
        own = sorted(f"{text(substitute(x, by))}^{p}" for x, p in (*t.factors, *((g, 0) for g in t.guards)) if v in variables(x))
        marks.append((text(substitute(lo, blank)), text(substitute(hi, blank)), own))
    ranked = sorted(range(len(marks)), key=lambda k: marks[k])
    groups = [tuple(g) for _, g in groupby(ranked, key=lambda k: marks[k])]
    for parts in product(*(permutations(g) if len(g) < 5 else (g,) for g in groups)):
        yield tuple(chain.from_iterable(parts))


def _key(t: Term, order: Sequence[int]) -> str:
    by: dict[str, Scalar] = {t.sums[k][0]: Var(f"_{i}") for i, k in enumerate(order)}
    sums = [f"{text(substitute(t.sums[k][1], by))}<={i}<{text(substitute(t.sums[k][2], by))}" for i, k in enumerate(order)]
    guards = sorted(text(substitute(g, by)) for g in t.guards)
    factors = sorted(f"{text(substitute(x, by))}^{p}" for x, p in t.factors)
    return "|".join((*sums, "?", *guards, "*", *factors))


def collect(terms: Iterable[Term]) -> Terms:
    """Like terms added, [c]·[not c]·x left out; a pair [c]·x + [not c]·x becomes x, and x − [c]·x becomes [not c]·x."""
    found: dict[str, Term] = {}
    for t in terms:
        if any(opposite(g) in t.guards for g in t.guards):
            continue
        k = key(t)
        found[k] = replace(t, coefficient=found[k].coefficient + t.coefficient) if k in found else t
    out = [t for t in found.values() if t.coefficient]
    for i, a in enumerate(out):
        for j, b in enumerate(out):
            if i != j and (both := _joined(a, b)) is not None:
                return collect([*(x for k, x in enumerate(out) if k not in (i, j)), both])
    return tuple(out)


def _joined(a: Term, b: Term) -> Term | None:
    """One term for two that differ by a condition."""
    for g in a.guards:
        rest = replace(a, guards=tuple(x for x in a.guards if x != g))
        if a.coefficient == b.coefficient and key(replace(rest, guards=(*rest.guards, opposite(g)))) == key(b):
            return rest
        if a.coefficient == -b.coefficient and key(rest) == key(b):
            return replace(b, guards=(*b.guards, _renamed_guard(opposite(g), a, b)))
    return None


def _renamed_guard(g: Scalar, a: Term, b: Term) -> Scalar:
    """A condition of `a` in the names of summed variables of `b`."""
    for order in permutations(b.sums):
        by: dict[str, Scalar] = {x[0]: Var(y[0]) for x, y in zip(a.sums, order, strict=True)}
        if {text(substitute(x, by)) for x, _ in a.factors} == {text(x) for x, _ in b.factors}:
            return substitute(g, by)
    return g


# ------------------------------------------------------------------ back to an expression


def render(terms: Iterable[Term], taken: Iterable[str]) -> Scalar:
    """The expression: what all terms share stands before the bracket, what a sum's variable does not touch before the sum."""
    return _outside(tuple(terms), frozenset(taken))


def _outside(terms: Terms, taken: frozenset[str]) -> Scalar:
    if not terms:
        return Num(0)
    if len(terms) == 1:
        return _one(terms[0], taken)
    guards = tuple(g for g in terms[0].guards if all(g in t.guards for t in terms))
    shared = {x: p for x, p in terms[0].factors if not _moves(x, terms)}
    for t in terms[1:]:
        powers = dict(t.factors)
        shared = {x: (min if p > 0 else max)(p, powers[x]) for x, p in shared.items() if x in powers and (p > 0) == (powers[x] > 0)}
    guards = tuple(g for g in guards if not _moves(g, terms))
    sign = -1 if all(t.coefficient < 0 for t in terms) else 1
    rest = tuple(_reduced(replace(t, coefficient=sign * t.coefficient), guards, shared) for t in terms)
    inner = _sum(rest, taken) if len(rest) > 1 else _one(rest[0], taken)
    return _guarded(guards, _signed(sign, _product(tuple(shared.items()), inner)))


def _moves(e: Scalar, terms: Terms) -> bool:
    return bool(variables(e) & {v for t in terms for v, _, _ in t.sums})


def _reduced(t: Term, guards: Sequence[Scalar], shared: Mapping[Scalar, int]) -> Term:
    powers = {x: p - shared.get(x, 0) for x, p in t.factors}
    return Term(t.coefficient, tuple(g for g in t.guards if g not in guards), t.sums, tuple((x, p) for x, p in powers.items() if p))


def _sum(terms: Terms, taken: frozenset[str]) -> Scalar:
    ordered = sorted(terms, key=lambda t: t.coefficient < 0)
    out = _one(ordered[0], taken)
    for t in ordered[1:]:
        out = Op("-", (out, _one(replace(t, coefficient=-t.coefficient), taken))) if t.coefficient < 0 else Op("+", (out, _one(t, taken)))
    return out


def _one(t: Term, taken: frozenset[str]) -> Scalar:
    """One term; factors that its sums do not touch stand before them."""
    if not t.sums:
        c = abs(t.coefficient)
        factors = (((Num(c), 1),) if c != 1 else ()) + t.factors
        return _guarded(t.guards, _signed(-1 if t.coefficient < 0 else 1, _product(factors, None)))
    own = {v for v, _, _ in t.sums}
    before = tuple((x, p) for x, p in t.factors if not variables(x) & own)
    inside = tuple((x, p) for x, p in t.factors if variables(x) & own)
    guards = tuple(g for g in t.guards if not variables(g) & own)
    within = Term(1, tuple(g for g in t.guards if variables(g) & own), (), inside)
    names: dict[str, str] = {}
    for v, _, _ in t.sums:
        names[v] = _name(v, taken | set(names.values()) | _bound(t))
    by: dict[str, Scalar] = {v: Var(n) for v, n in names.items()}
    body = substitute(_one(within, taken | set(names.values())), by)
    for v, lo, hi in reversed(t.sums):
        body = Fold("sum", names[v], substitute(lo, by), substitute(hi, by), body)
    return _guarded(guards, _one_before(t.coefficient, before, body))


def _one_before(c: int | float, before: tuple[tuple[Scalar, int], ...], body: Scalar) -> Scalar:
    scale = ((Num(abs(c)), 1),) if abs(c) != 1 else ()
    return _signed(-1 if c < 0 else 1, _product((*scale, *before), body))


def _name(v: str, taken: Iterable[str]) -> str:
    base, used = v.partition("#")[0], set(taken)
    return base if base not in used else next(f"{base}{i}" for i in range(2, 1000) if f"{base}{i}" not in used)


def _bound(t: Term) -> set[str]:
    """Names of the folds inside factors."""
    found: set[str] = set()

    def look(e: Scalar) -> None:
        if isinstance(e, Fold):
            found.add(e.var)
        for c in (e.args if isinstance(e, Op) else e.index if isinstance(e, Ref) else (e.lo, e.hi, e.body) if isinstance(e, Fold) else ()):
            look(c)

    for x, _ in t.factors:
        look(x)
    return found


def _product(factors: tuple[tuple[Scalar, int], ...], last: Scalar | None) -> Scalar:
    """Π of the positive powers, then `last`, over Π of the negative ones."""
    above = [x for x, p in factors for _ in range(p)] + ([last] if last is not None and last != Num(1) else [])
    below = [x for x, p in factors for _ in range(-p)]
    top = multiplied(above) if above else None
    if not below:
        return top if top is not None else Num(1)
    bottom = multiplied(below)
    return op("reciprocal", bottom) if top is None else op("/", top, bottom)


def multiplied(parts: Sequence[Scalar]) -> Scalar:
    """The product of one factor or more, from the left."""
    out = parts[0]
    for x in parts[1:]:
        out = Op("*", (out, x))
    return out


def _signed(sign: int, e: Scalar) -> Scalar:
    if sign > 0:
        return e
    return Num(-e.value) if isinstance(e, Num) else Op("neg", (e,))


def _guarded(guards: Sequence[Scalar], e: Scalar) -> Scalar:
    for g in reversed(guards):
        match g:
            case Op("not", (c,)):
                e = Op("select", (c, Num(0), e))
            case _:
                e = Op("select", (g, e, Num(0)))
    return e
