"""In: a prediction for compact threads, an arrangement, what locality costs. Out: the prediction under the arrangement; the ceiling.

What is added is measured beforehand: the bandwidth matrix of the memory nodes, and the barrier of each arrangement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moapipe.machine.arrangement import Arrangement
from moapipe.machine.locality import Locality, barrier_key
from moapipe.machine.predict import Prediction
from moapipe.machine.seating import Arranged
from moapipe.machine.topology import Topology

MARGIN = 1.5        # what a measured penalty may exceed the ceiling by: figures of a matrix are good to some tens of per cent


def region_seconds(asked: Arrangement, known: Locality, otherwise: float) -> float:
    """Start and join of a parallel region. An arrangement that was not measured is taken as the same counts of threads and cores
    placed compactly; `otherwise` where that is not known either."""
    for candidate in (asked, replace(asked, placement="compact"), replace(asked, placement="compact", believed_cpus=0)):
        if (found := known.barrier.get(barrier_key(candidate))) is not None:
            return found
    return otherwise


def memory_factor(arranged: Arranged, top: Topology, known: Locality) -> float:
    """How many times slower memory is than where every thread reads its own node's, by the bandwidth matrix: threads share pages out
    evenly, a node gives what its readers may take from it, and the slowest node counts. 1 where the matrix is not known."""
    homes = [top.home(c) for c in arranged.places]
    readers = {i: homes.count(i) / len(homes) for i in dict.fromkeys(homes)}
    if any(f"{i}/{i}" not in known.bandwidth for i in readers):
        return 1.0
    own = max(share / known.bandwidth[f"{i}/{i}"] for i, share in readers.items())
    return max(1.0, _slowest(arranged, readers, known) / own)


def _slowest(arranged: Arranged, readers: Mapping[int, float], known: Locality) -> float:
    """Seconds a byte when pages lie as asked: on each node that holds some, the share that each group of readers takes from it."""
    memory = arranged.memory
    if memory.policy == "first_touch" and memory.touchers == "all":
        return max(share / known.bandwidth[f"{i}/{i}"] for i, share in readers.items())
    holders = memory.nodes if memory.nodes else (next(iter(readers)),)
    def rate(i: int, j: int) -> float:
        return known.bandwidth.get(f"{i}/{j}", known.bandwidth[f"{i}/{i}"])
    serving = max(sum(share / len(holders) for share in readers.values()) / max(rate(i, j) for i in readers) for j in holders)
    taking = max(share * sum(1 / len(holders) / rate(i, j) for j in holders) for i, share in readers.items())
    return max(serving, taking)


def placed(p: Prediction, regions: int, arranged: Arranged, top: Topology, known: Locality) -> Prediction:
    """A prediction for compact threads on their own memory as it is under an arrangement: the farthest memory slower by the matrix,
    each region as long as its measured barrier."""
    last = max(p.moving, default="")
    memory = max(p.memory, p.moving[last] * memory_factor(arranged, top, known)) if last else p.memory
    overhead = regions * region_seconds(arranged.asked, known, p.overhead / regions) if regions else p.overhead
    busy = max(p.seconds - p.overhead, memory)
    return replace(p, seconds=busy + overhead, memory=memory, overhead=overhead, slowest=last if memory > p.memory else p.slowest)


def ceiling(top: Topology, known: Locality) -> float:
    """The largest factor that the placement of pages alone can make on this machine: all nodes read one, against each its own
    (bandwidth), or the longest way against the shortest (latency). 1 on a machine with one node; more than MARGIN times it has
    another cause."""
    nodes = sorted({top.home(c) for c in top.cpus})
    if len(nodes) < 2:
        return 1.0
    rates = [known.bandwidth.get(f"{i}/{i}", 1.0) for i in nodes]
    worst = min(max(known.bandwidth.get(f"{i}/{j}", 1.0) for i in nodes) for j in nodes)
    far = max(known.latency.get(f"{i}/{j}", 1.0) / known.latency.get(f"{i}/{i}", 1.0) for i in nodes for j in nodes)
    return max(sum(rates) / worst, far)
