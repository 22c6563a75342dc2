"""In: the `device` block of config/machines/<name>.yaml. Out: a GPU's limits, and how many blocks of a kernel they let work at once.

Limits are those of NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; clocks, bandwidth and peaks
those of the product's data sheet, which nothing here has measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

WARP = 32
REGISTER_UNIT = 256     # registers are given to warps in such portions
WARP_UNIT = 4           # and to so many warps at a time, one for each scheduler of a multiprocessor
SHARED_UNIT = 128       # bytes; shared memory of a block comes in such portions
SHARED_OWN = 1024       # bytes of each block that the system keeps, from compute capability 8.0 on

Limit = Literal["threads", "blocks", "registers", "shared memory"]


class Device(BaseModel):
    """A GPU. `arch` as its compiler names it; `multiprocessors` of it; of one multiprocessor: resident `threads`, `blocks`, 32-bit
    `registers` and `shared_bytes`; of one block: `shared_bytes_block`, `threads_block`; `registers_thread` of one thread; `cache_bytes` of the last-level cache, which has `parts`
    halves that hold copies of their own; `memory_bytes`; data sheet: `bandwidth` (B/s), `peak_flops` by dtype (1/s, no tensor cores)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arch: str
    multiprocessors: PositiveInt
    threads: PositiveInt = 2048
    blocks: PositiveInt = 32
    registers: PositiveInt = 65536
    shared_bytes: PositiveInt
    shared_bytes_block: PositiveInt
    threads_block: PositiveInt = 1024
    registers_thread: PositiveInt = 255
    cache_bytes: PositiveInt
    parts: PositiveInt = 1
    memory_bytes: PositiveInt
    bandwidth: PositiveFloat
    peak_flops: dict[Literal["f32", "f64"], PositiveFloat]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """`blocks` that one multiprocessor holds, the `share` of its resident warps that these are, and what stops one more."""

    blocks: int
    share: float
    limit: Limit


def occupancy(device: Device, block: int, registers: int = 0, shared_bytes: int = 0) -> Occupancy:
    """Of blocks of `block` threads with so many registers a thread and bytes of shared memory; 0 blocks cannot be launched.

    As NVIDIA's occupancy calculator: a warp's registers come in portions, and multiprocessors give them to four warps at a time.
    """
    warps = -(-block // WARP)
    room: dict[Limit, int] = {"threads": device.threads // (warps * WARP), "blocks": device.blocks}
    if registers:
        portion = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        room["registers"] = device.registers // portion // WARP_UNIT * WARP_UNIT // warps
    if shared_bytes:
        each = -(-(shared_bytes + SHARED_OWN) // SHARED_UNIT) * SHARED_UNIT
        room["shared memory"] = device.shared_bytes // each if shared_bytes <= device.shared_bytes_block else 0
    limit = min(room, key=lambda name: room[name])
    return Occupancy(room[limit], room[limit] * warps * WARP / device.threads, limit)


def unfit(device: Device, block: int, registers: int, shared_bytes: int) -> str:
    """Why the device cannot start a block of `block` threads with so many registers a thread and bytes of shared memory; empty: it can."""
    if block > device.threads_block:
        return f"{block:,} threads a block, {device.name} has {device.threads_block:,}"
    if registers > device.registers_thread:
        return f"{registers:,} registers a thread, {device.name} has {device.registers_thread:,}"
    found = occupancy(device, block, registers, shared_bytes)
    return "" if found.blocks else f"{device.name} has too few {found.limit} for a block of {block:,} threads with {registers:,} registers and {shared_bytes:,} bytes"
