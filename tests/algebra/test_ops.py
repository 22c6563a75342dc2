"""Every operator on both sides: its ψ-law, evaluated index by index, against numpy's own function on whole arrays."""

from collections.abc import Callable

import numpy as np
import pytest

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import meaning, reduce_definitions
from moapipe.algebra.evaluation import meaning_expr
from moapipe.algebra.expr import Definition, Definitions, Expr
from moapipe.algebra.index import evaluate
from moapipe.algebra.ops import FUNCS, MONOIDS, OPS
from moapipe.algebra.rewrite import COLLAPSE, RULES
from moapipe.errors import AlgebraError

A, B, C = moa.array("A", "a", "b", "c"), moa.array("B", "b", "c"), moa.array("C", "a", "b", "c")
V, W, S = moa.array("V", "c"), moa.array("W", "a"), moa.scalar_array("S")
INPUTS = (A, B, C, V, W, S)
SHAPES = [{"a": a, "b": b, "c": c} for a, b, c in [(2, 3, 5), (1, 3, 2), (3, 1, 1), (0, 2, 3), (2, 0, 1), (3, 2, 0), (1, 1, 1), (4, 2, 3)]]

CASES: list[tuple[str, str, Callable[[], Expr]]] = [
    ("psi", "empty index", lambda: moa.psi((), A)),
    ("psi", "partial, a size inside", lambda: moa.psi(("a",), moa.catenate(moa.drop(("a",), moa.catenate(A, A)), moa.catenate(A, moa.reshape((1, "b", "c"), B))))),
    ("psi", "partial of partial", lambda: moa.psi(1, moa.psi(2, moa.reshape((3, 2, "a*b*c"), moa.outer("*", moa.iota(6), moa.ravel(A)))))),
    ("psi", "full", lambda: moa.psi((1, 2), moa.outer("+", moa.iota(2), moa.iota(3)))),
    ("iota", "vector", lambda: moa.iota("a + 1")),
    ("iota", "empty", lambda: moa.iota(0)),
    ("odometer", "all indices", lambda: moa.iota(("a", "b", "c"))),
    ("odometer", "of the empty vector", lambda: moa.iota(())),
    ("odometer", "addresses", lambda: moa.omega(lambda v: moa.inner("+", "*", v, moa.iota(2) + 1), 1, moa.iota(("a", "c")))),
    ("reshape", "split and merge", lambda: moa.reshape(("b*a", "c"), A)),
    ("reshape", "shuffle", lambda: moa.reshape(("c", "a", "b"), A)),
    ("reshape", "of a computed array", lambda: moa.reshape(("c", "b", 2), moa.catenate(moa.ravel(B), moa.ravel(B * 2)))),
    ("reshape", "from a scalar", lambda: moa.reshape((1, 1), S)),
    ("ravel", "matrix", lambda: moa.ravel(B)),
    ("ravel", "scalar", lambda: moa.ravel(S)),
    ("ravel", "reversed", lambda: moa.ravel(moa.reverse(moa.transpose(A)))),
    ("take", "first", lambda: moa.take(1, moa.catenate(moa.reshape((1, "b", "c"), B), A))),
    ("take", "last", lambda: moa.take(-2, moa.catenate(moa.iota(2), W))),
    ("take", "symbolic", lambda: moa.take("a", moa.catenate(W, moa.catenate(W, V)))),
    ("take", "symbolic last", lambda: moa.take("0 - c", moa.catenate(W, V))),
    ("take", "vector of both signs", lambda: moa.take(("a", "0 - b", 0), A)),
    ("drop", "first", lambda: moa.drop(1, moa.catenate(moa.iota(1), W))),
    ("drop", "last", lambda: moa.drop(-1, moa.catenate(W, moa.iota(1)))),
    ("drop", "symbolic", lambda: moa.drop("a", moa.catenate(W, V))),
    ("drop", "vector of both signs", lambda: moa.drop((2, -1), moa.outer("+", moa.iota("a + 2"), moa.iota("c + 1")))),
    ("drop", "everything", lambda: moa.drop(("a", "b", "c"), A)),
    ("catenate", "vectors", lambda: moa.catenate(W, V)),
    ("catenate", "different lengths", lambda: moa.catenate(A, moa.drop(0, moa.reshape((1, "b", "c"), B)))),
    ("catenate", "thrice", lambda: moa.catenate(moa.catenate(V, W), moa.reverse(V))),
    ("catenate", "under a fold", lambda: moa.reduce("+", moa.catenate(A, moa.reverse(C)))),
    ("reverse", "axis 0", lambda: moa.reverse(A)),
    ("reverse", "twice", lambda: moa.reverse(moa.reverse(V))),
    ("rotate", "forward", lambda: moa.rotate(2, A)),
    ("rotate", "backward", lambda: moa.rotate(-1, V)),
    ("rotate", "by a size", lambda: moa.rotate("b", A)),
    ("transpose", "monadic", lambda: moa.transpose(A)),
    ("transpose", "3-cycle", lambda: moa.transpose(A, (2, 0, 1))),
    ("transpose", "the other 3-cycle", lambda: moa.transpose(A, (1, 2, 0))),
    ("transpose", "involution", lambda: moa.transpose(A, (0, 2, 1))),
    ("transpose", "4-cycle", lambda: moa.transpose(moa.outer("+", B, moa.outer("*", W, V)), (1, 2, 3, 0))),
    ("pointwise", "arrays", lambda: A * C + C),
    ("pointwise", "scalars extend", lambda: 2 * A - S / 4),
    ("pointwise", "three arguments", lambda: moa.select(moa.pointwise("<", A, C), A, 0)),
    ("reduce", "plus", lambda: moa.reduce("+", A)),
    ("reduce", "max", lambda: moa.reduce("max", A, index="i")),
    ("reduce", "to a scalar", lambda: moa.reduce("*", V)),
    ("reduce", "twice", lambda: moa.reduce("+", moa.reduce("max", A, index="l"), index="l")),
    ("scan", "plus", lambda: moa.scan("+", A)),
    ("scan", "max of a vector", lambda: moa.scan("max", moa.reverse(V))),
    ("outer", "times", lambda: moa.outer("*", W, B)),
    ("outer", "with a scalar", lambda: moa.outer("-", S, B)),
    ("inner", "matrix product", lambda: moa.inner("+", "*", A, moa.transpose(B))),
    ("inner", "min plus", lambda: moa.inner("min", "+", A, moa.transpose(B), index="p")),
    ("inner", "vectors", lambda: moa.inner("+", "*", V, V)),
    ("omega", "unary, rows", lambda: moa.omega(lambda r: moa.reduce("+", r), 1, A)),
    ("omega", "unary, matrices", lambda: moa.omega(moa.transpose, 2, A)),
    ("omega", "unary, scalars", lambda: moa.omega(lambda s: s * s, 0, A)),
    ("omega", "unary, the whole array", lambda: moa.omega(moa.reverse, 3, A)),
    ("omega", "row minus scalar", lambda: moa.omega(lambda r, s: r - s, (1, 0), A, moa.reduce("+", moa.transpose(A, (1, 2, 0))))),
    ("omega", "batched product", lambda: moa.omega(lambda x, y: moa.inner("+", "*", x, moa.transpose(y)), (2, 2), A, C)),
    ("omega", "private frame left", lambda: moa.omega(lambda x, y: x * y, (1, 1), A, V)),
    ("omega", "private frame right", lambda: moa.omega(lambda x, y: x - y, (1, 1), V, A)),
    ("omega", "private and shared frames", lambda: moa.omega(lambda x, y: x - y, (0, 1), moa.outer("+", V, W), moa.outer("*", W, V))),
    ("omega", "nested", lambda: moa.omega(lambda x, y: moa.omega(lambda r, s: r * s, (1, 0), x, moa.omega(lambda q: moa.reduce("max", q), 1, y)), (2, 2), A, C)),
    ("omega", "an outer cell in the inner function", lambda: moa.omega(lambda x: moa.omega(lambda r: r + moa.reduce("+", x), 1, x), 2, A)),
    ("omega", "an outer cell that is itself made by Ω",
     lambda: moa.omega(lambda x: moa.omega(lambda r: r + moa.reduce("+", x), 1, x), 2, moa.omega(moa.reverse, 1, A))),
    ("omega", "shared and private frames", lambda: moa.omega(lambda x, y: x - y, (1, 0), moa.outer("*", W, V), moa.outer("+", V, W))),
    ("omega", "MOAL matrix product", lambda: moal_product(moa.reduce("+", A), moa.transpose(B))),
]


