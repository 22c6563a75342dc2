"""Lifts about folds relative to a maximum: online fuses loops over it, rebase lets parts have their own. In and out: a Kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, op, references, text, variables
from moapipe.loops.legal import accesses, own_block
from moapipe.loops.lift.scope import (
    Names,
    fresh,
    known,
    listed,
    nest,
    only_leaf,
    refusal,
    starts_at_unit,
    target_loops,
    with_arrays,
)
from moapipe.loops.onf import (
    Accumulate,
    Assign,
    Body,
    If,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    definitions,
    leaves,
    map_references,
    map_statements,
    read,
    with_body,
    written,
)


@dataclass(frozen=True, slots=True)
class _Homogeneous:
    """P = f(x - g·z(M)), f exp or exp2: `shift` is g·z(M) with M's reference kept, `function` is f."""

    function: str
    shift: Scalar


def online(k: Kernel, *, axis: str, maximum: str, weights: str, folds: Names, shift: str = "") -> Kernel:
    """Fuse loops over `axis` although `maximum` is complete only after the first: whenever it grows, the sum-folds are
    scaled by exp2(g·old - g·new), so that they hold what they would hold with the new maximum all along.

    The use, tile by tile, of the law online_softmax over the monoid (m, l, o) (Milakov and Gimelshein, arXiv:1805.02867).
    Legal when M = `maximum` is a max-fold; P = `weights` is exp2(x - g·Z(M)) with x free of M, Z(M) = M or the safe
    select(M == -inf, 0, M), written in place or as the definition `shift`; the `folds` are sums, linear in P, and the
    only readers of P; nothing else in the loops reads M. Where M was -inf the scale is exp2(-inf) = 0, and the folds
    are empty: identity ⊕ identity is the identity. What reads the folds between the loops, and not for them, goes after.
    """
    known(k, "online", (maximum, weights, *folds, *([shift] if shift else [])))
    fresh(k, "online", f"{maximum}_old", f"{maximum}_scale")
    done: list[str] = []

    def go(body: Body) -> Body:
        loops = [s for s in body if isinstance(s, Loop) and s.var == axis]
        if len(loops) < 2 or maximum not in definitions(tuple(loops)):
            return tuple(with_body(s, go(s.body)) if isinstance(s, Loop | If) else s for s in body)
        done.append(axis)
        return _fused_online(k, body, loops, axis, maximum, weights, folds, shift)

    body = go(k.body)
    if not done:
        raise refusal("online", f"{maximum} {axis}", f"no sibling loops over {axis} with the fold {maximum}", "fuse the axes outside first")
    a = k.array(maximum)
    return with_arrays(k, body, add=(replace(a, name=f"{maximum}_old"), replace(a, name=f"{maximum}_scale")))


def _fused_online(
    k: Kernel, body: Body, loops: Sequence[Loop], axis: str, maximum: str, weights: str, folds: Names, shift: str
) -> Body:
    first = next(i for i, s in enumerate(body) if s is loops[0])
    last = next(i for i, s in enumerate(body) if s is loops[-1])
    between = tuple(s for s in body[first:last] if not any(s is l for l in loops))
    shifts = tuple(s for s in between if shift and definitions((s,)) == {shift})
    others = tuple(s for s in between if s not in shifts)
    inner = tuple(s for l in loops for s in l.body)
    late: tuple[Stmt, ...] = ()
    for s in others:
        late = (*late, s) if read((s,)) & (written(inner) | written(late)) else late
    if needed := written(late) & (read(inner) | written(inner)):
        raise refusal("online", f"{maximum} {axis}", f"{listed(definitions(late))} reads {listed(read(late) & written(inner))} between the loops, which use {listed(needed)}")
    early = tuple(s for s in others if not any(s is l for l in late))
    form = _check_online(k, loops, shifts, axis, maximum, weights, folds, shift)
    if used := {x.leaf.name for x in accesses(body[last + 1 :], k.array(weights).name) if not x.store}:
        raise refusal("online", f"{weights} {axis}", f"{weights} is read by {listed(used)} after the loop, where it would be unscaled")
    for f in folds:
        starts_at_unit((*body[:first], *early), f, "online")
    new = _rescaled(loops, shifts, axis, maximum, folds, form)
    return (*body[:first], *early, *shifts, replace(loops[0], body=new), *late, *body[last + 1 :])


