"""Elements that are fetched as one: how many accesses and sectors, counted by going through all iterations."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from tests.loops.test_lift_alone import last

from moapipe.loops.fetch import fetches
from moapipe.loops.onf import Loop, map_statements
from moapipe.loops.soundness import verify
from moapipe.loops.warp import requests
from moapipe.loops.wide import vectors, widths

KERNEL = last("two elements as one").kernel
SIZES = st.fixed_dictionaries({s: st.integers(0, 9) for s in ("ni", "nj", "nk", "ne")})


def seen(n: dict[str, int]) -> tuple[int, int]:
    """(fetches of two, sectors of 32 bytes that an instruction of the four threads asks for, in times) of A[ni, nk] in f64."""
    together, sectors = 0, 0
    for io, _, ko in product(range(-(-n["ni"] // 2)), range(-(-n["nj"] // 4)), range(-(-n["nk"] // 4))):
        asked: dict[int, set[int]] = {}
        for ir, kt in product(range(2), range(2)):
            row, first = 2 * io + ir, 4 * ko + 2 * kt
            there = [k for k in (first, first + 1) if k < n["nk"]] if row < n["ni"] else []
            whole = len(there) == 2 and n["nk"] % 2 == 0
            together += whole
            for k in there[:1] if whole else there:
                asked.setdefault(-1 if whole else k - first, set()).add((row * n["nk"] + k) // 4)
        sectors += sum(map(len, asked.values()))
    return together, sectors


@given(n=SIZES)
def test_fetches_and_sectors_are_those_of_all_iterations(n):
    together, sectors = seen(n)
    assert fetches(KERNEL, n) == ({"A": together} if together else {})
    found = requests(KERNEL, n, 8, "threads")
    assert (found["A"].loads if "A" in found else 0) == sectors


def test_a_fetch_asks_for_no_sector_more_than_its_elements_and_takes_half_the_instructions():
    n = {"ni": 8, "nj": 4, "nk": 16, "ne": 1}
    serial = map_statements(KERNEL.body, lambda s: (Loop(s.var, s.lo, s.hi, s.body),) if isinstance(s, Loop) and s.kind == "vector" else (s,))
    apart = type(KERNEL)(KERNEL.name, KERNEL.sizes, KERNEL.arrays, serial)
    assert fetches(KERNEL, n) == {"A": 8 * 16 // 2} and not fetches(apart, n)
    assert requests(KERNEL, n, 8, "threads")["A"].loads * 2 == requests(apart, n, 8, "threads")["A"].loads


def test_loops_that_fetch_values_of_16_bytes_are_counted_for_the_gate():
    verify(KERNEL)
    assert vectors(KERNEL) == 1 and widths(KERNEL) == {2}
