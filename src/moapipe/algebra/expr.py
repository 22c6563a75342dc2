"""In: names, shapes, numbers. Out: expressions in the Mathematics of Arrays, each with its shape, and kernels defined by them.

Every node is checked against the shape rule of its row in OPS when it is made, so an error names the line of the kernel file.
Arrays are built up by these functions and by + - * / on expressions; a number is a scalar and extends to every index.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moapipe.algebra.higher import cell_shapes
from moapipe.algebra.index import parse, simplify
from moapipe.algebra.ops import FUNCS, MONOIDS, OPS, Data
from moapipe.algebra.scalar import Num, Scalar, Var
from moapipe.algebra.shape import Constraint, Shape, open_constraints, shape_text
from moapipe.errors import AlgebraError

Extent = Scalar | int | str


class Term:
    """What all expressions share: + - * / and negation, element by element."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Apply:
        return pointwise("+", self, other)

    def __radd__(self, other: Operand) -> Apply:
        return pointwise("+", other, self)

    def __sub__(self, other: Operand) -> Apply:
        return pointwise("-", self, other)

    def __rsub__(self, other: Operand) -> Apply:
        return pointwise("-", other, self)

    def __mul__(self, other: Operand) -> Apply:
        return pointwise("*", self, other)

    def __rmul__(self, other: Operand) -> Apply:
        return pointwise("*", other, self)

    def __truediv__(self, other: Operand) -> Apply:
        return pointwise("/", self, other)

    def __rtruediv__(self, other: Operand) -> Apply:
        return pointwise("/", other, self)

    def __neg__(self) -> Apply:
        return pointwise("neg", self)


@dataclass(frozen=True, slots=True)
class Leaf(Term):
    """An input array, or the array that an earlier definition gives."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Value(Term):
    """A scalar: a number, or an integer expression in the sizes."""

    value: Scalar

    @property
    def shape(self) -> Shape:
        return ()


@dataclass(frozen=True, slots=True)
class Cell(Term):
    """The left (0) or right (1) cell inside Ω's function; `depth` tells nested Ω apart, 0 being the innermost."""

    side: int
    depth: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Apply(Term):
    """An operator (a row of OPS) on its arguments; `body` is Ω's function, an expression in cells."""

    operator: str
    args: tuple[Expr, ...]
    data: Data
    shape: Shape
    body: Expr | None = None


Expr = Leaf | Value | Cell | Apply
Operand = Term | int | float


@dataclass(frozen=True, slots=True)
class Definition:
    """`name` is the array `expr`; `axes` name its index variables. `array` stands for it in later definitions."""

    name: str
    axes: tuple[str, ...]
    expr: Expr

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.expr.shape):
            raise AlgebraError(f"{len(self.axes)} axes {self.axes} for an array of shape {shape_text(self.expr.shape)}", where=self.name,
                               hint="name one index variable an axis of the result")

    @property
    def array(self) -> Leaf:
        return Leaf(self.name, self.expr.shape)


