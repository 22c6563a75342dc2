"""In: counts, traffic, a calibration. Out: the time that they take on that machine, with its parts, before anything runs.

    T = Σ over parallel regions max(T_compute, max over levels T_level) + T_serial + T_overhead

* T_compute: work ÷ measured rate, a place at a time, the busiest thread's share. Register tiles take the measured rate of a tile
  that loads its operands, and the measured time between two tiles for each that begins; other vector work the vector rate,
  exponentials theirs; scalar work goes one lane at a time. What leaves outside of tiles load and store passes at L1's bandwidth.
* T_level: bytes past a cache ÷ the measured bandwidth of what lies beyond it. Within a region transfers overlap with work and with
  each other: the slowest counts (the roofline assumption; Williams et al., CACM 52(4), 2009, by levels as in Ilic et al., 2014).
  Across a barrier nothing overlaps. Traffic is that of the whole call, shared out to its regions as each would move it alone.
* T_serial: work outside of regions, on one thread. T_overhead: one start and join of threads a region.

No constant is fitted to a kernel. What misses is the model's to explain: docs/measuring.md lists what it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moapipe.loops.tally import EXPONENTIALS, Counts
from moapipe.loops.traffic import Traffic
from moapipe.machine.rate import LEVELS, Calibration, at
from moapipe.targets.isa import element_bytes

Work = Mapping[str, Mapping[str, int]]
Past = Mapping[str, Mapping[str, Traffic]]
"""Traffic by cache level and array."""

FREE = ("neg", "abs", "select", "and", "or", "not")
"""Functions that cost nothing of their own: signs and masks fold into the operations around them."""
MOVES = ("load", "store")
SLOW = {"/": 8.0, "sqrt": 8.0, "reciprocal": 8.0, "log": 24.0, "log2": 24.0, "%": 8.0}
"""Work of a function in simple operations, where it is more than one: a division takes the divider for about 8 vector
operations' time (Fog, Instruction tables, Zen 4: vdivps zmm 5, vdivpd zmm 9, against one half), a logarithm is a polynomial."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of one call, and the parts: `compute`, `memory` (its regions' slowest levels; the slowest of the call is named),
    `overhead`; `traffic` bytes past each cache; `bandwidth` bytes a second of what lies beyond it."""

    seconds: float
    compute: float
    memory: float
    overhead: float
    slowest: str
    traffic: Mapping[str, int]
    bandwidth: Mapping[str, float]


def predict(
    counts: Counts, past: Past, calibration: Calibration, dtype: str, *, streamed: frozenset[str] = frozenset(), alone: Sequence[Past] = (),
) -> Prediction:
    """The time of one call. `past` is its traffic, `alone` that of each of its parallel regions by itself (none: one region, or
    all alike), `streamed` the arrays whose stores stream past the caches. Threads are those of `counts`."""
    threads = counts.threads
    traffic = _total(past, streamed)
    bandwidth = {level: _beyond(level, calibration, threads, bool(streamed)) for level in past}
    times = {level: traffic[level] / bandwidth[level] for level in past}
    serial, compute = _compute(counts, calibration, dtype)
    parts = [_total(a, streamed) for a in alone] or [traffic] * len(compute)
    memory = [max((times[level] * _share(part[level], parts, level) for level in past), default=0.0) for part in parts]
    busy = serial + sum(max(pair) for pair in zip(compute, memory, strict=True))
    overhead = counts.barriers * at(calibration.region, threads)
    slowest = max(times, key=lambda level: times[level], default="")
    return Prediction(busy + overhead, serial + sum(compute), sum(memory), overhead, slowest, traffic, bandwidth)


def _total(past: Past, streamed: frozenset[str]) -> dict[str, int]:
    return {level: sum(_moved(t, name in streamed) for name, t in arrays.items()) for level, arrays in past.items()}


def _share(part: int, parts: Sequence[Mapping[str, int]], level: str) -> float:
    whole = sum(p[level] for p in parts)
    return part / whole if whole else 0.0


def _moved(t: Traffic, streams: bool) -> int:
    """Bytes that pass: a line that is stored to first is fetched too, unless the stores stream."""
    return t.read + t.written + (0 if streams else t.allocated)


def _beyond(level: str, c: Calibration, threads: int, streams: bool) -> float:
    """Bandwidth of the next level that was measured; streaming stores only tell past the last cache."""
    farther = [x for x in LEVELS[LEVELS.index(level) + 1 :] if x in c.bandwidth]
    source = c.bandwidth[farther[0]]
    return at(source.stream if streams and farther[0] == "memory" else source.copy, threads)


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
    seconds = 0.0
    for place, names in work.items():
        alone = c.lanes[dtype] if place == "scalar" else 1
        for name, n in names.items():
            seconds += n * (1 if name == "start" else alone) * _each(place, name, c, dtype, threads)
    return seconds


def _each(place: str, name: str, c: Calibration, dtype: str, threads: int) -> float:
    """Seconds that one function, element or tile adds, all threads at work."""
    rates = c.rates[dtype]
    if name in FREE:
        return 0.0
    if name == "start":
        return at(rates.start, threads) / threads
    if name in MOVES:
        return element_bytes(dtype) / at(c.bandwidth["L1"].copy, threads) if "L1" in c.bandwidth else 0.0
    if name == "fma":
        return 1 / at(rates.tile if place == "tile" else rates.fma, threads)
    return SLOW.get(name, 1.0) / at(rates.exp if name in EXPONENTIALS else rates.vector, threads)
