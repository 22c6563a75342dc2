"""In: a kernel with `vector` loops, concrete sizes. Out: in how many accesses their elements are fetched as one, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moapipe.loops.footprint import Census
from moapipe.loops.legal import negation
from moapipe.loops.onf import Array, Kernel
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.wide import wide


def parted(p: Site, arrays: Mapping[str, Array]) -> tuple[Site | None, tuple[Site, ...]]:
    """A site as what fetches elements together (once a vector, at its first element), and those that go one by one; (None, itself) for
    others."""
    if not p.loops or p.loops[-1].kind != "vector" or not p.loads:
        return None, (p,)
    w = wide(p.loops[-1], arrays)
    if p.leaf is not w.leaf:
        return None, (p,)
    outside = tuple(c for c in p.conditions if c not in p.leaf.where)
    together = replace(p, loops=p.loops[:-1], conditions=(*outside, *w.whole), loads=(w.first,), stores=())
    return together, tuple(replace(p, conditions=(*p.conditions, *w.whole[:i], negation(c))) for i, c in enumerate(w.whole))


def fetches(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """{array: accesses that fetch a vector of its elements}, exact; nothing for an array without."""
    kernel = fullest(kernel)
    census, arrays = Census(sizes), {a.name: a for a in kernel.arrays}
    out: dict[str, int] = {}
    for p in sites(kernel):
        together, _ = parted(p, arrays)
        if together:
            (first,) = together.loads
            out[first.array] = out.get(first.array, 0) + census.runs(together.loops, together.conditions)
    return {a: n for a, n in out.items() if n}