@dataclass(frozen=True, slots=True)
class Definitions:
    """A kernel: its sizes in ABI order, its input arrays, its definitions in order of use, and which of them are outputs.

    `updates` are (output, input) pairs: the output is the input with some elements replaced, select(condition, new, input), and
    takes its place in the caller's buffer.
    """

    sizes: tuple[str, ...]
    inputs: tuple[Leaf, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()


def expr(x: Operand) -> Expr:
    """A number becomes a scalar; an expression stays itself."""
    match x:
        case Leaf() | Value() | Cell() | Apply():
            return x
        case int() | float():
            return Value(Num(x))
        case _:
            raise AlgebraError(f"{x!r} is no array expression")


def extent(x: Extent) -> Scalar:
    """A size, a number, or text such as "q_len + 1"."""
    match x:
        case str():
            return parse(x)
        case int():
            return Num(x)
        case _:
            return simplify(x)


def extents(x: Extent | Sequence[Extent]) -> tuple[Scalar, ...]:
    return tuple(map(extent, x)) if isinstance(x, list | tuple) else (extent(x),)  # type: ignore[arg-type]


def _line() -> str:
    """file.py:line of the innermost caller outside this package: the author's line."""
    here = Path(__file__).parent
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == here:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def apply(operator: str, args: Sequence[Operand], data: Data, body: Expr | None = None) -> Apply:
    """A node, its shape by the operator's row. Raises AlgebraError, naming both shapes, when no sizes make them conform."""
    nodes = tuple(map(expr, args))
    try:
        shape, constraints = OPS[operator].shape(data, tuple(a.shape for a in nodes))
        for c in constraints:
            c.check()
    except AlgebraError as e:
        raise AlgebraError(e.message, where=e.where or _line(), hint=e.hint) from None
    return Apply(operator, nodes, data, shape, body)


# ------------------------------------------------------------------ arrays and operators


def array(name: str, *shape: Extent) -> Leaf:
    return Leaf(name, extents(shape))


def scalar_array(name: str) -> Leaf:
    """An input of rank 0."""
    return Leaf(name, ())


def size(e: Extent) -> Value:
    """A size, or an integer expression in sizes, as a scalar value."""
    return Value(extent(e))


def iota(n: Extent | Sequence[Extent]) -> Apply:
    """ι n: ⟨0 1 … n−1⟩; of a vector v the array of shape v ++ ⟨τv⟩ of all full indices into v."""
    return apply("odometer" if isinstance(n, list | tuple) else "iota", (), Data(extents(n)))


def psi(index: Extent | Sequence[Extent], x: Operand) -> Apply:
    """index ψ x: a full index gives a scalar, a partial one a subarray."""
    return apply("psi", (x,), Data(extents(index)))


def reshape(shape: Extent | Sequence[Extent], x: Operand) -> Apply:
    return apply("reshape", (x,), Data(extents(shape)))


def ravel(x: Operand) -> Apply:
    return apply("ravel", (x,), Data())


def take(amounts: Extent | Sequence[Extent], x: Operand) -> Apply:
    """u △ x: the first u_k of axis k, or the last −u_k where u_k < 0; the other axes whole."""
    return apply("take", (x,), Data(extents(amounts)))


def drop(amounts: Extent | Sequence[Extent], x: Operand) -> Apply:
    """u ▽ x: without the first u_k of axis k, or without the last −u_k where u_k < 0."""
    return apply("drop", (x,), Data(extents(amounts)))


def catenate(left: Operand, right: Operand) -> Apply:
    """left # right, along axis 0."""
    return apply("catenate", (left, right), Data())


def reverse(x: Operand) -> Apply:
    return apply("reverse", (x,), Data())


def rotate(amount: Extent, x: Operand) -> Apply:
    """σ θ x: element i of axis 0 is element (i + σ) mod (ρx)[0] of x."""
    return apply("rotate", (x,), Data((extent(amount),)))


def transpose(x: Operand, permutation: Sequence[int] | None = None) -> Apply:
    """v ⍉ x: axis k of x becomes axis v[k] of the result; without v the axes are reversed."""
    n = len(expr(x).shape)
    v = tuple(permutation) if permutation is not None else tuple(reversed(range(n)))
    return apply("transpose", (x,), Data(tuple(map(Num, v))))


def pointwise(name: str, *args: Operand) -> Apply:
    """A scalar function (a row of FUNCS) at every index; scalars extend."""
    _function(name, len(args))
    return apply("pointwise", args, Data(functions=(name,)))


def _function(name: str, arity: int) -> str:
    row = FUNCS.get(name)
    if row is None or row.arity != arity:
        found = "is not one" if row is None else f"takes {row.arity}"
        raise AlgebraError(f"a scalar function of {arity} arguments is needed here, and {name} {found}", where=_line(),
                           hint=f"of {arity}: {' '.join(n for n, f in FUNCS.items() if f.arity == arity)}")
    return name


def _monoid(name: str) -> str:
    """The monoid that is called `name` or whose function is; others do not fold."""
    for m in MONOIDS.values():
        if name in (m.name, m.function):
            return m.name
    raise AlgebraError(f"{name} does not fold: it is not associative, or has no unit for an empty axis", where=_line(),
                       hint=f"fold by {', '.join(MONOIDS)}; a right fold of − is a sum with alternating signs")


def reduce(function: str, x: Operand, index: str = "") -> Apply:
    """function red x, over axis 0; `index` names the fold's variable. An empty axis gives the function's unit."""
    return apply("reduce", (x,), Data(functions=(_monoid(function),), variable=index))


def scan(function: str, x: Operand, index: str = "") -> Apply:
    """All prefixes of the reduction over axis 0."""
    return apply("scan", (x,), Data(functions=(_monoid(function),), variable=index))


def outer(function: str, left: Operand, right: Operand) -> Apply:
    return apply("outer", (left, right), Data(functions=(_function(function, 2),)))


def inner(fold: str, function: str, left: Operand, right: Operand, index: str = "") -> Apply:
    """left fold•function right: last axis of left against first axis of right; `index` names the fold's variable."""
    return apply("inner", (left, right), Data(functions=(_monoid(fold), _function(function, 2)), variable=index))


def omega(function: Callable[..., Operand], ranks: int | Sequence[int], *args: Operand) -> Apply:
    """function Ω⟨ranks⟩: apply a function of arrays to all cells of those ranks, frames paired from the right."""
    r = (ranks,) if isinstance(ranks, int) else tuple(ranks)
    if len(r) != len(args) or len(r) not in (1, 2):
        raise AlgebraError(f"Ω has {len(r)} cell ranks for {len(args)} arguments", where=_line(), hint="one rank an argument, one or two arguments")
    _, cells = cell_shapes(r, tuple(expr(a).shape for a in args))
    first = 2 - len(cells)

    def body(depth: int) -> Expr:
        return expr(function(*(Cell(first + k, depth, s) for k, s in enumerate(cells))))

    inside = body(0)
    if deep := _depth(inside):
        inside = body(deep)
    return apply("omega", args, Data(vector=tuple(map(Num, r)), cell=inside.shape, depth=deep), inside)


def _depth(e: Expr) -> int:
    """How many Ω are nested in an expression."""
    parts = (*e.args, *((e.body,) if e.body is not None else ())) if isinstance(e, Apply) else ()
    return max(map(_depth, parts), default=0) + (isinstance(e, Apply) and e.operator == "omega")


def exp(x: Operand) -> Apply:
    return pointwise("exp", x)


def log(x: Operand) -> Apply:
    return pointwise("log", x)


def sqrt(x: Operand) -> Apply:
    return pointwise("sqrt", x)


def reciprocal(x: Operand) -> Apply:
    return pointwise("reciprocal", x)


def sigmoid(x: Operand) -> Apply:
    return pointwise("sigmoid", x)


def equal(x: Operand, y: Operand) -> Apply:
    return pointwise("==", x, y)


def select(condition: Operand, x: Operand, y: Operand) -> Apply:
    """x where the condition holds, else y."""
    return pointwise("select", condition, x, y)


# ------------------------------------------------------------------ walkers


def nodes(e: Expr) -> Iterator[Expr]:
    """Every node, arguments and Ω's functions included, parents first."""
    yield e
    if isinstance(e, Apply):
        for a in e.args:
            yield from nodes(a)
        if e.body is not None:
            yield from nodes(e.body)


def fill(body: Expr, depth: int, cells: tuple[Expr, ...]) -> Expr:
    """Ω's function with its own cells (those of `depth`) replaced; `cells` are the left and right one, or the right alone.

    An Ω of the same depth inside has cells of its own: only its arguments are filled.
    """
    match body:
        case Cell(side, d, _) if d == depth:
            return cells[side - (2 - len(cells))]
        case Apply(args=args, body=inside):
            parts = tuple(fill(a, depth, cells) for a in args)
            own = body.operator == "omega" and body.data.depth == depth
            return replace(body, args=parts, body=inside if own or inside is None else fill(inside, depth, cells))
        case _:
            return body


def constraints(d: Definitions) -> tuple[Constraint, ...]:
    """What the sizes must satisfy for the shapes to conform. Raises AlgebraError when two of them contradict each other."""
    found: list[Constraint] = []
    for definition in d.definitions:
        for n in nodes(definition.expr):
            if isinstance(n, Apply):
                found += OPS[n.operator].shape(n.data, tuple(a.shape for a in n.args))[1]
    return open_constraints(found)


def size_names(s: Shape) -> frozenset[str]:
    """The symbolic sizes of a shape that are plain names."""
    return frozenset(e.name for e in s if isinstance(e, Var))
