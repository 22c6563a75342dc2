"""Lifts that put accumulators into registers: register_tile and sink_scale. In and out: a Kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moapipe.algebra.index import coefficient, constant
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, references, text, variables
from moapipe.errors import LiftError
from moapipe.loops.legal import UNIT, accesses, permutable
from moapipe.loops.lift.scope import Names, chain, fresh, is_within, known, listed, nest, refusal, with_arrays
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
    map_statements,
    read,
    with_body,
    written,
)


@dataclass(frozen=True, slots=True)
class _Tile:
    """The loops of a fold by their part in a register tile; `rest` keeps the loops outside it in their order."""

    leaf: Accumulate
    rows: tuple[Loop, ...]
    lane: Loop
    fold: Loop
    rest: tuple[Loop, ...]


def register_tile(
    k: Kernel, *, definition: str, lane: str, fold: str, rows: Names = (), partial: bool = False, mark: str = "",
    within: str = "",
) -> Kernel:
    """Run a fold as rest × (fold × (rows unrolled × lanes)), the accumulators [rows…, lane] in registers.

    The accumulators start at the unit for every tile; then they replace the target when its initialisation stands right
    before (it is absorbed), are added to it once (`partial`: more accurate than carrying them, and associativity is all
    that it needs), or are folded over the lanes when the target has no lane axis. Without any of these they start from
    the target and every element sees its terms in the old order. `mark` names the tile for the assembler gate.
    """
    known(k, "register_tile", (definition,))
    name = f"{definition}_tile"
    fresh(k, "register_tile", name)
    found: list[_Tile] = []

    def go(body: Body, around: tuple[Loop, ...] = ()) -> Body:
        out: list[Stmt] = []
        for s in body:
            loops, inner = chain(s)
            here = is_within((*around, *loops), within)
            tile = _tile(loops, inner, definition, lane, fold, rows) if here else None
            if tile is not None:
                init = _absorbed(out, tile)
                if init is not None:
                    out.pop()
                found.append(tile)
                out += _tiled(tile, name, init, partial, mark)
            else:
                deeper = (*around, s) if isinstance(s, Loop) else around
                out.append(with_body(s, go(s.body, deeper)) if isinstance(s, Loop | If) else s)
        return tuple(out)

    body = go(k.body)
    if not found:
        raise _untiled(k, definition, (*rows, lane, fold))
    if len(found) != 1:
        raise refusal("register_tile", definition, f"{definition} has {len(found)} such nests")
    shape = tuple(l.hi for l in (*found[0].rows, found[0].lane))
    return with_arrays(k, body, add=(Array(name, shape, "register"),))


def _untiled(k: Kernel, definition: str, axes: Names) -> LiftError:
    want = " × ".join(axes)
    nests = "; ".join(", ".join(l.var for l in ls) for q, ls, _ in leaves(k.body) if q.name == definition)
    return refusal("register_tile", f"{definition} {want}", f"no fold of {definition} in a perfect nest over {want}", f"its nests are {nests}")


def _tile(loops: tuple[Loop, ...], inner: Body, definition: str, lane: str, fold: str, rows: Names) -> _Tile | None:
    if len(inner) != 1 or not isinstance(inner[0], Accumulate) or inner[0].name != definition:
        return None
    leaf = inner[0]
    by = {l.var: l for l in loops}
    wanted = (*rows, lane, fold)
    if any(v not in by for v in wanted):
        return None
    rest = tuple(l for l in loops if l.var not in wanted)
    _check_tile(leaf, loops, by, rows, lane, fold)
    return _Tile(leaf, tuple(by[v] for v in rows), by[lane], by[fold], rest)


def _check_tile(leaf: Accumulate, loops: Sequence[Loop], by: dict[str, Loop], rows: Names, lane: str, fold: str) -> None:
    where = f"{leaf.target.array} "
    if leaf.where:
        raise refusal("register_tile", where + lane, f"guards are left: {', '.join(map(text, leaf.where))}", "pad or clip first")
    for v in (*rows, lane):
        if by[v].lo != Num(0) or constant(by[v].hi) is None:
            raise refusal("register_tile", where + v, f"the extent of {v} is {text(by[v].hi)}, not a constant", "split it first")
    used = frozenset[str]().union(*(variables(i) for i in leaf.target.index))
    if fold in used or set(rows) - used:
        raise refusal("register_tile", where + fold, f"{text(leaf.target)} must move with {listed(rows)} and not with {fold}")
    for l in loops:
        if needs := (variables(l.lo) | variables(l.hi)) & {*rows, lane, *([fold] if l.var != fold else [])}:
            raise refusal("register_tile", where + l.var, f"the bound {text(l.hi)} of {l.var} needs {listed(needs)}", "name the rows in skip's `over`")
    if why := permutable((leaf,), loops):
        raise refusal("register_tile", where + fold, why)
    for r in references(leaf.value):
        if lane in frozenset[str]().union(*(variables(i) for i in r.index)) and not _unit_stride(r, lane):
            raise refusal("register_tile", f"{r.array} {lane}", f"{text(r)} is not unit-stride in {lane}", "stage it, or change its layout")


def _unit_stride(r: Ref, lane: str) -> bool:
    return not any(lane in variables(i) for i in r.index[:-1]) and coefficient(r.index[-1], lane) == 1


def _absorbed(before: Sequence[Stmt], tile: _Tile) -> Scalar | None:
    """The value of an initialisation that stands right before, over exactly the loops of the accumulator."""
    if not before:
        return None
    loops, inner = chain(before[-1])
    want = {(l.var, l.lo, l.hi) for l in (*tile.rest, *tile.rows, tile.lane)}
    match inner:
        case (Assign(target, Num() as value, ()),) if target == tile.leaf.target and {(l.var, l.lo, l.hi) for l in loops} == want:
            return value
        case _:
            return None


def _tiled(tile: _Tile, name: str, init: Scalar | None, partial: bool, mark: str) -> Body:
    leaf, lane = tile.leaf, tile.lane.var
    acc = Ref(name, tuple(Var(l.var) for l in (*tile.rows, tile.lane)))
    across = any(lane in variables(i) for i in leaf.target.index)
    unit = Num(UNIT[leaf.monoid])

    def spread(q: Leaf) -> Body:
        lanes = (replace(tile.lane, body=(q,), kind="lane"),)
        return nest([replace(l, kind="unroll") for l in tile.rows], lanes)

    start: Scalar = unit
    end: Leaf = Accumulate(leaf.monoid, leaf.target, acc, (), leaf.name)
    if across and init == unit:
        end = Assign(leaf.target, acc, (), leaf.name)
    elif across and not partial:
        start, end = (leaf.target if init is None else init), Assign(leaf.target, acc, (), leaf.name)
    fold = replace(tile.fold, body=spread(replace(leaf, target=acc)), mark=mark)
    body = (Alloc(name), *spread(Assign(acc, start, (), leaf.name)), fold, *spread(end))
    return nest(tile.rest, body)


def sink_scale(k: Kernel, *, array: str) -> Kernel:
    """Move the nest X ← X·y down to where a register partial is added to X: one pass over X instead of two.

    Legal when nothing between touches X or stores what y reads, and the addition runs once for the same elements.
    """
    k.array(array)
    done: list[str] = []
    reasons: list[str] = []

    def go(body: Body) -> Body:
        for i, s in enumerate(body):
            _, inner = chain(s)
            match inner:
                case (Assign(target, Op("*", (same, y)), ()) as scale,) if target.array == array and same == target:
                    match _sunk(body, i, scale, y):
                        case str() as why:
                            reasons.append(why)
                        case new:
                            done.append(array)
                            return new
                case _:
                    pass
        return tuple(with_body(s, go(s.body)) if isinstance(s, Loop | If) else s for s in body)

    body = go(k.body)
    if not done:
        raise refusal("sink_scale", array, "; ".join(reasons) or f"no nest {array} ← {array}·y stands before a fold into {array}", "register_tile the fold first")
    return replace(k, body=body)


def _sunk(body: Body, i: int, scale: Assign, y: Scalar) -> Body | str:
    """The body with the scaling moved, or why it cannot be."""
    array = scale.target.array
    j = next((j for j in range(i + 1, len(body)) if array in written((body[j],))), None)
    if j is None:
        return f"nothing folds into {array} after it is scaled"
    between = body[i + 1 : j]
    if len([x for x in accesses((body[j],), array)]) != 1 or {r.array for r in references(y)} & written((body[j],)):
        return f"{listed(definitions((body[j],)))} touches {array} more than once or stores what scales it"
    if array in read(between) or {r.array for r in references(y)} & written(between):
        return f"{listed(definitions(between))} stands between and uses {array} or stores what scales it"
    loops, _ = chain(body[i])
    want = {(l.var, l.lo, l.hi) for l in loops}
    adds = [(q, ls) for q, ls, _ in leaves((body[j],)) if q.target.array == array]
    if len(adds) != 1 or not isinstance(adds[0][0], Accumulate) or adds[0][0].monoid != "sum" or adds[0][0].where:
        return f"{listed(definitions((body[j],)))} is no single unguarded sum into {array}"
    add, around = adds[0]
    if add.target != scale.target or {(l.var, l.lo, l.hi) for l in around} != want or array in {r.array for r in references(add.value)}:
        return f"{text(add.target)} does not run once for the elements of {text(scale.target)}"
    new = map_statements((body[j],), lambda s: (scale, s) if s is add else (s,))
    return (*body[:i], *between, *new, *body[j + 1 :])
