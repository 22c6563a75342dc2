"""Lifts that decide how far loops run: split_range, clip, stretch, once, sweep. In and out: a Kernel.

Where tiles divide an axis exactly, guards always hold and rests never run. Scripts name them all the same, whatever the tile sizes
are, and `sweep` takes away what is idle.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from moapipe.algebra.index import extreme, subtract
from moapipe.algebra.scalar import Num, Op, Scalar, Var, text, variables
from moapipe.loops.legal import always, first_true, greatest, hull, least, never
from moapipe.loops.lift.scope import Names, all_of, axes_of, is_within, known, listed, map_chosen, refusal, some_of, with_arrays
from moapipe.loops.onf import (
    Body,
    If,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    definitions,
    leaves,
    map_statements,
    rename_variables,
    statements,
    with_body,
)

_ZERO = Num(0)


def split_range(k: Kernel, *, axis: str, rest: str, at: Scalar | None = None, only: Names = (), within: str = "") -> Kernel:
    """One loop becomes two: axis below `at`, then `rest` from there to the end, each with the guards that it still needs.

    Without `at`, the first loop ends where a guard on the axis could first fail, or first hold. Always legal. Guards that always hold
    in a part are dropped there, leaves whose guards never hold go. Where tiles divide the axis exactly the rest has no iterations: it
    stays for the lifts that name it, until `sweep`.
    """
    known(k, "split_range", only)
    found: list[Loop] = []

    def cut(s: Loop) -> Body:
        if not all_of(s.body, only):
            raise refusal("split_range", axis, f"the loop holds {listed(definitions(s.body))}, not only {listed(only)}", "cut before fusing")
        found.append(s)
        end = (_turn(s) or s.hi) if at is None else at
        below = replace(s, hi=least(s.hi, end))
        above = replace(s, var=rest, lo=greatest(s.lo, end), body=rename_variables(s.body, {axis: rest}))
        return tuple(p for p in (_discharged(below), above if _idle(above) else _discharged(above)) if p.body)

    body = map_chosen(k.body, axis, lambda s, around: some_of(s.body, only) and is_within(around, within), cut)
    if not found:
        raise refusal("split_range", axis, f"no loop {axis} around {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


def _idle(loop: Loop) -> bool:
    """The loop is proved never to run."""
    return always(Op("<=", (loop.hi, loop.lo)), ())


def sweep(k: Kernel) -> Kernel:
    """Leave out loops that never run: the rests of tiles that divide an axis exactly. Always legal; every script ends with it."""

    def go(s: Stmt) -> Body:
        return () if (isinstance(s, Loop | If) and not s.body) or (isinstance(s, Loop) and _idle(s)) else (s,)

    return with_arrays(k, map_statements(k.body, go))


def _turn(s: Loop) -> Scalar | None:
    """The iteration from which a guard on the loop's variable may fail (or, for a lower bound, may hold)."""
    ranges = {q.var: hull(q) for q in statements(s.body) if isinstance(q, Loop)}
    ends: list[Scalar] = []
    for w in sorted({w for leaf, _, _ in leaves(s.body) for w in leaf.where if s.var in variables(w)}, key=text):
        _, above = first_true(_at_ends(w, ranges, True), s.var)
        below, _ = first_true(_at_ends(w, ranges, False), s.var)
        ends += [e for e in (above, below) if e is not None]
    return reduce(least, ends) if ends else None


def _discharged(loop: Loop) -> Loop:
    def go(body: Body, loops: tuple[Loop, ...]) -> Body:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                inner = go(s.body, (*loops, s))
                out += (with_body(s, inner),) if inner else ()
            elif isinstance(s, If):
                out.append(with_body(s, go(s.body, loops)))
            elif isinstance(s, Leaf):
                if not any(never(w, loops) for w in s.where):
                    where = tuple(w for w in s.where if not always(w, loops))
                    out.append(s if where == s.where else replace(s, where=where))
            else:
                out.append(s)
        return tuple(out)

    return with_body(loop, go(loop.body, (loop,)))


