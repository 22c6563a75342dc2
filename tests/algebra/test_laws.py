"""Every named identity on both sides, over awkward shapes; the ⊕ of online softmax as a monoid."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import Dnf, meaning, reduce_definitions, with_normals
from moapipe.algebra.expr import Definition, Definitions
from moapipe.algebra.laws import LAWS, LN_2, LOG2_E, ONLINE_SOFTMAX, combine_softmax
from moapipe.algebra.scalar import Fold, Op, Ref, Scalar, Var, rewrite, walk
from moapipe.errors import AlgebraError

SIZES = [{"r": r, "n": n, "d": d} for r, n, d in [(2, 3, 5), (1, 1, 1), (3, 0, 2), (0, 3, 2), (4, 5, 0), (5, 2, 3)]]
Q, K, V, S, MASK = moa.array("Q", "r", "d"), moa.array("K", "n", "d"), moa.array("V", "n", "d"), moa.scalar_array("s"), moa.array("M", "r", "n")
INPUTS = (Q, K, V, S, MASK)


def kernel(*definitions: Definition, outputs: tuple[str, ...]) -> Dnf:
    return reduce_definitions("case", Definitions(("r", "n", "d"), INPUTS, definitions, outputs))[0]


def scores() -> Definition:
    return Definition("x", ("i", "k"), S * moa.inner("+", "*", Q, moa.transpose(K), index="p"))


def softmax() -> Dnf:
    """Safe softmax, its log-sum-exp, and a reader of the raw scores beside them."""
    x = scores()
    m = Definition("m", ("i",), moa.omega(lambda row: moa.reduce("max", row, index="k"), 1, x.array))
    z = Definition("z", ("i",), moa.select(moa.equal(m.array, -inf), 0, m.array))
    p = Definition("p", ("i", "k"), moa.exp(moa.omega(lambda row, top: row - top, (1, 0), x.array, z.array)))
    t = Definition("t", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, p.array))
    lse = Definition("lse", ("i",), m.array + moa.log(t.array))
    raw = Definition("raw", ("i", "k"), x.array * x.array + moa.select(moa.pointwise("<", x.array, 1), x.array, 0))
    return kernel(x, m, z, p, t, lse, raw, outputs=("p", "lse", "raw"))


def biased() -> Dnf:
    """The exponent holds terms that are no definitions: a mask that is an input, a constant, an unscaled product."""
    x = scores()
    y = Definition("y", ("i", "k"), moa.pointwise("max", x.array + MASK - 0.25, -(x.array)))
    p = Definition("p", ("i", "k"), moa.exp(y.array - MASK * 2))
    return kernel(x, y, p, outputs=("p",))


def output_exponent() -> Dnf:
    """An output may not be rescaled, so the factor goes where it is read."""
    x = scores()
    y = Definition("y", ("i", "k"), x.array + 1)
    return kernel(x, y, Definition("p", ("i", "k"), moa.exp(x.array - y.array)), outputs=("y", "p"))


def trailing_scale() -> Dnf:
    return kernel(Definition("x", ("i", "k"), moa.inner("+", "*", Q, moa.transpose(K), index="p") * (S / 2)), outputs=("x",))


def mixture(guarded: bool, *, own_divisor: bool = False, late: bool = False) -> Dnf:
    """(Σ_k p·v) ÷ t, where an empty fold would divide 0 by 0; with `own_divisor` the divisor moves with the result's last axis."""
    x = scores()
    p = Definition("p", ("i", "k"), moa.exp(x.array))
    t = Definition("t", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, p.array))
    o = Definition("o", ("i", "e"), moa.inner("+", "*", p.array, V, index="k"))
    u = Definition("u", ("i", "e"), moa.exp(o.array)) if own_divisor else t

    def share(row: moa.Expr, total: moa.Expr) -> moa.Expr:
        return moa.select(moa.equal(total, 0), 0, row / total) if guarded else row / (total + 1)

    out = Definition("out", ("i", "e"), moa.omega(share, (0, 0) if own_divisor else (1, 0), o.array, u.array))
    return kernel(x, p, *((o, t) if late else (t, o)), *([u] if own_divisor else []), out, outputs=("out",))


