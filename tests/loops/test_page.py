"""Walks that a TLB does not hold: the published column walks from N = 4096 on, no row walk ever."""

import pytest
from tests.loops import published
from tests.loops.nests import NESTS, array, loop, ref, sizes_for

from moapipe.algebra.scalar import op
from moapipe.loops.onf import Accumulate, Kernel
from moapipe.loops.page import walks


@pytest.mark.parametrize(("n", "pages"), [(1024, None), (2048, None), (4096, 4096), (8192, 8192)])
def test_the_published_jump_from_2048_to_4096(n, pages):
    """One thread, job 21226440: x13.9 from N = 2048 to 4096, where x4 is the arithmetic. A column of N rows touches N pages."""
    found = walks(published.split_passes_owner(), {"B": 2, "N": n, "D": 64}, 8)
    assert [(w.definition, w.array, w.loop, w.pages) for w in found] == ([("GK", "GS", "r", pages), ("GV", "A", "r", pages)] if pages else [])
    assert all(w.elements == 1 and w.pressure == pages / 2048 for w in found)


def test_rows_are_walked_without_pressure():
    assert not walks(published.forward(), {"B": 2, "N": 8192, "D": 64}, 8)


def column(again: int, rows: str = "n"):
    body = loop("j", again, loop("i", rows, Accumulate("sum", ref("s"), op("*", ref("A", "i", "j"), 1.0), (), "s")))
    return Kernel("column", ("n", "m"), (array("A", "input", "n", "m"), array("s", "output")), (body,))


@pytest.mark.parametrize(("m", "element", "flagged"), [(512, 8, True), (65, 8, True), (64, 8, False), (33, 8, False), (256, 4, True), (128, 4, False)])
def test_what_counts_is_how_much_of_a_page_is_used(m, element, flagged):
    """Rows of 512 bytes put 8 elements of a column on a page."""
    assert bool(walks(column(4), {"n": 40_000, "m": m}, element)) is flagged


def test_a_walk_that_never_comes_back_is_not_under_pressure():
    assert not walks(column(1), {"n": 4096, "m": 512}, 8) and walks(column(2), {"n": 4096, "m": 512}, 8)


@pytest.mark.parametrize("name", NESTS)
def test_small_walks_are_never_flagged(name):
    assert not walks(NESTS[name], sizes_for(NESTS[name], 64), 8)
