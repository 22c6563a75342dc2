"""In: a kernel whose teams share arrays. Out: how many times the shared memory is asked for one instruction of a warp, by reference.

Shared memory has 32 banks of 4 bytes; words in different banks come at once, different words of one bank one after the other, and
lanes that want the same word get it together. Elements of 8 bytes are asked for by half a warp at a time. Indices are affine in the
numbers of the threads, and everything else is the same for all lanes of an instruction, which turns the banks and nothing else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product

from moapipe.algebra.index import affine, gamma_row
from moapipe.algebra.scalar import Ref, Scalar, Var, references
from moapipe.loops.onf import Kernel, leaves
from moapipe.loops.team import Crew, crews, regions

BANKS, WORD, WARP = 32, 4, 32
"""Banks, bytes of a word, lanes of a warp."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """`asked`: times that the memory is asked for one instruction of the worst warp; `least`: for one whose lanes conflict nowhere."""

    definition: str
    ref: Ref
    asked: int
    least: int


def conflicts(k: Kernel, element_bytes: int) -> tuple[Conflict, ...]:
    """Every reference to a shared array, in the order of the text; the same reference of a leaf once."""
    shared = {a.name: a for a in k.arrays if a.space == "shared"}
    out: dict[Conflict, None] = {}
    for r in regions(k.body):
        for c in crews((r,)):
            for leaf, _, _ in leaves(c.body):
                for x in dict.fromkeys((leaf.target, *references(leaf.value))):
                    if x.array in shared:
                        asked, least = _worst(x, c, shared[x.array].shape, element_bytes)
                        out[Conflict(leaf.name, x, asked, least)] = None
    return tuple(out)


def _worst(x: Ref, c: Crew, shape: tuple[Scalar, ...], element_bytes: int) -> tuple[int, int]:
    """(asked, least) of the warp that asks most often."""
    form = affine(gamma_row(x.index, shape))
    steps = [form.get(Var(l.var), 0) for l in c.loops]
    places = [sum(s * n for s, n in zip(steps, numbers, strict=True)) for numbers in product(*map(range, c.extents))]
    warps = [places[k : k + WARP] for k in range(0, len(places), WARP)]
    return max(_asked(lanes, element_bytes) for lanes in warps), -(-len(warps[0]) * element_bytes // (BANKS * WORD))


def _asked(lanes: list[int], element_bytes: int) -> int:
    """Requests of one instruction: for each group of lanes that goes together, the most different words in one bank."""
    words = element_bytes // WORD
    group = WARP // words
    parts = [{place * words + i for place in lanes[k : k + group] for i in range(words)} for k in range(0, len(lanes), group)]
    return sum(max(Counter(w % BANKS for w in part).values()) for part in parts)
