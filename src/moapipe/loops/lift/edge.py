"""Lifts about the edges of axes, tails and masks: mask, pad, hoist_mask, overwrite, decide, skip. In and out: a Kernel.

The order that works: skip (before fusing), fill and mask, then pad. `clip` (nest) is the alternative to pad that is
always legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moapipe.algebra.index import Affine, affine, combine, constant, expression, extreme, subtract
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, references, rewrite, text, variables
from moapipe.loops.legal import UNIT, Beyond, accesses, always, beyond, conjuncts, first_true, fold_beyond, greatest, hull, least, negation
from moapipe.loops.lift.scope import (
    Names,
    after_nest,
    axes_of,
    chain,
    covered,
    known,
    listed,
    nest,
    nest_loops,
    only_leaf,
    refusal,
    target_loops,
)
from moapipe.loops.onf import Accumulate, Assign, Body, If, Kernel, Leaf, Loop, Stmt, definitions, leaves, map_leaf, map_statements

_ZERO = Num(0)


def mask(k: Kernel, *, definition: str, axis: str, value: float, name: str) -> Kernel:
    """Put a fold's unit into a temporary past the edge of an axis: X ← select(inside, X, value), as a definition `name`
    right after the last leaf of `definition`; when `name` is already such a select, the edge joins its condition.

    The new leaf has no guard on the axis, so the temporary must reach over the whole padded range (checked).
    """
    known(k, "mask", (definition,))
    if name in definitions(k.body):
        leaf, loops = only_leaf(k.body, name, "mask")
        guards = tuple(w for w in leaf.where if axis in variables(w))
        match leaf:
            case Assign(_, Op("select", (c, x, Num(v)))) if guards and v == value:
                new: Leaf = replace(leaf, value=Op("select", (_all((*guards, *conjuncts(c))), x, Num(v))), where=_without(leaf.where, guards))
            case _:
                raise refusal("mask", f"{name} {axis}", f"{name} is no guarded select(…, {value})")
        covered(k, new, loops, "mask", axis)
        return replace(k, body=map_statements(k.body, lambda s: (new,) if s is leaf else (s,)))
    found = [(q, l) for q, l, _ in leaves(k.body) if q.name == definition]
    last, loops = found[-1]
    guards = tuple(w for w in last.where if axis in variables(w))
    if not guards or not all(any(l.var in variables(i) for i in last.target.index) for l in loops if l.var == axis):
        raise refusal("mask", f"{definition} {axis}", f"{definition} has no guard on {axis}", f"its axes are {', '.join(l.var for l in loops)}")
    outer = {l.var for l in loops} - {l.var for l in nest_loops(k.body, last)}
    own = [replace(l, kind="serial", mark="") for l in target_loops(last, loops) if l.var not in outer]
    edge = Assign(last.target, Op("select", (_all(guards), last.target, Num(value))), _without(last.where, guards), name)
    covered(k, edge, loops, "mask", axis)
    return replace(k, body=after_nest(k.body, last, nest(own, (edge,))))


def _all(atoms: Sequence[Scalar]) -> Scalar:
    out = atoms[0]
    for a in atoms[1:]:
        out = Op("and", (out, a))
    return out


def _without(where: tuple[Scalar, ...], guards: Sequence[Scalar]) -> tuple[Scalar, ...]:
    return tuple(w for w in where if w not in guards)


def pad(k: Kernel, *, axis: Names, only: Names = ()) -> Kernel:
    """Drop the guards on `axis` (all names are parts of one logical axis) of the leaves that store temporaries: the
    iterations past the edge compute values that no output sees.

    Legal when every index stays within its array (padding), and every fold over the axis sees its unit past the edge,
    by evaluation: max of -inf, exp2(-inf) = 0, 0·finite = 0. Outputs keep their guards (clip them), and so do definitions
    that hold a known value there (stage, fill). Where tiles divide the axis exactly nothing is past the edge.
    """
    known(k, "pad", only)
    held: dict[str, Beyond] = {a.name: a.outside for a in k.arrays if a.outside is not None}
    new: dict[int, Leaf] = {}
    past = frozenset(w for leaf, _, _ in leaves(k.body) for w in leaf.where if variables(w) & set(axis))
    for leaf, loops, _ in leaves(k.body):
        guards = frozenset(w for w in leaf.where if variables(w) & set(axis))
        array = k.array(leaf.target.array)
        space = array.space
        if array.outside is not None:
            continue
        if space in ("input", "output") or (only and leaf.name not in only):
            if guards and only and leaf.name in only:
                raise refusal("pad", f"{leaf.target.array} {listed(axis)}", f"{leaf.target.array} is an {space}: it has no room past the edge", "clip it")
            continue
        if guards:
            for v in axis:
                covered(k, leaf, loops, "pad", v)
            _reached(k, leaf, loops, axis, only)
            new[id(leaf)] = replace(leaf, where=_without(leaf.where, tuple(guards)))
        _hold(leaf, axis, held, past, refuse=bool(guards))
    if not any(_along(k, leaf, loops, axis, only) for leaf, loops, _ in leaves(k.body)):
        raise refusal("pad", listed(axis), f"no loop over it stores a temporary of {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=map_statements(k.body, lambda s: (new.get(id(s), s),) if isinstance(s, Leaf) else (s,)))


def _along(k: Kernel, leaf: Leaf, loops: Sequence[Loop], axis: Names, only: Names) -> bool:
    """The leaf is one of `only`, stores a temporary and runs along the axis."""
    mine = not only or leaf.name in only
    return mine and k.array(leaf.target.array).space not in ("input", "output") and any(l.var in axis for l in loops)


def _reached(k: Kernel, leaf: Leaf, loops: Sequence[Loop], axis: Names, only: Names) -> None:
    """Refuse when the leaf would read elements past the edge that a clipped writer of a temporary, or one that stays guarded, never stores."""
    mine = {l.var: (l.lo, l.hi) for l in loops if l.var in axis}
    for r in references(leaf.value):
        a = k.array(r.array)
        if a.space in ("input", "output") or a.outside is not None or not any(variables(i) & set(axis) for i in r.index):
            continue
        for q, around, _ in leaves(k.body):
            theirs = {l.var: (l.lo, l.hi) for l in around if l.var in axis} if q.target.array == r.array else {}
            whole = all(constant(lo) == 0 and constant(hi) is not None for lo, hi in theirs.values())
            same = all(mine.get(v) == bounds for v, bounds in theirs.items())
            guarded = bool(only) and q.name not in only and q.target.array == r.array and any(variables(w) & set(axis) for w in q.where)
            if guarded or not (whole or same):
                raise refusal("pad", f"{r.array} {listed(theirs)}", f"{leaf.name} reads {r.array} further than {q.name} stores it", "clip both, or neither")


def _hold(leaf: Leaf, axis: Names, held: dict[str, Beyond], false: frozenset[Scalar], refuse: bool, only: frozenset[str] | None = None) -> None:
    """Update what each array holds past the edge by executing one leaf there; refuse a fold that would not see its unit.
    With `only`, just these arrays lie there, and all others inside."""
    x = leaf.target.array
    along = any(variables(i) & set(axis) for i in leaf.target.index)
    value = beyond(leaf.value, _seen(leaf, axis, held, only), false)
    if isinstance(leaf, Accumulate):
        if not along and refuse and value != UNIT[leaf.monoid]:
            sees = "something that is not known" if value == "unknown" else str(value)
            hint = "mask the folded values, stage its operands padded, or clip this fold"
            raise refusal("pad", f"{x} {listed(axis)}", f"the {leaf.monoid} {leaf.name} would see {sees} past the edge, not {UNIT[leaf.monoid]}", hint)
        held[f"{x} inside"] = fold_beyond(leaf.monoid, "below" if leaf.monoid == "max" else "finite", held.get(f"{x} inside", UNIT[leaf.monoid]))
        if along:
            held[x] = fold_beyond(leaf.monoid, value, held.get(x, "unknown"))
        return
    held[f"{x} inside"] = _inside(leaf, held)
    if along:
        held[x] = value


def _seen(leaf: Leaf, axis: Names, held: Mapping[str, Beyond], only: frozenset[str] | None) -> dict[str, Beyond]:
    """What each array that the leaf reads holds in an iteration past the edge: its outside value where the reference
    moves with the axis, its inside value where it does not, or where it is none of `only`. Inputs are finite inside."""
    out: dict[str, Beyond] = {}
    for r in references(leaf.value):
        moves = any(variables(i) & set(axis) for i in r.index) and (only is None or r.array in only)
        out[r.array] = held.get(r.array, "unknown") if moves else held.get(f"{r.array} inside", "finite")
    return out


def _inside(leaf: Leaf, held: Mapping[str, Beyond]) -> Beyond:
    """What an assignment holds inside the edge: -inf is possible wherever a mask or a max may put it."""
    inside: dict[str, Beyond] = {r.array: held.get(f"{r.array} inside", "finite") for r in references(leaf.value)}
    return beyond(leaf.value, inside, frozenset())


def hoist_mask(k: Kernel, *, definition: str) -> Kernel:
    """Run an in-place mask only on tiles that are not wholly inside: the whole nest is guarded by one condition.

    Legal because the mask X ← select(c, X, v) stores what is there wherever c holds; the condition is affine, so its
    extreme over the tile decides.
    """
    leaf, _ = only_leaf(k.body, definition, "hoist_mask")
    match leaf:
        case Assign(target, Op("select", (condition, same, _))) if same == target and not leaf.where:
            pass
        case _:
            raise refusal("hoist_mask", definition, f"{definition} is no unguarded in-place select", "alias it onto what it masks, pad its axes")
    loops = nest_loops(k.body, leaf)
    ranges = {l.var: hull(l) for l in loops}
    inside = []
    for atom in conjuncts(condition):
        if not isinstance(atom, Op) or atom.name not in ("<", "<="):
            raise refusal("hoist_mask", definition, f"{text(atom)} is no affine comparison")
        inside.append(Op(atom.name, (extreme(subtract(*atom.args), ranges, True), _ZERO)))

    def guard(body: Body) -> Body:
        out: list[Stmt] = []
        for s in body:
            _, inner = chain(s)
            if any(q is leaf for q in inner):
                s = If(Op("not", (_all(inside),)), (s,))
            elif isinstance(s, Loop | If):
                s = replace(s, body=guard(s.body))
            out.append(s)
        return tuple(out)

    return replace(k, body=guard(k.body))


def overwrite(k: Kernel, *, definition: str) -> Kernel:
    """Let an in-place mask X ← select(c, X, v) store v where a comparison of c fails, and nothing where c holds: a nest for each.

    Always legal: elsewhere the mask stores what is there, and v stored twice is v. Clip the axes afterwards: what is left are
    the edges of the mask, not its area.
    """
    leaf, _ = only_leaf(k.body, definition, "overwrite")
    match leaf:
        case Assign(target, Op("select", (condition, same, Num() as v))) if same == target:
            parts = tuple(replace(leaf, value=v, where=(*leaf.where, negation(c))) for c in conjuncts(condition))
        case _:
            raise refusal("overwrite", definition, f"{definition} is no in-place select", "alias it onto what it masks")

    def go(body: Body) -> Body:
        out: list[Stmt] = []
        for s in body:
            loops, inner = chain(s)
            if inner == (leaf,):
                out += (x for q in parts for x in nest(loops, (q,)))
            else:
                out.append(replace(s, body=go(s.body)) if isinstance(s, Loop | If) else s)
        return tuple(out)

    return replace(k, body=go(k.body))


def decide(k: Kernel, *, definition: str) -> Kernel:
    """Take the first value of a choice whose condition always holds in the loops around: where they were shortened to a mask,
    nothing is left to choose. Legal where it is proved, refused where nothing is."""
    known(k, "decide", (definition,))
    done: list[Scalar] = []

    def taken(e: Scalar, loops: Sequence[Loop]) -> Scalar:
        match e:
            case Op("select", (c, x, _)) if all(always(a, loops) for a in conjuncts(c)):
                done.append(c)
                return x
            case _:
                return e

    found = {id(q): ls for q, ls, _ in leaves(k.body) if q.name == definition}

    def go(s: Stmt) -> Body:
        return (map_leaf(s, lambda e: rewrite(e, lambda x: taken(x, found[id(s)]))),) if isinstance(s, Leaf) and id(s) in found else (s,)

    body = map_statements(k.body, go)
    if not done:
        raise refusal("decide", definition, f"no choice in {definition} is proved to be made", "shorten its loops to the mask first: skip")
    return replace(k, body=body)


def skip(k: Kernel, *, axis: Names, mask: str, over: Names = ()) -> Kernel:
    """Shorten the loops `axis` (parts of one masked axis) to the tiles that are not wholly masked. A tile's rows are the
    loops inside, and `over`.

    Legal when each fold over the axis sees its unit wherever the mask's unit is (by evaluation), every reader of a
    temporary that is no longer stored there is shortened at least as far, and the nests are still apart.
    """
    m, _ = only_leaf(k.body, mask, "skip")
    match m:
        case Assign(target, Op("select", (condition, _, Num(unit)))):
            pass
        case _:
            raise refusal("skip", mask, f"{mask} is no select(condition, value, number)", f"definitions are {listed(definitions(k.body))}")
    atoms = [_over_dimensions(a, target) for a in conjuncts(condition)]
    tied = _tied(k, m)
    held: dict[str, Beyond] = {a.name: a.outside for a in k.arrays if a.outside is not None}
    places: dict[int, tuple[Scalar, ...]] = {}
    grains: dict[str, list[tuple[str, tuple[int | None, ...]]]] = {}
    for leaf, loops, _ in leaves(k.body):
        cut = [l for l in loops if l.var in axis]
        mine = bool(cut) and bool(tied & {leaf.target.array, *(r.array for r in references(leaf.value))})
        place = _masked_place(leaf, tied, axis, held) if mine else None
        _hold(leaf, tuple(axis), held, frozenset(conjuncts(condition)) if leaf is m else frozenset(), refuse=False, only=tied)
        if not mine:
            continue
        if place is None:
            raise refusal("skip", f"{leaf.target.array} {listed(axis)}", f"{leaf.name} over {listed(axis)} is no identity where {mask} is {unit}")
        places[id(leaf)] = place
        grain = tuple(_grain(i, loops, cut[-1], over) for i in place)
        for r in (leaf.target, *references(leaf.value)):
            if r.array in tied:
                grains.setdefault(r.array, []).append((leaf.name, grain))
    if not places:
        raise refusal("skip", listed(axis), "no loop over it", f"axes are {axes_of(k.body)}")
    _refined(k, grains, m, places)
    return replace(k, body=_shortened(k.body, axis, over, atoms, places))


def _over_dimensions(atom: Scalar, target: Ref) -> tuple[str, dict[int, int], Affine]:
    """A comparison over the mask's loops, restated over its index: (sign, {dimension: coefficient}, rest), Σ c·i + rest < 0."""
    assert isinstance(atom, Op)
    form = affine(subtract(*atom.args))
    out: dict[int, int] = {}
    for d, i in enumerate(target.index):
        own = affine(i)
        witness = next((x for x, c in own.items() if x != 1 and abs(c) == 1 and x in form), None)
        if witness is not None:
            c = form[witness] * own[witness]
            out[d] = c
            form = combine(form, {x: c * v for x, v in own.items()}, -1)
    return atom.name, out, form


