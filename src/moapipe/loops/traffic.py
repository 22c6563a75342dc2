"""In: a kernel, numbers for its sizes, a capacity. Out: the bytes that pass between that capacity and what lies beyond it.

The third count. The model finds, from the outside in, the outermost loops of which one iteration fits the capacity: what they
touch is fetched once for each iteration of the loops around them. docs/cost_model.md derives it and says what it cannot know.
`simulate` is its oracle: a fully associative cache with least-recently-used replacement, fed with the interpreter's trace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import prod

from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var
from moapipe.loops.footprint import Census, Image
from moapipe.loops.interpret import Event
from moapipe.loops.onf import CHIP, Accumulate, Alloc, Assign, Body, If, Kernel, Leaf, Loop
from moapipe.loops.site import Site, fullest, sites
from moapipe.loops.slot import PAGE_BYTES, moves, recent, slots


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one array past a level. `read`: fetched because they are loaded. `allocated`: lines whose first touch is a
    store; a cache that allocates on writes fetches them too, unless the store streams past it. `written`: written back.
    `met`: what is fetched by walks that do not go over all slots of a page, divided by the slots that they go over: as if all lay in
    one, and fetched one after the other."""

    read: int
    allocated: int
    written: int
    met: int = field(default=0, compare=False)


def traffic(
    kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, capacity_bytes: int, line_bytes: int = 64, *, threads: int = 1, sharers: int = 1,
) -> dict[str, Traffic]:
    """Bytes past a capacity, for every array in memory, over all threads. `Reuse` answers for many capacities at once."""
    return Reuse(kernel, sizes, element_bytes, line_bytes, threads=threads, sharers=sharers).past(capacity_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of one iteration of `loops` whose data stay in the cache; of a `stream` loop one iteration does at a time."""

    pieces: tuple[Site, ...]
    loops: tuple[Loop, ...]
    stream: Loop | None = None


class Reuse:
    """The reuse of one kernel at given sizes. `threads` work in all, `sharers` of them on each instance of the cache."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, line_bytes: int = 64, *, threads: int = 1, sharers: int = 1) -> None:
        kernel = fullest(kernel)
        self._census = Census({**{s: int(sizes[s]) for s in kernel.sizes}, "threads": threads})
        self._kernel, self._line = kernel, line_bytes
        self._element = {a.name: a.bytes(element_bytes) for a in kernel.arrays}
        self._instances, self._sharers = max(1, threads // sharers), min(sharers, threads)
        self._shapes = {a.name: tuple(evaluate(s, self._census.sizes) for s in a.shape) for a in kernel.arrays if a.space not in CHIP}
        self._inside: dict[int, list[Site]] = {}
        for p in sites(kernel):
            for statement in (*p.loops, p.leaf):
                self._inside.setdefault(id(statement), []).append(p)
        self._sets: dict[tuple[object, ...], int] = {}
        self._met: dict[tuple[object, ...], int] = {}
        self._indexed = False

    def past(self, capacity_bytes: int, *, indexed: bool = False) -> dict[str, Traffic]:
        """Traffic past a cache of that capacity (of one instance). One that is `indexed` by the place in a page has room for a share of the
        lines that meet there; others, and caches that hash their addresses, have room for any."""
        lines = capacity_bytes // self._line
        self._indexed = indexed
        chunks = list(self._cut(self._kernel.body, (), lines))
        return {a: self._array(a, chunks, lines) for a in self._shapes}

    def stays(self, capacity_bytes: int) -> bool:
        """Whether all that a call touches is still in a cache of that capacity (of one instance) when the next such call begins: a cache
        that replaces what was used longest ago keeps all of a walk that comes again, or nothing."""
        pieces = tuple(p for s in _statements(self._kernel.body) for p in self._inside.get(id(s), ()))
        held = sum(self._lines(a, pieces, (), "both") * self._spread(a, pieces, ()) for a in self._touched(pieces))
        return held <= self._instances * (capacity_bytes // self._line)

    def _array(self, array: str, chunks: list[Chunk], lines: int) -> Traffic:
        """Chunk by chunk; neighbours between which the array's data stay are taken together."""
        read = allocated = written = met = 0.0
        mine = [(k, c) for k, c in enumerate(chunks) if array in self._touched(c.pieces)]
        while mine:
            pieces, loops = mine[0][1].pieces, mine[0][1].loops
            while len(mine) > 1 and mine[1][0] == mine[0][0] + 1 and self._carried(array, mine[0][1], mine[1][1], lines):
                mine.pop(0)
                pieces += mine[0][1].pieces
            mine.pop(0)
            spread = self._spread(array, pieces, loops)
            both, stores = (self._lines(array, pieces, loops, what) for what in ("both", "stores"))
            first = min(both, self._lines(array, _before_loads(array, pieces), loops, "stores"))
            read, allocated, written = read + spread * (both - first), allocated + spread * first, written + spread * stores
            met += spread * both * self._meeting(array, pieces)
        return Traffic(round(read) * self._line, round(allocated) * self._line, round(written) * self._line, round(met * self._line))

    def _carried(self, array: str, a: Chunk, b: Chunk, lines: int) -> bool:
        """Does what `a` leaves of the array stay until `b` uses it? Every iteration of a stream must touch all of it."""
        if a.loops != b.loops:
            return False
        sizes = []
        for c in (a, b):
            inner = (*c.loops, c.stream) if c.stream else c.loops
            if self._part(array, c.pieces, inner) < self._part(array, c.pieces, c.loops):
                return False
            sizes.append({x: self._part(x, c.pieces, inner) for x in self._touched(c.pieces)})
        return sum(max(sizes[0].get(x, 0), sizes[1].get(x, 0)) for x in sizes[0] | sizes[1]) <= lines

    # -------------------------------------------------------------- which loops fit

    def _cut(self, body: Body, loops: tuple[Loop, ...], lines: int) -> Iterator[Chunk]:
        """Parts of one iteration, each with the loops outside of it, such that nothing is reused between two parts."""
        group: tuple[Site, ...] = ()
        for s in _statements(body):
            pieces = tuple(self._inside.get(id(s), ()))
            if self._fits((*group, *pieces), loops, lines):
                group = (*group, *pieces)
                continue
            if group:
                yield Chunk(group, loops)
                group = ()
            if isinstance(s, Loop) and not self._fits(pieces, (*loops, s), lines):
                yield from self._cut(s.body, (*loops, s), lines)
            elif isinstance(s, Loop) and not self._fits(pieces, loops, lines):
                yield Chunk(pieces, loops, s)
            else:
                group = pieces
        if group:
            yield Chunk(group, loops)

    def _fits(self, pieces: tuple[Site, ...], loops: tuple[Loop, ...], lines: int) -> bool:
        """Whether all that one iteration of `loops` touches has room, and, where the cache is indexed, the lines of each array in the slots
        that they have."""
        if self._working_set(pieces, loops) > lines:
            return False
        share = lines * self._line / PAGE_BYTES
        return not self._indexed or all(self._part(a, pieces, loops) <= share * self._room(a, pieces, len(loops)) for a in self._touched(pieces))

    def _room(self, array: str, pieces: tuple[Site, ...], depth: int) -> int:
        """The slots of what the loops from `depth` on touch of an array: those of the reference that has most."""
        return max(self._slots(p, r, depth, near=False) for p in pieces for r in dict.fromkeys((*p.loads, *p.stores)) if r.array == array)

    def _meeting(self, array: str, pieces: tuple[Site, ...]) -> float:
        """The share of its lines that the walk which fetches an array asks for one after the other: none where it goes over all slots."""
        first = next(p for p in pieces if any(r.array == array for r in (*p.loads, *p.stores)))
        least = min(self._slots(first, r, 0, near=True) for r in (*first.loads, *first.stores) if r.array == array)
        return 1 / least if least < PAGE_BYTES // self._line else 0.0

    def _slots(self, p: Site, r: Ref, depth: int, *, near: bool) -> int:
        """The slots of a reference in the loops from `depth` on; of its innermost ones, if only what is `near` in time counts."""
        key = (id(p), r, depth, near)
        if key not in self._met:
            walk = moves(r, self._shapes[r.array], p.loops[depth:], lambda k: self._trips(p.loops[: depth + k + 1]), self._element[r.array])
            every = PAGE_BYTES // self._line
            self._met[key] = every if walk is None else slots(recent(walk, self._line) if near else walk, self._line)
        return self._met[key]

    def _trips(self, loops: tuple[Loop, ...]) -> int:
        """Iterations of the innermost loop in one of the others, on average."""
        return -(-self._runs(loops) // max(1, self._runs(loops[:-1])))

    def _working_set(self, pieces: tuple[Site, ...], loops: tuple[Loop, ...]) -> float:
        """Distinct lines that `pieces` touch in one iteration of `loops`, on average; of all sharers at once."""
        mine = self._per_iteration(pieces, loops)
        serial = tuple(s for s in loops if s.kind != "parallel")
        if self._sharers == 1 or serial == loops:
            return mine
        rounds = max(1, self._values(loops, serial))
        trips = self._runs(loops) / rounds
        together = sum(self._lines(a, pieces, serial, "both") for a in self._touched(pieces)) / rounds
        return mine + max(0.0, together - mine) * (min(self._sharers, trips) - 1) / max(1.0, trips - 1)

    def _per_iteration(self, pieces: tuple[Site, ...], loops: tuple[Loop, ...]) -> float:
        return sum(self._part(a, pieces, loops) for a in self._touched(pieces))

    def _part(self, array: str, pieces: tuple[Site, ...], loops: tuple[Loop, ...]) -> float:
        """Lines of one array in one iteration of `loops`, on average."""
        return self._lines(array, pieces, loops, "both") / max(1, self._runs(loops))

    def _spread(self, array: str, pieces: tuple[Site, ...], loops: tuple[Loop, ...]) -> float:
        """How many instances fetch what a chunk outside the parallel loops touches: contiguous blocks of iterations overlap."""
        if self._instances == 1 or any(s.kind == "parallel" for s in loops):
            return 1.0
        return max((self._region_spread(array, r, loops) for r in self._regions(pieces, len(loops))), default=1.0)

    def _region_spread(self, array: str, pieces: tuple[Site, ...], loops: tuple[Loop, ...]) -> float:
        once = self._lines(array, pieces, loops, "both")
        if not once:
            return 1.0
        inner = tuple(takewhile(lambda s: all(any(s is t for t in p.loops) for p in pieces), pieces[0].loops))
        nest = tuple(s for s in inner[len(loops):] if s.kind == "parallel")
        upto = inner[: inner.index(nest[-1]) + 1]
        trips = max(1.0, self._values(upto, (*loops, *nest)) / max(1, self._runs(loops)))
        times = max(1.0, self._lines(array, pieces, (*loops, *nest), "both") / once)
        return min(times, 1 + (times - 1) * self._instances / trips, self._instances)

    def _regions(self, pieces: tuple[Site, ...], depth: int) -> list[tuple[Site, ...]]:
        """The sites of each parallel region."""
        out: dict[int, list[Site]] = {}
        for p in pieces:
            first = next((s for s in p.loops[depth:] if s.kind == "parallel"), None)
            if first is not None:
                out.setdefault(id(first), []).append(p)
        return [tuple(r) for r in out.values()]

    def _values(self, loops: tuple[Loop, ...], chosen: tuple[Loop, ...]) -> int:
        """How many different values the variables of `chosen`, some of `loops`, take together."""
        return self._census.distinct(self._census.reached(self._census.iterations(loops, ()), [Var(s.var) for s in chosen]))

    def _runs(self, loops: tuple[Loop, ...]) -> int:
        return self._census.runs(loops, ())

    # -------------------------------------------------------------- distinct lines

    def _touched(self, pieces: Iterable[Site]) -> list[str]:
        return list(dict.fromkeys(r.array for p in pieces for r in (*p.loads, *p.stores) if r.array in self._shapes))

    def _lines(self, array: str, pieces: Sequence[Site], loops: tuple[Loop, ...], what: str) -> int:
        """Distinct (iteration of `loops`, line of `array`). Exact where rows are whole lines. Otherwise what is touched is taken as
        segments that begin anywhere in a line: L elements of one then touch 1 + (L - 1)/pack lines on average."""
        shape, pack = self._shapes[array], max(1, self._line // self._element[array])
        if pack == 1 or not shape or len(shape) == 1 or shape[-1] % pack == 0:
            return self._distinct(array, pieces, loops, what, pack)
        elements = self._distinct(array, pieces, loops, what, 1)
        planes = [self._distinct(array, pieces, loops, what, pack, depth) for depth in range(len(shape))]
        whole = next((k for k, n in enumerate(planes) if elements == n * prod(shape[k:])), len(shape))
        if whole == 0:
            return planes[0] * -(-prod(shape) // pack)
        if prod(shape[whole:]) % pack == 0:
            return elements // pack
        segments = planes[whole - 1]
        return min(elements, max(self._distinct(array, pieces, loops, what, pack) if whole == len(shape) else 0, segments + -(-(elements - segments) // pack)))

    def _distinct(self, array: str, pieces: Sequence[Site], loops: tuple[Loop, ...], what: str, pack: int, depth: int | None = None) -> int:
        """Distinct (iteration, line) with rows that begin at lines; with `depth`, (iteration, that many leading indices)."""
        at = self._moment(loops)
        key = (array, tuple(map(id, pieces)), at, what, pack, depth)
        if key not in self._sets:
            images: list[Image] = []
            for p in pieces:
                for r in dict.fromkeys((p.loads if what != "stores" else ()) + (p.stores if what != "loads" else ())):
                    if r.array == array:
                        index = _packed(r, pack).index if depth is None else r.index[:depth]
                        images += self._census.reached(self._census.iterations(p.loops, p.conditions), (*at, *self._place(p, array), *index))
            self._sets[key] = self._census.distinct(images)
        return self._sets[key]

    def _moment(self, loops: tuple[Loop, ...]) -> tuple[Scalar, ...]:
        """What tells the iterations of `loops` apart in time."""
        return tuple(Var(s.var) for s in loops)

    def _place(self, site: Site, array: str) -> tuple[Scalar, ...]:
        """Indices in front of an array's own that tell its places apart: a private array has one for each thread."""
        return ()


def _packed(r: Ref, pack: int) -> Ref:
    return r if pack == 1 or not r.index else Ref(r.array, (*r.index[:-1], Op("//", (r.index[-1], Num(pack)))))


def _statements(body: Body) -> Iterator[Loop | Leaf]:
    """The loops and leaves of one iteration; what stands under a condition counts with the condition of its sites."""
    for s in body:
        match s:
            case Loop() | Assign() | Accumulate():
                yield s
            case If():
                yield from _statements(s.body)
            case Alloc():
                pass


def _before_loads(array: str, pieces: Sequence[Site]) -> tuple[Site, ...]:
    """Sites that store to `array` before any site, in the order of the text, has loaded from it."""
    out: list[Site] = []
    for p in pieces:
        if any(r.array == array for r in p.loads):
            break
        out += [p] if any(r.array == array for r in p.stores) else []
    return tuple(out)


def simulate(kernel: Kernel, trace: Iterable[Event], element_bytes: int, capacity_bytes: int, line_bytes: int = 64) -> dict[str, Traffic]:
    """The same numbers from a trace of `interpret.run`, by a fully associative LRU cache of whole lines, flushed at the end.

    Every array starts at a line of its own; all lives of a private array lie in the same place. Registers and shared arrays are on the chip.
    """
    room, memory = capacity_bytes // line_bytes, [a.name for a in kernel.arrays if a.space not in CHIP]
    pack = {a: max(1, line_bytes // kernel.array(a).bytes(element_bytes)) for a in memory}
    read, allocated, written = ({a: 0 for a in memory} for _ in range(3))
    cache: OrderedDict[tuple[str, int], bool] = OrderedDict()
    for array, _, offset, store in trace:
        if array not in read:
            continue
        line = (array, offset // pack[array])
        if line not in cache:
            (allocated if store else read)[array] += line_bytes
        cache[line] = cache.pop(line, False) or store
        if len(cache) > room:
            (victim, _), dirty = cache.popitem(last=False)
            written[victim] += line_bytes if dirty else 0
    for (array, _), dirty in cache.items():
        written[array] += line_bytes if dirty else 0
    return {a: Traffic(read[a], allocated[a], written[a]) for a in read}
