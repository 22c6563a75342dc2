"""Sectors that the instructions of a warp ask for: by hand on small loops, and the published block's counters, many of them exactly."""

import math
from dataclasses import replace

import pytest
from tests.loops import published_block
from tests.loops.nests import NESTS, array, loop, ref, sizes_for

from moapipe.algebra.scalar import op
from moapipe.loops.cost import count
from moapipe.loops.onf import Accumulate, Alloc, Assign, Kernel
from moapipe.loops.warp import Requests, requests

SIZES = {"B": 2, "N": 256, "D": 64, "F": 256}
LOADS = {132: 106_496, 141: 6_815_744, 154: 14_876_672, 178: 106_496, 187: 29_392_896, 206: 63_340_544, 239: 223_232, 254: 8_192, 258: 54_853_632,
         288: 15_728_640, 307: 223_232}  # fmt: skip
STORES = {132: 33_280, 141: 98_304, 154: 458_752, 178: 33_280, 187: 425_984, 206: 327_680, 239: 32_768, 254: 8_192, 258: 16_941_056, 288: 32_768, 307: 32_768}
"""Sectors of global loads and stores, l1tex__t_sectors_pipe_lsu_mem_global_op_ld and _st, job 21289516."""
EXACT = {132, 141, 178, 187, 254}
"""Launches whose loads come out to the last sector; in the others the compiler keeps or reloads what it may not know to be equal."""


def sums(k, lanes):
    found = requests(k, SIZES, 8, lanes).values()
    return sum(r.loads for r in found), sum(r.stores for r in found)


@pytest.mark.parametrize("line", published_block.LINES)
def test_the_published_block_asks_for_what_reductions_on_the_lanes_ask_for(line):
    k = published_block.block()
    k = replace(k, body=(k.body[published_block.LINES.index(line)],))
    low, found, high = (sums(k, lanes) for lanes in ("inner", "folds", "none"))
    assert found[1] == STORES[line]
    assert low[0] <= LOADS[line] <= high[0] and low[1] <= STORES[line] <= high[1]
    assert (found[0] == LOADS[line]) == (line in EXACT)
    assert found[0] == pytest.approx(LOADS[line], rel=0.31)


def walk(index, lanes, extent=64, element=8):
    """x[…] read along l by each of 5 rows, summed."""
    body = loop("i", 5, Alloc("s"), Assign(ref("s"), op("+", 0.0, 0.0), (), "s"), loop("l", extent, Accumulate("sum", ref("s"), ref("x", *index), (), "s")), kind="parallel")
    k = Kernel("walk", (), (array("x", "input", 64, 64), array("s", "register")), (body,))
    return requests(k, {}, element, lanes)["x"].loads


@pytest.mark.parametrize(("index", "element", "lanes", "sectors"), [
    (("i", "l"), 8, "inner", 5 * 16), (("i", "l"), 4, "inner", 5 * 8), (("l", "i"), 8, "inner", 5 * 64), (("i", 3), 8, "inner", 5 * 2),
    (("i", "l"), 8, "none", 5 * 64), (("i", 3), 8, "none", 5 * 64), (("i", "l"), 8, "folds", 5 * 16),
])  # fmt: skip
def test_stride_one_shares_stride_n_does_not_and_a_broadcast_is_one(index, element, lanes, sectors):
    assert walk(index, lanes, element=element) == sectors


def test_the_last_warp_may_be_short():
    assert walk(("l", 0), "inner", extent=33) == 5 * 33 and walk(("i", "l"), "inner", extent=33) == 5 * math.ceil(33 / 4)


def test_a_loop_that_folds_nothing_has_one_active_lane():
    k = Kernel("copy", ("n",), (array("x", "input", "n"), array("y", "output", "n")),
               (loop("o", 1, loop("i", "n", Assign(ref("y", "i"), ref("x", "i"), (), "y")), kind="parallel"),))  # fmt: skip
    assert requests(k, {"n": 64}, 8, "folds") == requests(k, {"n": 64}, 8, "none") == {"x": Requests(64, 0), "y": Requests(0, 64)}
    flat = replace(k, body=(replace(k.body[0].body[0], kind="parallel"),))
    assert requests(flat, {"n": 64}, 8, "folds") == requests(k, {"n": 64}, 8, "inner") == {"x": Requests(16, 0), "y": Requests(0, 16)}


@pytest.mark.parametrize("name", NESTS)
def test_one_active_lane_asks_for_no_more_than_the_accesses_and_more_lanes_for_less(name):
    k, sizes = NESTS[name], sizes_for(NESTS[name], 9)
    accesses, most, least = count(k, sizes, 8).accesses, requests(k, sizes, 8, "none"), requests(k, sizes, 8, "inner")
    for a, r in most.items():
        assert r.loads <= accesses[a].loads and r.stores == accesses[a].stores
        assert least[a].loads <= r.loads and least[a].stores <= r.stores
