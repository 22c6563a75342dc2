"""`verify` refuses loop nests that mean nothing."""

from __future__ import annotations

import pytest
from tests.loops.nests import array, loop, ref

from moapipe.algebra.scalar import scalar
from moapipe.errors import LiftError
from moapipe.loops.onf import Alloc, Assign, Kernel
from moapipe.loops.soundness import verify

ARRAYS = (array("C", "output", "n"), array("t", "private", "n"))
STORE, COPY = Assign(ref("t", "i"), scalar(1.0), (), "t"), Assign(ref("C", "i"), ref("t", "i"), (), "C")


@pytest.mark.parametrize(("body", "message"), [
    ((loop("i", "n", STORE), Alloc("t")), "t before it is allocated"),
    ((Alloc("t"), loop("i", "n", STORE, kind="parallel")), "t before it is allocated"),
    ((loop("i", "m", Alloc("t"), STORE),), r"bounds of i uses \['m'\]"),
    ((loop("i", "n", loop("i", "n", Alloc("t"), STORE)),), "i is already bound"),
    ((Alloc("t"), Assign(ref("t", 0, 0), scalar(1.0), (), "t")), "with 2 of 1 axes"),
    ((Assign(ref("X"), scalar(1.0), (), "X"),), "X before it is allocated"),
])
def test_refusals(body, message):
    with pytest.raises(LiftError, match=message):
        verify(Kernel("k", ("n",), ARRAYS, body))


def test_a_private_array_may_serve_loops_inside_its_thread():
    verify(Kernel("k", ("n",), ARRAYS, (loop("h", "n", Alloc("t"), loop("i", "n", STORE), loop("i", "n", COPY), kind="parallel"),)))


def test_arrays_are_declared_once():
    with pytest.raises(LiftError, match="declared twice"):
        verify(Kernel("k", ("n",), (*ARRAYS, ARRAYS[0]), ()))
