"""The cost model: equal to the interpreter wherever that can run, and to the published numbers where it cannot."""

from __future__ import annotations

import json
from time import process_time

import pytest
from tests.loops.nests import NESTS, array, loop, nest, ref, sizes_for
from tests.loops.test_interpret import inputs_for

from moapipe.algebra.scalar import op, scalar
from moapipe.errors import LiftError
from moapipe.loops.cost import count, regions
from moapipe.loops.interpret import run
from moapipe.loops.onf import Accumulate, Alloc, Assign, If, Kernel, Loop
from moapipe.loops.tally import Counts

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 24, 25)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", NESTS)
def test_counts_equal_the_interpreter(name, n):
    k = NESTS[name]
    sizes = sizes_for(k, n)
    counted, ran = count(k, sizes, 8), run(k, sizes, inputs_for(k, sizes))
    assert counted.accesses == ran.accesses
    assert counted.footprint == ran.footprint
    assert counted.calls == ran.calls


def test_published_footprint_of_the_stored_weights():
    c = count(NESTS["row_attention"], {"H": 2, "n": 2048, "d": 64}, 8)
    assert c.footprint_read_bytes == 6_291_456
    assert c.footprint_written_bytes == 69_206_016
    assert c.footprint["s"].written * 8 == 67_108_864
    assert c.footprint["s"].lives == 4096 and c.footprint["s"].elements == 2048
    assert c.parameters == ("scale",) and c.footprint["scale"].read == 1
    assert c.accesses["scale"].loads == 2 * 2048 * 2048


@pytest.mark.parametrize("name", NESTS)
def test_counting_does_not_take_longer_for_larger_sizes(name):
    """n = 16384 has 10⁸ times the points of n = 2; a count that walked them would not end."""
    k = NESTS[name]
    start = process_time()
    c = count(k, sizes_for(k, 16384, 64), 8)
    assert process_time() - start < 5 and c.loaded_bytes > 0


@pytest.mark.parametrize("name", NESTS)
def test_counts_survive_json(name):
    c = count(NESTS[name], sizes_for(NESTS[name], 13), 4, threads=2)
    data = json.loads(json.dumps(c.to_json()))
    assert Counts.from_json(data) == c
    assert data["totals"]["loaded_bytes"] == c.loaded_bytes and isinstance(data["totals"]["flops"], int)


def test_work_tells_fused_multiply_adds_and_places_apart():
    tile = Loop("l", scalar(0), scalar("d"), (nest({"r": 2}, loop("v", 4, Accumulate("sum", ref("c", "r", "v"), op(
        "*", ref("A", "r", "l"), ref("B", "l", "v")), (), "C"), kind="lane")),), mark="scores")
    body = (Alloc("c"), nest({"r": 2}, loop("v", 4, Assign(ref("c", "r", "v"), scalar(0.0), (), "C"), kind="lane")), tile,
            nest({"r": 2}, loop("v", 4, Assign(ref("D", "r", "v"), op("-", op("*", 2.0, ref("c", "r", "v")), ref("A", "r", 0)), (), "D"), kind="lane")),
            Assign(ref("E"), op("exp2", op("*", ref("A", 0, 0), ref("A", 0, 0))), (), "E"))
    k = Kernel("tile", ("d",), (array("A", "input", 2, "d"), array("B", "input", "d", 4), array("D", "output", 2, 4), array("E", "output"),
                                array("c", "register", 2, 4)), body)
    c = count(k, {"d": 5}, 8)
    assert c.work == {"tile": {"fma": 40, "start": 1}, "vector": {"fma": 8, "store": 8}, "scalar": {"*": 1, "exp2": 1}}
    assert c.calls == {"+": 40, "*": 49, "-": 8, "exp2": 1}
    assert c.flops == 97 and c.exps == 1
    assert c.loaded_bytes == 8 * (40 + 40 + 8 + 2) and c.accesses["c"].loads == 48


def triangle(schedule):
    leaf = Accumulate("sum", ref("C", "i"), ref("A", "j"), (), "C")
    row = Loop("i", scalar(0), scalar("n"), (loop("j", op("+", "i", 1), leaf),), "parallel", schedule)
    return Kernel("triangle", ("n",), (array("A", "input", "n"), array("C", "output", "n")), (loop("h", 3, row),))


