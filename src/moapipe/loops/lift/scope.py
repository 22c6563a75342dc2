"""In: a kernel and the names that a script gives. Out: what those names select, kernels with changed parts, and refusals.

Definitions select nests: a leaf keeps its definition's name when its storage is renamed, so `only` lists definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from moapipe.algebra.index import is_index, simplify
from moapipe.algebra.scalar import Num, Op, Ref, Scalar, rebuild, references, substitute, text, variables
from moapipe.errors import LiftError
from moapipe.loops.legal import always
from moapipe.loops.onf import (
    Accumulate,
    Alloc,
    Array,
    Assign,
    Body,
    If,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    binds,
    definitions,
    leaves,
    map_expressions,
    map_statements,
    mentions,
    read,
    same,
    with_body,
    written,
)

Names = tuple[str, ...]


def refusal(lift: str, what: str, message: str, hint: str = "") -> LiftError:
    """The error of a lift that is not legal here or that matches nothing; `what` names the array and the axis."""
    return LiftError(message, where=f"{lift} {what}", hint=hint)


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "nothing"


def axes_of(body: Body) -> str:
    return listed(binds(body))


def some_of(body: Body, only: Names) -> bool:
    """Some leaf belongs to one of the definitions (or none are named)."""
    return not only or bool(definitions(body) & set(only))


def all_of(body: Body, only: Names) -> bool:
    """Every leaf belongs to one of the definitions (or none are named)."""
    return not only or definitions(body) <= set(only)


def known(k: Kernel, lift: str, only: Names) -> None:
    """Refuse definitions that have no leaf."""
    if missing := set(only) - definitions(k.body):
        raise refusal(lift, listed(missing), "no such definition", f"definitions are {listed(definitions(k.body))}")


def with_arrays(k: Kernel, body: Body, add: Sequence[Array] = (), change: Sequence[Array] = ()) -> Kernel:
    """`k` with another body, more arrays, and some arrays replaced by their namesakes; unused temporaries go."""
    fresh = {a.name: a for a in change}
    used = written(body) | read(body)
    arrays = [fresh.get(a.name, a) for a in (*k.arrays, *add)]
    return replace(k, arrays=tuple(a for a in arrays if a.name in used or a.space in ("input", "output")), body=body)


def temporary(k: Kernel, lift: str, array: str) -> Array:
    """The array, refused when it is the caller's buffer."""
    a = k.array(array)
    if a.space in ("input", "output"):
        raise refusal(lift, array, f"{array} is an {a.space}: the caller owns its layout and extent")
    return a


def fresh(k: Kernel, lift: str, *names: str) -> None:
    """Refuse names that an array, a size or a loop variable already has."""
    taken = binds(k.body).union(k.sizes, (a.name for a in k.arrays))
    if clash := set(names) & taken:
        raise refusal(lift, listed(clash), "the name is taken", "choose another name")


def chain(s: Stmt) -> tuple[tuple[Loop, ...], Body]:
    """The loops of a perfect nest, outermost first, and what stands inside the innermost."""
    loops: list[Loop] = []
    body: Body = (s,)
    while len(body) == 1 and isinstance(body[0], Loop):
        loops.append(body[0])
        body = body[0].body
    return tuple(loops), body


def nest(loops: Sequence[Loop], body: Body) -> Body:
    """Put `body` inside loops like `loops`, outermost first."""
    for l in reversed(loops):
        body = (with_body(l, body),)
    return body


def is_leaf_body(body: Body) -> bool:
    return bool(body) and all(isinstance(s, Leaf) for s in body)


def is_within(around: Sequence[Loop], var: str) -> bool:
    """One of the enclosing loops has the name (or none is asked for)."""
    return not var or var in {l.var for l in around}


def replaced(body: Body, by: dict[str, Scalar]) -> Body:
    """Substitute variables everywhere; index arithmetic is simplified, arithmetic on data keeps its order."""
    return map_expressions(body, lambda e: e if variables(e).isdisjoint(by) else tidied(substitute(e, by)))


def tidied(e: Scalar) -> Scalar:
    """Simplify indices and comparisons of indices inside an expression, and nothing else: floating-point arithmetic stays."""
    match e:
        case Ref():
            return rebuild(e, tuple(map(simplify, e.index)))
        case Op("<" | "<=" | "==") if is_index(e):
            return rebuild(e, tuple(map(simplify, e.args)))
        case Op():
            return rebuild(e, tuple(map(tidied, e.args)))
        case _:
            return e


