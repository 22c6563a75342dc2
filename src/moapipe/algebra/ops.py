"""In: the rows that define operators and functions. Out: the tables that the rest of the program reads: OPS, FUNCS, MONOIDS."""

from __future__ import annotations

from moapipe.algebra.function import FUNCS, MONOIDS, Func, Monoid
from moapipe.algebra.higher import HIGHER
from moapipe.algebra.operator import Data, Operator, Pull
from moapipe.algebra.structure import STRUCTURE

OPS: dict[str, Operator] = {o.name: o for o in (*STRUCTURE, *HIGHER)}

__all__ = ["FUNCS", "MONOIDS", "OPS", "Data", "Func", "Monoid", "Operator", "Pull"]
