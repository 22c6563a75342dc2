"""In: a kernel, numbers for its sizes, bytes of a value. Out: its counts, exact, without running it (docs/cost_model.md)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from moapipe.algebra.scalar import Scalar, variables
from moapipe.errors import LiftError
from moapipe.loops import pace
from moapipe.loops.footprint import Census, touched
from moapipe.loops.onf import Body, If, Kernel, Loop, Stmt, map_statements
from moapipe.loops.points import Values, profile
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.tally import Access, Counts, Region

LISTED = 1 << 17
"""Iterations up to which a dynamic schedule is played through; beyond, it is taken as perfectly even."""


def count(kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, *, threads: int = 1) -> Counts:
    """All counts of one call. Takes milliseconds whatever the sizes are. Equal to what `interpret.run` counts.

    `threads` matters for the regions' `busiest` share only. Raises LiftError for conditions over data on whole tiles and for
    indices or bounds that are not linear in the loop variables once the sizes are numbers.
    """
    kernel, at = fullest(kernel), {s: int(sizes[s]) for s in kernel.sizes}
    pieces, census = sites(kernel), Census({**at, "threads": threads})
    runs = [census.runs(p.loops, p.conditions) for p in pieces]
    calls: Counter[str] = Counter()
    for p, n in zip(pieces, runs, strict=True):
        calls.update({name: n * times for name, times in p.calls.items() if n})
    return Counts(
        kernel.name, at, element_bytes, threads, tuple(a.name for a in kernel.arrays if a.space == "input" and not a.shape),
        _accesses(kernel, pieces, runs), touched(kernel, pieces, census), dict(sorted(calls.items())), _work(pieces, runs, census),
        tuple(_region(r, pieces, runs, census, threads) for r in _parallel(kernel.body, (), ())), tuple(a.name for a in kernel.arrays if a.narrow),
    )


def _accesses(kernel: Kernel, pieces: tuple[Site, ...], runs: list[int]) -> dict[str, Access]:
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    for p, n in zip(pieces, runs, strict=True):
        for r in p.loads:
            loads[r.array] += n
        for r in p.stores:
            stores[r.array] += n
    return {a.name: Access(a.space, loads[a.name], stores[a.name]) for a in kernel.arrays}


def _work(pieces: Iterable[Site], runs: Iterable[int], census: Census) -> dict[str, dict[str, int]]:
    out: dict[str, Counter[str]] = {}
    for p, n in zip(pieces, runs, strict=True):
        for name, times in p.work.items():
            if n:
                out.setdefault(p.place, Counter())[name] += n * times
        if n and p.stores and (depth := _outside(p)) is not None:
            out[p.place]["start"] += _starts(p, depth, census)
    return {place: dict(sorted(c.items())) for place, c in sorted(out.items())}


def _outside(p: Site) -> int | None:
    """How many loops stand around the loop whose beginnings count: a tile's marked fold, the lanes of a fold, the steps of a chain."""
    if p.place == "tile":
        return next(k for k, x in enumerate(p.loops) if x.mark)
    return len(p.loops) - 1 if p.place == "fold" else pace.step(p.loops) if pace.width(p.place) else None


def _starts(p: Site, depth: int, census: Census) -> int:
    """How often the loop inside that many others is begun."""
    around = p.loops[:depth]
    known = frozenset(x.var for x in around) | census.sizes.keys()
    return census.runs(around, tuple(w for w in p.conditions if variables(w) <= known))


# ------------------------------------------------------------------ parallel regions

Outer = tuple[tuple[Loop, ...], tuple[Loop, ...], tuple[Scalar, ...]]


def _parallel(body: tuple[Stmt, ...], loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> Iterable[Outer]:
    """(loops outside, collapsed parallel loops, conditions) of every region, in the order of the text."""
    for s in body:
        match s:
            case Loop(kind="parallel"):
                nest = [s]
                while len(nest[-1].body) == 1 and isinstance(inner := nest[-1].body[0], Loop) and inner.kind == "parallel":
                    nest.append(inner)
                yield loops, tuple(nest), conditions
            case Loop():
                yield from _parallel(s.body, (*loops, s), conditions)
            case If():
                yield from _parallel(s.body, loops, (*conditions, s.condition))
            case _:
                pass


def _region(r: Outer, pieces: tuple[Site, ...], runs: list[int], census: Census, threads: int) -> Region:
    outside, nest, conditions = r
    depth = len(outside)
    inside = [(p, n) for p, n in zip(pieces, runs, strict=True) if len(p.loops) > depth and p.loops[depth] is nest[0]]
    times, trips = (census.runs(loops, conditions) for loops in (outside, (*outside, *nest)))
    weights = _weights([p for p, _ in inside], nest, census) if threads > 1 else np.ones(1, np.int64)
    busiest = _busiest(weights, threads, nest[-1].schedule)
    return Region(times, trips, nest[-1].schedule, busiest, _work([p for p, _ in inside], [n for _, n in inside], census))


def regions(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernel once for each parallel region, with the loops around it and without the other regions, in the order of the text."""
    firsts = [nest[0] for _, nest, _ in _parallel(kernel.body, (), ())]

    def only(kept: Loop) -> Body:
        others = {id(s) for s in firsts if s is not kept}
        return map_statements(kernel.body, lambda s: () if id(s) in others or (isinstance(s, Loop | If) and not s.body) else (s,))

    return tuple(replace(kernel, body=only(s)) for s in firsts)


def _weights(pieces: list[Site], nest: tuple[Loop, ...], census: Census) -> Values:
    """Work of every iteration, in order: function calls and accesses of the leaves that it runs.

    A leaf whose distribution would need too large a table is left out; the others, in the same nest, stand for it.
    """
    keep = tuple(s.var for s in nest)
    total = np.zeros([1] * len(keep), np.int64)
    for p in pieces:
        each = sum(p.calls.values()) + len(p.loads) + len(p.stores)
        for s in census.iterations(p.loops, p.conditions) if p.stores else ():
            try:
                found = profile(s, keep) * each
            except LiftError:
                continue
            shape = np.maximum(total.shape, found.shape)
            total = _padded(total, shape) + _padded(found, shape)
    if nest[-1].schedule == "paired":
        turn = np.arange(total.shape[-1])
        total = total[..., np.where(turn % 2, total.shape[-1] - 1 - turn // 2, turn // 2)]
    return total.ravel()


def _padded(values: Values, shape: Values) -> Values:
    return np.pad(values, [(0, int(s) - have) for s, have in zip(shape, values.shape, strict=True)])


def _busiest(weights: Values, threads: int, schedule: str) -> float:
    """The largest share of one thread: static and paired give contiguous blocks of equal length, dynamic the next iteration to
    whoever is free."""
    total = int(weights.sum())
    if threads == 1 or not total:
        return 1.0
    if schedule != "dynamic":
        base, more = divmod(len(weights), threads)
        ends = np.cumsum([base + (t < more) for t in range(threads)])
        sums = np.diff(np.concatenate([[0], np.cumsum(weights)])[np.concatenate([[0], ends])])
        return float(sums.max() / total)
    if len(weights) > LISTED:
        return max(1 / threads, float(weights.max() / total))
    free = [0] * threads
    for w in weights.tolist():
        heapq.heapreplace(free, free[0] + w)
    return max(free) / total
