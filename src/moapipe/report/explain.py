"""In: a dataset. Out: for each penalty above twice the best arrangement: which mechanism fits, and which measurement decided it.

A penalty is a case's time over the fastest case of the same build, sizes and OpenMP runtime on as many cores, at most a thread on each. All samples
that were taken count here, the invalid ones too: a penalty is mostly why they are invalid. A mechanism is judged by what the process was
seen to do; where the same case exists with threads that sleep while they wait, that decides between spinning and everything else. Neighbours
explain what none of this does: threads that share cores by design wait for each other, whoever else is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from moapipe.lab.variable import BUILD_AXES, PLAUSIBILITIES, attributes
from moapipe.lab.verdict import THRESHOLDS, VERDICTS
from moapipe.machine.arrangement import AXES, Arrangement
from moapipe.machine.penalty import MARGIN
from moapipe.report.metrics import evaluate

LEAST = 2.0                    # a penalty that is explained
SLICES = (50.0, 1000.0)        # involuntary switches a CPU second of threads that spin through scheduler slices of 1 to 20 ms
YIELDS = 5000.0                # and of threads that give their CPU away at every look
SLEEPS = 0.3                   # voluntary switches a thread and region of threads that sleep at barriers
UNEXPLAINED = "unexplained"
DISTURBED = 0.5                # share of the samples with the verdict from which on neighbours may be the cause
BUSY = 0.8                     # share of its CPUs that a process uses which nothing holds up


@dataclass(frozen=True)
class Seen:
    """What was seen of a case: medians over its taken samples. Times in seconds, rates a second of CPU time."""

    case: int
    build: tuple[str, ...]
    label: str
    arrangement: Arrangement
    seconds: float
    cpus_busy: float               # CPU time over wall time
    wait: float                    # time ready to run without a CPU, over wall time
    involuntary: float             # switches a second of CPU time
    sleeps: float                  # voluntary switches a thread and region
    clock: float
    cpus_used: float
    throttled: float               # share of samples around which a quota stopped the process
    neighbour: float               # share of samples with the verdict
    misplaced: float
    ceiling: float

    @property
    def disturbed(self) -> bool:
        return self.neighbour > DISTURBED

    @property
    def own(self) -> bool:
        """Whether what its threads do is of their own making: nobody disturbed them, or they share cores by design."""
        return not self.disturbed or self.arrangement.threads > self.arrangement.cores > 0

    @property
    def name(self) -> str:
        return f"{' '.join(self.build[:-1])} {self.label} {self.arrangement.text()}"


@dataclass(frozen=True)
class Comparison:
    """A case, the reference of its penalty, and the same case with passive waiting (None where it was not measured)."""

    case: Seen
    reference: Seen
    passive: Seen | None

    @property
    def penalty(self) -> float:
        return self.case.seconds / self.reference.seconds

    @property
    def impossible(self) -> bool:
        """More than any placement of pages can make on this machine, and enough to be explained."""
        return bool(np.isfinite(self.case.ceiling)) and self.penalty > max(LEAST, MARGIN * self.case.ceiling)

    @property
    def passive_penalty(self) -> float:
        return self.passive.seconds / self.reference.seconds if self.passive else float("nan")

    @property
    def cured(self) -> bool | None:
        """Whether threads that sleep while they wait bring the penalty down: the measurement that decides. None where it was not made, or
        where somebody disturbed it."""
        if self.passive is None or self.passive is self.case:
            return None
        found = self.passive_penalty < max(LEAST, self.penalty / 4)
        return None if self.passive.disturbed and not found else found


@dataclass(frozen=True)
class Explanation:
    """A penalty with the row of MECHANISMS that fits (UNEXPLAINED when none does) and the measurement that decided it."""

    comparison: Comparison
    mechanism: str
    because: str

    def __str__(self) -> str:
        c = self.comparison
        return f"{c.penalty:.3g}× {c.case.name}: {self.mechanism.replace('_', ' ')}: {self.because}"


# ------------------------------------------------------------------ what was seen


def seen(ds: xr.Dataset) -> list[Seen]:
    """Every case with samples."""
    taken = ds["seconds"].notnull().values
    wall = (ds["seconds"] * ds["calls"]).values
    cpu = ds["cpu_seconds"].values
    threads, regions = ds["threads"].values, np.nan_to_num(ds["regions"].values, nan=1.0)
    with np.errstate(all="ignore"):
        figures = {
            "seconds": ds["seconds"].values, "cpus_busy": cpu / wall, "wait": ds["wait_seconds"].values / wall,
            "involuntary": ds["involuntary_switches"].values / cpu, "clock": ds["clock_rate"].values, "cpus_used": ds["cpus_used"].values,
            "sleeps": ds["voluntary_switches"].values / ds["calls"].values / np.maximum(1, threads * np.maximum(1, regions))[:, None, None, None],
            "misplaced": ds["misplaced_share"].values,
        }
    identity = {name: ds[name].values.tolist() for name in (*BUILD_AXES, "label", *AXES)}
    out = []
    for i in np.flatnonzero(taken.any(axis=(1, 2, 3))).tolist():
        here = taken[i]
        verdicts = ds["verdict"].values[i][here]
        out.append(Seen(
            i, tuple(identity[a][i] for a in BUILD_AXES), identity["label"][i], Arrangement(*(identity[a][i] for a in AXES)),
            throttled=float((ds["throttled_periods"].values[i][here] > 0).mean()), neighbour=float((verdicts == VERDICTS["neighbour"].code).mean()),
            ceiling=float(ds["penalty_ceiling"].values[i]), **{name: _median(values[i][here]) for name, values in figures.items()},
        ))
    return out


def _median(values: np.ndarray) -> float:
    """NaN where nothing is known."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")


