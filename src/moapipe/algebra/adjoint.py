"""In: a kernel's definitions, what is differentiated with respect to what, and what the forward pass saves. Out: the backward kernel.

Reverse mode over the normal form: definitions in reverse order, each passing the cotangent of its array to what it reads
(`cotangent`), each scatter turned into a gather (`inverse`), like terms and definitions reused (`term`, `reuse`). No formula of a
backward pass is written anywhere. The cotangent of X is called dX; those of the kernel's outputs are inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from moapipe.algebra.cotangent import Arrival, Range, arrivals
from moapipe.algebra.dnf import Dnf, Normal, reduce_definitions, with_normals
from moapipe.algebra.expr import Definitions, Leaf
from moapipe.algebra.inverse import LAWS as INVERSES
from moapipe.algebra.inverse import Scatter, gather
from moapipe.algebra.laws import LAWS
from moapipe.algebra.render import Style, name_text, show_definitions
from moapipe.algebra.reuse import Pattern, absorbed, pattern, reads, reuse, unfold
from moapipe.algebra.rewrite import Pending, Step
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, op, references, rewrite, substitute
from moapipe.algebra.shorten import Shortener, needed
from moapipe.algebra.term import Overflow, Terms, expand, private, render
from moapipe.errors import AlgebraError

CHAIN, NOTHING, LIKE, UNFOLD = "chain rule", "nothing arrives", "like terms", "unfold"
RULES = {
    CHAIN: "dA[j] = Σ over every read A[index(i)] in a definition D[i] = f(…, A[index(i)], …) of [index(i) = j] · dD[i] · ∂f/∂A",
    NOTHING: "with definitions unfolded and like terms added, no term is left: dA = 0",
    LIKE: "terms that differ by order, sums' names and coefficients are added; definitions stand for what equals them",
    UNFOLD: "a definition is replaced by its value in its readers where they get cheaper by it; Σ_k c·x[k] = c·Σ_k x[k]",
} | INVERSES


@dataclass(frozen=True, slots=True)
class Adjoint:
    """The backward kernel of `primal`: d`of` are new inputs, d`wrt` outputs.

    `laws` (rows of LAWS) rewrite the primal before, `after` the whole kernel afterwards; `saved` are definitions that the forward
    pass keeps: inputs here. `outputs` are definitions of the primal that this kernel gives too (forward and backward in one).
    """

    primal: Definitions
    of: tuple[str, ...]
    wrt: tuple[str, ...]
    saved: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Leaf, ...]:
        """Inputs that the definitions give; saved arrays and cotangents come behind them."""
        return self.primal.inputs


def adjoint(primal: Definitions, of: Sequence[str], wrt: Sequence[str], *, saved: Sequence[str] = (), outputs: Sequence[str] = (),
            laws: Sequence[str] = (), after: Sequence[str] = ()) -> Adjoint:
    """The backward kernel, worked out when it is reduced (`denote`)."""
    return Adjoint(primal, *map(tuple, (of, wrt, saved, outputs, laws, after)))


def denote(name: str, d: Definitions | Adjoint) -> tuple[Dnf, tuple[Step, ...]]:
    """The normal form of a kernel's definitions, or of the backward kernel that they ask for, and every step to it."""
    if isinstance(d, Definitions):
        return reduce_definitions(name, d)
    start, steps = reduce_definitions(name, d.primal)
    for law in d.laws:
        start = LAWS[law].apply(start)
    start = _plain(start)
    tape = Tape(start, d)
    tape.run()
    return finish(start, d, tape), (*steps, *tape.steps)


def show_written(name: str, d: Definitions | Adjoint, style: Style = "moa") -> str:
    """What the kernel file says, as text: definitions in MoA, and what is differentiated."""
    if isinstance(d, Definitions):
        return show_definitions(name, d, style)

    def names(arrays: Sequence[str], prefix: str = "") -> str:
        return (r",\; " if style == "latex" else "<mo>,</mo>" if style == "mathml" else ", ").join(name_text(prefix + a, style) for a in arrays)

    def words(text: str) -> str:
        return rf" \text{{ {text} }} " if style == "latex" else f"<mtext> {text} </mtext>" if style == "mathml" else f" {text} "

    sign = {"moa": " ≡", "ascii": " =", "latex": r" \equiv", "mathml": "<mo>≡</mo>"}[style]
    line = f"{names(d.wrt, 'd')}{sign}{words('adjoint of')}{names(d.of)}{words('for')}{names(d.wrt)}{words('from')}{names(d.of, 'd')}"
    line += f"{words('and the saved')}{names(d.saved)}" if d.saved else ""
    return show_definitions(name, d.primal, style) + (f"<mrow>{line}</mrow>" if style == "mathml" else line) + "\n"


