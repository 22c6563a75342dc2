"""In: a DNF. Out: the naive ONF: one perfect loop nest for each leaf, every definition stored, every inner fold a definition.

Sharing is what makes this cheap to say: an inner fold is hoisted into a definition of its own over the indices that it
needs, equal folds are stored once, and definitions that a variant inlines dissolve into their readers first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from moapipe.algebra.dnf import Dnf, Normal
from moapipe.algebra.index import is_index, maximum, minimum, simplify
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, children, rebuild, references, rewrite, substitute, variables, walk
from moapipe.errors import LiftError
from moapipe.loops.legal import UNIT, conjuncts, first_true
from moapipe.loops.onf import (
    Accumulate,
    Array,
    Assign,
    Body,
    Kernel,
    Leaf,
    Loop,
    Stmt,
    leaves,
    map_expressions,
    map_references,
    map_statements,
)

Range = tuple[str, Scalar, Scalar]


def lower(dnf: Dnf, inline: tuple[str, ...] = ()) -> Kernel:
    """The naive kernel of a DNF, after dissolving the definitions `inline` into their readers.

    A fold becomes an initialisation with its unit and an accumulation, directly nested folds of one monoid one of both; a value that is a select over one index (a
    catenation) becomes one nest for each range. A fold's variable takes the name of the axis that it runs over, when it
    runs over an axis of a definition. Raises LiftError for an unknown or an output name in `inline`.
    """
    normals = [_named(n, dnf.normals) for n in _inlined(dnf, inline)]
    shared: dict[str, Normal] = {}
    for n in normals:
        _hoist(n, shared)
    became = {old: new for new, old in dnf.updates}
    arrays = [Array(name, shape, "input", becomes=became.get(name, "")) for name, shape in dnf.inputs]
    made = [Array(n.name, tuple(e for _, e in n.axes), "output" if n.name in dnf.outputs else "workspace") for n in shared.values()
            if n.name not in became.values()]
    made.sort(key=lambda a: (a.space != "output", dnf.outputs.index(a.name) if a.space == "output" else 0))
    body = tuple(s for n in shared.values() for s in _nests(n))
    for new, old in dnf.updates:
        body = _in_place(body, new, old)
    return Kernel(dnf.name, dnf.sizes, (*arrays, *made), body)


# ------------------------------------------------------------------ updates in place


def _in_place(body: Body, new: str, old: str) -> Body:
    """The definition `new` = select(condition, value, old), element by element, as stores into `old` where the condition holds.

    Legal when nothing else reads the old array: whoever reads `new` then finds it in the old one's place.
    """
    stores = [leaf for leaf, _, _ in leaves(body) if leaf.name == new]
    readers = {leaf.name for leaf, _, _ in leaves(body) if leaf.name != new and any(r.array == old for r in references(leaf.value))}
    match stores:
        case [Assign(target, Op("select", (condition, value, kept))) as store] if kept == Ref(old, target.index) and is_index(condition) and not readers:
            where = tuple(c for a in conjuncts(condition) for c in _inequalities(a))
        case _:
            why = f"{', '.join(sorted(readers))} reads {old} as it was" if readers else f"{new} is not select(condition on indices, value, {old}) at its own index"
            raise LiftError(why, where=f"update of {old}", hint=f"let all read {new}")
    update = replace(store, target=Ref(old, target.index), value=value, where=where)
    body = map_statements(body, lambda s: (update,) if s is store else (s,))
    return map_expressions(body, lambda e: map_references(e, lambda r: Ref(old, r.index) if r.array == new else r))


def _inequalities(atom: Scalar) -> tuple[Scalar, ...]:
    match atom:
        case Op("==", (a, b)):
            return Op("<=", (a, b)), Op("<=", (b, a))
        case _:
            return (atom,)


# ------------------------------------------------------------------ inlining


def _inlined(dnf: Dnf, names: tuple[str, ...]) -> list[Normal]:
    defined = {n.name for n in dnf.normals}
    if wrong := [n for n in names if n not in defined or n in dnf.outputs]:
        raise LiftError(f"cannot inline {', '.join(wrong)}", where=dnf.name, hint=f"definitions are {', '.join(sorted(defined - set(dnf.outputs)))}")
    done: dict[str, Normal] = {}
    for n in dnf.normals:
        done[n.name] = replace(n, value=_dissolved(n.value, {x: done[x] for x in names if x in done}, f"_{n.name}"))
    return [n for n in done.values() if n.name not in names]


def _dissolved(e: Scalar, by: Mapping[str, Normal], tag: str) -> Scalar:
    def go(x: Scalar) -> Scalar:
        if not isinstance(x, Ref) or x.array not in by:
            return x
        n = by[x.array]
        inner = _fresh_folds(n.value, variables(e).union(*(variables(i) for i in x.index)) | _bound(e))
        return substitute(inner, {v: i for (v, _), i in zip(n.axes, x.index, strict=True)})

    return rewrite(e, go)


def _bound(e: Scalar) -> frozenset[str]:
    return frozenset(x.var for x in walk(e) if isinstance(x, Fold))


def _fresh_folds(e: Scalar, taken: frozenset[str]) -> Scalar:
    """Rename fold variables that would capture a variable of the reader."""
    for v in sorted(_bound(e) & taken):
        name = next(f"{v}{i}" for i in range(2, 1000) if f"{v}{i}" not in taken | _bound(e))
        e = _renamed(e, v, name)
    return e


def _renamed(e: Scalar, old: str, new: str) -> Scalar:
    """Rename the fold variable `old`."""

    def go(x: Scalar) -> Scalar:
        match x:
            case Fold(m, var, lo, hi, body) if var == old:
                return Fold(m, new, lo, hi, substitute(body, {old: Var(new)}))
            case _:
                return x

    return rewrite(e, go)


# ------------------------------------------------------------------ names of fold variables


def _named(n: Normal, normals: tuple[Normal, ...]) -> Normal:
    """Give each fold variable the name of the axis that it runs over, when the definitions that it indexes agree."""
    axes = {d.name: [v for v, _ in d.axes] for d in normals}
    value = n.value
    for v in sorted(_bound(value)):
        found = {
            axes[r.array][d]
            for r in walk(value) if isinstance(r, Ref) and r.array in axes
            for d, i in enumerate(r.index) if i == Var(v)
        }  # fmt: skip
        taken = {a for a, _ in n.axes} | _bound(value) - {v}
        if len(found) == 1 and not found & taken:
            value = _renamed(value, v, found.pop())
    return replace(n, value=value)


# ------------------------------------------------------------------ hoisting


def _hoist(n: Normal, shared: dict[str, Normal]) -> None:
    """Add `n` to the definitions, after the definitions of its inner folds."""
    scope = dict(n.axes)
    folds, body = _together(n.value)
    value = _without_folds(body, {**scope, **{f.var: f.hi for f in folds}}, n.name, shared)
    for f in reversed(folds):
        value = replace(f, body=value)
    shared[n.name] = replace(n, value=value)


def _together(e: Scalar) -> tuple[tuple[Fold, ...], Scalar]:
    """Directly nested folds of one monoid, outermost first, and what they fold: one accumulation, for a monoid is associative."""
    folds: list[Fold] = []
    while isinstance(e, Fold) and e.monoid == (folds or [e])[0].monoid:
        folds.append(e)
        e = e.body
    return tuple(folds), e


def _without_folds(e: Scalar, scope: Mapping[str, Scalar], name: str, shared: dict[str, Normal]) -> Scalar:
    """`e` with its outermost folds replaced by references to definitions of their own."""
    match e:
        case Fold(m, _, _, _, _):
            used = tuple((v, x) for v, x in scope.items() if v in variables(e))
            if loose := [v for _, x in used for v in sorted(variables(x) & set(scope))]:
                raise LiftError(f"the extent of an axis of a fold depends on {', '.join(loose)}", where=name, hint="give the inner fold a definition of its own")
            new = Normal(_free_name(f"{name}_{m}", shared), used, e)
            _hoist(new, probe := dict(shared))
            same = next((d for d in shared.values() if (d.axes, d.value) == (used, probe[new.name].value)), None)
            if same is None:
                shared.update(probe)
            return Ref((same or new).name, tuple(Var(v) for v, _ in used))
        case _:
            return rebuild(e, tuple(_without_folds(c, scope, name, shared) for c in children(e)))


def _free_name(name: str, shared: Mapping[str, Normal]) -> str:
    return name if name not in shared else next(f"{name}{i}" for i in range(2, 1000) if f"{name}{i}" not in shared)


# ------------------------------------------------------------------ nests


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of every loop, and the value there."""

    ranges: tuple[Range, ...]
    value: Scalar


