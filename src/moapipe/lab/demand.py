"""In: a derivation for a GPU, sizes. Out: what it asks of one, before there is one: counts, launches, and how many of its blocks a device
holds; as data and as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from moapipe.lab.derive import Derivation
from moapipe.lab.launch import Launch, launches
from moapipe.loops import grid
from moapipe.loops.cost import count
from moapipe.loops.tally import Counts
from moapipe.machine.device import Device, occupancy
from moapipe.targets.isa import element_bytes
from moapipe.targets.simt import BLOCK

REGISTERS = (32, 64, 128, 255)
"""Registers a thread at which occupancy is told before anything is compiled; 255 is the most that a thread can have."""


def enough(counts: Counts) -> int:
    """GPU threads for one iteration of the longest parallel region each, in whole blocks."""
    return -(-max([1, *(r.trips for r in counts.regions)]) // BLOCK) * BLOCK


def cost(d: Derivation, sizes: Mapping[str, int], threads: int = 0, device: Device | None = None) -> dict[str, Any]:
    """What a build asks of a GPU (`loops.grid.account`), its launches, and where a device is known how many of its blocks that holds.
    Without `threads`, one for each iteration."""
    counts = count(d.schedule.kernel, sizes, element_bytes(d.build.dtype))
    threads = threads or enough(counts)
    found = launches(d.manifest, sizes, threads)
    held = {} if device is None else {"device": device.name, "occupancy": [_held(device, block, d.manifest["promises"]["shared"]) for block in sorted({l.block for l in found})]}
    return {**grid.account(d.schedule.kernel, counts, threads), "launches": [_row(l) for l in found], **held}


def _row(l: Launch) -> dict[str, Any]:
    return {"function": l.function, "blocks": l.blocks, "block": l.block}


def _held(device: Device, block: int, shared: int) -> dict[str, Any]:
    """With the shared memory of the largest team."""
    return {"block": block, "shared_bytes": shared, "registers": {r: asdict(occupancy(device, block, r, shared)) for r in REGISTERS}}


def show(data: Mapping[str, Any]) -> str:
    """`cost`'s dictionary as text."""
    out = grid.show(data)
    out += [f"  launch {l['function']}: {l['blocks']:,} blocks of {l['block']} threads" for l in data["launches"]]
    for o in data.get("occupancy", ()):
        shares = ", ".join(f"{r} registers {x['share']:.0%} ({x['blocks']} blocks, {x['limit']})" for r, x in o["registers"].items())
        out.append(f"  {data['device']} holds blocks of {o['block']} threads with {shares}")
    return "\n".join(out) + "\n"
