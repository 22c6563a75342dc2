"""In: a kernel at given sizes, what the lanes of a warp are bound to. Out: the sectors that its loads and stores ask the first-level
cache for, by array, exact for the binding.

One instruction of a warp asks for every sector that its active lanes touch, once. With one active lane that is a sector an element;
with 32 consecutive values of a loop on the lanes it is one where the reference does not move, and as many as it spans where it does.
docs/cost_model.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, assert_never

from moapipe.algebra.index import Affine, add, affine, evaluate, multiply
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, op, variables
from moapipe.loops.fetch import parted
from moapipe.loops.footprint import Census
from moapipe.loops.lockstep import region
from moapipe.loops.onf import Accumulate, Array, Kernel, Loop, Stmt, statements
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.tally import MEMORY

Lanes = Literal["none", "folds", "inner", "threads"]
"""What is on the lanes: nothing (one active lane), the innermost loops in which something folds into one element (which OpenACC
compilers turn into vector reductions), every innermost loop, or the threads of the texts that we write (`threads`)."""
WARP, SECTOR_BYTES = 32, 32


@dataclass(frozen=True, slots=True)
class Requests:
    """Sectors that an array's loads and stores ask for, in times."""

    loads: int
    stores: int


def requests(kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, lanes: Lanes, *, sector_bytes: int = SECTOR_BYTES, warp: int = WARP) -> dict[str, Requests]:
    """Every array in memory, whatever its space; atomic updates are neither loads nor stores. Equal references of one loop body are
    one load if the body does not store to the array. Most sectors of all bindings are those of "none"; a warp asks for one at least.
    Arrays begin at sectors."""
    kernel = fullest(kernel)
    census = Census(sizes)
    arrays = {a.name: a for a in kernel.arrays if a.space in MEMORY and a.shape}
    shapes = {n: tuple(Num(evaluate(e, census.sizes)) for e in a.shape) for n, a in arrays.items()}
    out = {what: dict.fromkeys(shapes, 0) for what in ("loads", "stores")}
    pieces = sites(kernel) if lanes == "none" else tuple(_fetched(sites(kernel), {a.name: a for a in kernel.arrays}))
    for p, refs, what in _instructions(pieces):
        for r in refs:
            if r.array in shapes:
                own = lanes == "threads" and arrays[r.array].space == "private"     # every thread has its own, at another place
                pack = sector_bytes // arrays[r.array].bytes(element_bytes)
                out[what][r.array] += _sectors(p, _flat(r, shapes[r.array]), _Request("none" if own else lanes, pack, warp), census)
    return {a: Requests(out["loads"][a], out["stores"][a]) for a in shapes if out["loads"][a] or out["stores"][a]}


def _fetched(pieces: Iterable[Site], arrays: Mapping[str, Array]) -> Iterator[Site]:
    """The sites, copies of elements that are fetched as one in two: those fetches, each in the sector of its first element, and the rest."""
    for p in pieces:
        together, rest = parted(p, arrays)
        yield from (*((together,) if together else ()), *rest)


@dataclass(frozen=True, slots=True)
class _Request:
    """What is on the lanes, elements of a sector, lanes of a warp."""

    lanes: Lanes
    pack: int
    warp: int


def _sectors(p: Site, flat: Scalar, q: _Request, census: Census) -> int:
    """Sectors that all instructions of one reference ask for: those of its lanes, where they all differ or all agree, without looking."""
    bound, moment = _bound(p, q.lanes), instruction(p, q.lanes, census, q.warp)
    found = census.iterations(p.loops, p.conditions)
    if not bound or _apart(flat, bound, q, census):
        return census.runs(p.loops, p.conditions)
    if rows := _rows(flat, bound, q, census):
        moment = tuple(Var(s.var) for s in p.loops if not any(s is b for b in bound[rows:]))
    together = not any(s.var in variables(flat) for s in bound)
    return census.distinct(census.reached(found, moment if together else (*moment, op("//", flat, q.pack))))


def _apart(flat: Scalar, bound: tuple[Loop, ...], q: _Request, census: Census) -> bool:
    """Is every lane's element in another sector, whatever the place of the first? Where each loop on the lanes steps over all that those
    inside it reach, and the innermost over a sector."""
    steps = affine(flat)
    if any(isinstance(t, Op) and s.var in variables(t) for t in steps for s in bound):
        return False
    reach = q.pack
    for k, s in reversed(list(enumerate(bound))):
        step = abs(steps.get(Var(s.var), 0))
        if step == 0 and s is not bound[-1] and _extent(bound[-1], census) >= q.warp:
            continue
        if step < reach:
            return False
        reach = step * _extent(s, census) if k else 0
    return True


