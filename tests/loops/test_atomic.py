"""Updates that iterations share: the published counts, found without being declared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import published
from tests.loops.nests import NESTS, array, loop, ref, sizes_for

from moapipe.algebra.scalar import op
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.place import root
from moapipe.loops.atomic import atomics, uncontended
from moapipe.loops.cost import count
from moapipe.loops.onf import Accumulate, Assign, Kernel

AT = {"B": 2, "N": 2048, "D": 64}


@pytest.mark.parametrize(("kernel", "updates"), [
    (published.row_parallel_backward(), 536_870_912), (published.row_parallel_fused(), 1_073_741_824),
    (published.split_passes(), 536_870_912), (published.split_passes_owner(), 0), (published.forward(), 0),
], ids=lambda x: getattr(x, "name", x))  # fmt: skip
def test_the_published_counts(kernel, updates):
    """Job 21247666: 536,870,912 in the backward pass and twice that in the fused one: one active lane an instruction."""
    found = atomics(kernel, AT)
    assert sum(a.updates for a in found) == updates
    assert all(a.instructions["j" if a.array == "GK" else "d"] * 32 == a.updates for a in found)


def test_a_warp_that_is_not_full_costs_an_instruction_too():
    (found,) = atomics(published.row_parallel_backward(), {"B": 3, "N": 5, "D": 33})
    assert found.updates == 3 * 5 * 5 * 33
    assert found.instructions == {"b": 5 * 5 * 33, "r": 3 * 5 * 33, "c2": 3 * 5 * 33, "j": 3 * 5 * 5 * 2}


def weight_gradients():
    """GW[d,f] += x[t,d]·g[t,f] by token: three of them, as in the published block."""
    update = [Accumulate("sum", ref(w, "d", "f"), op("*", ref("x", "t", "d"), ref("g", "t", "f")), (), w) for w in ("Wd", "Wg", "Wu")]
    arrays = (array("x", "input", "n", "D"), array("g", "input", "n", "F"), *(array(w, "output", "D", "F") for w in ("Wd", "Wg", "Wu")))
    return Kernel("weights", ("n", "D", "F"), arrays, (loop("t", "n", loop("d", "D", loop("f", "F", *update)), kind="parallel"),))


def test_the_published_block_counts():
    """Job 21289516, kernel 206: 25,165,824 = 3·n·d·d_ff."""
    found = atomics(weight_gradients(), {"n": 512, "D": 64, "F": 256})
    assert sum(a.updates for a in found) == 25_165_824 and len(found) == 3


@pytest.mark.parametrize(("variant", "updates"), [("kv_owner_atomic", 2 * 2048 * 2048 * 64 // 64), ("kv_owner_ordered", 0), ("two_pass_shared", 0)])
def test_owners_of_keys_add_to_an_element_once_a_block_of_keys(variant, updates):
    """B·n²·d / (keys of a block), every warp instruction with 32 active lanes; and none where the terms have places or owners."""
    kernel = derive(Build("attention_backward", "full", variant, "cuda", "plain", "f64"), root()).schedule.kernel
    found = atomics(kernel, {"batch": 2, "group": 1, "q_len": 2048, "kv_len": 2048, "d_k": 64, "d_v": 64})
    assert (sum(a.updates for a in found), sum(a.spread for a in found)) == (updates, updates // 32)


@pytest.mark.parametrize("name", NESTS)
def test_what_its_owner_accumulates_is_not_atomic(name):
    assert not atomics(NESTS[name], sizes_for(NESTS[name], 9))


def test_one_iteration_shares_with_nobody():
    k = weight_gradients()
    assert not atomics(k, {"n": 1, "D": 4, "F": 4}) and atomics(k, {"n": 2, "D": 4, "F": 4})


def test_blocks_that_overlap_in_part_are_shared():
    """out[i + j], j < 2: every inner element belongs to two iterations."""
    body = (loop("i", "n", loop("j", 2, Accumulate("sum", ref("out", op("+", "i", "j")), ref("x", "i"), (), "out")), kind="parallel"),)
    k = Kernel("overlap", ("n",), (array("x", "input", "n"), array("out", "output", op("+", "n", 1))), body)
    (found,) = atomics(k, {"n": 6})
    assert found.updates == 12 == count(k, {"n": 6}, 8).accesses["out"].stores


def test_an_assignment_is_never_atomic():
    k = Kernel("set", ("n",), (array("out", "output"),), (loop("i", "n", Assign(ref("out"), op("+", 0.0, "i"), (), "out"), kind="parallel"),))
    assert not atomics(k, {"n": 4})


@given(n=st.integers(0, 9), m=st.integers(0, 9), by=st.integers(1, 5), threads=st.integers(1, 4), team=st.booleans(), causal=st.booleans())
def test_workers_meet_in_a_sum_where_some_element_has_terms_of_two(n, m, by, threads, team, causal):
    """dQ[q] += x[k] by owners of blocks of keys, of those k <= q: as the points themselves say."""
    k = op("+", op("*", "ko", by), "ki")
    fits = (op("<", k, "n"), *((op("<=", k, "q"),) if causal else ()))
    term = Accumulate("sum", ref("dQ", "q"), ref("x", k), fits, "dQ", atomic=True)
    inner = loop("ki", by, term, kind="thread") if team else loop("ki", by, term)
    nest = loop("ko", op("//", op("+", "n", by - 1), by), loop("q", "m", inner), kind="parallel")
    kernel = Kernel("owners", ("n", "m"), (array("x", "input", "n"), array("dQ", "output", "m")), (nest,))
    workers = {q: {i // by if team else i // by % threads for i in range(n) if not causal or i <= q} for q in range(m)}
    assert uncontended(kernel, {"n": n, "m": m}, threads) == (frozenset() if any(len(w) > 1 for w in workers.values()) else {"dQ"})
