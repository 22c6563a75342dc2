"""Lifts that reshape loops: split, reorder, fuse, reverse, bind, vector. In and out: a Kernel."""

from __future__ import annotations

from dataclasses import replace

from moapipe.algebra.index import add, ceil_div, coefficient, constant, is_affine_in, multiply, subtract
from moapipe.algebra.scalar import Op, Scalar, text, variables
from moapipe.loops.legal import accesses, carried, clash, own_block, permutable
from moapipe.loops.lift.scope import (
    Names,
    all_of,
    axes_of,
    chain,
    is_leaf_body,
    is_within,
    known,
    listed,
    map_chosen,
    nest,
    refusal,
    replaced,
    some_of,
)
from moapipe.loops.onf import (
    Accumulate,
    Body,
    If,
    Kernel,
    Kind,
    Leaf,
    Loop,
    Schedule,
    Stmt,
    binds,
    definitions,
    leaves,
    map_statements,
    mentions,
    read,
    with_body,
    written,
)
from moapipe.loops.wide import wide


def split(k: Kernel, *, axis: str, by: int, outer: str, inner: str, only: Names = ()) -> Kernel:
    """axis → lo + by·outer + inner. A guard appears on the leaves unless `by` divides a constant extent. Always legal."""
    known(k, "split", only)
    if by < 1:
        raise refusal("split", axis, f"the tile size is {by}, it must be at least 1")
    used = binds(k.body) & {axis} | set(k.sizes)
    if {outer, inner} & used or outer == inner:
        raise refusal("split", axis, f"names {outer}, {inner} are not new", "give each part a name of its own")
    found: list[Loop] = []

    def cut(s: Loop) -> Body:
        if not all_of(s.body, only):
            raise refusal("split", axis, f"the loop holds {listed(definitions(s.body))}, not only {listed(only)}", "split before fusing")
        if s.kind != "serial" or s.mark:
            raise refusal("split", axis, f"the loop is bound to {s.kind}", "split before binding")
        found.append(s)
        extent = subtract(s.hi, s.lo)
        value = add(s.lo, multiply(outer, by), inner)
        body = replaced(s.body, {axis: value})
        size = constant(extent)
        if size is None or size % by:
            guard = Op("<", (value, s.hi))
            body = map_statements(body, lambda q: (replace(q, where=(*q.where, guard)),) if isinstance(q, Leaf) else (q,))
        return (Loop(outer, _ZERO, ceil_div(extent, by), (Loop(inner, _ZERO, _number(by), body),)),)

    body = map_chosen(k.body, axis, lambda s, _: some_of(s.body, only), cut)
    if not found:
        raise refusal("split", axis, f"no loop {axis} around {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


def _number(v: int) -> Scalar:
    return add(v)


_ZERO = _number(0)


def reorder(k: Kernel, *, order: Names, only: Names = ()) -> Kernel:
    """Sort the loops of every perfect nest around leaves by one order of axes. Legal when bounds stay in scope and the
    leaves are permutable: folds commute, nothing is read at another place or stored twice."""
    known(k, "reorder", only)
    found: list[str] = []

    def go(body: Body) -> Body:
        out: list[Stmt] = []
        for s in body:
            if not isinstance(s, Loop):
                out.append(with_body(s, go(s.body)) if isinstance(s, If) else s)
                continue
            loops, inner = chain(s)
            if not is_leaf_body(inner):
                out += nest(loops, go(inner))
                continue
            chosen = all_of(inner, only)
            found.extend(definitions(inner) if chosen else ())
            out += nest(_reordered(loops, inner, order) if chosen else loops, inner)
        return tuple(out)

    body = go(k.body)
    if not found:
        raise refusal("reorder", listed(only), "no perfect nest holds only these", f"definitions are {listed(definitions(k.body))}")
    return replace(k, body=body)


def _reordered(loops: tuple[Loop, ...], bottom: Body, order: Names) -> tuple[Loop, ...]:
    name = listed(definitions(bottom))
    new = sorted_loops("reorder", name, loops, order)
    if new != loops and (why := permutable(bottom, loops)):
        raise refusal("reorder", name, why)
    return new


def sorted_loops(lift: str, name: str, loops: tuple[Loop, ...], order: Names) -> tuple[Loop, ...]:
    """The loops around `name` in the order of axes; refused when one is not in it, or needs one that comes after it."""
    place = {v: i for i, v in enumerate(order)}
    if missing := [l.var for l in loops if l.var not in place]:
        raise refusal(lift, name, f"axes {listed(missing)} are not in the order", f"its axes are {', '.join(l.var for l in loops)}")
    new = tuple(sorted(loops, key=lambda l: place[l.var]))
    for i, l in enumerate(new):
        later = {x.var for x in new[i:]}
        if loose := (variables(l.lo) | variables(l.hi)) & later:
            raise refusal(lift, f"{name} {l.var}", f"the bound {text(l.hi)} of {l.var} needs {listed(loose)} outside it")
    return new


def fuse(k: Kernel, *, axis: Names, only: Names = (), within: str = "") -> Kernel:
    """Merge all sibling loops over `axis` (inside a loop `within`); what stands between rises above or stays below them. Several axes:
    one after the other, each inside the one before.

    Legal when every array that one loop writes and the other touches is split among the iterations alike: otherwise it
    is complete only after the whole loop. One loop that holds all of `only` is merged already.
    """
    known(k, "fuse", only)
    for a, around in zip(axis, (within, *axis), strict=False):
        k = _fused(k, a, only, around)
    return k


def _fused(k: Kernel, axis: str, only: Names, within: str) -> Kernel:
    merged: list[str] = []
    met: list[Stmt] = []

    def go(body: Body, here: bool) -> Body:
        out: list[Stmt] = []
        for s in body:
            if axis not in mentions(s):
                out.append(s)
                continue
            if isinstance(s, Loop | If) and not (isinstance(s, Loop) and s.var == axis):
                s = with_body(s, go(s.body, here or (isinstance(s, Loop) and s.var == within)))
            at = next((i for i in reversed(range(len(out))) if _is_over(out[i], axis, only)), None)
            met.extend((s,) if here and _is_over(s, axis, only) else ())
            if at is None or not here or not _is_over(s, axis, only):
                out.append(s)
                continue
            first = out[at]
            assert isinstance(first, Loop) and isinstance(s, Loop)
            rise, stay = _part(first, tuple(out[at + 1 :]), s, axis)
            _mergeable(first, s)
            out[at:] = [*rise, replace(first, body=first.body + s.body), *stay]
            merged.append(axis)
        return tuple(out)

    body = go(k.body, not within)
    if not merged and not (only and len(met) == 1 and definitions(tuple(met)) == set(only)):
        raise refusal("fuse", axis, f"no two sibling loops over {axis} hold only {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


def _is_over(s: Stmt, axis: str, only: Names) -> bool:
    return isinstance(s, Loop) and s.var == axis and all_of(s.body, only)


def _part(first: Loop, between: Body, second: Loop, axis: str) -> tuple[Body, Body]:
    """Statements between two loops: those that may rise above the first, and those that stay below the second."""
    rise: list[Stmt] = []
    stay: list[Stmt] = []
    for q in between:
        stuck = clash((q,), (first,)) or any(clash((q,), (z,)) for z in stay)
        (stay if stuck else rise).append(q)
    if blocked := [z for z in stay if clash((second,), (z,))]:
        names = listed(n for z in blocked for n in definitions((z,)))
        raise refusal("fuse", axis, f"{names} stands between {listed(definitions((first,)))} and {listed(definitions((second,)))} and needs both orders")
    return tuple(rise), tuple(stay)


def _mergeable(a: Loop, b: Loop) -> None:
    if (a.lo, a.hi, a.kind, a.mark) != (b.lo, b.hi, b.kind, b.mark):
        first, second = (f"{s.kind} {text(s.lo)}..{text(s.hi)}" for s in (a, b))
        names = f"{listed(definitions(a.body))} and {listed(definitions(b.body))}"
        raise refusal("fuse", a.var, f"the loops of {names} differ: {first} against {second}")
    shared = (written((a,)) & (read((b,)) | written((b,)))) | (read((a,)) & written((b,)))
    for x in sorted(shared):
        if not own_block(a, b, x):
            raise refusal("fuse", f"{x} {a.var}", f"{x} is complete only after the whole loop over {a.var}", "use online, or keep the loops apart")


def reverse(k: Kernel, *, axis: str, only: Names = ()) -> Kernel:
    """Run a loop from its end to its beginning (long rows of a triangle first). Legal when iterations are independent."""
    known(k, "reverse", only)
    found: list[Loop] = []

    def turn(s: Loop) -> Body:
        if shared := carried(s):
            raise refusal("reverse", f"{listed(shared)} {axis}", f"iterations over {axis} share {listed(shared)}")
        found.append(s)
        return (replace(s, body=replaced(s.body, {axis: subtract(add(s.lo, s.hi), add(axis, 1))})),)

    body = map_chosen(k.body, axis, lambda s, _: some_of(s.body, only), turn)
    if not found:
        raise refusal("reverse", axis, f"no loop {axis} around {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


_REMEDIES = "privatise it and fold the parts in order, accumulate_in a private array, recompute for an owner and let it own the fold, or atomic"


def bind(k: Kernel, *, axis: str, kind: Kind, only: Names = (), within: str = "", schedule: Schedule = "static") -> Kernel:
    """Say who runs a loop. parallel, thread: refused when iterations share something that is written. thread, unroll: a constant extent.
    warp: a fold over the registers of the innermost thread loop's neighbours, whose extent it has (loops/team.py checks).
    lane: a constant extent, no guard on the axis (pad or split_range first), every index unit-stride in it or free of it."""
    known(k, "bind", only)
    found: list[Loop] = []

    def mark(s: Loop) -> Body:
        if kind in ("parallel", "thread") and (shared := carried(s)):
            raise refusal("bind", f"{listed(shared)} {axis}", f"race: iterations over {axis} share {listed(shared)}", _REMEDIES)
        if schedule == "paired" and (kind != "parallel" or s.lo != _ZERO):
            raise refusal("bind", axis, f"paired is for parallel loops from 0, found {kind} from {text(s.lo)}")
        if kind in ("thread", "warp", "unroll", "lane") and (s.lo != _ZERO or constant(s.hi) is None):
            raise refusal("bind", axis, f"{kind} needs a constant extent, found {text(s.lo)} <= {axis} < {text(s.hi)}", "split it first")
        if kind == "lane":
            _lane(s)
        found.append(s)
        return (replace(s, kind=kind, schedule=schedule),)

    def chosen(s: Loop, around: tuple[Loop, ...]) -> bool:
        return some_of(s.body, only) and s.kind == "serial" and is_within(around, within)

    body = map_chosen(k.body, axis, chosen, mark)
    if not found:
        raise refusal("bind", axis, f"no serial loop {axis} around {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


def vector(k: Kernel, *, axis: str, only: Names = ()) -> Kernel:
    """Fetch the elements along an axis as one: a copy of V consecutive elements (16 bytes) out of memory, inside thread loops. Legal where
    the axis is the last of the array's layout, a copy's own and innermost, its first element lies at a multiple of V in its row, and its
    guards are extents. Where a size makes rows no multiples of V, or only some of the elements are there, they go one by one."""
    known(k, "vector", only)
    arrays = {a.name: a for a in k.arrays}
    found: list[Loop] = []

    def mark(s: Loop) -> Body:
        wide(s, arrays)
        found.append(s)
        return (replace(s, kind="vector"),)

    body = map_chosen(k.body, axis, lambda s, _: some_of(s.body, only) and s.kind == "serial", mark)
    if not found:
        raise refusal("vector", axis, f"no serial loop {axis} around {listed(only)}", f"axes are {axes_of(k.body)}")
    return replace(k, body=body)


def _lane(s: Loop) -> None:
    """Refuse a lane loop whose leaves are guarded on the lane or index anything with a stride other than 1."""
    for leaf, _, _ in leaves(s.body):
        if isinstance(leaf, Accumulate) and leaf.atomic:
            raise refusal("bind", f"{leaf.name} {s.var}", f"the update of {leaf.target.array} is atomic: lanes have none", "leave the axis serial")
        if guards := [text(w) for w in leaf.where if s.var in variables(w)]:
            raise refusal("bind", f"{leaf.name} {s.var}", f"lanes cannot be guarded one by one: {', '.join(guards)}", "pad, or split_range first")
    if any(isinstance(q, Loop | If) for q in s.body):
        raise refusal("bind", s.var, "a lane loop must be innermost", "reorder first")
    for x in accesses(s.body):
        uses = [i for i, e in enumerate(x.ref.index) if s.var in variables(e)]
        if uses and (uses != [len(x.ref.index) - 1] or _stride(x.ref.index[-1], s.var) != 1):
            raise refusal("bind", f"{x.ref.array} {s.var}", f"{text(x.ref)} is not unit-stride in {s.var}", "stage it, or change its layout")


def _stride(e: Scalar, var: str) -> int | None:
    return coefficient(e, var) if is_affine_in(e, var) else None
