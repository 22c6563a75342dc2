"""In: what was seen while one sample was taken (a Diagnosis). Out: its verdict, `valid` or a reason code.

A narrow interval proves nothing: a neighbour makes a spin-waiting kernel a hundred times slower at a spread of 0.02 %.
So each sample is judged by what its own process and machine did meanwhile, never by its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan


@dataclass(frozen=True)
class Threshold:
    """A limit and why it is what it is."""

    value: float
    reason: str


THRESHOLDS = {
    "wait": Threshold(0.05, "share of the wall time that the process's threads were ready to run and had no CPU; a wait of one "
                            "thread holds up all at the next barrier, so it counts fully; an idle machine shows under 0.01"),
    "wait_switched": Threshold(0.01, "the same share, once the scheduler has taken a thread off its CPU several times"),
    "switches": Threshold(3, "involuntary switches in one sample from which on their rate means something: one is a timer tick"),
    "switch_rate": Threshold(100.0, "involuntary switches per second of CPU time; healthy is under 50, threads that spin on one "
                                    "CPU show one per scheduler slice, 100 to 300"),
    "utilisation": Threshold(0.90, "CPU time over wall time per running thread, where the kernel does not report waiting; spinning "
                                   "threads of a healthy run show 0.97 and more"),
    "neighbour": Threshold(0.05, "CPU time of others, stolen time included, in CPUs, over a window of half a second around the sample: "
                                 "on the machine's other cores too, since they share cache, memory and clock"),
    "clock_ticks": Threshold(2, "clock ticks that the window's CPU times may be off by, from rounding"),
    "misplaced": Threshold(0.20, "share of pages that lie on another memory node than asked; pages on the borders of threads' shares, and "
                                 "large pages that hold two, are a few per cent of buffers that matter"),
    "clock": Threshold(0.90, "clock rate during the sample over the best of its launch; turbo steps are a few per cent"),
}


MOSTLY = 0.9
"""Share of valid samples from which on a measurement as a whole passes for valid."""


@dataclass(frozen=True)
class Diagnosis:
    """What was seen during one sample; seconds are seconds, counts are counts, NaN is unknown.

    `wall_seconds` is the whole sample (all its calls), `wait_seconds` the time that its threads were runnable without a CPU,
    `other_cpu_seconds` the CPU time of everybody else inside a window of `window_seconds` around the sample,
    `tick_seconds` the resolution of that figure, `clock_ratio` the clock over the launch's best.
    """

    wall_seconds: float
    cpu_seconds: float
    wait_seconds: float
    threads: int                      # that the case asks for
    threads_seen: int                 # that the process had
    threads_active: int               # that used a CPU during the sample
    cpus: frozenset[int]              # that the case may use
    cpus_seen: tuple[tuple[int, ...], ...]   # on which the active threads were found, at the start, in the middle and at the end
    mask: frozenset[int]              # that any thread of the process may run on; empty when none was seen
    widest: int                       # CPUs that the least bound active thread may run on
    bound: bool                       # whether the case binds each thread to a place
    shared: bool                      # whether the case asks for more threads than CPUs
    runtimes: int                     # OpenMP runtimes that the process has loaded
    misplaced: float                  # share of pages that do not lie where the case asks
    involuntary_switches: int
    other_cpu_seconds: float
    window_seconds: float
    tick_seconds: float
    throttled_periods: int            # in which a quota of the control group stopped the process
    clock_ratio: float


def _over(limit: str, value: float) -> bool:
    return not isnan(value) and value > THRESHOLDS[limit].value


def _threads_missing(d: Diagnosis) -> bool:
    return d.threads_seen < d.threads


def _two_runtimes(d: Diagnosis) -> bool:
    return d.runtimes > 1


def _narrow_mask(d: Diagnosis) -> bool:
    return bool(d.mask) and len(d.mask) < min(d.threads, len(d.cpus))


def _wrong_cpus(d: Diagnosis) -> bool:
    """Outside of the plan at any moment; two bound threads on one CPU at the same moment; a bound thread that may roam."""
    here = [{c for c in moment if c >= 0} for moment in d.cpus_seen]
    if not set().union(*here, d.mask) <= d.cpus:
        return True
    crowded = any(len(now) < min(sum(c >= 0 for c in moment), len(d.cpus)) for now, moment in zip(here, d.cpus_seen, strict=True))
    return d.bound and not d.shared and (crowded or d.widest > 1)


def _wrong_memory(d: Diagnosis) -> bool:
    return _over("misplaced", d.misplaced)


def _throttled(d: Diagnosis) -> bool:
    return d.throttled_periods > 0


def _cpu_starved(d: Diagnosis) -> bool:
    """Threads that share CPUs on purpose wait for each other: that is what is measured."""
    if d.shared:
        return False
    if not isnan(d.wait_seconds):
        return _over("wait", d.wait_seconds / d.wall_seconds)
    running = max(1, min(d.threads_active, len(d.cpus)))
    return d.cpu_seconds < THRESHOLDS["utilisation"].value * running * d.wall_seconds


def _preempted(d: Diagnosis) -> bool:
    if d.shared:
        return False
    often = d.involuntary_switches >= THRESHOLDS["switches"].value
    rate = d.involuntary_switches / d.cpu_seconds if d.cpu_seconds > 0 else 0.0
    waited = isnan(d.wait_seconds) or _over("wait_switched", d.wait_seconds / d.wall_seconds)
    return often and waited and _over("switch_rate", rate)


def _neighbour(d: Diagnosis) -> bool:
    allowance = THRESHOLDS["clock_ticks"].value * d.tick_seconds
    return d.window_seconds > 0 and _over("neighbour", (d.other_cpu_seconds - allowance) / d.window_seconds)


def _slow_clock(d: Diagnosis) -> bool:
    return d.clock_ratio < THRESHOLDS["clock"].value


@dataclass(frozen=True)
class Verdict:
    """A row of VERDICTS: its CF flag value, one sentence for people, and the test that a sample fails."""

    code: int
    text: str
    holds: Callable[[Diagnosis], bool] | None = None


VERDICTS: dict[str, Verdict] = {
    "not_taken": Verdict(-1, "No sample was taken here."),
    "valid": Verdict(0, "Nothing disturbed this sample."),
    "threads_missing": Verdict(1, "The process had fewer threads than the case asks for.", _threads_missing),
    "two_runtimes": Verdict(8, "Two OpenMP runtimes are loaded in the process, each with threads of its own.", _two_runtimes),
    "narrow_mask": Verdict(9, "All threads together may run on fewer CPUs than the case asks for.", _narrow_mask),
    "wrong_cpus": Verdict(2, "Threads shared a CPU, ran outside the planned set, or were not bound to their places.", _wrong_cpus),
    "wrong_memory": Verdict(10, "Pages lie on other memory nodes than the case asks for.", _wrong_memory),
    "throttled": Verdict(3, "A CPU quota stopped the process during the sample.", _throttled),
    "cpu_starved": Verdict(4, "Threads were ready to run and had no CPU for more than a twentieth of the time.", _cpu_starved),
    "preempted": Verdict(5, "The scheduler took threads off their CPUs again and again.", _preempted),
    "neighbour": Verdict(6, "Something else on the machine, or on its host, used CPU time around the sample.", _neighbour),
    "slow_clock": Verdict(7, "The clock ran more than a tenth slower than at its best in this launch.", _slow_clock),
}


def judge(diagnosis: Diagnosis) -> str:
    """The name of the first row of VERDICTS that holds, in table order (cause before symptom); `valid` if none does."""
    return next((name for name, row in VERDICTS.items() if row.holds is not None and row.holds(diagnosis)), "valid")
