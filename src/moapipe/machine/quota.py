"""In: the control groups of this process, of either version. Out: the CPU time that they allow, and how often they stopped it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> float | None:
    """CPUs' worth of time that the control group allows (version 2 cpu.max, version 1 cpu.cfs_quota_us); None without a limit."""
    return min((limit for folder in _groups(root, membership) for limit in _limit(folder)), default=None)


def throttled_periods(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> int:
    """How often a quota has stopped this process's control groups so far, all levels together; 0 where nobody counts."""
    counts = (re.search(r"^nr_throttled (\d+)$", _read(folder / "cpu.stat"), re.MULTILINE) for folder in _groups(root, membership))
    return sum(int(found[1]) for found in counts if found)


def _groups(root: Path, membership: Path) -> Iterable[Path]:
    """Folders of the control groups that rule this process's CPU time, innermost first, of either version."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            yield from _upwards(root if not controllers else root / "cpu", path)


def _upwards(base: Path, path: str) -> Iterable[Path]:
    here = base / path.lstrip("/")
    while True:
        yield here
        if here == base or base not in here.parents:
            return
        here = here.parent


def _limit(folder: Path) -> list[float]:
    v2 = _read(folder / "cpu.max").split()
    if len(v2) == 2 and v2[0] != "max":
        return [int(v2[0]) / int(v2[1])]
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return [int(quota) / int(period)] if quota and period and int(quota) > 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
