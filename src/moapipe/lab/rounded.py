"""In: a formula and its inputs. Out: how far roundings can move its results: probabilistic error analysis by running it.

A formula that is written for arrays runs on `Rounded` ones as it stands. Every operation moves its result at random by what its
roundings may amount to, so errors go through the formula as they do through a kernel, with what they have in common. A sum of n
terms is charged with √n·u·Σ|terms|: an error beyond λ times that has a probability of 2·exp(−λ²/2) at most, in any order of the sum
(Higham & Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019, Theorem 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDINGS = 2
"""Of an operation: the laws move a factor into a sum, and replace a division by two operations."""
RUNS = 12
LIMIT = 8.0
"""λ: results further away than so many times the largest of RUNS are wrong."""
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Rounded:
    """`value` as one computation with machine epsilon `eps` and random roundings gives it."""

    value: Floats
    eps: float
    random: np.random.Generator

    __array_ufunc__ = None  # array + Rounded is Rounded.__radd__

    @property
    def unit(self) -> float:
        """The rounding that an operation is charged with."""
        return ROUNDINGS * self.eps / 2

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def moved(self, value: Any, size: Any) -> Rounded:
        """A result that roundings of `size`, in units, have moved."""
        shift = self.unit * size
        return Rounded(value + np.where(self.random.integers(0, 2, np.shape(value), dtype=np.bool_), shift, -shift), self.eps, self.random)

    def map(self, f: Callable[[Any], Any]) -> Rounded:
        """f takes elements from other places and makes none."""
        return Rounded(f(self.value), self.eps, self.random)

    def swapaxes(self, a: int, b: int) -> Rounded:
        return self.map(lambda x: x.swapaxes(a, b))

    def reshape(self, *shape: int) -> Rounded:
        return self.map(lambda x: x.reshape(*shape))

    def transpose(self, order: Sequence[int]) -> Rounded:
        return self.map(lambda x: x.transpose(order))

    def __getitem__(self, index: Any) -> Rounded:
        return self.map(lambda x: x[index])

    def __neg__(self) -> Rounded:
        return self.map(np.negative)

    def __add__(self, x: Any) -> Rounded:
        y = _plain(x)
        return self.moved(self.value + y, abs(self.value) + abs(y))

    __radd__ = __add__

    def __sub__(self, x: Any) -> Rounded:
        return self + -x

    def __rsub__(self, x: Any) -> Rounded:
        return -self + x

    def __mul__(self, x: Any) -> Rounded:
        value = self.value * _plain(x)
        return self.moved(value, abs(value))

    __rmul__ = __mul__

    def __truediv__(self, x: float) -> Rounded:
        return self * (1 / x)

    def sum(self, axis: int, keepdims: bool = False) -> Rounded:
        size = abs(self.value).sum(axis, keepdims=keepdims)
        return self.moved(self.value.sum(axis, keepdims=keepdims), self.shape[axis] ** 0.5 * size)

    def __matmul__(self, x: Any) -> Rounded:
        return self.product(self.value, _plain(x), np.matmul, self.shape[-1])

    def __rmatmul__(self, x: Any) -> Rounded:
        return self.product(x, self.value, np.matmul, self.shape[-2])

    def product(self, a: Floats, b: Floats, multiply: Callable[[Floats, Floats], Floats], terms: int) -> Rounded:
        """Sums of `terms` products each."""
        return self.moved(multiply(a, b), (terms + 1) ** 0.5 * multiply(abs(a), abs(b)))


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, Rounded) else x


def summed(spec: str, a: Any, b: Any) -> Any:
    """numpy's einsum as a product of matrices, which is many times faster than its own loops."""
    return np.einsum(spec, a, b, optimize=True)


def einsum(spec: str, a: Any, b: Any) -> Any:
    """numpy's einsum of two arrays, Rounded when one of them is: sums of products."""
    rounded = next((x for x in (a, b) if isinstance(x, Rounded)), None)
    x, y = _plain(a), _plain(b)
    if rounded is None:
        return summed(spec, x, y)
    left, right, out = spec.replace("->", ",").split(",")
    extents = dict(zip(left + right, x.shape + y.shape, strict=True))
    return rounded.product(x, y, partial(summed, spec), prod(n for k, n in extents.items() if k not in out))


def bounds(formula: Callable[[dict[str, Any]], Mapping[str, Any]], inputs: Mapping[str, Any], rows: Sequence[str], eps: float) -> dict[str, Floats]:
    """The largest error of each output of the formula in arithmetic of `eps`: LIMIT times the largest of RUNS runs, the same for all
    elements. All inputs are exact; those in `rows` are handed over as Rounded, so every operation after them is."""
    true = formula(dict(inputs))
    worst = dict.fromkeys(true, 0.0)
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        made = formula({**inputs, **{n: Rounded(np.asarray(inputs[n], np.float64), eps, random) for n in rows}})
        worst = {n: max(w, float(np.max(abs(made[n].value - true[n]), initial=0))) for n, w in worst.items()}
    return {n: np.full(np.shape(true[n]), LIMIT * w) for n, w in worst.items()}
