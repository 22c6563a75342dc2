"""Lifts that decide where values live, in which layout, and what is asked of the memory: contract, alias, block, layout, pad_extent,
place, stream, prefetch, prefetch_stored. In and out: a Kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from moapipe.algebra.index import (
    Affine,
    add,
    affine,
    ceil_div,
    coefficient,
    constant,
    expression,
    extreme,
    maximum,
    minimum,
    multiply,
    simplify,
    subtract,
)
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, references, substitute, text, variables
from moapipe.loops.legal import Access, accesses, always, hull, span
from moapipe.loops.lift.scope import Names, known, listed, refusal, temporary, with_arrays, without_alloc
from moapipe.loops.onf import (
    Accumulate,
    Alloc,
    Body,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    binds,
    leaves,
    map_array,
    map_statements,
    mentions,
    read,
    with_body,
)
from moapipe.loops.team import owned, owners


def contract(k: Kernel, *, array: Names) -> Kernel:
    """Narrow temporaries, one after the other, to what one iteration of the innermost loop
    around all accesses needs; they become private.

    Legal when no access reaches another iteration's elements: the parts of the index that are fixed in the iteration are
    the same everywhere, what is read lies within what is written, and the first access is an assignment.
    """
    for a in array:
        k = _contracted(k, a)
    return k


def _contracted(k: Kernel, array: str) -> Kernel:
    a = temporary(k, "contract", array)
    touched = tuple(accesses(k.body, array))
    common = _common(touched)
    if not common:
        raise refusal("contract", array, f"no loop encloses all accesses of {array}", "fuse its producers and readers first")
    if not touched[0].store or isinstance(touched[0].leaf, Accumulate):
        raise refusal("contract", f"{array} {common[-1].var}", f"{array} is read before it is assigned in an iteration of {common[-1].var}")
    outer = frozenset(l.var for l in common)
    windows = [_from_zero(*_window(touched, d, outer, array, common[-1].var), outer) for d in range(len(a.shape))]
    for low, high in windows:
        if loose := (variables(low) | variables(high)) & binds(k.body):
            raise refusal("contract", f"{array} {common[-1].var}", f"its extent would change with {listed(loose)}", "keep a bound in sizes on the loop")
    kept = [d for d, (low, high) in enumerate(windows) if low != high]

    def narrow(r: Ref) -> Scalar:
        return Ref(array, tuple(subtract(_inner(r.index[d], outer), windows[d][0]) for d in kept))

    body = map_array(k.body, array, narrow)
    shape = tuple(add(subtract(windows[d][1], windows[d][0]), 1) for d in kept)
    body = _allocated(without_alloc(body, array), tuple(l.var for l in common), array)
    return with_arrays(k, body, change=(replace(a, shape=shape, space="private"),))


def _common(touched: tuple[Access, ...]) -> tuple[Loop, ...]:
    out: list[Loop] = []
    for column in zip(*(x.loops for x in touched), strict=False):
        if any(l is not column[0] for l in column):
            break
        out.append(column[0])
    return tuple(out)


def _inner(e: Scalar, outer: frozenset[str]) -> Scalar:
    """The part of an index that varies inside the loops `outer`, constant included."""
    return expression({x: c for x, c in affine(e).items() if x == 1 or not variables(x) <= outer or not variables(x)})


def _window(touched: tuple[Access, ...], dim: int, outer: frozenset[str], array: str, axis: str) -> tuple[Scalar, Scalar]:
    """Least and largest inner index along a dimension over all accesses."""
    fixed: Affine | None = None
    bounds: dict[bool, list[tuple[Scalar, Scalar]]] = {True: [], False: []}
    for x in touched:
        form = affine(x.ref.index[dim])
        part: Affine = {a: c for a, c in form.items() if a != 1 and variables(a) and variables(a) <= outer}
        if fixed is not None and part != fixed:
            raise refusal("contract", f"{array} {axis}", f"{text(x.ref)} is not in the iteration of {axis} that the others are in")
        fixed = part
        ranges = {l.var: hull(l, outer) for l in x.loops if l.var not in outer}
        inner = _inner(x.ref.index[dim], outer)
        bounds[x.store].append((extreme(inner, ranges, False), extreme(inner, ranges, True)))
    low, high = bounds[True][0]
    for lo, hi in bounds[True][1:]:
        low, high = minimum(low, lo), maximum(high, hi)
    for lo, hi in bounds[False]:
        if not (always(Op("<=", (low, lo)), ()) and always(Op("<=", (hi, high)), ())):
            raise refusal("contract", f"{array} {axis}", f"{array} is read at {text(lo)}..{text(hi)} but written at {text(low)}..{text(high)}")
    return low, high


def _from_zero(low: Scalar, high: Scalar, outer: frozenset[str]) -> tuple[Scalar, Scalar]:
    """The window, from 0 where its start moves with the loops around: the room of the longest of all serves every iteration."""
    return (Num(0) if variables(low) & outer and always(Op("<=", (Num(0), low)), ()) else low), high


def _allocated(body: Body, path: Names, array: str) -> Body:
    """Allocate at the start of the loop that `path` leads to, on the branch that writes the array."""
    if not path:
        return (Alloc(array), *body)
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop) and s.var == path[0] and array in mentions(s):
            s = with_body(s, _allocated(s.body, path[1:], array))
        out.append(s)
    return tuple(out)


def alias(k: Kernel, *, array: str, onto: str) -> Kernel:
    """Store `array` in the place of `onto`. Legal when it is computed from it element by element at the same index, both
    have the same extents, and the old values are dead from then on."""
    new, old = temporary(k, "alias", array), temporary(k, "alias", onto)
    if (new.shape, new.space) != (old.shape, old.space):
        shapes = [f"{a.space} {a.name}[{', '.join(map(text, a.shape))}]" for a in (new, old)]
        raise refusal("alias", f"{array} {onto}", f"{shapes[0]} does not fit {shapes[1]}", "contract both first")
    seen = False
    for leaf, _, _ in leaves(k.body):
        reads = [r for e in (leaf.value, *leaf.where) for r in references(e)]
        if leaf.target.array == array and not seen:
            seen = True
            if wrong := [r for r in reads if r.array == onto and r.index != leaf.target.index]:
                raise refusal("alias", f"{array} {onto}", f"{text(leaf.target)} needs {text(wrong[0])}, which may be overwritten already")
        elif old.space != "private" and any(r.array == onto and r.index != leaf.target.index for r in reads):
            raise refusal("alias", f"{array} {onto}", f"{leaf.name} reads {onto} at another place, which may be overwritten already", "contract both first")
        elif seen and (leaf.target.array == onto or onto in {r.array for r in reads}):
            raise refusal("alias", f"{array} {onto}", f"{onto} is still used by {leaf.name} after {array} is stored")
    body = map_array(without_alloc(k.body, array), array, lambda r: Ref(onto, r.index))
    return with_arrays(k, body, change=(replace(old, outside=new.outside),))


def block(k: Kernel, *, array: str, dim: int, by: int) -> Kernel:
    """Split one dimension of a temporary into blocks, index x → (x // by, x % by): a blocked γ. Legal when every index is
    by·(something) + (a part within 0..by-1)."""
    a = temporary(k, "block", array)
    if not 0 <= dim < len(a.shape):
        raise refusal("block", array, f"no dimension {dim}, {array} has {len(a.shape)}")
    split: dict[Ref, tuple[Scalar, Scalar]] = {}
    for x in accesses(k.body, array):
        form = affine(x.ref.index[dim])
        whole = {n: c // by for n, c in form.items() if c % by == 0}
        part = {n: c for n, c in form.items() if c % by}
        ends = span(part, {l.var: l for l in x.loops})
        if ends is None or ends[0] < 0 or ends[1] >= by or any(not isinstance(n, Var) for n in part if n != 1):
            raise refusal("block", f"{array} {by}", f"index {text(x.ref.index[dim])} does not fall into blocks of {by}", "split the axis first")
        split[x.ref] = (expression(whole), expression(part))

    def cut(r: Ref) -> Scalar:
        return Ref(array, (*r.index[:dim], *split[r], *r.index[dim + 1 :]))

    shape = (*a.shape[:dim], ceil_div(a.shape[dim], by), add(by), *a.shape[dim + 1 :])
    return with_arrays(k, map_array(k.body, array, cut), change=(replace(a, shape=shape),))


def layout(k: Kernel, *, array: str, order: tuple[int, ...]) -> Kernel:
    """Permute the dimensions of a temporary: dimension d of the new layout is dimension order[d] of the old. Always legal."""
    a = temporary(k, "layout", array)
    if sorted(order) != list(range(len(a.shape))):
        raise refusal("layout", array, f"{list(order)} does not permute its {len(a.shape)} dimensions")

    def turn(r: Ref) -> Scalar:
        return Ref(array, tuple(r.index[d] for d in order))

    return with_arrays(k, map_array(k.body, array, turn), change=(replace(a, shape=tuple(a.shape[d] for d in order)),))


def pad_extent(k: Kernel, *, array: str, dim: int, to: int = 1, more: int = 0) -> Kernel:
    """Round one extent of a temporary up to a multiple, so that guards on it may be dropped, and `more` elements further, so that
    elements of a column lie in different banks of a shared memory. Always legal."""
    a = temporary(k, "pad_extent", array)
    if not 0 <= dim < len(a.shape):
        raise refusal("pad_extent", array, f"no dimension {dim}, {array} has {len(a.shape)}")
    wide = add(multiply(ceil_div(a.shape[dim], to), to), more)
    return with_arrays(k, k.body, change=(replace(a, shape=(*a.shape[:dim], wide, *a.shape[dim + 1 :])),))


def place(k: Kernel, *, array: Names, space: Literal["shared", "register"]) -> Kernel:
    """Say where a team keeps temporaries that one iteration of a parallel loop has to itself. shared: one a team, for all its threads.
    register: in each thread, the part that is its own.

    Legal for constant extents; a register when thread loops are bound around its uses, and their variables are its leading indices
    everywhere (block and layout put them there), or it is born inside them.
    """
    for name in array:
        a = temporary(k, "place", name)
        if a.space != "private":
            raise refusal("place", name, f"{name} is {a.space}, not one iteration's own", "contract it first, or stage at a loop")
        if loose := [text(s) for s in a.shape if constant(s) is None]:
            raise refusal("place", name, f"its extent {', '.join(loose)} is no number", "split the axis by a constant first")
        k = with_arrays(k, k.body, change=(replace(a, space=space),))
        if space == "register" and name in (rank := owned(k)):
            owners(k, name, rank[name])
    return k


def stream(k: Kernel, *, array: str) -> Kernel:
    """Let a target store an output past the caches, for results larger than they are: its lines are not asked for ahead. Legal when
    the kernel never reads it."""
    a = k.array(array)
    if a.space != "output" or array in read(k.body):
        raise refusal("stream", array, f"{array} is an {a.space}" if a.space != "output" else f"{array} is read again", "accumulate_in a temporary")
    k = with_arrays(k, k.body, change=(replace(a, stream=True),))
    return _asking(k, lambda s: tuple(r for r in s.ahead if r.array != array))


def prefetch(k: Kernel, *, array: str, definition: str, axis: str, by: int = 1, rows: str = "") -> Kernel:
    """While `definition` reads an element, let a target ask the memory for the one that is read `by` iterations of `axis` later:
    its line is then under way while this iteration computes. With `rows`, the loop over the rows of a tile that is as wide as its
    lanes, the tiles of a strip of rows ask for its lines in the order in which they lie, a run of `rows`·lanes elements each: the
    memory then sees one walk where the tiles jump from row to row.

    Always legal, for nothing is loaded; refused where it would ask for nothing new."""
    if by < 1:
        raise refusal("prefetch", f"{array} {axis}", f"by = {by}", "iterations that are still to come")
    later = {axis: add(Var(axis), by)}

    def found(s: Leaf, around: Sequence[Loop]) -> Iterator[Ref]:
        for r in dict.fromkeys(references(s.value)):
            if r.array == array and axis in variables(r):
                asked = _as_it_lies(r, rows, around) if rows else r
                yield Ref(array, tuple(simplify(substitute(i, later)) for i in asked.index))

    return _asked(k, "prefetch", f"{array} {axis}", definition, found, f"{definition} reads no element of {array} that changes with {axis}",
                  "name a loop around the definition that strides through the array")


def prefetch_stored(k: Kernel, *, array: str, definition: str) -> Kernel:
    """While `definition` is computed, let a target ask the memory for the element of `array` that is stored later in the same
    iteration of the loops around both. Stores reach the cache in their order: one whose line is not there yet holds up all behind it.

    Always legal, for nothing is loaded; refused where nothing of the array is stored at those loops, or past the caches."""
    if k.array(array).stream:
        raise refusal("prefetch_stored", array, "it is stored past the caches", "leave it out: nothing is fetched")
    stores = [(s.target, loops) for s, loops, _ in leaves(k.body) if s.target.array == array and s.name != definition]

    def found(s: Leaf, around: Sequence[Loop]) -> Iterator[Ref]:
        bound = {l.var for l in around}
        return iter(dict.fromkeys(r for r, loops in stores if variables(r) and variables(r) <= bound and loops[0] is around[0]))

    return _asked(k, "prefetch_stored", array, definition, found, f"no other definition stores to it at the loops around {definition}",
                  "fuse the two at the loop whose iteration they share; loops inside it have the same names")


def _asked(k: Kernel, lift: str, subject: str, definition: str, found: Callable[[Leaf, Sequence[Loop]], Iterator[Ref]], reason: str, hint: str) -> Kernel:
    """Leaves of `definition` ask for what is found for them, given the loops around."""
    known(k, lift, (definition,))
    asks = {id(s): tuple(found(s, loops)) for s, loops, _ in leaves(k.body, definition) if s.name == definition}
    if not any(asks.values()):
        raise refusal(lift, subject, reason, hint)
    return _asking(k, lambda s: (*s.ahead, *asks.get(id(s), ())))


def _asking(k: Kernel, asks: Callable[[Leaf], tuple[Ref, ...]]) -> Kernel:
    """Every leaf with what it asks for."""
    return replace(k, body=map_statements(k.body, lambda s: (replace(s, ahead=asks(s)) if isinstance(s, Leaf) and asks(s) != s.ahead else s,)))


def _as_it_lies(r: Ref, rows: str, loops: Sequence[Loop]) -> Ref:
    """The element of a strip of rows that is as far from its start, line by line, as this one is tile by tile, row by row; outside of
    lanes the element itself. Its last index may be beyond its row: γ finds the next one."""
    lane = next((l for l in loops if l.kind == "lane" and coefficient(r.index[-1], l.var) == 1), None)
    if lane is None:
        return r
    count = next((constant(hull(l)[1]) for l in loops if l.var == rows), None)
    if count is None or len(r.index) < 2 or coefficient(r.index[-2], rows) != 1 or any(rows in variables(r.index[d]) for d in (*range(len(r.index) - 2), -1)):
        raise refusal("prefetch", f"{r.array} {rows}", f"{rows} does not count the rows of {text(r)}", "name the loop, of constant extent, over the rows of a tile")
    start, inside = subtract(r.index[-1], Var(lane.var)), add(multiply(Var(rows), lane.hi), Var(lane.var))
    return Ref(r.array, (*r.index[:-2], substitute(r.index[-2], {rows: Num(0)}), add(multiply(start, count), inside)))
