"""In: published measurements, the kernel files. Out: what we predict for each of them, beside what the papers predicted and measured,
and a verdict.

Our prediction is made from the loop nest of the variant with the published structure, on the published processor, and is a pair of
bounds (loops/lockstep.py); nothing in it is fitted. `moapipe published` prints the table, and an archive has it as a page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from moapipe.lab.derive import denotation, derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, names, sizes_at
from moapipe.loops import lockstep
from moapipe.loops.atomic import atomics
from moapipe.loops.cost import count
from moapipe.loops.lockstep import Launch
from moapipe.loops.onf import Kernel, definitions, written
from moapipe.loops.share import lower
from moapipe.report.published import Figure, Published, Quantity
from moapipe.targets.isa import element_bytes

ISA = "avx512"
"""Whose tiles the nests have; the loops of the published structures do not depend on it."""
WIDTH = 150
Bounds = tuple[float, float]


def rows(published: Published, root: Path) -> list[dict[str, Any]]:
    """One row a figure whose kernel `root` has: name, unit, what the papers predicted (None: nothing), our bounds and their middle,
    what was measured, the verdict in words and whether it holds."""
    here = [f for f in published.figures if f.kernel in names(root)]
    by_name = {f.name: f for f in published.figures}
    device = lockstep.Device(**published.device.model_dump(exclude={"name"}))
    return [_row(f, by_name.get(f.over), root, device) for f in here]


def _row(f: Figure, over: Figure | None, root: Path, device: lockstep.Device) -> dict[str, Any]:
    low, high = _predicted(f, root, device)
    middle = (low + high) / 2
    if over is not None:
        other = _predicted(over, root, device)
        (low, high), middle = sorted((low / other[0], high / other[1])), middle / (sum(other) / 2)
    return {
        "name": f.name, "build": " ".join(filter(None, (f.kernel, f.form, f.variant))), "at": " ".join(f"{k}={v}" for k, v in f.at.items()),
        "unit": "" if over is not None else UNITS.get(f.quantity, "B"), "published": f.published, "low": low, "high": high, "middle": middle,
        "measured": f.measured, "bounded": f.within is None, "job": f.job, "note": f.note, **_verdict(f, low, high, middle),
    }


def _verdict(f: Figure, low: float, high: float, middle: float) -> dict[str, Any]:
    if f.within is None:
        held = low <= f.measured <= high
        return {"held": held, "verdict": "within the bounds" if held else f"outside the bounds by {_off(low if f.measured < low else high, f.measured)}"}
    if f.within == 0:
        held = low == high == f.measured
        return {"held": held, "verdict": "equal" if held else f"not equal, {_off(middle, f.measured)}"}
    return {"held": abs(middle / f.measured - 1) <= f.within, "verdict": f"{_off(middle, f.measured)}, owed {f.within:.0%}"}


def _off(ours: float, measured: float) -> str:
    return f"{ours / measured - 1:+.1%}"


# ------------------------------------------------------------------ what was counted


def _predicted(f: Figure, root: Path, device: lockstep.Device) -> Bounds:
    """Our bounds of one figure."""
    nest, sizes = _nest(f, root), sizes_at(load(f.kernel, root), f.at)
    return QUANTITIES[f.quantity](f, nest, sizes, device)


def _nest(f: Figure, root: Path) -> Kernel:
    """The loop nest of the variant, or where none is named the naive one."""
    if not f.variant:
        return lower(denotation(f.kernel, f.form, root).dnf)
    return derive(Build(f.kernel, f.form, f.variant, "c", ISA, f.dtype), root).schedule.kernel


def _cold(f: Figure, nest: Kernel, sizes: Mapping[str, int], device: lockstep.Device) -> Bounds:
    """What the definitions of one launch read and do not make, each element once: what comes in where caches are cold."""
    body = tuple(s for s in nest.body if definitions((s,)) & set(f.launch))
    c = count(replace(nest, body=body), sizes, element_bytes(f.dtype))
    total = c.element_bytes * sum(t.read for name, t in c.footprint.items() if name not in written(body) and name not in c.parameters)
    return total, total


def _updates(f: Figure, nest: Kernel, sizes: Mapping[str, int], device: lockstep.Device) -> Bounds:
    """Element updates that several iterations share, which is warp instructions with one active lane each."""
    total = sum(a.updates for a in atomics(nest, sizes) if f.launch in ("", a.definition))
    return total, total


def _bytes(of: Callable[[Launch], tuple[int, int]]) -> Callable[[Figure, Kernel, Mapping[str, int], lockstep.Device], Bounds]:
    def bounds(f: Figure, nest: Kernel, sizes: Mapping[str, int], device: lockstep.Device) -> Bounds:
        each = [of(x) for x in _launches(nest, tuple(sizes.items()), element_bytes(f.dtype), device) if f.launch in ("", *x.names)]
        return sum(low for low, _ in each), sum(high for _, high in each)

    return bounds


@lru_cache(maxsize=64)
def _launches(nest: Kernel, sizes: tuple[tuple[str, int], ...], size: int, device: lockstep.Device) -> tuple[Launch, ...]:
    return lockstep.launches(nest, dict(sizes), size, device)


QUANTITIES: Mapping[Quantity, Callable[[Figure, Kernel, Mapping[str, int], lockstep.Device], Bounds]] = {
    "updates": _updates,
    "cold": _cold,
    "read": _bytes(lambda x: x.read),
    "written": _bytes(lambda x: x.written),
    "moved": _bytes(lambda x: (x.read[0] + x.written[0], x.read[1] + x.written[1])),
}
UNITS: Mapping[Quantity, str] = {"updates": "updates"}


# ------------------------------------------------------------------ for readers


def quantity(value: float | None, unit: str) -> str:
    """`142.3 MB`, `536,870,912`, `1.970`; a dash for None."""
    if value is None:
        return "–"
    if unit != "B":
        return f"{value:,.0f}" if unit else f"{value:.3f}"
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:,.4g} {prefix}B"
    return f"{value:,.0f} B"


def bounds(row: Mapping[str, Any]) -> str:
    """Both bounds, with their middle where that is what is judged, or the one number that both are."""
    low, middle, high = (quantity(row[k], row["unit"]) for k in ("low", "middle", "high"))
    if low == high:
        return low
    return f"{low} to {high}" if row["bounded"] else f"{middle} ({low} to {high})"


def text(found: Iterable[Mapping[str, Any]], device: str) -> str:
    """The table, and a line for each figure that our prediction misses."""
    found = list(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"Published measurements on {device}", title_justify="left")
    for header, justify in (("figure", "left"), ("at", "left"), ("their prediction", "right"), ("our prediction", "right"), ("their measurement", "right"),
                            ("", "left"), ("verdict", "left")):  # fmt: skip
        table.add_column(header, justify=justify)  # type: ignore[arg-type]
    for r in found:
        table.add_row(r["name"], r["at"], quantity(r["published"], r["unit"]), bounds(r), quantity(r["measured"], r["unit"]), "holds" if r["held"] else "MISSES", r["verdict"])
    out = io.StringIO()
    Console(file=out, width=WIDTH, no_color=True).print(table)
    missed = [f"missed: {r['name']}: {r['note'] or 'no explanation is known'}" for r in found if not r["held"]]
    return out.getvalue() + "\n".join([f"{sum(r['held'] for r in found)} of {len(found)} hold", *missed])
