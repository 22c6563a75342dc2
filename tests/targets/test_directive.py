"""Directive texts: every compiler that is here takes them, and what they compute is what the interpreter computes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.loops.nests import NESTS, sizes_for
from tests.targets import tiles
from tests.targets.test_emit import EPS, random_inputs

from moapipe.lab import offload
from moapipe.lab.errand import Errand
from moapipe.loops.interpret import run
from moapipe.targets.comparison import compare
from moapipe.targets.emit import emit, symbol
from moapipe.targets.isa import ARITHMETIC
from moapipe.targets.table import PAIRS, TARGETS

KERNELS = {
    "row_attention": (NESTS["row_attention"], sizes_for(NESTS["row_attention"], 6)), "panels": (tiles.panels(4), {"n": 6}), "shared": (tiles.shared(), {"n": 9, "m": 5}),
    "triangle": (tiles.triangle(), {"n": 7}), "masked_rows": (tiles.masked_rows(4, 16), {"n": 5, "m": 9}), "product": (tiles.product(4, 4), {"m": 7, "n": 9, "p": 5}),
}
ROUTES = [pytest.param(t, way, marks=pytest.mark.skipif(bool(why := offload.missing(t, way)), reason=why))
          for t, row in TARGETS.items() for way in offload.RUNS if row.offloads and offload.compiler(t, way)[0]]
STRICT = {"gcc": ("-Wall", "-Werror"), "gfortran": ("-Wall", "-Wno-unused-dummy-argument", "-Werror"), "clang": ("-Wall", "-Werror")}


@pytest.mark.parametrize(("target", "way"), ROUTES)
def test_compilers_take_it_without_a_warning_and_it_computes_the_same(target, way, tmp_path):
    """All nests in one process of its own: another OpenMP runtime may live in this one."""
    errands, expected = [], []
    for name, (kernel, sizes) in KERNELS.items():
        for dtype in ARITHMETIC:
            source, made = emit(kernel, target, "plain", dtype), tmp_path / f"{name}.{dtype}.so"
            (tmp_path / source.manifest["source"]).write_text(source.text)
            offload.compile_text(target, way, tmp_path / source.manifest["source"], made, *STRICT[offload.compiler(target, way)[0]])
            for at in (sizes, dict.fromkeys(sizes, 0)):
                inputs = random_inputs(kernel, at, dtype)
                outputs = run(kernel, at, {n: v.astype(np.float64) for n, v in inputs.items()}).outputs
                for threads in (1, 5):
                    errands.append(Errand(str(made), {**source.manifest, "dtype": dtype}, inputs, at, threads))
                    expected.append((f"{name} {dtype} {at} {threads}", outputs, EPS[dtype]))
    for answer, (label, outputs, eps) in zip(offload.run(errands, way), expected, strict=True):
        assert not answer.report, label
        for n, value in outputs.items():
            np.testing.assert_allclose(answer.outputs[n], value, rtol=16 * eps, atol=16 * eps, err_msg=label)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("targets", PAIRS, ids="-".join)
def test_c_and_fortran_have_the_same_structure(targets, name):
    kernel, _ = KERNELS[name]
    left, right = ((TARGETS[t], emit(kernel, t, "plain", "f64").text) for t in targets)
    found = compare(kernel, left, right, symbol(kernel))
    assert found.same, [(a, b) for a, b in found.rows if not (a and b)]
    assert sum(a.kind == "directive" for a, _ in found.rows) == left[1].count("#pragma") - left[1].count("declare target") - left[1].count("acc routine")
    told = {d.what for d in found.differences}
    assert {"index of an element", "array of a procedure", "counter of a loop", "select", "loop", "compilers"} <= told and ("atomic sum" in told) == (name == "shared")


def test_a_loop_that_one_language_lacks_is_seen():
    kernel, _ = KERNELS["triangle"]
    left, right = ((TARGETS[t], emit(kernel, t, "plain", "f64").text) for t in PAIRS[0])
    lines = right[1].split("\n")
    first = next(k for k, l in enumerate(lines) if l.strip().startswith("do "))
    cut = "\n".join(lines[:first] + lines[first + 1:])
    assert not compare(kernel, left, (right[0], cut), symbol(kernel)).same
