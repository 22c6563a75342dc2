"""In: a manifest for a GPU, sizes. Out: its launches in order, with numbers for every expression: what to start, and what it is given.

The manifest tells what the text's own entry point does, so that whoever has only the device binary can do it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from moapipe.algebra.index import evaluate, parse
from moapipe.errors import LabError
from moapipe.targets.simt import ELEMENTS


@dataclass(frozen=True, slots=True)
class Launch:
    """`blocks` of `block` threads run `function` with the named buffers (`work`: the workspace), then the integers, 64 bits each."""

    function: str
    blocks: int
    block: int
    buffers: tuple[str, ...]
    integers: tuple[int, ...]


def launches(manifest: Mapping[str, Any], sizes: Mapping[str, int], threads: int) -> tuple[Launch, ...]:
    """Every launch of one call with `threads` GPU threads; those of no block are left out, as a device would refuse them. LabError where an
    array has more elements than the text can count."""
    fit(manifest, sizes)
    return tuple(l for l in _launches(manifest["launches"], {**sizes, "threads": threads}) if l.blocks)


def fit(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """LabError where an index would not fit in 32 bits, in which procedures count."""
    arrays = {a["name"]: prod(_value(n, sizes) for n in a["shape"]) for a in (*manifest["inputs"], *manifest["outputs"])}
    arrays |= {a["name"]: _value(a["elements"], sizes) for a in manifest["workspace"]["arrays"]}
    name, most = max(arrays.items(), key=lambda row: row[1], default=("", 0))
    if most > ELEMENTS:
        raise LabError(f"{name} has {most:,} elements; texts for GPUs count in 32 bits, up to {ELEMENTS:,}", where=manifest["symbol"],
                       hint="share the batch out among several calls, or take a variant that keeps less")


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
