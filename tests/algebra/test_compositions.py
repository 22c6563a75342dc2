"""Random compositions of operators, grown by shape so that they conform: normal form against numpy, and the trace against itself."""

from random import Random

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import dnf_hash, meaning, reduce_definitions
from moapipe.algebra.evaluation import evaluate as evaluate_values
from moapipe.algebra.evaluation import meaning_expr
from moapipe.algebra.expr import Definition, Definitions, Expr
from moapipe.algebra.index import evaluate
from moapipe.algebra.ops import OPS
from moapipe.algebra.rewrite import RULES
from moapipe.algebra.scalar import Fold, Ref, variables, walk

NAMES = ("a", "b", "c")
A, B, V = moa.array("A", "a", "b", "c"), moa.array("B", "b", "c"), moa.array("V", "c")
INPUTS = (A, B, V)


def monadic(draw: st.DrawFn, x: Expr) -> Expr:
    """One operator that takes an array of any rank, chosen to conform for all sizes."""
    n = len(x.shape)
    choice = draw(st.sampled_from(("reverse", "rotate", "transpose", "take", "drop", "reduce", "scan", "ravel", "reshape", "rows", "double")))
    match choice if n else "double":
        case "reverse":
            return moa.reverse(x)
        case "rotate":
            return moa.rotate(draw(st.integers(-3, 3)), x)
        case "transpose":
            return moa.transpose(x, draw(st.permutations(range(n))))
        case "take":
            return moa.take(x.shape[0], moa.catenate(x, moa.reverse(x)))
        case "drop":
            return moa.drop(draw(st.integers(1, 2)), moa.catenate(moa.catenate(x, x), moa.reshape((2, *x.shape[1:]), moa.outer("+", moa.iota(2), moa.reduce("max", x)))))
        case "reduce":
            return moa.reduce(draw(st.sampled_from(("+", "max", "min"))), x)
        case "scan":
            return moa.scan(draw(st.sampled_from(("+", "max"))), x)
        case "ravel":
            return moa.ravel(x)
        case "reshape":
            return moa.reshape(tuple(reversed(x.shape)), x)
        case "rows":
            return moa.omega(moa.reverse, 1, x)
        case _:
            return 2 * x - 1


def dyadic(draw: st.DrawFn, x: Expr, y: Expr) -> Expr:
    match draw(st.sampled_from(("outer", "inner", "omega", "catenate", "square"))):
        case "outer" if len(x.shape) + len(y.shape) <= 4:
            return moa.outer(draw(st.sampled_from(("+", "-", "*", "max"))), x, y)
        case "inner" if x.shape:
            return moa.inner(draw(st.sampled_from(("+", "max"))), "*", x, moa.transpose(x))
        case "omega" if len(x.shape) > 1:
            return moa.omega(lambda r, s: r - s, (1, 0), x, moa.omega(lambda r: moa.reduce("+", r), 1, x))
        case "catenate" if x.shape:
            return moa.catenate(x, moa.reverse(x + 1))
        case _:
            return x * x


@st.composite
def expressions(draw: st.DrawFn) -> Expr:
    pool: list[Expr] = [*INPUTS]
    for _ in range(draw(st.integers(1, 5))):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        made = monadic(draw, x) if draw(st.booleans()) else dyadic(draw, x, y)
        if len(made.shape) <= 4:
            pool.append(made)
    return pool[-1]


def definitions(e: Expr, letter: str = "i") -> Definitions:
    return Definitions(NAMES, INPUTS, (Definition("X", tuple(f"{letter}{k}" for k in range(len(e.shape))), e),), ("X",))


@settings(max_examples=150, deadline=None)
@given(expressions(), st.tuples(*(st.integers(0, 3) for _ in NAMES)))
def test_normal_form_equals_numpy(e: Expr, extents: tuple[int, ...]) -> None:
    sizes = dict(zip(NAMES, extents, strict=True))
    rng = np.random.default_rng(5)
    arrays = {x.name: np.round(rng.standard_normal(tuple(evaluate(s, sizes) for s in x.shape)), 2) for x in INPUTS}
    dnf, _ = reduce_definitions("case", definitions(e))
    direct = np.asarray(meaning_expr(e, arrays, sizes))
    reduced = meaning(dnf, arrays, sizes)["X"]
    assert reduced.shape == direct.shape
    np.testing.assert_allclose(reduced, direct, rtol=1e-11, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(expressions())
def test_only_elements_of_inputs_remain_and_names_of_axes_do_not_matter(e: Expr) -> None:
    dnf, steps = reduce_definitions("case", definitions(e))
    assert {s.law for s in steps} <= set(OPS) | set(RULES)
    assert dnf_hash(dnf) == dnf_hash(reduce_definitions("case", definitions(e, "q"))[0])


@settings(max_examples=60, deadline=None)
@given(expressions(), st.tuples(*(st.integers(1, 3) for _ in NAMES)), st.randoms(use_true_random=False))
def test_every_step_keeps_the_meaning(e: Expr, extents: tuple[int, ...], random: Random) -> None:
    """Each law alone, both sides by numpy: the element of the whole array before, the scalar over its parts after."""
    sizes = dict(zip(NAMES, extents, strict=True))
    rng = np.random.default_rng(6)
    arrays = {x.name: rng.standard_normal(tuple(evaluate(s, sizes) for s in x.shape)) for x in INPUTS}
    dnf, steps = reduce_definitions("case", definitions(e))
    bounds = {v: evaluate(n, sizes) for v, n in dnf.normal("X").axes}
    assume(0 not in bounds.values())
    at = sizes | {v: random.randrange(n) for v, n in bounds.items()}
    for step in steps:
        assert isinstance(step.before.value, Ref)
        index = step.before.value.index
        if not frozenset().union(*map(variables, index), *map(frame_variables, step.before.parts)) <= set(at):
            continue                                                  # under a fold that is empty here
        if not all(frames_are_inside(p, at) for p in step.before.parts):
            continue                                                  # Ω in a branch that is not taken
        whole = np.asarray(meaning_expr(step.before.parts[0], arrays, at))
        where = tuple(evaluate(i, at) for i in index)
        if all(0 <= i < n for i, n in zip(where, whole.shape, strict=True)):       # else in a branch that is not taken
            parts = {str(k): np.asarray(meaning_expr(p, arrays, at)) for k, p in enumerate(step.after.parts)}
            np.testing.assert_allclose(evaluate_values(step.after.value, at, parts), whole[where], rtol=1e-12, atol=1e-12)
            for f in walk(step.after.value):
                if isinstance(f, Fold) and evaluate(f.lo, at) < evaluate(f.hi, at):
                    at[f.var] = random.randrange(evaluate(f.lo, at), evaluate(f.hi, at))


def frame_variables(e: Expr) -> frozenset[str]:
    """Variables in the left vectors of an expression: Ω puts indices there."""
    return frozenset().union(*(variables(i) for n in moa.nodes(e) if isinstance(n, moa.Apply) for i in n.data.vector)) - set(NAMES)


def frames_are_inside(e: Expr, at: dict[str, int]) -> bool:
    """Every ψ inside the expression addresses what exists."""
    pairs = [(evaluate(i, at), evaluate(n, at)) for x in moa.nodes(e) if isinstance(x, moa.Apply) and x.operator == "psi"
             for i, n in zip(x.data.vector, x.args[0].shape, strict=False)]
    return all(0 <= i < n for i, n in pairs)