def _tied(k: Kernel, m: Leaf) -> frozenset[str]:
    """Arrays that hold one element for each element of the mask: what it selects from, and what is computed from it
    element by element."""
    found = {m.target.array}
    before = -1
    while before != len(found):
        before = len(found)
        for leaf, _, _ in leaves(k.body):
            same = {r.array for r in references(leaf.value) if r.index == leaf.target.index}
            if isinstance(leaf, Assign) and leaf.target.array in found:
                found |= {x for x in same if k.array(x).space != "input"}
            elif isinstance(leaf, Assign) and same & found:
                found.add(leaf.target.array)
    return frozenset(found)


def _masked_place(leaf: Leaf, tied: frozenset[str], axis: Names, held: Mapping[str, Beyond]) -> tuple[Scalar, ...] | None:
    """The mask's index that an iteration of the leaf belongs to, or None when the iteration has an effect there: a fold has
    none where it sees its unit, whether or not its target moves with the axis."""
    if leaf.target.array in tied:
        return leaf.target.index
    if not isinstance(leaf, Accumulate):
        return None
    places = {r.index for r in references(leaf.value) if r.array in tied}
    unseen = beyond(leaf.value, _seen(leaf, axis, held, tied), frozenset()) == UNIT[leaf.monoid]
    return places.pop() if unseen and len(places) == 1 else None


