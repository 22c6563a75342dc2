"""In: a kernel's definitions. Out: its denotational normal form, one scalar expression a definition; text, hash, meaning.

The normal form knows no layout, no loop order and no storage. All variants, languages and machines of a kernel share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moapipe.algebra.evaluation import tabulate
from moapipe.algebra.expr import Apply, Definition, Definitions, Leaf, constraints, nodes, size_names
from moapipe.algebra.index import evaluate
from moapipe.algebra.render import Style, definition_text, heading
from moapipe.algebra.rewrite import Reducer, Step
from moapipe.algebra.scalar import Fold, Scalar, Var, children, rebuild, references, substitute, text, variables
from moapipe.algebra.shape import shape_text
from moapipe.errors import AlgebraError

__all__ = ["Dnf", "Normal", "Step", "check_sizes", "dnf_hash", "infer_sizes", "meaning", "reduce_definitions", "show"]


@dataclass(frozen=True, slots=True)
class Normal:
    """name[axes] = value for 0 ≤ axis < extent; `axes` are (index variable, extent)."""

    name: str
    axes: tuple[tuple[str, Scalar], ...]
    value: Scalar


@dataclass(frozen=True, slots=True)
class Dnf:
    """A kernel in normal form. `inputs` are (name, shape); `normals` stand in order of use; `outputs` names some of them, and
    `updates` the (output, input) pairs that share a buffer."""

    name: str
    sizes: tuple[str, ...]
    inputs: tuple[tuple[str, tuple[Scalar, ...]], ...]
    outputs: tuple[str, ...]
    normals: tuple[Normal, ...]
    updates: tuple[tuple[str, str], ...] = ()

    def normal(self, name: str) -> Normal:
        for n in self.normals:
            if n.name == name:
                return n
        raise AlgebraError(f"no definition {name}", where=self.name, hint=f"definitions are {', '.join(n.name for n in self.normals)}")


def reduce_definitions(name: str, d: Definitions) -> tuple[Dnf, tuple[Step, ...]]:
    """ψ-reduce every definition; the steps are in order. Raises AlgebraError for clashing names and shapes that cannot conform."""
    _check_names(name, d)
    constraints(d)
    normals: list[Normal] = []
    steps: list[Step] = []
    for definition in d.definitions:
        reducer = Reducer(definition.name, (*definition.axes, *d.sizes), dict(zip(definition.axes, definition.expr.shape, strict=True)))
        value = reducer.reduce(tuple(map(Var, definition.axes)), definition.expr)
        normals.append(Normal(definition.name, tuple(zip(definition.axes, definition.expr.shape, strict=True)), value))
        steps += reducer.steps
    return Dnf(name, d.sizes, tuple((x.name, x.shape) for x in d.inputs), d.outputs, tuple(normals), d.updates), tuple(steps)


def _check_names(name: str, d: Definitions) -> None:
    arrays = [x.name for x in d.inputs] + [x.name for x in d.definitions]
    if twice := sorted({x for x in arrays if arrays.count(x) > 1}):
        raise AlgebraError(f"{', '.join(twice)} defined twice", where=name, hint="every input and definition needs a name of its own")
    if lost := [o for o in d.outputs if o not in {x.name for x in d.definitions}]:
        raise AlgebraError(f"output {lost[0]} has no definition", where=name)
    if lost := [o for o, i in d.updates if o not in d.outputs or i not in {x.name for x in d.inputs}]:
        raise AlgebraError(f"update {lost[0]} is no output, or not of an input", where=name, hint="updates are (output, input) pairs")
    if loose := sorted(frozenset().union(*(size_names(x.shape) for x in d.inputs)) - set(d.sizes)):
        raise AlgebraError(f"size {loose[0]} is not among {d.sizes}", where=name, hint="list it in SIZES")
    known = {x.name: x.shape for x in d.inputs}
    for x in d.definitions:
        _check_definition(name, x, set(d.sizes), known)
        known[x.name] = x.expr.shape


def _check_definition(name: str, x: Definition, sizes: set[str], known: Mapping[str, tuple[Scalar, ...]]) -> None:
    where = f"{name}.{x.name}"
    if both := sorted(set(x.axes) & (sizes | set(known))) or [a for a in x.axes if x.axes.count(a) > 1]:
        raise AlgebraError(f"axis {both[0]} has the name of a size, an array or another axis", where=where, hint="name the axis differently")
    for n in nodes(x.expr):
        if isinstance(n, Leaf) and known.get(n.name) != n.shape:
            found = "no such array" if n.name not in known else f"shape {shape_text(known[n.name])}"
            raise AlgebraError(f"{n.name} of shape {shape_text(n.shape)} is used, and there is {found}", where=where,
                               hint="a definition uses inputs and earlier definitions")
        if isinstance(n, Apply) and (wish := n.data.variable) and wish in set(known) | sizes:
            raise AlgebraError(f"fold variable {wish} has the name of a size or an array", where=where, hint="choose another index=")


# ------------------------------------------------------------------ text and hash


def show(d: Dnf, style: Style = "ascii") -> str:
    """The normal form as text, one definition a line."""
    lines = [heading(d.name, d.sizes, d.inputs, d.outputs, style)]
    lines += [definition_text(n.name, n.axes, n.value, style) for n in d.normals]
    return "\n".join(lines) + "\n"


def canonical(d: Dnf) -> str:
    """Text in which index and fold variables are numbered, so that their names do not matter; the kernel's name is left out."""
    lines = [f"sizes {' '.join(d.sizes)}", *(f"input {name}[{', '.join(map(text, s))}]" for name, s in d.inputs)]
    for n in d.normals:
        names: dict[str, Scalar] = {v: Var(f"_{k}") for k, (v, _) in enumerate(n.axes)}
        extents = ", ".join(text(e) for _, e in n.axes)
        lines.append(f"{'output' if n.name in d.outputs else 'let'} {n.name}[{extents}] = {text(_number(substitute(n.value, names), len(names)))}")
    lines += [f"update {new} of {old}" for new, old in d.updates]
    return "\n".join([*lines, f"outputs {' '.join(d.outputs)}"]) + "\n"


