"""In: a topology, the name of a placement. Out: the CPUs that threads 0, 1, 2, … get, and the memory nodes that pages get.

A placement is an index map on the machine's array (machine.topology), written in the algebra of the kernels and reduced by the same
ψ-reduction: transposing the array changes the order in which its CPUs are handed out, taking from an axis leaves CPUs free, ψ picks
a part. Holes of the array fall out at the end. What a machine cannot do has a reason instead of CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from moapipe.algebra.dnf import meaning, reduce_definitions, show
from moapipe.algebra.expr import Definition, Definitions, Expr, array, psi, ravel, reshape, take, transpose
from moapipe.errors import LabError
from moapipe.machine.arrangement import EACH_NODE, EACH_NUMA, MEMORIES, NODE, NUMA
from moapipe.machine.topology import HOLE, Topology

AXIS = "numa"             # the axis whose parts have placements of their own, `numa:2`
Map = Callable[["Machine"], "Machine"]


@dataclass(frozen=True)
class Machine:
    """The array of CPUs as an expression, with its named axes."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    expr: Expr

    def outermost(self, *names: str) -> Machine:
        """Transposed so that the named axes vary slowest, in that order."""
        order = (*names, *(a for a in self.axes if a not in names))
        return Machine(order, tuple(self.shape[self.axes.index(a)] for a in order), transpose(self.expr, [order.index(a) for a in self.axes]))

    def one_per(self, axis: str) -> Machine:
        """The first CPU of every part along an axis: take 1 from each axis inside it."""
        return self.taken(*(n if self.axes.index(a) <= self.axes.index(axis) else 1 for a, n in zip(self.axes, self.shape, strict=True)))

    def taken(self, *amounts: int) -> Machine:
        return Machine(self.axes, amounts, take(amounts, self.expr))

    def part(self, axis: str, k: int) -> Machine:
        """The k-th part along an axis, counted over the whole machine: ψ of the array with the axes up to it in one."""
        inside = self.axes.index(axis) + 1
        outer = prod(self.shape[:inside])
        return Machine(self.axes[inside:], self.shape[inside:], psi(k, reshape([outer, *self.shape[inside:]], self.expr)))


MAPS: dict[str, Map] = {
    "compact": lambda m: m.outermost("pu"),
    "siblings": lambda m: m,
    "spread": lambda m: m.outermost(*reversed(m.axes)),
    "per_socket": lambda m: m.one_per("socket"),
    "per_numa": lambda m: m.one_per("numa"),
    "per_l3": lambda m: m.one_per("l3"),
    "one_core": lambda m: m.taken(*(1 for _ in m.axes)),
    "unbound": lambda m: m.outermost("pu"),
}
"""The index map of each row of machine.arrangement.PLACEMENTS."""


def index_map(name: str, top: Topology) -> Map:
    """The map of a name; that of `numa:2` is the part of the third memory node that has CPUs. LabError for what is not there."""
    if name in MAPS:
        return MAPS[name]
    number = name.removeprefix(NUMA)
    if number == name or not number.isdecimal():
        raise LabError(f"no placement {name!r}", hint=f"placements: {', '.join(MAPS)}, {NUMA}<k>, {EACH_NUMA}")
    positions = _positions(top, AXIS)
    if int(number) >= len(positions):
        raise LabError(f"no memory node number {number} with CPUs of ours", hint=f"this machine has {len(positions)}, counted from 0")
    return lambda m: m.part(AXIS, positions[int(number)]).outermost("pu")


def definition(top: Topology, name: str) -> Definitions:
    """A placement as a MoA definition on the input array `machine`: `place[t]` is the CPU of thread t. LabError for a part that is not there."""
    leaf = array("machine", *top.shape)
    machine = index_map(name, top)(Machine(top.axes, top.shape, leaf))
    return Definitions((), (leaf,), (Definition("place", ("t",), ravel(machine.expr)),), ("place",))


def _positions(top: Topology, axis: str) -> list[int]:
    """Where along the ravelled outer axes the parts lie that have CPUs."""
    size = prod(top.shape[top.axes.index(axis) + 1 :])
    return [k for k in range(len(top.array) // size) if any(c != HOLE for c in top.array[k * size : (k + 1) * size])]


@lru_cache(maxsize=256)
def places(top: Topology, name: str = "compact") -> tuple[int, ...]:
    """The CPUs of a placement in thread order, each once. LabError where the machine has no such part."""
    dnf, _ = reduce_definitions("placement", definition(top, name))
    found = meaning(dnf, {"machine": np.array(top.array).reshape(top.shape)}, {})["place"]
    return tuple(int(c) for c in found if c != HOLE)


def cpus(top: Topology, threads: int, name: str = "compact") -> tuple[int, ...]:
    """The CPUs for `threads` threads, one each, as far as the placement goes. With more threads than CPUs, all CPUs: then threads share."""
    if threads < 1:
        raise LabError(f"{threads} threads", hint="ask for one thread or more")
    return places(top, name)[:threads]


def derivation(top: Topology, name: str) -> str:
    """The placement's normal form as text: which element of the machine's array thread t gets."""
    return show(reduce_definitions(name.replace(":", "_"), definition(top, name))[0], "moa")


# ------------------------------------------------------------------ memory

@dataclass(frozen=True)
class Memory:
    """What is asked of the kernel for pages: `policy` first_touch, interleave or bind, on `nodes` by number; `touchers` says who
    touches first: all threads, or one."""

    policy: str
    nodes: tuple[int, ...] = ()
    touchers: str = "all"


FIRST_TOUCH = Memory("first_touch")


def memory(top: Topology, name: str, threads_on: tuple[int, ...]) -> Memory:
    """The policy of a row of MEMORIES, or of `node:<number>`, for threads on the given CPUs. LabError says what this machine cannot do."""
    usable = {n.id: n for n in top.nodes if n.allowed and n.bytes}
    match name.partition(":"):
        case ("owner", _, ""):
            return FIRST_TOUCH
        case ("one", _, ""):
            return Memory("first_touch", touchers="one")
        case ("interleave", _, ""):
            return Memory("interleave", tuple(sorted(n for n, row in usable.items() if row.cpus)) or (0,))
        case ("remote", _, ""):
            return Memory("bind", (_farthest(top, top.home(threads_on[0])),))
        case ("node", _, number) if number.isdecimal():
            return Memory("bind", (_usable(top, int(number)),))
        case _:
            raise LabError(f"no memory placement {name!r}", hint=f"memory: {', '.join(MEMORIES)}, {NODE}<number>, {EACH_NODE}")


def _usable(top: Topology, number: int) -> int:
    found = next((n for n in top.nodes if n.id == number), None)
    if found is None:
        raise LabError(f"no memory node {number}", hint=f"nodes: {', '.join(str(n.id) for n in top.nodes)}")
    if not found.bytes:
        raise LabError(f"memory node {number} has no memory")
    if not found.allowed:
        raise LabError(f"memory node {number} is not left to this process", hint="the control group's cpuset.mems says which are")
    return number


def _farthest(top: Topology, home: int) -> int:
    """By the firmware's distances, the last of equals; memory of devices does not count."""
    others = [n.id for n in top.nodes if n.allowed and n.bytes and n.cpus and n.id != home]
    if not others:
        raise LabError("no other memory node", hint="remote memory needs a machine with two")
    row = {n.id: k for k, n in enumerate(top.nodes)}
    return max(others, key=lambda n: (top.distances[row[home]][row[n]] if top.distances and home in row else 0, n))
