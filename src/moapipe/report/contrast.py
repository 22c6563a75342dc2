"""In: counters.json of a group, the times of its cases. Out: for two builds of one kernel at the same sizes, which of what they differ in
accounts for the time between them, and which does not.

A time gap is a ratio, so a quantity's share of it is the ratio of their logarithms: 1 where it grows as the time does, 0 where it
stays, negative where it shrinks. Where a rate of the device bounds what the difference can cost, that decides instead: a difference
that takes a hundredth of the gap at the memory's rate does not account for it, however large its ratio is; nor does one of so few
units that they would not fill it even one after the other. What warps wait for adds up, so a stall's share is linear: its part of the warp cycles that the slower build has more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from typing import Any, Literal

from moapipe.lab.counter import METRICS
from moapipe.machine.device import Device

Verdict = Literal["accounts for it", "part of it", "does not account for it", "speaks against it"]
WHOLE, PART = 0.5, 0.15       # shares of the gap from which on a quantity accounts for it, or is part of it
EVEN = 1.05                   # times that are closer are no gap

QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "DRAM bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "L2 sectors": ("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum"),
    "sectors of loads and stores": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
    "warp instructions of atomics": ("smsp__inst_executed_op_global_red.sum",),
    "compare-and-swap loops": ("smsp__inst_executed_op_generic_atom_dot_cas.sum",),
    "sectors of atomics": ("l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",),
    "local memory instructions": ("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum"),
    "bank conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "warp instructions": ("smsp__inst_executed.sum",),
}
"""What is compared: sums of metrics over all launches of a call."""
ALONE_S = 1e-6
"""No instruction or transaction takes longer than about this by itself: an access to a GPU's memory answers within a few hundred
nanoseconds, a contended atomic later."""
BYTES = {"DRAM bytes": 1.0}
"""Bytes of one unit, of what the device's memory bandwidth bounds."""
INSTRUCTIONS, LATENCY = "smsp__inst_executed.sum", "smsp__average_warp_latency_per_inst_issued.ratio"
STALLS: Mapping[str, str] = {m: name for m, name in METRICS.items() if name.startswith("stall: ")}
"""Warps that wait for a reason, a cycle in which an instruction is issued: times the instructions, the warp cycles of that reason. All
reasons together, and the cycle of the instruction itself, are the warp cycles an instruction (LATENCY)."""


@dataclass(frozen=True)
class Counted:
    """A build at one set of sizes: its variant and language, seconds of a call, the sums of QUANTITIES and the warp cycles of STALLS (None:
    not counted), the warp cycles in all."""

    variant: str
    target: str
    label: str
    seconds: float
    sums: Mapping[str, float | None]
    stalls: Mapping[str, float | None]
    cycles: float | None

    @property
    def name(self) -> str:
        return f"{self.variant}/{self.target}"


@dataclass(frozen=True)
class Finding:
    """One quantity of two builds. `share` of the gap that its ratio is; `least_seconds` that its difference takes at the device's rate."""

    quantity: str
    slow: float
    fast: float
    share: float
    least_seconds: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Contrast:
    """Two builds, the slower first, and what their difference comes to."""

    slow: Counted
    fast: Counted
    findings: tuple[Finding, ...]

    @property
    def ratio(self) -> float:
        return self.slow.seconds / self.fast.seconds


def counted(case: Mapping[str, Any], seconds: float) -> Counted:
    """A case of counters.json with the time that was measured without the profiler."""
    rows = [l["metrics"] for l in case["launches"]]
    sums = {name: _sum(rows, metrics) for name, metrics in QUANTITIES.items()}
    stalls = {name: _cycles(rows, m) for m, name in STALLS.items()}
    return Counted(case["variant"], case["target"], case["label"], seconds, sums, stalls, _cycles(rows, LATENCY))


def _sum(rows: Sequence[Mapping[str, Sequence[Any]]], metrics: Sequence[str]) -> float | None:
    """None where a launch lacks one of them: a sum with a hole is no sum."""
    if not rows or any(m not in r for r in rows for m in metrics):
        return None
    return float(sum(r[m][0] for r in rows for m in metrics))


