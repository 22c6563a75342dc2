"""In: the topology. Out: machine.locality.Locality, measured: bandwidth and latency between memory nodes, barriers, clocks.

Each figure comes from a process of its own with the CPUs and settings of a measuring process (lab.runtime), as everything else is.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from moapipe.errors import LabError
from moapipe.lab.participant import masked, scrubbed
from moapipe.lab.program import program
from moapipe.lab.runtime import environment, missing
from moapipe.machine.arrangement import RUNTIMES, WAIT_POLICIES, Arrangement
from moapipe.machine.locality import Locality, barrier_key
from moapipe.machine.seating import Arranged, arrange, settled
from moapipe.machine.topology import Topology

LIMIT_S = 60.0
LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30      # of a buffer that no cache holds
THREADS_PER_CORE = (1, 2, 4, 8)
BELIEVED = 128                                   # CPUs that a runtime is told of, to see what its barriers cost then
PLACEMENTS = ("compact", "spread", "per_l3", "per_numa", "unbound")


def measure(top: Topology, root: Path, machine: str) -> Locality:
    """All figures. A barrier that takes longer than LIMIT_S is left out; LabError when the program does not compile."""
    native = program("locality", root, machine)
    barrier: dict[str, float] = {}
    for asked in barriers(top):
        arranged = arrange(asked, top)
        if not arranged.reason and not missing(arranged) and barrier_key(asked) not in barrier:
            found = figures(native, ("barrier", str(asked.threads)), arranged, root, machine)
            barrier |= {barrier_key(asked): found["region"]} if found else {}
    clock = {t: found["clock"] for t in sorted({1, top.cores}) if (found := figures(native, ("clock", str(t)), arrange(Arrangement(t, t), top), root, machine))}
    bandwidth, latency = _matrix(native, top, root, machine)
    return Locality(top, bandwidth, latency, barrier, clock)


def barriers(top: Topology) -> Iterator[Arrangement]:
    """Whose barriers are measured: every placement at one thread a core; and cores that are shared, with every way to wait, in every
    runtime, that knows the truth or believes in more CPUs."""
    counts = sorted({1 << k for k in range(top.cores.bit_length()) if 1 << k <= top.cores} | {top.cores})
    for name in PLACEMENTS:
        for asked in (Arrangement(t, placement=name) for t in counts):
            yield from settled(asked, top)
    for runtime in RUNTIMES:
        for cores in counts:
            for each in THREADS_PER_CORE:
                for wait in WAIT_POLICIES:
                    for believed in (0, BELIEVED):
                        yield Arrangement(cores * each, cores, wait_policy=wait, runtime=runtime, believed_cpus=believed)


def _matrix(native: Path, top: Topology, root: Path, machine: str) -> tuple[dict[str, float], dict[str, float]]:
    """Threads on every node with CPUs against pages on every node with memory."""
    bandwidth: dict[str, float] = {}
    latency: dict[str, float] = {}
    for k, cpus in enumerate(top.domains("numa")):
        arranged = arrange(Arrangement(len(cpus), len(cpus), f"numa:{k}"), top)
        for node in (n for n in top.nodes if n.allowed and n.bytes):
            size = min(beyond_caches(top), node.bytes // 4)
            found = figures(native, ("memory", str(len(cpus)), str(node.id), str(size)), arranged, root, machine)
            if found:
                bandwidth[f"{top.home(cpus[0])}/{node.id}"], latency[f"{top.home(cpus[0])}/{node.id}"] = found["read"], found["latency"]
    return bandwidth, latency


def beyond_caches(top: Topology) -> int:
    """Bytes of a buffer that the machine's caches don't hold, within reason."""
    last = max((c.bytes * len(c.groups) for c in top.caches), default=0)
    return min(MOST_BYTES, max(LEAST_BYTES, 4 * last))


def figures(native: Path, words: tuple[str, ...], arranged: Arranged, root: Path, machine: str) -> dict[str, float]:
    """What the program prints; nothing when it takes too long, which a barrier of threads that spin on one CPU may."""
    env = {**scrubbed(os.environ), **environment(arranged, root, machine)}
    try:
        with masked(arranged.mask):
            done = subprocess.run([str(native), *words], capture_output=True, text=True, env=env, timeout=LIMIT_S, check=True)
    except subprocess.TimeoutExpired:
        return {}
    except subprocess.CalledProcessError as e:
        raise LabError(f"measuring locality ended with {e.returncode}: {e.stderr.strip()}", where=" ".join(words)) from e
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}
