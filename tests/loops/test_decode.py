"""Decoding with lengths that come with the data: what lies behind them never shows, and steps add up to the causal forward pass."""

from __future__ import annotations

import numpy as np
import pytest
from tests.loops.test_cost_kernels import denoted
from tests.loops.test_lift_meaning import assert_means, derived, meant

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import dnf_hash, meaning, reduce_definitions
from moapipe.algebra.expr import Definition, Definitions
from moapipe.algebra.scalar import Num, Var, op
from moapipe.errors import AlgebraError, LiftError, TargetError
from moapipe.lab.kernel import load
from moapipe.lab.place import root
from moapipe.loops.cost import count
from moapipe.loops.interpret import run
from moapipe.loops.lift import apply_script
from moapipe.loops.onf import Assign, Kernel, Loop, leaves
from moapipe.loops.share import lower
from moapipe.loops.site import fullest
from moapipe.targets.emit import emit

FILE = load("decode", root())
VARIANTS = tuple(FILE.variants)
SIZES = {"batch": 4, "kv_heads": 2, "group": 3, "max_len": 27, "d_k": 3, "d_v": 5}


def drawn(sizes, lengths, *, seed=3):
    """Inputs with these lengths and NaN behind them."""
    x = {k: np.asarray(v, np.float64) for k, v in FILE.call("inputs", np.random.default_rng(seed), sizes, "step").items()}
    lengths = np.asarray(lengths, np.float64)
    unused = np.arange(sizes["max_len"]) >= lengths[:, None]
    return {**x, "lengths": lengths, **{c: np.where(unused[:, None, :, None], np.nan, x[c]) for c in "KV"}}