def _number(e: Scalar, depth: int) -> Scalar:
    """Fold variables renamed by how deep they are bound."""
    if not isinstance(e, Fold):
        return rebuild(e, tuple(_number(c, depth) for c in children(e)))
    name = f"_{depth}"
    return Fold(e.monoid, name, _number(e.lo, depth), _number(e.hi, depth), _number(substitute(e.body, {e.var: Var(name)}), depth + 1))


def dnf_hash(d: Dnf) -> str:
    """16 hex digits of the sha256 of the canonical text."""
    return hashlib.sha256(canonical(d).encode()).hexdigest()[:16]


# ------------------------------------------------------------------ meaning


def infer_sizes(d: Dnf, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that the shapes of the input arrays give. Raises AlgebraError when they disagree or leave a size open."""
    out: dict[str, int] = {}
    for name, shape in d.inputs:
        found = np.shape(_given(d, inputs, name))
        if len(found) != len(shape):
            raise AlgebraError(f"{name} has shape {found}, and {shape_text(shape)} is needed", where=d.name, hint=f"rank {len(shape)}")
        for e, n in zip(shape, found, strict=True):
            if isinstance(e, Var) and out.setdefault(e.name, n) != n:
                raise AlgebraError(f"{name} has shape {found}, but {e.name} is {out[e.name]} elsewhere", where=d.name,
                                   hint=f"shapes must agree with {', '.join(f'{a}{shape_text(s)}' for a, s in d.inputs)}")
    if missing := [s for s in d.sizes if s not in out]:
        raise AlgebraError(f"the inputs do not give the size {missing[0]}", where=d.name)
    return out


def _given(d: Dnf, inputs: Mapping[str, Any], name: str) -> Any:
    if name not in inputs:
        raise AlgebraError(f"input {name} is missing", where=d.name, hint=f"inputs are {', '.join(n for n, _ in d.inputs)}")
    return inputs[name]


def check_sizes(d: Dnf, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raise AlgebraError where an input does not have the shape that the sizes give it."""
    for name, shape in d.inputs:
        expected, found = tuple(evaluate(e, sizes) for e in shape), np.shape(_given(d, inputs, name))
        if expected != found:
            raise AlgebraError(f"{name} has shape {found}, and the sizes give {expected}", where=d.name, hint=f"{name}{shape_text(shape)}")


def meaning(d: Dnf, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Every definition's array, evaluated by numpy in the common floating dtype of the inputs (float64, longdouble, …)."""
    check_sizes(d, inputs, sizes)
    arrays = {name: np.asarray(inputs[name]) for name, _ in d.inputs}
    floats = [a.dtype for a in arrays.values() if a.dtype.kind == "f"]
    dtype = np.result_type(*floats) if floats else np.dtype(np.float64)
    out: dict[str, Any] = {}
    for n in d.normals:
        axes = tuple((v, evaluate(e, sizes)) for v, e in n.axes)
        out[n.name] = tabulate(n.value, axes, sizes, {**arrays, **out}, dtype)
    return out


def with_normals(d: Dnf, normals: tuple[Normal, ...]) -> Dnf:
    """The same kernel with other definitions. Raises AlgebraError when one uses a variable that nothing binds."""
    for n in normals:
        bound = {v for v, _ in n.axes} | set(d.sizes)
        if loose := sorted(variables(n.value) - bound):
            raise AlgebraError(f"{n.name} uses {loose[0]}, which nothing binds", where=d.name)
    known = {name for name, _ in d.inputs}
    for n in normals:
        if lost := [r.array for r in references(n.value) if r.array not in known]:
            raise AlgebraError(f"{n.name} uses {lost[0]} before it is defined", where=d.name)
        known.add(n.name)
    return replace(d, normals=normals)
