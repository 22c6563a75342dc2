"""In: terms, and definitions in normal form. Out: the terms with parts of them replaced by definitions that equal them, and back.

A definition that is one term, D[x] = Σ_s [c] a · b, occurs in a term that holds a and b at some indices, c among its conditions,
and Σ_s among its sums, if nothing else in the term moves with s. Then D at these indices takes their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from moapipe.algebra.condition import simplified
from moapipe.algebra.dnf import Normal
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, children, rebuild, references, rewrite, substitute, variables
from moapipe.algebra.term import Overflow, Term, Terms, collect, expand, private, replaced

Binding = dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A definition as one term; its axes and sums are the names to be bound."""

    name: str
    axes: tuple[str, ...]
    term: Term


@lru_cache(maxsize=4096)
def pattern(n: Normal) -> Pattern | None:
    """The pattern of a definition that is one term and no plain copy, constant or single power."""
    if not n.axes:
        return None
    try:
        terms = expand(n.value)
    except Overflow:
        return None
    if len(terms) != 1:
        return None
    t = terms[0]
    copy = not t.sums and len(t.factors) == 1 and isinstance(t.factors[0][0], Ref | Var)
    bound = frozenset().union(*(variables(x) for x, _ in t.factors)) if t.factors else frozenset()
    axes = tuple(v for v, _ in n.axes)
    return None if copy or not t.factors or not set(axes) <= bound else Pattern(n.name, axes, t)


def unify(p: Scalar, e: Scalar, free: frozenset[str], bound: Binding) -> Iterator[Binding]:
    """Bindings of the names `free` under which p is e."""
    match p, e:
        case Var(name), _ if name in free:
            if name not in bound:
                yield {**bound, name: e}
            elif bound[name] == e:
                yield bound
        case (Op(a, x), Op(b, y)) | (Ref(a, x), Ref(b, y)) if a == b and len(x) == len(y):
            yield from _all(x, y, free, bound)
        case Fold(a, v, _, _, _), Fold(b, w, lo, hi, body) if a == b:
            yield from _all(children(p), (lo, hi, substitute(body, {w: Var(v)})), free - {v}, bound)
        case _ if p == e:
            yield bound


def _all(ps: Sequence[Scalar], es: Sequence[Scalar], free: frozenset[str], bound: Binding) -> Iterator[Binding]:
    if not ps:
        yield bound
        return
    for b in unify(ps[0], es[0], free, bound):
        yield from _all(ps[1:], es[1:], free, b)


def occurrence(p: Pattern, t: Term) -> Term | None:
    """The term with one occurrence of the definition replaced by an element of its array, or None."""
    if not p.term.arrays <= t.arrays or len(p.term.sums) > len(t.sums):
        return None
    sums = [v for v, _, _ in p.term.sums]
    free = frozenset((*p.axes, *sums))
    for b in _factors_bound(p.term.factors, dict(t.factors), free, {}):
        if (new := _taken(p, t, b)) is not None:
            return new
    return None


def _factors_bound(wanted: Sequence[tuple[Scalar, int]], have: Mapping[Scalar, int], free: frozenset[str], bound: Binding) -> Iterator[Binding]:
    if not wanted:
        yield bound
        return
    x, p = wanted[0]
    for y, q in have.items():
        if p * q > 0 and abs(q) >= abs(p):
            for b in unify(x, y, free, bound):
                yield from _factors_bound(wanted[1:], {**have, y: q - p}, free, b)


def _taken(p: Pattern, t: Term, b: Binding) -> Term | None:
    """The term without what the binding covers, when conditions and sums are there and nothing else moves with the sums."""
    own = {v for v, _, _ in t.sums}
    places: list[str] = []
    for v, lo, hi in p.term.sums:
        at = b.get(v)
        if not isinstance(at, Var) or at.name not in own or at.name in places:
            return None
        if (at.name, substitute(lo, b), substitute(hi, b)) not in t.sums:
            return None
        places.append(at.name)
    if any(x not in b for x in p.axes):
        return None
    guards = [substitute(g, b) for g in p.term.guards]
    if any(g not in t.guards for g in guards):
        return None
    powers = dict(t.factors)
    for x, k in p.term.factors:
        powers[substitute(x, b)] -= k
    factors = tuple((x, k) for x, k in powers.items() if k)
    moving = set(places)
    kept = tuple(g for g in t.guards if g not in guards or any(k < 0 for _, k in factors))
    ranges = tuple(r for r in t.sums if r[0] not in moving)
    element = Ref(p.name, tuple(b[x] for x in p.axes))
    rest: Iterable[Scalar] = (*(x for x, _ in factors), *(g for g in t.guards if g not in guards), element, *(e for r in ranges for e in r[1:]))
    if any(variables(x) & moving for x in rest):
        return None
    return Term(t.coefficient / p.term.coefficient if p.term.coefficient != 1 else t.coefficient, kept, ranges, ()).times(Term(factors=((element, 1), *factors)))


def reuse(terms: Terms, patterns: Sequence[Pattern]) -> Terms:
    """Every term with definitions in place of what equals them, like terms collected."""
    return collect(reused(t, patterns) for t in terms)


