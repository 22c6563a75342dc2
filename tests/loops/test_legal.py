"""What lifts ask before they act: proofs about bounds hold for all small sizes, and values past an edge evaluate as stated."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from tests.loops.refused import ref

from moapipe.algebra.index import evaluate, parse
from moapipe.algebra.scalar import Num, Op, Var, op, text
from moapipe.loops.legal import always, beyond, first_true, fold_beyond, greatest, is_natural, least, never, own_block, permutable
from moapipe.loops.onf import Accumulate, Assign, Loop

KO = Loop("ko", Num(0), parse("(n + 7)//8"), ())
KI = Loop("ki", Num(0), parse("min(8, max(n - 8*ko, 0))"), ())
KL = Loop("kl", Num(0), Num(8), ())
ET = Loop("et", Num(0), parse("n//4"), ())
EZ = Loop("ez", parse("n//4"), parse("(n + 3)//4"), ())
EL = Loop("el", Num(0), Num(4), ())


def iterations(loops, at):
    """Every assignment of the loop variables, for given sizes."""
    if not loops:
        yield at
        return
    first, *rest = loops
    for i in range(evaluate(first.lo, at), evaluate(first.hi, at)):
        yield from iterations(rest, {**at, first.var: i})


@pytest.mark.parametrize(("condition", "loops", "proved"), [
    (("<", "8*ko + ki", "n"), (KO, KI), True),
    (("<", "8*ko + kl", "n"), (KO, KL), False),
    (("<", "8*ko + kl", "8*((n + 7)//8)"), (KO, KL), True),
    (("<", "4*et + el", "n"), (ET, EL), True),
    (("<", "4*ez + el", "n"), (EZ, EL), False),
    (("<=", "n//4", "(n + 3)//4"), (), True),
    (("<=", "min(n, 5)", "5"), (), True),
    (("<=", "5", "max(n, 5)"), (), True),
    (("<=", "0", "8*ko + kl"), (KO, KL), True),
    (("<", "0", "n"), (), False),
    (("<=", "m", "n"), (), False),
    (("<=", "0", "8*((4*ko)//8) + kl"), (KO, KL), True),
    (("<=", "0", "(n - m)//3"), (), False),
])
def test_proofs(condition, loops, proved):
    atom = Op(condition[0], (parse(condition[1]), parse(condition[2])))
    assert always(atom, loops) is proved
    if proved:
        for n in range(20):
            assert all(evaluate(atom, at) for at in iterations(loops, {"n": n, "m": 3}))


def test_what_never_holds():
    assert never(op("<=", "n", parse("4*et + el")), (ET, EL))
    assert not never(op("<=", "n", parse("4*ez + el")), (EZ, EL))
    assert not always(op("and", op("<", 0, 1), op("<", 0, 1)), ())


@pytest.mark.parametrize("sign", ["<", "<="])
@pytest.mark.parametrize("form", ["3*v + a - n", "v - a", "n - 2*v", "a - v + 2", "n - 3*v - a"])
def test_first_true_is_exact_for_natural_variables(sign, form):
    atom = Op(sign, (parse(form), Num(0)))
    lo, hi = first_true(atom, "v")
    for n, a, v in product(range(9), range(9), range(12)):
        at = {"n": n, "a": a, "v": v}
        inside = (lo is None or evaluate(lo, at) <= v) and (hi is None or v < evaluate(hi, at))
        assert inside == bool(evaluate(atom, at)), (text(atom), at)


def test_first_true_refuses_what_is_not_affine():
    assert first_true(Op("<", (op("*", "v", "v"), Var("n"))), "v") == (None, None)
    assert first_true(Op("==", (Var("v"), Var("n"))), "v") == (None, None)


def test_extremes_are_decided_where_they_can_be():
    assert text(least(parse("n//4"), parse("(n + 3)//4"))) == "(n // 4)"
    assert text(greatest(parse("n//4"), parse("(n + 3)//4"))) == "((n + 3) // 4)"
    assert text(least(Var("m"), Var("n"))) == "min(m, n)"


def test_natural_expressions():
    assert all(is_natural(parse(e)) for e in ("n", "3", "max(n - 3, 0)//4", "2*n + 1", "min(m, n)"))
    assert not is_natural(parse("n - 1"))


def over(var, hi, *body):
    return Loop(var, Num(0), Num(hi) if isinstance(hi, int) else Var(hi), tuple(body))


@pytest.mark.parametrize(("first", "second", "own"), [
    ("i", "i", True), ("i", "i - 1", False), ("8*i + j", "8*i + j", True), ("4*i + j", "4*i + j", False), ("8*i + j", "8*i", True),
    ("j", "j", False), ("i*i", "i*i", False), ("8*i + j", "8*i + j + 8", False), ("i + q", "i", False),
])
def test_own_blocks(first, second, own):
    a, b = (over("i", "n", over("j", 8, leaf)) for leaf in (Assign(ref("x", parse(first)), Num(1.0)), Assign(ref("y", "i"), ref("x", parse(second)))))
    assert own_block(a, b, "x") is own


@pytest.mark.parametrize(("index", "own"), [
    ("8*o + 4*p + j", True), ("8*o + 4*p + 2*j", False), ("8*o + 3*p + j", False), ("16*o + 4*p + j", True), ("4*o + 4*p + j", False),
    ("8*(o*o) + 4*p + j", True), ("8*o + 4*p + j + i", False),
])
def test_blocks_dealt_in_turn_are_owned(index, own):
    """Block 2·o + p of four elements belongs to p < 2, however many blocks there are."""
    loop = over("p", 2, over("o", "n", over("j", 4, over("i", 2, Assign(ref("x", parse(index)), Num(1.0))))))
    assert own_block(loop, loop, "x") is own
    places = [{evaluate(parse(index), {"p": p, "o": o, "j": j, "i": i}) for o, j, i in product(range(5), range(4), range(2))} for p in range(2)]
    assert not own or not places[0] & places[1]


def test_permutable_nests():
    loops = (over("i", "n"), over("j", "n"))
    assert permutable((Accumulate("sum", ref("x", "i"), ref("a", "i", "j")),), loops) == ""
    assert "again" in permutable((Assign(ref("x", "i"), ref("a", "i", "j")),), loops)
    assert "while writing" in permutable((Assign(ref("x", "i", "j"), ref("x", "j", "i")),), loops)


A, B = ref("a", "i"), ref("b", "i")


@pytest.mark.parametrize(("value", "held", "want"), [
    (op("exp2", op("-", A, B)), {"a": -inf, "b": "finite"}, 0.0),
    (op("exp2", op("-", A, B)), {"a": -inf, "b": "below"}, "unknown"),
    (op("exp2", A), {"a": "below"}, "finite"),
    (op("-", A, B), {"a": "below", "b": "finite"}, "below"),
    (op("-", A, B), {"a": "below", "b": "below"}, "unknown"),
    (op("-", A, B), {"a": -inf, "b": "above"}, -inf),
    (op("-", A, B), {"a": "below", "b": "above"}, "below"),
    (op("-", A, B), {"a": "above", "b": "above"}, "unknown"),
    (op("select", op("==", A, -inf), inf, A), {"a": "finite"}, "above"),
    (op("select", op("==", A, -inf), inf, B), {"a": "below", "b": "below"}, "unknown"),
    (op("*", A, B), {"a": 0.0, "b": "finite"}, 0.0),
    (op("*", A, B), {"a": 0.0, "b": "unknown"}, "unknown"),
    (op("*", A, 2.0), {"a": -inf}, -inf),
    (op("select", op("==", A, -inf), 0, A), {"a": "below"}, "finite"),
    (op("select", op("==", A, -inf), 0, B), {"a": "below", "b": "below"}, "below"),
    (op("select", op("==", A, 0), 0, op("/", B, A)), {"a": "finite", "b": 0.0}, 0.0),
    (op("select", op("==", A, 0), 0, op("/", 1.0, A)), {"a": "finite"}, "finite"),
    (op("select", op("==", A, 0), 0, op("/", B, A)), {"a": "finite", "b": "below"}, "unknown"),
    (op("select", op("<", "i", "n"), A, -inf), {"a": "finite"}, "below"),
    (op("+", B, A), {"a": -inf, "b": "finite"}, -inf),
    (op("max", A, B), {"a": "below", "b": "finite"}, "finite"),
    (op("max", A, B), {"a": "below", "b": "below"}, "below"),
    (op("log2", A), {"a": "finite"}, "below"),
    (op("log2", A), {"a": "above"}, "unknown"),
    (op("+", A, op("*", 0.7, op("log", B))), {"a": "below", "b": "finite"}, "below"),
    (op("*", -0.7, A), {"a": "below"}, "unknown"),
    (op("select", op("==", A, -inf), inf, A), {"a": "below"}, "above"),
    (op("exp2", op("-", B, op("select", op("==", A, -inf), inf, A))), {"a": "below", "b": -inf}, 0.0),
    (A, {}, "unknown"),
    (op("neg", A), {"a": 3.0}, "finite"),
])
def test_values_past_an_edge(value, held, want):
    assert beyond(value, held, frozenset()) == want


def test_a_condition_that_fails_past_the_edge_chooses_the_other_value():
    inside = op("<", "i", "n")
    assert beyond(op("select", op("and", inside, op("<=", "i", "j")), A, -inf), {"a": "unknown"}, frozenset([inside])) == -inf


def test_folds_past_an_edge():
    assert fold_beyond("max", -inf, -inf) == -inf
    assert fold_beyond("max", "finite", -inf) == "below"
    assert fold_beyond("sum", 0.0, 0.0) == 0.0
    assert fold_beyond("sum", "finite", 0.0) == "finite"
    assert fold_beyond("sum", "below", 0.0) == "unknown"
