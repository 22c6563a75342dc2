"""Traffic past a capacity: between the oracle's numbers at half and at twice the capacity, exact where everything fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.loops.nests import NESTS, array, loop, ref, sizes_for, tiled_scores
from tests.loops.test_interpret import inputs_for

from moapipe.algebra.scalar import op
from moapipe.loops.cost import count
from moapipe.loops.interpret import run
from moapipe.loops.onf import Accumulate, Alloc, Assign, Kernel, Loop, map_statements
from moapipe.loops.traffic import Reuse, Traffic, simulate, traffic

FACTOR = 2.0
"""docs/cost_model.md states it: oracle(2C) <= model(C) <= 2·oracle(C/2), from eight lines up."""


def total(t):
    return sum(x.read + x.allocated + x.written for x in t.values())


@pytest.mark.parametrize("line", [8, 64])
@pytest.mark.parametrize("size", [(24, 4), (17, 3), (9, 8)])
@pytest.mark.parametrize("name", NESTS)
def test_model_lies_between_the_oracle_at_twice_and_at_half_the_capacity(name, size, line):
    k = NESTS[name]
    sizes = sizes_for(k, *size)
    trace = run(k, sizes, inputs_for(k, sizes), trace=True).trace
    reuse = Reuse(k, sizes, 8, line)
    for c in [8 * line * 2**q for q in range(0, 11, 2)]:
        found = total(reuse.past(c))
        assert total(simulate(k, trace, 8, 2 * c, line)) <= found <= FACTOR * total(simulate(k, trace, 8, c // 2, line)), c


@pytest.mark.parametrize("n", [1, 7, 8, 17])
@pytest.mark.parametrize("name", NESTS)
def test_the_extremes(name, n):
    """Everything fits: each array once, as the footprint says. One element fits: never more than the accesses."""
    k = NESTS[name]
    sizes = sizes_for(k, n)
    trace = run(k, sizes, inputs_for(k, sizes), trace=True).trace
    reuse, c = Reuse(k, sizes, 8, 8), count(k, sizes, 8)
    roomy = reuse.past(1 << 30)
    assert roomy == simulate(k, trace, 8, 1 << 30, 8)
    for a, t in c.footprint.items():
        if t.space in ("input", "output", "workspace"):
            assert roomy[a].read + roomy[a].allocated >= 8 * max(t.read, t.written) and roomy[a].written == 8 * t.written
    assert total(reuse.past(8)) <= 2 * (c.loaded_bytes + c.stored_bytes)


@pytest.mark.parametrize("name", NESTS)
def test_what_stays_until_the_next_call_is_what_the_oracle_finds_in_its_second_pass(name):
    """The second of two walks fetches nothing if all of it stays, and something otherwise."""
    k = NESTS[name]
    sizes = sizes_for(k, 9, 4)
    trace, reuse = run(k, sizes, inputs_for(k, sizes), trace=True).trace, Reuse(k, sizes, 8, 8)
    footprint = sum(a.read + a.allocated for a in simulate(k, trace, 8, 1 << 30, 8).values())
    for room in {8, footprint // 2, footprint - 8, footprint, footprint + 8, 2 * footprint} - {0}:
        once, twice = (simulate(k, trace * times, 8, room, 8) for times in (1, 2))
        again = sum(twice[a].read + twice[a].allocated - once[a].read - once[a].allocated for a in once)
        assert reuse.stays(room) == (again == 0), room


def test_each_cache_must_hold_its_own_share_and_what_all_read():
    """Two threads with a cache each: half of A and C, all of B."""
    square = 64 * 64 * 8
    two = Reuse(matmul(), {"n": 64}, 8, threads=2)
    assert two.stays(2 * square) and not two.stays(2 * square - 64)
    assert Reuse(matmul(), {"n": 64}, 8).stays(3 * square) and not Reuse(matmul(), {"n": 64}, 8).stays(3 * square - 64)
    shared = Reuse(matmul(), {"n": 64}, 8, threads=2, sharers=2)
    assert shared.stays(3 * square) and not shared.stays(3 * square - 64)


@pytest.mark.parametrize("name", NESTS)
def test_never_below_the_footprint(name):
    k = NESTS[name]
    sizes = sizes_for(k, 40, 8)
    reuse, c = Reuse(k, sizes, 8, 64), count(k, sizes, 8)
    for past in (reuse.past(512 << q) for q in range(12)):
        for a, t in c.footprint.items():
            if t.space in ("input", "output"):
                assert past[a].read >= 8 * (t.read if t.space == "input" else 0) and past[a].written >= 8 * t.written


def matmul():
    """C = A·B by rows: B is read again for every row unless it fits."""
    body = (loop("i", "n", loop("j", "n", Assign(ref("C", "i", "j"), op("*", 0.0, 1.0), (), "C")),
                 loop("l", "n", loop("k", "n", Accumulate("sum", ref("C", "i", "k"), op("*", ref("A", "i", "l"), ref("B", "l", "k")), (), "C"))), kind="parallel"),)
    return Kernel("matmul", ("n",), tuple(array(x, s, "n", "n") for x, s in (("A", "input"), ("B", "input"), ("C", "output"))), body)


def test_what_does_not_fit_is_read_again():
    n, square = 64, 64 * 64 * 8
    small, large = (traffic(matmul(), {"n": n}, 8, c) for c in (square // 2, 2 * square))
    assert small == {"A": Traffic(square, 0, 0), "B": Traffic(n * square, 0, 0), "C": Traffic(0, square, square)}
    assert large == {"A": Traffic(square, 0, 0), "B": Traffic(square, 0, 0), "C": Traffic(0, square, square)}


@pytest.mark.parametrize(("room", "lines_an_element"), [(256, 1 / 8), (16, 1.0)])
def test_a_walk_of_large_stride_pays_a_line_an_element_when_its_lines_do_not_stay(room, lines_an_element):
    n = 64
    walk = loop("c", "n", loop("r", "n", Accumulate("sum", ref("s", "c"), ref("A", "r", "c"), (), "s")))
    k = Kernel("columns", ("n",), (array("A", "input", "n", "n"), array("s", "output", "n")), (walk,))
    found = traffic(k, {"n": n}, 8, room * 64)["A"]
    assert found == Traffic(round(n * n * lines_an_element) * 64, 0, 0)
    assert found == simulate(k, run(k, {"n": n}, inputs_for(k, {"n": n}), trace=True).trace, 8, room * 64)["A"]


@pytest.mark.parametrize(("room", "spills"), [(64, False), (8, True)])
def test_private_scratch_spills_past_a_level_that_it_does_not_fit(room, spills):
    """A private row of 128 elements, 16 lines, written and read again for each of 4 rows."""
    row = (Alloc("p"), loop("j", 128, Assign(ref("p", "j"), ref("A", "i", "j"), (), "p")), loop("l", 128, Assign(ref("O", "i", "l"), ref("p", "l"), (), "O")))
    k = Kernel("scratch", ("n",), (array("A", "input", "n", 128), array("O", "output", "n", 128), array("p", "private", 128)), (loop("i", "n", *row),))
    found = traffic(k, {"n": 4}, 8, room * 64)["p"]
    assert found == (Traffic(4 * 1024, 4 * 1024, 4 * 1024) if spills else Traffic(0, 1024, 1024))
    assert found == simulate(k, run(k, {"n": 4}, inputs_for(k, {"n": 4}), trace=True).trace, 8, room * 64)["p"]


def test_threads_with_caches_of_their_own_all_fetch_what_they_share():
    n, square = 64, 64 * 64 * 8
    own = traffic(matmul(), {"n": n}, 8, 2 * square, threads=4)
    assert own["B"].read == pytest.approx(4 * square, rel=0.05) and own["A"].read == square
    assert traffic(matmul(), {"n": n}, 8, 2 * square, threads=4, sharers=4)["B"].read == square


def test_threads_on_one_cache_share_its_room():
    """Rows of C and A are each thread's own, B is common: 16 threads at work need 16 rows more, and thrash where one fits."""
    n, square = 64, 64 * 64 * 8
    room = square + 8 * 1024
    assert traffic(matmul(), {"n": n}, 8, room)["B"].read == square
    assert traffic(matmul(), {"n": n}, 8, room, threads=16, sharers=16)["B"].read > square
    assert traffic(matmul(), {"n": n}, 8, room + 16 * 1024, threads=16, sharers=16)["B"].read == square


@pytest.mark.parametrize(("threads", "sharers"), [(4, 1), (4, 2), (4, 4)])
def test_triangles_and_several_regions_with_threads(threads, sharers):
    """Rows in parallel under a triangle, keys packed by threads first; at least what one thread moves, at most as often again."""
    k, sizes = parallel_rows(), {"H": 2, "n": 64, "d": 8}
    for capacity in (1024, 8192, 1 << 20):
        one = total(traffic(k, sizes, 8, capacity))
        many = total(traffic(k, sizes, 8, capacity, threads=threads, sharers=sharers))
        assert one <= many <= threads * total(traffic(k, sizes, 8, capacity // threads))


def parallel_rows():
    k = tiled_scores(4, 8, True)
    return replace(k, body=map_statements(k.body, lambda s: (replace(s, kind="parallel") if isinstance(s, Loop) and s.var in ("h", "io", "po") else s,)))


@pytest.mark.parametrize("name", ["tiled_scores_causal", "row_attention"])
def test_large_sizes_take_no_longer(name):
    t = traffic(NESTS[name], sizes_for(NESTS[name], 8192, 64), 8, 1 << 20)
    assert t["Q"].read >= 2 * 8192 * 64 * 8