def _rows(flat: Scalar, bound: tuple[Loop, ...], q: _Request, census: Census) -> int:
    """How many of the outermost loops on the lanes count by themselves, because a warp holds whole rows of those inside them, and each
    step of theirs goes past all sectors that a row reaches: then it is the same to ask of each row what it asks for."""
    steps = affine(flat)
    for k in range(len(bound) - 1, 0, -1):
        inner = bound[k:]
        reach = q.pack + sum(abs(steps.get(Var(s.var), 0)) * (_extent(s, census) - 1) for s in inner)
        rigid = not any(isinstance(t, Op) and s.var in variables(t) for t in steps for s in bound)
        if rigid and q.warp % max(1, prod(_extent(s, census) for s in inner)) == 0 and _steps_over(bound[:k], steps, reach, census):
            return k
    return 0


def _steps_over(outer: tuple[Loop, ...], steps: Affine, reach: int, census: Census) -> bool:
    """Values of the loops lie at least `reach` apart, whichever two of them."""
    for s in reversed(outer):
        step = abs(steps.get(Var(s.var), 0))
        if step < reach:
            return False
        reach += step * (_extent(s, census) - 1)
    return True


def _instructions(pieces: tuple[Site, ...]) -> Iterator[tuple[Site, Iterable[Ref], str]]:
    """What every site loads that its body has not loaded yet, and what it stores."""
    stored = {(_body(p), r.array) for p in pieces for r in p.stores}
    had: set[tuple[object, Ref]] = set()
    for p in pieces:
        atomic = isinstance(p.leaf, Accumulate) and p.leaf.atomic
        new = [r for r in dict.fromkeys(p.loads) if (_body(p), r) not in had and not (atomic and r == p.leaf.target)]
        had |= {(_body(p), r) for r in new if (_body(p), r.array) not in stored}
        yield p, new, "loads"
        yield p, () if atomic else p.stores, "stores"


def _body(p: Site) -> tuple[object, ...]:
    return (*map(id, p.loops), p.conditions)


def instruction(p: Site, lanes: Lanes, census: Census, warp: int = WARP) -> tuple[Scalar, ...]:
    """What tells the instructions of a site apart: its iterations, those on the lanes `warp` at a time."""
    bound = _bound(p, lanes)
    others = tuple(Var(s.var) for s in p.loops if not any(s is b for b in bound))
    return (*others, *(_warps(bound, census, warp) if lanes == "threads" else [op("//", s.var, warp) for s in bound]))


def threads(p: Site) -> tuple[Loop, ...]:
    """The loops whose iterations are GPU threads in our texts, the fastest last: a team's thread loops, or where there are none the
    collapsed parallel loops (the number of threads is taken as a multiple of a warp, so a warp has consecutive iterations)."""
    return tuple(s for s in p.loops if s.kind == "thread") or parallel(p)


def parallel(p: Site) -> tuple[Loop, ...]:
    """The collapsed parallel loops, whose iterations teams or threads run; none where one thread runs all."""
    outer = next((s for s in p.loops if s.kind == "parallel"), None)
    return region(outer) if outer else ()


def _warps(bound: tuple[Loop, ...], census: Census, warp: int) -> tuple[Scalar, ...]:
    """The number of the warp, from the loops on its lanes; where the innermost fills whole warps, those further out count by themselves."""
    if bound and _extent(bound[-1], census) % warp == 0:
        return (*(Var(x.var) for x in bound[:-1]), op("//", op("-", bound[-1].var, bound[-1].lo), warp))
    linear: Scalar = Num(0)
    for s in bound:
        linear = add(multiply(linear, Num(_extent(s, census))), op("-", s.var, s.lo))
    return (op("//", linear, warp),) if bound else ()


def _extent(s: Loop, census: Census) -> int:
    """Iterations of a loop whose bounds come from sizes."""
    return evaluate(s.hi, census.sizes) - evaluate(s.lo, census.sizes)


def _bound(p: Site, lanes: Lanes) -> tuple[Loop, ...]:
    """The loops on the lanes: GPU threads, or the innermost loop of the site if no other loop is in it. A parallel one has its own
    iterations there."""
    inner = p.loops[-1:]
    if any(isinstance(x, Loop) for s in inner for x in statements(s.body)):
        inner = ()
    match lanes:
        case "none":
            return ()
        case "inner":
            return inner
        case "folds":
            return tuple(s for s in inner if s.kind == "parallel" or any(_folds(s.var, x) for x in statements(s.body)))
        case "threads":
            return threads(p)
        case _:
            assert_never(lanes)


def _folds(var: str, s: Stmt) -> bool:
    return isinstance(s, Accumulate) and not any(var in variables(i) for i in s.target.index)


def _flat(r: Ref, shape: tuple[Num, ...]) -> Scalar:
    """γ of the reference."""
    out: Scalar = Num(0)
    for i, n in zip(r.index, shape, strict=True):
        out = add(multiply(out, n), i)
    return out
