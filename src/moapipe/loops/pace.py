"""In: a leaf in its loops. Out: its place, which says at what pace a processor goes through it.

`tile`: a marked register tile. `fold`: lanes that become one number. `chain w`: a fold of which w elements go on at once, each step
waiting for the last. `vector`: other leaves in lane loops, and those of an innermost loop that any compiler makes vectors of.
`scalar`: what is left, one element at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from moapipe.algebra.index import affine, constant
from moapipe.algebra.scalar import Op, Ref, Scalar, Var, references, variables, walk
from moapipe.loops.onf import Accumulate, Leaf, Loop

CHAIN = "chain"
SIMPLE = frozenset(("+", "-", "*", "/", "neg", "abs", "max", "min", "sqrt", "select", "<", "<=", "==", "and", "or", "not"))
"""Functions of data that every compiler has vectors for."""


def place(s: Leaf, loops: tuple[Loop, ...], spaces: Mapping[str, str]) -> str:
    """Where the work of a leaf is done."""
    if spaces[s.target.array] == "register" and any(x.mark for x in loops):
        return "tile"
    if isinstance(s, Accumulate) and loops and loops[-1].kind == "lane" and not _moves(s.target, loops[-1]):
        return "fold"
    if isinstance(s, Accumulate) and (width := _width(s.target, loops)):
        return f"{CHAIN} {width}"
    return "vector" if any(x.kind == "lane" for x in loops) or _vectorised(loops) else "scalar"


def width(place: str) -> int:
    """The elements of a chain that go on at once; 0 for other places."""
    return int(place.removeprefix(CHAIN)) if place.startswith(CHAIN) else 0


def link(s: Leaf, loops: tuple[Loop, ...]) -> str:
    """What one step of a chain waits for: `chain`, a multiply-add, or `link`, an addition or the like. Of a product that runs along rows,
    one number at a time, compilers multiply whole vectors and add their lanes in order."""
    fused = isinstance(s, Accumulate) and s.monoid == "sum" and isinstance(s.value, Op) and s.value.name == "*" and bool(references(s.value))
    var = loops[step(loops)].var
    ordered = loops[-1].kind not in ("lane", "unroll") and all(_stride(r, var) in (0, 1) for r in references(s.value))
    return "chain" if fused and not ordered else "link"


def step(loops: tuple[Loop, ...]) -> int:
    """How many of the loops stand around a chain's fold loop: all but those of one step."""
    return next(k for k in reversed(range(len(loops))) if loops[k].kind not in ("lane", "unroll"))


def _width(target: Ref, loops: tuple[Loop, ...]) -> int:
    """Elements that one iteration of the innermost serial loop adds to, if it adds to the same ones in the next; else 0."""
    inner = [l for l in loops if l.kind in ("lane", "unroll")]
    serial = [l for l in loops if l.kind == "serial"]
    if not serial or _moves(target, serial[-1]) or any(loops.index(l) < loops.index(serial[-1]) for l in inner):
        return 0
    return prod(constant(l.hi) or 1 for l in inner if _moves(target, l))


def _moves(r: Ref, loop: Loop) -> bool:
    return loop.var in variables(r)


def _vectorised(loops: tuple[Loop, ...]) -> bool:
    """The innermost loop is element by element: its leaves store to consecutive elements, read consecutive ones or the same, and use
    simple functions. GCC and gfortran make vectors of it at -O3."""
    return bool(loops) and loops[-1].kind in ("serial", "parallel") and all(isinstance(q, Leaf) and _elementwise(q, loops[-1].var) for q in loops[-1].body)


def _elementwise(s: Leaf, var: str) -> bool:
    values = (s.value, *s.where)
    return (
        _stride(s.target, var) == 1
        and all(_stride(r, var) in (0, 1) for e in values for r in references(e))
        and all(x.name in SIMPLE for e in values for x in walk(e) if isinstance(x, Op) and references(x))
    )


def _stride(r: Ref, var: str) -> int | None:
    """By how many elements of its last index a reference moves with a variable; None where another index moves, or not evenly."""
    if any(var in variables(i) for i in r.index[:-1]):
        return None
    return _coefficient(r.index[-1], var) if r.index else 0


def _coefficient(e: Scalar, var: str) -> int | None:
    form = affine(e)
    return None if any(var in variables(k) for k in form if k != 1 and k != Var(var)) else form.get(Var(var), 0)
