"""Sums of terms: the same values as the expression, the same terms for equal expressions, and definitions used again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moapipe.algebra.dnf import Normal
from moapipe.algebra.evaluation import tabulate
from moapipe.algebra.reuse import absorbed, pattern, reuse, unfold
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, op, text
from moapipe.algebra.shorten import cost, ordered
from moapipe.algebra.term import MOST, Overflow, expand, key, render
from moapipe.errors import AlgebraError

I, K = Var("i"), Var("k")
A, B, C = Ref("A", (I,)), Ref("B", (I,)), Ref("s", ())
AXES = (("i", 3),)
RNG = np.random.default_rng(0)
ARRAYS = {"A": RNG.uniform(0.5, 2, 3), "B": RNG.uniform(-2, -0.5, 3), "M": RNG.uniform(0.5, 2, (3, 4)), "s": np.asarray(1.5)}
SIZES = {"n": 4, "m": 3}


def total(var: str, body: Scalar) -> Fold:
    return Fold("sum", var, Num(0), Var("n"), body)


def scalars(bound: tuple[str, ...] = ()) -> st.SearchStrategy[Scalar]:
    """Expressions in A[i], B[i], s, numbers, and M[i, k] inside a sum over k; divisors are never 0."""
    leaves = st.sampled_from([A, B, C, Num(2), Num(0.5), Num(0), *(Ref("M", (I, Var(v))) for v in bound)])
    divisors = st.sampled_from([A, B, C, Op("*", (A, B)), op("+", op("*", A, A), 1)])
    conditions = st.sampled_from([op("<", A, 1), op("==", B, -1), op("<=", B, C), op("and", op("<", A, 1), op("<", B, -1)), op("not", op("<", A, 1)),
                                  op("or", op("<", 1, A), op("<", B, -1))])

    def more(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
        pair = st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner).map(lambda t: op(*t))
        divided = st.tuples(inner, divisors).map(lambda t: op("/", *t))
        chosen = st.tuples(conditions, inner, inner).map(lambda t: op("select", *t))
        return st.one_of(pair, pair, divided, chosen, inner.map(lambda x: op("neg", x)), inner.map(lambda x: op("exp", op("-", x, x))))

    def summed(x: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
        return x.map(lambda body: total("k", body))

    flat = st.recursive(leaves, more, max_leaves=4)
    return flat if bound else st.recursive(st.one_of(flat, summed(scalars(("k",)))), more, max_leaves=3)


def values(e: Scalar) -> np.ndarray:
    return np.asarray(tabulate(e, AXES, SIZES, ARRAYS, np.float64))


@settings(deadline=None, max_examples=200)
@given(scalars())
def test_terms_have_the_values_of_the_expression(e: Scalar) -> None:
    try:
        terms = expand(e)
    except Overflow:
        return
    back = render(terms, ("i", "n", "m"))
    np.testing.assert_allclose(values(back), values(e), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=100)
@given(scalars(), scalars())
def test_sums_commute_and_an_expression_less_itself_is_nothing(x: Scalar, y: Scalar) -> None:
    try:
        assert {(key(t), round(t.coefficient, 9)) for t in expand(op("+", x, y))} == {(key(t), round(t.coefficient, 9)) for t in expand(op("+", y, x))}
        assert all(abs(t.coefficient) < 1e-9 for t in expand(op("-", op("*", x, y), op("*", y, x))))
    except Overflow:
        pass


def test_a_quotient_is_divided_factor_by_factor() -> None:
    sum_ = op("+", op("*", A, A), 1)
    one, two = op("/", op("/", B, sum_), op("neg", A)), op("neg", op("/", B, op("*", sum_, A)))
    assert {key(t) for t in expand(one)} == {key(t) for t in expand(two)} and not expand(op("-", one, two))


def test_names_and_order_of_sums_do_not_matter() -> None:
    m, o = Ref("M", (I, K)), Ref("M", (I, Var("l")))
    one = total("k", total("l", op("*", op("*", m, o), m)))
    two = total("l", op("*", op("*", o, o), total("k", m)))
    assert not expand(op("-", one, two))


def test_conditions_complete_each_other() -> None:
    c = op("<", A, 1)
    whole = op("+", op("select", c, B, 0), op("select", c, 0, B))
    assert [text(render(expand(whole), ()))] == ["B[i]"]
    assert render(expand(op("-", B, op("select", c, B, 0))), ()) == op("select", c, 0, B)
    assert not expand(op("select", c, op("select", op("not", c), B, 0), 0))


def test_too_many_terms_are_left_alone() -> None:
    e: Scalar = op("+", A, B)
    for _ in range(MOST.bit_length()):
        e = op("*", e, op("+", op("exp", e), C))
    with pytest.raises(Overflow):
        expand(e)


N = (("i", Var("m")),)
SUM = Normal("S", N, total("k", op("*", Ref("M", (I, K)), Ref("A", (I,)))))


def test_a_definition_stands_for_what_equals_it_and_back() -> None:
    p = pattern(SUM)
    assert p is not None
    inside = op("*", op("*", B, 3), total("l", op("*", op("*", A, C), Ref("M", (I, Var("l"))))))
    terms = reuse(expand(inside), [p])
    assert text(render(terms, ())) in ("(((3 * S[i]) * B[i]) * s[])", "(((3 * B[i]) * s[]) * S[i])", "(((3 * S[i]) * s[]) * B[i])")
    again = unfold(terms, {"S": (("i",), expand(SUM.value))})
    assert {key(t) for t in again} == {key(t) for t in expand(inside)}


@pytest.mark.parametrize("e", [
    total("k", op("*", op("*", Ref("M", (I, K)), A), Ref("N", (K,)))),                          # something else moves with the sum
    Fold("sum", "k", Num(1), Var("n"), op("*", Ref("M", (I, K)), A)),                           # another range
    total("k", op("*", Ref("M", (K, I)), A)), op("*", Ref("M", (I, I)), A),
])
def test_what_only_looks_like_a_definition_stays(e: Scalar) -> None:
    p = pattern(SUM)
    assert p is not None and {key(t) for t in reuse(expand(e), [p])} == {key(t) for t in expand(e)}


def test_a_condition_stays_where_another_factor_may_be_infinite() -> None:
    c = op("<=", K, I)
    masked = Normal("W", (*N, ("k", Var("n"))), op("exp", op("-", op("select", c, Ref("M", (I, K)), -float("inf")), Ref("A", (I,)))))
    finite, infinite = Normal("F", N, op("+", A, 1)), Normal("L", N, op("log", A))
    by = {n.name: n for n in (masked, finite, infinite)}
    w = Ref("W", (I, K))
    for other, dropped in ((Ref("F", (I,)), True), (Ref("L", (I,)), False)):
        (t,) = expand(op("select", c, op("*", w, other), 0))
        assert (not absorbed(t, by).guards) == dropped
    (t,) = expand(op("select", c, op("/", w, Ref("F", (I,))), 0))
    assert absorbed(t, by) == t


def test_definitions_in_a_circle_are_refused() -> None:
    x, y = Normal("x", (), Ref("y", ())), Normal("y", (), Ref("x", ()))
    with pytest.raises(AlgebraError, match="define each other"):
        ordered([x, y])
    assert [n.name for n in ordered([Normal("x", (), Ref("y", ())), Normal("y", (), Num(1))])] == ["y", "x"]
    assert cost([SUM]) > cost([finite_reader()])


def finite_reader() -> Normal:
    return Normal("R", N, Ref("S", (I,)))
