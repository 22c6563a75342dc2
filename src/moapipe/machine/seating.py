"""In: an arrangement, the topology of the machine that is there. Out: CPUs, mask and memory policy, or why it cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

from moapipe.errors import LabError
from moapipe.machine import placement
from moapipe.machine.arrangement import EACH_NODE, EACH_NUMA, NODE, NUMA, Arrangement
from moapipe.machine.placement import FIRST_TOUCH, Memory
from moapipe.machine.topology import Topology


@dataclass(frozen=True)
class Arranged:
    """An arrangement on a machine: the CPU of each place in thread order, the CPUs that the process may use, whether threads are bound
    to places, the memory policy. `reason` is not empty where the machine cannot do it; then the rest is."""

    asked: Arrangement
    places: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    bound: bool = True
    memory: Memory = FIRST_TOUCH
    reason: str = ""

    @property
    def shared(self) -> bool:
        """More threads than CPUs, on purpose."""
        return self.asked.threads > len(self.places)

    def cpu_of(self, thread: int) -> int:
        """The place of a thread as OMP_PROC_BIND=close deals them out: consecutive threads on a place when there are more than places."""
        threads, n = self.asked.threads, len(self.places)
        return self.places[thread if threads <= n else thread * n // threads]


def settled(asked: Arrangement, top: Topology) -> tuple[Arrangement, ...]:
    """The arrangement on this machine: words for every memory node expanded, ALL threads counted, repeats dropped. What the machine
    lacks stays as it is asked, and `arrange` says why."""
    out = []
    for name, memory in product(placements(asked.placement, top), memories(asked.memory, top)):
        found = replace(asked, placement=name, memory=memory)
        try:
            places = placement.places(top, name)
        except LabError:
            places = ()
        threads = asked.threads or max(1, len(places))
        out.append(replace(found, threads=threads, cores=asked.cores or (1 if name == "one_core" else threads)))
    return tuple(dict.fromkeys(out))


def arrange(asked: Arrangement, top: Topology) -> Arranged:
    """Places, mask and memory of a settled arrangement, or the reason why this machine cannot have it."""
    try:
        every = placement.places(top, asked.placement)
        if asked.cores > len(every):
            what = f"{asked.threads} thread" if asked.cores == asked.threads else f"{asked.cores} core"
            by = "" if asked.placement == "compact" else f" by {asked.placement}"
            raise LabError(f"{what}{'s' * (not what.startswith('1 '))}, and {_cpus(len(every))} may be used here{by}")
        bound = asked.placement != "unbound"
        places = every[: min(asked.cores, asked.threads)]
        return Arranged(asked, places, places if bound or asked.threads > len(places) else every, bound, placement.memory(top, asked.memory, places))
    except LabError as e:
        return Arranged(asked, reason=e.message)


def _cpus(n: int) -> str:
    return f"{n} CPU{'' if n == 1 else 's'}"


def placements(name: str, top: Topology) -> Iterable[str]:
    return [f"{NUMA}{k}" for k in range(top.numa_nodes)] if name == EACH_NUMA else [name]


def memories(name: str, top: Topology) -> Iterable[str]:
    return [f"{NODE}{n.id}" for n in top.nodes] if name == EACH_NODE else [name]
