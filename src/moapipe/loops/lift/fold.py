"""Lifts that change where folds accumulate: accumulate_in, split_fold, spread, fold_into, peel_first, recompute,
repeat, privatise. In and out: a Kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from moapipe.algebra.index import add, affine, constant, floor_div, maximum, minimum, multiply, subtract
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, op, references, text, variables
from moapipe.loops.legal import accesses, clash
from moapipe.loops.lift.scope import (
    Names,
    chain,
    fresh,
    is_unit,
    known,
    listed,
    nest,
    refusal,
    starts_at_unit,
    target_loops,
    temporary,
    with_arrays,
)
from moapipe.loops.onf import (
    Accumulate,
    Alloc,
    Array,
    Assign,
    Body,
    If,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    definitions,
    leaves,
    map_expressions,
    map_references,
    map_statements,
    rename_variables,
    with_body,
    written,
)


def accumulate_in(k: Kernel, *, array: str, into: str) -> Kernel:
    """Compute `array` in a temporary and copy it out when it is complete, as the definition `array`_copy; readers read the copy.
    Legal while the nests are apart."""
    fresh(k, "accumulate_in", into)
    k.array(array)
    last = max((i for i, s in enumerate(k.body) if array in written((s,))), default=-1)
    if last < 0 or len(definitions((k.body[last],))) != 1:
        raise refusal("accumulate_in", array, f"no nest of its own writes {array}", "use it before fusing")
    leaf, loops, _ = next(iter(leaves((k.body[last],))))
    own = target_loops(leaf, loops)
    gone = {l.var for l in loops} - {l.var for l in own}
    guards = tuple(w for w in leaf.where if not variables(w) & gone)

    def swap(r: Ref) -> Scalar:
        return Ref(into, r.index) if r.array == array else r

    body = map_expressions(k.body[: last + 1], lambda e: map_references(e, swap))
    copy = nest([replace(l, kind="serial", mark="") for l in own], (Assign(leaf.target, Ref(into, leaf.target.index), guards, f"{array}_copy"),))
    a = k.array(array)
    return with_arrays(k, (*body, *copy, *k.body[last + 1 :]), add=(Array(into, a.shape, "workspace"),))


def split_fold(k: Kernel, *, definition: str, axis: Names, into: str) -> Kernel:
    """Fold in parts: one partial `into` for each iteration of `axis`, then the partials in order. Legal because monoids are
    associative; while the nests are apart. With several axes there is a partial for each of their combinations."""
    known(k, "split_fold", (definition,))
    fresh(k, "split_fold", into)
    at, init, fold, loops = _fold_nests(k, definition, "split_fold")
    own = target_loops(fold, loops)
    parts = [l for l in loops if l.var in axis and not any(l is x for x in own)]
    if lost := [v for v in axis if v not in {l.var for l in parts}]:
        raise refusal("split_fold", f"{definition} {lost[0]}", f"{definition} does not fold over {lost[0]}", f"its loops are {', '.join(l.var for l in loops)}")
    most = [_at_most(l.hi, {x.var: x for x in loops}) for l in parts]
    if changing := next((l for l, n in zip(parts, most, strict=True) if variables(n) & {x.var for x in loops}), None):
        raise refusal("split_fold", f"{definition} {changing.var}", f"the number of parts {text(changing.hi)} changes with another loop")
    kept = [l for l in loops if any(l is x for x in (*own, *parts))]
    gone = {l.var for l in loops} - {l.var for l in kept}
    part = Ref(into, (*fold.target.index, *(Var(l.var) for l in parts)))
    where = tuple(w for w in fold.where if not variables(w) & gone)
    new = (
        *nest(kept, (Assign(part, init.value, where, into),)), *nest(loops, (replace(fold, target=part, name=into),)),
        k.body[at], *nest(kept, (Accumulate(fold.monoid, fold.target, part, where, definition),)),
    )  # fmt: skip
    a = k.array(fold.target.array)
    return with_arrays(k, (*k.body[:at], *new, *k.body[at + 2 :]), add=(Array(into, (*a.shape, *most), "workspace"),))


def _at_most(e: Scalar, loops: Mapping[str, Loop]) -> Scalar:
    """A bound of `e` from above in all iterations; a loop's variable stays in it where none is found without."""
    match e:
        case Op("//", (x, Num() as f)):
            return floor_div(_at_most(x, loops), f)
        case Op("min", (a, b)):
            sides = [_at_most(a, loops), _at_most(b, loops)]
            free = [x for x in sides if not variables(x) & set(loops)]
            return free[0] if len(free) == 1 else minimum(*sides)
        case Op("max", (a, b)):
            return maximum(_at_most(a, loops), _at_most(b, loops))
        case Var(v) if v in loops:
            return subtract(_at_most(loops[v].hi, loops), 1)
        case Op("+" | "-" | "*"):
            ends = {x: _at_most(x, loops) if c > 0 and x != e else loops[x.name].lo if isinstance(x, Var) and x.name in loops else x for x, c in affine(e).items() if x != 1}
            return add(affine(e).get(1, 0), *(multiply(c, ends[x]) for x, c in affine(e).items() if x != 1))
        case _:
            return e


