"""In: a topology. Out: the machine drawn as text: its parts as a tree, caches, memory nodes, GPUs, and which CPUs may be used."""

from __future__ import annotations

from collections.abc import Iterator

from moapipe.machine.mask import list_text
from moapipe.machine.topology import HOLE, Node, Topology

LEAVES = ("core", "pu")      # axes that are told in one line: their parts are too many for a line each


def draw(top: Topology) -> str:
    """The tree, a line for each part down to the last-level caches."""
    shown = " ".join(map(str, top.shape))
    lines = [f"{top.model}, {top.architecture}, seen by {top.source}",
             f"array ⟨{shown}⟩ of {', '.join(top.axes)}: {len(top.cpus)} CPUs of ours, {top.array.count(HOLE)} holes", ""]
    lines += _parts(top, 0, top.array, "")
    lines += ["", *(f"{c.level}  {_bytes(c.bytes)}, lines of {c.line} bytes, {len(c.groups)} of them, {c.shared_by} CPU{'s' * (c.shared_by > 1)} on each"
                    for c in top.caches)]
    lines += [f"memory node {n.id}: {_node(n)}" for n in top.nodes if not n.cpus]
    lines += [f"GPU {k}: {g.name} at {g.bus}, next to memory node {', '.join(map(str, g.nodes)) or '?'}" for k, g in enumerate(top.gpus)]
    if len(top.nodes) > 1 and top.distances:
        lines += ["", "distance  " + " ".join(f"{n.id:>4}" for n in top.nodes)]
        lines += [f"node {n.id:>4} " + " ".join(f"{d:>4}" for d in row) for n, row in zip(top.nodes, top.distances, strict=True)]
    return "\n".join(lines) + "\n"


def _parts(top: Topology, depth: int, elements: tuple[int, ...], margin: str) -> Iterator[str]:
    axis, extent = top.axes[depth], top.shape[depth]
    size = len(elements) // extent
    parts = [p for p in (elements[k * size : (k + 1) * size] for k in range(extent)) if any(c != HOLE for c in p)]
    for k, part in enumerate(parts):
        last = k == len(parts) - 1
        inside = [a for a in top.axes[depth + 1 :] if a not in LEAVES]
        yield f"{margin}{'└─' if last else '├─'} {axis} {_label(top, axis, part, k)}" + ("" if inside else f"  {_cores(top, part)}")
        if inside:
            yield from _parts(top, depth + 1, part, margin + ("   " if last else "│  "))


def _label(top: Topology, axis: str, part: tuple[int, ...], position: int) -> str:
    cpu = next(c for c in part if c != HOLE)
    if axis == "numa" and top.nodes:
        number = top.home(cpu)
        node = next(n for n in top.nodes if n.id == number)
        near = [str(k) for k, g in enumerate(top.gpus) if number in g.nodes]
        return f"{number}  {_node(node)}" + (f", GPU {', '.join(near)}" if near else "")
    cache = top.cache(axis.upper())
    return str(position) + (f"  {_bytes(cache.bytes)}" if cache else "")


def _node(n: Node) -> str:
    memory = _bytes(n.bytes) if n.bytes else "no memory"
    kind = f" ({n.kind})" if n.kind else ""
    return memory + kind + ("" if n.cpus else ", no CPUs") + ("" if n.allowed else ", not ours to use")


def _cores(top: Topology, part: tuple[int, ...]) -> str:
    """`4 cores: CPUs 0-3`; hardware threads of the same rank stand together: `4 cores of 2 hardware threads: CPUs 0-3 | 64-67`."""
    width = top.shape[top.axes.index("pu")]
    ranks = [[c for c in part[k::width] if c != HOLE] for k in range(width)]
    count = len(ranks[0])
    threads = f" of up to {width} hardware threads" if width > 1 else ""
    return f"{count} core{'s' * (count != 1)}{threads}: CPU{'s' * (count != 1)} {' | '.join(list_text(r) for r in ranks if r)}"


def _bytes(n: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << shift:
            return f"{n / (1 << shift):.3g} {unit}"
    return f"{n} bytes"
