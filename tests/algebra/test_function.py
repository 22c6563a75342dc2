"""Every scalar function against Python's own mathematics, every monoid's unit and associativity, on ordinary and extreme values."""

import math
from collections.abc import Callable
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moapipe.algebra.function import FUNCS, MONOIDS, STYLES


def ieee_divide(a: float, b: float) -> float:
    if b == 0:
        return nan if a == 0 or isnan(a) else math.copysign(inf, a) * math.copysign(1, b)
    return a / b


REFERENCE: dict[str, Callable[..., float]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": ieee_divide,
    "//": lambda a, b: math.floor(a / b), "%": lambda a, b: a - b * math.floor(a / b), "neg": lambda a: -a,
    "min": min, "max": max, "abs": abs, "exp": math.exp, "exp2": lambda a: 2.0**a, "log": math.log, "log2": math.log2, "sqrt": math.sqrt, "floor": math.floor,
    "reciprocal": lambda a: ieee_divide(1, a), "sigmoid": lambda a: 1 / (1 + math.exp(-a)), "select": lambda c, a, b: a if c else b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, "==": lambda a, b: a == b,
    "and": lambda a, b: bool(a and b), "or": lambda a, b: bool(a or b), "not": lambda a: not a,
}
FINITE = (-3.5, -1.0, -0.25, 0.5, 1.0, 2.0, 7.25)
INTEGERS = (-7, -2, 1, 3, 8)


def test_every_function_has_a_reference() -> None:
    assert set(REFERENCE) == set(FUNCS)


@pytest.mark.parametrize("name", FUNCS)
def test_meaning(name: str) -> None:
    row = FUNCS[name]
    pool = INTEGERS if name in ("//", "%") else FINITE
    values = [v for v in pool if row.domain[0] <= v <= row.domain[1]]
    for k, a in enumerate(values):
        args = (a, values[(k * 3 + 1) % len(values)], values[(k * 5 + 2) % len(values)])[: row.arity]
        if name in ("select", "and", "or", "not"):
            args = tuple(bool(k % 2) if i == 0 else x for i, x in enumerate(args))
        assert row.meaning(*args) == pytest.approx(REFERENCE[name](*args), rel=1e-15), args


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("name", [n for n, f in FUNCS.items() if n not in ("<", "<=", "==", "and", "or", "not", "select")])
def test_the_dtype_stays(name: str, dtype: type) -> None:
    x = np.asarray([0.5, 1.0, 2.0], dtype)
    assert np.asarray(FUNCS[name].meaning(*[x] * FUNCS[name].arity)).dtype == dtype


def test_extreme_values() -> None:
    with np.errstate(divide="ignore"):
        assert FUNCS["exp2"].meaning(-inf) == 0 == FUNCS["exp"].meaning(-inf)
        assert FUNCS["log"].meaning(0.0) == -inf == FUNCS["log2"].meaning(0.0)
        assert FUNCS["reciprocal"].meaning(-0.0) == -inf
    assert isnan(FUNCS["max"].meaning(nan, 1.0))
    u = np.array([-inf, -1e4, -745.0, 0.0, 40.0, 1e4, inf])
    with np.errstate(over="raise", invalid="raise"):
        s = FUNCS["sigmoid"].meaning(u)
    assert s[0] == s[1] == 0 < s[2] and s[3] == 0.5 and s[4] == s[5] == s[6] == 1
    assert isnan(FUNCS["sigmoid"].meaning(np.array([nan]))[0])


@pytest.mark.parametrize("name", MONOIDS)
@given(a=st.integers(-50, 50), b=st.integers(-50, 50), c=st.integers(-50, 50))
def test_monoid(name: str, a: int, b: int, c: int) -> None:
    row = MONOIDS[name]
    f = FUNCS[row.function].meaning
    assert f(f(a, b), c) == f(a, f(b, c))
    assert f(row.unit, a) == a == f(a, row.unit)
    assert not row.commutative or f(a, b) == f(b, a)


@pytest.mark.parametrize("name", FUNCS)
def test_every_style_writes_every_argument(name: str) -> None:
    row = FUNCS[name]
    assert len(row.template) == len(row.symbol) == len(STYLES)
    marks = [f"@{k}@" for k in range(row.arity)]
    for template in row.template:
        written = template.format(*marks, l=marks[0], r=marks[-1])
        assert all(m in written for m in marks)
    assert (row.glyph, row.ascii, row.latex) == row.template[:3]
