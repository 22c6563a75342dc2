"""What is refused, and how it is said: shapes that cannot conform, names that clash, sizes that contradict each other."""

from collections.abc import Callable

import numpy as np
import pytest

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import Dnf, Normal, dnf_hash, meaning, reduce_definitions, show, with_normals
from moapipe.algebra.expr import Definition, Definitions, constraints
from moapipe.algebra.index import parse
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Var
from moapipe.errors import AlgebraError

A, B, V = moa.array("A", 2, "n"), moa.array("B", 3, "n"), moa.array("V", "n")
N, M = Var("n"), Var("m")

REFUSED: list[tuple[str, Callable[[], object], str]] = [
    ("pointwise", lambda: A + B, r"\+ of shapes ⟨2 n⟩ and ⟨3 n⟩ needs 2 == 3"),
    ("ranks", lambda: A + V, r"\+ of shapes ⟨2 n⟩ and ⟨n⟩"),
    ("longer by one", lambda: moa.array("X", "n + 1") * V, r"× of shapes ⟨n \+ 1⟩ and ⟨n⟩ needs"),
    ("inner", lambda: moa.inner("+", "*", moa.transpose(A), B), r"• of shapes ⟨n 2⟩ and ⟨3 n⟩ needs 2 == 3"),
    ("inner of a scalar", lambda: moa.inner("+", "*", moa.scalar_array("s"), V), "needs an axis on each side"),
    ("catenate", lambda: moa.catenate(moa.transpose(A), moa.transpose(B)), r"# of shapes ⟨n 2⟩ and ⟨n 3⟩"),
    ("catenate ranks", lambda: moa.catenate(A, V), r"# of shapes ⟨2 n⟩ and ⟨n⟩"),
    ("catenate scalars", lambda: moa.catenate(moa.size(1), moa.size(2)), "a scalar has none"),
    ("psi rank", lambda: moa.psi((0, 0, 0), A), "3 components, ⟨0 0 0⟩, for the shape ⟨2 n⟩"),
    ("psi range", lambda: moa.psi(2, A), "ψ of shapes ⟨2⟩ and ⟨2 n⟩ needs"),
    ("psi negative", lambda: moa.psi(-1, A), "ψ needs 0 <= -1"),
    ("take too much", lambda: moa.take(3, A), "△ of shapes ⟨3⟩ and ⟨2 n⟩ needs 3 <= 2"),
    ("drop too much", lambda: moa.drop("n + 1", V), r"▽ of shapes ⟨n \+ 1⟩ and ⟨n⟩ needs"),
    ("unknown sign", lambda: moa.take("n - m", V), "the sign of △'s amount is not known"),
    ("reshape", lambda: moa.reshape((3, "n + 1"), A), r"ρ̂ of shapes ⟨3 \(n \+ 1\)⟩ and ⟨2 n⟩ needs"),
    ("reshape to nothing", lambda: moa.reshape((), moa.iota(2)), "ρ̂ of shapes ⟨⟩ and ⟨2⟩"),
    ("permutation", lambda: moa.transpose(A, (0, 0)), r"⍉ needs a permutation of 0..1, not \(0, 0\)"),
    ("reduce a scalar", lambda: moa.reduce("+", moa.size(1)), "red needs an axis 0"),
    ("scan a scalar", lambda: moa.scan("+", moa.size(1)), "scan needs an axis 0"),
    ("omega rank", lambda: moa.omega(lambda x: x, 3, A), "cells of rank 3 in an array of rank 2"),
    ("omega arguments", lambda: moa.omega(lambda x, y: x, (1,), A, V), "1 cell ranks for 2 arguments"),
    ("omega frames", lambda: moa.omega(lambda x, y: x - y, (1, 1), A, B), "Ω of shapes ⟨2 n⟩ and ⟨3 n⟩ needs 2 == 3"),
    ("unknown function", lambda: moa.pointwise("tanh", V), "tanh is not one"),
    ("arity", lambda: moa.outer("exp", V, V), "exp takes 1"),
    ("no expression", lambda: moa.exp("V"), "'V' is no array expression"),
    ("axes", lambda: Definition("X", ("i",), A), r"1 axes \('i',\) for an array of shape ⟨2 n⟩"),
]


@pytest.mark.parametrize(("make", "message"), [pytest.param(m, t, id=n) for n, m, t in REFUSED])
def test_refusals_say_what_was_expected(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AlgebraError, match=message):
        make()


def test_an_error_names_the_authors_line() -> None:
    with pytest.raises(AlgebraError) as e:
        _ = A + B
    assert e.value.where == f"test_expr.py:{e.tb.tb_lineno}"


def kernel(*definitions: Definition, inputs: tuple[moa.Leaf, ...] = (A, V), outputs: tuple[str, ...] = ("X",), sizes: tuple[str, ...] = ("n", "m")) -> Dnf:
    return reduce_definitions("case", Definitions(sizes, inputs, definitions, outputs))[0]


NAMES: list[tuple[str, Callable[[], object], str]] = [
    ("twice", lambda: kernel(Definition("A", ("i",), V)), "A defined twice"),
    ("no output", lambda: kernel(Definition("Y", ("i",), V)), "output X has no definition"),
    ("unknown size", lambda: kernel(Definition("X", ("i",), V), sizes=("m",)), "size n is not among"),
    ("axis and size", lambda: kernel(Definition("X", ("m",), V)), "axis m has the name of a size"),
    ("axis twice", lambda: kernel(Definition("X", ("i", "i"), A)), "axis i has the name of"),
    ("fold and size", lambda: kernel(Definition("X", ("i",), moa.reduce("+", A, index="m"))), "fold variable m has the name of a size"),
    ("later definition", lambda: kernel(Definition("X", ("i",), moa.array("Y", "n")), Definition("Y", ("i",), V)), "Y of shape ⟨n⟩ is used, and there is no such array"),
    ("other shape", lambda: kernel(Definition("X", ("i",), moa.array("V", "m"))), "V of shape ⟨m⟩ is used, and there is shape ⟨n⟩"),
    ("cell outside", lambda: kernel(Definition("X", ("i",), moa.Cell(1, 0, (N,)))), "a cell outside Ω"),
]


