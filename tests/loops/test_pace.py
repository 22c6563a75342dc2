"""Places: at what pace a processor goes through a leaf."""

import pytest
from tests.loops.nests import loop, nest, ref

from moapipe.algebra.scalar import op, scalar
from moapipe.loops.onf import Accumulate, Array, Assign, Kernel, Loop
from moapipe.loops.pace import link, place, step, width
from moapipe.loops.site import sites

ADD = Accumulate("sum", ref("s"), ref("x", "k"), (), "s")
DOT = Accumulate("sum", ref("s"), op("*", ref("x", "k"), ref("y", "k")), (), "s")
COLUMN = Accumulate("sum", ref("s"), op("*", ref("x", "k"), ref("A", "k", "j")), (), "s")
ROW = Accumulate("sum", ref("z", "j"), op("*", ref("x", "k"), ref("A", "k", "j")), (), "z")
TILE = Accumulate("sum", ref("t", "r", "j"), op("*", ref("x", "k"), ref("A", "k", "j")), (), "t")
LANES = Accumulate("sum", ref("s"), ref("t", 0, "j"), (), "s")


def placed(*body):
    shapes = {"s": (), "x": ("n",), "y": ("n",), "z": ("n",), "A": ("n", "n"), "t": (4, 8)}
    arrays = tuple(Array(a, tuple(scalar(e) for e in e_), "register" if a == "t" else "output") for a, e_ in shapes.items())
    return [(p.place, p.work.get("chain", 0), p.work.get("link", 0)) for p in sites(Kernel("k", ("n",), arrays, body))]


@pytest.mark.parametrize(("statement", "want"), [
    (loop("j", "n", loop("k", "n", ADD)), ("chain 1", 0, 1)),
    (loop("j", "n", loop("k", "n", DOT)), ("chain 1", 0, 1)),               # products of whole rows are made in vectors, and added in order
    (loop("j", "n", loop("k", "n", COLUMN)), ("chain 1", 1, 0)),
    (loop("k", "n", loop("j", "n", ROW)), ("vector", 0, 0)),                # y += a·x along a row: a compiler's vectors
    (loop("j", "n", loop("k", "n", ROW)), ("chain 1", 1, 0)),
    (loop("k", "n", loop("r", 4, loop("j", 8, TILE, kind="lane"), kind="unroll")), ("chain 32", 1, 0)),
    (loop("r", 4, loop("k", "n", loop("j", 8, TILE, kind="lane")), kind="unroll"), ("vector", 0, 0)),
    (loop("k", "n", loop("j", 8, LANES, kind="lane")), ("fold", 0, 0)),
    (loop("k", "n", Assign(ref("z", "k"), op("+", ref("x", "k"), ref("s")), (), "z")), ("vector", 0, 0)),
    (loop("k", "n", Assign(ref("z", "k"), op("exp", ref("x", "k")), (), "z")), ("scalar", 0, 0)),
    (loop("k", "n", Assign(ref("A", "k", 0), ref("x", "k"), (), "A")), ("scalar", 0, 0)),
    (loop("k", "n", Assign(ref("z", "k"), ref("A", "k", "k"), (), "z")), ("scalar", 0, 0)),
])
def test_where_a_leaf_is_done(statement, want):
    assert placed(statement)[0] == want


def test_a_loop_is_made_of_vectors_only_as_a_whole():
    simple, hard = Assign(ref("z", "k"), ref("x", "k"), (), "z"), Assign(ref("y", "k"), op("exp", ref("x", "k")), (), "y")
    assert [p for p, _, _ in placed(loop("k", "n", simple, hard))] == ["scalar", "scalar"]
    assert [p for p, _, _ in placed(loop("k", "n", simple, simple))] == ["vector", "vector"]


def test_a_marked_loop_is_a_tile():
    assert placed(Loop("k", scalar(0), scalar("n"), (nest({"r": 4}, loop("j", 8, TILE, kind="lane")),), mark="m"))[0] == ("tile", 0, 0)


def test_names_of_chains_tell_their_width():
    assert [width(p) for p in ("chain 1", "chain 32", "tile", "vector")] == [1, 32, 0, 0]
    loops = tuple(Loop(v, scalar(0), scalar(8), (), kind) for v, kind in (("i", "parallel"), ("k", "serial"), ("r", "unroll"), ("j", "lane")))
    assert step(loops) == 1 and link(TILE, loops) == "chain" and place(TILE, loops, {"t": "private"}) == "chain 64"
