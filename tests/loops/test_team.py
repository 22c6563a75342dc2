"""Teams of threads: where they wait and where they need not, what a thread owns, and what no team can run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.loops.nests import array, loop, ref
from tests.loops.test_lift_alone import last

from moapipe.algebra.scalar import op, scalar
from moapipe.errors import LiftError
from moapipe.loops.onf import Accumulate, Alloc, Assign, If, Kernel
from moapipe.loops.soundness import verify
from moapipe.loops.team import barriers, check, collapsed, crews, owned, regions, shuffles, threads

TILE = last("a tile by a team").kernel


def team(*body, extent=4, **arrays):
    """One parallel loop around `body`; arrays by name: (space, extents)."""
    made = tuple(array(n, space, *shape) for n, (space, *shape) in {"s": ("shared", 8), "out": ("output", "n"), **arrays}.items())
    return Kernel("team", ("n",), made, (loop("p", "n", Alloc("s"), *body, kind="parallel"),))


def thread(*body, var="t", extent=4):
    return loop(var, extent, *body, kind="thread")


def store(index, value=1.0, where=()):
    return Assign(ref("s", index), scalar(value), where, "s")


def load(index):
    return Assign(ref("out", MINE), ref("s", index), (), "out")


def waits(kernel):
    """Whether the team waits in front of each thread nest, in the order of the text."""
    (region,) = regions(kernel.body)
    body = collapsed(region)[1]
    found = barriers(body)
    return [id(c.first) in found for c in crews(body)]


MINE = op("+", op("*", "p", 4), "t")
OWN = store("t")
OTHER = Assign(ref("out", op("+", op("*", "p", 4), "u")), ref("s", "u"), (), "out")
CASES = {
    "another thread's element": ([thread(OWN), thread(load(op("-", 3, "t")))], [False, True]),
    "its own element": ([thread(OWN), thread(load("t"))], [False, False]),
    "its own element under another name": ([thread(OWN), thread(OTHER, var="u")], [False, False]),
    "a team of another shape": ([thread(OWN), thread(OTHER, var="u", extent=2)], [False, True]),
    "its own element only by the names of the loops": ([loop("k", 4, store("k"), kind="thread"), thread(loop("k", 4, Assign(ref("out", MINE), ref("s", "k"), (), "out")))], [False, True]),
    "two that only read": ([thread(load(1)), thread(load(2))], [False, False]),
    "stored again after others read it": ([thread(load(3)), thread(OWN)], [False, True]),
    "one wait serves both": ([thread(OWN), thread(load(1)), thread(load(2))], [False, True, False]),
    "one atomic sum": ([thread(Accumulate("sum", ref("s", 0), scalar(1.0), (), "s", (), True)), thread(Accumulate("sum", ref("s", 0), scalar(1.0), (), "s", (), True))], [False, False]),
    "the end of a loop comes before its beginning": ([loop("k", "n", thread(OWN), thread(load(3)))], [True, True]),
    "in a loop, each its own": ([loop("k", "n", thread(OWN), thread(load("t")))], [False, False]),
    "in a loop, its own of this iteration only": ([loop("k", 4, thread(store(op("+", "t", "k"))))], [True]),
    "on one of two paths": ([If(op("<", "p", 3), (thread(OWN),)), thread(load(1)), thread(load(2))], [False, True, False]),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_team_waits(name):
    body, expected = CASES[name]
    kernel = team(*body)
    check(kernel)
    assert waits(kernel) == expected


def test_a_tile_waits_for_its_copies_and_before_they_are_overwritten():
    """Zeroing, three parts of the copy, the product, the result: the team waits before the first part and before the product."""
    assert waits(TILE) == [False, True, False, False, True, False]
    assert owned(TILE) == {"x": 2} and [threads((r,)) for r in regions(TILE.body)] == [8]
    check(TILE)


OTHERS, SUM = ref("p", "w"), ref("q", "t")


def lanes(value=OTHERS, target=SUM, where=(), extent=4):
    """Each thread's element, then their sum for each of them."""
    fold = loop("w", extent, Accumulate("sum", target, value, where, "q"), kind="warp")
    return team(Alloc("p"), Alloc("q"), thread(Assign(ref("p", "t"), scalar(2.0), (), "p")), thread(Assign(ref("q", "t"), scalar(0.0), (), "q"), fold),
                p=("register", 4), q=("register", 4))


def test_lanes_exchange_registers_without_a_wait():
    check(lanes())
    assert waits(lanes()) == [False, False] and owned(lanes()) == {"p": 1, "q": 1}
    assert [(n, [l.var for l in loops]) for loops, _, n in shuffles(lanes())] == [(2, ["p"])]


@pytest.mark.parametrize(("kernel", "message"), [
    (lanes(extent=2), "w has 2 lanes, and t 4: both must be"),
    (lanes(where=(op("<", "t", 2),)), "some lanes of a warp would not come to the fold over w"),
    (lanes(value=op("*", ref("p", "w"), ref("q", "t"))), "q is no fold over w alone"),
    (lanes(target=ref("q", "w")), "q is no fold over w alone"),
    (lanes(target=ref("s", "t")), "q folds p into s, not registers into a register"),
    (team(thread(OWN), store(0)), "no thread is told to run s"),
    (team(thread(loop("k", 2, thread(store("u"), var="u")))), "with something between"),
    (Kernel("k", (), (array("s", "output", 4),), (thread(OWN),)), "outside of a parallel loop"),
    (team(Alloc("q"), thread(Assign(ref("q", "t"), scalar(1.0), (), "q")), q=("private", 4)), "q is private memory"),
    (team(Alloc("q"), thread(Assign(ref("q", op("-", 3, "t")), scalar(1.0), (), "q")), q=("register", 4)), r"q\[.*\] is not the thread's own part of q"),
    (replace(TILE, arrays=tuple(replace(a, shape=(scalar(4), scalar(4))) if a.name == "x" else a for a in TILE.arrays)), "not the thread's own"),
])
def test_refusals(kernel, message):
    verify(kernel)
    with pytest.raises(LiftError, match=message):
        check(kernel)


def test_what_a_team_shares_is_born_inside_its_parallel_loop():
    outside = Kernel("k", ("n",), (array("s", "shared", 4), array("out", "output", "n")), (Alloc("s"), loop("p", "n", thread(OWN), kind="parallel")))
    with pytest.raises(LiftError, match="s before it is allocated"):
        verify(outside)
