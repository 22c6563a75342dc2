"""In: lists of an experiment file. Out: how threads and pages are asked to lie: the run axes beside the sizes, and their combinations.

Cores are held constant through the mask and threads raised, never the reverse: threads that share a core are asked for by `cores`, and a
runtime that believes in more CPUs than there are by `believed_cpus`. Nothing here knows a machine: `machine.seating` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

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
PLACEMENTS: dict[str, str] = {
    "compact": "close together, cores before second hardware threads: the ravel, hardware threads outermost",
    "siblings": "close together, hardware threads of a core side by side: the ravel",
    "spread": "as far apart as can be: the ravel of the transpose",
    "per_socket": "one CPU a socket",
    "per_numa": "one CPU a memory node",
    "per_l3": "one CPU a last-level cache",
    "one_core": "all threads on one CPU",
    "unbound": "wherever the operating system puts them",
}
"""Index maps on the machine's array (machine.placement.MAPS); beside them `numa:<k>`, the CPUs of the k-th memory node that has some."""
NUMA, EACH_NUMA = "numa:", "each_numa"         # in an experiment, each_numa is one placement for every memory node with CPUs
MEMORIES: dict[str, str] = {
    "owner": "each page is first touched by the thread that uses it",
    "one": "all pages are first touched by one thread",
    "interleave": "pages in turn on all memory nodes",
    "remote": "all pages on the memory node farthest from the first thread",
}
"""Memory policies; beside them `node:<number>`, all pages on that memory node."""
NODE, EACH_NODE = "node:", "each_node"


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
        """What is not as usual, `threads=8 cores=1 wait_policy=passive`; the number of threads always, cores where threads share them."""
        usual = Arrangement(cores=self.threads)
        told = ("threads", *(f.name for f in fields(self) if f.name != "threads" and getattr(self, f.name) not in (getattr(usual, f.name), "", 0)))
        return " ".join(f"{name}={getattr(self, name)}" for name in told)


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
