"""Formulas: their text means to sympy what they are, sums equal their terms added up, and what is printed is in a fixed order."""

from __future__ import annotations

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from moapipe.algebra import index
from moapipe.algebra.scalar import Scalar, op, scalar
from moapipe.loops.formula import ONE, ZERO, atom, extreme, number, symbolic
from moapipe.loops.formula import given as bracket
from moapipe.loops.summation import total

NAMES = ("n", "m", "i")


def grown(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    pair = st.tuples(inner, inner)
    return (st.tuples(st.sampled_from(("+", "-", "*", "min", "max")), pair).map(lambda t: op(t[0], *t[1]))
            | st.tuples(st.sampled_from(("//", "%")), inner, st.integers(1, 6)).map(lambda t: op(*t)))


EXPRESSIONS = st.recursive(st.sampled_from(NAMES).map(scalar) | st.integers(-4, 9).map(scalar), grown, max_leaves=5)
POINTS = st.fixed_dictionaries({n: st.integers(0, 12) for n in NAMES})


def value(f, at):
    return f.value(at, {})


def by_sympy(f, at):
    """The value of the text alone, as a reader would work it out."""
    names = {n: sp.Symbol(n, integer=True, nonnegative=True) for n in (*NAMES, "k")}
    return added_up(sp.sympify(str(f), locals=names), {names[n]: sp.Integer(v) for n, v in at.items()})


def added_up(e, at):
    match e:
        case sp.Sum():
            (v, lo, hi), *more = reversed(e.limits)
            inner = sp.Sum(e.function, *reversed(more)) if more else e.function
            return sum((added_up(inner, {**at, v: sp.Integer(k)}) for k in range(int(added_up(lo, at)), int(added_up(hi, at)) + 1)), sp.Integer(0))
        case sp.Piecewise():
            return next(added_up(x, at) for x, c in e.args if added_up(c, at) == sp.true)
        case sp.Symbol():
            return at[e]
        case _:
            return e.func(*(added_up(a, at) for a in e.args)) if e.args else e


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, POINTS)
def test_a_formula_is_what_the_expression_is(e, at):
    assert value(symbolic(e), at) == index.evaluate(e, at)


@settings(max_examples=40, deadline=None)
@given(EXPRESSIONS, POINTS)
def test_its_text_means_the_same_to_sympy(e, at):
    assert by_sympy(symbolic(e), at) == index.evaluate(e, at)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, POINTS)
def test_a_total_is_its_terms_added_up(body, lo, hi, at):
    """Empty ranges and those that begin below 0 too: then nothing may be closed as if it were a range from 0 up."""
    span = range(index.evaluate(lo, at), index.evaluate(hi, at)) if "i" not in str(lo) + str(hi) else None
    if span is not None:
        f = total(symbolic(body), "i", symbolic(lo), symbolic(hi))
        assert value(f, at) == sum(index.evaluate(body, {**at, "i": k}) for k in span)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, POINTS)
def test_never_negative_is_never_negative(e, at):
    f = symbolic(e)
    assert not f.never_negative or value(f, at) >= 0


def test_triangles_of_tiles_close():
    n, steps = symbolic(scalar("n")), symbolic(op("//", op("+", op("*", "i", 4), 3), 12))
    f = total(steps + ONE, "i", ZERO, n)
    assert "Sum" not in str(f)
    assert [value(f, {"n": k}) for k in range(40)] == [sum((4 * i + 3) // 12 + 1 for i in range(k)) for k in range(40)]


ENDS = {"zero": lambda f, c: 0, "down": lambda f, c: op("//", f, c), "up": lambda f, c: op("//", op("+", f, c - 1), c), "size": lambda f, c: "m"}
TILES = {
    "clip": lambda c, x: op("min", c, op("max", x, 0)),
    "difference": lambda c, x: op("-", op("min", c, x), op("min", 0, x)),
    "unfilled": lambda c, x: op("max", 0, op("-", c, op("max", 0, x))),
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("lo", "hi"), [("zero", "up"), ("zero", "down"), ("down", "up"), ("zero", "size"), ("size", "up")])
@pytest.mark.parametrize("shift", [-5, 0, 3])
def test_a_cut_into_tiles_adds_up_without_a_written_sum(tile, lo, hi, shift):
    f, c = op("+", "n", shift), 4
    low, high = ENDS[lo](f, c), ENDS[hi](f, c)
    body = TILES[tile](c, op("-", f, op("*", "i", c)))
    g = total(symbolic(body), "i", symbolic(scalar(low)), symbolic(scalar(high)))
    assert "Sum" not in str(g)
    for at in ({"n": n, "m": m} for n in range(14) for m in (0, 1, 2, 9)):
        span = range(index.evaluate(scalar(low), at), index.evaluate(scalar(high), at))
        assert value(g, at) == sum(index.evaluate(body, {**at, "i": k}) for k in span), at


def test_all_tiles_cover_all():
    n, body = symbolic(scalar("n")), symbolic(TILES["clip"](64, op("-", "n", op("*", "i", 64))))
    whole, up = (symbolic(ENDS[end](scalar("n"), 64)) for end in ("down", "up"))
    assert total(body, "i", ZERO, up) == n
    assert total(body, "i", whole, up) + whole * number(64) == n


def test_written_sums_and_brackets_are_read_by_sympy():
    f = total(bracket(op("<", op("%", "i", 3), "m")) * symbolic(op("min", "i", "m")), "i", ONE, symbolic(scalar("n")))
    f = total(f, "n", ZERO, symbolic(scalar("k")))
    assert str(f).startswith("Sum(") and str(f).endswith(", (i, 1, n - 1), (n, 0, k - 1))")
    assert f.free == {"m", "k"}
    for m, k in ((0, 5), (2, 6), (9, 4)):
        expected = sum(min(i, m) for n in range(k) for i in range(1, n) if i % 3 < m)
        assert value(f, {"m": m, "k": k}) == by_sympy(f, {"m": m, "k": k}) == expected


def test_conditions_over_numbers_are_decided():
    assert bracket(op("<", 1, 2)) == ONE and bracket(op("==", 1, 2)) == ZERO


def test_text_has_one_order_and_bounds_that_never_decide_are_dropped():
    n, m = symbolic(scalar("n")), symbolic(scalar("m"))
    assert str(m * n * n - n * number(2) + ONE) == str(ONE - n * number(2) + n * m * n) == "m*n**2 - 2*n + 1"
    assert str(extreme("Max", (ZERO, n))) == "n" and str(extreme("Min", (n + ONE, n))) == "n"
    assert str(extreme("Max", (ZERO, extreme("Max", (n - m, ZERO))))) == "Max(0, n - m)"
    assert len({atom(next(iter(extreme("Min", (n, m)).terms))[0]), extreme("Min", (m, n))}) == 1
