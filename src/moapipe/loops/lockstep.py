"""In: a kernel, sizes, how a processor runs many iterations at once. Out: bounds of the bytes that each parallel region moves past
its cache, as sectors.

A processor with thousands of threads works on many iterations of a parallel region at once, a *wave*; the waves follow each
other. The model takes the iterations of a wave as going in step, and asks what `Reuse` asks with the wave's iterations innermost.
What it cannot know is whether neighbouring iterations find a sector in the cache that another of them has fetched. So there are
two answers: `shared` (they do) and `apart` (each pays). docs/cost_model.md derives both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moapipe.algebra.index import affine, evaluate
from moapipe.algebra.scalar import Ref, Scalar, Var, op, variables
from moapipe.loops.onf import Kernel, Loop
from moapipe.loops.site import Site
from moapipe.loops.traffic import Reuse, Traffic


@dataclass(frozen=True, slots=True)
class Device:
    """A processor with one cache in `parts` halves (each serves its own blocks and holds what they touch), sectors of
    `sector_bytes`, and `blocks` iterations of a parallel region at work at once."""

    cache_bytes: int
    parts: int
    sector_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Bytes that one top-level statement moves, by array, from a cold cache: both bounds. Stores to part of a sector fetch
    nothing here (sectors have byte masks), so `allocated` is no traffic."""

    names: tuple[str, ...]
    shared: dict[str, Traffic]
    apart: dict[str, Traffic]

    @property
    def read(self) -> tuple[int, int]:
        return self._sum("read")

    @property
    def written(self) -> tuple[int, int]:
        return self._sum("written")

    def _sum(self, what: str) -> tuple[int, int]:
        low, high = (sum(getattr(t, what) for t in bound.values()) for bound in (self.shared, self.apart))
        return low, high


def launches(kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, device: Device) -> tuple[Launch, ...]:
    """Every top-level statement by itself, in order, with what it is named after: the definitions of its leaves."""
    bounds = [Lockstep(kernel, sizes, element_bytes, device, apart=apart).launches() for apart in (False, True)]
    return tuple(Launch(a, shared, apart) for (a, shared), (_, apart) in zip(*bounds, strict=True))


class Lockstep(Reuse):
    """`Reuse` with a wave's iterations in step. `apart`: a sector serves the consecutive accesses of one thread, and nobody else."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, device: Device, *, apart: bool) -> None:
        super().__init__(kernel, sizes, element_bytes, device.sector_bytes)
        self._device, self._apart = device, apart
        self._private = {a.name for a in self._kernel.arrays if a.space == "private"}
        self._waves: dict[int, tuple[Scalar, ...]] = {}
        for s in self._kernel.body:
            self._waves |= self._split(region(s))
        self._shares: dict[int, Site] = {}

    def launches(self) -> list[tuple[tuple[str, ...], dict[str, Traffic]]]:
        """Traffic of every top-level statement past the cache, which is cold when it starts, and the definitions of its leaves."""
        lines = self._device.cache_bytes // self._device.parts // self._line
        out = []
        for s in self._kernel.body:
            chunks = list(self._cut((s,), (), lines))
            pieces = [p for c in chunks for p in c.pieces]
            out.append((tuple(dict.fromkeys(p.leaf.name for p in pieces)), {a: self._array(a, chunks, lines) for a in self._touched(pieces)}))
        return out

    def _split(self, nest: tuple[Loop, ...]) -> dict[int, tuple[Scalar, ...]]:
        """What of each variable of a region tells waves apart: nothing where the whole loop is in one wave, else the variable by as
        many of its values as are. A wave is a block of consecutive iterations."""
        room = self._device.blocks
        out: dict[int, tuple[Scalar, ...]] = {}
        for s in reversed(nest):
            extent = evaluate(s.hi, self._census.sizes) - evaluate(s.lo, self._census.sizes)
            out[id(s)] = () if extent <= room else (op("//", s.var, room),)
            room = max(1, room // max(1, extent))
        return out

    def _moment(self, loops: tuple[Loop, ...]) -> tuple[Scalar, ...]:
        return tuple(e for s in loops for e in self._waves.get(id(s), (Var(s.var),)))

    def _runs(self, loops: tuple[Loop, ...]) -> int:
        return self._census.distinct(self._census.reached(self._census.iterations(loops, ()), self._moment(loops)))

    def _place(self, site: Site, array: str) -> tuple[Scalar, ...]:
        """Each iteration of a region has its own."""
        return tuple(Var(s.var) for s in site.lives[array].loops if id(s) in self._waves) if array in self._private else ()

    def _part(self, array: str, pieces: tuple[Site, ...], loops: tuple[Loop, ...]) -> float:
        """In one part of the cache, which serves every so-manieth iteration."""
        return super()._part(array, tuple(self._share(p) for p in pieces), loops)

    def _share(self, p: Site) -> Site:
        if id(p) not in self._shares:
            nest = [s for s in p.loops if id(s) in self._waves]
            mine = (op("==", op("%", nest[-1].var, self._device.parts), 0),) if nest and self._device.parts > 1 else ()
            self._shares[id(p)] = replace(p, conditions=(*p.conditions, *mine))
        return self._shares[id(p)]

    def _lines(self, array: str, pieces: Sequence[Site], loops: tuple[Loop, ...], what: str) -> int:
        if self._apart and any(self._scattered(p, r) for p in pieces for r in (*p.loads, *p.stores) if r.array == array):
            return self._distinct(array, pieces, loops, what, 1)
        return super()._lines(array, pieces, loops, what)

    def _scattered(self, p: Site, r: Ref) -> bool:
        """Does a thread leave the sector with its next element? The innermost loop that moves the reference must be the thread's
        own, and move it by one."""
        step = next((s for s in reversed(p.loops) if any(s.var in variables(i) for i in r.index)), None)
        if step is None:
            return False
        by_one = affine(r.index[-1]).get(Var(step.var)) == 1 and not any(step.var in variables(i) for i in r.index[:-1])
        return id(step) in self._waves or not by_one


def region(s: object) -> tuple[Loop, ...]:
    """The collapsed parallel loops that a statement begins with."""
    nest: list[Loop] = []
    while isinstance(s, Loop) and s.kind == "parallel":
        nest.append(s)
        s = s.body[0] if len(s.body) == 1 else None
    return tuple(nest)
