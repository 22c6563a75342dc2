"""Our exp2, exp and sigmoid, in vectors, blocks and scalars: within one relative unit of the dtype on the whole line, exact at its ends."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets import tiles
from tests.targets.compiled import HERE, NUMPY, build, call, compiler

from moapipe.targets.emit import emit
from moapipe.targets.isa import ARITHMETIC, ISAS
from moapipe.targets.table import TARGETS

UNITS = [(t, isa, dtype) for t in TARGETS if not (TARGETS[t].device or TARGETS[t].offloads) and compiler(t) for isa in HERE for dtype in ARITHMETIC]
WIDE = np.longdouble
EXACT = {"exp2": np.exp2, "exp": np.exp, "sigmoid": lambda u: np.where(u < 0, np.exp(-np.abs(u)), 1) / (1 + np.exp(-np.abs(u)))}
UNITS_OF_EPS = {"exp2": 0.75, "exp": 1.0, "sigmoid": 2.0}     # exp2 has 0.62 where multiply-add is one instruction; sigmoid adds a sum, a quotient
ENDS = {"exp2": {0.0: 1.0, -np.inf: 0.0, np.inf: np.inf, 5000.0: np.inf, -5000.0: 0.0}, "sigmoid": {0.0: 0.5, -np.inf: 0.0, np.inf: 1.0, 700.0: 1.0},
        "exp": {0.0: 1.0, -np.inf: 0.0, np.inf: np.inf, 5000.0: np.inf, -5000.0: 0.0, 710.0: np.inf, -750.0: 0.0}}


def arguments(name, dtype, count):
    """Dense near 0, wide over all finite results, both sides of every integer and half integer."""
    rng = np.random.default_rng(11)
    most = {"f32": 127.0, "f64": 1023.0}[dtype] * (1.0 if name == "exp2" else np.log(2))
    steps = np.arange(-100, 100) / 2
    edges = np.concatenate([np.nextafter(NUMPY[dtype](s), NUMPY[dtype](t)) for s in steps for t in ([-np.inf, np.inf],)])
    near = rng.normal(size=count // 2)
    return np.concatenate([edges, near, rng.uniform(-most * 0.99, most * 0.999, count - len(edges) - len(near))]).astype(NUMPY[dtype])


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
@pytest.mark.parametrize("kind", ["lane", "serial"])
def test_relative_error_and_ends(kind, unit, tmp_path):
    target, isa, dtype = unit
    v = ISAS[isa].lanes(dtype)
    source = emit(tiles.functions(EXACT, kind, v), target, isa, dtype)
    library = build(source, target, isa, dtype, tmp_path)
    for k, name in enumerate(EXACT):
        one_function(name, dtype, lambda x, k=k: call(library, source.manifest, {"n": len(x) // (2 * v)}, {"a": x, "b": x}, dtype)[f"y{k}"])


def one_function(name, dtype, compute):
    x = arguments(name, dtype, 8192)
    y = compute(x)
    exact = EXACT[name](x.astype(WIDE))
    assert np.max(np.abs(y - exact) / exact) <= UNITS_OF_EPS[name] * np.finfo(NUMPY[dtype]).eps
    ends = list(ENDS[name])
    x[: len(ends)], x[len(ends)] = ends, np.nan
    y = compute(x)
    assert y[: len(ends)].tolist() == list(ENDS[name].values())
    assert np.isnan(y[len(ends)])
