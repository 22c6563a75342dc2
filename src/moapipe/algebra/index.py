"""In: integer scalar expressions. Out: their affine normal form, simplification, bounds, and the layout function γ.

An affine form is {atom: coefficient}; the key 1 holds the constant; an atom is a Var or an opaque Op (a floor division).
Sizes are taken to be non-negative, tile sizes positive.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from moapipe.algebra.scalar import Like, Num, Op, Ref, Scalar, Var, children, op, rebuild, scalar, shared, text, variables
from moapipe.errors import AlgebraError

Atom = Scalar | Literal[1]
Affine = dict[Atom, int]


def affine(e: Scalar) -> Affine:
    """The affine normal form of `e`; products of two unknowns and divisions are opaque atoms."""
    return dict(_affine(e))


@shared
def _affine(e: Scalar) -> Affine:
    match e:
        case Num(0):
            return {}
        case Num(v) if isinstance(v, int):
            return {1: v}
        case Op("+" | "-" as sign, (a, b)):
            return combine(affine(a), affine(b), 1 if sign == "+" else -1)
        case Op("*", (a, b)):
            return product(affine(a), affine(b))
        case _:
            return {e: 1}


def product(x: Affine, y: Affine) -> Affine:
    """Distribute a product of sums; each product of atoms becomes one opaque atom in canonical order."""
    out: Affine = {}
    for a, p in x.items():
        for b, q in y.items():
            key: Atom = b if a == 1 else a if b == 1 else _times(factors(a) + factors(b))
            out[key] = out.get(key, 0) + p * q
    return {k: v for k, v in out.items() if v}


def factors(e: Scalar) -> tuple[Scalar, ...]:
    match e:
        case Op("*", (a, b)):
            return factors(a) + factors(b)
        case _:
            return (e,)


def _times(parts: tuple[Scalar, ...]) -> Scalar:
    first, *rest = sorted(parts, key=text)
    for p in rest:
        first = Op("*", (first, p))
    return first


def combine(x: Affine, y: Affine, sign: int = 1) -> Affine:
    """x + sign·y."""
    out = dict(x)
    for k, v in y.items():
        out[k] = out.get(k, 0) + sign * v
    return {k: v for k, v in out.items() if v}


def expression(form: Affine) -> Scalar:
    """The canonical expression of an affine form: atoms in text order, positive ones first, then the constant (2 − i: before
    atoms that are all negative)."""
    out: Scalar | None = None
    terms = sorted(((scalar(k), v) for k, v in form.items() if k != 1), key=lambda t: (t[1] < 0, text(t[0])))
    constants = [(scalar(1), form[1])] if form.get(1) else []
    first = constants if form.get(1, 0) > 0 and terms and terms[0][1] < 0 else []
    for atom, v in [*first, *terms, *(constants if not first else [])]:
        size = Num(abs(v)) if atom == Num(1) else (atom if abs(v) == 1 else Op("*", (atom, Num(abs(v)))))
        if out is None:
            out = size if v > 0 else (Num(v) if atom == Num(1) else Op("*", (atom, Num(v))))
        else:
            out = Op("+" if v > 0 else "-", (out, size))
    return Num(0) if out is None else out


@shared
def simplify(e: Scalar) -> Scalar:
    """Affine normal form everywhere inside `e`; rules for //, %, min, max on constants and equal arguments."""
    match e:
        case Op("+" | "-" | "*" as name, args):
            return expression(affine(Op(name, tuple(simplify(a) for a in args))))
        case Op("//", (a, Num(f))) if isinstance(f, int):
            return _divide(simplify(a), f)
        case Op("%", (a, Num(f))) if isinstance(f, int):
            rest = {k: v for k, v in affine(simplify(a)).items() if v % f or k == 1}
            r = expression({k: v % f if k == 1 else v for k, v in rest.items()} if set(rest) <= {1} else rest)
            return r if isinstance(r, Num) else Op("%", (r, Num(f)))
        case Op("min" | "max" as name, args):
            return _extreme(name, tuple(simplify(a) for a in args))
        case _:
            return rebuild(e, tuple(simplify(c) for c in children(e)))


