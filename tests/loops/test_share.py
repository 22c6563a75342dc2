"""The naive loop nests: their meaning, hoisted and shared folds, inlining, catenations as ranges."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from tests.loops.refused import fold, normal, ref

from moapipe.algebra.dnf import Dnf, meaning
from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import Fold, Num, Var, op, text
from moapipe.errors import LiftError
from moapipe.loops.interpret import run
from moapipe.loops.onf import definitions, leaves, show
from moapipe.loops.share import lower

INPUTS = (("A", (Var("ni"), Var("nk"))), ("B", (Var("nk"), Var("nj"))), ("u", (Var("nk"),)))
SIZES = [{"ni": i, "nj": j, "nk": k} for i, j, k in ((3, 4, 5), (1, 1, 1), (0, 2, 3), (2, 3, 0), (5, 2, 1))]


def dnf(*normals, outputs=("y",)):
    return Dnf("case", ("ni", "nj", "nk"), INPUTS, outputs, normals)


def assert_means(d, kernel):
    for sizes in SIZES:
        rng = np.random.default_rng(3)
        x = {n: rng.normal(size=[evaluate(e, sizes) for e in s]) for n, s in d.inputs}
        with np.errstate(all="ignore"):
            want, got = meaning(d, x, sizes), run(kernel, sizes, x)
        for o in d.outputs:
            np.testing.assert_allclose(got.outputs[o], want[o], rtol=1e-12)
        assert not got.undefined


def dot(i="i", j="j"):
    return fold("sum", "k", op("*", ref("A", i, "k"), ref("B", "k", j)))


def test_one_perfect_nest_a_leaf():
    d = dnf(normal("y", "ij", dot()))
    k = lower(d)
    assert_means(d, k)
    assert [[l.var for l in loops] for _, loops, _ in leaves(k.body)] == [["i", "j"], ["i", "j", "k"]]


def test_inner_folds_become_definitions_and_equal_ones_are_shared():
    d = dnf(normal("y", "ij", op("+", op("*", dot(), 2), op("max", dot(), fold("sum", "k", ref("A", "i", "k"))))))
    k = lower(d)
    assert_means(d, k)
    assert definitions(k.body) == {"y", "y_sum", "y_sum2"}
    assert [text(e) for e in k.array("y_sum2").shape] == ["ni"]      # over the axes that it needs only


def test_directly_nested_folds_of_one_monoid_are_one_accumulation():
    inner = Fold("sum", "p", Num(0), Var("nj"), op("*", ref("A", "i", "k"), ref("B", "k", "p")))
    k = lower(d := dnf(normal("y", "i", fold("sum", "k", inner))))
    assert_means(d, k)
    assert definitions(k.body) == {"y"}
    assert [[l.var for l in loops] for _, loops, _ in leaves(k.body)] == [["i"], ["i", "k", "p"]]
    k = lower(d := dnf(normal("y", "i", fold("max", "k", inner))))
    assert_means(d, k)
    assert definitions(k.body) == {"y", "y_sum"}


def test_a_fold_inside_a_fold_is_hoisted_over_the_outer_variable():
    inner = Fold("sum", "p", Num(0), Var("nj"), ref("B", "k", "p"))
    d = dnf(normal("y", "i", fold("sum", "k", op("*", ref("A", "i", "k"), inner))))
    k = lower(d)
    assert_means(d, k)
    assert [text(e) for e in k.array("y_sum").shape] == ["nk"]


def test_a_ragged_inner_fold_is_refused():
    inner = Fold("sum", "p", Num(0), Var("j"), ref("u", "p"))
    outer = Fold("sum", "q", Num(0), Var("j"), op("+", Fold("sum", "p", Num(0), Var("q"), ref("u", "p")), inner))
    with pytest.raises(LiftError, match="the extent of an axis of a fold depends on j"):
        lower(dnf(normal("y", "ij", outer)))


def test_a_folds_variable_takes_the_name_of_the_axis_that_it_runs_over():
    x = normal("x", "ik", op("*", ref("A", "i", "k"), 2))
    d = dnf(x, normal("y", "i", Fold("max", "r", Num(0), Var("nk"), ref("x", "i", "r"))))
    assert "k" in {l.var for leaf, loops, _ in leaves(lower(d).body) if leaf.name == "y" for l in loops}
    assert_means(d, lower(d))


def test_inlining_dissolves_a_definition_without_capture():
    x = normal("x", "ij", dot())
    d = dnf(x, normal("y", "j", fold("sum", "k", op("*", ref("x", 0, "j"), ref("u", "k")))))
    k = lower(d, ("x",))
    assert "x" not in {a.name for a in k.arrays}
    for sizes in ({"ni": 1, "nj": 3, "nk": 4},):
        x = {n: np.random.default_rng(0).normal(size=[evaluate(e, sizes) for e in s]) for n, s in d.inputs}
        np.testing.assert_allclose(run(k, sizes, x).outputs["y"], meaning(d, x, sizes)["y"])
    for name in ("y", "q"):
        with pytest.raises(LiftError, match=f"cannot inline {name}"):
            lower(d, (name,))


@pytest.mark.parametrize("condition", [op("<", "k", 2), op("<=", 2, "k"), op("<=", "k", op("-", "nk", 2)), op("<", op("-", "nk", "k"), 2)], ids=text)
def test_catenations_become_ranges(condition):
    value = op("select", condition, ref("u", "k"), op("neg", ref("u", "k")))
    d = dnf(normal("x", "k", value), normal("y", "i", fold("sum", "k", op("*", value, ref("A", "i", "k")))), outputs=("x", "y"))
    k = lower(d)
    assert_means(d, k)
    assert "select" not in show(k)


def test_masks_over_two_axes_stay_selects():
    d = dnf(normal("y", "ik", op("select", op("<=", "k", "i"), ref("A", "i", "k"), -inf)))
    assert "select" in show(lower(d))
    assert_means(d, lower(d))