def commuted(d: Dnf) -> Dnf:
    """Every sum of products with its factors exchanged."""

    def go(e: Scalar) -> Scalar:
        match e:
            case Fold("sum", _, _, _, Op("*", (a, b))):
                return replace(e, body=Op("*", (b, a)))
            case _:
                return e

    return with_normals(d, tuple(replace(n, value=rewrite(n.value, go)) for n in d.normals))


def crossed() -> Dnf:
    """The result reads the sum with its axes exchanged: o[j,i] ÷ t[i], where the divisor moves with the sum's second axis."""
    w = Definition("w", ("i", "k"), moa.exp(moa.inner("+", "*", K, moa.transpose(K), index="p")))
    o = Definition("o", ("i", "j"), moa.inner("+", "*", w.array, w.array + 1, index="k"))
    t = Definition("t", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, w.array))
    out = Definition("out", ("i", "j"), moa.omega(lambda row, total: row / total, (1, 0), moa.transpose(o.array), t.array))
    return kernel(w, t, o, out, outputs=("out",))


def exchanged(defined: bool) -> Dnf:
    """c = Σ_k m·Σ_e exp(q)·v, beside o = Σ_k m·v when that is defined."""
    b = Definition("b", ("i", "e"), moa.exp(Q))
    x = Definition("x", ("i", "k"), moa.inner("+", "*", b.array, moa.transpose(V), index="e"))
    c = Definition("c", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, MASK * x.array))
    o = Definition("o", ("i", "e"), moa.inner("+", "*", MASK, V, index="k"))
    y = Definition("y", ("i", "k"), moa.omega(lambda row, t: row - t, (1, 0), x.array, c.array))
    return kernel(b, x, c, *([o] if defined else []), y, outputs=("y", "o") if defined else ("y",))


def shares(logarithm: bool) -> Dnf:
    """The shares of a safe softmax over the keys that a mask shows, none for some rows."""
    s = Definition("x", ("i", "k"), moa.select(moa.pointwise("<", MASK, 0.5), scores().expr, -inf))
    m = Definition("m", ("i",), moa.omega(lambda row: moa.reduce("max", row, index="k"), 1, s.array))
    z = Definition("z", ("i",), moa.select(moa.equal(m.array, -inf), 0, m.array))
    p = Definition("p", ("i", "k"), moa.exp(moa.omega(lambda row, top: row - top, (1, 0), s.array, z.array)))
    t = Definition("t", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, p.array))
    w = Definition("w", ("i", "k"), moa.omega(lambda row, t: moa.select(moa.equal(t, 0), 0, row / t), (1, 0), p.array, t.array))
    lse = Definition("lse", ("i",), m.array + moa.log(t.array))
    return kernel(s, m, z, p, t, w, *([lse] if logarithm else []), outputs=("w", "lse") if logarithm else ("w",))


def weighted(first: bool) -> Dnf:
    """A row times its sum, the sum in front or behind."""
    t = Definition("t", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="p"), 1, Q))
    y = Definition("y", ("i", "e"), moa.omega(lambda row, s: s * row if first else row * row * s, (1, 0), Q, t.array))
    return kernel(t, y, outputs=("y",))


def combined(share: str) -> Dnf:
    """A row's sum of differences, written out or a definition that others read too; with `share` "both" no addend has a factor of its own
    that stays, with "mean" one stays altogether."""
    t = Definition("t", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="p"), 1, Q))

    def mixed(row: moa.Expr, total: moa.Expr) -> moa.Expr:
        return {"both": row * row - row, "mean": row * total - total}.get(share, -(total * row) - (2 * total * (row * row) - row * S))

    y = Definition("y", ("i", "e"), moa.omega(mixed, (1, 0), Q, t.array))
    whole = y.array if share != "inside" else y.expr
    out = Definition("out", ("i",), moa.omega(lambda row: moa.reduce("+", row, index="p"), 1, whole))
    return kernel(t, *([] if share == "inside" else [y]), out, outputs=("out",) if share == "inside" else ("y", "out"))