def _divide(a: Scalar, f: int) -> Scalar:
    if f == 1:
        return a
    form = affine(a)
    whole = {k: v // f for k, v in form.items() if v % f == 0}
    rest = {k: v for k, v in form.items() if v % f}
    if set(rest) <= {1}:
        return expression(combine(whole, {1: rest.get(1, 0) // f} if rest.get(1, 0) // f else {}))
    quotient = Op("//", (expression(rest), Num(f)))
    return expression(combine(whole, {quotient: 1}))


def _extreme(name: str, args: tuple[Scalar, ...]) -> Scalar:
    flat = [p for a in args for p in _operands(name, a)]
    pick = min if name == "min" else max
    consts = [a.value for a in flat if isinstance(a, Num)]
    rest = list(dict.fromkeys(a for a in flat if not isinstance(a, Num)))
    kept: list[Scalar] = [a for a in rest if not any(b != a and _dominated(name, a, b) for b in rest)]
    if consts:
        kept.append(Num(pick(consts)))
    out = kept[0]
    for k in kept[1:]:
        out = Op(name, (out, k))
    return out


def _operands(name: str, e: Scalar) -> tuple[Scalar, ...]:
    """The operands of nested min's (max's), from left to right."""
    return tuple(p for a in e.args for p in _operands(name, a)) if isinstance(e, Op) and e.name == name else (e,)


def _dominated(name: str, a: Scalar, b: Scalar) -> bool:
    """a never decides because b is always at least as extreme by a constant."""
    gap = combine(affine(a), affine(b), -1)
    return set(gap) <= {1} and (gap.get(1, 0) > 0) == (name == "min") and gap != {}


def add(*terms: Like) -> Scalar:
    form: Affine = {}
    for t in terms:
        form = combine(form, affine(simplify(scalar(t))))
    return expression(form)


def subtract(a: Like, b: Like) -> Scalar:
    return simplify(op("-", a, b))


def multiply(a: Like, b: Like) -> Scalar:
    return simplify(op("*", a, b))


def ceil_div(a: Like, f: Like) -> Scalar:
    """⌈a/f⌉ for positive f."""
    return simplify(op("//", op("+", a, op("-", f, 1)), f))


def floor_div(a: Like, f: Like) -> Scalar:
    return simplify(op("//", a, f))


def minimum(a: Like, b: Like) -> Scalar:
    return simplify(op("min", a, b))


def maximum(a: Like, b: Like) -> Scalar:
    return simplify(op("max", a, b))


def constant(e: Scalar) -> int | None:
    """The integer value, or None for anything symbolic."""
    return e.value if isinstance(e, Num) and isinstance(e.value, int) else None


def coefficient(e: Scalar, var: str) -> int:
    """Coefficient of a variable in the affine form (0 when it appears only inside opaque atoms)."""
    return affine(e).get(Var(var), 0)


def is_affine_in(e: Scalar, var: str) -> bool:
    """True when `var` appears only as a linear term, never inside a division or a product."""
    return all(isinstance(k, Var) or k == 1 or var not in variables(k) for k in affine(e))


def extreme(e: Scalar, ranges: Mapping[str, tuple[Scalar, Scalar]], largest: bool) -> Scalar:
    """`e` with each variable of `ranges` ({name: (lo, hi)}, lo <= v < hi) at the end that makes it largest (smallest)."""
    out: Affine = {}
    for atom, c in affine(simplify(e)).items():
        end: Affine = {atom: 1}
        if isinstance(atom, Var) and atom.name in ranges:
            lo, hi = ranges[atom.name]
            end = affine(subtract(hi, 1) if (c > 0) == largest else simplify(lo))
        out = combine(out, end, c)
    return expression(out)


def gamma_row(index: Sequence[Like], shape: Sequence[Like]) -> Scalar:
    """γ_row(i; s) = Σ_k i_k · Π_{j>k} s_j, by Horner's rule; γ(<>; <>) = 0."""
    offset: Affine = {}
    for i, s in zip(index, shape, strict=True):
        offset = combine(product(offset, affine(simplify(scalar(s)))), affine(simplify(scalar(i))))
    return expression(offset)


def gamma_column(index: Sequence[Like], shape: Sequence[Like]) -> Scalar:
    """γ_col(i; s) = Σ_k i_k · Π_{j<k} s_j."""
    return gamma_row(tuple(reversed(index)), tuple(reversed(shape)))


def gamma_inverse(offset: Like, shape: Sequence[Like]) -> tuple[Scalar, ...]:
    """γ'(m; s): the row-major mixed-radix digits of an offset."""
    out: list[Scalar] = []
    rest = scalar(offset)
    for s in reversed(shape[1:]):
        out.append(simplify(op("%", rest, s)))
        rest = simplify(op("//", rest, s))
    return (rest, *reversed(out)) if shape else ()


INDEX_FUNCTIONS = frozenset(("+", "-", "*", "//", "%", "min", "max", "<", "<=", "==", "and", "or", "not"))


def is_entry(e: Scalar) -> bool:
    """⌊x, x an element of an array: a whole number that comes with the data, such as a length. As an index it is at least 0."""
    return isinstance(e, Op) and e.name == "floor" and isinstance(e.args[0], Ref)


def is_index(e: Scalar) -> bool:
    """Made of integers and integer functions only; whole numbers that come with the data are integers."""
    match e:
        case Num(v):
            return isinstance(v, int)
        case Var():
            return True
        case Op(name, args):
            return is_entry(e) or (name in INDEX_FUNCTIONS and all(is_index(a) for a in args))
        case _:
            return False


def evaluate(e: Scalar, at: Mapping[str, int]) -> int:
    """The integer value of an index expression or an integer comparison."""
    match e:
        case Num(v):
            return int(v)
        case Var(name):
            return at[name]
        case Op(name, args):
            return int(INTEGER[name](*(evaluate(a, at) for a in args)))
        case Ref() | _:
            raise AlgebraError(f"{text(e)} is no integer expression")


INTEGER: dict[str, Callable[..., int | bool]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "min": min, "max": max, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b, "and": lambda a, b: bool(a and b), "or": lambda a, b: bool(a or b), "not": lambda a: not a,
}

_AST = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=="}


@lru_cache(maxsize=1 << 12)
def parse(source: str) -> Scalar:
    """An index expression, or a condition on such, from its canonical text (as manifests and variant files hold it). AlgebraError for
    anything else."""
    unread = AlgebraError(f"cannot read index expression {source!r}", hint="use + - * // % min(a, b) max(a, b), names and integers of 62 bits; nothing divides by 0")

    def go(n: ast.expr) -> Scalar:
        match n:
            case ast.Constant(value=int() as v) if not isinstance(v, bool) and v < 1 << 62:
                return Num(v)
            case ast.Name(id=name):
                return Var(name)
            case ast.BinOp(left=a, op=o, right=b) if type(o) in _AST:
                return Op(_AST[type(o)], (go(a), go(b)))
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return multiply(-1, go(a))
            case ast.Compare(left=a, ops=[o], comparators=[b]) if type(o) in _AST:
                return Op(_AST[type(o)], (go(a), go(b)))
            case ast.Call(func=ast.Name(id="min" | "max" | "and_" | "or_" as f), args=[_, _, *_] as args, keywords=[]):
                return Op(f.rstrip("_"), tuple(go(a) for a in args))
            case ast.Call(func=ast.Name(id="not_"), args=[a], keywords=[]):
                return Op("not", (go(a),))
            case _:
                raise unread

    readable = re.sub(r"\b(and|or|not)\(", r"\1_(", source)   # functions here, keywords in Python
    try:
        return simplify(go(ast.parse(readable, mode="eval").body))
    except (SyntaxError, ZeroDivisionError, RecursionError) as e:
        raise unread from e