def spread(k: Kernel, *, definition: str, axis: str, lane: str, into: str) -> Kernel:
    """Fold once for every lane: each `lane`, of as many as `axis` has iterations, folds all of it into its own element of `into`, and the
    first stores the result. Lanes of a warp do that by halves, when `axis` is bound to `warp` and `lane` to thread.

    Legal where the definition folds over `axis` alone, whose extent is a number and which no guard mentions; while the nests are apart.
    """
    known(k, "spread", (definition,))
    fresh(k, "spread", into, lane)
    at, init, fold, loops = _fold_nests(k, definition, "spread")
    own = target_loops(fold, loops)
    over = next((l for l in loops if l.var == axis and not any(l is x for x in own)), None)
    if over is None or len(loops) != len(own) + 1 or any(axis in variables(w) for w in fold.where):
        raise refusal("spread", f"{definition} {axis}", f"{definition} is no fold over {axis} alone, without a guard", "split_fold the other axes first")
    if over.lo != Num(0) or constant(over.hi) is None:
        raise refusal("spread", f"{definition} {axis}", f"{axis} ends at {text(over.hi)}, which is no number", "split the axis by a constant first")
    lanes, wide = replace(over, var=lane), Ref(into, (*fold.target.index, Var(lane)))
    first = (*init.where, Op("<", (Var(lane), Num(1))))
    new = (
        *nest((*own, lanes), (Assign(wide, init.value, init.where, into),)), *nest((*own, lanes, over), (replace(fold, target=wide, name=into),)),
        *nest((*own, lanes), (Assign(fold.target, wide, first, definition),)),
    )  # fmt: skip
    a = k.array(fold.target.array)
    return with_arrays(k, (*k.body[:at], *new, *k.body[at + 2 :]), add=(Array(into, (*a.shape, over.hi), "workspace"),))


def _fold_nests(k: Kernel, definition: str, lift: str) -> tuple[int, Assign, Accumulate, tuple[Loop, ...]]:
    """(place of the initialisation, its leaf, the fold's leaf, the fold's loops) of a definition whose two nests are apart."""
    for i in range(len(k.body) - 1):
        (_, first), (loops, second) = chain(k.body[i]), chain(k.body[i + 1])
        match first, second:
            case (Assign() as init,), (Accumulate() as fold,) if init.name == fold.name == definition and init.target == fold.target:
                return i, init, fold, loops
            case _:
                pass
    raise refusal(lift, definition, f"{definition} is no initialisation and one fold in nests of their own", "use it before fusing")


def fold_into(k: Kernel, *, definition: str, reader: str) -> Kernel:
    """Fold straight into the only reader, where that is linear: X ← Σ v, C ← a·X + c becomes C ← c, C ← C + a·v.

    Legal because × distributes over a sum; while the nests are apart.
    """
    known(k, "fold_into", (definition, reader))
    at, init, fold, loops = _fold_nests(k, definition, "fold_into")
    x = fold.target.array
    uses = [u for u in accesses(k.body, x) if not u.store]
    if fold.monoid != "sum" or not is_unit(init, 0.0) or len(uses) != 1 or uses[0].leaf.name != reader or uses[0].ref != fold.target:
        raise refusal("fold_into", f"{definition} {reader}", f"{definition} is no sum from 0 that {reader} alone reads, at its own index")
    leaf = uses[0].leaf
    parts = _linear_parts(leaf.value, fold.target)
    if parts is None or not isinstance(leaf, Assign) or leaf.target.index != fold.target.index:
        raise refusal("fold_into", f"{definition} {reader}", f"{text(leaf.value)} is not a·{definition} + c, element by element")
    factor, rest = parts
    value = fold.value if factor is None else op("*", factor, fold.value)
    guards = tuple(dict.fromkeys((*leaf.where, *fold.where)))
    into = (*nest(uses[0].loops, (replace(leaf, value=rest),)), *nest(loops, (Accumulate("sum", leaf.target, value, guards, reader),)))
    if any(clash((s,), (k.body[at + 1],)) and reader not in definitions((s,)) for s in k.body[at + 2 :]):
        raise refusal("fold_into", f"{definition} {reader}", "what the fold reads is overwritten later")
    others = [s for i, s in enumerate(k.body) if i not in (at, at + 1)]
    place = next(i for i, s in enumerate(others) if reader in definitions((s,)))
    if definitions((others[place],)) != {reader}:
        raise refusal("fold_into", reader, f"{reader} shares its nest", "use it before fusing")
    return with_arrays(k, (*others[:place], *into, *others[place + 1 :]))