def _check_online(
    k: Kernel, loops: Sequence[Loop], shifts: Body, axis: str, maximum: str, weights: str, folds: Names, shift: str
) -> _Homogeneous:
    where = f"{maximum} {axis}"
    z = next((leaf.value for leaf, _, _ in leaves(shifts)), None)
    form: _Homogeneous | None = None
    if len({(l.lo, l.hi) for l in loops}) != 1:
        raise refusal("online", where, "the loops have different bounds", "skip and clip them alike")
    names = {maximum, *([shift] if shift else [])}
    for l in loops:
        for leaf, _, _ in leaves(l.body):
            reads = {r.array for r in references(leaf.value)}
            if leaf.name == maximum and not (isinstance(leaf, Accumulate) and leaf.monoid == "max"):
                raise refusal("online", where, f"{maximum} is no max-fold over {axis}")
            if leaf.name == weights:
                form = _homogeneous(leaf.value, maximum, shift, z)
            elif reads & names and leaf.name != maximum:
                raise refusal("online", where, f"{leaf.name} reads {listed(reads & names)} before it is complete", f"inline it, or list it in {weights}")
            if leaf.name in folds and not (isinstance(leaf, Accumulate) and leaf.monoid == "sum" and _linear(leaf.value, weights)):
                raise refusal("online", f"{leaf.name} {axis}", f"{leaf.name} is no sum linear in {weights}: {text(leaf.value)}")
            if weights in reads and leaf.name not in folds:
                raise refusal("online", f"{leaf.name} {axis}", f"{leaf.name} reads {weights} and is not listed in folds")
    if form is None:
        raise refusal("online", f"{weights} {axis}", f"{weights} is not exp2(x - g·Z({maximum}))", "apply the laws base2 and safe maximum")
    for i, a in enumerate(loops):
        for b in loops[i + 1 :]:
            for x in sorted(written((a,)) & (read((b,)) | written((b,))) - names):
                if not own_block(a, b, x):
                    raise refusal("online", f"{x} {axis}", f"{x} is complete only after the whole loop over {axis}")
    return form


def _homogeneous(value: Scalar, maximum: str, shift: str, z: Scalar | None) -> _Homogeneous | None:
    match value:
        case Op("exp" | "exp2" as f, (Op("*", (Op("-", (x, y)), g)) | Op("*", (g, Op("-", (x, y)))),)) if not references(g):
            inner = _homogeneous(Op(f, (Op("-", (Op("*", (g, x)), Op("*", (g, y)))),)), maximum, shift, z)
            return inner
        case Op("exp" | "exp2" as f, (Op("-", (x, y)),)) if not {r.array for r in references(x)} & {maximum, shift}:
            core = y
            match y:
                case Op("*", (g, r)) if not references(g) and not _negative(g):
                    core = r
                case _:
                    pass
            if isinstance(core, Ref) and shift and core.array == shift and z is not None:
                core = z
            return _Homogeneous(f, y) if _is_safe(core, maximum) else None
        case _:
            return None


def _negative(g: Scalar) -> bool:
    return not (isinstance(g, Num) and g.value > 0)


def _is_safe(z: Scalar, maximum: str) -> bool:
    """z is M, or select(M == -inf, 0, M)."""
    match z:
        case Ref(array, _):
            return array == maximum
        case Op("select", (Op("==", (Ref(a, _), Num(v))), Num(0), Ref(b, _))):
            return a == b == maximum and v == -float("inf")
        case _:
            return False


