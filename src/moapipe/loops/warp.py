"""In: a kernel at given sizes, what the lanes of a warp are bound to. Out: the sectors that its loads and stores ask the first-level
cache for, by array: exact for the binding, and bounds over all bindings of the loop nest.

One instruction of a warp asks for every sector that its active lanes touch, once. With one active lane that is a sector an element;
with 32 consecutive values of the innermost loop on the lanes it is as few as the nest allows. docs/cost_model.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from moapipe.algebra.index import add, evaluate, multiply
from moapipe.algebra.scalar import Num, Ref, Scalar, Var, op, variables
from moapipe.loops.footprint import Census
from moapipe.loops.onf import Accumulate, Kernel, Loop, Stmt, statements
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.tally import MEMORY

Lanes = Literal["none", "folds", "inner"]
"""What is on the lanes: nothing (one active lane), the innermost loops in which something folds into one element (which OpenACC
compilers turn into vector reductions), or every innermost loop."""
WARP, SECTOR_BYTES = 32, 32


@dataclass(frozen=True, slots=True)
class Requests:
    """Sectors that an array's loads and stores ask for, in times."""

    loads: int
    stores: int


def requests(kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, lanes: Lanes, *, sector_bytes: int = SECTOR_BYTES, warp: int = WARP) -> dict[str, Requests]:
    """Every array in memory, whatever its space; atomic updates are neither loads nor stores. Equal references of one loop body are
    one load if the body does not store to the array. The bounds of all bindings are "inner" and "none". Arrays begin at sectors."""
    kernel = fullest(kernel)
    census, pack = Census(sizes), sector_bytes // element_bytes
    shapes = {a.name: tuple(Num(evaluate(n, census.sizes)) for n in a.shape) for a in kernel.arrays if a.space in MEMORY and a.shape}
    out = {what: dict.fromkeys(shapes, 0) for what in ("loads", "stores")}
    for p, refs, what in _instructions(sites(kernel)):
        moment = _moment(p, lanes, warp)
        for r in refs:
            if r.array in shapes:
                sector = op("//", _flat(r, shapes[r.array]), pack)
                out[what][r.array] += census.distinct(census.reached(census.iterations(p.loops, p.conditions), (*moment, sector)))
    return {a: Requests(out["loads"][a], out["stores"][a]) for a in shapes if out["loads"][a] or out["stores"][a]}


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


def _moment(p: Site, lanes: Lanes, warp: int) -> tuple[Scalar, ...]:
    """What tells the instructions of a site apart: its iterations, those on the lanes 32 at a time."""
    bound = _bound(p, lanes)
    return tuple(op("//", s.var, warp) if s is bound else Var(s.var) for s in p.loops)


def _bound(p: Site, lanes: Lanes) -> Loop | None:
    """The loop on the lanes: the innermost one of the site, if no other loop is in it. A parallel one has its own iterations there."""
    inner = p.loops[-1] if p.loops else None
    if inner is None or any(isinstance(x, Loop) for x in statements(inner.body)):
        return None
    match lanes:
        case "none":
            return None
        case "inner":
            return inner
        case "folds":
            return inner if inner.kind == "parallel" or any(_folds(inner.var, x) for x in statements(inner.body)) else None
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
