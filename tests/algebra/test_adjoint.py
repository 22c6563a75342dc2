"""Every function's and every operator's adjoint against central differences, and every inverse law doing its work."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moapipe.algebra import expr as moa
from moapipe.algebra.adjoint import RULES, adjoint, denote
from moapipe.algebra.dnf import Dnf, Step, meaning
from moapipe.algebra.expr import Definition, Definitions, Expr, Leaf
from moapipe.algebra.function import FUNCS, MONOIDS
from moapipe.algebra.index import evaluate
from moapipe.algebra.inverse import LAWS as INVERSES
from moapipe.algebra.ops import OPS
from moapipe.algebra.scalar import Fold, Num, Op, Scalar, text, walk
from moapipe.errors import AlgebraError

SIZES = ("a", "b", "c")
A, B, V = moa.array("A", "a", "b"), moa.array("B", "b", "c"), moa.array("V", "a")
C, W, S = moa.array("C", "a", "b", "c"), moa.array("W", "a", "b"), moa.scalar_array("s")
INPUTS = (A, B, V, C, W, S)
AXES = "ijklmn"

OPERATORS: dict[str, tuple[Callable[[], Expr], ...]] = {
    "psi": (lambda: moa.psi(("a - 1",), A) * 1, lambda: moa.psi((0, "b - 1"), C)),
    "iota": (lambda: moa.iota("a") * V,),
    "odometer": (lambda: moa.psi((0,), moa.transpose(moa.iota(("a", "b")), (1, 2, 0))) * A,),
    "reshape": (lambda: moa.reshape(("b", "a"), A), lambda: moa.reshape(("b", "c", "a"), C), lambda: moa.reshape(("a*b", "c"), C)),
    "ravel": (lambda: moa.ravel(A), lambda: moa.ravel(C)),
    "take": (lambda: moa.take((1,), A), lambda: moa.take((1, -1), A), lambda: moa.take((-1,), V)),
    "drop": (lambda: moa.drop((1,), A), lambda: moa.drop((-1, 1), A)),
    "catenate": (lambda: moa.catenate(A, W), lambda: moa.catenate(V, moa.catenate(V * V, V)), lambda: moa.catenate(moa.drop((1,), A), moa.take((1,), A))),
    "reverse": (lambda: moa.reverse(A), lambda: moa.reverse(moa.drop((1,), V)) * moa.drop((-1,), V)),
    "rotate": (lambda: moa.rotate(1, V), lambda: moa.rotate("b", A), lambda: moa.reverse(moa.rotate(2, V)) * V),
    "transpose": (lambda: moa.transpose(A), lambda: moa.transpose(C, (2, 0, 1))),
    "pointwise": (lambda: A * W - A, lambda: S * A / (W + 3), lambda: moa.omega(lambda v: v * v * S, 0, V)),
    "reduce": tuple(lambda m=m: moa.reduce(m, A) for m in MONOIDS),
    "scan": (lambda: moa.scan("sum", A), lambda: moa.scan("product", V), lambda: moa.scan("max", V)),
    "outer": (lambda: moa.outer("*", V, A), lambda: moa.outer("/", V, B * B + 1), lambda: moa.outer("*", V, V)),
    "inner": (lambda: moa.inner("+", "*", A, B), lambda: moa.inner("max", "+", A, B), lambda: moa.inner("+", "*", A, moa.transpose(A))),
    "omega": (lambda: moa.omega(lambda row, v: row * v, (1, 0), A, V), lambda: moa.omega(lambda m: moa.inner("+", "*", moa.transpose(m), m), 2, C),
              lambda: moa.omega(lambda x: moa.reduce("+", x * x), 1, C), lambda: moa.omega(lambda m, n: moa.inner("+", "*", m, n), (1, 2), W, B)),
}
CASES = [(name, k) for name, cases in OPERATORS.items() for k in range(len(cases))]


def backward(*definitions: Definition, of: str = "X", laws: tuple[str, ...] = ()) -> tuple[Dnf, Dnf, tuple[Step, ...]]:
    """The forward kernel, the backward kernel for all inputs that `of` depends on, and its steps."""
    primal = Definitions(SIZES, INPUTS, definitions, (of,))
    front, _ = denote("case", primal)
    used = {n for n in ("A", "B", "V", "C", "W", "s") if any(f"{n}[" in text(d.value) for d in front.normals)}
    back, steps = denote("case", adjoint(primal, (of,), sorted(used)))
    return front, back, steps


def values(sizes: dict[str, int], seed: int, draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {x.name: np.asarray(draw(rng, tuple(evaluate(e, sizes) for e in x.shape))) for x in INPUTS}


def apart(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that are at least 1/4 apart in their array, so that a step of a difference crosses no maximum."""
    n = int(np.prod(shape))
    return (rng.permutation(n) - n / 2 + rng.uniform(0.25, 0.5, n)).reshape(shape) / 2


