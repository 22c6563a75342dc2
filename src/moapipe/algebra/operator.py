"""In: nothing. Out: what a row of OPS is made of: Operator, the Data that a node holds, and Pull, the answer of a ψ-law.

A ψ-law answers "which scalar is element `index`?" by a scalar expression whose references name the operator's arguments:
`Ref("0", j)` is j ψ (argument 0), and `Ref("cell", j)` is j ψ (Ω's function of its cells).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moapipe.algebra.scalar import Scalar
from moapipe.algebra.shape import Constraint, Shape

Index = tuple[Scalar, ...]
Array = Any                                            # a numpy array of any dtype
Shapes = tuple[Shape, ...]
Shaped = tuple[Shape, tuple[Constraint, ...]]
Evaluate = Callable[[Scalar], int]
Cell = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Data:
    """What an operator holds besides its arguments: its left vector (index, shape, amounts, permutation or cell ranks), its
    scalar functions, the wished name of its fold variable, and for Ω the shape of the function's result on one cell and the
    depth that tells its cells from those of the Ω inside its function."""

    vector: Index = ()
    functions: tuple[str, ...] = ()
    variable: str = ""
    cell: Shape = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Pull:
    """Element `index` of a result. `frames` (Ω only): the cell of argument k is frames[k] ψ argument k."""

    value: Scalar
    frames: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of OPS.

    shape(data, shapes)                  the result's shape, and the constraints that it rests on
    psi(data, shapes, index, variable)   the ψ-law; `variable` is a fresh name for the fold's index
    meaning(data, arrays, at, cell)      the result by numpy; `at` evaluates an extent, `cell` applies Ω's function
    template                             one a style; {v} the left vector, {f} {g} the functions, {l} {r} operands, {b} Ω's function
    """

    name: str
    arity: tuple[int, ...]
    template: tuple[str, str, str, str]
    shape: Callable[[Data, Shapes], Shaped]
    psi: Callable[[Data, Shapes, Index, str], Pull]
    meaning: Callable[[Data, list[Array], Evaluate, Cell], Array]
    law: str
    source: str
    folds: bool = False