def _grain(e: Scalar, loops: Sequence[Loop], cut: Loop, over: Names) -> int | None:
    """How many consecutive values an index takes in one tile: loops inside the shortened one, and `over`."""
    inner = {l.var for l in loops[loops.index(cut) + 1 :]} | set(over)
    size = 1
    for l in loops:
        c = affine(e).get(Var(l.var), 0)
        if l.var in inner and c:
            hi = constant(hull(l)[1])
            if hi is None:
                return None
            size += abs(c) * (hi - 1)
    return size


def _refined(k: Kernel, grains: Mapping[str, list[tuple[str, tuple[int | None, ...]]]], m: Leaf, places: Mapping[int, object]) -> None:
    """Every reader's tiles must refine the tiles of every writer of the same temporary, and all readers must be shortened."""
    for x in accesses(k.body):
        if x.ref.array in grains and id(x.leaf) not in places:
            writes = [q for q, _, _ in leaves(k.body) if q.target.array == x.ref.array and id(q) in places]
            if writes:
                raise refusal("skip", x.ref.array, f"{x.leaf.name} uses all of {x.ref.array}, whose masked tiles would not be stored", "name its axis too")
    if kept := [a for a in grains if k.array(a).space == "output"]:
        raise refusal("skip", listed(kept), f"{listed(kept)} is an output: its masked tiles are wanted too")
    for array, users in grains.items():
        writers = {n for n, _ in users} & {q.name for q, _, _ in leaves(k.body) if q.target.array == array}
        for name, coarse in users:
            for reader, fine in users:
                ok = all(c == f or (c is not None and f is not None and c % f == 0) for c, f in zip(coarse, fine, strict=True))
                if name in writers and reader not in (*writers, m.name) and not ok:
                    raise refusal("skip", array, f"{reader} reads tiles of {fine} that {name} stores in tiles of {coarse}", "name the row axes in `over`")


