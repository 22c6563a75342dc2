"""In: readings of the machine's CPU time while we measure. Out: how much of it was others', in a window around a sample.

The kernel counts in ticks of 10 ms, far longer than a sample, so readings are kept for the whole job and a sample is judged by
the shortest stretch of readings around it that lasts WINDOW_S. Time stolen by the host of a virtual machine is others' time.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from moapipe.machine.quota import throttled_periods

WINDOW_S = 0.5
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
BUSY = (0, 1, 2, 5, 6, 7)   # user nice system, (idle iowait), irq softirq steal


@dataclass
class Watch:
    """Readings in order of time: `busy` CPU seconds of the whole machine, `own` those of our processes, `stops` by a quota."""

    stat: Path = Path("/proc/stat")
    times: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def read(self, own_seconds: float) -> None:
        """Take a reading now; `own_seconds` are the CPU seconds of all our processes so far, this one's apart."""
        self.add(time.monotonic(), busy_seconds(self.stat.read_text()), own_seconds + time.process_time(), throttled_periods())

    def add(self, at: float, busy: float, own: float, stops: int) -> None:
        self.times.append(at)
        self.busy.append(busy)
        self.own.append(own)
        self.stops.append(stops)

    def around(self, begin: float, end: float) -> tuple[float, float, int]:
        """(others' CPU seconds, length of the window in seconds, stops by a quota) around a sample from `begin` to `end`.

        The window starts and ends at readings outside of the sample and grows until it lasts WINDOW_S or there are no more. The
        stops are those of the tightest readings alone.
        """
        if not self.times:
            return 0.0, 0.0, 0
        first = max(0, bisect_right(self.times, begin) - 1)
        last = min(len(self.times) - 1, bisect_left(self.times, end))
        stops = self.stops[last] - self.stops[first]
        while self.times[last] - self.times[first] < WINDOW_S and (first > 0 or last < len(self.times) - 1):
            before = begin - self.times[first - 1] if first > 0 else float("inf")
            after = self.times[last + 1] - end if last < len(self.times) - 1 else float("inf")
            if before <= after:
                first -= 1
            else:
                last += 1
        others = self.busy[last] - self.busy[first] - (self.own[last] - self.own[first])
        return max(0.0, others), self.times[last] - self.times[first], stops


def busy_seconds(stat: str) -> float:
    """CPU seconds that all CPUs together have been busy, in the text of /proc/stat; 0 when it has no such line."""
    row = stat.partition("\n")[0].split()
    ticks = [int(v) for v in row[1:]] if row and row[0] == "cpu" else []
    return TICK_S * sum(ticks[k] for k in BUSY if k < len(ticks))
