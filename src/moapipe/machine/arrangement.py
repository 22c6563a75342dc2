"""In: how an experiment asks threads and pages to lie (an Arrangement); the topology. Out: CPUs, mask and memory policy, or why not.

The run axes beside the sizes. Cores are held constant through the mask and threads raised, never the reverse: threads that share a
core are asked for by `cores`, and a runtime that believes in more CPUs than there are by `believed_cpus`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from moapipe.errors import LabError
from moapipe.machine import placement
from moapipe.machine.placement import FIRST_TOUCH, Memory
from moapipe.machine.topology import Topology

ALL = 0            # threads: as many as the placement has places
WAIT_POLICIES: dict[str, dict[str, str]] = {
    "short": {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "2"},
    "unset": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "active": {"OMP_WAIT_POLICY": "active"},
}
"""How threads wait. `short`, ours: they spin for about two milliseconds, then sleep: longer than any serial stretch that matters, shorter
than a turn of another participant. `unset`: what the runtime does by itself."""
RUNTIMES = ("libgomp", "libomp")


@dataclass(frozen=True, order=True)
class Arrangement:
    """One value of every such axis. `threads` may be ALL; `cores` are the CPUs that they share (0: one each, as far as the placement
    goes); `believed_cpus` is a planted fault: what the OpenMP runtime is told that it may use (0: the truth)."""

    threads: int = 1
    cores: int = 0
    placement: str = "compact"
    memory: str = "owner"
    wait_policy: str = "short"
    runtime: str = "libgomp"
    believed_cpus: int = 0

    def text(self) -> str:
        """What is not as usual, `threads=8 cores=1 wait_policy=passive`; the number of threads always."""
        usual = Arrangement()
        return " ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name == "threads" or getattr(self, f.name) != getattr(usual, f.name))


AXES = tuple(f.name for f in fields(Arrangement))


@dataclass(frozen=True)
class Sweep:
    """What an experiment lists of each axis. `threads` stand alone; with `cores` and `threads_per_core` the threads are their product."""

    threads: Sequence[int] = (1,)
    cores: Sequence[int] = ()
    threads_per_core: Sequence[float] = ()
    placements: Sequence[str] = ("compact",)
    memories: Sequence[str] = ("owner",)
    wait_policies: Sequence[str] = ("short",)
    runtimes: Sequence[str] = ("libgomp",)
    believed_cpus: Sequence[int] = (0,)

    def counts(self) -> Iterator[tuple[int, int]]:
        """(threads, cores). Half a thread is none: it is left out."""
        if self.cores:
            pairs = product(self.cores, self.threads_per_core or (1.0,))
            yield from ((int(k * r), k) for k, r in pairs if k * r >= 1 and k * r == int(k * r))
        else:
            yield from ((t, 0) for t in self.threads)

    def arrangements(self) -> tuple[Arrangement, ...]:
        """All combinations as the file asks for them, before any machine is seen."""
        others: tuple[Sequence[Any], ...] = (self.placements, self.memories, self.wait_policies, self.runtimes, self.believed_cpus)
        found = (Arrangement(*count, *rest) for rest in product(*others) for count in self.counts())
        return tuple(dict.fromkeys(found))


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
    for name, memory in product(placement.names(top, [asked.placement]), placement.memories(top, [asked.memory])):
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
        bound = placement.placement(asked.placement, top).bound
        places = every[: min(asked.cores, asked.threads)]
        return Arranged(asked, places, places if bound or asked.threads > len(places) else every, bound, placement.memory(top, asked.memory, places))
    except LabError as e:
        return Arranged(asked, reason=e.message)


def _cpus(n: int) -> str:
    return f"{n} CPU{'' if n == 1 else 's'}"