def _linear_parts(e: Scalar, x: Ref) -> tuple[Scalar | None, Scalar] | None:
    """(a, c) of e = a·x + c with a and c free of x; a is None for 1."""
    match e:
        case Ref() if e == x:
            return None, Num(0.0)
        case Op("*", (a, b)):
            for one, other in ((a, b), (b, a)):
                if one == x and x.array not in {r.array for r in references(other)}:
                    return other, Num(0.0)
        case Op("+", (a, b)):
            for one, other in ((a, b), (b, a)):
                parts = _linear_parts(one, x)
                if parts is not None and parts[1] == Num(0.0) and x.array not in {r.array for r in references(other)}:
                    return parts[0], other
        case _:
            pass
    return None


def peel_first(k: Kernel, *, definition: str, axis: str) -> Kernel:
    """Let the first iteration of a sum assign instead of add: C ← c, C ← C + v over `axis` becomes C ← c + v where axis is
    first, C ← C + v elsewhere; the initialisation runs only when there is no iteration.

    Legal when `axis` is the only axis folded over, in nests of their own.
    """
    known(k, "peel_first", (definition,))
    at, init, fold, loops = _fold_nests(k, definition, "peel_first")
    folded = [l for l in loops if not any(l is x for x in target_loops(fold, loops))]
    if fold.monoid != "sum" or [l.var for l in folded] != [axis]:
        raise refusal("peel_first", f"{definition} {axis}", f"{definition} is no sum over {axis} alone", f"it folds over {listed(l.var for l in folded)}")
    first, last = folded[0].lo, folded[0].hi
    if variables(last) & {l.var for l in loops}:
        raise refusal("peel_first", f"{definition} {axis}", f"the end {text(last)} of {axis} changes with another loop")
    if set(fold.where) - set(init.where):
        raise refusal("peel_first", f"{definition} {axis}", "the sum has guards that its initialisation lacks", "clip them")
    value = fold.value if is_unit(init, 0.0) else op("+", init.value, fold.value)
    start = Assign(fold.target, value, (*fold.where, op("<=", axis, first)), definition)
    more = replace(fold, where=(*fold.where, op("<", first, axis)))
    new = (If(op("<=", last, first), (k.body[at],)), *nest(loops, (start, more)))
    return with_arrays(k, (*k.body[:at], *new, *k.body[at + 2 :]))


def recompute(k: Kernel, *, which: Names, readers: Names, suffix: str = "2") -> Kernel:
    """Give `readers` their own copy of definitions, on axes with a suffix, so that they may run in a nest of their own.
    Always legal, while the nests are apart: definitions are pure."""
    known(k, "recompute", (*which, *readers))
    mine = tuple(s for s in k.body if definitions((s,)) <= set(which))
    theirs = tuple(s for s in k.body if definitions((s,)) <= set(readers))
    if not mine or not theirs:
        raise refusal("recompute", listed(which), "their nests are fused with others", "recompute before fusing")
    arrays = written(mine)
    fresh(k, "recompute", *(f"{a}{suffix}" for a in arrays))

    def rename(r: Ref) -> Scalar:
        return Ref(f"{r.array}{suffix}", r.index) if r.array in arrays else r

    def copy(body: Body) -> Body:
        body = map_expressions(body, lambda e: map_references(e, rename))
        body = rename_variables(body, {l.var: f"{l.var}{suffix}" for _, ls, _ in leaves(body) for l in ls})
        return map_statements(body, lambda s: (replace(s, name=f"{s.name}{suffix}"),) if isinstance(s, Leaf) and s.name in which else (s,))

    at = k.body.index(theirs[0])
    rest = tuple(q for s in k.body[at:] for q in (copy((s,)) if s in theirs else (s,)))
    return with_arrays(k, (*k.body[:at], *copy(mine), *rest), add=tuple(replace(k.array(a), name=f"{a}{suffix}") for a in sorted(arrays)))