def comparisons(ds: xr.Dataset) -> list[Comparison]:
    """Every case against the fastest of its build, sizes and runtime on as many cores with at most a thread on each, and no planted fault;
    where there is none, against the fastest of its build, sizes and runtime."""
    cases = seen(ds)
    by_key = {(s.build, s.label, s.arrangement): s for s in cases}
    out = []
    for s in cases:
        mine = (s.build, s.label, s.arrangement.runtime)
        peers = [p for p in cases if (p.build, p.label, p.arrangement.runtime) == mine and not p.arrangement.believed_cpus]
        fair = [p for p in peers if p.arrangement.cores == s.arrangement.cores >= p.arrangement.threads] or peers
        if fair:
            best = min(fair, key=lambda p: p.seconds)
            out.append(Comparison(s, best, by_key.get((s.build, s.label, replace(s.arrangement, wait_policy="passive")))))
    return out


def references(ds: xr.Dataset) -> np.ndarray:
    """For each case the index of the reference of its penalty; its own where there is none."""
    out = np.arange(ds.sizes["case"])
    for c in comparisons(ds):
        out[c.case.case] = c.reference.case
    return out


# ------------------------------------------------------------------ mechanisms


def _quota(c: Comparison) -> str:
    share = c.case.throttled
    return f"a CPU quota stopped the process around {share:.0%} of the samples" if share > 0.5 else ""


def _neighbours(c: Comparison) -> str:
    return f"{c.case.neighbour:.0%} of the samples had others' CPU time beside them (the watch of /proc/stat)" if c.case.disturbed else ""


def _frequency(c: Comparison) -> str:
    slow = c.reference.clock / c.case.clock
    fits = slow > 1 / THRESHOLDS["clock"].value and c.penalty < 1.3 * slow
    return f"the clock ran at {c.case.clock / 1e9:.2f} GHz, the reference's at {c.reference.clock / 1e9:.2f}" if fits else ""


def _spinning(c: Comparison) -> str:
    """A thread that spins holds the CPU that the others need for whole scheduler slices: busy CPUs, long waits, a switch a slice, no sleep.
    Where passive waiting cures it, that is proof; without, the switches must come a slice apart."""
    s = c.case
    crowded = s.arrangement.threads > s.cpus_used or s.wait > THRESHOLDS["wait"].value
    spins = s.involuntary < SLICES[1] and s.sleeps < SLEEPS
    if not crowded or not spins or not (c.cured or (c.cured is None and s.own and s.involuntary > SLICES[0])):
        return ""
    seen_text = f"{s.involuntary:.0f} involuntary switches a CPU second and hardly a voluntary one, {s.wait:.1f} threads waiting for a CPU"
    return f"passive waiting brings {c.penalty:.3g}× to {c.passive_penalty:.2g}×; {seen_text}" if c.cured else seen_text


def _sleeping(c: Comparison) -> str:
    s = c.case
    fits = s.sleeps > SLEEPS and s.own
    return f"{s.sleeps:.1f} voluntary switches a thread and region: at each barrier threads sleep and are woken, more than the region's work" if fits else ""


def _yielding(c: Comparison) -> str:
    fits = c.case.involuntary > YIELDS and c.case.own
    return f"{c.case.involuntary:.0f} switches a CPU second: threads give their CPU away at every look at the barrier" if fits else ""


def _serialisation(c: Comparison) -> str:
    s, fewer = c.case, c.reference.cpus_used / max(1.0, c.case.cpus_used)
    fits = fewer > 1.5 and 0.5 * fewer < c.penalty < 2.5 * fewer
    return f"{s.cpus_used:.0f} CPU did what {c.reference.cpus_used:.0f} did in the reference: {s.cpus_busy:.1f} busy against {c.reference.cpus_busy:.1f}" if fits else ""