def attend(q, keys, values, scale):
    """Plain attention of one query head."""
    s = scale * (keys @ q)
    w = np.exp(s - s.max())
    return (w / w.sum()) @ values


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lengths", [(0, 1, 13, 26), (0, 0, 0, 0), (8, 9, 10, 11)])
def test_what_lies_behind_a_length_never_shows(variant, lengths):
    """After every lift; splits without any position among them (lengths of 0 leave all but one empty)."""
    states, last = derived("decode", "step", variant), None
    wanted = meant(denoted("decode", "step"), SIZES, drawn(SIZES, lengths))
    for title, k in states:
        if k.body != last and (last is None or k is states[-1][1] or "skip" in title or "online" in title or "rebase" in title or "decide" in title):
            got = assert_means(wanted, title, k)
            assert np.isfinite(got.outputs["out"]).all()
        last = k.body


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_each_query_head_reads_its_own_key_head(variant, group):
    """Distinct values a head; one key head is multi-query attention."""
    for heads in (1, 2):
        sizes = SIZES | {"kv_heads": heads, "group": group, "max_len": 11}
        x = drawn(sizes, (0, 3, 7, 10))
        got = run(derived("decode", "step", variant)[-1][1], sizes, x).outputs
        for b, t in enumerate((0, 3, 7, 10)):
            for h in range(heads):
                assert (got["keys"][b, h, t] == x["k_new"][b, h]).all() and (got["values"][b, h, t] == x["v_new"][b, h]).all()
                for g in range(group):
                    want = attend(x["Q"][b, h, g], got["keys"][b, h, : t + 1], got["values"][b, h, : t + 1], x["scale"])
                    np.testing.assert_allclose(got["out"][b, h, g], want, rtol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_the_causal_forward_pass_row_by_row(variant):
    """From an empty cache of NaN, token by token, in place; the heads of the forward pass are batch · heads, its keys repeated."""
    steps = 9
    sizes = SIZES | {"batch": 2, "group": 2, "max_len": steps}
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((steps, 2, 2, *rest)) for rest in ((2, 3), (3,), (5,)))
    kernel, scale = derived("decode", "step", variant)[-1][1], np.asarray(0.6)
    caches = {"K": np.full((2, 2, steps, 3), np.nan), "V": np.full((2, 2, steps, 5), np.nan)}
    rows = []
    for t in range(steps):
        x = {"Q": q[t], "k_new": k[t], "v_new": v[t], "lengths": np.full(2, float(t)), "scale": scale, **caches}
        out = run(kernel, sizes, x).outputs
        caches = {"K": out["keys"], "V": out["values"]}
        rows.append(out["out"])
    flat = {"Q": np.moveaxis(q, 0, 3).reshape(8, steps, 3), "K": np.repeat(np.moveaxis(k, 0, 2).reshape(4, steps, 3), 2, 0),
            "V": np.repeat(np.moveaxis(v, 0, 2).reshape(4, steps, 5), 2, 0), "scale": scale}
    forward = load("attention_forward", root()).call("reference", np, flat, "causal")["out"].reshape(2, 2, 2, steps, 5)
    np.testing.assert_allclose(np.stack(rows, 3), forward, rtol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lengths", [(-3.0, 1e9, 26.5, 27.0), (-1.0, -1.0, -1.0, -1.0)])
def test_lengths_that_break_the_contract_stay_inside_the_caches(variant, lengths):
    """The interpreter refuses an index that leaves its array. A length beyond the cache is its last position."""
    x = FILE.call("inputs", np.random.default_rng(0), SIZES, "step") | {"lengths": np.asarray(lengths)}
    got = run(derived("decode", "step", variant)[-1][1], SIZES, {k: np.asarray(v, np.float64) for k, v in x.items()})
    for b, t in enumerate(lengths):
        assert (got.outputs["keys"][b, :, 26] == x["k_new"][b]).all() == (t >= 26)


def test_counts_are_of_the_fullest_caches():
    """Both caches once, one row of each written, and the lengths themselves no access."""
    for variant in VARIANTS:
        c = count(derived("decode", "step", variant)[-1][1], SIZES, 8)
        b, h, n, d, e = (SIZES[s] for s in ("batch", "kv_heads", "max_len", "d_k", "d_v"))
        assert (c.footprint["K"].read, c.footprint["V"].read) == (b * h * n * d, b * h * n * e)
        assert (c.footprint["K"].written, c.footprint["V"].written) == (b * h * d, b * h * e)
        assert c.footprint["lengths"].read == 0
    k = derived("decode", "step", "rows")[-1][1]
    assert fullest(k) is not k and fullest(fullest(k)) is not None
    plain = derived("matmul", "nn", "naive")[-1][1]
    assert fullest(plain) is plain


# ------------------------------------------------------------------ what is refused

N, K, NEW, T = Var("n"), moa.array("K", "n"), moa.scalar_array("x"), moa.array("t", 1)


def updated(value, *others, updates=(("keys", "K"),), outputs=("keys",)):
    return reduce_definitions("case", Definitions(("n",), (K, NEW, T), (Definition("keys", ("k",), value), *others), outputs, updates))[0]


HERE = moa.equal(moa.iota("n"), moa.psi(0, moa.pointwise("min", moa.pointwise("floor", T), moa.size("n - 1"))))


def test_an_update_stores_only_what_changes():
    dnf = updated(moa.select(HERE, NEW, K))
    k = lower(dnf)
    ((leaf, _, _),) = leaves(k.body)
    assert leaf.target.array == "K" and len(leaf.where) == 2 and k.array("K").becomes == "keys" and len(k.arrays) == 3
    x = {"K": np.arange(5.0), "x": np.asarray(9.0), "t": np.array([2.0])}
    assert run(k, {"n": 5}, x).outputs["keys"].tolist() == [0, 1, 9, 3, 4] == meaning(dnf, x, {"n": 5})["keys"].tolist()
    assert dnf_hash(dnf) != dnf_hash(updated(moa.select(HERE, NEW, K), updates=()))


@pytest.mark.parametrize(("value", "others", "message"), [
    (K + NEW, (), "keys is not select"),
    (moa.select(HERE, NEW, moa.reverse(K)), (), "keys is not select"),
    (moa.select(moa.equal(K, NEW), NEW, K), (), "keys is not select"),
    (moa.select(HERE, NEW, K), (Definition("old", ("k",), K + 1),), "old reads K as it was"),
])  # fmt: skip
def test_updates_that_are_refused(value, others, message):
    with pytest.raises(LiftError, match=message):
        lower(updated(value, *others, outputs=("keys", *(o.name for o in others))))


@pytest.mark.parametrize("updates", [(("keys", "missing"),), (("missing", "K"),)])
def test_an_update_is_an_output_of_an_input(updates):
    with pytest.raises(AlgebraError, match="is no output, or not of an input"):
        updated(moa.select(HERE, NEW, K), updates=updates)


def test_a_parallel_loop_whose_length_comes_with_the_data_is_refused():
    k = apply_script(lower(updated(moa.select(HERE, NEW, K))), [{"clip": {"axis": "k"}}], {}, {})[-1].kernel
    bad = Kernel(k.name, k.sizes, k.arrays, tuple(Loop(s.var, s.lo, s.hi, s.body, "parallel") for s in k.body))
    for target in ("c", "fortran", "cuda"):
        with pytest.raises(TargetError, match="comes with the data"):
            emit(bad, target, "avx2", "f64")


def test_a_length_that_nothing_bounds_cannot_be_counted():
    k = lower(updated(moa.select(moa.equal(moa.iota("n"), moa.psi(0, moa.pointwise("floor", T))), NEW, K)))
    with pytest.raises(LiftError):
        count(k, {"n": 4}, 8)


PARTS = {"axis": "s", "maximum": "peak", "part": "p", "weights": "weights", "folds": ["tp", "mp"], "shift": "safe"}
SPLITS = [
    {"split": {"axis": "k", "by": 6, "outer": "kk", "inner": "kr", "only": ["scores", "masked", "peak", "weights", "total", "mixed"]}},
    {"split": {"axis": "kr", "by": 2, "outer": "s", "inner": "ki"}},
    {"split_fold": {"definition": "peak", "axis": "s", "into": "p"}},
    {"split_fold": {"definition": "total", "axis": "s", "into": "tp"}},
    {"split_fold": {"definition": "mixed", "axis": "s", "into": "mp"}},
]


def naive():
    return derived("decode", "step", "split_kv")[0][1]


@pytest.mark.parametrize(("script", "arguments", "message"), [
    ([], PARTS | {"part": "scores", "folds": []}, "peak is no fold of scores over s"),
    (SPLITS, PARTS | {"folds": ["tp"]}, "mp is no sum linear in weights"),
    (SPLITS, PARTS | {"weights": "masked"}, "masked is not exp2"),
    (SPLITS, PARTS | {"folds": ["tp", "mp", "total"]}, "does not add total over s"),
])  # fmt: skip
def test_parts_that_cannot_have_a_maximum_of_their_own(script, arguments, message):
    with pytest.raises(LiftError, match=message):
        apply_script(naive(), [*script, {"rebase": arguments}], {}, {})


def test_parts_have_a_maximum_of_their_own():
    k = apply_script(naive(), [*SPLITS, {"rebase": PARTS}], {}, {})[-1].kernel
    weights = next(leaf for leaf, _, _ in leaves(k.body) if leaf.name == "weights")
    assert isinstance(weights, Assign) and "p_safe" in repr(weights.value) and "p_factor" in {a.name for a in k.arrays}


def test_a_choice_that_is_not_made_stays():
    with pytest.raises(LiftError, match="no choice in mixed is proved to be made"):
        apply_script(naive(), [{"decide": {"definition": "mixed"}}], {}, {})
    assert op("<", Num(0), N).name == "<"