def repeat(k: Kernel, *, which: Names, axis: str) -> Kernel:
    """Compute definitions anew for every iteration of an axis that they do not depend on, so that they may share a nest with what
    does: their arrays get it as the last dimension.

    Legal for temporaries while the nests are apart: definitions are pure. Their readers must have the axis too.
    """
    known(k, "repeat", which)
    loop = next((l for _, ls, _ in leaves(k.body) for l in ls if l.var == axis), None)
    if loop is None or variables(loop.hi) - set(k.sizes) or loop.lo != Num(0):
        raise refusal("repeat", axis, f"no loop {axis} from 0 whose end the sizes give", "split the axis first")
    mine = tuple(s for s in k.body if definitions((s,)) <= set(which))
    if any(definitions((s,)) & set(which) and s not in mine for s in k.body):
        raise refusal("repeat", listed(which), "their nests are fused with others", "repeat before fusing")
    moved = {temporary(k, "repeat", a).name for a in written(mine)}
    bare = {x.leaf.name for s in k.body if s not in mine for x in accesses((s,)) if x.ref.array in moved and axis not in {l.var for l in x.loops}}
    if bare:
        raise refusal("repeat", f"{listed(bare)} {axis}", f"{listed(bare)} reads {listed(moved)} and has no {axis}", "repeat it too")

    def widen(r: Ref) -> Scalar:
        return Ref(r.array, (*r.index, Var(axis))) if r.array in moved else r

    body = map_expressions(tuple(replace(loop, body=(s,)) if s in mine else s for s in k.body), lambda e: map_references(e, widen))
    return with_arrays(k, body, change=tuple(replace(a, shape=(*a.shape, loop.hi)) for a in k.arrays if a.name in moved))


def privatise(k: Kernel, *, definition: str, lane: str, at: str) -> Kernel:
    """Keep one partial of a sum-fold per lane for the whole loop `at`: the fold over `lane` becomes elementwise in the
    partials `definition`_lanes, which are folded once after the loop.

    Legal because the monoid is associative and commutative, the accumulator starts at the unit, and its other updates in
    the loop are scalings, which distribute over the partials; nobody reads it in the loop.
    """
    known(k, "privatise", (definition,))
    part = f"{definition}_lanes"
    fresh(k, "privatise", part)
    a = temporary(k, "privatise", definition)
    done: list[Array] = []

    def go(body: Body) -> Body:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop) and s.var == at and definition in written(s.body):
                before, loop, after, array = _privatised(a, s, definition, lane, part)
                starts_at_unit(out, definition, "privatise")
                out += (*before, loop, *after)
                done.append(array)
            elif isinstance(s, Loop | If):
                out.append(with_body(s, go(s.body)))
            else:
                out.append(s)
        return tuple(out)

    body = go(k.body)
    if not done:
        raise refusal("privatise", f"{definition} {at}", f"no loop {at} writes {definition}")
    return with_arrays(k, body, add=done)


def _privatised(a: Array, loop: Loop, definition: str, lane: str, part: str) -> tuple[Body, Loop, Body, Array]:
    """(initialisation, loop on partials, final fold, the partials' array)."""
    found = [(q, ls) for q, ls, _ in leaves(loop.body) if q.target.array == definition and isinstance(q, Accumulate)]
    if len(found) != 1 or lane not in {l.var for l in found[0][1]} or found[0][0].monoid != "sum":
        raise refusal("privatise", f"{definition} {lane}", f"{definition} is no sum over {lane} in this loop")
    fold, around = found[0]
    lanes = next(l for l in around if l.var == lane)
    rows = target_loops(fold, around)

    def widen(r: Ref) -> Ref:
        return Ref(part, (*r.index, Var(lane))) if r.array == definition else r

    def go(body: Body) -> Body:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop | If):
                out.append(with_body(s, go(s.body)))
            elif isinstance(s, Leaf) and s.target.array == definition:
                out += _widened(s, definition, lanes, widen)
            elif isinstance(s, Leaf) and definition in {r.array for r in references(s.value)}:
                raise refusal("privatise", definition, f"{s.name} reads {definition} in the loop")
            else:
                out.append(s)
        return tuple(out)

    spread = replace(lanes, kind="serial")
    first = nest((*rows, spread), (Assign(widen(fold.target), Num(0.0), (), definition),))
    last = nest((*rows, spread), (Accumulate("sum", fold.target, widen(fold.target), (), definition),))
    return (Alloc(part), *first), replace(loop, body=go(loop.body)), last, Array(part, (*a.shape, lanes.hi), "private")


def _widened(s: Leaf, definition: str, lanes: Loop, widen: Callable[[Ref], Ref]) -> Body:
    """An update of the accumulator as an update of its partials."""
    match s:
        case Accumulate(_, target, value) if definition not in {r.array for r in references(value)}:
            return (replace(s, target=widen(target)),)
        case Assign(target, Op("*", (same, y))) if same == target and definition not in {r.array for r in references(y)}:
            new = widen(target)
            return nest((replace(lanes, kind="serial"),), (replace(s, target=new, value=op("*", new, y)),))
        case _:
            raise refusal("privatise", definition, f"{s.name} updates it by {text(s.value)}, which is no sum and no scaling")