def _memory(c: Comparison) -> str:
    s, known = c.case, np.isfinite(c.case.ceiling)
    elsewhere = s.misplaced > THRESHOLDS["misplaced"].value or s.arrangement.memory != c.reference.arrangement.memory
    undisturbed = s.cpus_busy > BUSY * min(s.arrangement.threads, s.cpus_used) and not s.wait > THRESHOLDS["wait"].value
    fits = elsewhere and undisturbed and known and c.penalty <= MARGIN * s.ceiling
    return f"pages lie elsewhere ({s.arrangement.memory}), threads ran undisturbed, and {c.penalty:.2g}× is under this machine's ceiling of {s.ceiling:.2g}×" if fits else ""


MECHANISMS: dict[str, Callable[[Comparison], str]] = {
    "quota": _quota,
    "spinning_at_barriers": _spinning,
    "sleeping_at_barriers": _sleeping,
    "yielding_at_barriers": _yielding,
    "neighbours": _neighbours,
    "frequency": _frequency,
    "serialisation": _serialisation,
    "memory_locality": _memory,
}


def explained(c: Comparison) -> Explanation:
    """The first mechanism that fits. Whatever is above the ceiling of memory locality says so."""
    for name, fits in MECHANISMS.items():
        if because := fits(c):
            return Explanation(c, name, because + _above(c))
    return Explanation(c, UNEXPLAINED, "no measurement of this dataset tells the mechanisms apart" + _above(c))


def _above(c: Comparison) -> str:
    return f"; memory locality is ruled out, it can make {c.case.ceiling:.2g}× here" if c.impossible else ""


def mark(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with `plausibility` and `mechanism`: a penalty that no placement of pages can make is flagged until a measurement
    explains it; every penalty above LEAST has the mechanism that fits."""
    plausibility = np.full(ds.sizes["case"], PLAUSIBILITIES["within"].code, dtype=np.int8)
    mechanism = [""] * ds.sizes["case"]
    for c in comparisons(ds):
        if c.penalty > LEAST:
            mechanism[c.case.case] = explained(c).mechanism
        if c.impossible:
            plausibility[c.case.case] = PLAUSIBILITIES["implausible" if explained(c).mechanism == UNEXPLAINED else "explained"].code
    columns = {"plausibility": plausibility, "mechanism": np.array(mechanism, dtype=str)}
    return ds.assign({name: ("case", values, attributes(name)) for name, values in columns.items()})


def explain(ds: xr.Dataset, least: float = LEAST) -> list[Explanation]:
    """Every penalty above `least`, the largest first."""
    return sorted((explained(c) for c in comparisons(ds) if c.penalty > least), key=lambda e: -e.comparison.penalty)


SCATTERS = {"process_scatter": "within a process", "launch_scatter": "between launches", "node_scatter": "between nodes"}


def scatter(ds: xr.Dataset) -> str:
    """The three variances in the middle of all cases: how far times differ within a process, between launches, between nodes."""
    rows = evaluate(ds)
    hosts = set(ds["host"].values.ravel().tolist()) - {""}
    found = {words: rows[name].values[np.isfinite(rows[name].values)] for name, words in SCATTERS.items()}
    told = ", ".join(f"{np.median(v):.2%} {words}" for words, v in found.items() if v.size)
    return f"Standard deviation over the median time, in the middle of {ds.sizes['case']} cases on {len(hosts)} node{'s' * (len(hosts) != 1)}: {told or 'unknown'}."


def canaries(ds: xr.Dataset) -> str:
    """What the canaries beside the launches met, worst against best, in words; empty where none were sent."""
    told = []
    for name, words, worst in (("region_seconds", "an empty region took", np.max), ("bandwidth", "memory gave", np.min), ("clock_rate", "the clock ran at", np.min)):
        found = ds[f"canary_{name}"].values
        found = found[np.isfinite(found)]
        if found.size:
            told.append(f"{words} {worst(found) / np.median(found):.2g}")
    busy = ds["canary_other_cpus"].values
    others = f"; others kept up to {np.nanmax(busy):.2g} CPUs busy" if np.isfinite(busy).any() else ""
    return f"Canaries before and after launches, the worst over the middle one: {', '.join(told)}{others}." if told else ""


def lines(found: Iterable[Explanation], least: float = LEAST) -> Iterable[str]:
    """The explanations for people, one a line, and what they come to."""
    rows = list(found)
    if not rows:
        yield f"No case takes more than {least:g} times as long as the best arrangement of its build and sizes."
        return
    yield from map(str, rows)
    counts = Counter(e.mechanism for e in rows)
    yield f"{len(rows)} penalties above {least:g}×: " + ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.most_common())
