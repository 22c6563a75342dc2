"""In: shape vectors with symbolic extents. Out: constraints between extents, and what is known of them.

Sizes are non-negative integers, nothing more. A constraint that no sizes can meet is an error at once; one that always holds
is forgotten; the others are listed beside the derivation and checked when the sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from moapipe.algebra.index import Affine, affine, combine, evaluate, expression, simplify
from moapipe.algebra.scalar import Num, Op, Scalar, Var, text
from moapipe.errors import AlgebraError

Shape = tuple[Scalar, ...]


def extent_text(e: Scalar) -> str:
    """One extent, without brackets around the whole."""
    s = text(e)
    return s[1:-1] if isinstance(e, Op) and s.startswith("(") else s


def shape_text(s: Sequence[Scalar]) -> str:
    """⟨a b c⟩."""
    return f"⟨{' '.join(map(extent_text if len(s) == 1 else text, s))}⟩"


@dataclass(frozen=True, slots=True)
class Constraint:
    """left = right, or left ≤ right, between extents; `glyph` is the operator that asks and `shapes` what it was given."""

    left: Scalar
    relation: Literal["==", "<="]
    right: Scalar
    glyph: str
    shapes: tuple[Shape, ...] = ()

    def gap(self) -> Affine:
        """right − left."""
        return combine(affine(simplify(self.right)), affine(simplify(self.left)), -1)

    def holds(self) -> bool:
        """True for all non-negative sizes."""
        gap = self.gap()
        return not gap if self.relation == "==" else _nonnegative(gap)

    def fails(self) -> bool:
        """True when no non-negative sizes meet it."""
        gap = self.gap()
        more, less = combine(gap, {1: -1}), combine({1: -1}, gap, -1)
        return (self.relation == "==" and _nonnegative(more)) or _nonnegative(less)

    def text(self) -> str:
        return f"{extent_text(self.left)} {self.relation} {extent_text(self.right)}"

    def check(self) -> None:
        if self.fails():
            raise self.error(self.text())

    def error(self, needed: str) -> AlgebraError:
        given = " and ".join(map(shape_text, self.shapes))
        return AlgebraError(f"{self.glyph} of shapes {given} needs {needed}" if given else f"{self.glyph} needs {needed}",
                            hint="the shapes do not conform: look at the axes in the order that the operator takes them")

    def at(self, sizes: Mapping[str, int]) -> None:
        """Raise AlgebraError when it does not hold at these sizes."""
        if not evaluate(Op(self.relation, (self.left, self.right)), sizes):
            raise self.error(f"{self.text()}, and {evaluate(self.left, sizes)} {self.relation} {evaluate(self.right, sizes)} is false")


def _nonnegative(form: Affine) -> bool:
    return all(v >= 0 and (k == 1 or _is_size(k)) for k, v in form.items())


def _is_size(e: object) -> bool:
    match e:
        case Var():
            return True
        case Op("*" | "//" | "min" | "max" | "+", args):
            return all(_is_size(a) or (isinstance(a, Num) and a.value >= 0) for a in args)
        case Op("%", _):
            return True
        case _:
            return False


def same(a: Scalar, b: Scalar) -> bool:
    return affine(simplify(a)) == affine(simplify(b))


def equal(a: Scalar, b: Scalar, glyph: str, *shapes: Shape) -> Constraint:
    return Constraint(a, "==", b, glyph, shapes)


def within(a: Scalar, b: Scalar, glyph: str, *shapes: Shape) -> Constraint:
    return Constraint(a, "<=", b, glyph, shapes)


def below(a: Scalar, b: Scalar, glyph: str, *shapes: Shape) -> Constraint:
    return Constraint(simplify(Op("+", (a, Num(1)))), "<=", b, glyph, shapes)


def nonnegative(a: Scalar, glyph: str, *shapes: Shape) -> Constraint:
    return Constraint(Num(0), "<=", a, glyph, shapes)


def rank(glyph: str, vector: Sequence[Scalar], shape: Shape) -> None:
    """A left vector may not be longer than the shape that it addresses."""
    if len(vector) > len(shape):
        raise AlgebraError(f"{glyph} has {len(vector)} components, {shape_text(vector)}, for the shape {shape_text(shape)}",
                           hint="a left vector has at most one component an axis")


def open_constraints(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The ones that depend on the sizes, each once. Two that contradict each other are an AlgebraError naming both."""
    out: dict[tuple[str, str, str], Constraint] = {}
    fixed: dict[str, tuple[int, Constraint]] = {}
    for c in constraints:
        c.check()
        if c.holds():
            continue
        if c.relation == "==":
            gap = c.gap()
            lead = next(v for k, v in gap.items() if k != 1)
            key = text(expression({k: v * (1 if lead > 0 else -1) for k, v in gap.items() if k != 1}))
            value = gap.get(1, 0) * (1 if lead > 0 else -1)
            if key in fixed and fixed[key][0] != value:
                other = fixed[key][1]
                raise AlgebraError(f"{c.glyph} needs {c.text()}, but {other.glyph} needs {other.text()}: "
                                   f"shapes {' '.join(map(shape_text, c.shapes + other.shapes))}", hint="no sizes satisfy both")
            fixed[key] = (value, c)
        out.setdefault((text(c.left), c.relation, text(c.right)), c)
    return tuple(out.values())