def test_regions_count_barriers_trips_and_the_busiest_thread():
    static, paired, dynamic = (count(triangle(s), {"n": 100}, 8, threads=2).regions for s in ("static", "paired", "dynamic"))
    assert [(r.runs, r.trips, r.schedule) for r in (*static, *dynamic)] == [(3, 300, "static"), (3, 300, "dynamic")]
    assert static[0].busiest == pytest.approx((5050 - 1275) / 5050)
    assert dynamic[0].busiest == pytest.approx(0.5, abs=0.01)
    assert paired[0].busiest == 0.5  # 1 + 100, 2 + 99, …: every pair is the same work
    assert count(triangle("static"), {"n": 100}, 8).regions[0].busiest == 1.0


def test_a_tile_condition_over_data_is_refused():
    k = Kernel("k", (), (array("A", "input"), array("C", "output")), (If(op("<", ref("A"), 0.0), (Assign(ref("C"), scalar(1.0), (), "C"),)),))
    with pytest.raises(LiftError, match="depends on data"):
        count(k, {}, 8)


def test_an_index_that_is_not_linear_is_refused():
    k = Kernel("k", ("n",), (array("A", "input", op("*", "n", "n")), array("C", "output", "n")),
               (loop("i", "n", Assign(ref("C", "i"), ref("A", op("*", "i", "i")), (), "C")),))
    with pytest.raises(LiftError, match="not linear"):
        count(k, {"n": 3}, 8)


def test_loads_and_stores_outside_of_tiles_are_those_that_change_with_the_lane():
    """x twice at one place is one load; a factor that every lane shares, and a register, are none; a sum in memory is both."""
    factor, at = ref("f", "i"), ref("x", "i", "v")
    leaf = Accumulate("sum", ref("y", "i", "v"), op("*", factor, op("*", at, at)), (), "y")
    k = Kernel("k", ("n",), (array("f", "input", "n"), array("x", "input", "n", 4), array("y", "output", "n", 4)), (loop("i", "n", loop("v", 4, leaf, kind="lane")),))
    assert count(k, {"n": 3}, 8).work["vector"] == {"*": 12, "fma": 12, "load": 24, "store": 12}
    plain = Kernel("k", ("n",), k.arrays, (loop("i", "n", loop("v", 4, Assign(ref("y", "i", "v"), factor, (), "y"))),))
    assert count(plain, {"n": 3}, 8).work["vector"] == {"store": 12}


def test_a_tile_starts_as_often_as_its_fold_loop_begins():
    """Under the loops around it, a triangle's guard among them, and not once for each of its rows and lanes."""
    leaf = Accumulate("sum", ref("c", "r", "v"), op("*", ref("x", "k"), ref("x", "v")), (), "c")
    tile = Loop("k", scalar(0), scalar("n"), (nest({"r": 2}, loop("v", 4, leaf, kind="lane")),), mark="m")
    body = (loop("i", "n", loop("j", "n", If(op("<=", "j", "i"), (Alloc("c"), nest({"r": 2}, loop("v", 4, Assign(ref("c", "r", "v"), scalar(0.0), (), "c"), kind="lane")), tile)))),)
    k = Kernel("k", ("n",), (array("x", "input", "n"), array("y", "output"), array("c", "register", 2, 4)), body)
    assert count(k, {"n": 5}, 8).work["tile"] == {"fma": 15 * 5 * 8, "start": 15}


def test_each_region_stands_alone_with_the_loops_around_it():
    leaves = [Assign(ref(a, "i"), ref("A", "i"), (), a) for a in ("B", "C")]
    first, second = (loop("i", "n", leaf, kind="parallel") for leaf in leaves)
    k = Kernel("k", ("n",), tuple(array(a, "input" if a == "A" else "output", "n") for a in "ABC"), (loop("h", 3, first, second),))
    alone = regions(k)
    assert [p.body for p in alone] == [(loop("h", 3, first),), (loop("h", 3, second),)]
    assert regions(Kernel("k", ("n",), k.arrays, (first,)))[0].body == (first,)
    apart = Kernel("k", ("n",), k.arrays, (loop("h", 3, first), loop("g", 2, second)))
    assert [p.body for p in regions(apart)] == [(loop("h", 3, first),), (loop("g", 2, second),)]