def assert_differences(front: Dnf, back: Dnf, x: dict[str, np.ndarray], sizes: dict[str, int], of: str = "X", step: float = 1e-5) -> None:
    """⟨dX, (X(x + h·v) − X(x − h·v))/2h⟩ = Σ ⟨d·, v⟩ for random directions v of each input apart."""
    rng = np.random.default_rng(2)
    wanted = [(n, s) for n, s in back.inputs if n == f"d{of}"]
    t = rng.standard_normal(np.shape(meaning(front, x, sizes)[of]))
    made = meaning(back, {**{n: x[n] for n, _ in back.inputs if n in x}, **{n: t for n, _ in wanted}}, sizes)
    for output in back.outputs:
        name = output[1:]
        assert made[output].shape == x[name].shape
        for _ in range(2):
            v = rng.standard_normal(x[name].shape)
            up, down = (meaning(front, {**x, name: x[name] + h * v}, sizes)[of] for h in (step, -step))
            with np.errstate(invalid="ignore"):
                change = np.where(up == down, 0, up - down)              # an empty maximum stays −∞
            expected, found = (t * change / (2 * step)).sum(), (made[output] * v).sum()
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * (1 + np.abs(t).sum()), err_msg=output)


# ------------------------------------------------------------------ functions

SMOOTH = {"select": 3, **{n: f.arity for n, f in FUNCS.items() if any(f.adjoint) and n != "select"}}


@pytest.mark.parametrize("name", FUNCS)
def test_every_function_has_an_adjoint_for_each_argument(name: str) -> None:
    assert len(FUNCS[name].adjoint) == FUNCS[name].arity


@pytest.mark.parametrize("name", SMOOTH)
def test_function(name: str) -> None:
    """Also in a product, where the cotangent is an expression, and at infinities that are not taken."""
    args = (moa.pointwise("<", W, 0.3), A, A * W) if name == "select" else (A, W)[: FUNCS[name].arity]
    front, back, _ = backward(Definition("X", ("i", "j"), moa.pointwise(name, *args) * (W + 2)))
    low, high = FUNCS[name].domain
    for seed in range(3):
        x = values({"a": 3, "b": 2, "c": 1}, seed, lambda rng, s: rng.uniform(0.2, 2, s) + 0.0 * low if low == 0 else apart(rng, s) * 0.7)
        assert_differences(front, back, x, {"a": 3, "b": 2, "c": 1}, step=1e-6)
    assert high > low


@pytest.mark.parametrize("name", [n for n in ("max", "min")])
def test_equal_arguments_share(name: str) -> None:
    front, back, _ = backward(Definition("X", ("i",), moa.pointwise(name, V, 2 - V)))
    x = values({"a": 2, "b": 1, "c": 1}, 0, lambda rng, s: np.ones(s))
    assert_differences(front, back, x, {"a": 2, "b": 1, "c": 1})


def test_ties_of_a_fold_share() -> None:
    """The subgradient of a maximum that several terms attain has the sum of the cotangent."""
    _, back, _ = backward(Definition("X", ("j",), moa.reduce("max", A)))
    made = meaning(back, {"A": np.array([[1.0, 5.0], [1.0, 2.0]]), "dX": np.array([3.0, 4.0])}, {"a": 2, "b": 2, "c": 0})
    assert made["dA"].tolist() == [[1.5, 4.0], [1.5, 0.0]]


@pytest.mark.parametrize("name", [n for n, f in FUNCS.items() if not any(f.adjoint)])
def test_functions_that_are_constant_almost_everywhere_pass_nothing(name: str) -> None:
    args = [moa.pointwise("<", A, y) if name in ("and", "or", "not") else y for y in (A, A * A)[: FUNCS[name].arity]]
    _, back, _ = backward(Definition("X", ("i", "j"), moa.pointwise(name, *args)))
    assert [(n.name, n.value) for n in back.normals] == [("dA", Num(0))]


def test_a_branch_that_is_not_taken_passes_zero_and_no_nan() -> None:
    safe = moa.select(moa.pointwise("<", 0, V), moa.log(V) + moa.reciprocal(V), 0)
    _, back, _ = backward(Definition("X", ("i",), moa.exp(safe) * 2))
    made = meaning(back, {"V": np.array([0.0, -1.0, 2.0]), "dX": np.ones(3)}, {"a": 3, "b": 1, "c": 1})
    assert made["dV"][:2].tolist() == [0, 0] and np.isfinite(made["dV"]).all() and made["dV"][2]


