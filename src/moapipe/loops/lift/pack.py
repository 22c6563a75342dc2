"""Lifts that copy an array into the layout that a loop wants, padded: stage and fill. In and out: a Kernel."""

from __future__ import annotations

from dataclasses import replace

from moapipe.algebra.scalar import Num, Ref, Scalar, Var, references, text, variables
from moapipe.loops.legal import Access, accesses, hull, negation
from moapipe.loops.lift.scope import (
    Names,
    after_nest,
    axes_in,
    covered,
    fresh,
    known,
    listed,
    nest,
    nest_loops,
    only_leaf,
    refusal,
    with_arrays,
)
from moapipe.loops.onf import Alloc, Array, Assign, Body, Kernel, Leaf, Loop, Stmt, map_references, map_statements, mentions, written


def stage(k: Kernel, *, array: str, into: str, index: Names, at: str = "", only: Names = (), fill: float | None = None) -> Kernel:
    """Copy `array` into `into`, laid out by the loop variables `index`, before the nests that read it (workspace), or at
    the start of the loop `at` (private). Past an edge the copy holds `fill`.

    Legal when `array` is complete there, the reads of `only` have one index, and `index` with the loops outside `at`
    covers it. The copy is a nest of its own, and so is each part of its padding; all belong to a definition `into`.
    """
    known(k, "stage", only)
    fresh(k, "stage", into)
    a = k.array(array)
    uses = [x for x in accesses(k.body, array) if not x.store and (not only or x.leaf.name in only)]
    if not uses:
        raise refusal("stage", array, f"{listed(only)} does not read {array}", f"readers are {listed(x.leaf.name for x in accesses(k.body, array))}")
    if len({x.ref for x in uses}) != 1:
        raise refusal("stage", array, f"it is read at several indices: {', '.join(sorted({text(x.ref) for x in uses}))}")
    if a.space == "register":
        raise refusal("stage", array, f"{array} lives in registers")
    copy, extents = _copy(uses[0], into, index, at, fill)
    target = Ref(into, tuple(Var(v) for v in index))

    def redirect(s: Stmt) -> Body:
        if not isinstance(s, Leaf) or (only and s.name not in only):
            return (s,)
        return (replace(s, value=map_references(s.value, lambda r: target if r.array == array else r, array)),)

    pad = fill if len(copy) > 1 else None
    if at and any(array in written((l,)) for u in uses for l in u.loops if l.var == at):
        raise refusal("stage", f"{array} {at}", f"{array} is written inside the loop {at}", "stage it where it is complete")
    if at:
        body = _placed_in(map_statements(k.body, redirect, array), at, (Alloc(into), *copy), into)
        return with_arrays(k, body, add=(Array(into, extents, "private", pad),))
    last = max((i for i, s in enumerate(k.body) if array in written((s,))), default=-1)
    first = min(i for i, s in enumerate(k.body) if any(x.leaf.name == u.leaf.name for u in uses for x in accesses((s,), array) if not x.store))
    if a.space == "private" or last >= first:
        raise refusal("stage", array, f"{array} is written in the nest that reads it", "give `at` a loop in which it is complete")
    done = map_statements(k.body, redirect, array)
    return with_arrays(k, (*done[: last + 1], *copy, *done[last + 1 :]), add=(Array(into, extents, "workspace", pad),))


