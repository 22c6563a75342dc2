"""In: a normal form, and what is differentiated with respect to what. Out: a definition of each cotangent, and every step to it.

Reverse mode: definitions from the last to the first, each passing the cotangent of its array to what it reads (`cotangent`); each
scatter becomes a gather (`inverse`); terms are added, and definitions stand for what equals them (`term`, `reuse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from moapipe.algebra.condition import conditions
from moapipe.algebra.cotangent import Arrival, Range, arrivals
from moapipe.algebra.dnf import Dnf, Normal
from moapipe.algebra.expr import Leaf
from moapipe.algebra.inverse import LAWS as INVERSES
from moapipe.algebra.inverse import Scatter, gather
from moapipe.algebra.reuse import Pattern, absorbed, reads, reuse, reused, unfold
from moapipe.algebra.rewrite import Pending, Step
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, op, references, rewrite, substitute
from moapipe.algebra.shorten import folds, known
from moapipe.algebra.term import Overflow, Terms, collect, expand, private, render
from moapipe.errors import AlgebraError

DEPTH, MOST = 4, 16
"""How many cotangents are unfolded, and into how many terms at most, to see whether another one is nothing."""
CHAIN, LIKE, DEFINITION, MASKED, UNFOLD, INVARIANCE = "chain rule", "like terms", "definition", "masked", "unfold", "invariance"
RULES = {
    CHAIN: "dA[j] = Σ over every read A[index(i)] in a definition D[i] = f(…, A[index(i)], …) of [index(i) = j] · dD[i] · ∂f/∂A",
    LIKE: "terms that differ by order, by names of summed variables and by coefficients are added; what they share stands before the bracket",
    DEFINITION: "f(i) = D[i] where D[i] ≡ f(i), f a sum over a fold or a scalar function: a definition stands for what equals it",
    MASKED: "[c]·x = x where a factor of x is 0 outside c: exp(−∞ − m) = 0, m > −∞",
    UNFOLD: "D[i] = f(i) where D[i] ≡ f(i), and Σ_k c·x[k] = c·Σ_k x[k]",
    INVARIANCE: "x − x = 0 in every term, so dA = 0: the result does not depend on A. "
                "For the shift m of exp(x − m) ÷ Σ exp(x − m) it is the softmax's shift invariance",
} | INVERSES


class Tape:
    """One reverse pass over `start`: `made`, the cotangents' definitions in the order in which they are found, and the steps."""

    def __init__(self, start: Dnf, of: Sequence[str], wrt: Sequence[str]) -> None:
        self.start, self.of, self.wrt = start, tuple(of), tuple(wrt)
        self.steps: list[Step] = []
        self.shapes = {n: s for n, s in start.inputs} | {n.name: tuple(e for _, e in n.axes) for n in start.normals}
        self.active = self._active()
        if twice := sorted(self.shapes.keys() & {f"d{a}" for a in (*self.active, *wrt)}):
            raise AlgebraError(f"{twice[0]} is an array, and the cotangent of {twice[0][1:]} too", where=start.name, hint="give the array another name")
        self.arrived: dict[str, list[tuple[Normal, Arrival]]] = {a: [] for a in (*self.active, *wrt)}
        self.made: dict[str, Normal] = {}
        self.patterns = known(start.normals)

    def _active(self) -> frozenset[str]:
        """Arrays between `wrt` and `of`."""
        for name in (*self.of, *self.wrt):
            if name not in self.shapes:
                raise AlgebraError(f"no array {name}", where=self.start.name, hint=f"arrays are {', '.join(self.shapes)}")
        forward = set(self.wrt)
        for n in self.start.normals:
            if reads(n.value) & forward:
                forward.add(n.name)
        backward = set(self.of)
        for n in reversed(self.start.normals):
            if n.name in backward:
                backward |= reads(n.value)
        return frozenset(forward & backward)

    def axes_of(self, name: str) -> tuple[tuple[str, Scalar], ...]:
        """Index variables of an array: a definition's own; an input's from the first definition that reads it."""
        for n in self.start.normals:
            if n.name == name:
                return n.axes
        shape, taken = self.shapes[name], set(self.start.sizes)
        ref = next((r for n in self.start.normals for r in references(n.value) if r.array == name), None)
        out: list[tuple[str, Scalar]] = []
        for k, (i, e) in enumerate(zip(ref.index if ref else shape, shape, strict=True)):
            wish = i.name if ref and isinstance(i, Var) else f"i{k}"
            while wish in taken:
                wish += "_"
            taken.add(wish)
            out.append((wish, e))
        return tuple(out)

    def run(self) -> None:
        """Definitions from the last to the first, then the inputs: when an array's turn comes, all its readers had theirs."""
        for name in (*(n.name for n in reversed(self.start.normals) if n.name in self.active), *self.wrt):
            cotangent = self._seed(name) if name in self.of else self._collected(name)
            source = next((n for n in self.start.normals if n.name == name), None)
            if cotangent is None or source is None:
                continue
            element = Ref(cotangent, tuple(Var(v) for v, _ in source.axes))
            for a in arrivals(source.value, element, self.active, private):
                self.arrived[a.target.array].append((source, a))

    def _seed(self, name: str) -> str:
        """The cotangent of an array that is differentiated: an input, and with what its readers send back a definition."""
        if not self.arrived[name]:
            return f"d{name}"
        element = Ref(f"d{name}", tuple(Var(v) for v, _ in self.axes_of(name)))
        return self._collected(name, element) or f"d{name}"

    def _collected(self, name: str, given: Scalar | None = None) -> str | None:
        """dX (dX_total where dX is given) from everything that arrives; None, and no definition, when it is nothing."""
        axes, own = self.axes_of(name), f"d{name}" if given is None else f"d{name}_total"
        scatters = [self._scatter(axes, n, a) for n, a in self.arrived[name]]
        parts = [s.scalar() for s in scatters]
        self._note(own, CHAIN, Ref(own, tuple(Var(v) for v, _ in axes)), total([*parts, *([given] if given else [])]))
        solved = []
        for before, s in zip(parts, scatters, strict=True):
            s, states = gather(s)
            solved.append(s.scalar())
            for law, state in states:
                self._note(own, law, before, state.scalar())
                before = state.scalar()
        value = self._simplified(own, total([*solved, *([given] if given else [])]), axes)
        if value == Num(0) and name not in self.wrt:
            return None
        self.made[name] = Normal(own, axes, value)
        return own

    def _simplified(self, own: str, value: Scalar, axes: Sequence[tuple[str, Scalar]]) -> Scalar:
        """A cotangent's value from its terms; 0 when they add up to nothing."""
        try:
            terms = expand(value)
        except Overflow:
            return value
        taken, defined = self._taken(axes), reuse(terms, self.patterns)
        value = self._said(own, LIKE, value, render(terms, taken))
        value = self._said(own, DEFINITION, value, render(defined, taken))
        if defined and self._nothing(own, value, defined, taken):
            return Num(0)
        return self._said(own, MASKED, value, render([absorbed(t, self.normals) for t in defined], taken))

    def _said(self, own: str, law: str, before: Scalar, after: Scalar) -> Scalar:
        if before != after:
            self._note(own, law, before, after)
        return after

    def _taken(self, axes: Sequence[tuple[str, Scalar]]) -> frozenset[str]:
        return frozenset((*(v for v, _ in axes), *self.start.sizes))

    def _scatter(self, axes: tuple[tuple[str, Scalar], ...], n: Normal, a: Arrival) -> Scatter:
        """Everything that one read sends back, over the reader's axes and the folds around the read, their names made private."""
        ranges = (*((v, Num(0), e) for v, e in n.axes), *a.scope)
        by: dict[str, Scalar] = {v: Var(private(v)) for v, _, _ in ranges}
        own: tuple[Range, ...] = tuple((by[v].name, substitute(lo, by), substitute(hi, by)) for v, lo, hi in ranges)  # type: ignore[union-attr]
        equal = tuple((substitute(i, by), Var(v)) for i, (v, _) in zip(a.target.index, axes, strict=True))
        held, value = conditions(substitute(a.value, by))
        return Scatter(tuple((v, Num(0), e) for v, e in axes), own, equal, held, value)

    @property
    def normals(self) -> Mapping[str, Normal]:
        return {n.name: n for n in (*self.start.normals, *self.made.values())}

    def _nothing(self, own: str, value: Scalar, terms: Terms, taken: frozenset[str]) -> bool:
        """True when the terms add up to nothing once the latest cotangents and quotients are unfolded and sums are definitions again."""
        latest = list(self.made.values())[:-DEPTH - 1 : -1]
        quotients = [n for n in self.start.normals if not folds(n.value) and _divides(n.value)]
        for k in range(len(latest) + 1):
            try:
                inside = {n.name: (tuple(v for v, _ in n.axes), expand(n.value)) for n in (*quotients, *latest[:k])}
                flat = unfold(terms, inside, MOST)
                again = tuple(reused(t, self._deep(inside)) for t in flat)
            except Overflow:
                return False
            if not collect(again):
                value = self._said(own, UNFOLD, value, render(flat, taken))
                value = self._said(own, DEFINITION, value, render(again, taken))
                self._said(own, INVARIANCE, value, Num(0))
                return True
        return False

    def _deep(self, inside: Mapping[str, tuple[tuple[str, ...], Terms]]) -> list[Pattern]:
        """Definitions that are sums, in what is unfolded."""
        found = [(p, unfold((p.term,), inside)) for p in self.patterns if p.term.sums]
        return [replace(p, term=terms[0]) for p, terms in found if len(terms) == 1]

    def _note(self, definition: str, law: str, before: Scalar, after: Scalar) -> None:
        self.steps.append(Step(definition, law, pending(before), pending(after)))


def _divides(e: Scalar) -> bool:
    return isinstance(e, Op) and (e.name in ("/", "reciprocal") or any(map(_divides, e.args)))


def total(parts: Sequence[Scalar]) -> Scalar:
    out: Scalar = parts[0] if parts else Num(0)
    for p in parts[1:]:
        out = op("+", out, p)
    return out


def _public(e: Scalar) -> Scalar:
    """Private names of summed variables as people write them: i′ for i."""
    match e:
        case Var(name):
            return Var(name.partition("#")[0] + "′") if "#" in name else e
        case Fold(m, var, lo, hi, body):
            return Fold(m, var.partition("#")[0] + ("′" if "#" in var else ""), _public(lo), _public(hi), _public(body))
        case Op(name, args):
            return Op(name, tuple(map(_public, args)))
        case Ref(array, index):
            return Ref(array, tuple(map(_public, index)))
        case _:
            return e


def pending(e: Scalar) -> Pending:
    """A scalar of named arrays as a step shows it."""
    names = list(dict.fromkeys(r.array for r in references(e)))
    value = rewrite(_public(e), lambda x: Ref(str(names.index(x.array)), x.index) if isinstance(x, Ref) else x)
    return Pending(value, tuple(Leaf(n, ()) for n in names))
