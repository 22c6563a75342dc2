"""Closed forms: the same numbers as the count, and closed where the theory says that they can be."""

from __future__ import annotations

import pytest
from tests.loops.nests import NESTS, array, loop, nest, ref, sizes_for, tiled_scores

from moapipe.algebra.scalar import op, scalar
from moapipe.loops.closed import closed_forms, evaluate
from moapipe.loops.cost import count
from moapipe.loops.onf import Accumulate, Assign, Kernel

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 24, 25, 40)


def assert_equal(forms, k, sizes):
    c, memo = count(k, sizes, 8), {}
    for name, e in forms.loads.items():
        assert evaluate(e, sizes, memo) == c.accesses[name].loads, (name, e, sizes)
    for name, e in forms.stores.items():
        assert evaluate(e, sizes, memo) == c.accesses[name].stores, (name, e, sizes)
    for name, e in forms.calls.items():
        assert evaluate(e, sizes, memo) == c.calls.get(name, 0), (name, e, sizes)
    if 0 in sizes.values():
        return
    for name, e in forms.read.items():
        assert evaluate(e, sizes, memo) == c.footprint[name].read, (name, e, sizes)
    for name, e in forms.written.items():
        assert evaluate(e, sizes, memo) == c.footprint[name].written, (name, e, sizes)


@pytest.mark.parametrize("name", NESTS)
def test_forms_equal_the_count(name):
    forms = closed_forms(NESTS[name])
    for n in SIZES:
        assert_equal(forms, NESTS[name], sizes_for(NESTS[name], n))


def test_published_forms():
    forms = closed_forms(NESTS["row_attention"])
    assert str(forms.read["Q"] + forms.read["K"] + forms.read["V"]) == "3*H*d*n"
    assert str(forms.written["W"] + forms.written["O"]) == "H*d*n + H*n**2"
    assert str(forms.written["s"]) == "H*n**2" and str(forms.read["scale"]) == "1"


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (4, 4), (3, 12), (8, 4), (12, 4)])
def test_tiles_of_a_triangle_are_closed_where_one_tile_divides_the_other(rows, columns):
    k = tiled_scores(rows, columns, True)
    forms = closed_forms(k)
    if columns % rows == 0:
        assert "Sum" not in str(forms.calls["*"])
    for n in (1, 5, 23, 24, 25, 100):
        assert_equal(forms, k, {"H": 2, "n": n, "d": 1})


def test_a_triangle_is_a_polynomial():
    k = Kernel("triangle", ("n",), (array("A", "input", "n"), array("C", "output", "n")),
               (loop("i", "n", loop("j", "n", Accumulate("sum", ref("C", "i"), ref("A", "j"), (op("<=", "j", "i"),), "C"))),))
    assert str(closed_forms(k).loads["A"]) == "n**2/2 + n/2"


def test_padding_is_what_the_whole_tiles_have_beyond_the_end():
    i = op("+", op("*", "o", 5), "r")
    k = Kernel("pad", ("n",), (array("A", "output", op("*", 5, op("//", op("+", "n", 4), 5))),),
               (nest({"o": op("//", op("+", "n", 4), 5), "r": 5}, Assign(ref("A", i), scalar(0.0), (op("<=", "n", i),), "A")),))
    assert str(closed_forms(k).stores["A"]) == "5*ceiling(n/5) - n"


def test_a_clip_that_is_kept_from_going_below_zero_is_a_clip():
    width = op("min", op("max", op("-", "n", op("*", "o", 5)), 0), 5)
    k = Kernel("clip", ("n",), (array("A", "output", op("*", 5, op("//", op("+", "n", 4), 5))),),
               (nest({"o": op("//", op("+", "n", 4), 5), "r": width}, Assign(ref("A", op("+", op("*", "o", 5), "r")), scalar(0.0), (), "A")),))
    assert str(closed_forms(k).stores["A"]) == "n"
