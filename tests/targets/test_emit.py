"""Emitted kernels, compiled and called, equal the interpreter on every nest, in every language, instruction set and dtype."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from tests.loops.nests import NESTS, sizes_for
from tests.targets import tiles
from tests.targets.compiled import HERE, NUMPY, build, call, compiler

from moapipe.algebra.function import FUNCS
from moapipe.algebra.index import evaluate
from moapipe.loops.interpret import run
from moapipe.loops.lift.storage import prefetch
from moapipe.targets.emit import emit
from moapipe.targets.isa import ARITHMETIC, ISAS
from moapipe.targets.table import TARGETS

LANGUAGES = [t for t in TARGETS if not (TARGETS[t].device or TARGETS[t].offloads) and compiler(t)]
UNITS = [(t, isa, dtype) for t in LANGUAGES for isa in HERE for dtype in ARITHMETIC]
EPS = {"f32": 2e-6, "f64": 4e-15}


def lanes(isa, dtype):
    return ISAS[isa].lanes(dtype)


def random_inputs(kernel, sizes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {a.name: tuple(evaluate(s, sizes) for s in a.shape) for a in kernel.arrays if a.space == "input"}
    return {n: rng.normal(size=s).astype(NUMPY[dtype]) for n, s in shapes.items()}


def check(kernel, unit, cases, folder, threads=(1, 3), tolerance=1.0, inputs=random_inputs):
    """Compile once, compare with the interpreter in float64 at every size."""
    target, isa, dtype = unit
    source = emit(kernel, target, isa, dtype)
    library = build(source, target, isa, dtype, folder)
    for sizes in cases:
        given = inputs(kernel, sizes, dtype)
        expected = run(kernel, sizes, {n: v.astype(np.float64) for n, v in given.items()}).outputs
        for p in threads:
            got = call(library, source.manifest, sizes, given, dtype, p)
            for name, value in expected.items():
                scale = np.max(np.abs(value[np.isfinite(value)]), initial=1.0)
                np.testing.assert_allclose(got[name], value, rtol=tolerance * EPS[dtype], atol=tolerance * EPS[dtype] * scale, err_msg=f"{name} at {sizes}")


def scalar_cases():
    """Scalar text is the same for every instruction set: f32 needs one, and the nest with most of it needs all."""
    return [(n, u) for n in NESTS for u in UNITS if u[1] == "plain" or u[2] == "f64" or n == "tiled_scores_causal"]


@pytest.mark.parametrize("name, unit", scalar_cases(), ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_nests_without_lanes(name, unit, tmp_path):
    kernel = NESTS[name]
    check(kernel, unit, [sizes_for(kernel, n) for n in (0, 1, 2, 5, 9)], tmp_path, tolerance=8)


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
def test_guarded_lanes_and_folds(unit, tmp_path):
    v = lanes(*unit[1:])
    sizes = [{"n": 2, "m": m} for m in (0, 1, v - 1, v, v + 1, 2 * v, 3 * v - 1, 4 * v + 1)]
    check(tiles.row_sums(v), unit, sizes, tmp_path, tolerance=4)


@pytest.mark.parametrize("unit", [u for u in UNITS if u[1] == "plain"], ids="-".join)
def test_shared_sums(unit, tmp_path):
    """Wrong by whole terms where an update is lost: many short iterations on three threads."""
    check(tiles.shared(), unit, [{"n": n, "m": m} for n, m in ((0, 2), (1, 1), (5000, 3))], tmp_path, tolerance=64)


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
def test_register_tile_with_packed_operands(unit, tmp_path):
    v = lanes(*unit[1:])
    sizes = [{"m": m, "n": n, "p": p} for m, n, p in ((0, 3, 2), (1, 1, 1), (6, 2 * v, 5), (7, 2 * v + 1, 3), (13, v - 1 or 1, 9), (5, 4 * v, 0))]
    check(tiles.product(6, v), unit, sizes, tmp_path, tolerance=8)


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
@pytest.mark.parametrize("vectors", [2, 8])
def test_masks_in_the_tile(unit, vectors, tmp_path):
    v = lanes(*unit[1:])
    w = vectors * v
    sizes = [{"n": n, "m": m} for n, m in ((1, 1), (3, w - 1), (2, w), (w // 2 + 1, w // 2), (0, 2), (2, 0), (w, v))]
    check(tiles.masked_rows(v, w), unit, sizes, tmp_path, tolerance=16)


@pytest.mark.parametrize("unit", [(t, "plain", d) for t in LANGUAGES for d in ARITHMETIC], ids="-".join)
def test_bounds_that_depend_and_division_of_negative_numbers(unit, tmp_path):
    check(tiles.triangle(), unit, [{"n": n} for n in (0, 1, 2, 7, 12)], tmp_path)


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
def test_guards_that_all_lanes_share(unit, tmp_path):
    kernel = tiles.chosen(lanes(*unit[1:]))
    check(kernel, unit, [{"n": n} for n in (0, 1, 2, 4, 6)], tmp_path)
    if unit[0] == "fortran":
        text = emit(kernel, *unit).text
        assert text.index("if (v_i <= 1)") < text.index("do v_l =") < text.index("if (1 < v_i)")


@pytest.mark.parametrize("unit", [(t, "plain", d) for t in LANGUAGES for d in ARITHMETIC], ids="-".join)
def test_iterations_dealt_from_both_ends(unit, tmp_path):
    check(tiles.paired(), unit, [{"n": n} for n in (0, 1, 2, 7, 12)], tmp_path, tolerance=4)


@pytest.mark.parametrize("unit", [(t, "plain", d) for t in LANGUAGES for d in ARITHMETIC], ids="-".join)
def test_serial_loops_around_parallel_ones(unit, tmp_path):
    check(tiles.panels(4), unit, [{"n": n} for n in (0, 1, 2, 3, 9)], tmp_path, tolerance=2)


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
def test_streaming_stores(unit, tmp_path):
    check(tiles.copied(lanes(*unit[1:])), unit, [{"n": n, "m": m} for n, m in ((0, 1), (3, 1), (2, 5))], tmp_path)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_rows_of_a_tile_ask_once_for_what_they_all_read(rows):
    kernel = prefetch(tiles.product(rows, lanes("avx2", "f64"), nv=2), array="Bt", definition="C", axis="k")
    assert emit(kernel, "c", "avx2", "f64").text.count("__builtin_prefetch") == 2


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
@pytest.mark.parametrize("edge", [3, 4, 12, 16])
def test_transposing_copies(unit, edge, tmp_path):
    sizes = [{"n": n, "m": m} for n, m in ((0, 3), (1, 1), (2, 5), (edge, edge), (2 * edge + 1, 17), (35, 33))]
    kernel = tiles.packed(edge)
    check(kernel, unit, sizes, tmp_path)
    if unit[0] == "c":
        text = emit(kernel, *unit).text
        v = lanes(*unit[1:])
        assert text.count("static inline void transpose") == len({("plain", v), ("scaled", gcd(edge, v))} - {("scaled", 1)})


def positive(kernel, sizes, dtype):
    """Arguments on which every function is defined, large and small, equal pairs and zeros among them."""
    rng = np.random.default_rng(3)
    size = evaluate(kernel.array("a").shape[0], sizes)
    a = np.exp(rng.uniform(-4, 4, size)).astype(NUMPY[dtype])
    b = np.where(rng.uniform(size=size) < 0.3, a, rng.normal(size=size)).astype(NUMPY[dtype])
    return {"a": a, "b": b}


@pytest.mark.parametrize("unit", UNITS, ids="-".join)
@pytest.mark.parametrize("kind", ["lane", "serial"])
def test_every_function_in_every_language(unit, kind, tmp_path):
    kernel = tiles.functions(FUNCS, kind, lanes(*unit[1:]))
    check(kernel, unit, [{"n": 1}, {"n": 3}], tmp_path, threads=(1,), tolerance=2, inputs=positive)