# ------------------------------------------------------------------ operators


def test_every_operator_has_cases() -> None:
    assert set(OPERATORS) == set(OPS)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_operator(name: str, case: int) -> None:
    e = OPERATORS[name][case]()
    front, back, steps = backward(Definition("X", tuple(AXES[: len(e.shape)]), e))
    assert {s.law for s in steps} <= {*OPS, *RULES, "collapse"}
    for seed, (a, b, c) in enumerate([(3, 2, 4), (1, 1, 1), (2, 3, 1), (1, 3, 2)]):
        sizes = {"a": a, "b": b, "c": c}
        assert_differences(front, back, values(sizes, seed, apart), sizes)


EMPTY = [(n, k) for n, k in CASES if n not in ("psi", "take", "drop", "odometer") and (n, k) not in (("catenate", 2), ("reverse", 1))]


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(*(st.integers(0, 3) for _ in SIZES)), st.integers(0, 99))
@pytest.mark.parametrize(("name", "case"), EMPTY)
def test_operator_at_any_small_shape(name: str, case: int, extents: tuple[int, int, int], seed: int) -> None:
    e = OPERATORS[name][case]()
    front, back, _ = backward(Definition("X", tuple(AXES[: len(e.shape)]), e))
    sizes = dict(zip(SIZES, extents, strict=True))
    assert_differences(front, back, values(sizes, seed, apart), sizes)


def scattered(e: Scalar) -> bool:
    """A sum is left whose terms are chosen by an equation."""
    return any(isinstance(x, Fold) and any(isinstance(y, Op) and y.name == "==" for y in walk(x.body)) for x in walk(e))


@pytest.mark.parametrize(("name", "case"), [(n, k) for n, k in CASES if n not in ("reduce", "scan", "inner")])
def test_scatters_become_gathers(name: str, case: int) -> None:
    e = OPERATORS[name][case]()
    _, back, _ = backward(Definition("X", tuple(AXES[: len(e.shape)]), e))
    assert not any(scattered(n.value) for n in back.normals)


def strided(row: Leaf) -> tuple[Definition, Definition]:
    """Every second element from the second on, of an axis of length 2a + 2, by reshaping it to pairs."""
    doubled = Definition("Y", ("i",), moa.catenate(row, moa.catenate(row * row, moa.reshape((2,), moa.iota(2)) * S)))
    pairs = moa.transpose(moa.reshape(("a + 1", 2), doubled.array))
    return doubled, Definition("X", ("i",), moa.exp(moa.psi((1,), pairs) / 4))


def test_every_inverse_law_is_used() -> None:
    cases = [(Definition("X", tuple(AXES[: len(e.shape)]), e),) for make in ("reshape", "rotate", "drop") for e in (OPERATORS[make][0](),)]
    assert {s.law for case in [*cases, strided(V)] for s in backward(*case)[2]} >= set(INVERSES)


def test_a_stride_is_inverted() -> None:
    front, back, steps = backward(*strided(V))
    assert "stride inverse" in {s.law for s in steps}
    assert not any(scattered(n.value) for n in back.normals)
    for a in (0, 1, 4, 5):
        sizes = {"a": a, "b": 1, "c": 1}
        assert_differences(front, back, values(sizes, 0, apart), sizes)


@pytest.mark.parametrize("make", [
    lambda: moa.ravel(moa.reverse(moa.reshape(("b", "a"), A))), lambda: moa.rotate(2, moa.ravel(moa.transpose(A))),
    lambda: moa.reshape(("a*b",), moa.rotate(1, moa.reshape(("b", "a"), A))),
])
def test_what_no_law_inverts_stays_a_sum_with_a_condition_and_is_right(make: Callable[[], Expr]) -> None:
    front, back, _ = backward(Definition("X", ("i",), make()))
    for extents in ((3, 2, 1), (2, 4, 1), (1, 3, 1), (0, 2, 1)):
        sizes = dict(zip(SIZES, extents, strict=True))
        assert_differences(front, back, values(sizes, 0, apart), sizes)


# ------------------------------------------------------------------ kernels


def test_definitions_that_are_read_twice_add_up() -> None:
    y = Definition("Y", ("i", "j"), moa.exp(A))
    z = Definition("Z", ("i",), moa.omega(lambda r: moa.reduce("+", r), 1, y.array))
    front, back, _ = backward(y, z, Definition("X", ("i", "j"), moa.omega(lambda r, t: r / (t + 1), (1, 0), y.array * W, z.array)))
    for extents in ((3, 2, 1), (1, 1, 1), (2, 0, 1), (0, 2, 1)):
        sizes = dict(zip(SIZES, extents, strict=True))
        assert_differences(front, back, values(sizes, 1, lambda rng, s: rng.uniform(-1, 1, s)), sizes)


