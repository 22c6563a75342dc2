"""In: a kernel at given sizes. Out: its three counts in one plain dictionary, and that as text: what `--stage cost` prints.

Every number is a whole number; bytes stand beside elements. docs/cost_model.md defines the counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from moapipe.errors import LiftError
from moapipe.loops.atomic import atomics
from moapipe.loops.closed import closed_forms
from moapipe.loops.cost import count
from moapipe.loops.onf import Kernel
from moapipe.loops.page import walks
from moapipe.loops.tally import Counts
from moapipe.loops.traffic import Reuse

CAPACITIES = {"32 KiB": 32 << 10, "1 MiB": 1 << 20, "32 MiB": 32 << 20}
"""Where no machine is given: the usual three levels of a core, a core and a socket."""

Bound = Callable[[float], float]


def account(
    kernel: Kernel, sizes: Mapping[str, int], element_bytes: int, *, threads: int = 1, capacities: Mapping[str, int] = CAPACITIES, line_bytes: int = 64,
    lower_bound: Bound | None = None,
) -> dict[str, Any]:
    """Sizes, accesses, footprint, private scratch, traffic past each capacity, work, parallel regions, shared updates and walks
    under TLB pressure, as JSON can hold them.

    `capacities` maps a level's name to bytes; each is taken as one thread's own. `lower_bound` gives the elements that must pass a
    capacity in elements, whatever the order; it stands beside every count of bytes.
    """
    c = count(kernel, sizes, element_bytes, threads=threads)
    least = _least(lower_bound, min(a.bytes(element_bytes) for a in kernel.arrays))
    reuse = Reuse(kernel, sizes, element_bytes, line_bytes, threads=threads)
    past = {level: reuse.past(capacity) for level, capacity in capacities.items()}
    return {
        "kernel": kernel.name, "sizes": c.sizes, "element_bytes": element_bytes, "narrow": list(c.narrow), "threads": threads,
        "accesses": {"loaded_bytes": c.loaded_bytes, "stored_bytes": c.stored_bytes, "arrays": _accesses(c)},
        "footprint": {**least(inf), "read_bytes": c.footprint_read_bytes, "written_bytes": c.footprint_written_bytes, "private_bytes": c.private_bytes,
                      "workspace_bytes": c.workspace_bytes, "bytes_per_thread": c.thread_bytes, "parameters": list(c.parameters), "arrays": _footprint(c)},
        "traffic": {level: {"capacity_bytes": capacities[level], "line_bytes": line_bytes, **least(capacities[level]), **_sum(asdict(t) for t in arrays.values()),
                            "arrays": {a: _bytes(asdict(t)) for a, t in arrays.items()}} for level, arrays in past.items()},
        "flops": c.flops, "exps": c.exps, "calls": c.calls, "work": c.work,
        "regions": [asdict(r) for r in c.regions], "barriers": c.barriers,
        "atomics": [asdict(a) for a in atomics(kernel, c.sizes)],
        "page_walks": [asdict(w) | {"pressure": w.pressure} for w in walks(kernel, c.sizes, element_bytes)],
    }


def _least(lower_bound: Bound | None, element_bytes: int) -> Callable[[float], dict[str, int]]:
    """{"lower_bound_bytes": …} past a capacity in bytes; nothing where no bound is known."""
    if lower_bound is None:
        return lambda capacity: {}
    return lambda capacity: {"lower_bound_bytes": round(lower_bound(capacity / element_bytes) * element_bytes)}


def _accesses(c: Counts) -> dict[str, dict[str, Any]]:
    return {n: {"space": a.space, "loads": a.loads, "stores": a.stores, "loaded_bytes": c.bytes(n, a.loads),
                "stored_bytes": c.bytes(n, a.stores)} for n, a in c.accesses.items()}


def _footprint(c: Counts) -> dict[str, dict[str, Any]]:
    return {n: {**asdict(t), "read_bytes": c.bytes(n, t.read), "written_bytes": c.bytes(n, t.written),
                "allocated_bytes": c.bytes(n, t.elements)} for n, t in c.footprint.items()}


def _bytes(parts: Mapping[str, int]) -> dict[str, int]:
    return {f"{name}_bytes": n for name, n in parts.items()}


def _sum(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    out = {"read_bytes": 0, "allocated_bytes": 0, "written_bytes": 0, "met_bytes": 0}
    for r in rows:
        for name, n in _bytes(r).items():
            out[name] += n
    return out


def show(data: Mapping[str, Any], style: str = "text") -> str:
    """`account`'s dictionary as `json` or as `text`: one table a count, arrays down, whole numbers."""
    match style:
        case "json":
            return json.dumps(data, indent=2, allow_nan=False) + "\n"
        case "text":
            return "\n".join(_text(data)) + "\n"
        case _:
            raise LiftError(f"no format {style}", hint="text or json")


