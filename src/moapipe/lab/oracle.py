"""In: a kernel, a form, a dtype, a scenario. Out: rounded inputs, outputs in extended precision, error bounds, PyTorch's own outputs.

The oracle of float64 is numpy's long double, that of float32 is float64; both start from inputs already rounded to the build's
dtype, so rounding the inputs is nobody's error. docs/validation.md derives the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from ml_dtypes import finfo
from numpy.typing import NDArray

from moapipe.errors import ConfigError, LabError
from moapipe.lab.buffer import DTYPES, tensor
from moapipe.lab.kernel import KernelFile, blamed
from moapipe.lab.scenario import Scenario
from moapipe.targets.isa import dtype_named

WIDER: dict[str, type[np.floating[Any]]] = {"f32": np.float64, "f64": np.longdouble}
"""The oracle's dtype, by that of a build's arithmetic."""
REFUSALS = (RuntimeError, IndexError, ValueError)
"""What PyTorch raises for arrays that it does not take: mostly of an axis of length 0."""
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Truth:
    """`inputs` as the build's buffers hold them, in the dtype of its arithmetic; `outputs` in the oracle's; `bounds` the largest absolute
    error of each element (float64); `baseline` what PyTorch gives in the build's dtype ({} where it has no such call or refuses), and the name of its call."""

    inputs: Arrays
    outputs: Arrays
    bounds: Arrays
    baseline: Arrays
    baseline_name: str


@lru_cache(maxsize=512)
def truth(kernel: KernelFile, form: str, dtype: str, s: Scenario, narrow: frozenset[str] = frozenset(), *, beside: bool = True) -> Truth:
    """The truth of a scenario, shared by all variants and languages; without PyTorch's outputs, and without loading it, where nobody looks
    at them `beside` it. `narrow` inputs are rounded to the dtype, all others to that of its arithmetic; a `narrow` output may err by one
    rounding more. ConfigError for a mistake in the kernel file, LabError when long double is no wider than
    float64 here."""
    own = dtype_named(dtype).arithmetic
    if np.finfo(WIDER[own]).nmant <= np.finfo(DTYPES[own]).nmant:
        raise LabError("this machine's long double is no wider than float64", hint="validate float64 builds on x86-64")
    with np.errstate(all="ignore"):
        drawn = kernel.call("inputs", np.random.default_rng(s.seed), dict(s.sizes), form)
        if s.kind != "plain":
            drawn = kernel.module.STRESS[s.kind](drawn, form)  # type: ignore[union-attr]
        inputs = {k: np.asarray(np.asarray(v, DTYPES[dtype if k in narrow else own]), DTYPES[own]) for k, v in drawn.items()}
        outputs = kernel.call("reference", np, {k: np.asarray(v, WIDER[own]) for k, v in inputs.items()}, form)
        plain = [{k: np.asarray(v, np.float64) for k, v in x.items()} for x in (inputs, outputs)]
        bounds = kernel.call("error_bound", float(np.finfo(DTYPES[own]).eps), *plain, form)
        kernel.gives("error_bound", bounds, tuple(outputs))
        bounds |= {k: _stored(bounds[k], plain[1][k], dtype) for k in bounds if k in narrow}
    held = {k: dtype if k in narrow else own for k in inputs}
    return Truth(inputs, outputs, bounds, *(_baseline(kernel, form, inputs, held) if beside else ({}, "")))


def _stored(bound: NDArray[Any], true: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The bound of a value that is rounded once more when it is stored: by half a unit in its last place, or of the smallest number."""
    row = finfo(DTYPES[dtype])
    return bound + float(row.eps) / 2 * (np.abs(true) + bound) + float(row.smallest_subnormal) / 2


def _baseline(kernel: KernelFile, form: str, inputs: Arrays, held: Mapping[str, str]) -> tuple[Arrays, str]:
    """What PyTorch gives, and the name of its call; nothing where it refuses. It is loaded here and not before: the process that
    validates is never one that measures. ConfigError for a mistake in the kernel file."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    given = {k: tensor(torch, np.array(v, DTYPES[held[k]]), held[k]) for k, v in inputs.items()}
    try:
        with blamed(kernel.path, "baseline"):
            name, run = kernel.call("baseline", torch, given, form)
            return {k: (v.float() if v.dtype == torch.bfloat16 else v).numpy() for k, v in run().items()}, name
    except ConfigError as e:
        if isinstance(e.__cause__, REFUSALS):
            return {}, ""
        raise


@dataclass(frozen=True)
class Error:
    """How far an output is from the truth. `error` and `bound` are of the element that comes closest to its bound, `baseline` is
    PyTorch's largest error; all are relative to the largest |truth| of the output. `ratio` is error over bound; `wrong` counts
    elements beyond it, and `place` is the first of them."""

    output: str
    error: float
    bound: float
    ratio: float
    baseline: float | None
    wrong: int
    place: tuple[int, ...]


def compare(t: Truth, name: str, found: NDArray[Any]) -> Error:
    """An output against the truth; infinities and NaN must be where the truth has them."""
    true = t.outputs[name]
    exact = ~np.isfinite(true)
    with np.errstate(all="ignore"):
        error = np.abs(np.asarray(found, true.dtype) - true).astype(np.float64)
        error[np.isnan(error)] = np.inf
        error[exact] = np.where((found == true) | (np.isnan(found) & np.isnan(true)), 0, np.inf)[exact]
        bound = np.where(exact, 0, t.bounds[name])
        ratio = np.where(error == 0, 0, error / np.maximum(bound, np.finfo(np.float64).tiny))
    size = float(np.max(np.abs(true[~exact]), initial=0)) or 1.0
    if not ratio.size:
        return Error(name, 0.0, 0.0, 0.0, None, 0, ())
    worst = int(np.argmax(ratio))
    beyond = np.argwhere(ratio > 1)
    place = tuple(map(int, beyond[0])) if len(beyond) else ()
    return Error(
        name, float(error.flat[worst]) / size, float(bound.flat[worst]) / size, float(ratio.flat[worst]),
        _own(t, name, exact, size), len(beyond), place,
    )


def _own(t: Truth, name: str, exact: NDArray[Any], size: float) -> float | None:
    if name not in t.baseline:
        return None
    with np.errstate(all="ignore"):
        error = np.abs(np.asarray(t.baseline[name], t.outputs[name].dtype) - t.outputs[name]).astype(np.float64)[~exact]
    finite = error[np.isfinite(error)]
    return float(np.max(finite, initial=0)) / size