def sum_of_sums() -> Dnf:
    """s·Σ_a Σ_b M[a,b]·M[a,b]"""
    rows = moa.omega(lambda row: moa.reduce("+", row, index="b"), 1, MASK * MASK)
    return kernel(Definition("x", (), S * moa.reduce("+", rows, index="a")), outputs=("x",))


CASES: dict[str, tuple[Callable[[], Dnf], ...]] = {
    "base2": (softmax, biased, output_exponent),
    "corr": (lambda: exchanged(True),),
    "divide_last": (lambda: LAWS["divide_first"].apply(mixture(True)), lambda: commuted(LAWS["divide_first"].apply(mixture(True))), lambda: LAWS["divide_first"].apply(mixture(True, late=True))),
    "share_by_lse": (lambda: shares(True), lambda: shares(False)),
    "shift_empty": (lambda: LAWS["share_by_lse"].apply(shares(True)),),
    "reciprocal": (lambda: shares(True), lambda: LAWS["divide_first"].apply(mixture(True)), lambda: mixture(True)),
    "sum_first": (lambda: weighted(False),),
    "distribute": (lambda: combined("inside"), lambda: combined("defined")),
    "divide_first": (lambda: mixture(True), lambda: mixture(False), lambda: mixture(True, late=True)),
    "scale_into_query": (softmax, trailing_scale, lambda: kernel(scores(), outputs=("x",)), sum_of_sums),
}
REFUSED: dict[str, Callable[[], Dnf]] = {
    "reciprocal": lambda: mixture(False),
    "divide_first": lambda: mixture(False, own_divisor=True),
    "base2": lambda: kernel(scores(), outputs=("x",)),
    "corr": lambda: exchanged(False),
    "divide_last": lambda: mixture(True),
    "share_by_lse": lambda: mixture(True),
    "shift_empty": lambda: shares(True),
    "sum_first": lambda: weighted(True),
    "distribute": lambda: combined("both"),
    "scale_into_query": lambda: kernel(Definition("x", ("i", "k"), moa.inner("+", "*", Q, moa.transpose(K))), outputs=("x",)),
}


def inputs(sizes: dict[str, int], dtype: type = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = {"Q": ("r", "d"), "K": ("n", "d"), "V": ("n", "d"), "s": (), "M": ("r", "n")}
    return {name: np.asarray(rng.standard_normal(tuple(sizes[e] for e in shape)), dtype) for name, shape in shapes.items()}


def test_every_law_has_cases() -> None:
    assert set(CASES) == set(REFUSED) == set(LAWS)
    assert all(row.name == name and row.text and row.source for name, row in LAWS.items())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("law", "make"), [(law, make) for law, makes in CASES.items() for make in makes])
def test_outputs_keep_their_meaning(law: str, make: Callable[[], Dnf], sizes: dict[str, int]) -> None:
    before = make()
    after = LAWS[law].apply(before)
    assert after != before and after.outputs == before.outputs
    given = inputs(sizes)
    old, new = meaning(before, given, sizes), meaning(after, given, sizes)
    for name in before.outputs:
        np.testing.assert_allclose(new[name], old[name], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_that_matches_nothing_refuses(law: str) -> None:
    with pytest.raises(AlgebraError, match=f"{law} finds no"):
        LAWS[law].apply(REFUSED[law]())


def test_after_both_the_exponent_is_one_subtraction_and_the_fold_one_product() -> None:
    d = LAWS["scale_into_query"].apply(LAWS["base2"].apply(softmax()))
    i, k, p = Var("i"), Var("k"), Var("p")
    assert d.normal("p").value == Op("exp2", (Op("-", (Ref("x", (i, k)), Ref("z", (i,)))),))
    assert d.normal("x").value.body == Op("*", (Ref("scaled", (i, p)), Ref("K", (k, p))))
    assert [v for v, _ in d.normal("scaled").axes] == ["i", "p"]
    assert not any(isinstance(x, Op) and x.name == "exp" for n in d.normals for x in walk(n.value))
    assert pytest.approx(1, rel=1e-16) == LOG2_E * LN_2


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_exponents_stay_at_most_0(sizes: dict[str, int]) -> None:
    d = LAWS["scale_into_query"].apply(LAWS["base2"].apply(softmax()))
    got = meaning(d, {**inputs(sizes), "s": np.asarray(700.0)}, sizes)
    assert (got["x"] - got["z"][:, None] <= 0).all() and np.isfinite(got["p"]).all()


def test_a_name_that_is_taken_is_not_used_again() -> None:
    x = Definition("scaled", ("i", "k"), S * moa.inner("+", "*", Q, moa.transpose(K)))
    d = LAWS["scale_into_query"].apply(kernel(x, outputs=("scaled",)))
    assert [n.name for n in d.normals] == ["scaled2", "scaled"]


# ------------------------------------------------------------------ ⊕

PARTS = [(-inf, 0.0, np.zeros(2)), (0.5, 1.5, np.array([2.0, -1.0])), (-3.0, 1.0, np.array([0.5, 4.0])), (700.0, 2.0, np.array([1.0, 1.0])),
         (-700.0, 3.0, np.array([-1.0, 2.0]))]


def assert_same(a: tuple, b: tuple) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("a", "b", "c"), list(product(PARTS, repeat=3)))
def test_combination_is_associative_and_commutative(a: tuple, b: tuple, c: tuple) -> None:
    assert_same(combine_softmax(combine_softmax(a, b), c), combine_softmax(a, combine_softmax(b, c)))
    assert_same(combine_softmax(a, b), combine_softmax(b, a))


