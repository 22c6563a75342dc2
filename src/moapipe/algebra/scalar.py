"""In: nothing. Out: the one scalar expression type that indices, normal forms and loop bodies share.

Nodes are frozen and compare by structure. A node with children remembers what pure functions (`memoised`) found for it, and
rewriting keeps a node whose children do not change, so passes over large nests visit what is new.

An operator's name is its ASCII spelling: an infix sign (`+`, `//`, `<=`) or a word (`max`, `select`, `exp2`); what it means,
and how each language writes it, stands in FUNCS (algebra/ops.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import is_
from typing import Any, TypeVar

T = TypeVar("T")
N = TypeVar("N")
Memo = dict[str, Any]
SHARED = 1 << 17
"""Answers that a `shared` function remembers before it starts afresh."""


@dataclass(frozen=True, slots=True)
class Num:
    """A literal: an int in indices, an int or float in values (inf and -inf too)."""

    value: int | float
    memo = None


@dataclass(frozen=True, slots=True)
class Var:
    """A loop index or a symbolic size."""

    name: str
    memo = None


@dataclass(frozen=True, slots=True)
class Op:
    """A scalar function applied to its arguments, in the order of its row in FUNCS."""

    name: str
    args: tuple[Scalar, ...]
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return structure(self)


@dataclass(frozen=True, slots=True)
class Ref:
    """One element of an array: `i ψ A` with a full index."""

    array: str
    index: tuple[Scalar, ...]
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return structure(self)


@dataclass(frozen=True, slots=True)
class Fold:
    """`monoid`-fold of `body` for lo <= var < hi, ascending; the monoid's unit when the range is empty. Only in DNFs."""

    monoid: str
    var: str
    lo: Scalar
    hi: Scalar
    body: Scalar
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return structure(self)


Scalar = Num | Var | Op | Ref | Fold
Like = Scalar | int | float | str


def memoised(f: Callable[[N], T]) -> Callable[[N], T]:
    """`f`, which must be pure, computed once a node. By node and not by structure: Num(1) equals Num(1.0), but not in text."""
    key = f.__name__

    def found(e: N) -> T:
        memo: Memo | None = e.memo  # type: ignore[attr-defined]
        if memo is None:
            return f(e)
        if key in memo:
            return memo[key]  # type: ignore[no-any-return]
        answer = memo[key] = f(e)
        return answer

    found.__name__, found.__doc__ = key, f.__doc__
    return found


def shared(f: Callable[[Scalar], T]) -> Callable[[Scalar], T]:
    """`f`, which must be pure, computed once a text: equal nodes made in different places share the answer, and its nodes."""
    known: dict[str, T] = {}

    def found(e: Scalar) -> T:
        if e.memo is None:
            return f(e)
        key = text(e)
        if key not in known:
            if len(known) >= SHARED:
                known.clear()
            known[key] = f(e)
        return known[key]

    found.__name__, found.__doc__ = f.__name__, f.__doc__
    return found


@memoised
def structure(e: Scalar) -> int:
    """The hash of a node."""
    match e:
        case Op(name, args):
            return hash((name, args))
        case Ref(array, index):
            return hash((array, index, 0))
        case Fold(monoid, var, lo, hi, body):
            return hash((monoid, var, lo, hi, body))
        case _:
            return hash(e)


def scalar(x: Like) -> Scalar:
    """A number becomes Num, a string Var; a scalar stays itself."""
    match x:
        case int() | float():
            return Num(x)
        case str():
            return Var(x)
        case _:
            return x


def op(name: str, *args: Like) -> Op:
    return Op(name, tuple(scalar(a) for a in args))


def children(e: Scalar) -> tuple[Scalar, ...]:
    if isinstance(e, Op):  # asked for every node of every pass: several times as fast as a match
        return e.args
    if isinstance(e, Ref):
        return e.index
    return (e.lo, e.hi, e.body) if isinstance(e, Fold) else ()


def rebuild(e: Scalar, parts: tuple[Scalar, ...]) -> Scalar:
    """`e` with other children; `e` itself when they are the same nodes."""
    if all(map(is_, children(e), parts)):
        return e
    match e:
        case Op(name, _):
            return Op(name, parts)
        case Ref(array, _):
            return Ref(array, parts)
        case Fold(monoid, var, _, _, _):
            return Fold(monoid, var, *parts)
        case _:
            return e


def rewrite(e: Scalar, f: Callable[[Scalar], Scalar]) -> Scalar:
    """Apply `f` to every node, children first."""
    parts = children(e)
    return f(rebuild(e, tuple(rewrite(c, f) for c in parts)) if parts else e)


def substitute(e: Scalar, by: Mapping[str, Scalar]) -> Scalar:
    """Replace free variables. A fold whose own variable occurs in what is put into it gets another name for it."""
    if variables(e).isdisjoint(by):
        return e
    match e:
        case Var(name):
            return by.get(name, e)
        case Fold(monoid, var, lo, hi, body):
            free = variables(body)
            inner = {k: v for k, v in by.items() if k != var and k in free}
            taken = frozenset[str]().union(*map(variables, inner.values()))
            if var in taken:
                old, used = var, taken | free
                var = next(f"{old}{n}" for n in range(2, 1 << 20) if f"{old}{n}" not in used)
                inner[old] = Var(var)
            return Fold(monoid, var, substitute(lo, by), substitute(hi, by), substitute(body, inner))
        case _:
            return rebuild(e, tuple(substitute(c, by) for c in children(e)))


def walk(e: Scalar) -> Iterator[Scalar]:
    """Every node, parents first."""
    yield e
    for c in children(e):
        yield from walk(c)


@memoised
def variables(e: Scalar) -> frozenset[str]:
    """Names of the free variables."""
    match e:
        case Var(name):
            return frozenset((name,))
        case Num():
            return frozenset()
        case Op(_, parts) | Ref(_, parts):
            return frozenset().union(*map(variables, parts))
        case Fold(_, var, lo, hi, body):
            return variables(lo) | variables(hi) | (variables(body) - {var})


@memoised
def references(e: Scalar) -> tuple[Ref, ...]:
    """Every array element that the expression reads, in order of appearance, repeats kept."""
    inner = tuple(r for c in children(e) for r in references(c))
    return (e, *inner) if isinstance(e, Ref) else inner


@memoised
def arrays(e: Scalar) -> frozenset[str]:
    """Names of the arrays that the expression reads."""
    return frozenset(r.array for r in references(e))


def number(v: int | float) -> str:
    """A literal in canonical text."""
    if isinstance(v, float) and v in (inf, -inf):
        return "inf" if v > 0 else "-inf"
    return repr(v)


@memoised
def text(e: Scalar) -> str:
    """Canonical one-line text, Python-like; equal expressions have equal text, so hashes are made of it."""
    match e:
        case Num(v):
            return number(v)
        case Var(name):
            return name
        case Ref(array, index):
            return f"{array}[{', '.join(map(text, index))}]"
        case Fold(monoid, var, lo, hi, body):
            return f"fold({monoid}, {text(lo)} <= {var} < {text(hi)}, {text(body)})"
        case Op(name, (a, b)) if not name[0].isalpha():
            return f"({text(a)} {name} {text(b)})"
        case Op(name, args):
            return f"{name}({', '.join(map(text, args))})"
