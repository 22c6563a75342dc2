"""In: comparisons of indices, and the bounds of their variables. Out: what the bounds decide, and comparisons and indices in normal form."""

from __future__ import annotations

from collections.abc import Mapping

from moapipe.algebra.index import affine, combine, expression, extreme, maximum, minimum, multiply, simplify, subtract
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, Var, op, references, rewrite, scalar, variables, walk
from moapipe.algebra.shape import nonnegative

Bounds = Mapping[str, tuple[Scalar, Scalar]]
"""lo ≤ variable < hi."""


def simplified(c: Scalar) -> Scalar:
    """A comparison in normal form."""
    match c:
        case Op("<" | "<=" as name, (a, b)):
            return compared(name, a, b)
        case Op(name, args):
            return Op(name, tuple(map(simplify, args)))
        case _:
            return c


def compared(name: str, a: Scalar, b: Scalar) -> Scalar:
    """A comparison with each term on the side where it is positive."""
    gap = affine(subtract(b, a))
    return Op(name, (expression({k: -v for k, v in gap.items() if v < 0}), expression({k: v for k, v in gap.items() if v > 0})))


def negated(c: Scalar) -> Scalar:
    """The comparison that holds where an index comparison does not."""
    match c:
        case Op("<", (a, b)):
            return Op("<=", (b, a))
        case Op("<=", (a, b)):
            return Op("<", (b, a))
        case _:
            return Op("not", (c,))


def conditions(value: Scalar) -> tuple[tuple[Scalar, ...], Scalar]:
    """Comparisons of indices outside which a value is 0, and the value where they hold."""
    found: list[Scalar] = []
    while True:
        match value:
            case Op("select", (Op("<" | "<=") as c, x, Num(0))) if not references(c):
                found.append(c)
                value = x
            case Op("select", (Op("<" | "<=") as c, Num(0), x)) if not references(c):
                found.append(negated(c))
                value = x
            case _:
                return tuple(found), value


def cut(c: Scalar, v: str) -> tuple[str, Scalar | None, Scalar | None] | None:
    """(v, lo, hi) when a comparison bounds the variable from one side: lo ≤ v or v < hi."""
    if not isinstance(c, Op) or c.name not in ("<", "<="):
        return None
    form = affine(subtract(c.args[1], c.args[0]))                      # ≥ 0, or > 0 for <
    own = form.pop(Var(v), 0)
    if abs(own) != 1 or any(v in variables(scalar(a)) for a in form):
        return None
    rest, strict = expression(form), c.name == "<"
    if own == 1:
        return v, simplify(op("-", 1 if strict else 0, rest)), None
    return v, None, simplify(op("+", rest, 0 if strict else 1))


def larger(a: Scalar, b: Scalar, bounds: Bounds) -> Scalar:
    """max(a, b), one of them where the bounds say which."""
    return a if decided(Op("<=", (b, a)), bounds) else b if decided(Op("<=", (a, b)), bounds) else maximum(a, b)


def smaller(a: Scalar, b: Scalar, bounds: Bounds) -> Scalar:
    """min(a, b), one of them where the bounds say which."""
    return a if decided(Op("<=", (a, b)), bounds) else b if decided(Op("<=", (b, a)), bounds) else minimum(a, b)


def decided(c: Scalar, bounds: Bounds) -> bool:
    """The comparison holds at every index within the bounds, for all sizes at which there is one."""
    if not isinstance(c, Op) or c.name not in ("<", "<="):
        return False
    least = subtract(c.args[1], c.args[0])
    for _ in bounds:
        if not variables(least) & set(bounds):
            break
        least = extreme(least, bounds, False)
    slack = subtract(least, 1) if c.name == "<" else least
    return nonnegative(slack, "").holds() or _within_turn(c, bounds)


def _within_turn(c: Op, bounds: Bounds) -> bool:
    """0 ≤ x mod n < n, and 0 ≤ x // n < h for 0 ≤ x < h·n."""
    match c.args:
        case (Num(0), Op("%", _)):
            return True
        case (Op("%", (_, n)), m) if c.name == "<":
            return simplify(n) == simplify(m)
        case (Num(0), Op("//", (x, _))):
            return decided(Op("<=", (Num(0), x)), bounds)
        case (Op("//", (x, n)), h) if c.name == "<":
            return decided(Op("<", (x, multiply(h, n))), bounds)
        case _:
            return False


def within(e: Scalar, bounds: Bounds) -> Scalar:
    """With x mod n as x, and x // n as 0, where 0 ≤ x < n."""

    def go(x: Scalar) -> Scalar:
        match x:
            case Op("%" | "//" as name, (y, n)) if decided(Op("<=", (Num(0), y)), bounds) and decided(Op("<", (y, n)), bounds):
                return y if name == "%" else Num(0)
            case _:
                return x

    return rewrite(e, go) if any(isinstance(x, Op) and x.name in ("%", "//") for x in walk(e)) else e


def joined(e: Scalar) -> Scalar:
    """An index in normal form, with (x // n)·n + x mod n as x and (x mod n) // n as 0."""
    form = affine(simplify(e))
    for atom, c in form.items():
        match atom:
            case Op("//", (Op("%", (_, n)), m)) if n == m:
                return joined(expression({a: k for a, k in form.items() if a != atom}))
            case Op("%", (x, Num(n))) if form.get(Op("//", (x, Num(n)))) == c * n:
                rest = {a: k for a, k in form.items() if a not in (atom, Op("//", (x, Num(n))))}
                return joined(expression(combine(rest, affine(x), c)))
            case _:
                pass
    return expression(form)


def indexed(e: Scalar) -> Scalar:
    """The expression with every index joined."""
    return rewrite(e, lambda x: Ref(x.array, tuple(map(joined, x.index))) if isinstance(x, Ref) else x)
