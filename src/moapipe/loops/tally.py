"""In: nothing. Out: the records of the three counts, which the interpreter and the cost model share.

What the fields mean is defined in docs/cost_model.md; sizes are in elements unless a name says bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from moapipe.loops.onf import Schedule, Space

FLOPS = {"+": 1, "-": 1, "*": 1, "/": 1, "neg": 1, "abs": 1, "max": 1, "min": 1, "sqrt": 1, "reciprocal": 1, "fma": 2}
"""Floating-point operations a call counts as; comparisons, choices and the transcendental functions count as none."""
EXPONENTIALS = ("exp", "exp2", "sigmoid")
GLOBAL: tuple[Space, ...] = ("input", "output", "workspace")
MEMORY: tuple[Space, ...] = (*GLOBAL, "private")


@dataclass(frozen=True, slots=True)
class Access:
    """How often the loops load and store elements of one array. An accumulation loads and stores its target."""

    space: Space
    loads: int
    stores: int


@dataclass(frozen=True, slots=True)
class Touch:
    """How many distinct elements of one array are read and written.

    Shared, private and register arrays begin a new life at every Alloc: `lives` counts them and `read`, `written` add up the distinct
    elements of each life. All other arrays live once. `elements` is the allocated size of one life.
    """

    space: Space
    elements: int
    lives: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class Region:
    """Collapsed parallel loops. `runs`: how often threads are started and meet again (one barrier each); `trips`: iterations
    to share out, over all runs; `busiest`: the share of the work that the busiest of `threads` threads gets, 1/threads at best."""

    runs: int
    trips: int
    schedule: Schedule
    busiest: float
    work: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Counts:
    """What one call of a kernel does at given sizes. `work` is place (tile, vector, scalar) → function → calls, with `fma`,
    `load` and `store`, and in tiles `start`: how often a tile's fold loop begins. `element_bytes` are those of a value; the elements of
    `narrow` arrays have half as many."""

    kernel: str
    sizes: dict[str, int]
    element_bytes: int
    threads: int
    parameters: tuple[str, ...]
    accesses: dict[str, Access]
    footprint: dict[str, Touch]
    calls: dict[str, int]
    work: dict[str, dict[str, int]]
    regions: tuple[Region, ...]
    narrow: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Executed floating-point operations, by the table FLOPS."""
        return sum(FLOPS.get(name, 0) * n for name, n in self.calls.items())

    @property
    def exps(self) -> int:
        """Executed exponentials."""
        return sum(self.calls.get(name, 0) for name in EXPONENTIALS)

    @property
    def barriers(self) -> int:
        return sum(r.runs for r in self.regions)

    def bytes(self, array: str, elements: int) -> int:
        """Bytes of so many elements of an array."""
        return elements * self.element_bytes // (2 if array in self.narrow else 1)

    @property
    def loaded_bytes(self) -> int:
        """Accesses to arrays in memory; parameters (inputs of rank 0) and register arrays apart."""
        return sum(self.bytes(n, a.loads) for n, a in self.accesses.items() if a.space in MEMORY and n not in self.parameters)

    @property
    def stored_bytes(self) -> int:
        return sum(self.bytes(n, a.stores) for n, a in self.accesses.items() if a.space in MEMORY)

    @property
    def footprint_read_bytes(self) -> int:
        """Distinct elements of the inputs that are read, parameters apart: what must come in."""
        return sum(self.bytes(n, t.read) for n, t in self.footprint.items() if t.space == "input" and n not in self.parameters)

    @property
    def footprint_written_bytes(self) -> int:
        """Distinct elements written to outputs, to inputs that are updated in place, and to workspace."""
        return sum(self.bytes(n, t.written) for n, t in self.footprint.items() if t.space in GLOBAL)

    @property
    def private_bytes(self) -> int:
        """Distinct elements written to private arrays, added up over their lives."""
        return self.element_bytes * sum(t.written for t in self.footprint.values() if t.space == "private")

    @property
    def workspace_bytes(self) -> int:
        """Allocated for the whole call."""
        return self.element_bytes * sum(t.elements for t in self.footprint.values() if t.space == "workspace")

    @property
    def thread_bytes(self) -> int:
        """Private memory that one thread needs."""
        return self.element_bytes * sum(t.elements for t in self.footprint.values() if t.space == "private")

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; the derived totals stand beside them for readers."""
        totals = ("flops", "exps", "barriers", "loaded_bytes", "stored_bytes", "footprint_read_bytes", "footprint_written_bytes",
                  "private_bytes", "workspace_bytes", "thread_bytes")
        return {**asdict(self), "totals": {name: getattr(self, name) for name in totals}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Counts:
        """The inverse of `to_json`; the totals are computed anew."""
        return Counts(
            data["kernel"], dict(data["sizes"]), data["element_bytes"], data["threads"], tuple(data["parameters"]),
            {n: Access(**a) for n, a in data["accesses"].items()}, {n: Touch(**t) for n, t in data["footprint"].items()},
            dict(data["calls"]), {p: dict(w) for p, w in data["work"].items()}, tuple(_regions(data["regions"])), tuple(data["narrow"]),
        )


def _regions(data: Iterable[Mapping[str, Any]]) -> Iterable[Region]:
    return (Region(r["runs"], r["trips"], r["schedule"], r["busiest"], {p: dict(w) for p, w in r["work"].items()}) for r in data)