@pytest.mark.parametrize(("make", "message"), [pytest.param(m, t, id=n) for n, m, t in NAMES])
def test_names_must_be_clear(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AlgebraError, match=message):
        make()


def test_constraints_are_a_list_of_their_own() -> None:
    W = moa.array("W", "m")
    d = Definitions(("n", "m"), (V, W), (Definition("X", ("i",), V + W + moa.take("n", W)), Definition("Y", (), moa.psi(4, V))), ("X",))
    assert {c.text() for c in constraints(d)} == {"n == m", "n <= m", "5 <= n"}
    for c in constraints(d):
        c.at({"n": 5, "m": 5})
    with pytest.raises(AlgebraError, match="△ of shapes ⟨n⟩ and ⟨m⟩ needs n <= m, and 5 <= 4 is false"):
        next(c for c in constraints(d) if c.relation == "<=" and c.right == M).at({"n": 5, "m": 4})
    assert constraints(Definitions(("n",), (V,), (Definition("X", ("i",), V * V),), ("X",))) == ()


def test_constraints_that_contradict_each_other_name_both() -> None:
    x = moa.array("X3", "n + 3")
    d = Definitions(("n", "m"), (V, x), (Definition("X", ("i",), V + moa.array("W", "m")), Definition("Y", ("i",), x + moa.array("Z", "m"))), ("X",))
    with pytest.raises(AlgebraError, match=r"\+ needs n \+ 3 == m, but \+ needs n == m: shapes ⟨n \+ 3⟩ ⟨m⟩ ⟨n⟩ ⟨m⟩"):
        constraints(d)


def test_a_read_outside_an_array_is_an_error_unless_its_branch_is_not_taken() -> None:
    shifted = Ref("V", (parse("i - 1"),))
    given, sizes = {"V": np.arange(4.0)}, {"n": 4}
    d = Dnf("case", ("n",), (("V", (N,)),), ("X",), (Normal("X", (("i", N),), shifted),))
    with pytest.raises(AlgebraError, match=r"V\[\(i - 1\)\] reads outside V"):
        meaning(d, given, sizes)
    guarded = Op("select", (Op("<", (Num(0), Var("i"))), shifted, Num(9.0)))
    assert (meaning(with_normals(d, (Normal("X", (("i", N),), guarded),)), given, sizes)["X"] == [9, 0, 1, 2]).all()


def test_a_fold_may_depend_on_the_index() -> None:
    triangle = Fold("sum", "l", Var("i"), N, Ref("V", (Var("l"),)))
    d = Dnf("case", ("n",), (("V", (N,)),), ("X",), (Normal("X", (("i", N),), triangle),))
    v = np.array([1.0, 2.0, 4.0, 8.0])
    assert (meaning(d, {"V": v}, {"n": 4})["X"] == np.cumsum(v[::-1])[::-1]).all()


def test_the_hash_ignores_names_of_variables_and_nothing_else() -> None:
    def product(axes: tuple[str, str], fold: str, left: moa.Leaf = A, name: str = "X") -> Dnf:
        return kernel(Definition(name, axes, moa.inner("+", "*", left, moa.transpose(left), index=fold)), outputs=(name,))

    first = dnf_hash(product(("i", "j"), "l"))
    assert len(first) == 16 and int(first, 16) >= 0
    assert first == dnf_hash(product(("j", "i"), "p")) == dnf_hash(product(("l", "k"), "i"))
    assert first != dnf_hash(product(("i", "j"), "l", name="Y"))
    assert first != dnf_hash(kernel(Definition("X", ("i", "j"), moa.inner("max", "*", A, moa.transpose(A)))))
    twice = kernel(Definition("X", ("i",), moa.reduce("+", moa.omega(lambda r: moa.scan("+", r, index="i2"), 1, A), index="r")))
    again = kernel(Definition("X", ("q",), moa.reduce("+", moa.omega(lambda r: moa.scan("+", r, index="t"), 1, A), index="s")))
    assert dnf_hash(twice) == dnf_hash(again) != first


def test_fold_variables_are_unique_and_readable() -> None:
    e = moa.reduce("+", moa.reduce("+", moa.array("C", 2, 3, "n"), index="k"), index="k")
    d = kernel(Definition("X", ("k3",), e), inputs=(moa.array("C", 2, 3, "n"),))
    value = d.normal("X").value
    assert isinstance(value, Fold) and isinstance(value.body, Fold)
    assert (value.var, value.body.var) == ("k", "k2")
    assert "sum(0 <= k < 3: sum(0 <= k2 < 2: C[k2, k, k3]))" in show(d)


def test_changed_definitions_are_checked() -> None:
    d = kernel(Definition("X", ("i",), V))
    with pytest.raises(AlgebraError, match="X uses q, which nothing binds"):
        with_normals(d, (Normal("X", (("i", N),), Var("q")),))
    with pytest.raises(AlgebraError, match="X uses Y before it is defined"):
        with_normals(d, (Normal("X", (("i", N),), Ref("Y", (Var("i"),))),))
    with pytest.raises(AlgebraError, match="no definition Z"):
        d.normal("Z")
