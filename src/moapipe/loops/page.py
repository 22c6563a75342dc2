"""In: a kernel at given sizes, the reach of a TLB. Out: walks that need more pages than it holds, and use little of each.

The walk of a reference is one run of the innermost loop that moves it. Where a walk touches more pages than the second-level TLB
has entries, comes by again, and takes only a few elements of each page, nearly every element costs a page walk. It is a flag, not
a count of time: docs/cost_model.md says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import Ref, variables
from moapipe.loops.footprint import Census
from moapipe.loops.onf import Kernel
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.slot import PAGE_BYTES, stride
from moapipe.loops.tally import GLOBAL

ENTRIES = 2048
"""Second-level data TLB entries: AMD Zen 3 (Software Optimization Guide 56665) and Intel since Ice Lake."""
FEW = 8
"""Elements of a page that one visit must use for its walk to be lost among them: one line of f64."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk under pressure: `pages` touched in one run of `loop`, `elements` of each visited page used, of `entries`."""

    definition: str
    array: str
    loop: str
    pages: int
    elements: float
    entries: int

    @property
    def pressure(self) -> float:
        return self.pages / self.entries


def walks(kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, *, page_bytes: int = PAGE_BYTES, entries: int = ENTRIES) -> tuple[Walk, ...]:
    """Every walk under pressure, worst first. Private and register arrays are a thread's own few pages and are left out."""
    kernel = fullest(kernel)
    census, packs = Census(sizes), {a.name: page_bytes // a.bytes(element_bytes) for a in kernel.arrays}
    shapes = {a.name: tuple(evaluate(s, census.sizes) for s in a.shape) for a in kernel.arrays if a.space in GLOBAL}
    found = {w for p in sites(kernel) for r in dict.fromkeys((*p.loads, *p.stores)) if r.index and r.array in shapes
             for w in _walk(p, r, shapes[r.array], census, packs[r.array]) if w.pages > entries and w.elements < FEW}  # fmt: skip
    return tuple(sorted((replace(w, entries=entries) for w in found), key=lambda w: (-w.pages, w.definition, w.array)))


def _walk(p: Site, r: Ref, shape: tuple[int, ...], census: Census, pack: int) -> Iterator[Walk]:
    """The walk of one reference, if it comes by again: its runs together touch more pages than the array has."""
    depth = next((k for k in reversed(range(len(p.loops))) if any(p.loops[k].var in variables(i) for i in r.index)), None)
    if depth is None:
        return
    runs = max(1, census.runs(p.loops[:depth], ()))
    steps, step = census.runs(p.loops[: depth + 1], ()) / runs, abs(stride(r, shape, p.loops[depth].var) or 0)
    pages = min(steps, max(1.0, steps * step / pack))
    if pages * runs > prod(shape) / pack:
        yield Walk(p.leaf.name, r.array, p.loops[depth].var, round(pages), steps / pages, 0)