def _linear(value: Scalar, weights: str) -> bool:
    """value = P·y with y free of P: linear, and zero where P is."""
    match value:
        case Ref(array, _):
            return array == weights
        case Op("*", (a, b)):
            free = [weights not in {r.array for r in references(e)} for e in (a, b)]
            return (_linear(a, weights) and free[1]) or (_linear(b, weights) and free[0])
        case _:
            return False


def _rescaled(loops: Sequence[Loop], shifts: Body, axis: str, maximum: str, folds: Names, form: _Homogeneous) -> Body:
    """The body of the fused loop: …, old ← M, M, Z, scale ← exp2(old - Z), folds ← folds·scale, weights, folds."""
    out: list[Stmt] = []
    for l in loops:
        if maximum not in definitions(l.body):
            out += l.body
            continue
        leaf, around = next((q, ls) for q, ls, _ in leaves(l.body) if q.name == maximum)
        own = target_loops(leaf, around)
        guards = tuple(w for w in leaf.where if variables(w) & {x.var for x in own} and not variables(w) & ({x.var for x in around} - {x.var for x in own}))
        old, scale = Ref(f"{maximum}_old", leaf.target.index), Ref(f"{maximum}_scale", leaf.target.index)
        at = next(i for i, s in enumerate(l.body) if maximum in definitions((s,)))
        out += l.body[:at]
        out += nest(own, (Assign(old, leaf.target, guards, f"{maximum}_old"),))
        out += (*l.body[at : at + 1], *shifts)
        out += nest(own, (Assign(scale, _scale(form, old, leaf.target, shifts), guards, f"{maximum}_scale"),))
        for f in folds:
            out += _scaling(loops, f, scale, own)
        out += l.body[at + 1 :]
    return tuple(out)


def _scale(form: _Homogeneous, old: Ref, target: Ref, shifts: Body) -> Scalar:
    """exp2(g·old - g·Z(M)) at the index of M."""
    match form.shift:
        case Op("*", (g, z)) if not references(g):
            left: Scalar = Op("*", (g, old))
        case z:
            left = old
    for leaf, _, _ in leaves(shifts):
        if isinstance(z, Ref) and z.array == leaf.target.array:
            z = Ref(z.array, leaf.target.index)
    right = map_references(z, lambda r: Ref(r.array, target.index))
    match form.shift:
        case Op("*", (g, _)) if not references(g):
            right = Op("*", (g, right))
        case _:
            pass
    return op(form.function, op("-", left, right))


def _scaling(loops: Sequence[Loop], fold: str, scale: Ref, rows: Sequence[Loop]) -> Body:
    """F ← F·scale over the fold's own index."""
    leaf, around = next((q, ls) for l in loops for q, ls, _ in leaves(l.body) if q.name == fold and isinstance(q, Accumulate))
    own = target_loops(leaf, around)
    if missing := {l.var for l in rows} - {l.var for l in own}:
        raise refusal("online", f"{fold} {listed(missing)}", f"{fold} has no axis {listed(missing)} of the maximum")
    gone = {l.var for l in around} - {l.var for l in own}
    guards = tuple(w for w in leaf.where if variables(w) & {l.var for l in own} and not variables(w) & gone)
    return nest(own, (Assign(leaf.target, op("*", leaf.target, scale), guards, fold),))


