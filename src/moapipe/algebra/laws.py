"""In: a normal form. Out: an equal one by a named identity; LAWS, the identities that a variant may name, and the ⊕ of softmax.

A law changes how a kernel computes, not what: outputs keep their meaning (up to rounding), and the kernel keeps the hash of the
normal form before any law. A law that matches nothing refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np

from moapipe.algebra.dnf import Dnf, Normal, with_normals
from moapipe.algebra.index import factors
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, children, rebuild, references, rewrite, substitute, variables, walk
from moapipe.algebra.softmax import corr, divide_last, reciprocal, share_by_lse, shift_empty
from moapipe.algebra.term import multiplied
from moapipe.errors import AlgebraError

LOG2_E = 1 / log(2)
LN_2 = log(2)
Triple = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Law:
    """A named identity: its mathematics as text, its source, and `apply`, which raises AlgebraError where it matches nothing."""

    name: str
    text: str
    source: str
    apply: Callable[[Dnf], Dnf]


# ------------------------------------------------------------------ base2


def rescale(e: Scalar, scaled: frozenset[str]) -> Scalar:
    """log2(e)·`e`, given that the arrays of `scaled` already hold log2(e) times their old values.

    Positive constants pass through + − neg max min select, through folds of sum, max and min, and leave 0 and ±∞ alone.
    """
    match e:
        case Num(v) if v in (0, inf, -inf):
            return e
        case Ref(array, _) if array in scaled:
            return e
        case Op("+" | "-" | "neg" | "max" | "min" as name, args):
            return Op(name, tuple(rescale(a, scaled) for a in args))
        case Op("select", (condition, a, b)):
            return Op("select", (restore(condition, scaled), rescale(a, scaled), rescale(b, scaled)))
        case Fold("sum" | "max" | "min" as monoid, var, lo, hi, body):
            return Fold(monoid, var, lo, hi, rescale(body, scaled))
        case _:
            return _factor(LOG2_E, restore(e, scaled))


def _factor(c: float, e: Scalar) -> Scalar:
    """c·e with c beside the factors of e that do not fold, so that (c·scale)·Σ is computed once."""
    match e:
        case Op("*", (a, b)) if isinstance(b, Fold):
            return Op("*", (Op("*", (Num(c), a)), b))
        case _:
            return Op("*", (Num(c), e))


def restore(e: Scalar, scaled: frozenset[str]) -> Scalar:
    """`e` with its old value: what reads a scaled array reads ln(2) times it; exp of a difference becomes exp2 of the scaled one."""
    match e:
        case Op("exp", (x,)) if {r.array for r in references(x)} & scaled:
            return Op("exp2", (rescale(x, scaled),))
        case Op("==", (Ref(array, _), Num(v))) if array in scaled and v in (0, inf, -inf):
            return e
        case Ref(array, index) if array in scaled:
            return Op("*", (Num(LN_2), Ref(array, tuple(restore(i, scaled) for i in index))))
        case _:
            return rebuild(e, tuple(restore(c, scaled) for c in children(e)))


def _linear_reads(e: Scalar) -> Iterator[str]:
    """Arrays that `rescale` meets unscaled in `e`: those whose rescaling makes that of `e` free."""
    match e:
        case Ref(array, _):
            yield array
        case Op("+" | "-" | "neg" | "max" | "min", args):
            for a in args:
                yield from _linear_reads(a)
        case Op("select", (_, a, b)):
            yield from _linear_reads(a)
            yield from _linear_reads(b)
        case Fold("sum" | "max" | "min", _, _, _, body):
            yield from _linear_reads(body)
        case _:
            pass


def base2(d: Dnf) -> Dnf:
    """Measure what is exponentiated in base-2 units, so that exp becomes exp2 without a multiplication."""
    exponents = [x.args[0] for n in d.normals for x in walk(n.value) if isinstance(x, Op) and x.name == "exp"]
    pending = [a for e in exponents for a in _linear_reads(e)]
    known = {n.name: n for n in d.normals if n.name not in d.outputs}
    scaled: set[str] = set()
    while pending:
        name = pending.pop()
        if name in known and name not in scaled:
            scaled.add(name)
            pending += _linear_reads(known[name].value)
    if not scaled:
        raise AlgebraError("base2 finds no exp of a definition that it could rescale", where=d.name, hint="it needs exp(x − m) with x a definition that is no output")
    family = frozenset(scaled)
    return with_normals(d, tuple(replace(n, value=(rescale if n.name in family else restore)(n.value, family)) for n in d.normals))


# ------------------------------------------------------------------ scale_into_query


def scale_into_query(d: Dnf) -> Dnf:
    """Multiply the left factor of the first scaled inner product beforehand, once an element instead of once a score."""
    taken = {name for name, _ in d.inputs} | {n.name for n in d.normals}
    for at, n in enumerate(d.normals):
        parts = _scaled_product(n.value)
        if parts is None:
            continue
        factor, folds, query, other = parts
        axes = tuple(a for i in query.index if (a := _axis(n, folds, i)) is not None)
        if variables(factor) - set(d.sizes) or len(axes) != len(query.index):
            continue
        name = next(s for s in ("scaled", *(f"scaled{k}" for k in range(2, len(taken) + 3))) if s not in taken)
        value: Scalar = Op("*", (Ref(name, query.index), other))
        for fold in reversed(folds):
            value = replace(fold, body=value)
        product = replace(n, value=value)
        return with_normals(d, (*d.normals[:at], Normal(name, axes, Op("*", (factor, query))), product, *d.normals[at + 1 :]))
    raise AlgebraError("scale_into_query finds no c·Σ q·k", where=d.name, hint="it needs a definition that is a scalar times a sum of products")


def _scaled_product(e: Scalar) -> tuple[Scalar, tuple[Fold, ...], Ref, Scalar] | None:
    """(c, Σ…, q, k) when `e` is c·Σ… q·k or Σ… q·k·c with q one array element, and Σ… one sum or sums of sums."""
    match e:
        case Op("*", (c, Fold("sum") as fold)) | Op("*", (Fold("sum") as fold, c)):
            folds = [fold]
            while isinstance(folds[-1].body, Fold) and folds[-1].body.monoid == "sum":
                folds.append(folds[-1].body)
            match folds[-1].body:
                case Op("*", (Ref() as q, k)):
                    return c, tuple(folds), q, k
    return None


def _axis(n: Normal, folds: Sequence[Fold], index: Scalar) -> tuple[str, Scalar] | None:
    """The axis that an index component runs over, when it is a plain variable of the definition or of one of its folds from 0."""
    extents = dict(n.axes) | {fold.var: fold.hi for fold in folds if fold.lo == Num(0)}
    return (index.name, extents[index.name]) if isinstance(index, Var) and index.name in extents else None


# ------------------------------------------------------------------ divide_first


def divide_first(d: Dnf) -> Dnf:
    """Divide the terms of a fold instead of its result: the quotients w/t become a definition, `<w>_normalised`."""
    out = list(d.normals)
    taken = {name for name, _ in d.inputs} | {n.name for n in d.normals}
    for n in d.normals:
        quotient = _quotient(n.value)
        folded = next((m for m in d.normals if quotient and m.name == quotient[0].array), None)
        same = folded is not None and quotient is not None and n.axes == folded.axes and quotient[0].index == tuple(Var(v) for v, _ in n.axes)
        term = _divisible(folded, quotient[1]) if folded and quotient and same and folded.name not in d.outputs else None
        if term is None or folded is None or quotient is None or sum(quotient[0].array in {r.array for r in references(x.value)} for x in d.normals) != 1:
            continue
        fold, weight, other = term
        old = next((m for m in d.normals if m.name == weight.array), None)
        if old is None or len(set(weight.index)) != len(old.axes) or f"{old.name}_normalised" in taken:
            continue
        name = f"{old.name}_normalised"
        back = {i.name: Var(v) for i, (v, _) in zip(weight.index, old.axes, strict=True) if isinstance(i, Var)}
        whole = substitute(n.value, back)
        share = Normal(name, old.axes, _replaced(whole, substitute(quotient[0], back), Ref(old.name, tuple(Var(v) for v, _ in old.axes))))
        out.remove(folded)                     # its only reader is n: there w, v and what divides are all defined
        at = out.index(n)
        out[at: at + 1] = [share, replace(folded, value=replace(fold, body=Op("*", (Ref(name, weight.index), other)))), replace(n, value=quotient[0])]
    if len(out) == len(d.normals):
        raise AlgebraError("divide_first finds no (Σ w·v)/t", where=d.name, hint="it needs a definition that divides a sum of products of a definition w by a t without its axis")
    return with_normals(d, tuple(out))


def _quotient(e: Scalar) -> tuple[Ref, Scalar] | None:
    """(a, everything else that is read) of a/t or select(c, 0, a/t)."""
    match e:
        case Op("/", (Ref() as a, t)):
            return a, t
        case Op("select", (c, Num(0), Op("/", (Ref() as a, t)))):
            return a, Op("and", (c, t))
        case _:
            return None


def _divisible(folded: Normal, others: Scalar) -> tuple[Fold, Ref, Scalar] | None:
    """(Σ, w, v) when the definition is Σ w·v and what divides it moves with no axis that w lacks."""
    match folded.value:
        case Fold("sum", _, _, _, Op("*", (Ref() as w, v))) as fold:
            plain = all(isinstance(i, Var) for i in w.index)
            return (fold, w, v) if plain and variables(others) <= frozenset(i.name for i in w.index if isinstance(i, Var)) else None
        case _:
            return None


def distribute(d: Dnf) -> Dnf:
    """Fold the addends of a sum apart, each without its factors that do not move: what is left to fold are definitions, `<arrays>_sum`."""
    by = {n.name: n for n in d.normals}
    taken = {name for name, _ in d.inputs} | set(by)
    out = tuple(m for n in d.normals for m in _folded_apart(n, by, taken))
    if len(out) == len(d.normals):
        raise AlgebraError("distribute finds no Σ_k (a·x[k] + b·y[k])", where=d.name, hint="it needs a sum of addends that all move with k, one of them with a factor that does not")
    return with_normals(d, out)


def _folded_apart(n: Normal, by: dict[str, Normal], taken: set[str]) -> tuple[Normal, ...]:
    """The sums that a sum is made of, each in a definition with a new name, and the definition in terms of them; else only itself."""
    match n.value:
        case Fold("sum", var, _, _, body) as fold:
            terms = [(negative, *_moving(e, var)) for negative, e in _addends(_written(body, by))]
        case _:
            return (n,)
    if len(terms) < 2 or not all(moves for _, moves, _ in terms) or not any(rest for _, _, rest in terms):
        return (n,)
    parts: list[Normal] = []
    total: Scalar = Num(0)
    for k, (negative, moves, rest) in enumerate(terms):
        value = replace(fold, body=multiplied(moves))
        wish = "_".join((*dict.fromkeys(r.array for r in references(value)), "sum"))
        name = next(s for s in (wish, *(f"{wish}{k}" for k in range(2, len(taken) + 3))) if s not in taken)
        taken.add(name)
        parts.append(Normal(name, tuple((v, e) for v, e in n.axes if v in variables(value)), value))
        term = multiplied((Ref(name, tuple(Var(v) for v, _ in parts[-1].axes)), *rest))
        total = Op("-" if negative else "+", (total, term)) if k else Op("neg", (term,)) if negative else term
    return (*parts, replace(n, value=total))


def _written(e: Scalar, by: dict[str, Normal]) -> Scalar:
    """What an element of a definition stands for; any other expression itself."""
    if not isinstance(e, Ref) or e.array not in by:
        return e
    return substitute(by[e.array].value, {v: i for (v, _), i in zip(by[e.array].axes, e.index, strict=True)})


def _addends(e: Scalar) -> tuple[tuple[bool, Scalar], ...]:
    """(is it subtracted, the addend) of the sums and differences at the top of `e`; no product is multiplied out."""
    match e:
        case Op("+", (a, b)):
            return _addends(a) + _addends(b)
        case Op("-", (a, b)):
            return _addends(a) + tuple((not negative, x) for negative, x in _addends(b))
        case Op("neg", (a,)):
            return tuple((not negative, x) for negative, x in _addends(a))
        case _:
            return ((False, e),)


def _moving(e: Scalar, var: str) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """The factors of a product that move with `var`, and the others."""
    return tuple(x for x in factors(e) if var in variables(x)), tuple(x for x in factors(e) if var not in variables(x))


def sum_first(d: Dnf) -> Dnf:
    """Begin every product with the definitions in it that are folds."""
    sums = {n.name for n in d.normals if isinstance(n.value, Fold)}

    def go(e: Scalar) -> Scalar:
        if not isinstance(e, Op) or e.name != "*":
            return e
        parts = factors(e)
        return multiplied(sorted(parts, key=lambda x: not (isinstance(x, Ref) and x.array in sums)))

    after = tuple(replace(n, value=rewrite(n.value, go)) for n in d.normals)
    if after == d.normals:
        raise AlgebraError("sum_first finds no product with a fold behind another factor", where=d.name, hint="leave the law out")
    return with_normals(d, after)


def _replaced(e: Scalar, old: Scalar, new: Scalar) -> Scalar:
    return new if e == old else rebuild(e, tuple(_replaced(c, old, new) for c in children(e)))


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("base2",
            "exp(x − m) = exp2(c·x − c·m) with c = log2 e;  max(c·s) = c·max(s) for c > 0;  ln Σ exp(x) = m + ln Σ exp2(c·x − c·m), m = ln 2·(c·m)",
            "homogeneity of max and + under positive constants; Milakov & Gimelshein 2018 for the safe softmax", base2),
        Law("scale_into_query", "c·Σ_d q[d]·k[d] = Σ_d (c·q[d])·k[d]", "distributivity of × over a + fold, or over folds of folds", scale_into_query),
        Law("divide_first", "(Σ_k w[k]·v[k]) ÷ t = Σ_k (w[k] ÷ t)·v[k]", "distributivity of ÷ over a + fold; the softmax that the published forward pass stores", divide_first),
        Law("divide_last", "Σ_k (w[k] ÷ t)·v[k] = (Σ_k w[k]·v[k]) ÷ t", "distributivity of ÷ over a + fold; what a running sum can follow", divide_last),
        Law("distribute", "Σ_k (a·x[k] ± b·y[k]) = a·Σ_k x[k] ± b·Σ_k y[k]", "linearity of a + fold; sums that do not need each other share one pass", distribute),
        Law("sum_first", "x·y·s = s·x·y with s = Σ …", "commutativity of ×; a sum of many terms meets the small factors one by one, so that none of their powers leaves the range", sum_first),
        Law("corr", "Σ_k a[k]·(Σ_e b[e]·c[k,e]) = Σ_e b[e]·o[e] with o[e] = Σ_k a[k]·c[k,e];  corr = Σ_k p·Σ_e dout·v = Σ_e dout·out",
            "exchange of finite sums; Dao et al. 2022, arXiv:2205.14135, appendix B.2", corr),
        Law("share_by_lse", "exp(x − z) ÷ Σ exp(x − z) = exp(x − l) with l = max x + log Σ exp(x − z), z = max x;  0 where l = −∞; l is defined where it is not yet",
            "division of exponentials; Dao 2023, arXiv:2307.08691, section 3.1", share_by_lse),
        Law("reciprocal", "w[k] ÷ t = w[k] × (1 ÷ t), and 0 where t = 0", "IEEE 754: two roundings instead of one, a division a row instead of one an element", reciprocal),
        Law("shift_empty", "select(l = −∞, 0, exp(x − l)) = exp(x − z), z = select(l = −∞, ∞, l), for x < ∞",
            "exp(x − ∞) = 0: IEEE 754, 6.1", shift_empty),
    )
}


# ------------------------------------------------------------------ online softmax


@dataclass(frozen=True, slots=True)
class TripleMonoid:
    """A monoid on triples, as text and as a numpy function; the lift `online` computes with it."""

    name: str
    text: str
    source: str
    unit: tuple[float, float, float]
    combine: Callable[[Triple, Triple], Triple]


def combine_softmax(a: Triple, b: Triple) -> Triple:
    """(m, l, o) ⊕ (m', l', o'): m, l of one shape, o of that shape with features behind it. Never NaN for m = −∞."""
    peak = np.maximum(a[0], b[0])
    safe = np.where(np.isneginf(peak), 0.0, peak)
    p, q = np.exp(a[0] - safe), np.exp(b[0] - safe)
    wide = tuple(np.reshape(w, np.shape(w) + (1,) * (np.ndim(a[2]) - np.ndim(w))) for w in (p, q))
    return peak, a[1] * p + b[1] * q, a[2] * wide[0] + b[2] * wide[1]


ONLINE_SOFTMAX = TripleMonoid(
    "online_softmax",
    "(m, l, o) ⊕ (m', l', o') = (M, l·e^(m−Z) + l'·e^(m'−Z), o·e^(m−Z) + o'·e^(m'−Z)), M = max(m, m'), Z = 0 where M = −∞ and else M; "
    "associative, commutative, unit (−∞, 0, 0); a part with m = −∞ has weight 0. The fold of (s, 1, v) over keys is "
    "(max s, Σ e^(s−Z), Σ e^(s−Z)·v), whatever the grouping",
    "Milakov & Gimelshein 2018, arXiv:1805.02867; Rabe & Staats 2021, arXiv:2112.05682",
    (-inf, 0.0, 0.0), combine_softmax)
