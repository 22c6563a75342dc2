"""In: counts, traffic, a calibration. Out: the time that they take on that machine, with its parts, before anything runs.

    T = max(T_compute, max over levels T_level) + T_overhead

* T_compute: work ÷ measured rate, a place at a time, the busiest thread's share. Work in register tiles runs at the measured
  rate of fused multiply-adds; other vector work at the vector rate, exponentials at theirs; scalar work one lane at a time.
* T_level: bytes past a cache ÷ the measured bandwidth of what lies beyond it. Transfers overlap with work and with each other:
  the slowest counts (the roofline assumption; Williams et al., CACM 52(4), 2009, by levels as in Ilic et al., 2014).
* T_overhead: one start and join of threads a parallel region.

No constant is fitted to a kernel. What misses is the model's to explain: docs/measuring.md lists what it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moapipe.loops.tally import EXPONENTIALS, Counts
from moapipe.loops.traffic import Traffic
from moapipe.machine.rate import LEVELS, Calibration, at

Work = Mapping[str, Mapping[str, int]]

FREE = ("neg", "abs", "select", "and", "or", "not")
"""Functions that cost nothing of their own: signs and masks fold into the operations around them."""
SLOW = {"/": 8.0, "sqrt": 8.0, "reciprocal": 8.0, "log": 24.0, "log2": 24.0, "%": 8.0}
"""Work of a function in simple operations, where it is more than one: a division takes the divider for about 8 vector
operations' time (Fog, Instruction tables, Zen 4: vdivps zmm 5, vdivpd zmm 9, against one half), a logarithm is a polynomial."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of one call, and the parts: `compute`, `memory` (the slowest level, named), `overhead`; `traffic` bytes past each
    cache; `bandwidth` bytes a second of what lies beyond it."""

    seconds: float
    compute: float
    memory: float
    overhead: float
    slowest: str
    traffic: Mapping[str, int]
    bandwidth: Mapping[str, float]


def predict(counts: Counts, past: Mapping[str, Mapping[str, Traffic]], calibration: Calibration, dtype: str, *, streamed: frozenset[str] = frozenset()) -> Prediction:
    """The time of one call. `past` is traffic by cache level and array (loops.traffic), `streamed` the arrays whose stores
    stream past the caches. Threads are those of `counts`."""
    threads = counts.threads
    traffic = {level: sum(_moved(t, name in streamed) for name, t in arrays.items()) for level, arrays in past.items()}
    bandwidth = {level: _beyond(level, calibration, threads, bool(streamed)) for level in past}
    times = {level: traffic[level] / bandwidth[level] for level in past}
    slowest = max(times, key=lambda level: times[level], default="")
    memory = times.get(slowest, 0.0)
    compute = _compute(counts, calibration, dtype)
    overhead = counts.barriers * at(calibration.region, threads)
    return Prediction(max(compute, memory) + overhead, compute, memory, overhead, slowest, traffic, bandwidth)


def _moved(t: Traffic, streams: bool) -> int:
    """Bytes that pass: a line that is stored to first is fetched too, unless the stores stream."""
    return t.read + t.written + (0 if streams else t.allocated)


def _beyond(level: str, c: Calibration, threads: int, streams: bool) -> float:
    """Bandwidth of the next level that was measured; streaming stores only tell past the last cache."""
    farther = [x for x in LEVELS[LEVELS.index(level) + 1 :] if x in c.bandwidth]
    source = c.bandwidth[farther[0]]
    return at(source.stream if streams and farther[0] == "memory" else source.copy, threads)


def _compute(counts: Counts, c: Calibration, dtype: str) -> float:
    """Parallel regions at the busiest thread's pace; what is outside of them on one thread."""
    total, seconds = _flat(counts.work), 0.0
    for r in counts.regions:
        seconds += r.busiest * counts.threads * work_seconds(r.work, c, dtype, counts.threads)
        for key, n in _flat(r.work).items():
            total[key] -= n
    rest: dict[str, dict[str, int]] = {}
    for (place, name), n in total.items():
        rest.setdefault(place, {})[name] = max(0, n)
    return seconds + work_seconds(rest, c, dtype, 1)


def _flat(work: Work) -> dict[tuple[str, str], int]:
    return {(place, name): n for place, names in work.items() for name, n in names.items()}


def work_seconds(work: Work, c: Calibration, dtype: str, threads: int) -> float:
    """Time of work that is shared out evenly, in seconds."""
    rates, lanes = c.rates[dtype], c.lanes[dtype]
    fma, vector, exp = at(rates.fma, threads), at(rates.vector, threads), at(rates.exp, threads)
    seconds = 0.0
    for place, names in work.items():
        alone = lanes if place == "scalar" else 1
        for name, n in names.items():
            if name in FREE:
                continue
            rate = fma if name == "fma" else exp if name in EXPONENTIALS else vector
            seconds += n * SLOW.get(name, 1.0) * alone / rate
    return seconds
