"""In: a normal form with a softmax in it. Out: an equal one, by the identities of softmax and its log-sum-exp."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from moapipe.algebra.dnf import Dnf, Normal, with_normals
from moapipe.algebra.reuse import called, reads, reuse, unfold
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, rewrite, substitute, variables
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
                return with_normals(d, ordered([called(m, n.name, name) for m in rest]))
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


def share_by_lse(d: Dnf) -> Dnf:
    """The share w/t of a safe softmax from its log-sum-exp alone: exp(x − l), and 0 where l = −∞."""
    by = {n.name: n for n in d.normals}
    for n in d.normals:
        found = _share(n)
        if found is None or found[0].array not in by or found[1].array not in by:
            continue
        w, t = by[found[0].array], by[found[1].array]
        parts = _exponent(w, by)
        if parts is None or not _sums(t, w):
            continue
        x, peak = parts
        lse = _log_sum(d, t, peak) or Normal(_free("lse", d), t.axes, Op("+", (peak, Op("log", (Ref(t.name, peak.index),)))))
        l = Ref(lse.name, found[1].index)
        value = Op("select", (Op("==", (l, Num(-inf))), Num(0), Op("exp", (Op("-", (x, l)),))))
        rest = [replace(m, value=value) if m.name == n.name else m for m in d.normals]
        return with_normals(d, ordered(rest if lse in rest else [m for old in rest for m in ((old, lse) if old.name == t.name else (old,))]))
    raise AlgebraError("share_by_lse finds no w/t with t = Σ w and w = exp(x − max x)", where=d.name, hint="it needs the definitions of a safe softmax")


def _share(n: Normal) -> tuple[Ref, Ref] | None:
    """(w, t) of select(t = 0, 0, w/t) with w at the definition's own index."""
    match n.value:
        case Op("select", (Op("==", (Ref() as t, Num(0))), Num(0), Op("/", (Ref() as w, Ref() as u)))) if t == u and w.index == tuple(Var(v) for v, _ in n.axes):
            return w, t
        case _:
            return None


def _exponent(w: Normal, by: dict[str, Normal]) -> tuple[Ref, Ref] | None:
    """(x, m) of w = exp(x − z), z = select(m = −∞, 0, m), m = max x over the last axis; m in the axes of its own definition."""
    match w.value:
        case Op("exp", (Op("-", (Ref() as x, Ref() as z)),)) if z.array in by:
            match by[z.array].value:
                case Op("select", (Op("==", (Ref() as m, Num(v))), Num(0), Ref() as same)) if v == -inf and m == same and m.array in by:
                    top = by[m.array]
                    match top.value:
                        case Fold("max", var, Num(0), _, Ref(array, index)) if array == x.array and index[-1] == Var(var):
                            return x, Ref(top.name, tuple(Var(v) for v, _ in top.axes))
    return None


def _sums(t: Normal, w: Normal) -> bool:
    """t = Σ w over w's last axis."""
    match t.value:
        case Fold("sum", var, Num(0), _, Ref(array, index)):
            return array == w.name and index == (*(Var(v) for v, _ in t.axes), Var(var))
        case _:
            return False


def _log_sum(d: Dnf, t: Normal, peak: Ref) -> Normal | None:
    """The definition m + log t, if there is one."""
    for n in d.normals:
        match n.value:
            case Op("+", (Ref(m, at), Op("log", (Ref(u, same),)))) if m == peak.array and u == t.name and n.axes == t.axes and at == same:
                return n
            case _:
                pass
    return None


