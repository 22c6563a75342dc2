"""The lift that says in which of the caller's arrays numbers are rounded: narrow. In and out: a Kernel."""

from __future__ import annotations

from dataclasses import replace

from moapipe.algebra.index import is_entry
from moapipe.algebra.scalar import Num, Ref, Var, arrays, walk
from moapipe.loops.lift.scope import fresh, refusal, with_arrays
from moapipe.loops.onf import Accumulate, Array, Assign, Body, Kernel, Loop, expressions, leaves, map_array, read


def narrow(k: Kernel) -> Kernel:
    """Hold inputs and outputs in half the bytes of a value, and round each element once, when it is complete. An output that is added up
    in memory or read again is computed in the workspace, as `output`_wide, and copied out at the end, as the definition `output`_copy.
    Single numbers and lengths (which are counted with) stay what they are.

    Legal where an array that is updated in place gets elements of narrow arrays as they are: they are not rounded again.
    """
    counted = frozenset[str]().union(*(arrays(x) for e in expressions(k.body) for x in walk(e) if is_entry(x)))
    held = {a.name: a for a in k.arrays if a.space in ("input", "output") and a.shape and a.name not in counted}
    for leaf, _, _ in leaves(k.body):
        if (a := k.array(leaf.target.array)).becomes and not (isinstance(leaf.value, Ref) and leaf.value.array in held):
            raise refusal("narrow", a.name, f"{leaf.name} stores a computed value in {a.name}, which later iterations read rounded", "make it an output of its own")
    folded = {leaf.target.array for leaf, _, _ in leaves(k.body) if isinstance(leaf, Accumulate)}
    for a in held.values():
        if a.space == "output" and a.name in folded | read(k.body):
            k = _widened(k, a)
    return with_arrays(k, k.body, change=tuple(replace(a, narrow=True) for a in held.values()))


def _widened(k: Kernel, a: Array) -> Kernel:
    """The output computed in the workspace, and copied out when everything else is done."""
    wide, axes = f"{a.name}_wide", tuple(f"{a.name}_{d}" for d in range(len(a.shape)))
    fresh(k, "narrow", wide, *axes)
    at = tuple(map(Var, axes))
    copy: Body = (Assign(Ref(a.name, at), Ref(wide, at), (), f"{a.name}_copy"),)
    for axis, extent in zip(reversed(axes), reversed(a.shape), strict=True):
        copy = (Loop(axis, Num(0), extent, copy, "parallel"),)
    return with_arrays(k, (*map_array(k.body, a.name, lambda r: Ref(wide, r.index)), *copy), add=(replace(a, name=wide, space="workspace", stream=False),))
