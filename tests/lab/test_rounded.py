"""Probabilistic error analysis: no formula in single precision errs by more than its bound, in any order of its sums; mistakes do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moapipe.lab.rounded import Rounded, bounds, einsum

EPS = float(np.finfo(np.float32).eps)
FORMULAS = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: 1 - a * 3 / 7 - b,
    "product": lambda a, b: a * b,
    "cancelling": lambda a, b: (a * b + a) - a * b,
    "matmul": lambda a, b: a @ b.swapaxes(-1, -2),
    "from the right": lambda a, b: 2 * (b @ a.swapaxes(-1, -2)),
    "twice": lambda a, b: (a @ b.swapaxes(-1, -2)) @ a,
    "sum of an axis": lambda a, b: (a * b).sum(-1, keepdims=True) * a,
    "einsum": lambda a, b: einsum("ij,kj->ik", a, b),
    "places": lambda a, b: a.transpose((1, 0)).reshape(*a.shape) + b[:1] * -b[::-1],
}


def made(name, a, b):
    return bounds(lambda x: {"y": FORMULAS[name](x["a"], x["b"])}, {"a": a, "b": b}, ("a",), EPS)["y"]


@pytest.mark.parametrize("name", FORMULAS)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40))
def test_no_error_is_beyond_its_bound(name, seed, n):
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((3, n)).astype(np.float32) for _ in range(2))
    wide = [x.astype(np.float64) for x in (a, b)]
    bound, true = made(name, *wide), FORMULAS[name](*wide)
    order = rng.permutation(n) if name in ("matmul", "einsum", "from the right") else slice(None)
    assert (abs(FORMULAS[name](a[:, order], b[:, order]) - true) <= bound).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_a_bound_is_no_licence(name):
    """It is far below a relative mistake of 10⁻³."""
    a, b = (np.random.default_rng(k).standard_normal((40, 40)) for k in (1, 2))
    assert (made(name, a, b) < 1e-3 * abs(FORMULAS[name](a, b)).max()).all()


def test_what_is_not_rounded_stays_an_array():
    a = np.random.default_rng(3).standard_normal((5, 5))
    assert isinstance(einsum("ij,jk->ik", a, a), np.ndarray) and np.allclose(einsum("ij,jk->ik", a, a), a @ a)
    r = Rounded(a, EPS, np.random.default_rng(0))
    assert isinstance(einsum("ij,jk->ik", a, r), Rounded) and isinstance(a @ r, Rounded) and isinstance(a + r, Rounded)


def test_an_exact_zero_has_no_error():
    assert not made("matmul", np.zeros((3, 4)), np.ones((3, 4))).any()
