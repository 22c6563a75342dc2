"""In: hwloc's own program, /sys, /proc. Out: the machine as an array of CPUs with named axes, its caches, memory nodes and GPUs.

Probed at run time inside the job, never assumed, and restricted to what this process may use. Where hwloc's program is missing,
/sys says the same with less.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from moapipe.errors import LabError
from moapipe.machine.mask import parse_list, parse_mask

PROGRAMS = ("lstopo-no-graphics", "lstopo")
SYS = Path("/sys/devices/system")
AXES = ("socket", "numa", "l3", "core", "pu")
MASK = frozenset(os.sched_getaffinity(0))    # before anything that could shrink it is loaded
HOLE = -1            # an element of the array without a CPU that this process may use
CpuSet = frozenset[int]


@dataclass(frozen=True)
class Cache:
    """One level of data or unified caches: capacity and line in bytes; `groups` are the allowed CPUs of each instance."""

    level: str
    bytes: int
    line: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def shared_by(self) -> int:
        """Allowed CPUs on the fullest instance."""
        return max(map(len, self.groups))


@dataclass(frozen=True)
class Node:
    """A memory node by the kernel's number: its bytes (0: none), the allowed CPUs next to it (none for memory of a device),
    whether this process's pages may lie there, and what hwloc calls its kind."""

    id: int
    bytes: int
    cpus: tuple[int, ...]
    allowed: bool = True
    kind: str = ""


@dataclass(frozen=True)
class Gpu:
    """A device in the order of its bus, with the memory nodes that it is next to."""

    name: str
    bus: str
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The machine as this process may use it.

    `array` holds CPU numbers, row-major, of extents `shape` along `axes`, outermost first; the axes are AXES, in the order in which
    they contain each other on this machine. Elements at the end of an axis that has fewer parts elsewhere, or whose CPUs this process
    may not use, are HOLE. `caches` are nearest first; `distances` the firmware's labels between `nodes`, in their order, or empty.
    """

    model: str
    architecture: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    array: tuple[int, ...]
    caches: tuple[Cache, ...]
    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    gpus: tuple[Gpu, ...]
    memory_bytes: int
    source: str

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(c for c in self.array if c != HOLE))

    def domains(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """The CPUs of each part of the machine along an axis, in the array's order; parts without CPUs are left out."""
        size = prod(self.shape[self.axes.index(axis) + 1 :])
        parts = (self.array[k : k + size] for k in range(0, len(self.array), size))
        return tuple(found for part in parts if (found := tuple(c for c in part if c != HOLE)))

    @property
    def sockets(self) -> int:
        return len(self.domains("socket"))

    @property
    def numa_nodes(self) -> int:
        """Memory nodes that have CPUs of ours."""
        return len(self.domains("numa"))

    @property
    def cores(self) -> int:
        return len(self.domains("core"))

    def home(self, cpu: int) -> int:
        """The memory node next to a CPU, by the kernel's number; 0 on a machine that names none. The smallest that has the CPU, then the first."""
        return min(((len(n.cpus), n.id) for n in self.nodes if cpu in n.cpus), default=(0, 0))[1]

    def line(self) -> str:
        """One line for people and for the record."""
        sizes = ", ".join(f"{c.level} {_size(c.bytes)}" + (f" shared by {c.shared_by}" if c.shared_by > 1 else "") for c in self.caches)
        return (f"{self.model}: {_some(self.sockets, 'socket')}, {_some(self.numa_nodes, 'memory node')}, {_some(self.cores, 'core')}, "
                f"{_some(len(self.cpus), 'CPU')}; {sizes or 'caches unknown'}; {self.memory_bytes / (1 << 30):.0f} GiB")

    def cache(self, level: str) -> Cache | None:
        return next((c for c in self.caches if c.level == level), None)

    def sharers(self, level: str, places: Sequence[int]) -> int:
        """How many of the threads on `places`, one entry a thread, share the fullest instance of a cache level; 1 when there is none."""
        found = self.cache(level)
        return max([1, *(sum(c in group for c in places) for group in (found.groups if found else ()))])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Topology:
        """The inverse of `to_json`, also after JSON has made lists of tuples."""
        plain: dict[str, Any] = {k: _tuples(v) for k, v in data.items()}
        rows: dict[str, Any] = {"caches": Cache, "nodes": Node, "gpus": Gpu}
        for name, row in rows.items():
            plain[name] = tuple(row(**{k: _tuples(v) for k, v in x.items()}) for x in plain[name])
        return Topology(**plain)


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list | tuple) else x


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
            return from_xml(done.stdout, allowed_cpus(), allowed_nodes())
    return from_sys(allowed_cpus(), allowed_nodes())


def allowed_cpus() -> tuple[int, ...]:
    """CPUs in the mask that this process was started with: loading an OpenMP runtime may have shrunk it since."""
    return tuple(sorted(MASK))


def allowed_nodes(status: Path = Path("/proc/self/status")) -> CpuSet | None:
    """Memory nodes that the control group leaves to this process; None where the kernel does not say."""
    found = re.search(r"^Mems_allowed_list:\s*(\S+)$", _read(status), re.MULTILINE)
    return parse_list(found[1]) if found else None