def pending(e: Scalar) -> Pending:
    """A scalar of named arrays as a step shows it."""
    names = list(dict.fromkeys(r.array for r in references(e)))
    value = rewrite(e, lambda x: Ref(str(names.index(x.array)), x.index) if isinstance(x, Ref) else x)
    return Pending(value, tuple(Leaf(n, ()) for n in names))


def _plain(d: Dnf) -> Dnf:
    """Outputs that only copy a definition take its place."""
    normals = list(d.normals)
    for n in d.normals:
        match n.value:
            case Ref(array, index) if n.name in d.outputs and array not in d.outputs and index == tuple(Var(v) for v, _ in n.axes):
                source = next((m for m in normals if m.name == array), None)
                if source is None or [e for _, e in source.axes] != [e for _, e in n.axes]:
                    continue
                normals = [replace(m, name=n.name) if m.name == array else m for m in normals if m.name != n.name]
                normals = [replace(m, value=rewrite(m.value, lambda x, a=array, o=n.name: Ref(o, x.index) if isinstance(x, Ref) and x.array == a else x)) for m in normals]  # type: ignore[misc]
            case _:
                pass
    return with_normals(d, tuple(normals))


class Tape:
    """One reverse pass: the cotangents' definitions in the order in which they are found, and the steps."""

    def __init__(self, start: Dnf, asked: Adjoint) -> None:
        self.start, self.asked = start, asked
        self.steps: list[Step] = []
        self.shapes = {n: s for n, s in start.inputs} | {n.name: tuple(e for _, e in n.axes) for n in start.normals}
        self.active = self._active()
        self.arrived: dict[str, list[tuple[Normal, Arrival]]] = {a: [] for a in (*self.active, *asked.wrt)}
        self.made: dict[str, Normal] = {}
        self.patterns = [p for n in sorted(start.normals, key=lambda n: not isinstance(n.value, Fold)) if (p := pattern(n)) is not None]

    def _active(self) -> frozenset[str]:
        """Arrays between `wrt` and `of`."""
        for name in (*self.asked.of, *self.asked.wrt):
            if name not in self.shapes:
                raise AlgebraError(f"no array {name}", where=self.start.name, hint=f"arrays are {', '.join(self.shapes)}")
        forward = set(self.asked.wrt)
        for n in self.start.normals:
            if reads(n.value) & forward:
                forward.add(n.name)
        backward = set(self.asked.of)
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
        order = [*(n.name for n in reversed(self.start.normals) if n.name in self.active), *self.asked.wrt]
        for name in order:
            if name in self.asked.of:
                cotangent: Normal | None = Normal(f"d{name}", self.axes_of(name), Num(0))
            else:
                cotangent = self._collected(name)
            source = next((n for n in self.start.normals if n.name == name), None)
            if cotangent is None or source is None:
                continue
            seed = Ref(cotangent.name, tuple(Var(v) for v, _ in source.axes))
            for a in arrivals(source.value, seed, self.active, private):
                self.arrived[a.target.array].append((source, a))

    def _collected(self, name: str) -> Normal | None:
        """dX from everything that arrives; None, and no definition, when it is nothing."""
        axes = self.axes_of(name)
        left = Ref(f"d{name}", tuple(Var(v) for v, _ in axes))
        scatters = [self._scatter(axes, n, a) for n, a in self.arrived[name]]
        before = _total([s.scalar() for s in scatters])
        self._note(left.array, CHAIN, left, before)
        solved = [gather(s) for s in scatters]
        value = _total([s.scalar() for s, _ in solved])
        for law in dict.fromkeys(l for _, laws in solved for l in laws):
            self._note(left.array, law, before, value)
            before = value
        terms = self._terms(value)
        if terms is not None and self._nothing(terms):
            self._note(left.array, NOTHING, value, Num(0))
            if name not in self.asked.wrt:
                return None
            value, terms = Num(0), ()
        short = value if terms is None else render(terms, self._taken(axes))
        if short != value:
            self._note(left.array, LIKE, value, short)
        self.made[name] = Normal(left.array, axes, short)
        return self.made[name]

    def _taken(self, axes: Sequence[tuple[str, Scalar]]) -> frozenset[str]:
        return frozenset((*(v for v, _ in axes), *self.start.sizes))

    def _scatter(self, axes: tuple[tuple[str, Scalar], ...], n: Normal, a: Arrival) -> Scatter:
        """Everything that one read sends back, over the reader's axes and the folds around the read, their names made private."""
        ranges = (*((v, Num(0), e) for v, e in n.axes), *a.scope)
        by: dict[str, Scalar] = {v: Var(private(v)) for v, _, _ in ranges}
        own: tuple[Range, ...] = tuple((by[v].name, substitute(lo, by), substitute(hi, by)) for v, lo, hi in ranges)  # type: ignore[union-attr]
        equal = tuple((substitute(i, by), Var(v)) for i, (v, _) in zip(a.target.index, axes, strict=True))
        return Scatter(tuple((v, Num(0), e) for v, e in axes), own, equal, (), substitute(a.value, by))

    def _terms(self, e: Scalar) -> Terms | None:
        try:
            return tuple(absorbed(t, self.normals) for t in reuse(expand(e), self.patterns))
        except Overflow:
            return None

    @property
    def normals(self) -> Mapping[str, Normal]:
        return {n.name: n for n in (*self.start.normals, *self.made.values())}

    def _nothing(self, terms: Terms) -> bool:
        """True when the terms add up to nothing once cotangents and quotients are unfolded and sums are definitions again."""
        try:
            inside = {n.name: (tuple(v for v, _ in n.axes), expand(n.value)) for n in self.made.values()}
            inside |= {n.name: (tuple(v for v, _ in n.axes), expand(n.value)) for n in self.start.normals if not _folds(n.value) and _divides(n.value)}
            return not reuse(unfold(terms, inside), [p for p in self._deep(inside) if p.term.sums])
        except Overflow:
            return False

    def _deep(self, inside: Mapping[str, tuple[tuple[str, ...], Terms]]) -> Iterator[Pattern]:
        """Definitions that are sums, in what is unfolded."""
        for p in self.patterns:
            terms = unfold((p.term,), inside)
            if len(terms) == 1:
                yield replace(p, term=terms[0])

    def _note(self, definition: str, law: str, before: Scalar, after: Scalar) -> None:
        self.steps.append(Step(definition, law, pending(_public(before)), pending(_public(after))))


