"""In: the value of a definition and the cotangent of its array. Out: what reaches each element of an array that it reads.

The chain rule, once an operator is gone: a value is scalar functions and folds of array elements (the ψ-laws made it so), and
how each passes a cotangent on stands in the `adjoint` column of FUNCS and MONOIDS. Every row is linear in the cotangent t, so a
cotangent select(c, t, 0) stays outside: select(c, row(t), 0). What is not taken passes 0, never 0·∞.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from moapipe.algebra.function import FUNCS, MONOIDS
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, op, references, substitute
from moapipe.errors import AlgebraError

Range = tuple[str, Scalar, Scalar]
ZERO = Num(0)


@dataclass(frozen=True, slots=True)
class Arrival:
    """`value` reaches the element `target`, for every value of the variables of `scope` (the folds around it, outermost first)."""

    target: Ref
    scope: tuple[Range, ...]
    value: Scalar


def arrivals(e: Scalar, cotangent: Scalar, active: Container[str], fresh: Callable[[str], str]) -> Iterator[Arrival]:
    """What reaches each read of an array in `active`, given the cotangent of `e`. Indices and bounds pass nothing."""
    if not any(r.array in active for r in references(e)):
        return
    match e:
        case Ref():
            yield Arrival(e, (), cotangent)
        case Op(name, args):
            by = dict(zip("abc", args, strict=False)) | {"v": e}
            for argument, row in zip(args, FUNCS[name].adjoint, strict=True):
                if row:
                    yield from arrivals(argument, through(row, cotangent, by), active, fresh)
        case Fold(monoid, var, lo, hi, _):
            own = fresh(var)                           # apart from what the cotangent binds
            term = substitute(e.body, {var: Var(own)})
            by = _fold_names(e, own, term)
            for a in arrivals(term, through(MONOIDS[monoid].adjoint, cotangent, by), active, fresh):
                yield Arrival(a.target, ((own, lo, hi), *a.scope), a.value)
        case _:
            return


def _fold_names(e: Fold, own: str, term: Scalar) -> dict[str, Scalar]:
    """x, v, others and ties of a row of MONOIDS: other terms are those at another value of the fold's variable."""
    other = Fold("product", e.var, e.lo, e.hi, op("select", op("==", e.var, own), 1, e.body))  # `own` is fresh
    equal = Fold("sum", e.var, e.lo, e.hi, op("select", op("==", e.body, e), 1, 0))
    return {"x": term, "v": e, "others": other, "ties": equal}


def through(row: str, t: Scalar, by: Mapping[str, Scalar]) -> Scalar:
    """A row of the adjoint column at the cotangent `t`; a zero stays outside."""
    match t:
        case Op("select", (condition, x, Num(0))):
            return guarded(condition, through(row, x, by), True)
        case Op("select", (condition, Num(0), x)):
            return guarded(condition, through(row, x, by), False)
        case _:
            return filled(read(row), {**by, "t": t})


def guarded(condition: Scalar, x: Scalar, when: bool) -> Scalar:
    """x where the condition is `when`, else 0."""
    return Op("select", (condition, x, ZERO) if when else (condition, ZERO, x))


def filled(e: Scalar, by: Mapping[str, Scalar]) -> Scalar:
    """A row with its names filled in: simultaneous, and nothing inside what is filled in is touched."""
    match e:
        case Var(name):
            return by[name]
        case Op(name, args):
            return Op(name, tuple(filled(a, by) for a in args))
        case _:
            return e


# ------------------------------------------------------------------ reading a row

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=="}


@cache
def read(source: str) -> Scalar:
    """A scalar expression from Python's notation: numbers, names, + - * / // %, one comparison, calls of scalar functions."""
    return _read(ast.parse(source, mode="eval").body, source)


def _read(n: ast.expr, source: str) -> Scalar:
    match n:
        case ast.Constant(value=int() | float() as v):
            return Num(v)
        case ast.Name(id=name):
            return Var(name)
        case ast.BinOp(left=a, op=o, right=b) if type(o) in _BINARY:
            return Op(_BINARY[type(o)], _parts((a, b), source))
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return Op("neg", _parts((a,), source))
        case ast.Compare(left=a, ops=[o], comparators=[b]) if type(o) in _COMPARED:
            return Op(_COMPARED[type(o)], _parts((a, b), source))
        case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCS and FUNCS[name].arity == len(args):
            return Op(name, _parts(args, source))
        case _:
            raise AlgebraError(f"cannot read {source!r}", hint="numbers, names, + - * / // %, < <= ==, and calls of scalar functions")


def _parts(nodes: Sequence[ast.expr], source: str) -> tuple[Scalar, ...]:
    return tuple(_read(n, source) for n in nodes)
