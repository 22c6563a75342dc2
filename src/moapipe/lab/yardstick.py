"""In: a group's manifest. Out: copies of its largest input as participants: what the memory gives, in turn with the kernels.

Bandwidth beyond the caches belongs to everybody on the host and changes within minutes, so a share of it means something only
against a copy that was measured in the same turns. The loops are those that calibrate bandwidth.
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
from moapipe.loops.onf import Array, Assign, Kernel, Loop
from moapipe.targets.isa import isa_named

WAYS = ("plain", "stream")
"""How a copy stores: through the caches, which fetch the line first, or past them."""
BLOCK = 4096


def nest(way: str) -> Kernel:
    """The copy as a loop nest, to be counted and predicted like any other: blocks of a row of `elements`, shared out to the threads,
    in vectors."""
    at, left = op("+", op("*", "block", BLOCK), "i"), op("-", "elements", op("*", "block", BLOCK))
    row = Loop("i", Num(0), op("min", BLOCK, left), (Assign(Ref("to", (at,)), Ref("from", (at,)), (), "to"),), "lane")
    blocks = Loop("block", Num(0), op("//", op("+", "elements", BLOCK - 1), BLOCK), (row,), "parallel")
    arrays = (Array("from", (Var("elements"),), "input"), Array("to", (Var("elements"),), "output", stream=way == "stream"))
    return Kernel("copy", ("elements",), arrays, (blocks,))


def copying(way: str, manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """The manifest of a copy beside the builds that `manifest` is one of."""
    given = next(a for a in manifest["inputs"] if a["name"] == _largest(manifest, sizes)[0])
    return {
        "symbol": f"copy_{way}", "dtype": manifest["dtype"], "sizes": ["elements"], "inputs": [dict(given)],
        "outputs": [{"name": "to", "shape": ["elements"]}], "workspace": {"elements": "0", "arrays": []},
    }


def at_elements(point: Point, manifest: Mapping[str, Any]) -> Point:
    """The point with the copy's own size beside the kernel's."""
    return replace(point, sizes={**point.sizes, "elements": _largest(manifest, point.sizes)[1]})


def compiled(root: Path, machine: str, isa: str, dtype: str) -> Path:
    """The library. LabError when the compiler is missing or refuses."""
    row = isa_named(isa)
    return generated(f"copy-{isa}-{dtype}", text(row, dtype), root, machine, arguments(row, dtype))


def _largest(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[str, int]:
    """Name and elements of the largest input, the first of equals."""
    counts = {name: prod(shape) for name, shape in shapes(manifest, "inputs", sizes).items()}
    return max(counts.items(), key=lambda row: row[1])
