"""In: the lines of a participant's samples, the watch. Out: judged samples; and the rules: how many calls, how many samples, when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

from moapipe.lab.record import Sample
from moapipe.lab.verdict import Diagnosis, judge
from moapipe.lab.watch import TICK_S, Watch

SAMPLE_S = 2e-3      # a sample lasts at least about this long: a thousand times the clock's and the loop's own cost
WARM_S = 0.03        # warm-up before a case: caches, pages, threads, clock
TURN = 4             # samples before the next participant's turn
FLOOR = 3            # samples of a launch that are taken whatever they cost
HARD = 4             # times its time box, after which a launch ends with fewer than the least number of samples
MOST = 10            # times the least number of samples, after which a launch is enough
FEWEST = 6           # values that can bound a median at 95 %: 2 · 2⁻⁶ < 5 %


@dataclass(frozen=True)
class Seen:
    """One sample as the process reported it: `start` on the monotonic clock, `seconds` of all `calls`; see the driver's protocol."""

    calls: int
    start: float
    seconds: float
    cpu_seconds: float
    wait_seconds: float
    involuntary: int
    voluntary: int
    threads: int
    active: int
    clock: float
    cpus: tuple[int, ...]


def parse(words: Sequence[str], calls: int) -> Seen:
    """The words behind `sample`."""
    start, seconds, cpu, wait, involuntary, voluntary, threads, active, clock, cpus = words
    waited = float(wait)
    return Seen(
        calls, float(start), float(seconds), float(cpu), waited if waited >= 0 else float("nan"), int(involuntary), int(voluntary),
        int(threads), int(active), float(clock), tuple(int(c) for c in cpus.split(",")) if cpus != "-" else (),
    )


@dataclass(frozen=True)
class Frame:
    """What samples of a launch are judged against: the case's threads and CPUs, the launch's best clock, the watch's readings."""

    threads: int
    cpus: frozenset[int]
    clock: float
    watch: Watch


def judged(seen: Seen, frame: Frame) -> Sample:
    """The sample with its verdict; its time and others' are scaled to one call and to the sample."""
    others, window, stops = frame.watch.around(seen.start, seen.start + seen.seconds)
    diagnosis = Diagnosis(
        wall_seconds=seen.seconds, cpu_seconds=seen.cpu_seconds, wait_seconds=seen.wait_seconds, threads=frame.threads,
        threads_seen=seen.threads, threads_active=seen.active, cpus=frame.cpus, cpus_seen=seen.cpus, involuntary_switches=seen.involuntary,
        other_cpu_seconds=others, window_seconds=window, tick_seconds=TICK_S, throttled_periods=stops,
        clock_ratio=seen.clock / frame.clock if frame.clock > 0 else 1.0,
    )
    scaled = others * seen.seconds / window if window > 0 else 0.0
    return Sample(seen.seconds / seen.calls, seen.calls, judge(diagnosis), seen.cpu_seconds, float(seen.involuntary), scaled)


def calls_for(call_seconds: float) -> int:
    """Calls of one sample, so that it lasts SAMPLE_S or more."""
    return max(1, ceil(SAMPLE_S / max(call_seconds, 1e-9)))


def spread(values: Sequence[float]) -> float:
    """Width of the median's 95 % interval over the median; infinite for fewer than FEWEST values.

    Distribution-free: the ranks n/2 ± 0.98·√n bound the median with 95 % (binomial with p = ½, normal approximation, rounded
    outwards); Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1.
    """
    n = len(values)
    if n < FEWEST:
        return float("inf")
    ordered = sorted(values)
    low = max(0, int((n - 1.96 * sqrt(n)) / 2) - 1)
    high = min(n - 1, ceil(1 + (n + 1.96 * sqrt(n)) / 2) - 1)
    return (ordered[high] - ordered[low]) / ordered[n // 2]


@dataclass(frozen=True)
class Rule:
    """When a launch of a case has enough: `least` valid samples whose median's interval is under `interval`; at least `least`
    samples once `box_s` seconds are spent; and FLOOR samples once HARD times as many are."""

    least: int
    interval: float
    box_s: float

    def enough(self, samples: Sequence[Sample], spent_s: float) -> bool:
        if len(samples) < self.least:
            return len(samples) >= FLOOR and spent_s >= HARD * self.box_s
        if spent_s >= self.box_s or len(samples) >= MOST * self.least:
            return True
        valid = [s.seconds for s in samples if s.verdict == "valid"]
        return len(valid) >= self.least and spread(valid) <= self.interval

    def next_turn(self, samples: int, sample_seconds: float, spent_s: float) -> int:
        """Samples of the next turn: up to TURN, fewer when the time has no room for them, at least one."""
        limit = self.box_s if samples >= self.least else HARD * self.box_s
        return max(1, min(TURN, int((limit - spent_s) / max(sample_seconds, 1e-9))))


def rejudged(samples: Sequence[Seen], frame: Frame, clock: float) -> list[Sample]:
    """Samples judged against the launch's final best clock."""
    final = replace(frame, clock=clock)
    return [judged(s, final) for s in samples]
