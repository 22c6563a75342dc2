"""In: sites of a loop nest and a domain. Out: how many distinct elements they touch, exactly, without running anything.

The elements that one reference reaches are the image of its iterations under its index: a system over coordinates $0, $1, ….
Overlapping images are counted by inclusion and exclusion after those inside another one are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import Ref, Scalar, Var
from moapipe.loops.domain import Cases, Domain
from moapipe.loops.lattice import EMPTY, Linear, System, Terms, combine, conjunction, project, replace_variable, system
from moapipe.loops.onf import LOCAL, Kernel, Loop
from moapipe.loops.points import Bounds, count, tighten
from moapipe.loops.site import Life, Site, lives
from moapipe.loops.tally import Touch


@dataclass(frozen=True, slots=True)
class Image:
    """Coordinates that satisfy the system. Variables in `exists` only have to exist; other foreign ones are determined."""

    system: System
    exists: frozenset[str]


class Census:
    """Counts iterations and images at given sizes; remembers systems that it has counted."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = {k: int(v) for k, v in sizes.items()}
        self.domain = Domain(sizes)
        self._points: dict[tuple[System, frozenset[str]], int] = {}
        self._iterations: dict[tuple[tuple[Loop, ...], tuple[Scalar, ...]], Cases] = {}
        self._images: dict[tuple[System, tuple[tuple[tuple[str, int], ...], ...]], Image] = {}

    def iterations(self, loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> Cases:
        """The points at which a site runs, as disjoint systems."""
        bare = tuple(Loop(s.var, s.lo, s.hi, ()) for s in loops)
        if (bare, conditions) not in self._iterations:
            self._iterations[bare, conditions] = self.domain.points(bare, conditions)
        return self._iterations[bare, conditions]

    def runs(self, loops: tuple[Loop, ...], conditions: tuple[Scalar, ...]) -> int:
        """How often a site runs."""
        order = tuple(s.var for s in loops)
        return sum(self.points(s, frozenset(), order) for s in self.iterations(loops, conditions))

    def points(self, s: System, exists: frozenset[str], order: tuple[str, ...] = ()) -> int:
        if (s, exists) not in self._points:
            self._points[s, exists] = count(s, exists, order)
        return self._points[s, exists]

    def images(self, site: Site, ref: Ref, prefix: Sequence[str]) -> list[Image]:
        """What `ref` reaches: coordinates are the values of the `prefix` variables, then the index."""
        return self.reached(self.iterations(site.loops, site.conditions), (*map(Var, prefix), *ref.index))

    def reached(self, cases: Cases, index: Sequence[Scalar]) -> list[Image]:
        """The values of an index over the points of `cases`."""
        values = [self.domain.value(i) for i in index]
        out = []
        for s in cases:
            for choice in product(*values):
                given = conjunction(s, *[g for _, g in choice])
                if not given.empty:
                    out.append(self._image(given, [dict(x) for x, _ in choice]))
        return [i for i in out if not i.system.empty]

    def _image(self, s: System, entries: list[Linear]) -> Image:
        key = (s, tuple(tuple(sorted(e.items())) for e in entries))
        if key not in self._images:
            self._images[key] = image(s, entries)
        return self._images[key]

    def distinct(self, images: Iterable[Image]) -> int:
        """Points in the union."""
        return union(list(dict.fromkeys(images)), self.points)


def image(s: System, entries: list[Linear]) -> Image:
    """{(e₀, e₁, …)} over the points of `s`, as a system over $0, $1, …"""
    s, bounds = tighten(s)
    if s.empty:
        return Image(EMPTY, frozenset())
    todo = sorted(range(len(entries)), key=lambda k: (len(entries[k]), k))
    inequalities = [c for k, e in enumerate(entries) for c in _within(f"${k}", e, bounds)]
    for k in todo:
        e, name = entries[k], f"${k}"
        x = next((v for v in reversed(list(e)) if abs(e[v]) == 1 and v and v[0] != "$"), None)
        if x is None:
            inequalities += [combine({name: 1}, e, 1, -1), combine(e, {name: -1})]
            continue
        by = combine({name: 1}, {v: c for v, c in e.items() if v != x}, e[x], -e[x])
        s = replace_variable(s, x, by)
        inequalities = [_replaced(c, x, by) for c in inequalities]
        entries = [_replaced(c, x, by) for c in entries]
    s = conjunction(s, system(inequalities))
    s, _, exists = project(s, [v for v in s.variables() if v[0] != "$"])
    return Image(_named(s, exists), exists)


def _named(s: System, exists: frozenset[str]) -> System:
    """Name every variable that the others determine by what determines it: x is ⌈-r/c⌉ where 0 <= c·x + r < c. Images of
    different references then share it, instead of each having its own."""
    while True:
        todo = {v for v in s.variables() if v[0] not in "$⌈"} - exists
        found = next(((x, row) for x in sorted(todo) for row in s.rows if _determines(s, row, x, (todo | exists) - {x})), None)
        if found is None:
            return s
        x, (terms, constant) = found
        rest = " ".join(f"{c}{v}" for v, c in terms if v != x)
        s = replace_variable(s, x, {f"⌈{constant} {rest} / {dict(terms)[x]}⌉": 1})


def _determines(s: System, row: tuple[Terms, int], x: str, unknown: set[str] | frozenset[str]) -> bool:
    terms, constant = row
    c = dict(terms)
    if c.get(x, 0) <= 0 or unknown & set(c):
        return False
    opposite = tuple((v, -k) for v, k in terms)
    return any(t == opposite and constant + k < c[x] for t, k in s.rows)


def _within(name: str, e: Linear, bounds: Bounds) -> tuple[Linear, Linear]:
    """The range that interval arithmetic gives an entry: implied, but projection may lose it."""
    low, high = (sum(k * (bounds[v][(k > 0) == top] if v else 1) for v, k in e.items()) for top in (False, True))
    return {name: 1, "": -low}, {name: -1, "": high}


def _replaced(c: Linear, x: str, by: Linear) -> Linear:
    return combine({v: k for v, k in c.items() if v != x}, by, 1, c[x]) if x in c else c


def intersection(a: Image, b: Image) -> Image:
    """Foreign variables of the two are kept apart, but for those whose name says what they are."""
    foreign = {v for v in a.system.variables() if v[0] not in "$⌈"}
    s, exists = b.system, set(b.exists)
    for v in sorted(foreign & s.variables()):
        fresh = v + "'"
        while fresh in foreign or fresh in s.variables():
            fresh += "'"
        s = replace_variable(s, v, {fresh: 1})
        exists = (exists - {v}) | ({fresh} if v in exists else set())
    both = conjunction(a.system, s)
    return Image(both, frozenset((exists | a.exists) & both.variables()))


def union(images: list[Image], points: Callable[[System, frozenset[str]], int]) -> int:
    """|∪ images| by inclusion and exclusion; branches that have become empty are cut."""
    sized = sorted(((points(i.system, i.exists), k) for k, i in enumerate(images)), reverse=True)
    kept: list[tuple[int, Image]] = []
    for size, k in sized:
        a = images[k]
        if size and not any(_size(intersection(a, b), points) == size for _, b in kept):
            kept.append((size, a))

    def beyond(start: int, at: Image, sign: int) -> int:
        total = 0
        for k in range(start, len(kept)):
            both = intersection(at, kept[k][1])
            if size := _size(both, points):
                total += sign * size + beyond(k + 1, both, -sign)
        return total

    return sum(size + beyond(k + 1, i, -1) for k, (size, i) in enumerate(kept))


def _size(i: Image, points: Callable[[System, frozenset[str]], int]) -> int:
    return 0 if i.system == EMPTY or i.system.empty else points(i.system, i.exists)


def touched(kernel: Kernel, pieces: Sequence[Site], census: Census, only: Container[tuple[str, str]] | None = None) -> dict[str, Touch]:
    """Distinct elements read and written, of every array, over all its lives. `only`: the pairs of an array and "read" or
    "written" that somebody wants; others are 0."""
    allocs = lives(kernel)

    def reached(array: str, mine: list[Life | None], name: str, what: str) -> int:
        return sum(_reached(array, life, pieces, census, what) for life in mine) if only is None or (array, name) in only else 0

    out: dict[str, Touch] = {}
    for a in kernel.arrays:
        elements = prod(evaluate(s, census.sizes) for s in a.shape)
        if a.space in LOCAL:
            mine: list[Life | None] = [x for x in allocs if x.array == a.name]
            born = sum(census.runs(x.loops, x.conditions) for x in mine if x)
        else:
            mine, born = [None], 1
        read, written = reached(a.name, mine, "read", "loads"), reached(a.name, mine, "written", "stores")
        out[a.name] = Touch(a.space, elements, born, read, written)
    return out


def _reached(array: str, life: Life | None, pieces: Sequence[Site], census: Census, what: str) -> int:
    prefix = [s.var for s in life.loops] if life else []
    images: list[Image] = []
    for p in pieces:
        if life is None or p.lives.get(array) == life:
            for r in dict.fromkeys(p.loads if what == "loads" else p.stores):
                images += census.images(p, r, prefix) if r.array == array else []
    return census.distinct(images)
