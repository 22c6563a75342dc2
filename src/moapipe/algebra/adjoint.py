"""In: a kernel's definitions, what is differentiated with respect to what, and what the forward pass saves. Out: the backward kernel.

No formula of a backward pass is written anywhere: `tape` makes the cotangents, `shorten` unfolds them into each other where that
is cheaper, laws that the kernel file names do the rest. The cotangent of X is called dX; those of the kernel's outputs are inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moapipe.algebra import tape as reverse
from moapipe.algebra.dnf import Dnf, Normal, reduce_definitions, with_normals
from moapipe.algebra.expr import Definitions, Leaf
from moapipe.algebra.laws import LAWS
from moapipe.algebra.render import Style, name_text, show_definitions
from moapipe.algebra.reuse import called, reads
from moapipe.algebra.rewrite import Step
from moapipe.algebra.scalar import Ref, Var
from moapipe.algebra.shorten import Shortener, needed
from moapipe.algebra.tape import UNFOLD, Tape, pending
from moapipe.errors import AlgebraError

SAVED = "saved"
RULES = {**reverse.RULES, SAVED: "what the forward pass keeps is an input of the backward pass"}


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


def adjoint(primal: Definitions, of: Sequence[str], wrt: Sequence[str], *, saved: Sequence[str] = (), outputs: Sequence[str] = (),
            laws: Sequence[str] = (), after: Sequence[str] = ()) -> Adjoint:
    """The backward kernel, worked out when it is reduced (`denote`)."""
    return Adjoint(primal, *map(tuple, (of, wrt, saved, outputs, laws, after)))


def denote(name: str, d: Definitions | Adjoint) -> tuple[Dnf, tuple[Step, ...]]:
    """The normal form of a kernel's definitions, or of the backward kernel that they ask for, and every step to it."""
    if isinstance(d, Definitions):
        return reduce_definitions(name, d)
    start, steps = reduce_definitions(name, d.primal)
    before: list[Step] = []
    for law in d.laws:
        start = _applied(law, start, before)
    start = _plain(start)
    tape = Tape(start, d.of, d.wrt)
    tape.run()
    backward, after = _finished(start, d, tuple(tape.made.values()))
    return backward, (*steps, *before, *tape.steps, *after)


def show_written(name: str, d: Definitions | Adjoint, style: Style = "moa") -> str:
    """What the kernel file says, as text: definitions in MoA, and what is differentiated."""
    if isinstance(d, Definitions):
        return show_definitions(name, d, style)

    def names(arrays: Sequence[str], prefix: str = "") -> str:
        return (r",\; " if style == "latex" else "<mo>,</mo>" if style == "mathml" else ", ").join(name_text(prefix + a, style) for a in arrays)

    def words(text: str) -> str:
        return rf" \text{{ {text} }} " if style == "latex" else f'<mspace width="0.4em"/><mtext>{text}</mtext><mspace width="0.4em"/>' if style == "mathml" else f" {text} "

    sign = {"moa": " ≡", "ascii": " =", "latex": r" \equiv", "mathml": "<mo>≡</mo>"}[style]
    line = f"{names(d.wrt, 'd')}{sign}{words('adjoint of')}{names(d.of)}{words('for')}{names(d.wrt)}{words('from')}{names(d.of, 'd')}"
    line += f"{words('and the saved')}{names(d.saved)}" if d.saved else ""
    shapes = {x.name: x.expr.shape for x in d.primal.definitions}
    given = (*d.primal.inputs, *(Leaf(x, shapes.get(x, ())) for x in d.saved), *(Leaf(f"d{x}", shapes.get(x, ())) for x in d.of))
    written = replace(d.primal, inputs=given, outputs=(*d.outputs, *(f"d{w}" for w in d.wrt)))
    return show_definitions(name, written, style) + (f"<mrow>{line}</mrow>" if style == "mathml" else line) + "\n"


def _plain(d: Dnf) -> Dnf:
    """Definitions that only copy another one take its place."""
    normals = list(d.normals)
    for n in d.normals:
        match n.value:
            case Ref(array, index) if array not in d.outputs and index == tuple(Var(v) for v, _ in n.axes):
                source = next((m for m in normals if m.name == array), None)
                if source is not None and [e for _, e in source.axes] == [e for _, e in n.axes]:
                    normals = [called(m, array, n.name) for m in normals if m.name != n.name]
            case _:
                pass
    return with_normals(d, tuple(normals))


# ------------------------------------------------------------------ the kernel


def _finished(start: Dnf, d: Adjoint, made: tuple[Normal, ...]) -> tuple[Dnf, tuple[Step, ...]]:
    """The backward kernel: cotangents shortened, laws, saved arrays as inputs, nothing that is not needed."""
    shapes = dict(start.inputs) | {n.name: tuple(e for _, e in n.axes) for n in start.normals}
    seeds = tuple((f"d{o}", shapes[o]) for o in d.of)
    outputs = (*d.outputs, *(f"d{w}" for w in d.wrt))
    short = Shortener((*start.normals, *made), (n.name for n in made), (*outputs, *d.saved, *start.outputs), start.sizes)
    short.run()
    steps = [Step(name, UNFOLD, pending(a), pending(b)) for name, a, b in short.log]
    kept = tuple(dict.fromkeys((*outputs, *start.outputs)))
    whole = replace(start, inputs=(*start.inputs, *seeds), outputs=kept, normals=short.normals)
    for law in d.after:
        whole = _applied(law, whole, steps)
    return _cut(whole, d.saved, len(start.inputs), outputs, steps), tuple(steps)


def _applied(law: str, d: Dnf, steps: list[Step]) -> Dnf:
    """A law's result; what it changes goes into `steps`."""
    new, old = LAWS[law].apply(d), {n.name: n for n in d.normals}
    gone = [n.value for n in d.normals if n.name not in {m.name for m in new.normals}]
    for n in new.normals:
        before = old[n.name].value if n.name in old else gone.pop(0) if gone else Ref(n.name, tuple(Var(v) for v, _ in n.axes))
        if before != n.value:
            steps.append(Step(n.name, law, pending(before), pending(n.value)))
    return new


def _cut(d: Dnf, saved: Sequence[str], front: int, outputs: tuple[str, ...], steps: list[Step]) -> Dnf:
    """Saved definitions become inputs, behind the `front` ones of the primal; what is not needed leaves."""
    if lost := [s for s in saved if s not in {n.name for n in d.normals}]:
        raise AlgebraError(f"no definition {lost[0]} to save", where=d.name, hint=f"definitions are {', '.join(n.name for n in d.normals)}")
    shapes = {n.name: tuple(e for _, e in n.axes) for n in d.normals}
    normals = needed(tuple(n for n in d.normals if n.name not in saved), outputs)
    steps += [Step(n.name, SAVED, pending(n.value), pending(Ref(n.name, tuple(Var(v) for v, _ in n.axes)))) for n in d.normals if n.name in saved]
    used = frozenset().union(*(reads(n.value) for n in normals))
    inputs = (*d.inputs[:front], *((s, shapes[s]) for s in saved), *d.inputs[front:])
    return replace(d, inputs=tuple((n, s) for n, s in inputs if n in used), outputs=outputs, normals=normals)
