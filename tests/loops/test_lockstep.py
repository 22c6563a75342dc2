"""Many iterations at once: bounds against a cache that is fed in step, and what the published programs' structures come to."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, zip_longest
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tests.loops import published, published_block
from tests.loops.nests import array, loop, ref

from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import op
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, names, scan, sizes_at
from moapipe.loops.atomic import atomics
from moapipe.loops.cost import count
from moapipe.loops.interpret import run
from moapipe.loops.lockstep import Device, Lockstep, launches, region
from moapipe.loops.onf import Accumulate, Assign, Kernel, leaves
from moapipe.loops.traffic import simulate

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {k.name: k for k in (published.forward(), published.split_passes(), published.split_passes_owner())}
PASSES = {f"{name} {s.body[0].name if hasattr(s.body[0], 'name') else k}": replace(kernel, body=(s,)) for name, kernel in KERNELS.items()
          for k, s in enumerate(kernel.body)}  # fmt: skip
A100 = Device(cache_bytes=40 << 20, parts=2, sector_bytes=32, blocks=7 * 108)


def total(parts):
    return sum(t.read + t.allocated + t.written for t in parts.values())


def in_step(k: Kernel, sizes, blocks):
    """The trace of the one region of `k`, `blocks` consecutive iterations at a time, each a step in turn; private arrays one place each."""
    inputs = {a.name: np.ones([evaluate(s, sizes) for s in a.shape]) for a in k.arrays if a.space == "input"}
    trace = [(a, 0, life * prod(evaluate(s, sizes) for s in k.array(a).shape) + at if k.array(a).space == "private" else at, store)
             for a, life, at, store in run(k, sizes, inputs, trace=True).trace if k.array(a).space != "register"]  # fmt: skip
    iterations = prod(evaluate(s.hi, sizes) for s in region(k.body[0]))
    own = [trace[i : i + len(trace) // iterations] for i in range(0, len(trace), len(trace) // iterations)]
    waves = [own[i : i + blocks] for i in range(0, iterations, blocks)]
    return list(chain.from_iterable(chain.from_iterable(zip_longest(*wave)) for wave in waves))


@pytest.mark.parametrize("size", [(2, 12, 4), (1, 9, 5)])
@pytest.mark.parametrize("blocks", [1, 3, 8, 40])
@pytest.mark.parametrize("name", PASSES)
def test_the_shared_bound_lies_between_a_cache_of_twice_and_of_half_the_size_that_is_fed_in_step(name, blocks, size):
    """From the capacity up that holds what one leaf of a wave touches."""
    k, sizes = PASSES[name], dict(zip("BND", size, strict=True))
    b, n = sizes["B"], sizes["N"]
    at_once = blocks if blocks < n else n * min(b, blocks // n)
    trace = in_step(k, sizes, at_once)
    for c in [4 * 32 * at_once * 2**q for q in range(0, 9, 2)]:
        (_, found), = Lockstep(k, sizes, 8, Device(c, 1, 32, blocks), apart=False).launches()
        assert total(simulate(k, trace, 8, 2 * c, 32)) <= total(found) <= 2 * total(simulate(k, trace, 8, c // 2, 32)), c


@pytest.mark.parametrize("name", PASSES)
def test_apart_is_never_less_than_shared(name):
    for blocks in (1, 7, 64):
        (found,) = launches(PASSES[name], {"B": 2, "N": 40, "D": 8}, 8, Device(4096, 2, 32, blocks))
        assert found.read[0] <= found.read[1] and found.written[0] <= found.written[1]


def both(k, n):
    """Bytes read and written over all launches, each a pair of bounds."""
    found = launches(k, {"B": 2, "N": n, "D": 64}, 8, A100)
    return tuple(np.array([x.read for x in found]).sum(0)), tuple(np.array([x.written for x in found]).sum(0))


def test_the_published_forward_writes_its_private_rows():
    """A + a row of scores for each query + Out, 136.3 MB; job 21202356 measured 142.3 MB written and 9.045 MB read."""
    read, written = both(KERNELS["forward"], 2048)
    assert written == (136_314_880, 136_314_880) and written[0] == pytest.approx(142.333e6, rel=0.10)
    assert read[0] <= 9.045e6 <= read[1]


def test_the_column_walks_of_the_published_passes():
    """Job 21299223: 45.60 and 89.83 GB, ratio 1.97; the row walk of kernel 268 0.2956 GB."""
    totals = {}
    for name, measured in (("split_passes", 45.6007e9), ("split_passes_owner", 89.8333e9)):
        read, written = both(KERNELS[name], 4096)
        low, high = read[0] + written[0], read[1] + written[1]
        assert low <= measured <= high
        totals[name] = (low + high) / 2
    assert totals["split_passes_owner"] / totals["split_passes"] == pytest.approx(1.97, rel=0.05)
    walks = {x.names: x.read for x in launches(KERNELS["split_passes_owner"], {"B": 2, "N": 4096, "D": 64}, 8, A100)}
    assert walks["GQ",] == pytest.approx((0.27e9, 0.27e9), rel=0.05)
    for name in ("GV", "GK"):
        assert 60 <= walks[name,][0] / (2 * 4096**2 * 8) <= 70 and walks[name,][1] >= 3.9 * walks[name,][0]


def test_the_writes_of_the_published_passes_hold_private_rows_too():
    """Measured 1.358 and 1.368 GB: A, GS and the private rows of both row passes."""
    for name, measured in (("split_passes", 1.3585e9), ("split_passes_owner", 1.3678e9)):
        assert both(KERNELS[name], 4096)[1][0] == pytest.approx(measured, rel=0.05)


def test_row_loop_outside_and_features_inside_walks_rows():
    """The cure: GV by tiles of columns with the features inside reads A about once."""
    gv = Accumulate("sum", ref("GV", "b", "c", "d"), op("*", ref("A", "b", "r", "c"), ref("dO", "b", "r", "d")), (), "GV")
    start = loop("d0", "D", Assign(ref("GV", "b", "c", "d0"), op("*", 0.0, 1.0), (), "GV"))
    body = loop("b", "B", loop("c", "N", start, loop("r", "N", loop("d", "D", gv)), kind="parallel"), kind="parallel")
    arrays = (array("dO", "input", "B", "N", "D"), array("A", "input", "B", "N", "N"), array("GV", "output", "B", "N", "D"))
    (found,) = launches(Kernel("rows", ("B", "N", "D"), arrays, (body,)), {"B": 2, "N": 4096, "D": 64}, 8, A100)
    assert found.read[0] == pytest.approx(2 * 4096**2 * 8, rel=0.1)


MEASURED = {132: 0.276736, 141: 0.368128, 154: 1.127168, 178: 0.274560, 187: 0.931328, 206: 4.475008, 239: 0.809728, 254: 0.264832,
            258: 2.805120, 288: 1.254400, 307: 0.812288}  # fmt: skip
"""MB read from DRAM by each launch of the published block at N = 256, job 21289516."""


def test_the_cold_reads_of_the_published_block():
    """All eleven launches within 25 %, where four are owed; the sum, which the paper missed by 1.28, within 6 %."""
    sizes = {"B": 2, "N": 256, "D": 64, "F": 256}
    found = dict(zip(published_block.LINES, launches(published_block.block(), sizes, 8, A100), strict=True))
    assert {line: x.read[0] / 1e6 for line, x in found.items()} == pytest.approx(MEASURED, rel=0.25)
    assert sum(x.read[0] for x in found.values()) / 1e6 == pytest.approx(sum(MEASURED.values()), rel=0.06)


def test_the_shared_updates_of_the_published_block():
    """Exactly 3·n·d·d_ff, 3·n·d·d, n·d, n·d at n = 512, job 21289516."""
    k = published_block.block()
    counts = {line: sum(a.updates for a in atomics(replace(k, body=(s,)), {"B": 2, "N": 256, "D": 64, "F": 256}))
              for line, s in zip(published_block.LINES, k.body, strict=True)}  # fmt: skip
    assert {line: n for line, n in counts.items() if n} == {206: 25_165_824, 288: 6_291_456, 239: 32_768, 307: 32_768}


VARIANTS = [(name, variant) for name in names(ROOT) for variant in scan(name, ROOT).variants]


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_variant_has_bounds_that_hold_what_must_move_and_no_update_is_shared_in_secret(name, variant):
    file = load(name, ROOT)
    form = next(f for f in file.forms if f in (file.variant(variant).forms or file.forms))
    k = derive(Build(name, form, variant, file.variant(variant).targets[0], "avx2", "f64"), ROOT).schedule.kernel
    sizes = sizes_at(file, {p: {"B": 2, "d": 64}.get(p, 96) for p in file.parameters})
    found, c = launches(k, sizes, 8, A100), count(k, sizes, 8)
    assert sum(x.read[0] for x in found) >= c.footprint_read_bytes and sum(x.written[0] for x in found) >= c.footprint_written_bytes
    assert all(x.read[0] <= x.read[1] and x.written[0] <= x.written[1] for x in found)
    said = {leaf.target.array for leaf, _, _ in leaves(k.body) if isinstance(leaf, Accumulate) and leaf.atomic}
    assert {a.array for a in atomics(k, sizes)} == said