def _folds(e: Scalar) -> bool:
    return isinstance(e, Fold) or any(_folds(c) for c in (e.args if isinstance(e, Op) else ()))


def _divides(e: Scalar) -> bool:
    return isinstance(e, Op) and (e.name in ("/", "reciprocal") or any(map(_divides, e.args)))


def _total(parts: Sequence[Scalar]) -> Scalar:
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


# ------------------------------------------------------------------ the kernel


def finish(start: Dnf, d: Adjoint, tape: Tape) -> Dnf:
    """The backward kernel: cotangents shortened, laws, saved arrays as inputs, nothing that is not needed."""
    shapes = dict(start.inputs) | {n.name: tuple(e for _, e in n.axes) for n in start.normals}
    seeds = tuple((f"d{o}", shapes[o]) for o in d.of)
    outputs = (*d.outputs, *(f"d{w}" for w in d.wrt))
    made = tuple(tape.made.values())
    short = Shortener((*start.normals, *made), (n.name for n in made), (*outputs, *d.saved, *start.outputs), start.sizes)
    short.run()
    tape.steps += [Step(name, UNFOLD, pending(a), pending(b)) for name, a, b in short.log]
    kept = tuple(dict.fromkeys((*outputs, *start.outputs)))
    whole = replace(start, inputs=(*start.inputs, *seeds), outputs=kept, normals=short.normals)
    for law in d.after:
        whole = LAWS[law].apply(whole)
    return _cut(whole, d.saved, outputs)


def _cut(d: Dnf, saved: Sequence[str], outputs: tuple[str, ...]) -> Dnf:
    """Saved definitions become inputs, behind those of the primal and before the cotangents; the rest that is not needed leaves."""
    if lost := [s for s in saved if s not in {n.name for n in d.normals}]:
        raise AlgebraError(f"no definition {lost[0]} to save", where=d.name, hint=f"definitions are {', '.join(n.name for n in d.normals)}")
    shapes = {n.name: tuple(e for _, e in n.axes) for n in d.normals}
    normals = needed(tuple(n for n in d.normals if n.name not in saved), outputs)
    used = frozenset().union(*(reads(n.value) for n in normals))
    inputs = [*d.inputs]
    at = next((k for k, (n, _) in enumerate(inputs) if n.startswith("d") and n[1:] in shapes), len(inputs))
    inputs[at:at] = [(s, shapes[s]) for s in saved]
    return replace(d, inputs=tuple((n, s) for n, s in inputs if n in used), outputs=outputs, normals=normals)
