"""In: a group's manifest. Out: yardsticks, participants that only move data: what the memory gives, in turn with the kernels.

Bandwidth beyond the caches belongs to everybody on the host and changes within minutes, so a share of it means something only
against data that were moved in the same turns; and how fast they move just before a launch, a prediction may know
(`lab.foresight`). The loops are those that calibrate bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from moapipe.algebra.scalar import Num, Ref, Var, op
from moapipe.lab.calibrate import arguments, text
from moapipe.lab.experiment import Point
from moapipe.lab.library import shapes
from moapipe.lab.program import generated
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Kernel, Loop
from moapipe.machine.rate import Way
from moapipe.targets.isa import isa_named

BLOCK = 4096
STORES: Mapping[Way, str] = {"read": "none", "copy": "plain", "stream": "stream"}
"""The kind of store of each yardstick, as the record names it."""


def nest(way: Way) -> Kernel:
    """What a yardstick does as a loop nest, to be counted and predicted like any other: blocks of a row of `elements`, shared out to
    the threads, in vectors."""
    at, left = op("+", op("*", "block", BLOCK), "i"), op("-", "elements", op("*", "block", BLOCK))
    source = Ref("from", (at,))
    leaf = Accumulate("sum", Ref("total", ()), source, (), "total") if way == "read" else Assign(Ref("to", (at,)), source, (), "to")
    row = Loop("i", Num(0), op("min", BLOCK, left), (leaf,), "lane")
    start = (Alloc("total"), Assign(Ref("total", ()), Num(0.0), (), "total")) if way == "read" else ()
    blocks = Loop("block", Num(0), op("//", op("+", "elements", BLOCK - 1), BLOCK), (*start, row), "parallel")
    to = Array("total", (), "private") if way == "read" else Array("to", (Var("elements"),), "output", stream=way == "stream")
    return Kernel("yardstick", ("elements",), (Array("from", (Var("elements"),), "input"), to), (blocks,))


def moving(way: Way, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a yardstick beside the builds that `manifest` is one of."""
    outputs = [] if way == "read" else [{"name": "to", "shape": ["elements"]}]
    return {
        "symbol": f"yardstick_{way}", "dtype": manifest["dtype"], "sizes": ["elements"], "inputs": [{"name": "from", "shape": ["elements"]}],
        "outputs": outputs, "workspace": {"elements": "0", "arrays": []},
    }


def at_elements(way: Way, point: Point, manifest: Mapping[str, Any]) -> Point:
    """The point with a yardstick's own size beside the kernel's: as many elements as all inputs have together are read, as many as
    the largest has are copied, so that no more of them stays in a cache than of the kernel's."""
    counts = [prod(shape) for shape in shapes(manifest, "inputs", point.sizes).values()]
    return replace(point, sizes={**point.sizes, "elements": sum(counts) if way == "read" else max(counts)})


def compiled(root: Path, machine: str, isa: str, dtype: str) -> Path:
    """The library. LabError when the compiler is missing or refuses."""
    row = isa_named(isa)
    return generated(f"yardstick-{isa}-{dtype}", text(row, dtype), root, machine, arguments(row, dtype))