def _copy(use: Access, into: str, index: Names, at: str, fill: float | None) -> tuple[Body, tuple[Scalar, ...]]:
    """The nest that copies, and the extents of the copy."""
    names = [l.var for l in use.loops]
    if missing := [v for v in (*index, *([at] if at else [])) if v not in names]:
        raise refusal("stage", f"{use.ref.array} {listed(missing)}", f"{use.leaf.name} has no loop {listed(missing)}", f"its loops are {', '.join(names)}")
    outside = set(names[: names.index(at) + 1]) if at else set[str]()
    wanted = frozenset[str]().union(*(variables(i) for i in use.ref.index)) & set(names)
    if loose := wanted - set(index) - outside:
        raise refusal("stage", f"{use.ref.array} {listed(loose)}", f"axes {listed(loose)} are neither in the layout nor fixed at {at or 'the root'}")
    by = {l.var: l for l in use.loops}
    loops = [replace(by[v], kind="serial", mark="") for v in index]
    for i, l in enumerate(loops):
        if needs := (variables(l.lo) | variables(l.hi)) & set(names) - outside - set(index[:i]):
            raise refusal("stage", f"{use.ref.array} {l.var}", f"the bound {text(l.hi)} of {l.var} needs {listed(needs)}", "stage before skip, or order the index")
    guards = tuple(w for w in use.leaf.where if variables(w) & wanted and variables(w) & set(names) <= set(index) | outside)
    leaf = Assign(Ref(into, tuple(Var(v) for v in index)), use.ref, guards, into)
    nests = (leaf, *(_complement(leaf, guards, fill) if fill is not None else ()))
    return tuple(s for q in nests for s in nest(loops, (q,))), tuple(_extent(use, l, index, outside) for l in loops)


def _extent(use: Access, l: Loop, index: Names, outside: set[str]) -> Scalar:
    """The extent of one axis of the copy, free of loop variables."""
    hi = hull(l, frozenset(index))[1]
    if loose := variables(hi) & (set(index) | outside):
        raise refusal("stage", f"{use.ref.array} {l.var}", f"the extent {text(hi)} of {l.var} changes with {listed(loose)}")
    return hi


def _complement(leaf: Assign, guards: tuple[Scalar, ...], value: float) -> tuple[Assign, ...]:
    """Leaves that store `value` where one of the guards fails: disjoint, so that every element is stored once."""
    kept = tuple(w for w in leaf.where if w not in guards)
    return tuple(replace(leaf, value=Num(value), where=(*kept, *guards[:i], negation(w))) for i, w in enumerate(guards))


def _placed_in(body: Body, at: str, copy: Body, into: str) -> Body:
    """Put the copy at the start of the loops `at` whose bodies read it."""

    def go(s: Stmt) -> Body:
        if isinstance(s, Loop) and s.var == at and into in mentions(s):
            return (replace(s, body=(*copy, *s.body)),)
        return (s,)

    return map_statements(body, go, into)


def fill(k: Kernel, *, definition: str, value: float, axis: str = "", name: str = "") -> Kernel:
    """Give a guarded definition a value past its edge, so that readers need no guard: the complement of its guards is
    stored too, in nests of their own, as the definition `name` (default: the same). Legal when the array is a temporary and nothing else writes it."""
    known(k, "fill", (definition,))
    leaf, loops = only_leaf(k.body, definition, "fill")
    array = k.array(leaf.target.array)
    guards = tuple(w for w in leaf.where if not axis or axis in variables(w))
    if not isinstance(leaf, Assign) or not guards:
        raise refusal("fill", f"{definition} {axis}", "it is no assignment with a guard there")
    if array.space in ("input", "output") or sum(x.store for x in accesses(k.body, array.name)) != 1:
        raise refusal("fill", array.name, f"{array.name} is an {array.space}, or has several writers")
    if any(array.name in {r.array for r in references(e)} for e in (leaf.value, *leaf.where)):
        raise refusal("fill", array.name, f"{definition} reads what it writes")
    for v in axes_in(guards, loops):
        covered(k, replace(leaf, value=Num(value)), loops, "fill", v)
    own = [replace(l, kind="serial", mark="") for l in nest_loops(k.body, leaf)]
    extra = tuple(s for q in _complement(leaf, guards, value) for s in nest(own, (replace(q, name=name or definition),)))
    return with_arrays(k, after_nest(k.body, leaf, extra), change=(replace(array, outside=value),))