def moal_product(a: Expr, b: Expr) -> Expr:
    """C = +red Ω⟨2⟩ (A [×Ω⟨0 1⟩] Ω⟨1 2⟩ B), the matrix product of the MOAL manual."""
    products = moa.omega(lambda row, m: moa.omega(lambda s, r: s * r, (0, 1), row, m), (1, 2), a, b)
    return moa.omega(lambda plane: moa.reduce("+", plane), 2, products)


def arrays(sizes: dict[str, int], dtype: type = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(v * 10**k for k, v in enumerate(sizes.values())))
    return {x.name: np.asarray(rng.standard_normal(tuple(evaluate(e, sizes) for e in x.shape)), dtype) for x in INPUTS}


def both_sides(e: Expr, sizes: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    axes = tuple(f"i{k}" for k in range(len(e.shape)))
    dnf, _ = reduce_definitions("case", Definitions(("a", "b", "c"), INPUTS, (Definition("X", axes, e),), ("X",)))
    given = arrays(sizes)
    return meaning(dnf, given, sizes)["X"], np.asarray(meaning_expr(e, given, sizes))


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize(("make"), [pytest.param(m, id=f"{o}: {t}") for o, t, m in CASES])
def test_psi_law_equals_meaning(make: Callable[[], Expr], sizes: dict[str, int]) -> None:
    e = make()
    reduced, direct = both_sides(e, sizes)
    assert reduced.shape == direct.shape == tuple(evaluate(x, sizes) for x in e.shape)
    np.testing.assert_allclose(reduced, direct, rtol=1e-13, atol=1e-13)


def test_every_operator_has_a_case() -> None:
    assert {o for o, _, _ in CASES} == set(OPS)


def uses_operator(e: Expr, name: str) -> bool:
    return any(isinstance(n, moa.Apply) and n.operator == name for n in moa.nodes(e))


@pytest.mark.parametrize(("operator", "make"), [pytest.param(o, m, id=f"{o}: {t}") for o, t, m in CASES])
def test_a_case_uses_its_operator_and_the_trace_names_it(operator: str, make: Callable[[], Expr]) -> None:
    e = make()
    assert uses_operator(e, operator)
    axes = tuple(f"i{k}" for k in range(len(e.shape)))
    _, steps = reduce_definitions("case", Definitions(("a", "b", "c"), INPUTS, (Definition("X", axes, e),), ("X",)))
    laws = {s.law for s in steps}
    assert operator in laws or (operator in ("reshape", "ravel") and COLLAPSE in laws)
    assert {s.law for s in steps} <= set(OPS) | set(RULES)


@pytest.mark.parametrize("name", FUNCS)
@pytest.mark.parametrize("sizes", SHAPES[:5], ids=str)
def test_every_function_pointwise(name: str, sizes: dict[str, int]) -> None:
    row = FUNCS[name]
    args = {"select": (moa.pointwise("<", A, C), A, C)}.get(name, (A, C)[: row.arity])
    if row.domain[0] == 0:
        args = (A * A,)
    if name in ("and", "or", "not"):
        args = tuple(moa.pointwise("<", x, S) for x in args)
    reduced, direct = both_sides(moa.pointwise(name, *args), sizes)
    np.testing.assert_array_equal(reduced, direct)


@pytest.mark.parametrize("name", MONOIDS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_every_monoid_folds_and_scans(name: str, sizes: dict[str, int]) -> None:
    for e in (moa.reduce(name, A), moa.scan(name, A), moa.inner(name, "-", A, moa.transpose(B))):
        reduced, direct = both_sides(e, sizes)
        np.testing.assert_allclose(reduced, direct, rtol=1e-13, atol=1e-13)
    if sizes["a"] == 0:
        assert (both_sides(moa.reduce(name, A), sizes)[0] == MONOIDS[name].unit).all()


@pytest.mark.parametrize("function", [n for n, f in FUNCS.items() if f.arity == 2 and n not in {m.function for m in MONOIDS.values()}])
def test_what_is_no_monoid_does_not_fold(function: str) -> None:
    with pytest.raises(AlgebraError, match=r"not associative.*\n.*fold by sum, product, max, min"):
        moa.reduce(function, A)
    with pytest.raises(AlgebraError, match="does not fold"):
        moa.scan(function, A)
    with pytest.raises(AlgebraError, match="does not fold"):
        moa.inner(function, "*", V, V)


def test_rho_iota_psi_gives_the_array_back() -> None:
    """(ι ρA) ψ A ≡ A: the array of all full indices, used as indices, is A itself."""
    sizes = {"a": 2, "b": 3, "c": 4}
    given = arrays(sizes)
    indices = meaning_expr(moa.iota(("a", "b", "c")), given, sizes)
    assert (given["A"][tuple(np.moveaxis(indices, -1, 0))] == given["A"]).all()


def test_collapse_leaves_no_nested_division() -> None:
    e = moa.reshape(("c", "b"), moa.ravel(moa.reshape(("b*c",), B)))
    dnf, steps = reduce_definitions("case", Definitions(("a", "b", "c"), INPUTS, (Definition("X", ("i", "j"), e),), ("X",)))
    direct, _ = reduce_definitions("case", Definitions(("a", "b", "c"), INPUTS, (Definition("X", ("i", "j"), moa.reshape(("c", "b"), B)),), ("X",)))
    assert [s.law for s in steps].count(COLLAPSE) == 2
    assert dnf == direct
