"""In: scalar expressions of a loop nest, and where they stand. Out: their text in one language.

`Scope` is the place: which variables are already numbers (expanded loops), which variable is the lane, what the loops around
allow. Text is written on elements, or, when the scope has a lane, on vectors of V elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from moapipe.algebra.index import (
    INDEX_FUNCTIONS,
    affine,
    constant,
    expression,
    gamma_row,
    is_affine_in,
    is_entry,
    is_index,
    simplify,
    subtract,
)
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, substitute, text, variables
from moapipe.errors import TargetError
from moapipe.loops.onf import Array, Kernel
from moapipe.loops.team import owned
from moapipe.targets.target import ATOM, LEVELS, Target, Text, Unit

COMPARISONS = frozenset(("<", "<=", "=="))
JUNCTIONS = frozenset(("and", "or", "not"))
ZERO = Num(0)
MONOIDS = {"sum": "+", "product": "*", "max": "max", "min": "min"}
UNITS = {"sum": 0.0, "product": 1.0, "max": -inf, "min": inf}


@dataclass(frozen=True, slots=True)
class Scope:
    """`known`: variables that are numbers or other expressions here. `lane`: the variable that V lanes run over, "" outside.
    `ranges`: {variable: (lo, hi)} of the loops around, for proofs that an access stays inside its array."""

    known: Mapping[str, Scalar]
    ranges: Mapping[str, tuple[Scalar, Scalar]]
    lane: str = ""
    base: Scalar = ZERO

    def knowing(self, var: str, value: Scalar) -> Scope:
        return replace(self, known={**self.known, var: value})

    def under(self, var: str, lo: Scalar, hi: Scalar) -> Scope:
        return replace(self, ranges={**self.ranges, var: (lo, hi)})


def nonnegative(e: Scalar) -> bool:
    """Every term of the affine form is: sizes and loop variables never fall below zero."""
    return all(v >= 0 and (k == 1 or _grows(k)) for k, v in affine(e).items())


def _grows(atom: Scalar) -> bool:
    match atom:
        case Var():
            return True
        case Num(v):
            return v >= 0
        case Op("*" | "//" | "%" | "min", args):
            return all(nonnegative(a) for a in args)
        case Op("max", args):
            return any(nonnegative(a) for a in args)
        case _:
            return is_entry(atom)


class Writer:
    """Writes the expressions of one kernel in one language."""

    def __init__(self, kernel: Kernel, target: Target, unit: Unit, names: Mapping[str, str]) -> None:
        self.kernel, self.target, self.unit, self.names = kernel, target, unit, names
        self.arrays = {a.name: a for a in kernel.arrays}
        self.owned = owned(kernel)

    # -------------------------------------------------------------- integers and conditions on them

    def index(self, e: Scalar, scope: Scope) -> Text:
        """A 64-bit integer, or a condition on integers."""
        return self._index(simplify(substitute(e, scope.known)))

    def _index(self, e: Scalar) -> Text:
        t = self.target
        match e:
            case Num(v):
                return Text(str(int(v)), ATOM if v >= 0 else LEVELS["neg"])
            case Var(name):
                return Text(self.names["v:" + name])
            case Op("//" | "%" as name, (a, b)):
                exact = "quotient" if name == "//" else "remainder"
                form = t.integer[exact if nonnegative(a) and nonnegative(b) else name]
                return self._call(form, (a, b))
            case Op("min" | "max" as name, args):
                out = self._narrow(args[0])
                for a in args[1:]:
                    out = Text(t.integer[name].format(out.text, self._narrow(a).text))
                return out
            case Op("not", (a,)):
                return Text(t.signs["not"] + self._index(a).at(ATOM), LEVELS["not"])
            case Op("floor", (Ref() as r,)):
                return Text(t.integer["floor"].format(self.load(r, Scope({}, {})).text))
            case Op(name, (a, b)) if name in INDEX_FUNCTIONS:
                return self._infix(name, self._index(a), self._index(b))
            case _:
                raise TargetError(f"{text(e)} is no integer expression", where=self.kernel.name,
                                  hint="indices, bounds and guards are made of loop variables and sizes")

    def argument(self, e: Scalar, scope: Scope) -> str:
        """A 64-bit integer as a procedure's argument."""
        return self._narrow(simplify(substitute(e, scope.known))).text

    def _narrow(self, e: Scalar) -> Text:
        """An argument of an integer function: a bare literal takes the kind of the sizes."""
        return Text(self.target.narrow.format(e.value)) if isinstance(e, Num) else self._index(e)

    def _call(self, form: str, args: Iterable[Scalar]) -> Text:
        return Text(form.format(*(self._narrow(a).at(7) for a in args)))

    def _infix(self, name: str, a: Text, b: Text) -> Text:
        level = LEVELS[name]
        left = level + 1 if name in COMPARISONS else level
        return Text(f"{a.at(left)} {self.target.signs[name]} {b.at(level + 1)}", level, a.vector or b.vector)

    # -------------------------------------------------------------- values

    def value(self, e: Scalar, scope: Scope) -> Text:
        """An element of the dtype, or a vector of them."""
        match e:
            case Num(v):
                return self.target.literal(float(v), self.unit)
            case Ref():
                return self.load(e, scope)
            case Op("select", (c, a, b)):
                return self._select(c, a, b, scope)
            case _ if is_index(e):
                return Text(self.target.cast.format(self.index(e, scope).text))
            case Op("neg", (a,)):
                inner = self.value(a, scope)
                return Text("-" + inner.at(LEVELS["*"] + 1), LEVELS["neg"], inner.vector)
            case Op("+" | "-" | "*" | "/" as name, (a, b)):
                return self._infix(name, self.value(a, scope), self.value(b, scope))
            case Op(name, args):
                return self.apply(name, tuple(self.value(a, scope) for a in args))
            case _:
                raise TargetError(f"{text(e)} cannot be written as a value", where=self.kernel.name)

    def apply(self, name: str, args: tuple[Text, ...]) -> Text:
        """A function of FUNCS on written arguments: on vectors as soon as one argument is a vector."""
        vector = any(a.vector for a in args)
        table = self.target.vector if vector else self.target.scalar
        if name in ("+", "*"):
            return self._infix(name, *args)
        if name not in table:
            raise TargetError(f"{self.target.name} has no {'vector ' if vector else ''}template for {name}", where=self.kernel.name,
                              hint="one template a target: see Target.scalar and Target.vector")
        return Text(table[name].format(*(self.splat(a) if vector else a.text for a in args)), vector=vector)

    def splat(self, a: Text) -> str:
        return a.text if a.vector else self.target.vector["splat"].format(a.text)

    def _select(self, c: Scalar, a: Scalar, b: Scalar, scope: Scope) -> Text:
        x, y = self.value(a, scope), self.value(b, scope)
        condition = self.condition(c, scope)
        if condition.vector:
            return Text(self.target.vector["select"].format(condition.text, self.splat(x), self.splat(y)), vector=True)
        vector = x.vector or y.vector
        arms = (self.splat(x), self.splat(y)) if vector else (x.text, y.text)
        blend = "blend" if "blend" in self.target.scalar and not is_index(c) else "select"
        return Text(self.target.scalar[blend].format(condition.text, *arms), vector=vector)

    def condition(self, c: Scalar, scope: Scope) -> Text:
        """A condition on integers or on values; a mask when it differs from lane to lane."""
        match c:
            case _ if is_index(c):
                here = substitute(c, {k: v for k, v in scope.known.items() if k != scope.lane})
                return self._mask(here, scope) if scope.lane and scope.lane in variables(here) else self.index(c, scope)
            case Op("and" | "or" as name, (a, b)):
                x, y = self.condition(a, scope), self.condition(b, scope)
                if x.vector or y.vector:
                    return self._blend(name, x, y)
                return self._infix(name, x, y)
            case Op("not", (a,)):
                x = self.condition(a, scope)
                sign = self.target.vector["not"] if x.vector else self.target.signs["not"] + "{0}"
                return Text(sign.format(x.at(ATOM)), LEVELS["not"], x.vector)
            case Op(name, (a, b)) if name in COMPARISONS:
                return self._infix(name, self.value(a, scope), self.value(b, scope))
            case _:
                raise TargetError(f"{text(c)} is no condition", where=self.kernel.name)

    def _blend(self, name: str, x: Text, y: Text) -> Text:
        parts = (a.at(ATOM) if a.vector else self.target.vector["flag"].format(a.text) for a in (x, y))
        return Text(self.target.vector[name].format(*parts), vector=True)

    def _mask(self, c: Scalar, scope: Scope) -> Text:
        """A condition that is affine in the lane with coefficient 1 or -1, as a mask: lane < limit, or its complement."""
        match c:
            case Op("and" | "or" as name, (a, b)):
                return self._blend(name, self.condition(a, scope), self.condition(b, scope))
            case Op("not", (a,)):
                return Text(self.target.vector["not"].format(self.condition(a, scope).at(ATOM)), vector=True)
            case Op("<" | "<=" | "==" as name, (a, b)):
                rise, limit = self._limit(a, b, scope)
                below, strict = self.target.vector["below"], {"<": 0, "<=": 1, "==": 0}[name]
                if name == "==":
                    low, high = (below.format(self._index(simplify(Op("+", (limit, Num(k))))).text) for k in (0, 1))
                    return Text(self.target.vector["and"].format(high, self.target.vector["not"].format(low)), vector=True)
                edge = Op("+", (limit, Num(strict))) if rise else Op("+", (limit, Num(1 - strict)))
                mask = below.format(self._index(simplify(edge)).text)
                return Text(mask if rise else self.target.vector["not"].format(mask), vector=True)
            case _:
                raise TargetError(f"{text(c)} cannot be written as a mask", where=self.kernel.name)

    def _limit(self, a: Scalar, b: Scalar, scope: Scope) -> tuple[bool, Scalar]:
        """a < b as lane < limit (True) or lane > limit (False); lanes count from the vector's first."""
        form = affine(subtract(b, a))
        c = form.pop(Var(scope.lane), 0)
        rest = expression(form)
        if abs(c) != 1 or scope.lane in variables(rest):
            raise TargetError(f"a mask needs lane {scope.lane} with coefficient 1: {text(a)} against {text(b)}", where=self.kernel.name)
        limit = rest if c < 0 else Op("-", (Num(0), rest))
        return c < 0, simplify(Op("-", (limit, scope.base)))

    # -------------------------------------------------------------- elements

    def own(self, index: tuple[Scalar, ...], array: str) -> tuple[Scalar, ...]:
        """Indices (or extents) without those that tell whose registers they are."""
        return index[self.owned.get(array, 0):]

    def load(self, r: Ref, scope: Scope) -> Text:
        where, vector = self.place(r, scope)
        if vector and self.arrays[r.array].space != "register":
            return Text(self.target.vector["load"].format(where), vector=True)
        return Text(where, vector=vector)

    def place(self, r: Ref, scope: Scope) -> tuple[str, bool]:
        """An element, or (True) the place where V of them lie: a named vector, or an address."""
        a = self.arrays[r.array]
        depends = bool(scope.lane) and scope.lane in variables(r)
        if depends and self.target.lanes == "vectors" and not unit_stride(r, scope.lane):
            raise TargetError(f"lane {scope.lane} is not unit-stride in {text(r)}", where=self.kernel.name,
                              hint="the lane variable must stand in the last index with coefficient 1")
        index = tuple(simplify(substitute(i, scope.known)) for i in r.index)
        name = self.names["a:" + r.array]
        if a.space == "register" and self.target.lanes == "vectors":
            return self._register(a, name, index, depends, r)
        if self.target.indexing == "nested":
            return self.target.element.format(name, ", ".join(self._index(i).text for i in reversed(index)) or "0"), False
        element = self.target.element.format(name, self._index(gamma_row(self.own(index, r.array), self.own(a.shape, r.array))).text)
        return (self.target.address.format(element) if depends else element), depends

    def _register(self, a: Array, name: str, index: tuple[Scalar, ...], depends: bool, r: Ref) -> tuple[str, bool]:
        *outer, last = index
        known = [constant(i) for i in outer]
        if None in known or not a.shape:
            raise TargetError(f"register array {a.name} needs constant indices: {text(r)}", where=self.kernel.name,
                              hint="index it with unroll and lane variables only")
        v = self.unit.lanes
        if (k := constant(last)) is not None:
            vector = vector_name(name, (*(int(i or 0) for i in known), k // v))
            return (vector, True) if depends else (f"{vector}[{k % v}]", False)
        form = affine(last)
        k = form.pop(1, 0)
        spot = self._index(expression(form)).text
        return f"{vector_name(name, (*(int(i or 0) for i in known), k // v))}[{spot}]", False


def vector_name(name: str, at: Iterable[int]) -> str:
    """The variable that holds one vector of a register array."""
    return "_".join((name, *map(str, at)))


def unit_stride(r: Ref, lane: str) -> bool:
    """`lane` stands in the last index only, with coefficient 1."""
    *outer, last = r.index
    return not any(lane in variables(i) for i in outer) and is_affine_in(last, lane) and affine(last).get(Var(lane), 0) == 1
