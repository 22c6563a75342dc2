"""In: scalar expressions. Out: the operational normal form: a closed set of loop-nest nodes, walkers, `show`.

The naive form is fully distributed: one perfect nest a leaf. Lifts fuse and reshape; they never split statements apart.
An array's layout is the order and the extents of its index tuple, so γ stays row-major on `Array.shape`.

A statement remembers what pure functions found for it (`algebra.scalar.memoised`), and lifts keep the statements that they do
not touch. Walkers with `of`, a name, leave out what does not mention it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Literal, TypeVar, assert_never

from moapipe.algebra.index import simplify
from moapipe.algebra.scalar import Memo, Ref, Scalar, Var, arrays, children, memoised, rebuild, substitute, text, variables
from moapipe.errors import LiftError

Space = Literal["input", "output", "workspace", "private", "register", "shared"]
Kind = Literal["serial", "parallel", "thread", "warp", "unroll", "lane", "vector"]
Schedule = Literal["static", "dynamic", "paired"]
LOCAL: tuple[Space, ...] = ("shared", "private", "register")
"""Spaces whose arrays are born at an Alloc: every iteration of a parallel loop has its own."""
CHIP: tuple[Space, ...] = ("shared", "register")
"""Spaces that no cache stands before."""


@dataclass(frozen=True, slots=True)
class Array:
    """Storage. Shape is outermost first, allocated extents (padding included).
    input, output  the caller's buffers          workspace  one for the whole call, shared by all threads
    private        one a thread, in memory       register   named vector accumulators; allocated outside of thread loops, the
    shared         one a team, on the chip                  leading indices are the thread that owns the rest
    `outside` is the value of every element past the logical extent, once a lift has established it.
    `stream`: an output that is written once and not read here; a target may store it past the caches (non-temporally).
    `becomes`: an input that is updated in place, and the output that it then is. `narrow`: elements take half the bytes of a value.
    """

    name: str
    shape: tuple[Scalar, ...]
    space: Space
    outside: float | None = None
    stream: bool = False
    becomes: str = ""
    narrow: bool = False

    def bytes(self, value_bytes: int) -> int:
        """Bytes of an element."""
        return value_bytes // 2 if self.narrow else value_bytes


@dataclass(frozen=True, slots=True)
class Loop:
    """lo <= var < hi, ascending, step 1. An iteration of a `parallel` loop is run by one thread, or, where `thread` loops are inside, by a
    team of threads, one an iteration of those (loops/team.py); a `warp` loop in them folds what neighbours hold, a `vector` loop copies what is fetched as one. `mark` names a register tile on the fold loop that runs inside it, for the assembler gate.

    `schedule` matters on the innermost of directly nested parallel loops, and says who gets which of their iterations:
    static   contiguous shares, equally many: the same in every region and call, so what a thread wrote it finds in its caches
    paired   the same, with the loop's iterations in the order first, last, second, last but one, …: even shares where the work
             grows or shrinks along the loop
    dynamic  the next one to whoever is free
    """

    var: str
    lo: Scalar
    hi: Scalar
    body: tuple[Stmt, ...]
    kind: Kind = "serial"
    schedule: Schedule = "static"
    mark: str = ""
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class If:
    """A condition on a whole tile; conditions on single elements stand in a leaf's `where`."""

    condition: Scalar
    body: tuple[Stmt, ...]
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Alloc:
    """A shared, private or register array begins to live here, undefined; its scope is the rest of the enclosing body."""

    array: str
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Assign:
    """target ← value, where every atom of `where` holds. `name` is the definition that the leaf belongs to; `ahead` elements that
    later iterations read: a target may ask the memory for their lines here. They are no accesses and need not exist."""

    target: Ref
    value: Scalar
    where: tuple[Scalar, ...] = ()
    name: str = ""
    ahead: tuple[Ref, ...] = ()
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Accumulate:
    """target ← target ⊕ value with the monoid's function (`sum`: +, `max`: max), where every atom of `where` holds. `atomic`: iterations
    of a parallel loop share the target, and each update is indivisible; their order, and so the rounding, is left open."""

    monoid: str
    target: Ref
    value: Scalar
    where: tuple[Scalar, ...] = ()
    name: str = ""
    ahead: tuple[Ref, ...] = ()
    atomic: bool = False
    memo: Memo = field(default_factory=dict, init=False, repr=False, compare=False)


