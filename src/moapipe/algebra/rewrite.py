"""In: an index and a MoA expression. Out: the scalar that the expression has at this index, by ψ-reduction, and every step.

Reduction is directed by syntax: the outermost operator's row in OPS is the only law that applies, so the result is unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from moapipe.algebra.expr import Apply, Cell, Expr, Leaf, Value, fill
from moapipe.algebra.index import INTEGER, constant, evaluate, simplify
from moapipe.algebra.ops import OPS, Data
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, children, rebuild, rewrite
from moapipe.errors import AlgebraError

COLLAPSE = "collapse"
RULES = {COLLAPSE: "s ρ̂ (t ρ̂ A) = s ρ̂ A;  rav (t ρ̂ A) = rav A;  s ρ̂ (rav A) = s ρ̂ A"}


@dataclass(frozen=True, slots=True)
class Pending:
    """A scalar in which `Ref("0", i)` still stands for i ψ parts[0], and so on."""

    value: Scalar
    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One use of a law (a row of OPS, or of RULES) in a definition."""

    definition: str
    law: str
    before: Pending
    after: Pending


def is_reduction(law: str) -> bool:
    """Whether it is a law of ψ-reduction; the other steps of a derivation make a gradient (`adjoint.RULES`)."""
    return law in OPS or law in RULES


class Reducer:
    """Reduces one definition, whose index variables have `extents`: keeps the names that are taken and the steps taken so far."""

    def __init__(self, definition: str, taken: Iterable[str], extents: Mapping[str, Scalar]) -> None:
        self.definition, self.extents = definition, extents
        self.taken = set(taken)
        self.steps: list[Step] = []

    def fresh(self, wish: str) -> str:
        """The wished name, or the wished name with the first free number."""
        name, n = wish, 2
        while name in self.taken:
            name, n = f"{wish}{n}", n + 1
        self.taken.add(name)
        return name

    def reduce(self, index: tuple[Scalar, ...], e: Expr) -> Scalar:
        """R(index, e): the element of `e` at a full index."""
        match e:
            case Leaf(name, _):
                return Ref(name, tuple(map(simplify, index)))
            case Value(value):
                return value
            case Apply():
                return self._apply(index, self._collapse(index, e))
            case Cell():
                raise AlgebraError("a cell outside Ω's function", where=self.definition, hint="use Ω's arguments only inside its function")
            case _:
                assert_never(e)

    def _apply(self, index: tuple[Scalar, ...], e: Apply) -> Scalar:
        row = OPS[e.operator]
        variable = self.fresh(e.data.variable or "l") if row.folds else ""
        pull = row.psi(e.data, tuple(a.shape for a in e.args), index, variable)
        parts = e.args
        if e.body is not None:
            cells = tuple(_cell(f, a) for f, a in zip(pull.frames, e.args, strict=True))
            parts = (fill(e.body, e.data.depth, cells),)
        value = rewrite(pull.value, lambda x: Ref("0", x.index) if isinstance(x, Ref) and x.array == "cell" else x)
        if index or e.operator != "pointwise":   # Θ ψ (A f B) is A f B: nothing to tell
            self._note(e.operator, index, e, Pending(value, parts))
        return self._go_on(value, parts)

    def _go_on(self, value: Scalar, parts: tuple[Expr, ...]) -> Scalar:
        match value:
            case Ref(array, index):
                return self.reduce(index, parts[int(array)])
            case _:
                return self._decided(tidy(rebuild(value, tuple(self._go_on(c, parts) for c in children(value)))))

    def _decided(self, e: Scalar) -> Scalar:
        """A choice by i < n + c, where i is an index variable of extent n and c a constant of at least 0, is made: i stays below."""
        match e:
            case Op("select", (Op("<", (Var(name), limit)), chosen, _)) if name in self.extents:
                gap = constant(simplify(Op("-", (limit, self.extents[name]))))
                return chosen if gap is not None and gap >= 0 else e
            case _:
                return e

    def _collapse(self, index: tuple[Scalar, ...], e: Apply) -> Apply:
        """Merge chains of ρ̂ and rav, whose indices would not simplify one by one."""
        names = ("reshape", "ravel")
        while e.operator in names and isinstance(inside := e.args[0], Apply) and inside.operator in names:
            merged = replace(e, operator="reshape", args=inside.args, data=Data(vector=e.shape))
            self._note(COLLAPSE, index, e, Pending(Ref("0", index), (merged,)))
            e = merged
        return e

    def _note(self, law: str, index: tuple[Scalar, ...], e: Expr, after: Pending) -> None:
        self.steps.append(Step(self.definition, law, Pending(Ref("0", index), (e,)), after))


def _cell(frame: tuple[Scalar, ...], a: Expr) -> Expr:
    """frame ψ a, and `a` itself for the empty frame (Θ ψ A = A)."""
    return Apply("psi", (a,), Data(vector=frame), a.shape[len(frame):]) if frame else a


def is_integer(e: Scalar) -> bool:
    """True for an integer expression in index variables and sizes."""
    match e:
        case Num(v):
            return isinstance(v, int)
        case Var():
            return True
        case Op("+" | "-" | "*" | "//" | "%" | "min" | "max", args):
            return all(map(is_integer, args))
        case _:
            return False


def tidy(e: Scalar) -> Scalar:
    """One node in normal form: integer arithmetic simplified, decided conditions taken, bounds and indices affine."""
    match e:
        case Fold(monoid, var, lo, hi, body):
            return Fold(monoid, var, simplify(lo), simplify(hi), body)
        case Op("select", (Num(c), a, b)):
            return a if c else b
        case Op("<" | "<=" | "==" as name, args) if all(map(is_integer, args)):
            sides = tuple(map(simplify, args))
            gap = constant(simplify(Op("-", sides)))
            return Num(int(evaluate(Op(name, (Num(gap), Num(0))), {}))) if gap is not None else Op(name, sides)
        case Op(name, _) if name in INTEGER and is_integer(e):
            return simplify(e)
        case _:
            return e
