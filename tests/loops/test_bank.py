"""Bank conflicts: what a warp's instruction asks of shared memory, by the step between its lanes; and that padding helps."""

from __future__ import annotations

import pytest
from tests.loops.nests import array, loop, ref

from moapipe.algebra.scalar import op, scalar
from moapipe.loops.bank import conflicts
from moapipe.loops.onf import Alloc, Assign, Kernel


def kernel(index, *shape, rows=1):
    """A team of `rows` × 32 threads stores one element each; the array lies in shared memory."""
    store = Assign(ref("s", *index), scalar(1.0), (), "s")
    body = loop("p", "n", Alloc("s"), loop("r", rows, loop("t", 32, store, kind="thread"), kind="thread"), kind="parallel")
    return Kernel("k", ("n",), (array("s", "shared", *shape),), (body,))


@pytest.mark.parametrize(("index", "shape", "words", "asked"), [
    (("t",), (32,), 1, 1),                                    # neighbours: every bank once
    ((op("*", "t", 2),), (64,), 1, 2),                        # every other word: two in a bank
    (("t", 0), (32, 32), 1, 32),                              # a column: all in one bank
    (("t", 0), (32, 33), 1, 1),                               # a column of padded rows
    ((0,), (1,), 1, 1),                                       # the same word for all
    (("t",), (32,), 2, 2),                                    # of 8 bytes: half a warp at a time
    (("t", 0), (32, 32), 2, 32),
    (("t", 0), (32, 33), 2, 2),
])  # fmt: skip
def test_requests_of_one_instruction(index, shape, words, asked):
    (c,) = conflicts(kernel(index, *shape), 4 * words)
    assert (c.asked, c.least) == (asked, words)


def test_two_rows_of_threads_are_two_warps():
    (c,) = conflicts(kernel(("r", "t"), 2, 32, rows=2), 4)
    assert (c.asked, c.least) == (1, 1)