def test_what_is_asked_for_must_be_there() -> None:
    primal = Definitions(SIZES, INPUTS, (Definition("X", ("i", "j"), A * W),), ("X",))
    for wrong, hint in (({"of": ("Z",), "wrt": ("A",)}, "Z"), ({"of": ("X",), "wrt": ("Q",)}, "Q"), ({"of": ("X",), "wrt": ("A",), "saved": ("L",)}, "L")):
        with pytest.raises(AlgebraError, match=hint):
            denote("case", adjoint(primal, **wrong))


def halves() -> tuple[Definition, ...]:
    """Rotary positions, half-split: element j turns with element j ± a of a row of 2a."""
    q, c, s = moa.array("Q", "b", "2*a"), moa.array("cos", "b", "2*a"), moa.array("sin", "b", "2*a")
    turned = Definition("turned", ("q", "j"), moa.omega(lambda r: moa.catenate(-moa.drop(("a",), r), moa.take(("a",), r)), 1, q))
    return turned, Definition("X", ("q", "j"), q * c + turned.array * s)


def neighbours() -> tuple[Definition, ...]:
    """Rotary positions, interleaved: element 2i turns with element 2i + 1."""
    q, c, s = moa.array("Q", "b", "2*a"), moa.array("cos", "b", "2*a"), moa.array("sin", "b", "2*a")
    pairs = Definition("pairs", ("q", "i", "p"), moa.omega(lambda r: moa.reshape(("a", 2), r), 1, q))

    def turn(r: Expr) -> Expr:
        even, odd = (moa.psi((p,), moa.transpose(r)) for p in (0, 1))
        return moa.ravel(moa.transpose(moa.catenate(moa.reshape((1, "a"), -odd), moa.reshape((1, "a"), even))))

    turned = Definition("turned", ("q", "j"), moa.omega(turn, 2, pairs.array))
    return pairs, turned, Definition("X", ("q", "j"), q * c + turned.array * s)


@pytest.mark.parametrize("make", [halves, neighbours])
def test_rotations_turn_back(make: Callable[[], tuple[Definition, ...]]) -> None:
    """The gradient of a rotation is the rotation by the opposite angle, and no sum is left in it."""
    inputs = tuple(moa.array(n, "b", "2*a") for n in ("Q", "cos", "sin"))
    front = Definitions(("a", "b"), inputs, make(), ("X",))
    back, _ = denote("case", adjoint(front, ("X",), ("Q",)))
    assert not any(isinstance(y, Fold) for n in back.normals for y in walk(n.value))
    sizes, rng = {"a": 3, "b": 2}, np.random.default_rng(0)
    angle = rng.uniform(-1, 1, (2, 3))
    both = (lambda t: np.concatenate([t, t], 1)) if make is halves else (lambda t: np.repeat(t, 2, 1))
    given = {"cos": both(np.cos(angle)), "sin": both(np.sin(angle)), "Q": rng.standard_normal((2, 6))}
    turned = meaning(denote("case", front)[0], given, sizes)["X"]
    np.testing.assert_allclose(meaning(back, {**given, "dX": turned}, sizes)["dQ"], given["Q"], rtol=1e-12)


def test_a_cotangent_needs_its_name() -> None:
    primal = Definitions(SIZES, INPUTS, (Definition("dA", ("i", "j"), A * W), Definition("X", ("i", "j"), moa.array("dA", "a", "b") * A)), ("X",))
    with pytest.raises(AlgebraError, match="dA is an array, and the cotangent of A too"):
        denote("case", adjoint(primal, ("X",), ("A",)))


def test_an_output_that_is_read_again_has_both_cotangents() -> None:
    """Y is differentiated and read by X: its cotangent is what is given and what X sends back."""
    y = Definition("Y", ("i", "j"), A * A)
    primal = Definitions(SIZES, INPUTS, (y, Definition("X", ("i",), moa.omega(lambda r: moa.reduce("+", r * r), 1, y.array))), ("X", "Y"))
    back, _ = denote("case", adjoint(primal, ("X", "Y"), ("A",)))
    x, sizes = values({"a": 2, "b": 3, "c": 1}, 4, apart), {"a": 2, "b": 3, "c": 1}
    t, u = np.full(2, 0.5), np.full((2, 3), -0.25)
    made = meaning(back, {"A": x["A"], "dX": t, "dY": u}, sizes)["dA"]
    np.testing.assert_allclose(made, 2 * x["A"] * (u + 2 * x["A"] ** 2 * t[:, None]), rtol=1e-12)