@pytest.mark.parametrize("part", PARTS)
def test_the_unit_changes_nothing(part: tuple) -> None:
    unit = (*ONLINE_SOFTMAX.unit[:2], np.full(2, ONLINE_SOFTMAX.unit[2]))
    with np.errstate(invalid="raise"):
        assert_same(combine_softmax(unit, part), part)
        assert_same(combine_softmax(part, unit), part)
        assert_same(combine_softmax(unit, unit), unit)


@settings(deadline=None)
@given(st.lists(st.one_of(st.just(-inf), st.floats(-700, 700)), min_size=1, max_size=9), st.data())
def test_any_grouping_gives_softmax(s: list[float], data: st.DataObject) -> None:
    """The fold of (s, 1, v) in parts of any lengths is the row's maximum, its sum and its weighted sum."""
    x, v = np.array(s), np.random.default_rng(3).standard_normal((len(s), 2))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(s)), max_size=4)) | {0, len(s)})
    total = (-inf, 0.0, np.zeros(2))
    for lo, hi in pairwise(cuts):
        part = (-inf, 0.0, np.zeros(2))
        for key in range(lo, hi):
            part = ONLINE_SOFTMAX.combine(part, (x[key], 0.0 if x[key] == -inf else 1.0, v[key] * (x[key] > -inf)))
        total = ONLINE_SOFTMAX.combine(total, part)
    peak = x.max()
    weights = np.exp(x - (0 if peak == -inf else peak))
    assert total[0] == peak
    np.testing.assert_allclose(total[1], weights.sum(), rtol=1e-13)
    np.testing.assert_allclose(total[2], weights @ v, rtol=1e-12, atol=1e-13)


def test_divide_first_wants_the_sum_at_its_own_index() -> None:
    with pytest.raises(AlgebraError, match="divide_first finds no"):
        LAWS["divide_first"].apply(crossed())


def test_distribute_leaves_a_difference_from_a_mean_alone() -> None:
    """Σ (x − m) as Σ x − d·m would lose every digit where m is large."""
    with pytest.raises(AlgebraError, match="distribute finds no"):
        LAWS["distribute"].apply(combined("mean"))


def test_distribute_folds_each_addend_in_a_definition_without_what_stays() -> None:
    d = LAWS["distribute"].apply(combined("defined"))
    i, p = Var("i"), Var("p")
    q, t = Ref("Q", (i, p)), Ref("t", (i,))
    assert [n.name for n in d.normals] == ["t", "y", "Q_sum", "Q_sum2", "Q_sum3", "out"]
    assert [d.normal(name).value.body for name in ("Q_sum", "Q_sum2", "Q_sum3")] == [q, Op("*", (q, q)), q]
    assert not any(isinstance(x, Fold) for x in walk(d.normal("out").value)) and t in set(walk(d.normal("out").value))
