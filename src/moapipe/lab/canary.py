"""In: the machine's topology. Out: what an empty parallel region, a read and a clock on all its CPUs meet now: whether somebody else is there.

Sent in before and after each round of launches, always the same, whatever the launches arrange. Samples are judged by what their own
process met; the canary sees what lies between them, and memory or clock that somebody takes without any CPU time of ours.
"""

from __future__ import annotations

import time
from pathlib import Path

from moapipe.lab.locality import beyond_caches, figures
from moapipe.lab.program import program
from moapipe.lab.record import Canary
from moapipe.lab.watch import TICK_S, busy_seconds
from moapipe.machine.arrangement import Arrangement
from moapipe.machine.seating import arrange
from moapipe.machine.topology import Topology

STAT = Path("/proc/stat")
UNKNOWN = float("nan")


def send(top: Topology, root: Path, machine: str) -> tuple[Canary, float]:
    """The canary's figures, and the CPU seconds that it took itself; what it cannot tell in time, or has no memory for, is NaN."""
    native, arranged = program("locality", root, machine), arrange(Arrangement(len(top.cpus), len(top.cpus)), top)
    begin, busy = time.monotonic(), busy_seconds(STAT.read_text())
    found = figures(native, ("canary", str(arranged.asked.threads), str(beyond_caches(top))), arranged, root, machine)
    seconds, own = time.monotonic() - begin, found.get("cpu", 0.0)
    others = max(0.0, busy_seconds(STAT.read_text()) - busy - own - 2 * TICK_S) / seconds
    region, stall, read, clock = (found.get(name, UNKNOWN) for name in ("region", "stall", "read", "clock"))
    return Canary(region, stall, read, clock, others), own