Leaf = Assign | Accumulate
Compound = Loop | If
Stmt = Loop | If | Alloc | Assign | Accumulate
Body = tuple[Stmt, ...]
Inner = TypeVar("Inner", bound=Loop | If)
Place = tuple[Leaf, tuple[Loop, ...], tuple[Scalar, ...]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop nest with its ABI: `sizes` are the 64-bit arguments in order; arrays appear inputs, outputs, then the rest."""

    name: str
    sizes: tuple[str, ...]
    arrays: tuple[Array, ...]
    body: Body

    def array(self, name: str) -> Array:
        for a in self.arrays:
            if a.name == name:
                return a
        raise LiftError(f"no array {name}", where=self.name, hint=f"arrays are {', '.join(a.name for a in self.arrays)}")


# ------------------------------------------------------------------ walkers


def leaves(body: Body, of: str = "") -> Iterator[Place]:
    """(leaf, enclosing loops outermost first, enclosing If conditions); a leaf's own guards are in `leaf.where`."""
    found: list[Place] = []
    _leaves(body, of, (), (), found)
    return iter(found)


def _leaves(body: Body, of: str, loops: tuple[Loop, ...], conditions: tuple[Scalar, ...], found: list[Place]) -> None:
    for s in body:
        if of and of not in mentions(s):
            continue
        match s:
            case Loop():
                _leaves(s.body, of, (*loops, s), conditions, found)
            case If():
                _leaves(s.body, "" if of in arrays(s.condition) else of, loops, (*conditions, s.condition), found)
            case Assign() | Accumulate():
                found.append((s, loops, conditions))
            case Alloc():
                pass
            case _:
                assert_never(s)


def statements(body: Body) -> Iterator[Stmt]:
    """Every statement, parents first."""
    for s in body:
        yield s
        if isinstance(s, Compound):
            yield from statements(s.body)


def expressions(body: Body) -> Iterator[Scalar]:
    """Every bound, condition, guard, target and value."""
    for s in statements(body):
        yield from _own(s)


def _own(s: Stmt) -> tuple[Scalar, ...]:
    match s:
        case Loop():
            return (s.lo, s.hi)
        case If():
            return (s.condition,)
        case Assign() | Accumulate():
            return (s.target, s.value, *s.where)
        case Alloc():
            return ()


def map_statements(body: Body, f: Callable[[Stmt], Body], of: str = "") -> Body:
    """Bottom-up rewrite; `f` returns what replaces a statement. Where nothing is replaced, the same objects stay."""
    out: list[Stmt] = []
    for s in body:
        if of and of not in mentions(s):
            out.append(s)
            continue
        if isinstance(s, Compound):
            s = with_body(s, map_statements(s.body, f, of))
        out += f(s)
    return body if same(out, body) else tuple(out)


def with_body(s: Inner, body: Body) -> Inner:
    """`s` around another body; `s` itself when it is the same, so that what was found for it is not lost."""
    if same(s.body, body):
        return s
    new = Loop(s.var, s.lo, s.hi, body, s.kind, s.schedule, s.mark) if isinstance(s, Loop) else If(s.condition, body)
    return new  # type: ignore[return-value]


def same(p: Sequence[Stmt], q: Sequence[Stmt]) -> bool:
    """The same statements, as objects."""
    return len(p) == len(q) and all(map(is_, p, q))


def apart(body: Body, met: set[int]) -> Body:
    """The same statements, none of them twice as one object, nor as one of those `met`: what counts or places barriers tells them apart
    by identity, while lifts keep what they do not touch, in all copies of a body."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Compound):
            s = with_body(s, apart(s.body, met))
        s = replace(s) if id(s) in met else s
        met.add(id(s))
        out.append(s)
    return body if same(out, body) else tuple(out)


def map_leaf(leaf: Leaf, f: Callable[[Scalar], Scalar]) -> Leaf:
    """Apply `f` to target, value, guards and what is asked for ahead."""
    target = f(leaf.target)
    assert isinstance(target, Ref)
    value, where = f(leaf.value), tuple(f(w) for w in leaf.where)
    ahead = tuple(r for r in map(f, leaf.ahead) if isinstance(r, Ref))
    if target is leaf.target and value is leaf.value and all(map(is_, (*where, *ahead), (*leaf.where, *leaf.ahead))):
        return leaf
    return replace(leaf, target=target, value=value, where=where, ahead=ahead)


def map_expressions(body: Body, f: Callable[[Scalar], Scalar], of: str = "") -> Body:
    """Apply `f` to every expression: bounds, conditions, guards, targets and values."""

    def go(s: Stmt) -> Body:
        match s:
            case Loop():
                lo, hi = simplify(f(s.lo)), simplify(f(s.hi))
                return (s,) if lo is s.lo and hi is s.hi else (replace(s, lo=lo, hi=hi),)
            case If():
                condition = f(s.condition)
                return (s,) if condition is s.condition else (replace(s, condition=condition),)
            case Assign() | Accumulate():
                return (map_leaf(s, f),)
            case Alloc():
                return (s,)

    return map_statements(body, go, of)


def map_references(e: Scalar, f: Callable[[Ref], Scalar], of: str = "") -> Scalar:
    """Rewrite every array reference (inner ones first)."""
    inside = arrays(e)
    if not inside or (of and of not in inside):
        return e
    e = rebuild(e, tuple(map_references(c, f, of) for c in children(e)))
    return f(e) if isinstance(e, Ref) else e


def map_array(body: Body, array: str, f: Callable[[Ref], Scalar]) -> Body:
    """Replace every reference to an array."""
    return map_expressions(body, lambda e: map_references(e, lambda r: f(r) if r.array == array else r, array), array)


def rename_variables(body: Body, names: dict[str, str]) -> Body:
    """Rename loop variables, at their loops and everywhere they are used."""
    new = {k: Var(v) for k, v in names.items()}
    body = map_expressions(body, lambda e: substitute(e, new))
    return map_statements(body, lambda s: (replace(s, var=names[s.var]),) if isinstance(s, Loop) and s.var in names else (s,))


# ------------------------------------------------------------------ names


def gathered(own: Callable[[Stmt], Iterable[str]]) -> Callable[[Body], frozenset[str]]:
    """The names that `own` gives for the statements of a body and for all inside them, remembered for each statement."""
    key = own.__name__

    def found(s: Stmt) -> frozenset[str]:
        if key not in s.memo:
            s.memo[key] = (names(s.body) if isinstance(s, Compound) else frozenset()).union(own(s))
        return s.memo[key]  # type: ignore[no-any-return]

    def names(body: Body) -> frozenset[str]:
        return found(body[0]) if len(body) == 1 else frozenset().union(*map(found, body))

    names.__name__, names.__doc__ = key, own.__doc__
    return names


@gathered
def written(s: Stmt) -> Iterable[str]:
    """Arrays that some leaf writes."""
    return (s.target.array,) if isinstance(s, Leaf) else ()


@gathered
def definitions(s: Stmt) -> Iterable[str]:
    """Names of the definitions that have a leaf here."""
    return (s.name,) if isinstance(s, Leaf) else ()


@gathered
def read(s: Stmt) -> Iterable[str]:
    """Arrays that some leaf reads, or a bound around it; an accumulation reads its target."""
    match s:
        case Loop() | If():
            return frozenset().union(*map(arrays, _own(s))) if definitions((s,)) else ()
        case Assign() | Accumulate():
            folded = (s.target.array,) if isinstance(s, Accumulate) else ()
            return arrays(s.value).union(folded, *map(arrays, s.where))
        case Alloc():
            return ()


@gathered
def allocated(s: Stmt) -> Iterable[str]:
    """Arrays that are born here."""
    return (s.array,) if isinstance(s, Alloc) else ()


@gathered
def binds(s: Stmt) -> Iterable[str]:
    """Variables of the loops here."""
    return (s.var,) if isinstance(s, Loop) else ()


@memoised
def mentions(s: Stmt) -> frozenset[str]:
    """Every array, variable and definition that a statement mentions or binds."""
    parts = _own(s)
    match s:
        case Loop():
            mine: frozenset[str] = frozenset((s.var,)).union(*map(mentions, s.body))
        case If():
            mine = frozenset().union(*map(mentions, s.body))
        case Assign() | Accumulate():
            parts, mine = (*parts, *s.ahead), frozenset((s.name,))
        case Alloc():
            mine = frozenset((s.array,))
    return mine.union(*map(variables, parts), *map(arrays, parts))


# ------------------------------------------------------------------ show, hash

_SIGN = {"sum": "+=", "max": "max=", "min": "min=", "product": "*="}


def show(k: Kernel) -> str:
    """The loop nest as text, one statement a line; deterministic, so goldens and hashes are made of it."""
    lines = [f"kernel {k.name}({', '.join(k.sizes)})"]
    for a in k.arrays:
        marks = ["" if a.outside is None else f" outside {a.outside}", " stream" * a.stream, f" becomes {a.becomes}" if a.becomes else "", " narrow" * a.narrow]
        lines.append(f"  {a.space} {a.name}[{', '.join(map(text, a.shape))}]{''.join(marks)}")
    _show_body(k.body, 1, lines)
    return "\n".join(lines) + "\n"


def _show_body(body: Body, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    for s in body:
        match s:
            case Loop():
                extra = "".join([f" {s.schedule}" if s.kind == "parallel" else "", f" mark {s.mark}" if s.mark else ""])
                lines.append(f"{pad}{s.kind} {text(s.lo)} <= {s.var} < {text(s.hi)}{extra}")
                _show_body(s.body, depth + 1, lines)
            case If():
                lines.append(f"{pad}if {text(s.condition)}")
                _show_body(s.body, depth + 1, lines)
            case Alloc():
                lines.append(f"{pad}alloc {s.array}")
            case Assign() | Accumulate():
                sign = "=" if isinstance(s, Assign) else f"{'atomic ' if s.atomic else ''}{_SIGN[s.monoid]}"
                where = f"  where {' and '.join(map(text, s.where))}" if s.where else ""
                ahead = f"  ahead {', '.join(map(text, s.ahead))}" if s.ahead else ""
                lines.append(f"{pad}{text(s.target)} {sign} {text(s.value)}{where}{ahead}    # {s.name}")
            case _:
                assert_never(s)


def onf_hash(k: Kernel) -> str:
    """16 hex digits that name this loop nest: the same for every language that is written from it."""
    return hashlib.sha256(show(k).encode()).hexdigest()[:16]
