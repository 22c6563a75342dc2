"""In: a kernel and what it is written for. Out: nothing, or the first breach of what the ONF promises to every target.

A lane loop that is no whole number of vectors, or a lane that is not unit-stride, would still give right numbers in some
languages and quietly cost a factor of ten in all of them; so all refuse it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from moapipe.algebra.index import constant
from moapipe.algebra.scalar import Ref, references, text, variables
from moapipe.errors import TargetError
from moapipe.loops import team as teams
from moapipe.loops.onf import Alloc, Array, Kernel, Leaf, Loop, leaves, statements
from moapipe.loops.wide import wide
from moapipe.targets.expression import unit_stride
from moapipe.targets.target import Team, Unit


def check(kernel: Kernel, unit: Unit, team: Team | None = None) -> None:
    """Frozen text 1 of docs/architecture.md, as far as targets rely on it, and what the language gives a `team`. TargetError (LiftError
    for what no team can run) names the loop or the array."""
    teams.check(kernel)
    vectors = not teams.threads(kernel.body)            # a team's registers are scalars
    for s in statements(kernel.body):
        if isinstance(s, Loop) and s.kind in ("lane", "unroll"):
            _bounds(kernel, s, unit)
        if isinstance(s, Loop) and s.kind == "vector":
            _vector(kernel, s, unit)
        if isinstance(s, Loop) and s.kind == "parallel" and (references(s.lo) or references(s.hi)):
            raise TargetError(f"parallel loop {s.var} runs from {text(s.lo)} to {text(s.hi)}, which comes with the data", where=kernel.name,
                              hint="share out loops whose length the sizes give; shorten those inside")
    for a in kernel.arrays:
        if a.space == "register" and vectors:
            _extents(kernel, a, unit)
        if a.stream and a.space != "output":
            raise TargetError(f"{a.name} is {a.space} and asks for streaming stores", where=kernel.name, hint="only outputs can stream")
    for leaf, loops, _ in leaves(kernel.body):
        _leaf(kernel, leaf, loops)
    if team:
        _room(kernel, unit, team)


def _room(kernel: Kernel, unit: Unit, team: Team) -> None:
    """What one team shares, and its threads, are no more than the language takes; the device's own limits are asked when it is known
    (lab/build.py)."""
    for r in teams.regions(kernel.body):
        names = {s.array for s in statements((r,)) if isinstance(s, Alloc)}
        arrays = [a for a in kernel.arrays if a.name in names and a.space == "shared"]
        need = sum(unit.size * prod(constant(s) or 0 for s in a.shape) for a in arrays)
        if need > team.shared_bytes:
            raise TargetError(f"a team shares {need:,} bytes in {', '.join(a.name for a in arrays)}; there are {team.shared_bytes:,}", where=kernel.name,
                              hint="smaller tiles, or fewer of them at a time")
        if teams.threads((r,)) > team.threads:
            raise TargetError(f"a team has {teams.threads((r,)):,} threads; at most {team.threads:,} run together", where=kernel.name, hint="smaller tiles")


def _bounds(kernel: Kernel, s: Loop, unit: Unit) -> None:
    lo, hi = constant(s.lo), constant(s.hi)
    if lo is None or hi is None:
        raise TargetError(f"{s.kind} loop {s.var} runs from {text(s.lo)} to {text(s.hi)}, which are no numbers", where=kernel.name,
                          hint="split the axis by a constant first")
    if s.kind == "lane" and (lo or hi % unit.lanes):
        raise TargetError(f"lane loop {s.var} runs from {lo} to {hi}; lanes are whole vectors of {unit.lanes} from 0", where=kernel.name,
                          hint="split the axis by a multiple of V")


def _vector(kernel: Kernel, s: Loop, unit: Unit) -> None:
    """What is fetched as one is one vector of values, wherever later lifts put it."""
    if wide(s, {a.name: a for a in kernel.arrays}).width != unit.lanes:
        raise TargetError(f"vector loop {s.var} has {text(s.hi)} elements; {unit.lanes} values are one access of 16 bytes", where=kernel.name, hint="split the axis by V")


def _extents(kernel: Kernel, a: Array, unit: Unit) -> None:
    extents = [constant(s) for s in a.shape]
    if None in extents:
        raise TargetError(f"register array {a.name} has extents {', '.join(map(text, a.shape))}, expected numbers", where=kernel.name)
    if not extents or (extents[-1] or 0) % unit.lanes:
        raise TargetError(f"the last extent of register array {a.name} is no multiple of V = {unit.lanes}", where=kernel.name,
                          hint="make the tile's width a multiple of V")


def _leaf(kernel: Kernel, leaf: Leaf, loops: Sequence[Loop]) -> None:
    lanes = [l.var for l in loops if l.kind == "lane"]
    fixed = {l.var for l in loops if l.kind in ("lane", "unroll", "thread", "warp", "vector")}
    for r in (leaf.target, *(x for e in (leaf.value, *leaf.where) for x in references(e))):
        for lane in lanes:
            if lane in variables(r) and not unit_stride(r, lane):
                raise TargetError(f"lane {lane} is not unit-stride in {text(r)}", where=f"{kernel.name}: {leaf.name}",
                                  hint="a lane variable stands in the last index only, with coefficient 1: give the array another layout")
        if kernel.array(r.array).space == "register" and (loose := _index_variables(r) - fixed):
            names = ", ".join(sorted(loose))
            raise TargetError(f"register array {r.array} is indexed by {names} in {text(r)}", where=f"{kernel.name}: {leaf.name}",
                              hint="registers have no addresses: index them by unroll and lane variables, or by numbers")


def _index_variables(r: Ref) -> frozenset[str]:
    return frozenset().union(*(variables(i) for i in r.index))