def rebase(k: Kernel, *, axis: str, maximum: str, part: str, weights: str, folds: Names, shift: str) -> Kernel:
    """Let every part of a split fold over `axis` use its own maximum: the weights become exp2(x - g·Z(part)), and a part is
    scaled by exp2(g·part - g·Z(maximum)), the definition `part`_factor, when it is added to the whole.

    The law of the monoid (m, l, o) again, across parts instead of along a loop: an empty part has the maximum -inf and the factor
    0. Legal when `maximum` folds `part` over the axis and `shift` is Z(maximum); the parts `folds` are sums linear in the weights,
    the only readers of those, and each is added by one sum that is its only reader; while the nests are apart.
    """
    known(k, "rebase", (maximum, part, weights, shift, *folds))
    own, scale = f"{part}_{shift}", f"{part}_factor"
    fresh(k, "rebase", own, scale)
    z, around = only_leaf(k.body, shift, "rebase")
    lanes, whole = _parts_of(k, axis, maximum, part)
    form = _check_parts(k, axis, z, maximum, shift, weights, folds)
    if whole.index != z.target.index:
        raise refusal("rebase", f"{shift} {axis}", f"{text(z.target)} is not at the index of {text(whole)}")

    def widen(r: Ref) -> Ref:
        return Ref(own if r.array == shift else part, (*r.index, Var(axis))) if r.array in (shift, maximum) else r

    factor = Ref(scale, (*z.target.index, Var(axis)))
    shifts = nest((*around, lanes), (Assign(Ref(own, factor.index), map_references(z.value, widen), z.where, own),))
    scales = nest((*around, lanes), (Assign(factor, _scale(form, Ref(part, factor.index), z.target, nest(around, (z,))), z.where, scale),))

    def changed(s: Stmt) -> Body:
        match s:
            case Assign() if s.name == weights:
                return (replace(s, value=map_references(s.value, widen)),)
            case Accumulate(_, _, Ref(array, _) as value) if array in folds:
                return (replace(s, value=op("*", value, factor)),)
            case _:
                return (s,)

    out: list[Stmt] = []
    last = max(i for i, s in enumerate(k.body) if part in written((s,)))
    for i, s in enumerate(map_statements(k.body, changed)):
        out += (s, *(shifts if i == last else ()), *(scales if definitions((s,)) == {shift} else ()))
    a = k.array(part)
    return with_arrays(k, tuple(out), add=(replace(a, name=own), replace(a, name=scale)))


def _parts_of(k: Kernel, axis: str, maximum: str, part: str) -> tuple[Loop, Ref]:
    """The loop over the parts and the whole maximum, from the fold maximum max= part[…, axis]."""
    for leaf, loops, _ in leaves(k.body):
        match leaf:
            case Accumulate("max", target, Ref(array, index)) if leaf.name == maximum and array == part and index == (*target.index, Var(axis)):
                return replace(next(l for l in loops if l.var == axis), kind="serial"), target
            case _:
                pass
    raise refusal("rebase", f"{maximum} {axis}", f"{maximum} is no fold of {part} over {axis}", f"split_fold {maximum} over {axis} first")


def _check_parts(k: Kernel, axis: str, z: Leaf, maximum: str, shift: str, weights: str, folds: Names) -> _Homogeneous:
    leaf, _ = only_leaf(k.body, weights, "rebase")
    form = _homogeneous(leaf.value, maximum, shift, z.value)
    if form is None:
        raise refusal("rebase", f"{weights} {axis}", f"{weights} is not exp2(x - g·Z({maximum}))", "apply the law base2")
    for q, loops, _ in leaves(k.body):
        reads = {r.array for r in references(q.value)}
        if weights in reads and not (q.name in folds and isinstance(q, Accumulate) and q.monoid == "sum" and _linear(q.value, weights)):
            raise refusal("rebase", f"{q.name} {axis}", f"{q.name} is no sum linear in {weights}: {text(q.value)}", "list it in folds")
        if used := reads & set(folds):
            sums = isinstance(q, Accumulate) and q.monoid == "sum" and isinstance(q.value, Ref) and axis in {l.var for l in loops}
            if not sums or not variables(z.target) <= {l.var for l in loops} | set(k.sizes):
                raise refusal("rebase", f"{listed(used)} {axis}", f"{q.name} does not add {listed(used)} over {axis}, part by part")
        if shift in reads and q.name not in (weights, shift):
            raise refusal("rebase", f"{shift} {axis}", f"{q.name} reads {shift} too")
    return form
