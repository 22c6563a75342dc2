"""The interpreter: values equal numpy in three dtypes, counts equal what one counts by hand, faults are named."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.loops.nests import NESTS, array, loop, ref, sizes_for, tiled_scores

from moapipe.algebra.function import FUNCS
from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import op, scalar
from moapipe.errors import LiftError
from moapipe.loops.interpret import QUICK, run
from moapipe.loops.onf import Accumulate, Alloc, Assign, Kernel
from moapipe.loops.soundness import verify
from moapipe.loops.tally import Access, Touch


def inputs_for(kernel, sizes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {a.name: tuple(evaluate(s, sizes) for s in a.shape) for a in kernel.arrays if a.space == "input"}
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def softmax_attention(inputs, causal):
    s = np.einsum("hil,hjl->hij", inputs["Q"], inputs["K"])
    if causal:
        s = np.where(np.tri(*s.shape[1:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(2, keepdims=True))
    return np.einsum("hij,hjc->hic", p / p.sum(2, keepdims=True), inputs["V"])


@pytest.mark.parametrize("name", NESTS)
def test_nests_are_well_formed(name):
    verify(NESTS[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_numpy(causal, dtype):
    k = NESTS["naive_attention_causal" if causal else "naive_attention"]
    sizes = sizes_for(k, 5)
    inputs = inputs_for(k, sizes, dtype)
    out = run(k, sizes, inputs).outputs["O"]
    assert out.dtype == dtype
    np.testing.assert_allclose(out, softmax_attention(inputs, causal), rtol=50 * np.finfo(dtype).eps, atol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 9, 17])
@pytest.mark.parametrize("shape", [(4, 8), (6, 4)])
def test_causal_tiles_equal_numpy_in_any_order(n, shape):
    k = tiled_scores(*shape, causal=True)
    sizes = sizes_for(k, n)
    inputs = inputs_for(k, sizes)
    expected = (np.einsum("hil,hjl->hij", inputs["Q"], inputs["K"]) * np.tri(n)).sum(2)
    np.testing.assert_allclose(run(k, sizes, inputs).outputs["R"], expected, atol=1e-13)
    np.testing.assert_allclose(run(k, sizes, inputs, parallel="descending").outputs["R"], expected, atol=1e-13)


def test_untaken_arm_over_indices_is_neither_read_nor_counted():
    k = NESTS["catenation"]
    sizes = {"n": 4, "m": 3}
    inputs = inputs_for(k, sizes)
    r = run(k, sizes, inputs)
    np.testing.assert_allclose(r.outputs["C"], np.concatenate([np.exp(inputs["A"]), inputs["B"]]))
    assert r.accesses["A"] == Access("input", 4, 0) and r.accesses["B"] == Access("input", 3, 0)
    assert r.calls == {"exp": 4}
    assert r.footprint["C"] == Touch("output", 7, 1, 2, 7), "C[6] and C[3] are read, each twice"
    assert r.accesses["C"] == Access("output", 4, 7)


def test_both_arms_over_data_are_counted():
    value = op("select", op("==", ref("A", "i"), 0.0), ref("B", "i"), op("sqrt", ref("A", "i")))
    k = Kernel("blend", ("n",), (array("A", "input", "n"), array("B", "input", "n"), array("C", "output", "n")),
               (loop("i", "n", Assign(ref("C", "i"), value, (), "C")),))
    r = run(k, {"n": 3}, {"A": np.array([0.0, 4.0, 9.0]), "B": np.array([7.0, 8.0, 9.0])})
    assert r.outputs["C"].tolist() == [7.0, 2.0, 3.0]
    assert r.accesses["B"].loads == 3 and r.accesses["A"].loads == 6
    assert r.calls == {"select": 3, "==": 3, "sqrt": 3}


def test_private_arrays_begin_a_new_life_at_every_alloc():
    k = NESTS["row_attention"]
    r = run(k, {"H": 2, "n": 5, "d": 3}, {**inputs_for(k, {"H": 2, "n": 5, "d": 3}), "scale": np.array(0.5)})
    assert r.footprint["s"] == Touch("private", 5, 10, 50, 50)
    assert r.footprint["W"] == Touch("workspace", 50, 1, 50, 50)
    assert r.footprint["scale"] == Touch("input", 1, 1, 1, 0)
    assert r.accesses["scale"].loads == 50
    assert r.calls["exp"] == 50 and r.calls["max"] == 50 and not r.undefined


def test_what_is_not_written_is_nan_and_its_loads_are_told():
    k = Kernel("hole", ("n",), (array("A", "input", "n"), array("C", "output", "n"), array("t", "private", 2)),
               (loop("i", "n", Alloc("t"), Assign(ref("t", 0), ref("A", "i"), (), "t"),
                     Assign(ref("C", "i"), op("+", ref("t", 0), ref("t", 1)), (op("<", 0, "i"),), "C")),))
    r = run(k, {"n": 3}, {"A": np.ones(3)})
    assert np.isnan(r.outputs["C"]).all() and r.undefined == {"t": 2}
    assert r.accesses["C"].stores == 2 and r.footprint["C"].written == 2


@pytest.mark.parametrize("index", [3, -1])
def test_an_index_outside_names_array_and_index(index):
    k = Kernel("wild", ("n",), (array("A", "input", "n"), array("C", "output", "n")), (Assign(ref("C", 0), ref("A", index), (), "C"),))
    with pytest.raises(LiftError, match=rf"A\[{index}\] is outside A\[3\]"):
        run(k, {"n": 3}, {"A": np.ones(3)})


def test_storage_is_used_only_after_its_alloc():
    k = Kernel("early", (), (array("C", "output"), array("t", "private")), (Assign(ref("t"), scalar(1.0), (), "t"),))
    with pytest.raises(LiftError, match="t is used before it is allocated"):
        run(k, {}, {})


@pytest.mark.parametrize(("inputs", "message"), [({}, "input A is missing"), ({"A": np.ones((3, 1))}, r"shape \(3, 1\), expected \(3,\) = \(n\)")])
def test_wrong_inputs_are_refused(inputs, message):
    k = Kernel("copy", ("n",), (array("A", "input", "n"), array("C", "output", "n")), (loop("i", "n", Assign(ref("C", "i"), ref("A", "i"), (), "C")),))
    with pytest.raises(LiftError, match=message):
        run(k, {"n": 3}, inputs)


def test_loops_nest_deeper_than_python_allows():
    body = (Accumulate("sum", ref("C"), ref("A"), (), "C"),)
    for depth in range(30):
        body = (loop(f"i{depth}", 2 if depth == 3 else 1, *body),)
    k = Kernel("deep", (), (array("A", "input"), array("C", "output")), (Assign(ref("C"), scalar(0.0), (), "C"), *body))
    assert run(k, {}, {"A": np.array(3.0)}).outputs["C"] == 6.0


def test_trace_lists_every_access_in_order():
    k = Kernel("add", (), (array("A", "input", 2), array("C", "output")),
               (Assign(ref("C"), ref("A", 1), (), "C"), Accumulate("sum", ref("C"), ref("A", 0), (), "C")))
    assert run(k, {}, {"A": np.ones(2)}, trace=True).trace == (
        ("A", 1, 1, False), ("C", 1, 0, True), ("C", 1, 0, False), ("A", 1, 0, False), ("C", 1, 0, True))


@pytest.mark.parametrize("cast", [float, np.float32, np.longdouble])
@pytest.mark.parametrize("name", QUICK)
def test_what_is_quick_means_what_its_row_says(name, cast):
    for numbers in product(map(cast, ("nan", "inf", "-inf", "0", "1.5", "-2")), repeat=FUNCS[name].arity):
        got = QUICK[name](*numbers)
        assert np.array_equal(got, FUNCS[name].meaning(*numbers), equal_nan=True), numbers
        assert type(got) is cast
