"""In: a kernel at given sizes. Out: the accumulations that several iterations of a parallel region make into one element.

Such an update must be atomic. It is found, also where no lift has said so: some element of the target belongs to more than one
iteration. How many instructions it takes depends on what the lanes of a warp are bound to, which the loop nest leaves open; so each
choice is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moapipe.algebra.index import add, evaluate, multiply
from moapipe.algebra.scalar import Num, Scalar, Var, op
from moapipe.loops.footprint import Census
from moapipe.loops.onf import Accumulate, Kernel, Loop
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.tally import GLOBAL
from moapipe.loops.warp import WARP, instruction, parallel


@dataclass(frozen=True, slots=True)
class Atomic:
    """One accumulation. `updates`: elements updated, in times, which is also the warp instructions with one active lane each.
    `instructions`: those where 32 consecutive values of a loop variable are the lanes of a warp, by variable. `spread`: those where
    the lanes are the threads of the texts that we write."""

    definition: str
    array: str
    updates: int
    instructions: dict[str, int]
    spread: int


def atomics(kernel: Kernel, sizes: Mapping[str, int], *, warp: int = WARP) -> tuple[Atomic, ...]:
    """Every accumulation that is atomic, or that iterations of one parallel region share, in the order of the text."""
    kernel = fullest(kernel)
    census = Census(sizes)
    shared = {a.name for a in kernel.arrays if a.space in GLOBAL}
    return tuple(_counted(p, census, warp) for p in sites(kernel)
                 if isinstance(p.leaf, Accumulate) and p.stores and p.leaf.target.array in shared and (p.leaf.atomic or _raced(p, census)))


def _raced(p: Site, census: Census) -> bool:
    iteration = [Var(s.var) for s in p.loops if s.kind == "parallel"]
    return bool(iteration) and _distinct(p, [*iteration, *p.leaf.target.index], census) > _distinct(p, p.leaf.target.index, census)


def uncontended(kernel: Kernel, sizes: Mapping[str, int], threads: int) -> frozenset[str]:
    """The atomic sums none of whose elements two workers add to in one launch: teams, or `threads` GPU threads that iterations are dealt
    to in turn. There a plain sum would be right too, so such sizes show nothing of an atomic one."""
    kernel = fullest(kernel)
    census = Census(sizes)
    return frozenset(p.leaf.name for p in sites(kernel) if isinstance(p.leaf, Accumulate) and p.stores and p.leaf.atomic and not _contended(p, census, threads))


def _contended(p: Site, census: Census, threads: int) -> bool:
    """More pairs of a worker and an element than elements, in one launch at least: some element has two workers."""
    nest, team = parallel(p), any(s.kind == "thread" for s in p.loops)
    item: Scalar = Num(0)
    for s in nest:
        item = add(multiply(item, Num(evaluate(op("-", s.hi, s.lo), census.sizes))), op("-", s.var, s.lo))
    launch = [Var(s.var) for s in p.loops[: p.loops.index(nest[0])]] if nest else []
    worker = item if team else op("%", item, threads)
    return _distinct(p, [*launch, worker, *p.leaf.target.index], census) > _distinct(p, [*launch, *p.leaf.target.index], census)


def _counted(p: Site, census: Census, warp: int) -> Atomic:
    return Atomic(p.leaf.name, p.leaf.target.array, census.runs(p.loops, p.conditions),
                  {s.var: _distinct(p, [_lanes(x, s, warp) for x in p.loops], census) for s in p.loops},
                  _distinct(p, instruction(p, "threads", census, warp), census))


def _lanes(x: Loop, lanes: Loop, warp: int) -> Scalar:
    return op("//", x.var, warp) if x is lanes else Var(x.var)


def _distinct(p: Site, index: list[Scalar] | tuple[Scalar, ...], census: Census) -> int:
    return census.distinct(census.reached(census.iterations(p.loops, p.conditions), index))
