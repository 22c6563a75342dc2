"""In: a kernel and the definitions in it that may change. Out: the same with fewer operations, and the steps to it.

A definition is unfolded into its readers, after what its sum does not touch has left the sum, where that makes the whole
cheaper: like factors cancel, definitions stand for what equals them, and what nobody reads is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from moapipe.algebra.condition import indexed
from moapipe.algebra.dnf import Normal
from moapipe.algebra.reuse import Pattern, absorbed, pattern, reads, reuse, unfold
from moapipe.algebra.scalar import Fold, Op, Ref, Scalar, Var, children, memoised, variables
from moapipe.algebra.term import Overflow, Term, Terms, expand, render
from moapipe.errors import AlgebraError

GROWTH = 8
"""What a loop multiplies the cost of its body by, when costs are compared for all sizes."""
Normals = tuple[Normal, ...]


def cost(normals: Iterable[Normal]) -> int:
    """Operations and reads, weighted by the loops around them."""
    return sum(GROWTH ** len(n.axes) * work(n.value) for n in normals)


@memoised
def work(e: Scalar) -> int:
    match e:
        case Op(_, args):
            return 1 + sum(map(work, args))
        case Ref():
            return 1
        case Fold(_, _, _, _, body):
            return GROWTH * (1 + work(body))
        case _:
            return 0


def ordered(normals: Sequence[Normal]) -> Normals:
    """Each definition after those that it reads, else in the given order. Raises AlgebraError on a circle."""
    out: list[Normal] = []
    todo = list(normals)
    while todo:
        names = {n.name for n in todo}
        first = next((n for n in todo if not reads(n.value) & (names - {n.name}) and n.name not in reads(n.value)), None)
        if first is None:
            raise AlgebraError(f"{', '.join(sorted(names))} define each other", hint="saved arrays may not be needed to make themselves")
        todo.remove(first)
        out.append(first)
    return tuple(out)


def needed(normals: Sequence[Normal], outputs: Iterable[str]) -> Normals:
    """The definitions that the outputs need."""
    wanted = set(outputs)
    kept: list[Normal] = []
    for n in reversed(normals):
        if n.name in wanted:
            kept.append(n)
            wanted |= reads(n.value)
    return tuple(reversed(kept))


class Shortener:
    """`normals` in order of use; only those in `free` are unfolded or rewritten."""

    def __init__(self, normals: Normals, free: Iterable[str], outputs: Iterable[str], taken: Iterable[str]) -> None:
        self.normals, self.free = normals, set(free)
        self.outputs, self.taken = tuple(outputs), frozenset(taken)
        self.log: list[tuple[str, Scalar, Scalar]] = []

    def run(self) -> Normals:
        """Unfold until nothing gets cheaper."""
        self.normals = needed(self.normals, self.outputs)
        while any(self._try(n) for n in self.normals if n.name in self.free and n.name not in self.outputs):
            pass
        return self.normals

    def _try(self, n: Normal) -> bool:
        readers = [m for m in self.normals if n.name in reads(m.value)]
        if not readers or any(m.name not in self.free for m in readers):
            return False
        try:
            changed = self._unfolded(n, readers)
        except Overflow:
            return False
        if changed is None or cost(changed) > cost(self.normals) or (cost(changed) == cost(self.normals) and not isinstance(n.value, Ref)):
            return False
        before = {m.name: m.value for m in self.normals}
        self.log += [(m.name, before[m.name], m.value) for m in changed if m.name in before and before[m.name] != m.value]
        self.normals = changed
        return True

    def _unfolded(self, n: Normal, readers: Sequence[Normal]) -> Normals | None:
        """Everything with the readers of `n` rewritten without it."""
        terms = expand(n.value)
        extra: tuple[Normal, ...] = ()
        if any(t.sums for t in terms):
            parts = split(n, terms, {m.name for m in self.normals})
            if parts is None:
                return None
            own, terms = parts
            extra = (own,)
        inside = {n.name: (tuple(v for v, _ in n.axes), terms)}
        base = [*(m for m in self.normals if m.name != n.name), *extra]
        patterns = known(m for m in base if m.name not in {r.name for r in readers})
        by = {m.name: m for m in base}
        new = {m.name: replace(m, value=self.rewritten(m, self._indexed(unfold(expand(m.value), inside)), patterns, by)) for m in readers}
        if any(n.name in reads(m.value) for m in new.values()):
            return None
        self.free |= {m.name for m in extra}
        return needed(ordered([new.get(m.name, m) for m in (*extra, *base[: len(base) - len(extra)])]), self.outputs)

    def _indexed(self, terms: Terms) -> Terms:
        return tuple(replace(t, factors=tuple((indexed(x), p) for x, p in t.factors)) for t in terms)

    def rewritten(self, m: Normal, terms: Terms, patterns: Sequence[Pattern], by: Mapping[str, Normal]) -> Scalar:
        """A definition from its terms, with definitions and conditions used again."""
        short = tuple(absorbed(t, by) for t in reuse(terms, patterns))
        return render(short, (*self.taken, *(v for v, _ in m.axes)))


def known(normals: Iterable[Normal]) -> list[Pattern]:
    """The patterns of definitions, sums first."""
    found = [(n, pattern(n)) for n in normals]
    return [p for n, p in sorted(found, key=lambda x: not folds(x[0].value)) if p is not None]


@memoised
def folds(e: Scalar) -> bool:
    """There is a fold in it."""
    return isinstance(e, Fold) or any(map(folds, children(e)))


def split(n: Normal, terms: Terms, taken: Iterable[str]) -> tuple[Normal, Terms] | None:
    """A definition that is one sum as (the sum alone, the term that scales it); None where nothing leaves the sum."""
    if len(terms) != 1:
        return None
    t = terms[0]
    own = {v for v, _, _ in t.sums}
    before = tuple((x, p) for x, p in t.factors if not _touches(x, own))
    guards = tuple(g for g in t.guards if not _touches(g, own))
    if not before and not guards and t.coefficient == 1:
        return None
    inside = Term(1, tuple(g for g in t.guards if _touches(g, own)), t.sums, tuple((x, p) for x, p in t.factors if _touches(x, own)))
    used = set(taken)
    name = next(s for s in (f"{n.name}_sum", *(f"{n.name}_sum{k}" for k in range(2, 1000))) if s not in used)
    value = render((inside,), (v for v, _ in n.axes))
    axes = n.axes
    element = Ref(name, tuple(Var(v) for v, _ in axes))
    return Normal(name, axes, value), (Term(t.coefficient, guards, (), ((element, 1), *before)),)


def _touches(e: Scalar, own: set[str]) -> bool:
    return bool(variables(e) & own)