def map_chosen(
    body: Body, axis: str, chosen: Callable[[Loop, tuple[Loop, ...]], bool], f: Callable[[Loop], Body], around: tuple[Loop, ...] = ()
) -> Body:
    """Replace every loop over `axis` that `chosen(loop, enclosing loops)` accepts, outermost first; inside a replaced loop nothing else
    changes."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case _ if axis not in mentions(s):
                out.append(s)
            case Loop() if s.var == axis and chosen(s, around):
                out += f(s)
            case Loop() | If():
                out.append(with_body(s, map_chosen(s.body, axis, chosen, f, (*around, s) if isinstance(s, Loop) else around)))
            case _:
                out.append(s)
    return body if same(out, body) else tuple(out)


def without_alloc(body: Body, array: str) -> Body:
    return map_statements(body, lambda s: () if isinstance(s, Alloc) and s.array == array else (s,), array)


def only_leaf(body: Body, name: str, lift: str) -> tuple[Leaf, tuple[Loop, ...]]:
    """The one leaf of a definition and its loops."""
    found = [(leaf, loops) for leaf, loops, _ in leaves(body, name) if leaf.name == name]
    if len(found) != 1:
        raise refusal(lift, name, f"{name} has {len(found)} leaves, one is needed", f"definitions are {listed(definitions(body))}")
    return found[0]


def only_fold(k: Kernel, name: str, lift: str) -> tuple[Accumulate, tuple[Loop, ...]]:
    """The one accumulation of a definition and its loops."""
    known(k, lift, (name,))
    found = [(leaf, loops) for leaf, loops, _ in leaves(k.body, name) if leaf.name == name and isinstance(leaf, Accumulate)]
    if len(found) != 1:
        raise refusal(lift, name, f"{name} has {len(found)} folds, one is needed")
    return found[0]


def nest_loops(body: Body, leaf: Leaf) -> tuple[Loop, ...]:
    """The loops of the perfect nest around a leaf."""
    for s in body:
        loops, inner = chain(s)
        if is_leaf_body(inner):
            if any(q is leaf for q in inner):
                return loops
        else:
            for q in (s, *inner):
                if isinstance(q, If | Loop) and q is not s and (deep := nest_loops((q,), leaf)):
                    return deep
            if isinstance(s, If) and (deep := nest_loops(s.body, leaf)):
                return deep
    return ()


def after_nest(body: Body, leaf: Leaf, new: Body) -> Body:
    """Insert `new` after the perfect nest that holds the leaf."""
    out: list[Stmt] = []
    for s in body:
        _, inner = chain(s)
        here = is_leaf_body(inner) and any(q is leaf for q in inner)
        if isinstance(s, Loop | If) and not here:
            s = with_body(s, after_nest(s.body, leaf, new))
        out += (s, *new) if here else (s,)
    return tuple(out)


def covered(k: Kernel, leaf: Leaf, loops: Sequence[Loop], lift: str, axis: str) -> None:
    """Refuse unless every reference stays within its array's extents for all iterations, guards aside."""
    guarded = tuple(loops)
    for r in (leaf.target, *references(leaf.value)):
        for i, extent in zip(r.index, k.array(r.array).shape, strict=True):
            if not variables(i) & {axis}:
                continue
            if not (always(Op("<", (i, extent)), guarded) and always(Op("<=", (Num(0), i)), guarded)):
                raise refusal(lift, f"{r.array} {axis}", f"{text(r)} of {leaf.name} leaves {r.array}, whose extent is {text(extent)}", "stage it padded, contract it, or clip")


def axes_in(atoms: Iterable[Scalar], loops: Sequence[Loop]) -> Names:
    """The loop variables that the comparisons mention."""
    used = frozenset[str]().union(*(variables(a) for a in atoms))
    return tuple(l.var for l in loops if l.var in used)


def is_unit(leaf: Stmt, value: float) -> bool:
    return isinstance(leaf, Assign) and getattr(leaf.value, "value", None) == value


def starts_at_unit(before: Sequence[Stmt], array: str, lift: str) -> None:
    """Refuse a sum whose last value before the loop is not the unit."""
    last = next((q for s in reversed(before) for q, _, _ in leaves((s,)) if q.target.array == array), None)
    if last is None or not is_unit(last, 0.0):
        raise refusal(lift, array, f"{array} does not start at 0 before the loop")


def target_loops(leaf: Leaf, loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """The loops whose variable is in the leaf's target index."""
    used = frozenset[str]().union(*(variables(i) for i in leaf.target.index))
    return tuple(l for l in loops if l.var in used)
