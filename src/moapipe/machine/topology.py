"""In: hwloc's own program, /sys, /proc. Out: the machine as it is seen from this process: cores, caches, memory nodes, masks.

Probed at run time inside the job, never assumed. Where hwloc's program is missing, /sys says the same with less.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moapipe.errors import LabError

PROGRAMS = ("lstopo-no-graphics", "lstopo")
SYS = Path("/sys/devices/system")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cache:
    """One level as a core sees it: capacity and line in bytes, how many of the process's CPUs share one instance."""

    level: str
    bytes: int
    line: int
    shared_by: int


@dataclass(frozen=True)
class Topology:
    """The machine as this process may use it. `cpus` are the allowed ones; counts of sockets, memory nodes and cores cover those
    that hold an allowed CPU; `siblings` are the allowed CPUs of each core; caches are data or unified, nearest first."""

    model: str
    architecture: str
    sockets: int
    numa_nodes: int
    cores: int
    cpus: tuple[int, ...]
    siblings: tuple[tuple[int, ...], ...]
    caches: tuple[Cache, ...]
    memory_bytes: int
    source: str

    def line(self) -> str:
        """One line for people and for the record."""
        sizes = ", ".join(f"{c.level} {_size(c.bytes)}" + (f" shared by {c.shared_by}" if c.shared_by > 1 else "") for c in self.caches)
        return (f"{self.model}: {_some(self.sockets, 'socket')}, {_some(self.numa_nodes, 'memory node')}, {_some(self.cores, 'core')}, "
                f"{_some(len(self.cpus), 'CPU')}; {sizes or 'caches unknown'}; {self.memory_bytes / (1 << 30):.0f} GiB")

    def cache(self, level: str) -> Cache | None:
        return next((c for c in self.caches if c.level == level), None)

    def places(self, threads: int) -> tuple[int, ...]:
        """The CPUs for `threads` threads, one each: cores in order, close together, second hardware threads only when cores run out.
        With more threads than CPUs, all CPUs: then threads share."""
        if threads < 1:
            raise LabError(f"{threads} threads", hint="ask for one thread or more")
        width = max(map(len, self.siblings))
        return tuple(core[k] for k in range(width) for core in self.siblings if k < len(core))[:threads]

    def sharers(self, level: str, threads: int) -> int:
        """How many of `threads` threads, placed by `places`, share the fullest instance of a cache level; 1 when there is none."""
        found = self.cache(level)
        if found is None:
            return 1
        each = max(1, len(self.cpus) // self.cores)
        return max(1, min(threads, found.shared_by // each if threads <= self.cores else found.shared_by))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _size(n: int) -> str:
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB"


def _some(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def probe() -> Topology:
    """This machine, seen from this process. LabError when neither hwloc nor /sys can be read."""
    program = next((p for p in PROGRAMS if shutil.which(p)), None)
    if program:
        done = subprocess.run([program, "--of", "xml"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return from_xml(done.stdout, allowed_cpus())
    return _from_sys(allowed_cpus())


def allowed_cpus() -> tuple[int, ...]:
    """CPUs in the mask of this process."""
    return tuple(sorted(os.sched_getaffinity(0)))


# ------------------------------------------------------------------ hwloc


def from_xml(text: str, allowed: Iterable[int]) -> Topology:
    """A topology from what `lstopo --of xml` prints, restricted to the allowed CPUs. LabError when it is not that."""
    cpus = frozenset(allowed)
    try:
        root = ET.fromstring(text)
    except ET.ParseError as e:
        raise LabError(f"hwloc's output cannot be read: {e}", hint="run `lstopo --of xml` by hand") from e
    seen = [(o.get("type", ""), o, parse_mask(o.get("cpuset", "0x0")) & cpus) for o in root.iter("object")]
    mine = [(t, o, s) for t, o, s in seen if s]
    count = {t: sum(kind == t for kind, _, _ in mine) for t in ("Package", "Core")}
    nodes = [o for t, o, s in seen if t == "NUMANode" and (s or not o.get("cpuset"))]
    model = next((i.get("value", "") for i in root.iter("info") if i.get("name") == "CPUModel"), platform.processor() or "unknown processor")
    memory = sum(int(o.get("local_memory", "0")) for o in nodes)
    return Topology(
        model.strip(), platform.machine(), max(1, count["Package"]), max(1, len(nodes)), count["Core"] or len(cpus), tuple(sorted(cpus)),
        _siblings((s for t, _, s in mine if t == "Core"), cpus), _caches(mine), memory or _memory(), "hwloc",
    )


def _siblings(cores: Iterable[Iterable[int]], cpus: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each core in order; a CPU that no core claims is one by itself."""
    found = {tuple(sorted(core)) for core in cores if core}
    claimed = {cpu for core in found for cpu in core}
    return tuple(sorted(found | {(cpu,) for cpu in cpus if cpu not in claimed}))


def _caches(objects: Iterable[tuple[str, ET.Element, frozenset[int]]]) -> tuple[Cache, ...]:
    found: dict[str, Cache] = {}
    for kind, o, cpus in objects:
        if re.fullmatch(r"L\dCache", kind):
            level = kind[:2]
            old = found.get(level)
            new = Cache(level, int(o.get("cache_size", "0")), int(o.get("cache_linesize", "64")), len(cpus))
            if new.bytes and (old is None or new.shared_by > old.shared_by):
                found[level] = new
    return tuple(found[level] for level in sorted(found))


def parse_mask(mask: str) -> frozenset[int]:
    """CPUs of a bitmap as hwloc and the kernel print it: 32-bit words, most significant first, `0x` optional, empty words zero;
    `0xf...f` (an infinite set) is not a set of CPUs of a machine and gives the finite part."""
    value = 0
    for word in mask.replace("0xf...f", "0x0").split(","):
        value = value << 32 | (int(word, 16) if word.strip() else 0)
    return frozenset(i for i in range(value.bit_length()) if value >> i & 1)


# ------------------------------------------------------------------ without hwloc


def parse_list(text: str) -> frozenset[int]:
    """CPUs of a list as the kernel prints it: `0-3,8,10-11`."""
    out: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        out |= set(range(int(first), int(last or first) + 1))
    return frozenset(out)


def _from_sys(cpus: tuple[int, ...]) -> Topology:
    mine = frozenset(cpus)
    cores: set[str] = set()
    sockets: set[str] = set()
    for c in cpus:
        place = SYS / "cpu" / f"cpu{c}" / "topology"
        cores.add(_read(place / "core_cpus_list") or _read(place / "thread_siblings_list") or str(c))
        sockets.add(_read(place / "physical_package_id") or "0")
    nodes = [n for n in (SYS / "node").glob("node[0-9]*") if parse_list(_read(n / "cpulist")) & mine]
    siblings = _siblings((parse_list(core) & mine for core in cores), cpus)
    return Topology(_model(), platform.machine(), len(sockets), max(1, len(nodes)), len(siblings), cpus, siblings, _sys_caches(cpus), _memory(), "sys")


def _sys_caches(cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    found: dict[str, Cache] = {}
    for index in sorted((SYS / "cpu" / f"cpu{cpus[0]}" / "cache").glob("index[0-9]*")):
        size = re.fullmatch(r"(\d+)([KM]?)", _read(index / "size"))
        if size and _read(index / "type") in ("Data", "Unified"):
            level = f"L{_read(index / 'level')}"
            sharing = len(parse_list(_read(index / "shared_cpu_list")) & set(cpus)) or 1
            found[level] = Cache(level, int(size[1]) << {"": 0, "K": 10, "M": 20}[size[2]], int(_read(index / "coherency_line_size") or 64), sharing)
    return tuple(found[level] for level in sorted(found))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _model() -> str:
    found = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else "unknown processor"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ------------------------------------------------------------------ instruction set


def native_isa(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The widest row of targets.isa.ISAS that this processor runs."""
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    found = re.search(r"^flags\s*:(.*)$", _read(cpuinfo), re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "plain"


# ------------------------------------------------------------------ quota


def cpu_quota(root: Path = CGROUP, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs' worth of time that the control group allows (cgroup v2 cpu.max, v1 cpu.cfs_quota_us); None without a limit."""
    return min((limit for folder in _groups(root, membership) for limit in _limit(folder)), default=None)


def throttled_periods(root: Path = CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
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
    if quota and period and int(quota) > 0:
        return [int(quota) / int(period)]
    return []
