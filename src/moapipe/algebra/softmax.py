"""In: a normal form with a softmax in it. Out: an equal one, by the identities of softmax and its log-sum-exp."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from moapipe.algebra.dnf import Dnf, Normal, with_normals
from moapipe.algebra.reuse import reads, reuse, unfold
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, references, rewrite
from moapipe.algebra.shorten import cost, known, ordered
from moapipe.algebra.term import Overflow, expand, render
from moapipe.errors import AlgebraError


def corr(d: Dnf) -> Dnf:
    """A sum of products with another sum in them, when exchanging the sums gives a definition that is there already."""
    for n in d.normals:
        if n.name in d.outputs or not isinstance(n.value, Fold):
            continue
        for inner in d.normals:
            if inner.name in reads(n.value) and isinstance(inner.value, Fold) and (new := _exchanged(d, n, inner)) is not None:
                name = _free("corr", d)
                rest = [new if m.name == n.name else m for m in d.normals]
                return with_normals(d, ordered([_renamed(m, n.name, name) for m in rest]))
    raise AlgebraError("corr finds no Σ_k a[k]·Σ_e b[e]·c[k,e] with Σ_k a[k]·c[k,e] defined", where=d.name,
                       hint="it needs a definition that sums products with another sum, and one that sums the same products the other way round")


def _exchanged(d: Dnf, n: Normal, inner: Normal) -> Normal | None:
    try:
        inside = {inner.name: (tuple(v for v, _ in inner.axes), expand(inner.value))}
        patterns = known(m for m in d.normals if m.name not in (n.name, inner.name) and isinstance(m.value, Fold) and n.name not in reads(m.value))
        terms = reuse(unfold(expand(n.value), inside), patterns)
    except Overflow:
        return None
    new = replace(n, value=render(terms, (*d.sizes, *(v for v, _ in n.axes))))
    return new if cost([new]) <= cost([n]) and not reads(new.value) & {inner.name} else None


def _free(wish: str, d: Dnf) -> str:
    taken = {name for name, _ in d.inputs} | {n.name for n in d.normals}
    return next(s for s in (wish, *(f"{wish}{k}" for k in range(2, len(taken) + 3))) if s not in taken)


def _renamed(n: Normal, old: str, new: str) -> Normal:
    value = rewrite(n.value, lambda x: Ref(new, x.index) if isinstance(x, Ref) and x.array == old else x)
    return Normal(new if n.name == old else n.name, n.axes, value)


def share_by_lse(d: Dnf) -> Dnf:
    """The share w/t of a safe softmax from its log-sum-exp alone: exp(x − l), and 0 where l = −∞."""
    by = {n.name: n for n in d.normals}
    for n in d.normals:
        found = _share(n)
        if found is None or found[0].array not in by or found[1].array not in by:
            continue
        w, t = by[found[0].array], by[found[1].array]
        x, lse = _exponent(w, by), _log_sum(d, t, w, by)
        if x is None or lse is None:
            continue
        l = Ref(lse.name, found[1].index)
        value = Op("select", (Op("==", (l, Num(-inf))), Num(0), Op("exp", (Op("-", (x, l)),))))
        return with_normals(d, ordered([replace(m, value=value) if m.name == n.name else m for m in d.normals]))
    raise AlgebraError("share_by_lse finds no w/t with t = Σ w, w = exp(x − m) and m + log t", where=d.name,
                       hint="it needs the definitions of a safe softmax and of its log-sum-exp")


def _share(n: Normal) -> tuple[Ref, Ref] | None:
    """(w, t) of select(t = 0, 0, w/t) with w at the definition's own index."""
    match n.value:
        case Op("select", (Op("==", (Ref() as t, Num(0))), Num(0), Op("/", (Ref() as w, Ref() as u)))) if t == u and w.index == tuple(Var(v) for v, _ in n.axes):
            return w, t
        case _:
            return None


def _exponent(w: Normal, by: dict[str, Normal]) -> Scalar | None:
    """x of w = exp(x − z), z = select(m = −∞, 0, m), m = max x over the last axis."""
    match w.value:
        case Op("exp", (Op("-", (Ref() as x, Ref() as z)),)) if z.array in by:
            match by[z.array].value:
                case Op("select", (Op("==", (Ref() as m, Num(v))), Num(0), Ref() as same)) if v == -inf and m == same and m.array in by:
                    match by[m.array].value:
                        case Fold("max", var, Num(0), _, Ref(array, index)) if array == x.array and index[-1] == Var(var):
                            return x
    return None


def _log_sum(d: Dnf, t: Normal, w: Normal, by: dict[str, Normal]) -> Normal | None:
    """The definition l = m + log t, t = Σ w, m the maximum that w subtracts."""
    if not (isinstance(t.value, Fold) and t.value.monoid == "sum" and isinstance(t.value.body, Ref) and t.value.body.array == w.name):
        return None
    shift = by[next(r.array for r in references(w.value) if r.array in by and isinstance(by[r.array].value, Op) and by[r.array].axes == t.axes)]
    peak = next(r for r in references(shift.value))
    for n in d.normals:
        match n.value:
            case Op("+", (Ref() as m, Op("log", (Ref() as u,)))) if m.array == peak.array and u.array == t.name and n.axes == t.axes:
                return n
            case _:
                pass
    return None
