"""In: a manifest for a GPU, sizes. Out: its launches in order, with numbers for every expression: what to start, and what it is given.

The manifest tells what the text's own entry point does, so that whoever has only the device binary can do it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moapipe.algebra.index import evaluate, parse
from moapipe.lab.derive import Derivation
from moapipe.loops import grid
from moapipe.loops.cost import count
from moapipe.loops.tally import Counts
from moapipe.machine.device import Device, occupancy
from moapipe.targets.isa import element_bytes
from moapipe.targets.simt import BLOCK

REGISTERS = (32, 64, 128, 255)
"""Registers a thread at which occupancy is told before anything is compiled; 255 is the most that a thread can have."""


@dataclass(frozen=True, slots=True)
class Launch:
    """`blocks` of `block` threads run `function` with the named buffers (`work`: the workspace), then the integers, 64 bits each."""

    function: str
    blocks: int
    block: int
    buffers: tuple[str, ...]
    integers: tuple[int, ...]


def launches(manifest: Mapping[str, Any], sizes: Mapping[str, int], threads: int) -> tuple[Launch, ...]:
    """Every launch of one call with `threads` GPU threads; those of no block are left out, as a device would refuse them."""
    return tuple(l for l in _launches(manifest["launches"], {**sizes, "threads": threads}) if l.blocks)


def _launches(rows: Sequence[Mapping[str, Any]], at: Mapping[str, int]) -> Iterator[Launch]:
    for row in rows:
        match row:
            case {"for": var, "from": lo, "to": hi, "body": body}:
                for i in range(_value(lo, at), _value(hi, at)):
                    yield from _launches(body, {**at, var: i})
            case {"if": condition, "body": body}:
                if _value(condition, at):
                    yield from _launches(body, at)
            case _:
                yield Launch(row["launch"], _value(row["blocks"], at), row["block"], tuple(row["buffers"]), tuple(_value(e, at) for e in row["integers"]))


def _value(expression: str | int, at: Mapping[str, int]) -> int:
    return expression if isinstance(expression, int) else evaluate(parse(expression), at)


def enough(counts: Counts) -> int:
    """GPU threads for one iteration of the longest parallel region each, in whole blocks."""
    return -(-max([1, *(r.trips for r in counts.regions)]) // BLOCK) * BLOCK


def cost(d: Derivation, sizes: Mapping[str, int], threads: int = 0, device: Device | None = None) -> dict[str, Any]:
    """What a build asks of a GPU (`loops.grid.account`), its launches, and where a device is known how many of its blocks that holds.
    Without `threads`, one for each iteration."""
    counts = count(d.schedule.kernel, sizes, element_bytes(d.build.dtype))
    threads = threads or enough(counts)
    found = launches(d.manifest, sizes, threads)
    held = {} if device is None else {"device": device.name, "occupancy": [_held(device, block) for block in sorted({l.block for l in found})]}
    return {**grid.account(d.schedule.kernel, counts, threads), "launches": [_row(l) for l in found], **held}


def _row(l: Launch) -> dict[str, Any]:
    return {"function": l.function, "blocks": l.blocks, "block": l.block}


def _held(device: Device, block: int) -> dict[str, Any]:
    return {"block": block, "registers": {r: asdict(occupancy(device, block, r)) for r in REGISTERS}}


def show(data: Mapping[str, Any]) -> str:
    """`cost`'s dictionary as text."""
    out = grid.show(data)
    out += [f"  launch {l['function']}: {l['blocks']:,} blocks of {l['block']} threads" for l in data["launches"]]
    for o in data.get("occupancy", ()):
        shares = ", ".join(f"{r} registers {x['share']:.0%} ({x['blocks']} blocks, {x['limit']})" for r, x in o["registers"].items())
        out.append(f"  {data['device']} holds blocks of {o['block']} threads with {shares}")
    return "\n".join(out) + "\n"
