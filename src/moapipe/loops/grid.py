"""In: a kernel at given sizes. Out: what it asks of a GPU, before one is there: warp instructions of updates that threads share,
sectors by array, private scratch. As `account`: whole numbers that JSON can hold, and as text.

Numbers are given for three mappings: `one_lane` (one active lane an instruction, as in the published program: the most), `ours` (the
loops that our texts spread over threads) and `full` (32 active lanes in every instruction, and for sectors all in one: the least).
docs/cost_model.md derives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moapipe.algebra.scalar import text
from moapipe.loops import team
from moapipe.loops.atomic import Atomic, atomics
from moapipe.loops.bank import WORD, conflicts
from moapipe.loops.fetch import fetches
from moapipe.loops.footprint import Census
from moapipe.loops.onf import Alloc, Kernel, Loop, statements
from moapipe.loops.site import fullest
from moapipe.loops.tally import Counts
from moapipe.loops.warp import SECTOR_BYTES, WARP, requests

WAYS = ("loads", "stores")
Numbers = Mapping[str, int]


def account(kernel: Kernel, counts: Counts, threads: int) -> dict[str, Any]:
    """`atomics` (updates of elements, and the warp instructions that they take), `sectors` by array, their sums, `fetches` (by array the
    accesses of a thread that fetch several elements as one), and the private memory of `threads` GPU threads; `counts` are the kernel's own at the same sizes."""
    updates = [_update(a) for a in atomics(kernel, counts.sizes)]
    most, ours = (requests(kernel, counts.sizes, counts.element_bytes, lanes) for lanes in ("none", "threads"))
    arrays = {a: {way: _mapped(getattr(most[a], way), getattr(ours[a], way)) for way in WAYS} for a in sorted(most)}
    return {
        "warp": WARP, "sector_bytes": SECTOR_BYTES, "threads": threads,
        "atomic_updates": sum(u["updates"] for u in updates), "atomic_instructions": _sum(u["instructions"] for u in updates), "atomics": updates,
        "sectors": {way: _sum(rows[way] for rows in arrays.values()) for way in WAYS} | {"arrays": arrays},
        "fetches": fetches(kernel, counts.sizes),
        "teams": _teams(kernel, counts),
        "private": {"bytes_per_thread": counts.thread_bytes, "allocated_bytes": counts.thread_bytes * threads, "written_bytes": counts.private_bytes},
    }


def _teams(kernel: Kernel, counts: Counts) -> dict[str, Any]:
    """What teams share: the threads and bytes of each region's team, how often teams wait, warp instructions that exchange registers, accesses to their arrays, and by reference
    the requests of one instruction of a warp where banks conflict."""
    kernel, census = fullest(kernel), Census(counts.sizes)
    words = counts.element_bytes // WORD            # an instruction moves one of them
    shared = {a.name: a for a in kernel.arrays if a.space == "shared"}
    regions = [{"threads": team.threads((r,)), "bytes": sum(counts.element_bytes * counts.footprint[x].elements for x in sorted(_born(r) & shared.keys()))}
               for r in team.regions(kernel.body)]
    clashes = [{"definition": c.definition, "reference": text(c.ref), "asked": c.asked, "least": c.least} for c in conflicts(kernel, counts.element_bytes) if c.asked > c.least]
    return {"regions": regions, "waits": sum(census.runs(loops, conditions) for loops, conditions in team.waits(kernel)),
            "shuffles": words * sum(n * census.runs(loops, conditions) for loops, conditions, n in team.shuffles(kernel)),
            **{way: sum(getattr(counts.accesses[x], way) for x in shared) for way in WAYS}, "conflicts": clashes}


def _born(r: Loop) -> set[str]:
    return {s.array for s in statements((r,)) if isinstance(s, Alloc)}


def _mapped(most: int, ours: int) -> dict[str, int]:
    return {"one_lane": most, "ours": ours, "full": -(-most // WARP)}


def _sum(rows: Iterable[Numbers]) -> dict[str, int]:
    rows = list(rows)
    return {m: sum(r[m] for r in rows) for m in ("one_lane", "ours", "full")}


def _update(a: Atomic) -> dict[str, Any]:
    return {"definition": a.definition, "array": a.array, "updates": a.updates, "instructions": _mapped(a.updates, a.spread)}


def show(data: Mapping[str, Any]) -> list[str]:
    """`account`'s dictionary as lines."""
    sectors, p = data["sectors"], data["private"]
    out = ["", f"on a GPU: warps of {data['warp']} lanes, sectors of {data['sector_bytes']} bytes",
           f"  atomic: {data['atomic_updates']:,} updates of elements; warp instructions: {_said(data['atomic_instructions'])}"]
    out += [f"    {u['array']} ({u['definition']}): {u['updates']:,}; warp instructions: {_said(u['instructions'])}" for u in data["atomics"]]
    for way, word in zip(WAYS, ("loaded", "stored"), strict=True):
        out += [f"  sectors {word}: {_said(sectors[way])}"]
        out += [f"    {a}: {rows[way]['ours']:,}, {rows[way]['ours'] / rows[way]['one_lane']:.3f} an element" for a, rows in sectors["arrays"].items() if rows[way]["one_lane"]]
    out += [f"  fetched as one: {a}: {n:,} accesses of a thread" for a, n in data["fetches"].items()]
    t = data["teams"]
    if t["regions"]:
        teams = "; ".join(f"{r['threads']:,} threads that share {r['bytes']:,} bytes" for r in t["regions"])
        out += [f"  teams: {teams}", f"    {t['waits']:,} waits, {t['shuffles']:,} shuffles, {t['loads']:,} loads and {t['stores']:,} stores of shared elements"]
        out += [f"    banks: {c['reference']} ({c['definition']}) takes {c['asked']} requests a warp instruction, not {c['least']}" for c in t["conflicts"]]
    return [*out, f"  private scratch: {p['bytes_per_thread']:,} bytes a thread, {p['allocated_bytes']:,} for {data['threads']:,} threads; {p['written_bytes']:,} bytes written"]


def _said(n: Numbers) -> str:
    return f"{n['one_lane']:,} with one active lane, {n['ours']:,} as our threads run, {n['full']:,} with full warps"
