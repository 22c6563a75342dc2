"""What nodes remember: rewriting keeps what does not change, answers never mix nodes that only compare equal."""

from moapipe.algebra.index import affine, simplify
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Var, op, rebuild, rewrite, substitute, text, variables

E = op("+", op("*", Ref("A", (Var("i"), Var("j"))), 2.0), Fold("sum", "k", Num(0), Var("n"), Ref("B", (Var("k"),))))


def test_rewriting_keeps_nodes_that_do_not_change():
    assert rewrite(E, lambda x: x) is E
    assert substitute(E, {"other": Num(1), "k": Num(2)}) is E
    changed = substitute(E, {"i": Num(3)})
    assert changed != E and changed.args[1] is E.args[1]
    assert rebuild(E, E.args) is E


def test_equal_numbers_of_different_types_keep_their_text():
    one, real = op("max", Var("x"), 1), op("max", Var("x"), 1.0)
    assert one == real and text(one) == "max(x, 1)" and text(real) == "max(x, 1.0)"
    assert text(simplify(one)) == "max(x, 1)" and text(simplify(real)) == "max(x, 1.0)"


def test_equal_nodes_hash_alike_and_remember_apart():
    again = Op("+", (rewrite(E.args[0], lambda x: Var("i") if x == Var("i") else x), E.args[1]))
    assert again == E and hash(again) == hash(E)
    assert variables(E) == {"i", "j", "n"}
    assert len({E, again}) == 1


def test_an_affine_form_belongs_to_its_caller():
    form = affine(op("+", Var("a"), 3))
    form.clear()
    assert affine(op("+", Var("a"), 3)) == {Var("a"): 1, 1: 3}
