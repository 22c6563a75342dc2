"""In: counts, traffic, a calibration. Out: the time that they take on that machine, with its parts, before anything runs.

    T = Σ over parallel regions max(T_compute, max over levels T_level) + T_serial + T_overhead

* T_compute: work ÷ measured rate, a place at a time, the busiest thread's share. Register tiles take the measured rate of a tile
  that loads its operands, and the measured time between two tiles for each that begins; other vector work the vector rate,
  exponentials theirs; scalar work goes one lane at a time. What leaves outside of tiles load and store passes at L1's bandwidth.
* T_level: bytes past a cache ÷ the measured bandwidth of a copy in what lies beyond it, as far as a copy would fetch them to store
  what is stored; what is fetched beyond that ÷ the bandwidth of reading; and no less than reading all that is fetched. Within a region transfers overlap with work and with each other: the slowest counts (the roofline assumption; Williams et al., CACM 52(4), 2009, by levels as in Ilic et al., 2014).
  Across a barrier nothing overlaps. Traffic is that of the whole call, shared out to its regions as each would move it alone.
  A call that follows one like it finds in a cache what all of that call left there: a level that holds everything lets nothing pass.
* T_serial: work outside of regions, on one thread. T_overhead: one start and join of threads a region.

No constant is fitted to a kernel. What misses is the model's to explain: docs/measuring.md lists what it leaves out.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from moapipe.loops import pace
from moapipe.loops.tally import EXPONENTIALS, Counts
from moapipe.loops.traffic import Traffic
from moapipe.machine.rate import LEVELS, MEMORY, Calibration, at
from moapipe.targets.isa import element_bytes

Work = Mapping[str, Mapping[str, int]]
Past = Mapping[str, Mapping[str, Traffic]]
"""Traffic by cache level and array."""

FREE = ("neg", "abs", "select", "and", "or", "not")
"""Functions that cost nothing of their own: signs and masks fold into the operations around them."""
MOVES = ("load", "store")
WAITS = ("chain", "link")
"""Steps of a fold that wait for the last one: multiply-adds, and simple operations. They are counted as functions too."""
SLOW = {"/": 8.0, "sqrt": 8.0, "reciprocal": 8.0, "log": 24.0, "log2": 24.0, "%": 8.0}
"""Work of a function in simple operations, where it is more than one: a division takes the divider for about 8 vector
operations' time (Fog, Instruction tables, Zen 4: vdivps zmm 5, vdivpd zmm 9, against one half), a logarithm is a polynomial."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of one call, and the parts: `compute`, `memory` (its regions' slowest levels; the slowest of the call is named),
    `overhead`; `traffic` bytes past each cache; `bandwidth` bytes a second of what lies beyond it; `parts` each region's seconds
    within the core and its caches, and those of what comes from memory, the longer of which counts; `moving` seconds past each cache
    of a call that follows one like it (`traffic` is that of a first call)."""

    seconds: float
    compute: float
    memory: float
    overhead: float
    slowest: str
    traffic: Mapping[str, int]
    bandwidth: Mapping[str, float]
    parts: tuple[tuple[float, float], ...] = ()
    moving: Mapping[str, float] = field(default_factory=dict)


def predict(
    counts: Counts, past: Past, calibration: Calibration, dtype: str, *, streamed: frozenset[str] = frozenset(), alone: Sequence[Past] = (),
    kept: Container[str] = (),
) -> Prediction:
    """The time of one call. `past` is its traffic, `alone` that of each of its parallel regions by itself (none: one region, or
    all alike), `streamed` the arrays whose stores stream past the caches, `kept` the caches that hold all that a call touches until
    the next one. Threads are those of `counts`."""
    moved = _total(past, streamed)
    first = {level: _seconds(level, bytes_, calibration, counts.threads, bool(streamed)) for level, bytes_ in moved.items()}
    traffic = {level: bytes_.all for level, bytes_ in moved.items()}
    bandwidth = {level: traffic[level] / first[level] if traffic[level] else at(calibration.bandwidth[_source(level, calibration)].copy, counts.threads) for level in past}
    times = {level: 0.0 if level in kept else t for level, t in first.items()}
    serial, compute = _compute(counts, calibration, dtype)
    parts = [{level: _seconds(level, b, calibration, counts.threads, bool(streamed)) for level, b in _total(a, streamed).items()} for a in alone]
    parts = parts or [first] * len(compute)
    shared = [{level: times[level] * _share(part[level], parts, level) for level in past} for part in parts]
    memory = [max(part.values(), default=0.0) for part in shared]
    busy = serial + sum(max(pair) for pair in zip(compute, memory, strict=True))
    overhead = counts.barriers * at(calibration.region, counts.threads)
    slowest = max(times, key=lambda level: times[level], default="")
    split = tuple(_apart(c, part, calibration) for c, part in zip(compute, shared, strict=True))
    return Prediction(busy + overhead, serial + sum(compute), sum(memory), overhead, slowest, traffic, bandwidth, split, times)


@dataclass(frozen=True)
class _Moved:
    """Bytes past a level: those that are fetched, all, and those that walks which meet in a slot fetch one after the other."""

    read: int
    all: int
    met: int


def _total(past: Past, streamed: frozenset[str]) -> dict[str, _Moved]:
    """A line that is stored to first is fetched too, unless the stores stream."""
    out = {}
    for level, arrays in past.items():
        read = sum(t.read + (0 if name in streamed else t.allocated) for name, t in arrays.items())
        out[level] = _Moved(read, read + sum(t.written for t in arrays.values()), sum(t.met for name, t in arrays.items() if name not in streamed))
    return out


def _share(part: float, parts: Sequence[Mapping[str, float]], level: str) -> float:
    whole = sum(p[level] for p in parts)
    return part / whole if whole else 0.0


def _apart(compute: float, levels: Mapping[str, float], c: Calibration) -> tuple[float, float]:
    """A region's seconds without memory, and memory's."""
    far = [seconds for level, seconds in levels.items() if _source(level, c) == MEMORY]
    return max(compute, *(seconds for level, seconds in levels.items() if _source(level, c) != MEMORY), 0.0), max(far, default=0.0)


def _source(level: str, c: Calibration) -> str:
    """The next level beyond a cache that was measured."""
    return next(x for x in LEVELS[LEVELS.index(level) + 1 :] if x in c.bandwidth)


def _seconds(level: str, moved: _Moved, c: Calibration, threads: int, streams: bool) -> float:
    """Time of what passes a level: what is stored, with as much fetched as a copy would, at a copy's rate, what is fetched beyond that at
    the rate of reading; no faster than reading fetches all of it, and than columns of pages come. Streaming stores only tell past the
    last cache."""
    source = _source(level, c)
    found, streaming = c.bandwidth[source], streams and source == MEMORY
    copying, reading = at(found.stream if streaming else found.copy, threads), at(found.read, threads)
    copied = min(moved.all, (moved.all - moved.read) * (2 if streaming else 3))
    return max(copied / copying + (moved.all - copied) / reading, moved.read / reading, moved.met / at(found.column, threads))


def _compute(counts: Counts, c: Calibration, dtype: str) -> tuple[float, list[float]]:
    """Seconds outside of parallel regions, on one thread; and of each region, at the busiest thread's pace. A kernel without regions
    is one."""
    total, seconds = _flat(counts.work), []
    for r in counts.regions:
        seconds.append(r.busiest * counts.threads * work_seconds(r.work, c, dtype, counts.threads))
        for key, n in _flat(r.work).items():
            total[key] -= n
    rest: dict[str, dict[str, int]] = {}
    for (place, name), n in total.items():
        rest.setdefault(place, {})[name] = max(0, n)
    serial = work_seconds(rest, c, dtype, 1)
    return (serial, seconds) if seconds else (0.0, [serial])


def _flat(work: Work) -> dict[tuple[str, str], int]:
    return {(place, name): n for place, names in work.items() for name, n in names.items()}


def work_seconds(work: Work, c: Calibration, dtype: str, threads: int) -> float:
    """Time of work that is shared out evenly, in seconds."""
    return sum(max(_flowing(place, names, c, dtype, threads), _waiting(place, names, c, dtype, threads)) for place, names in work.items())


def _flowing(place: str, names: Mapping[str, int], c: Calibration, dtype: str, threads: int) -> float:
    """Time where nothing waits for anything; what is narrower than a vector takes as long as one."""
    lanes = c.lanes[dtype]
    alone = lanes if place == "scalar" else max(1.0, lanes / pace.width(place)) if pace.width(place) else 1
    return sum(n * (1 if name == "start" else alone) * _each(place, name, c, dtype, threads) for name, n in names.items())


def _waiting(place: str, names: Mapping[str, int], c: Calibration, dtype: str, threads: int) -> float:
    """Time of a chain's steps, each of which waits for the last, but for those that the processor does beside the next fold."""
    if not (width := pace.width(place)):
        return 0.0
    rates = c.rates[dtype]
    steps = {name: names.get(name, 0) / width for name in WAITS}
    all_ = sum(steps.values())
    left = max(0.0, 1 - names.get("start", 0) * at(rates.ahead, threads) / all_) if all_ else 0.0
    return left * (steps["chain"] * at(rates.chain, threads) + steps["link"] * at(rates.link, threads)) / threads


def _each(place: str, name: str, c: Calibration, dtype: str, threads: int) -> float:
    """Seconds that one function, element or tile adds, all threads at work."""
    rates = c.rates[dtype]
    if name in FREE or name in WAITS:
        return 0.0
    if name == "start":
        begun = {"tile": rates.start, "fold": rates.fold}.get(place)
        return at(begun, threads) / threads if begun else 0.0
    if name in MOVES:
        return element_bytes(dtype) / at(c.bandwidth["L1"].copy, threads) if "L1" in c.bandwidth else 0.0
    if name == "fma":
        return 1 / at(rates.tile if place == "tile" else rates.fma, threads)
    return SLOW.get(name, 1.0) / at(rates.exp if name in EXPONENTIALS else rates.vector, threads)
