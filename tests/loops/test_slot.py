"""Slots: where in their pages the lines of a walk lie, held against their addresses."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loops.nests import array, loop, ref

from moapipe.algebra.scalar import Op, Var, op
from moapipe.loops.onf import Accumulate, Kernel, Loop
from moapipe.loops.slot import PAGE_BYTES, moves, recent, slots, stride
from moapipe.loops.traffic import Reuse


@pytest.mark.parametrize(("step", "found"), [(8, 64), (64, 64), (512, 8), (576, 64), (2048, 2), (4096, 1), (16384, 1), (16448, 64), (4096 + 512, 8), (0, 1)])
def test_a_column_has_the_slots_of_its_stride(step, found):
    assert slots([(step, 4096)], 64) == found


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600).map(lambda s: 8 * s), st.integers(0, 9)), max_size=3), st.sampled_from([32, 64, 128]))
def test_slots_are_those_of_the_addresses(walk, line):
    places = {sum(t * s for t, (s, _) in zip(at, walk, strict=True)) for at in product(*(range(max(1, n)) for _, n in walk))}
    assert slots(walk, line) == len({a % PAGE_BYTES // line for a in places})


def test_what_is_near_in_time_is_a_page_of_lines():
    """Rows of two lines, a page apart: 32 of them; a row of 64 lines is enough by itself."""
    assert recent([(8, 16), (4096, 32), (128, 9)], 64) == [(8, 16), (4096, 32)]
    assert recent([(8, 512), (4096, 9)], 64) == [(8, 512)] and recent([(8, 16)], 64) == [(8, 16)]


def test_strides_are_those_of_gamma_where_they_are_always_the_same():
    r = ref("A", "i", op("+", "j", op("*", 4, "k")))
    assert [stride(r, (9, 32), v) for v in "ijke"] == [32, 1, 4, 0]
    assert stride(ref("A", op("//", "i", 2)), (9,), "i") is None
    loops = tuple(Loop(v, op("-", 1, 1), Var("n"), ()) for v in "ij")
    assert moves(r, (9, 32), loops, lambda k: 5 + k, 8) == [(8, 6), (256, 5)]
    assert moves(ref("A", Op("//", (Var("i"), op("+", 1, 1)))), (9,), loops, lambda k: 5, 8) is None


def columns(pitch):
    """s[c] = Σ_r A[r, c]·8 times over, 8 columns of n rows of `pitch` elements."""
    leaf = Accumulate("sum", ref("s", "c"), op("*", ref("A", "r", "c"), 1.0), (), "s")
    return Kernel("columns", ("n",), (array("A", "input", "n", pitch), array("s", "output", 8)), (loop("c", 8, loop("again", 8, loop("r", "n", leaf))),))


@pytest.mark.parametrize(("pitch", "n", "stays"), [(512, 8, True), (512, 9, False), (256, 16, True), (256, 17, False), (520, 64, True), (520, 256, True)])
def test_a_column_of_pages_has_a_share_of_an_indexed_cache(pitch, n, stays):
    """512 lines, 8 for each slot: rows of a page have one, rows of half a page two, rows of a page and a line all of them."""
    reuse = Reuse(columns(pitch), {"n": n}, 8)
    once = n * 64
    assert reuse.past(512 * 64)["A"].read == once * (1 if n <= 512 else 8)
    found = reuse.past(512 * 64, indexed=True)["A"]
    assert found.read == (once if stays else 64 * once)
    assert reuse.past(512 * 64)["A"].read == once, "asking an indexed cache changes no other's answer"


def test_what_meets_is_what_a_walk_asks_for_of_few_slots():
    """Whole rows meet nowhere; a column of pages meets in one slot, of half pages in two."""
    assert [Reuse(columns(p), {"n": 4096}, 8).past(1 << 12)["A"].met for p in (512, 256, 520)] == [64 * 4096 * 64, 32 * 4096 * 64, 0]