def divide_last(d: Dnf) -> Dnf:
    """Divide the result of a fold instead of its terms: Σ_k (w/t)·v becomes (Σ_k w·v)/t; its sum is the definition `mixed`."""
    by = {n.name: n for n in d.normals}
    for n in d.normals:
        match n.value:
            case Fold("sum", var, _, _, Op("*", (a, b))) as fold:
                found = next((f for p, v in ((a, b), (b, a)) if (f := _shared(p, v, by)) is not None and var not in variables(f[1])), None)
                if found is None:
                    continue
                product, t = found
                mixed = Normal(_free("mixed", d), n.axes, replace(fold, body=product))
                whole = Op("/", (Ref(mixed.name, tuple(Var(a) for a, _ in n.axes)), t))
                value = Op("select", (Op("==", (t, Num(0))), Num(0), whole))
                return with_normals(d, tuple(m for old in d.normals for m in ((mixed, replace(n, value=value)) if old.name == n.name else (old,))))
            case _:
                pass
    raise AlgebraError("divide_last finds no Σ (w/t)·v", where=d.name, hint="it undoes divide_first")


def _shared(p: Scalar, v: Scalar, by: dict[str, Normal]) -> tuple[Scalar, Ref] | None:
    """(w·v, t) of the product of p = w/t and v, at p's index."""
    if not isinstance(p, Ref) or p.array not in by or (found := _share(by[p.array])) is None:
        return None
    at = {name: i for (name, _), i in zip(by[p.array].axes, p.index, strict=True)}
    w, t = (Ref(r.array, tuple(substitute(i, at) for i in r.index)) for r in found)
    return Op("*", (w, v)), t


def shift_empty(d: Dnf) -> Dnf:
    """Subtract ∞ in rows that see nothing, instead of asking at every element: the subtracted array is the definition `safe`."""
    for n in d.normals:
        match n.value:
            case Op("select", (Op("==", (Ref() as l, Num(v))), Num(0), Op("exp", (Op("-", (x, Ref() as same)),)))) if v == -inf and l == same:
                owner = next((shape for name, shape in d.inputs if name == l.array), None) or tuple(e for m in d.normals if m.name == l.array for _, e in m.axes)
                if not all(isinstance(i, Var) for i in l.index):
                    continue
                axes = tuple((i.name, e) for i, e in zip(l.index, owner, strict=True) if isinstance(i, Var))
                safe = Normal(_free("safe", d), axes, Op("select", (Op("==", (l, Num(-inf))), Num(inf), l)))
                new = replace(n, value=Op("exp", (Op("-", (x, Ref(safe.name, l.index))),)))
                return with_normals(d, tuple(m for old in d.normals for m in ((safe, new) if old.name == n.name else (old,))))
            case _:
                pass
    raise AlgebraError("shift_empty finds no select(l = −∞, 0, exp(x − l))", where=d.name, hint="share_by_lse makes one")


def reciprocal(d: Dnf) -> Dnf:
    """Divide once a row: what rows are divided by is inverted, guarded as they were, and every guarded quotient becomes a product."""
    divisors = {t.array: t for n in d.normals if (t := _divisor(n.value)) is not None}
    owner = {n.name: n for n in d.normals}
    found = next((a for a in divisors if a in owner), None)
    if found is None:
        raise AlgebraError("reciprocal finds no select(t = 0, 0, w/t)", where=d.name, hint="it needs the shares of a softmax, or its divided output")
    axes = owner[found].axes
    t = Ref(found, tuple(Var(v) for v, _ in axes))
    inverse = Normal(_free("reciprocal", d), axes, Op("select", (Op("==", (t, Num(0))), Num(0), Op("/", (Num(1), t)))))

    def multiplied(e: Scalar) -> Scalar:
        match e:
            case Op("select", (_, _, Op("/", (w, Ref(array, index))))) if array == found and _divisor(e) is not None:
                return Op("*", (w, Ref(inverse.name, index)))
            case _:
                return e

    changed = [replace(n, value=rewrite(n.value, multiplied)) for n in d.normals]
    return with_normals(d, tuple(m for n in changed for m in ((n, inverse) if n.name == found else (n,))))


def _divisor(e: Scalar) -> Ref | None:
    """t of select(t = 0, 0, w/t)."""
    match e:
        case Op("select", (Op("==", (Ref() as t, Num(0))), Num(0), Op("/", (_, Ref() as u)))) if t == u:
            return t
        case _:
            return None
