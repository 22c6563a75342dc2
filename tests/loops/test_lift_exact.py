"""Scripts hold for every tile size: where tiles divide an axis exactly, what a lift takes away is not there, and that is no refusal."""

from __future__ import annotations

from itertools import product as product_of
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loops.refused import ref

from moapipe.algebra.dnf import Dnf, Normal
from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import Fold, Num, Var, op
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, names
from moapipe.loops.interpret import run
from moapipe.loops.lift import apply_script
from moapipe.loops.onf import Loop, leaves, statements
from moapipe.loops.share import lower
from moapipe.targets.isa import ARITHMETIC, ISAS

ROOT = Path(__file__).parents[2]
TILES = [
    {"split": {"axis": "k", "by": "KT", "outer": "ko", "inner": "kl", "only": "x"}},
    {"split": {"axis": "j", "by": "JT", "outer": "jo", "inner": "jl"}},
    {"reorder": {"order": ["i", "jo", "ko", "kl", "jl"]}},
    {"stage": {"array": "A", "into": "At", "index": ["i", "ko", "kl"], "fill": 0}},
    {"stage": {"array": "B", "into": "Bt", "index": ["jo", "ko", "kl", "jl"], "fill": 0}},
    {"fuse": {"axis": "jo", "only": "Bt"}},
    {"fuse": {"axis": "ko", "only": "Bt"}},
    {"pad": {"axis": "kl", "only": "x"}},
    {"fuse": {"axis": "i", "only": ["x", "y"]}},
    {"fuse": {"axis": "jo", "only": ["x", "y"]}},
    {"split_range": {"axis": "jo", "rest": "jz", "only": ["x", "y"]}},
    {"clip": {"axis": "jl", "within": "jz", "only": "x"}},
    {"clip": {"axis": "jl", "within": "jz", "only": "y"}},
    {"bind": {"axis": "jl", "kind": "lane", "within": "jo", "only": "y"}},
    {"bind": {"axis": "i", "kind": "parallel", "only": "y"}},
]
"""A product in tiles, both operands copied and padded, the last columns apart."""


def product(rows, columns):
    """y = 2·A·B with `rows` multiples of n to sum over and `columns` multiples of n."""
    k, j = op("*", rows, "n"), op("*", columns, "n")
    x = Normal("x", (("i", Var("n")), ("j", j)), Fold("sum", "k", Num(0), k, op("*", ref("A", "i", "k"), ref("B", "k", "j"))))
    y = Normal("y", x.axes, op("*", 2, ref("x", "i", "j")))
    return lower(Dnf("case", ("n",), (("A", (Var("n"), k)), ("B", (k, j))), ("y",), (x, y)))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 5))
def test_one_script_holds_whether_tiles_divide_or_not(rows, columns, kt, jt, n):
    start = product(rows, columns)
    end = apply_script(start, TILES, {"KT": kt, "JT": jt}, {})[-1].kernel
    x = {a.name: np.random.default_rng(1).normal(size=[evaluate(e, {"n": n}) for e in a.shape]) for a in start.arrays if a.space == "input"}
    np.testing.assert_allclose(run(end, {"n": n}, x).outputs["y"], run(start, {"n": n}, x).outputs["y"], rtol=1e-12)
    loops = {s.var for s in statements(end.body) if isinstance(s, Loop)}
    assert ("jz" in loops) == (columns % jt != 0)
    if rows % kt == 0 and columns % jt == 0:
        assert not any(leaf.where for leaf, _, _ in leaves(end.body) if leaf.name in ("x", "y"))


COPIED = [{"stage": {"array": "A", "into": "At", "index": ["i", "k"], "fill": 0}}, {"fuse": {"axis": "i", "only": "At"}}, {"pad": {"axis": "k", "only": "x"}}, {"clip": {"axis": "j"}}]


def test_what_is_done_already_changes_nothing():
    """A copy without an edge is one nest, nothing lies past an edge that is none: the derivation keeps the lifts, and the nest."""
    steps = apply_script(product(1, 1), COPIED, {}, {})
    assert [s.lift for s in steps] == ["stage", "fuse", "pad", "clip"] and len({s.kernel for s in steps}) == 1


def test_a_rest_that_never_runs_stays_for_the_lifts_that_name_it():
    """And the script's last step, one of its own, takes it away."""
    steps = apply_script(product(2, 2), TILES, {"KT": 2, "JT": 2}, {})
    assert steps[-1].title == "sweep()"
    assert ["jz" in {s.var for s in statements(x.kernel.body) if isinstance(s, Loop)} for x in steps[-2:]] == [True, False]


def halved(name, isa, dtype, tiny):
    """A kernel with axes of an even length where lanes of two divide them; the fast tests hold all tiny tiles of two to the meaning."""
    return "pairs" in load(name, ROOT).sizes and (isa, dtype, tiny) == ("plain", "f64", False)


MATRIX = list(product_of(names(ROOT), ISAS, ARITHMETIC, (False, True)))


@pytest.mark.parametrize(("name", "isa", "dtype", "tiny"), [pytest.param(*m, marks=() if halved(*m) else pytest.mark.slow) for m in MATRIX])
def test_every_script_holds_for_every_instruction_set(name, isa, dtype, tiny):
    file = load(name, ROOT)
    for form in file.forms:
        for variant in file.variants_of(form):
            assert derive(Build(name, form, variant, file.variant(variant).targets[0], isa, dtype), ROOT, tiny=tiny).source.text
