"""Lifts that decide who folds an element that several iterations have terms for: atomic (whoever has one) and own (the thread that
owns the element). In and out: a Kernel."""

from __future__ import annotations

from dataclasses import replace

from moapipe.algebra.scalar import references
from moapipe.loops.legal import carried, permutable
from moapipe.loops.lift.nest import sorted_loops
from moapipe.loops.lift.scope import Names, chain, fresh, listed, nest, only_fold, refusal
from moapipe.loops.onf import (
    Accumulate,
    Assign,
    Body,
    If,
    Kernel,
    Loop,
    Stmt,
    leaves,
    map_statements,
    read,
    rename_variables,
    written,
)


def atomic(k: Kernel, *, definition: str) -> Kernel:
    """Make every update of a sum indivisible, so that iterations of a parallel loop may share its elements. What stores its first
    value becomes the definition `definition`_start, for it must be complete before any of them.

    Legal for sums (the other monoids have no such instruction everywhere) in memory that threads share, outside of lanes. The
    order of the terms, and so the last bits of the result, then differ from run to run.
    """
    leaf, loops = only_fold(k, definition, "atomic")
    array = k.array(leaf.target.array)
    if leaf.monoid != "sum" or array.space not in ("output", "workspace"):
        raise refusal("atomic", definition, f"{definition} is a {leaf.monoid} into {array.space} {array.name}", "only sums that threads share are atomic")
    if lanes := [l.var for l in loops if l.kind == "lane"]:
        raise refusal("atomic", f"{definition} {lanes[0]}", f"lanes {lanes[0]} have no atomic update", "leave the axis serial")
    body = map_statements(k.body, lambda s: (replace(leaf, atomic=True),) if s is leaf else (s,))
    return replace(k, body=_started(body, leaf))


def _started(body: Body, fold: Accumulate) -> Body:
    """The assignments of a fold's target as a definition of their own."""

    def rename(s: Stmt) -> Body:
        mine = isinstance(s, Assign) and s.name == fold.name and s.target.array == fold.target.array
        return (replace(s, name=f"{fold.name}_start"),) if mine and isinstance(s, Assign) else (s,)

    return map_statements(body, rename)


def own(k: Kernel, *, definition: str, order: Names, parallel: Names, suffix: str = "2") -> Kernel:
    """Owner computes: take a fold out of the nests that it shares into a nest of its own after them, its loops in `order`, those
    of `parallel` bound, all with a suffix: each element is folded by one thread. What stores its first value becomes the
    definition `definition`_start, as `atomic` has it: the one lift is written in the other's place.

    Legal when all that it reads outlives those nests unchanged (recompute or keep what does not), nothing else there touches its
    target, the loops' bounds stay in scope, and iterations of the parallel loops share nothing.
    """
    leaf, loops = only_fold(k, definition, "own")
    at = next(i for i, s in enumerate(k.body) if any(q is leaf for q, _, _ in leaves((s,))))
    rest = _without(k.body[at], leaf)
    for r in references(leaf.value):
        if r.array in written(rest) or k.array(r.array).space not in ("input", "output", "workspace"):
            raise refusal("own", f"{definition} {r.array}", f"{r.array} is made in the nest that {definition} leaves", "keep it, or recompute it for this reader first")
    if leaf.target.array in written(rest) | read(rest):
        raise refusal("own", definition, f"others touch {leaf.target.array} in the nest that {definition} leaves")
    free = [replace(l, kind="serial", mark="", body=()) for l in loops]
    if why := permutable((leaf,), free):
        raise refusal("own", definition, why)
    new = nest(sorted_loops("own", definition, tuple(free), order), (replace(leaf, atomic=False),))
    bound = map_statements(new, lambda s: (replace(s, kind="parallel"),) if isinstance(s, Loop) and s.var in parallel else (s,))
    for l in chain(bound[0])[0]:
        if l.kind == "parallel" and (shared := carried(l)):
            raise refusal("own", f"{definition} {l.var}", f"race: iterations over {l.var} share {listed(shared)}", "an owner's loops are the axes of its target")
    fresh(k, "own", *(f"{l.var}{suffix}" for l in loops))
    new = rename_variables(bound, {l.var: f"{l.var}{suffix}" for l in loops})
    return replace(k, body=_started((*k.body[:at], *rest, *new, *k.body[at + 1 :]), leaf))


def _without(s: Stmt, leaf: Accumulate) -> Body:
    """A nest without one leaf, and without the loops that held nothing else."""
    return map_statements((s,), lambda q: () if q is leaf or (isinstance(q, Loop | If) and not q.body) else (q,))
