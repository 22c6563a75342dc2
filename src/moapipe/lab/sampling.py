"""In: the lines of a participant's samples, the watch. Out: judged samples; and the rules: how many calls, how many samples, when to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt

from moapipe.lab.record import Sample
from moapipe.lab.verdict import Diagnosis, judge
from moapipe.lab.watch import TICK_S, Watch
from moapipe.machine.mask import parse_list
from moapipe.machine.placement import Memory
from moapipe.machine.seating import Arranged

SAMPLE_S = 2e-3      # a sample lasts at least about this long: a thousand times the clock's and the loop's own cost
WARM_S = 0.03        # warm-up before a case: caches, pages, threads, clock
SIGHT = 16           # samples of a yardstick before a launch, whose median tells what the memory gives
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
    cpus: tuple[tuple[int, ...], ...]       # of the active threads: at the start, in the middle (-1: not looked), at the end
    mask: frozenset[int]
    widest: int


def parse(words: Sequence[str], calls: int) -> Seen:
    """The words behind `sample`."""
    start, seconds, cpu, wait, involuntary, voluntary, threads, active, clock, cpus, mask, widest = words
    where = [tuple(map(int, thread.split("/"))) for thread in cpus.split(",")] if cpus != "-" else []
    waited = float(wait)
    return Seen(
        calls, float(start), float(seconds), float(cpu), waited if waited >= 0 else float("nan"), int(involuntary), int(voluntary),
        int(threads), int(active), float(clock), tuple(zip(*where, strict=True)),
        parse_list(mask) if mask != "-" else frozenset(), int(widest),
    )


@dataclass(frozen=True)
class Frame:
    """What samples of a launch are judged against: what the case asks for, the launch's best clock, the watch's readings."""

    arranged: Arranged
    clock: float
    watch: Watch


@dataclass(frozen=True)
class Placed:
    """What a participant says after it has made its buffers: OpenMP runtimes loaded, the share of pages on the memory node of the
    thread that owns them (negative: nobody knows), pages by memory node."""

    runtimes: int = 1
    local: float = 1.0
    pages: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, words: Sequence[str]) -> Placed:
        """The words behind `done CPU`."""
        runtimes, local, pages = words
        rows = (row.split(":") for row in pages.split(",")) if pages != "-" else ()
        return cls(int(runtimes), float(local), {int(node): int(count) for node, count in rows})

    def misplaced(self, memory: Memory) -> float:
        """Share of pages that lie elsewhere than asked; NaN where that cannot be known."""
        total = sum(self.pages.values())
        if not total:
            return float("nan")
        shares = {node: count / total for node, count in self.pages.items()}
        match memory.policy:
            case "bind":
                return 1.0 - sum(shares.get(n, 0.0) for n in memory.nodes)
            case "interleave":
                return 1.0 - sum(min(shares.get(n, 0.0), 1 / len(memory.nodes)) for n in memory.nodes)
            case _ if memory.touchers == "one":
                return 1.0 - max(shares.values())
            case _:
                return 1.0 - self.local if self.local >= 0 else float("nan")


def judged(seen: Seen, frame: Frame, placed: Placed) -> Sample:
    """The sample with its verdict; its time and others' are scaled to one call and to the sample."""
    others, window, stops = frame.watch.around(seen.start, seen.start + seen.seconds)
    asked, misplaced = frame.arranged, placed.misplaced(frame.arranged.memory)
    diagnosis = Diagnosis(
        wall_seconds=seen.seconds, cpu_seconds=seen.cpu_seconds, wait_seconds=seen.wait_seconds, threads=asked.asked.threads,
        threads_seen=seen.threads, threads_active=seen.active, cpus=frozenset(asked.mask), cpus_seen=seen.cpus, mask=seen.mask, widest=seen.widest,
        bound=asked.bound, shared=asked.shared, runtimes=placed.runtimes, misplaced=misplaced, involuntary_switches=seen.involuntary,
        other_cpu_seconds=others, window_seconds=window, tick_seconds=TICK_S, throttled_periods=stops,
        clock_ratio=seen.clock / frame.clock if frame.clock > 0 and seen.clock > 0 else 1.0,      # a GPU's process tells none
    )
    scaled = others * seen.seconds / window if window > 0 else 0.0
    return Sample(seen.seconds / seen.calls, seen.calls, judge(diagnosis), seen.cpu_seconds, float(seen.involuntary), scaled, seen.wait_seconds,
                  float(seen.voluntary), seen.clock, float(len(set(seen.cpus[-1])) if seen.cpus else 0), float(stops), misplaced)


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


def rejudged(samples: Sequence[Seen], frame: Frame, clock: float, placed: Placed) -> list[Sample]:
    """Samples judged against the launch's final best clock."""
    final = replace(frame, clock=clock)
    return [judged(s, final, placed) for s in samples]