def _cycles(rows: Sequence[Mapping[str, Sequence[Any]]], ratio: str) -> float | None:
    """Warp cycles over all launches of what is told a cycle with an instruction."""
    if not rows or any(m not in r for r in rows for m in (ratio, INSTRUCTIONS)):
        return None
    return float(sum(r[ratio][0] * r[INSTRUCTIONS][0] for r in rows))


def contrast(a: Counted, b: Counted, device: Device | None = None) -> Contrast | None:
    """The two, the slower first; None where their times are even."""
    slow, fast = (a, b) if a.seconds >= b.seconds else (b, a)
    if slow.seconds < EVEN * fast.seconds:
        return None
    found = [_finding(q, slow, fast, device) for q in QUANTITIES if slow.sums[q] is not None and fast.sums[q] is not None]
    return Contrast(slow, fast, tuple(sorted((*found, *_waits(slow, fast)), key=lambda f: -f.share)))


def _waits(slow: Counted, fast: Counted) -> Iterator[Finding]:
    """What warps wait for: nothing where the slower build has no more warp cycles, for then it is not waiting that makes it slow."""
    if slow.cycles is None or fast.cycles is None or slow.cycles < EVEN * fast.cycles:
        return
    for s in slow.stalls:
        more, less = slow.stalls[s], fast.stalls[s]
        if more is not None and less is not None:
            share = (more - less) / (slow.cycles - fast.cycles)
            yield Finding(s, more, less, share, None, _verdict(share, None, 0.0))


def _finding(quantity: str, slow: Counted, fast: Counted, device: Device | None) -> Finding:
    more, less = slow.sums[quantity] or 0.0, fast.sums[quantity] or 0.0
    gap = slow.seconds - fast.seconds
    share = log(max(more, 1.0) / max(less, 1.0)) / log(slow.seconds / fast.seconds)
    least = max(0.0, more - less) * BYTES[quantity] / device.bandwidth if device and quantity in BYTES else None
    few = quantity not in BYTES and 0 <= (more - less) * ALONE_S < PART * gap
    return Finding(quantity, more, less, share, least, "does not account for it" if few else _verdict(share, least, gap))


def _verdict(share: float, least: float | None, gap: float) -> Verdict:
    if share < -PART:
        return "speaks against it"
    if least is not None and least < PART * gap:
        return "does not account for it"
    if least is not None and least > WHOLE * gap:
        return "accounts for it"
    return "accounts for it" if share >= WHOLE else "part of it" if share >= PART else "does not account for it"


def contrasts(cases: Iterable[Counted], device: Device | None = None) -> Iterator[Contrast]:
    """Every two builds at the same sizes whose times differ."""
    known = list(cases)
    for label in dict.fromkeys(c.label for c in known):
        for a, b in combinations([c for c in known if c.label == label], 2):
            if (found := contrast(a, b, device)) is not None:
                yield found


def lines(found: Iterable[Contrast]) -> Iterator[str]:
    """For people: a line a pair, a line a quantity; what was not counted for both is named."""
    for c in found:
        one = ", one loop nest in two languages" if c.slow.variant == c.fast.variant else ""
        yield f"{c.slow.label}: {c.slow.name} takes {c.ratio:.3g} times as long as {c.fast.name} ({c.slow.seconds:.3g} s, {c.fast.seconds:.3g} s){one}"
        for f in c.findings:
            bound = f"; the difference takes {f.least_seconds:.2g} s at the memory's rate" if f.least_seconds is not None else ""
            unit = " warp cycles" if f.quantity in STALLS.values() else ""
            yield f"  {f.quantity}: {f.slow:,.0f} against {f.fast:,.0f}{unit}, {f.verdict}{bound}"
        unknown = [q for q in QUANTITIES if c.slow.sums[q] is None or c.fast.sums[q] is None]
        if unknown:
            yield f"  not counted for both: {', '.join(unknown)}"
        if not any(f.verdict == "accounts for it" for f in c.findings):
            yield "  nothing that was counted accounts for it"
