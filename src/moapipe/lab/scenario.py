"""In: a kernel file, a variant, its tile parameters. Out: the cases that validation runs: sizes, kinds of input, numbers of threads.

Sizes sit on the edges: 1, 2, V±1, tile±1, 2·tile+1, and 0 on every axis in turn. Every value of every axis occurs, combined with
the other axes' values in shuffled order, so axes that belong together (q_len and kv_len) also differ; and all axes are large at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Literal

from moapipe.lab.kernel import KernelFile

Level = Literal["fast", "full"]
FEATURES = (1, 3, 40, 64, 96, 128)
BATCHES = (1, 2, 3)
MIDDLE = 40
WORK = 1 << 25  # points of the largest cases: extended precision takes tens of nanoseconds for each
LARGEST = 520  # beyond 2·tile+1 of every attention tile; larger tiles are reached with tiny tiles
THREADS = (1, 2, 3)
ROUNDS = {"fast": 1, "full": 3}
FAST_SHARE = 3  # the fast level takes every third usual-tile case, and all of the tiny ones


@dataclass(frozen=True)
class Scenario:
    """One case: sizes in ABI order, the kind of input (`plain` or a row of the kernel's STRESS), the seed of its numbers."""

    sizes: tuple[tuple[str, int], ...]
    kind: str
    seed: int
    threads: tuple[int, ...] = THREADS

    @property
    def label(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.sizes) + ("" if self.kind == "plain" else f", {self.kind}")


def scenarios(kernel: KernelFile, variant: str, params: Mapping[str, int], level: Level, *, tiny: bool) -> tuple[Scenario, ...]:
    """The cases of one build in a fixed order; the same for every language, so oracles are shared."""
    values = {size: edges(parameter, tiles(kernel, variant, params)) for parameter, sizes in kernel.parameters.items() for size in sizes}
    values = {s: values[s] for s in kernel.sizes}
    found = list(dict.fromkeys(_combined(values, ROUNDS[level])))
    if level == "fast" and not tiny:
        found = found[::FAST_SHARE]
    large = list(_large(values))
    rows = list(dict.fromkeys([*_empty(values), *found, *large]))
    stressed = [*large, *(found[::2] if level == "full" else ())]
    kinds = getattr(kernel.module, "STRESS", {})
    return tuple(Scenario(row, kind, k) for kind in ("plain", *kinds) for k, row in enumerate(rows if kind == "plain" else stressed))


def tiles(kernel: KernelFile, variant: str, params: Mapping[str, int]) -> tuple[int, ...]:
    """V, and the values of the tile parameters that the variant's lifts name, directly or through its own `params`."""
    block = kernel.variant(variant)
    text = json.dumps([block.lifts, {k: v for k, v in block.params.items()}])
    named = {p for p in params if re.search(rf"\b{p}\b", text)}
    return tuple(sorted({params["V"], *(params[p] for p in named)}))


def edges(parameter: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Values of an axis: what its parameter's name stands for, and both sides of every tile."""
    beside = {n for t in sizes for n in (t - 1, t, t + 1, 2 * t + 1)}
    match parameter:
        case "B" | "G" | "heads":
            return BATCHES
        case "d" | "pairs":
            chosen = {*FEATURES, *(n for n in beside if n <= max(FEATURES))}
        case _:
            chosen = {1, 2, *beside}
    return tuple(sorted(n for n in chosen if 1 <= n <= LARGEST))


def _combined(values: Mapping[str, tuple[int, ...]], rounds: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every value of every axis at least once a round, combined in an order shuffled by a fixed seed."""
    for k in range(rounds):
        random = Random(k)
        longest = max(map(len, values.values()))
        columns = []
        for options in values.values():
            column = [options[i % len(options)] for i in range(longest)]
            random.shuffle(column)
            columns.append(column)
        for row in zip(*columns, strict=True):
            yield tuple(zip(values, row, strict=True))


def _large(values: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[tuple[str, int], ...]]:
    """All axes at their largest, then each at half of it, the features at an odd middle: a row meets several tiles of every axis,
    also under a causal mask. What only several tiles show (a missing rescaling) shows here."""
    most = {s: MIDDLE if options[-1] == max(FEATURES) else options[-1] for s, options in values.items()}
    while prod(most.values()) > WORK:
        widest = max(most, key=lambda s: most[s])
        most[widest] = most[widest] * 3 // 4
    for smaller in (None, *values):
        yield tuple((s, n // 2 + 1 if s == smaller else n) for s, n in most.items())


def _empty(values: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[tuple[str, int], ...]]:
    """One axis of length 0 at a time, then all of them."""
    small = {s: min(3, options[-1]) for s, options in values.items()}
    for zero in values:
        yield tuple({**small, zero: 0}.items())
    yield tuple((s, 0) for s in values)
