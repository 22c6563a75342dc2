"""In: a kernel. Out: its sites: every straight piece of a leaf, with the loops and conditions around it and what it touches.

A leaf is one site; each arm of a choice over indices is one more, under that choice. A choice over data is a blend: both of its
arms belong to the site that evaluates it. This is the one place that says what a leaf loads, stores and calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import assert_never

from moapipe.algebra.function import MONOIDS
from moapipe.algebra.index import is_entry, is_index
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, op, references, rewrite, text, variables, walk
from moapipe.errors import LiftError
from moapipe.loops import pace
from moapipe.loops.onf import CHIP, Accumulate, Alloc, Assign, Body, If, Kernel, Leaf, Loop, expressions, map_expressions


@dataclass(frozen=True, slots=True)
class Life:
    """One Alloc of one array: a new life begins whenever it runs."""

    array: str
    number: int
    loops: tuple[Loop, ...]
    conditions: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A piece of a leaf that is evaluated as a whole or not at all.

    `place` is where it is done (`loops.pace`). `calls` are the functions of data by name; `work` is the same with a product and the sum that takes it counted as one
    `fma`, and outside of tiles with the `load`s and `store`s that go to memory anew in each iteration. `lives` maps the local arrays in scope to the Alloc that they come from.
    """

    loops: tuple[Loop, ...]
    conditions: tuple[Scalar, ...]
    loads: tuple[Ref, ...]
    stores: tuple[Ref, ...]
    calls: Mapping[str, int]
    work: Mapping[str, int]
    place: str
    lives: Mapping[str, Life]
    leaf: Leaf


@dataclass(frozen=True, slots=True)
class _Scope:
    """What surrounds a statement."""

    loops: tuple[Loop, ...] = ()
    conditions: tuple[Scalar, ...] = ()
    lives: Mapping[str, Life] = field(default_factory=dict)


def _visit(body: Body, at: _Scope, numbers: Iterator[int]) -> Iterator[tuple[Leaf | Life, _Scope]]:
    """Every leaf and every Alloc, in the order of the text."""
    for s in body:
        match s:
            case Loop():
                yield from _visit(s.body, replace(at, loops=(*at.loops, s)), numbers)
            case If():
                if not is_index(s.condition):
                    raise LiftError(f"if {text(s.condition)} depends on data, so nobody can count what it guards")
                yield from _visit(s.body, replace(at, conditions=(*at.conditions, s.condition)), numbers)
            case Alloc():
                life = Life(s.array, next(numbers), at.loops, at.conditions)
                at = replace(at, lives={**at.lives, s.array: life})
                yield life, at
            case Assign() | Accumulate():
                yield s, at
            case _:
                assert_never(s)


def lives(kernel: Kernel) -> tuple[Life, ...]:
    """Every Alloc, numbered in the order of the text."""
    return tuple(x for x, _ in _visit(kernel.body, _Scope(), count()) if isinstance(x, Life))


def sites(kernel: Kernel) -> tuple[Site, ...]:
    """Every site, in the order of the text. Raises LiftError for a condition over data on a whole tile."""
    spaces = {a.name: a.space for a in kernel.arrays}
    return tuple(p for x, at in _visit(kernel.body, _Scope(), count()) if not isinstance(x, Life) for p in _leaf(x, at, spaces))


def fullest(kernel: Kernel) -> Kernel:
    """The kernel with every whole number that comes with the data (`⌊x`) at the bound that a `min` puts on it: the most that any
    data can ask for, which is what counts are of. LiftError where nothing bounds it."""
    if not any(is_entry(x) for e in expressions(kernel.body) for x in walk(e)):
        return kernel
    return replace(kernel, body=map_expressions(kernel.body, lambda e: rewrite(e, _fullest)))


def _fullest(e: Scalar) -> Scalar:
    match e:
        case Op("min", (a, b)) if is_entry(a) or is_entry(b):
            return b if is_entry(a) else a
        case _:
            return e


def _leaf(s: Leaf, at: _Scope, spaces: Mapping[str, str]) -> Iterator[Site]:
    where = pace.place(s, at.loops, spaces)
    value = op(MONOIDS[s.monoid].function, s.target, s.value) if isinstance(s, Accumulate) else s.value
    for k, (path, loads, calls, work) in enumerate(_arms(value, ())):
        stores = (s.target,) if k == 0 else ()
        waits = {pace.link(s, at.loops): 1} if k == 0 and pace.width(where) else {}
        moves = {name: n for name, refs in (("load", loads), ("store", stores)) if (n := _moves(refs, where, at.loops, spaces))}
        yield Site(at.loops, (*at.conditions, *s.where, *path), tuple(loads), stores, calls, work + Counter(moves) + Counter(waits), where, at.lives, s)


def _moves(refs: Iterable[Ref], where: str, loops: tuple[Loop, ...], spaces: Mapping[str, str]) -> int:
    """Distinct elements in memory that change with the lane, or with the innermost loop where there is none; the others stay in a
    register. Those of a tile are part of the tile."""
    moving = {x.var for x in loops if x.kind == "lane"} or {x.var for x in loops[-1:]}
    return 0 if where == "tile" else sum(spaces[r.array] not in CHIP and bool(variables(r) & moving) for r in dict.fromkeys(refs))


Arm = tuple[tuple[Scalar, ...], list[Ref], Counter[str], Counter[str]]


def _arms(e: Scalar, path: tuple[Scalar, ...]) -> list[Arm]:
    """The arm under `path` first, then those that choices over indices open inside it."""
    loads: list[Ref] = []
    calls: Counter[str] = Counter()
    work: Counter[str] = Counter()
    inner: list[Arm] = []

    def visit(x: Scalar) -> None:
        match x:
            case Num() | Var():
                pass
            case Ref():
                loads.append(x)
            case Op("select", (c, a, b)) if is_index(c):
                inner.extend(_arms(a, (*path, c)))
                inner.extend(_arms(b, (*path, op("not", c))))
            case Op(name, args):
                if references(x):
                    calls[name] += 1
                    work[name] += 1
                    if name in ("+", "-") and any(isinstance(a, Op) and a.name == "*" and references(a) for a in args):
                        work.update({name: -1, "*": -1, "fma": 1})
                for a in args:
                    visit(a)
            case Fold():
                raise LiftError(f"a fold is left in a loop nest: {text(x)}", hint="lower() hoists folds into definitions")
            case _:
                assert_never(x)

    visit(e)
    return [(path, loads, +calls, +work), *inner]
