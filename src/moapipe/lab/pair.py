"""In: a derivation. Out: C and Fortran of its loop nest under the same directives, side by side, and what differs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from moapipe.lab.derive import Derivation
from moapipe.targets.comparison import Comparison, Line, compare
from moapipe.targets.emit import emit, symbol
from moapipe.targets.table import PAIRS, target_named

WIDTH = 100
"""Characters of the left column; longer lines push the right one aside."""


def pair(d: Derivation) -> Comparison:
    """C and Fortran with the directives of the build's target, with the first model for a target without. TargetError where the loop
    nest cannot be written under directives."""
    b, kernel = d.build, d.schedule.kernel
    names = next((p for p in PAIRS if b.target in p), PAIRS[0])
    left, right = ((target_named(n), d.source.text if n == b.target else emit(kernel, n, b.isa, b.dtype).text) for n in names)
    return compare(kernel, left, right, symbol(kernel))


def document(d: Derivation) -> dict[str, Any]:
    """The comparison as data: rows of two lines (null where one has no partner), differences, whether the structure is the same."""
    c = pair(d)
    rows = [[l and asdict(l) for l in row] for row in c.rows]
    return {"onf_hash": d.schedule.hash, "same": c.same, "rows": rows, "differences": [asdict(x) for x in c.differences]}


def show(d: Derivation) -> str:
    """Two columns of structural lines, then a list of what differs."""
    c = pair(d)
    lines = [f"{written(a):<{WIDTH}}{'│' if a and b else '≠'} {written(b)}".rstrip() for a, b in c.rows]
    told = [f"  {x.what}: {x.left}    │ {x.right}" for x in c.differences]
    verdict = f"the same structure: {len(c.rows)} lines" if c.same else f"{sum(not (a and b) for a, b in c.rows)} of {len(c.rows)} lines have no partner"
    return "\n".join([f"loop nest {d.schedule.hash}: {verdict}", "", *lines, "", "what differs", *told])


def written(line: Line | None) -> str:
    return f"{line.number:>4} {'    ' * line.depth}{line.text}" if line else ""