def _shortened(body: Body, axis: Names, over: Names, atoms: Sequence[tuple[str, dict[int, int], Affine]], places: Mapping[int, tuple[Scalar, ...]]) -> Body:
    def go(body: Body, rows: dict[str, tuple[Scalar, Scalar]]) -> Body:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                deeper = {**rows, s.var: hull(s)} if s.var in over else rows
                s = replace(s, body=go(s.body, deeper))
                s = _shorter(s, deeper, atoms, places) if s.var in axis else s
            elif isinstance(s, If):
                s = replace(s, body=go(s.body, rows))
            out.append(s)
        return tuple(out)

    return go(body, {})


def _shorter(s: Loop, rows: dict[str, tuple[Scalar, Scalar]], atoms: Sequence[tuple[str, dict[int, int], Affine]], places: Mapping[int, tuple[Scalar, ...]]) -> Loop:
    inner = {l.var: hull(l) for leaf, loops, _ in leaves(s.body) for l in loops} | rows
    ends = set()
    if not any(id(leaf) in places for leaf, _, _ in leaves(s.body)):
        return s
    for leaf, _, _ in leaves(s.body):
        if id(leaf) not in places:
            raise refusal("skip", f"{leaf.target.array} {s.var}", f"{leaf.name} is not masked and shares the loop", "skip before fusing")
        lo, hi = s.lo, s.hi
        for name, dims, rest in atoms:
            total: Scalar = expression(rest)
            for d, c in dims.items():
                total = expression(combine(affine(total), {x: c * v for x, v in affine(places[id(leaf)][d]).items()}))
            below, above = first_true(Op(name, (extreme(total, inner, False), _ZERO)), s.var)
            lo, hi = (lo if below is None else greatest(lo, below)), (hi if above is None else least(hi, above))
        ends.add((lo, hi))
    if len(ends) != 1:
        raise refusal("skip", s.var, f"the leaves of {listed(definitions(s.body))} end at different places", "skip before fusing")
    lo, hi = ends.pop()
    return replace(s, lo=lo, hi=hi)

