"""In: a kernel. Out: nothing, or the LiftError of a nest that is none: what is undeclared, unbound, unallocated or of another rank.

What was found sound of a statement is remembered with what it took from around it, so a lift costs what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from moapipe.algebra.scalar import Scalar, references, remembered, variables
from moapipe.errors import LiftError
from moapipe.loops.onf import LOCAL, Accumulate, Alloc, Array, Assign, Body, If, Kernel, Leaf, Loop, mentions


def verify(k: Kernel) -> None:
    """Every array is declared once, every variable bound, ranks agree; every local array is allocated before use, and by the
    thread that uses it: inside the parallel loops around the use.

    Raises LiftError naming the offender: a lift that produces such a kernel is wrong.
    """
    names = [a.name for a in k.arrays]
    if len(set(names)) != len(names):
        raise LiftError(f"arrays declared twice: {sorted({n for n in names if names.count(n) > 1})}", where=k.name)
    given = frozenset(a.name for a in k.arrays if a.space in ("input", "output", "workspace"))
    _verify_body(k, {a.name: a for a in k.arrays}, k.body, frozenset(k.sizes), given)


def _verify_body(k: Kernel, arrays: Mapping[str, Array], body: Body, bound: frozenset[str], live: frozenset[str]) -> None:
    for s in body:
        if isinstance(s, Alloc):
            k.array(s.array)
            live = live | {s.array}
            continue
        names = mentions(s)
        context = ({n: arrays[n] for n in names if n in arrays}, names & bound, names & live)
        memo = remembered(s)
        if memo.get("verified") != context:
            _verify(k, arrays, s, bound, live)
            memo["verified"] = context


def _verify(k: Kernel, arrays: Mapping[str, Array], s: Loop | If | Leaf, bound: frozenset[str], live: frozenset[str]) -> None:
    match s:
        case Loop():
            _check_scope(k, (s.lo, s.hi), bound, live, f"bounds of {s.var}")
            if s.var in bound:
                raise LiftError(f"loop variable {s.var} is already bound", where=k.name)
            # every iteration has its own local arrays: what was allocated outside of a parallel loop does not exist inside
            inside = live - {n for n in live if arrays[n].space in LOCAL} if s.kind == "parallel" else live
            _verify_body(k, arrays, s.body, bound | {s.var}, inside)
        case If():
            _check_scope(k, (s.condition,), bound, live, "condition")
            _verify_body(k, arrays, s.body, bound, live)
        case Assign() | Accumulate():
            _check_scope(k, (s.target, s.value, *s.where, *s.ahead), bound, live, f"leaf of {s.name}")
        case _:
            assert_never(s)


def _check_scope(k: Kernel, parts: tuple[Scalar, ...], bound: frozenset[str], live: frozenset[str], what: str) -> None:
    for e in parts:
        if not variables(e) <= bound:
            loose = variables(e) - bound
            raise LiftError(f"{what} uses {sorted(loose)}, which no loop binds", where=k.name)
        for r in references(e):
            if r.array not in live:
                raise LiftError(f"{what} touches {r.array} before it is allocated", where=k.name, hint="a private array is allocated inside the parallel loop that uses it")
            if len(r.index) != len(k.array(r.array).shape):
                raise LiftError(f"{what} indexes {r.array} with {len(r.index)} of {len(k.array(r.array).shape)} axes", where=k.name)
