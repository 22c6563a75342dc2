"""Probabilistic error analysis: no formula in single precision errs by more than its bound, in any order of its sums; mistakes do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moapipe.lab.kernel import load
from moapipe.lab.oracle import truth
from moapipe.lab.place import root
from moapipe.lab.rounded import Rounded, bounds, einsum
from moapipe.lab.scenario import Scenario

EPS, TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
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


@pytest.mark.parametrize("logit", [-86, -88, -95, -103])
@pytest.mark.parametrize("name", ["block_published_forward_backward", "block_forward_backward"])
def test_what_underflows_in_a_block_is_within_its_bound(name, logit, monkeypatch):
    """exp(−|u|) below the normal numbers is 0 in a kernel, and what a gate's derivative, U and rows make of that are no subnormal numbers."""
    kernel = load(name, root())
    formulas = kernel.module.published if name == "block_forward_backward" else kernel.module
    s = Scenario(tuple((size, 1) for size in kernel.sizes), "plain", 1)
    x = {k: 50 * v if k in ("gamma2", "Wu", "Wd", "dY") else v for k, v in truth(kernel, "forward_backward", "f32", s, beside=False).inputs.items()}
    x = {k: np.asarray(v, np.float64) for k, v in x.items()}
    sigmoid, seen = formulas.sigmoid, []
    monkeypatch.setattr(formulas, "sigmoid", lambda u: seen.append(u) or sigmoid(u))
    kernel.module.gradients(x)
    x["Wg"] *= logit / seen[0].item()
    true = kernel.module.gradients(x)
    monkeypatch.setattr(formulas, "sigmoid", lambda u: sigmoid(u) * (sigmoid(u) >= TINY))
    flushed = kernel.module.gradients(x)
    monkeypatch.setattr(formulas, "sigmoid", sigmoid)
    bound = kernel.call("error_bound", EPS, x, true, "forward_backward")
    assert any((flushed[n] != true[n]).any() for n in true) == (logit < -87)
    assert all((abs(flushed[n] - true[n]) <= bound[n]).all() for n in true)


def test_what_is_not_rounded_stays_an_array():
    a = np.random.default_rng(3).standard_normal((5, 5))
    assert isinstance(einsum("ij,jk->ik", a, a), np.ndarray) and np.allclose(einsum("ij,jk->ik", a, a), a @ a)
    r = Rounded(a, EPS, np.random.default_rng(0))
    assert isinstance(einsum("ij,jk->ik", a, r), Rounded) and isinstance(a @ r, Rounded) and isinstance(a + r, Rounded)


def test_an_exact_zero_has_no_error():
    assert not made("matmul", np.zeros((3, 4)), np.ones((3, 4))).any()