def clip(k: Kernel, *, axis: str, only: Names = (), within: str = "") -> Kernel:
    """Shorten loops over `axis` to the iterations in which the leaves' guards can hold; drop the guards that this implies.

    Always legal: the iterations that go did nothing. Guards on the axis are the same for every leaf of the loop; without one,
    every iteration is inside already.
    """
    known(k, "clip", only)
    found: list[Loop] = []

    def cut(s: Loop) -> Body:
        found.append(s)
        atoms = {w for leaf, _, _ in leaves(s.body) for w in leaf.where if axis in variables(w)}
        if not atoms:
            return (with_body(s, map_chosen(s.body, axis, chosen, cut)),)
        if any(set(leaf.where) & atoms != atoms for leaf, _, _ in leaves(s.body)):
            raise refusal("clip", axis, f"the leaves of {listed(definitions(s.body))} have different guards on {axis}", "clip before fusing")
        lo, hi = s.lo, s.hi
        ranges = {q.var: hull(q) for q in statements(s.body) if isinstance(q, Loop)}
        for w in sorted(atoms, key=text):
            below, above = first_true(_at_ends(w, ranges, False), axis)
            if below is None and above is None:
                raise refusal("clip", axis, f"the guard {text(w)} is not affine in {axis}")
            lo, hi = (lo if below is None else greatest(lo, below)), (hi if above is None else least(hi, above))
        return (_discharged(replace(s, lo=lo, hi=hi)),)

    def chosen(s: Loop, around: tuple[Loop, ...]) -> bool:
        return all_of(s.body, only) and is_within(around, within)

    body = map_chosen(k.body, axis, chosen, cut)
    if not found:
        raise refusal("clip", axis, f"no loop {axis} around {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


def stretch(k: Kernel, *, axis: str, only: Names = ()) -> Kernel:
    """Let all loops over `axis` run to the longest of their ends, so that nests of different extents may share it. Leaves get the guard
    of their own end, unless their guards imply it already.

    Always legal: the iterations that come do nothing. The loops start at 0, and sizes alone give their ends.
    """
    known(k, "stretch", only)
    loops = [s for s in statements(k.body) if isinstance(s, Loop) and s.var == axis and some_of(s.body, only)]
    if loose := [text(s.hi) for s in loops if s.lo != _ZERO or variables(s.hi) - set(k.sizes)]:
        raise refusal("stretch", axis, f"the end {loose[0]} of {axis} does not come from sizes", "stretch before skip")
    if len({s.hi for s in loops}) < 2:
        raise refusal("stretch", axis, f"no loops over {axis} that end at different places", f"axes are {axes_of(k.body)}")
    longest = reduce(greatest, dict.fromkeys(s.hi for s in loops))

    def longer(s: Loop) -> Body:
        own = Op("<", (Var(axis), s.hi))

        def guard(q: Stmt) -> Body:
            return (replace(q, where=(*q.where, own)),) if isinstance(q, Leaf) and not _implied(q, s) else (q,)

        return (replace(s, hi=longest, body=map_statements(s.body, guard)),) if s.hi != longest else (s,)

    return replace(k, body=map_chosen(k.body, axis, lambda s, _: some_of(s.body, only), longer))


def _implied(leaf: Leaf, s: Loop) -> bool:
    """Some guard of the leaf fails wherever the loop has ended."""
    ranges = {q.var: hull(q) for q in statements(s.body) if isinstance(q, Loop)}
    ends = (first_true(_at_ends(w, ranges, False), s.var)[1] for w in leaf.where)
    return any(e is not None and always(Op("<=", (e, s.hi)), ()) for e in ends)


def once(k: Kernel, *, definition: str, axis: str) -> Kernel:
    """Put loops of one iteration around a definition, so that it may share a nest with what has the axis (`stretch` makes it as long):
    only the first iteration computes it. Always legal."""
    known(k, "once", (definition,))
    mine = [s for s in k.body if definitions((s,)) == {definition}]
    if len(mine) != sum(definition in definitions((s,)) for s in k.body):
        raise refusal("once", f"{definition} {axis}", f"{definition} shares its nest", "use it before fusing")
    if axis in {q.var for s in mine for q in statements((s,)) if isinstance(q, Loop)}:
        raise refusal("once", f"{definition} {axis}", f"{definition} has a loop {axis}")
    return replace(k, body=tuple(Loop(axis, _ZERO, Num(1), (s,)) if s in mine else s for s in k.body))


def _at_ends(atom: Scalar, ranges: dict[str, tuple[Scalar, Scalar]], largest: bool) -> Scalar:
    """The comparison a < b with the variables of `ranges` where a - b is largest (holds last) or smallest (holds first)."""
    match atom:
        case Op("<" | "<=" as name, (a, b)):
            return Op(name, (extreme(subtract(a, b), ranges, largest), _ZERO))
        case _:
            return atom
