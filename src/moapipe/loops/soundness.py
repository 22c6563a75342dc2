"""In: a kernel. Out: nothing, or the LiftError of a nest that is none: what is undeclared, unbound, unallocated or of another rank.

What a statement needs from around it is remembered with it, so a lift costs what it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, assert_never

from moapipe.algebra.scalar import Num, Scalar, memoised, references, variables
from moapipe.errors import LiftError
from moapipe.loops.onf import LOCAL, Accumulate, Alloc, Assign, Body, If, Kernel, Leaf, Loop

T = TypeVar("T")


Ranked = tuple[str, int]
"""An array and the number of its axes."""


class _Needs(NamedTuple):
    """What statements need around them to be sound.

    bound  variables that are bound there      new   variables that are not: they bind them
    live   arrays that are allocated there     apart arrays that are nobody's own: they use them inside a parallel loop
    used   arrays that are declared; with -1 axes those that they allocate
    """

    bound: frozenset[str]
    new: frozenset[str]
    live: frozenset[Ranked]
    apart: frozenset[Ranked]
    used: frozenset[Ranked]


@dataclass(frozen=True, slots=True)
class _Scope:
    """A kernel's arrays as `_Needs` names them, and those of them that one iteration of a parallel loop has to itself."""

    kernel: Kernel
    declared: frozenset[Ranked]
    local: frozenset[Ranked]


def verify(k: Kernel) -> None:
    """Every array is declared once, every variable bound, ranks agree; every local array is allocated before use, and by the
    thread that uses it: inside the parallel loops around the use.

    Raises LiftError naming the offender: a lift that produces such a kernel is wrong.
    """
    names = [a.name for a in k.arrays]
    if len(set(names)) != len(names):
        raise LiftError(f"arrays declared twice: {sorted({n for n in names if names.count(n) > 1})}", where=k.name)
    ranked = [(a.name, len(a.shape)) for a in k.arrays]
    local = frozenset(x for x, a in zip(ranked, k.arrays, strict=True) if a.space in LOCAL)
    declared = frozenset([*ranked, *((n, -1) for n in names)])
    _verify_body(_Scope(k, declared, local), k.body, frozenset(k.sizes), frozenset(ranked) - local)


def _verify_body(scope: _Scope, body: Body, bound: frozenset[str], live: frozenset[Ranked]) -> None:
    """Descends where a need is not met, to say what does not meet it."""
    for s in body:
        if isinstance(s, Alloc):
            live = live | {(s.array, len(scope.kernel.array(s.array).shape))}
            continue
        n = _needs(s)
        met = n.bound <= bound and n.new.isdisjoint(bound) and n.live <= live and n.apart.isdisjoint(scope.local) and n.used <= scope.declared
        if not met:
            _refuse(scope, s, bound, live)


@memoised
def _needs(s: Loop | If | Leaf) -> _Needs:
    match s:
        case Loop(var):
            n, own = _needs_of(s.body), _needed(s.lo, s.hi)
            again = {var} if var in n.new or var in own.bound else ()  # bound and new: nothing around meets that
            apart = n.apart | n.live if s.kind == "parallel" else n.apart
            return _Needs(_either(n.bound - {var}, own.bound).union(again), n.new | {var}, _either(n.live, own.live), apart, _either(n.used, own.used))
        case If(condition):
            return _joined(_needs_of(s.body), _needed(condition))
        case Assign() | Accumulate():
            return _needed(s.target, s.value, *s.where, *s.ahead)
        case _:
            assert_never(s)


NOTHING = _Needs(*[frozenset[Any]()] * 5)


def _needed(*parts: Scalar) -> _Needs:
    if all(isinstance(e, Num) for e in parts):
        return NOTHING
    used = frozenset[Ranked]().union(*map(_ranks, parts))
    return _Needs(frozenset[str]().union(*map(variables, parts)), frozenset(), used, frozenset(), used)


@memoised
def _ranks(e: Scalar) -> frozenset[Ranked]:
    return frozenset((r.array, len(r.index)) for r in references(e))


def _joined(a: _Needs, b: _Needs) -> _Needs:
    return _Needs(_either(a.bound, b.bound), _either(a.new, b.new), _either(a.live, b.live), _either(a.apart, b.apart), _either(a.used, b.used))


def _either(a: frozenset[T], b: frozenset[T]) -> frozenset[T]:
    return a | b if b else a


def _needs_of(body: Body) -> _Needs:
    """What a body needs; not alive is what it allocates before all uses."""
    if len(body) == 1 and not isinstance(body[0], Alloc):
        return _needs(body[0])
    out = NOTHING
    for s in reversed(body):
        if isinstance(s, Alloc):
            out = out._replace(live=frozenset(x for x in out.live if x[0] != s.array), used=out.used | {(s.array, -1)})
        else:
            out = _joined(_needs(s), out)
    return out


def _refuse(scope: _Scope, s: Loop | If | Leaf, bound: frozenset[str], live: frozenset[Ranked]) -> None:
    k = scope.kernel
    match s:
        case Loop():
            _check_scope(k, (s.lo, s.hi), bound, live, f"bounds of {s.var}")
            if s.var in bound:
                raise LiftError(f"loop variable {s.var} is already bound", where=k.name)
            # every iteration has its own local arrays: what was allocated outside of a parallel loop does not exist inside
            inside = live - scope.local if s.kind == "parallel" else live
            _verify_body(scope, s.body, bound | {s.var}, inside)
        case If():
            _check_scope(k, (s.condition,), bound, live, "condition")
            _verify_body(scope, s.body, bound, live)
        case Assign() | Accumulate():
            _check_scope(k, (s.target, s.value, *s.where, *s.ahead), bound, live, f"leaf of {s.name}")
        case _:
            assert_never(s)


def _check_scope(k: Kernel, parts: tuple[Scalar, ...], bound: frozenset[str], live: frozenset[Ranked], what: str) -> None:
    names = {name for name, _ in live}
    for e in parts:
        if not variables(e) <= bound:
            loose = variables(e) - bound
            raise LiftError(f"{what} uses {sorted(loose)}, which no loop binds", where=k.name)
        for r in references(e):
            if r.array not in names:
                raise LiftError(f"{what} touches {r.array} before it is allocated", where=k.name, hint="a private array is allocated inside the parallel loop that uses it")
            if len(r.index) != len(k.array(r.array).shape):
                raise LiftError(f"{what} indexes {r.array} with {len(r.index)} of {len(k.array(r.array).shape)} axes", where=k.name)