def reused(t: Term, patterns: Sequence[Pattern]) -> Term:
    """One term with definitions in place of what equals them: the first patterns first, until none occurs."""
    for _ in range(32):
        new = next((n for p in patterns if (n := occurrence(p, t)) is not None), None)
        if new is None:
            break
        t = new
    return t


def unfold(terms: Terms, definitions: Mapping[str, tuple[tuple[str, ...], Terms]], most: int = 64) -> Terms:
    """The terms with first powers of elements of `definitions` replaced by their own terms, again and again. Overflow: too many."""
    out: list[Term] = []
    todo = list(terms)
    while todo:
        t = todo.pop(0)
        at = next((x for x, p in t.factors if isinstance(x, Ref) and x.array in definitions and p >= 1), None)
        if at is None:
            out.append(t)
            continue
        axes, inside = definitions[at.array]
        by = dict(zip(axes, at.index, strict=True))
        rest = replace(t, factors=tuple((x, p - (x == at)) for x, p in t.factors if (x, p) != (at, 1)))
        for i in inside:
            own = {v: Var(private(v)) for v, _, _ in i.sums}
            i = Term(i.coefficient, i.guards, tuple((own[v].name, lo, hi) for v, lo, hi in i.sums), i.factors)
            todo.append(rest.times(replaced(i, {**by, **own})))
        if len(todo) + len(out) > most:
            raise Overflow
    return collect(out)


# ------------------------------------------------------------------ conditions


def vanishes(x: Ref, guard: Scalar, normals: Mapping[str, Normal]) -> bool:
    """The element is 0 where the condition does not hold, by the definitions it is made of."""
    return _outside(x, guard, normals, 8) == Num(0)


def _outside(e: Scalar, guard: Scalar, normals: Mapping[str, Normal], depth: int) -> Scalar:
    """`e` where the condition is false. exp(−∞ − m) is 0: m is a number, for a maximum of −∞ is replaced before it is subtracted."""
    match e:
        case Op("select", (c, a, b)):
            truth = False if simplified(c) == simplified(guard) else True if Op("not", (c,)) == guard else None
            if truth is not None:
                return _outside(a if truth else b, guard, normals, depth)
            a, b = _outside(a, guard, normals, depth), _outside(b, guard, normals, depth)
            return a if a == b else Op("select", (c, a, b))
        case Ref(name, index) if name in normals and depth:
            n = normals[name]
            found = _outside(substitute(n.value, {v: i for (v, _), i in zip(n.axes, index, strict=True)}), guard, normals, depth - 1)
            return found if isinstance(found, Num) else e
        case Op() | Fold():
            return _constant(rebuild(e, tuple(_outside(c, guard, normals, depth) for c in children(e))))
        case _:
            return e


def _constant(e: Scalar) -> Scalar:
    match e:
        case Op("exp" | "exp2", (Num(v),)) if v == -inf:
            return Num(0)
        case Op("-", (Num(v), _)) | Op("+", (Num(v), _)) | Op("+", (_, Num(v))) if v == -inf:
            return Num(-inf)
        case Op("*" | "/", (Num(0), _)) | Op("*", (_, Num(0))) | Fold("sum", _, _, _, Num(0)) | Op("neg", (Num(0),)):
            return Num(0)
        case Op("+" | "-", (Num(0), Num(0))):
            return Num(0)
        case _:
            return e


def absorbed(t: Term, normals: Mapping[str, Normal]) -> Term:
    """Without conditions outside which a factor is 0 anyway, where the others are numbers everywhere: 0·∞ is none."""
    known: dict[str, bool] = {}
    if not t.guards or any(p < 0 or not tame(x, normals, known) for x, p in t.factors):
        return t
    guards = tuple(g for g in t.guards if not any(p > 0 and isinstance(x, Ref) and vanishes(x, g, normals) for x, p in t.factors))
    return t if guards == t.guards else replace(t, guards=guards)


def tame(e: Scalar, normals: Mapping[str, Normal], known: dict[str, bool], nonzero: frozenset[Scalar] = frozenset()) -> bool:
    """A number for all numbers that it reads: no logarithm, and no division except by what a condition around it says is not 0."""
    match e:
        case Op("select", (Op("==", (d, Num(0))), a, b)):
            return tame(d, normals, known, nonzero) and tame(a, normals, known, nonzero) and tame(b, normals, known, nonzero | {d})
        case Op("/", (a, d)):
            return (d in nonzero or isinstance(d, Num | Var)) and tame(a, normals, known, nonzero)
        case Op("reciprocal", (d,)):
            return d in nonzero
        case Op("log" | "log2", _):
            return False
        case Ref(name, _) if name in normals:
            if name not in known:
                known[name] = tame(normals[name].value, normals, known)
            return known[name]
        case _:
            return all(tame(c, normals, known, nonzero) for c in children(e))


def reads(e: Scalar) -> frozenset[str]:
    return frozenset(r.array for r in references(e))


def called(n: Normal, old: str, new: str) -> Normal:
    """A definition in which an array has another name, its own included."""
    value = rewrite(n.value, lambda x: Ref(new, x.index) if isinstance(x, Ref) and x.array == old else x)
    return Normal(new if n.name == old else n.name, n.axes, value)