def _text(data: Mapping[str, Any]) -> list[str]:
    sizes = " ".join(f"{k}={v}" for k, v in data["sizes"].items())
    foot, at = data["footprint"], data["accesses"]
    narrow = f" ({data['element_bytes'] // 2} of {', '.join(data['narrow'])})" if data["narrow"] else ""
    out = [f"{data['kernel']}  {sizes}  {data['element_bytes']} bytes an element{narrow}, {data['threads']} threads", "", "accesses: what the loops execute"]
    out += _table(("array", "space", "loads", "stores", "loaded bytes", "stored bytes"),
                  [(n, *a.values()) for n, a in at["arrays"].items()],
                  ("memory", "", "", "", at["loaded_bytes"], at["stored_bytes"]))
    out += ["", "footprint: distinct data (private arrays: added up over their lives)"]
    out += _table(("array", "space", "lives", "read", "written", "read bytes", "written bytes", "allocated bytes"),
                  [(n, f["space"], f["lives"], f["read"], f["written"], f["read_bytes"], f["written_bytes"], f["allocated_bytes"])
                   for n, f in foot["arrays"].items()],
                  ("in and out", "", "", "", "", foot["read_bytes"], foot["written_bytes"], ""))
    out += [f"  private scratch written: {foot['private_bytes']:,} bytes; private memory: {foot['bytes_per_thread']:,} bytes a thread; "
            f"workspace: {foot['workspace_bytes']:,} bytes"]
    if foot["parameters"]:
        out += [f"  parameters, left out of all totals: {', '.join(foot['parameters'])}"]
    if "lower_bound_bytes" in foot:
        out += [f"  lower bound: {foot['lower_bound_bytes']:,} bytes must come in and go out, whatever the capacity"]
    out += ["", "traffic past a capacity, in bytes"]
    out += _table(("level", "read", "allocated by stores", "written", "lower bound"),
                  [(level, t["read_bytes"], t["allocated_bytes"], t["written_bytes"], t.get("lower_bound_bytes", "unknown"))
                   for level, t in data["traffic"].items()], None)  # fmt: skip
    out += ["", f"work: {data['flops']:,} flops, {data['exps']:,} exponentials, {data['barriers']:,} barriers"]
    for place, calls in data["work"].items():
        out += [f"  {place}: " + ", ".join(f"{n:,} {name}" for name, n in calls.items())]
    for k, r in enumerate(data["regions"]):
        out += [f"  parallel region {k}: {r['trips']:,} iterations, {r['schedule']}, the busiest thread gets {r['busiest']:.4f} of the work"]
    return out + _shared(data["atomics"]) + _pressed(data["page_walks"])


def _shared(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Updates that iterations share, and what they cost in warp instructions under each choice of lanes."""
    out = []
    for a in rows:
        lanes = ", ".join(f"{n:,} with {var} on the lanes" for var, n in a["instructions"].items())
        out += ["", f"atomic: {a['definition']} updates {a['array']} {a['updates']:,} times, by several iterations of a parallel loop",
                f"  warp instructions: {a['updates']:,} with one active lane, {lanes}"]
    return out


def _pressed(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [line for w in rows for line in ("", f"page walks: {w['definition']} walks {w['array']} along {w['loop']} over {w['pages']:,} pages, "
            f"{w['elements']:.3g} elements of each; the TLB holds {w['entries']:,}")]  # fmt: skip


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]], total: tuple[Any, ...] | None) -> list[str]:
    cells = [[f"{x:,}" if isinstance(x, int) else str(x) for x in row] for row in (head, *rows, *([total] if total else []))]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    texts = {k for k, x in enumerate(rows[0]) if isinstance(x, str)} if rows else {0}
    return ["  " + "  ".join(x.ljust(w) if k in texts else x.rjust(w) for k, (x, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in cells]


def show_closed(kernel: Kernel) -> str:
    """The counts as expressions in the sizes."""
    forms = closed_forms(kernel).to_json()
    title = {"loads": "loads", "stores": "stores", "calls": "calls", "read": "distinct elements read", "written": "distinct elements written"}
    return "\n".join(line for part, rows in forms.items() for line in (title[part], *(f"  {n} = {e}" for n, e in rows.items()), "")).rstrip() + "\n"