def _nests(n: Normal) -> Iterator[Stmt]:
    target = Ref(n.name, tuple(Var(v) for v, _ in n.axes))
    ranges: tuple[Range, ...] = tuple((v, Num(0), e) for v, e in n.axes)
    folds, body = _together(n.value)
    pieces = _pieces(_Piece((*ranges, *((f.var, f.lo, f.hi) for f in folds)), body))
    if folds:
        monoid = folds[0].monoid
        yield from _loops(ranges, Assign(target, Num(UNIT[monoid]), (), n.name))
    for p in pieces:
        yield from _loops(p.ranges, Accumulate(monoid, target, p.value, (), n.name) if folds else Assign(target, p.value, (), n.name))


def _loops(ranges: tuple[Range, ...], leaf: Leaf) -> Body:
    body: Body = (leaf,)
    for var, lo, hi in reversed(ranges):
        body = (Loop(var, simplify(lo), simplify(hi), body),)
    return body


def _pieces(p: _Piece) -> Iterator[_Piece]:
    """Split at selects whose condition bounds one loop: catenations become ranges, not conditions in the loop."""
    choice = next((x for x in walk(p.value) if _cut(x, p.ranges) is not None), None)
    cut = None if choice is None else _cut(choice, p.ranges)
    if choice is None or cut is None:
        yield p
        return
    d, lo, hi = cut
    var, low, high = p.ranges[d]
    yes = (var, low if lo is None else maximum(low, lo), high if hi is None else minimum(high, hi))
    no = (var, low, minimum(high, lo)) if lo is not None else (var, maximum(low, hi or Num(0)), high)
    for part, value in ((yes, children(choice)[1]), (no, children(choice)[2])):
        yield from _pieces(_Piece((*p.ranges[:d], part, *p.ranges[d + 1 :]), _replaced(p.value, choice, value)))


def _replaced(e: Scalar, old: Scalar, new: Scalar) -> Scalar:
    return new if e == old else rebuild(e, tuple(_replaced(c, old, new) for c in children(e)))


def _cut(e: Scalar, ranges: tuple[Range, ...]) -> tuple[int, Scalar | None, Scalar | None] | None:
    """(loop, lo, hi) where a select takes its first value, when its condition bounds one loop by sizes."""
    match e:
        case Op("select", (c, _, _)) if not any(isinstance(x, Ref) for x in walk(c)):
            names = [v for v, _, _ in ranges]
            used = [i for i, v in enumerate(names) if v in variables(c)]
            lo, hi = first_true(c, names[used[0]]) if len(used) == 1 else (None, None)
            return None if lo is None and hi is None else (used[0], lo, hi)
        case _:
            return None