# ------------------------------------------------------------------ the array


def arrange(cpus: CpuSet, parts: Mapping[str, Iterable[CpuSet]]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """(axes, shape, array) of CPUs from the sets of CPUs that each axis divides them into; an axis without sets is one of extent 1.

    Axes with larger parts come first (a memory node may hold two caches, or a cache two nodes), in the order of AXES among equals.
    """
    whole = {**parts, "pu": [frozenset({c}) for c in cpus]}
    sets = {axis: sorted({s & cpus for s in whole.get(axis, ()) if s & cpus}, key=min) for axis in AXES}
    largest = {axis: max(map(len, sets[axis]), default=len(cpus)) for axis in AXES}
    axes = tuple(sorted(AXES, key=lambda a: (-largest[a], AXES.index(a))))
    tree = _nested(cpus, [sets[a] for a in axes])
    shape = tuple(max(len(node) for node in _level(tree, depth)) for depth in range(len(axes)))
    return axes, shape, tuple(_element(tree, index) for index in product(*map(range, shape)))


def _nested(cpus: CpuSet, sets: Sequence[Sequence[CpuSet]]) -> Any:
    """A tree of lists with a CPU at each leaf; CPUs that no set of an axis claims are a part of their own."""
    if not sets:
        return min(cpus)
    claimed = [s & cpus for s in sets[0] if s & cpus]
    rest = cpus - frozenset().union(*claimed)
    alone = [frozenset({c}) for c in sorted(rest)] if len(sets) <= 2 else [rest] * bool(rest)
    return [_nested(s, sets[1:]) for s in sorted([*claimed, *alone], key=min)]


def _level(tree: Any, depth: int) -> Iterator[Any]:
    if depth == 0:
        yield tree
    else:
        for branch in tree:
            yield from _level(branch, depth - 1)


def _element(tree: Any, index: Sequence[int]) -> int:
    for i in index:
        if i >= len(tree):
            return HOLE
        tree = tree[i]
    return int(tree)


# ------------------------------------------------------------------ hwloc


def from_xml(text: str, allowed: Iterable[int], mems: CpuSet | None = None) -> Topology:
    """A topology from what `lstopo --of xml` prints, restricted to the allowed CPUs; `mems` are the memory nodes that pages may lie
    on (None: all). LabError when it is not that."""
    cpus = frozenset(allowed)
    try:
        root = ET.fromstring(text)
    except ET.ParseError as e:
        raise LabError(f"hwloc's output cannot be read: {e}", hint="run `lstopo --of xml` by hand") from e
    seen = [(o.get("type", ""), o, where) for o, where in _objects(root, frozenset())]
    nodes = tuple(_node(o, parse_mask(o.get("cpuset", "0x0")) & cpus, mems) for kind, o, _ in seen if kind == "NUMANode")
    nodes = tuple(sorted({n.id: n for n in nodes}.values(), key=lambda n: n.id))
    parts = {axis: [where for kind, _, where in seen if kind == type_] for axis, type_ in (("socket", "Package"), ("l3", "L3Cache"), ("core", "Core"))}
    model = next((i.get("value", "") for i in root.iter("info") if i.get("name") == "CPUModel"), platform.processor() or "unknown processor")
    return _assembled(model.strip(), cpus, parts, _caches(seen, cpus), nodes, _distances(root, nodes), _gpus(seen, nodes), "hwloc")


def _objects(o: ET.Element, where: CpuSet) -> Iterator[tuple[ET.Element, CpuSet]]:
    """Every object with its CPUs, or those of the nearest object around it that has some (devices have none of their own)."""
    for child in o.findall("object"):
        here = parse_mask(child.get("cpuset", "")) if child.get("cpuset") else where
        yield child, here
        yield from _objects(child, here)


def _node(o: ET.Element, cpus: CpuSet, mems: CpuSet | None) -> Node:
    number = int(o.get("os_index", "0"))
    return Node(number, int(o.get("local_memory", "0")), tuple(sorted(cpus)), mems is None or number in mems, o.get("subtype", ""))


def _caches(seen: Sequence[tuple[str, ET.Element, CpuSet]], cpus: CpuSet) -> tuple[Cache, ...]:
    out = []
    for level in ("L1", "L2", "L3", "L4"):
        found = [(o, tuple(sorted(where & cpus))) for kind, o, where in seen if kind == f"{level}Cache" and where & cpus and int(o.get("cache_size", "0"))]
        if found:
            first = found[0][0]
            out.append(Cache(level, int(first.get("cache_size", "0")), int(first.get("cache_linesize", "64")), tuple(sorted({g for _, g in found}))))
    return tuple(out)


def _distances(root: ET.Element, nodes: Sequence[Node]) -> tuple[tuple[int, ...], ...]:
    """The firmware's latency labels between the nodes, in their order."""
    for d in root.iter("distances2"):
        if d.get("type") == "NUMANode" and "Latency" in d.get("name", ""):
            known = [int(x) for i in d.iter("indexes") for x in (i.text or "").split()]
            values = [int(x) for v in d.iter("u64values") for x in (v.text or "").split()]
            row = {n: k for k, n in enumerate(known)}
            if all(n.id in row for n in nodes) and len(values) == len(known) ** 2:
                return tuple(tuple(values[row[a.id] * len(known) + row[b.id]] for b in nodes) for a in nodes)
    return ()


DISPLAY = re.compile(r"03[0-9a-f]{2} \[(10de|1002|8086):")
"""PCI classes of displays and 3D controllers (03xx) by vendors of accelerators: NVIDIA, AMD, Intel; not a server's console."""


def _gpus(seen: Sequence[tuple[str, ET.Element, CpuSet]], nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    found = [(o.get("pci_busid", ""), o, where) for kind, o, where in seen if kind == "PCIDev" and DISPLAY.match(o.get("pci_type", ""))]
    return tuple(
        Gpu(next((i.get("value", "") for i in o.findall("info") if i.get("name") == "PCIDevice"), "GPU"), bus,
            tuple(n.id for n in nodes if n.cpus and set(n.cpus) <= where))
        for bus, o, where in sorted(found, key=lambda x: x[0])
    )


def _assembled(model: str, cpus: CpuSet, parts: Mapping[str, Iterable[CpuSet]], caches: tuple[Cache, ...], nodes: tuple[Node, ...],
               distances: tuple[tuple[int, ...], ...], gpus: tuple[Gpu, ...], source: str) -> Topology:
    """The topology with its array; a node counts along the axis `numa` when it is some CPU's own."""
    draft = Topology(model, platform.machine(), AXES, (0,) * len(AXES), (), caches, nodes, distances, gpus, 0, source)
    homes: dict[int, set[int]] = {}
    for cpu in cpus:
        homes.setdefault(draft.home(cpu), set()).add(cpu)
    own = [frozenset(s) for s in homes.values()]
    l3 = list(parts.get("l3", ())) or list(parts.get("socket", ())) or own
    axes, shape, array = arrange(cpus, {**parts, "l3": l3, "numa": own})
    memory = sum(n.bytes for n in nodes if n.allowed and n.cpus)
    return Topology(model, platform.machine(), axes, shape, array, caches, nodes, distances, gpus, memory or _memory(), source)


# ------------------------------------------------------------------ without hwloc


def from_sys(cpus: tuple[int, ...], mems: CpuSet | None = None, sys: Path = SYS) -> Topology:
    """The same from the kernel's own files; devices are not looked for."""
    mine = frozenset(cpus)
    parts: dict[str, list[CpuSet]] = {"socket": [], "core": [], "l3": []}
    sockets: dict[str, set[int]] = {}
    for c in cpus:
        place = sys / "cpu" / f"cpu{c}" / "topology"
        parts["core"].append(parse_list(_read(place / "core_cpus_list") or _read(place / "thread_siblings_list") or str(c)))
        sockets.setdefault(_read(place / "physical_package_id") or "0", set()).add(c)
    parts["socket"] = [frozenset(s) for s in sockets.values()]
    folders = sorted((sys / "node").glob("node[0-9]*"), key=lambda p: int(p.name[4:]))
    nodes = tuple(_sys_node(f, mine, mems) for f in folders)
    distances = tuple(tuple(map(int, _read(f / "distance").split())) for f in folders)
    caches = _sys_caches(cpus, sys)
    parts["l3"] = [frozenset(g) for c in caches if c.level == "L3" for g in c.groups]
    square = distances if all(len(row) == len(nodes) for row in distances) else ()
    return _assembled(_model(), mine, parts, caches, nodes, square, (), "sys")


def _sys_node(folder: Path, cpus: CpuSet, mems: CpuSet | None) -> Node:
    number = int(folder.name[4:])
    total = re.search(r"MemTotal:\s+(\d+) kB", _read(folder / "meminfo"))
    here = tuple(sorted(parse_list(_read(folder / "cpulist")) & cpus))
    return Node(number, int(total[1]) << 10 if total else 0, here, mems is None or number in mems)


def _sys_caches(cpus: tuple[int, ...], sys: Path) -> tuple[Cache, ...]:
    found: dict[str, tuple[int, int, set[tuple[int, ...]]]] = {}
    for cpu in cpus:
        for index in sorted((sys / "cpu" / f"cpu{cpu}" / "cache").glob("index[0-9]*")):
            size = re.fullmatch(r"(\d+)([KM]?)", _read(index / "size"))
            if size and _read(index / "type") in ("Data", "Unified"):
                bytes_, line = int(size[1]) << {"": 0, "K": 10, "M": 20}[size[2]], int(_read(index / "coherency_line_size") or 64)
                group = tuple(sorted(parse_list(_read(index / "shared_cpu_list")) & set(cpus))) or (cpu,)
                found.setdefault(f"L{_read(index / 'level')}", (bytes_, line, set()))[2].add(group)
    return tuple(Cache(level, b, line, tuple(sorted(groups))) for level, (b, line, groups) in sorted(found.items()))


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
