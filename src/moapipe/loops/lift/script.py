"""In: a naive kernel, a variant's list of lifts, tile parameters, the form's options. Out: the kernel after every lift.

LIFTS is the whole language of variants. A lift's arguments are its function's keyword parameters, and their annotations
say how a script's text is read: numbers may be expressions in the tile parameters, names may end in `?` when a form may
lack them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from moapipe.algebra.index import constant, parse, simplify
from moapipe.algebra.scalar import Num, Scalar, substitute
from moapipe.errors import AlgebraError, LiftError
from moapipe.loops.lift.edge import decide, hoist_mask, mask, overwrite, pad, skip
from moapipe.loops.lift.extent import clip, once, split_range, stretch, sweep
from moapipe.loops.lift.fold import accumulate_in, fold_into, peel_first, privatise, recompute, repeat, split_fold, spread
from moapipe.loops.lift.narrow import narrow
from moapipe.loops.lift.nest import bind, fuse, reorder, reverse, split, vector
from moapipe.loops.lift.online import online, rebase
from moapipe.loops.lift.owner import atomic, own
from moapipe.loops.lift.pack import fill, stage
from moapipe.loops.lift.ravel import coalesce, ravel
from moapipe.loops.lift.scope import Names, listed
from moapipe.loops.lift.storage import alias, block, contract, layout, pad_extent, place, prefetch, prefetch_stored, stream
from moapipe.loops.lift.tile import register_tile, sink_scale
from moapipe.loops.onf import Kernel, apart, binds, definitions
from moapipe.loops.soundness import verify


@dataclass(frozen=True, slots=True)
class Lift:
    """One row of LIFTS: `apply(kernel, **arguments)` gives the new kernel or raises LiftError."""

    name: str
    text: str
    apply: Callable[..., Kernel]


@dataclass(frozen=True, slots=True)
class LiftStep:
    """A lift as it was applied: its arguments with all numbers worked out, and the kernel that it gave. With `refusal`, why it is
    not legal here: it was tried to show that, and the kernel is the one before."""

    lift: str
    arguments: tuple[tuple[str, Any], ...]
    kernel: Kernel
    refusal: str = ""

    @property
    def title(self) -> str:
        return f"{self.lift}({', '.join(f'{n}={_said(v)}' for n, v in self.arguments)})"


def _said(v: Any) -> str:
    return ",".join(map(str, v)) if isinstance(v, tuple) else str(v)


def _row(f: Callable[..., Kernel]) -> Lift:
    return Lift(f.__name__, inspect.cleandoc(f.__doc__ or ""), f)


_ROWS = (
    split, coalesce, reorder, fuse, split_range, clip, stretch, once, sweep, reverse, bind, vector,
    online, rebase, privatise, accumulate_in, split_fold, spread, fold_into, peel_first, recompute, repeat, atomic, own,
    contract, alias, block, ravel, layout, pad_extent, place, stream, prefetch, prefetch_stored, stage, fill, narrow,
    mask, pad, hoist_mask, overwrite, decide, skip,
    register_tile, sink_scale,
)  # fmt: skip
LIFTS: dict[str, Lift] = {f.__name__: _row(f) for f in _ROWS}


def apply_script(
    kernel: Kernel, script: Sequence[Mapping[str, Any]], params: Mapping[str, int], form: Mapping[str, Any]
) -> tuple[LiftStep, ...]:
    """Apply a variant's lifts in order; every result is verified.

    An item is {lift: {argument: value}}, with `when: option` or `when: not option` for lifts that only some forms need, and with
    `refused: words` for one that is not legal here and says so in these words: what the next lift is the answer to.
    Raises LiftError with the item's number and name, for an unknown lift or argument and for every other refusal.
    """
    steps: list[LiftStep] = []
    for n, item in enumerate(script, 1):
        wanted, name, arguments = _item(item, n, form)
        if not wanted:
            continue
        try:
            given = _arguments(LIFTS[name], arguments, params, kernel)
            refused = _refusal(kernel, name, given, str(item["refused"])) if "refused" in item else ""
            kernel = kernel if refused else LIFTS[name].apply(kernel, **given)
            verify(kernel)
        except (LiftError, AlgebraError) as e:
            raise LiftError(e.message, where=f"lift {n}, {e.where or name}", hint=e.hint) from e
        steps.append(LiftStep(name, tuple(given.items()), kernel, refused))
    if (swept := sweep(kernel)) != kernel:
        steps.append(LiftStep("sweep", (), swept))
    return (*steps[:-1], *(replace(s, kernel=replace(s.kernel, body=apart(s.kernel.body, set()))) for s in steps[-1:]))


def _refusal(kernel: Kernel, name: str, given: Mapping[str, Any], words: str) -> str:
    """The lift's own refusal as text, which must hold the words; LiftError when the lift is legal."""
    try:
        LIFTS[name].apply(kernel, **given)
    except LiftError as e:
        if words not in e.message:
            raise
        return str(e)
    raise LiftError(f"the script says that it is refused ({words}), but it is legal", where=name, hint="take `refused` away")


def _item(item: Mapping[str, Any], n: int, form: Mapping[str, Any]) -> tuple[bool, str, Mapping[str, Any]]:
    names = [key for key in item if key not in ("when", "refused")]
    if len(names) != 1 or names[0] not in LIFTS:
        raise LiftError(f"unknown lift {listed(names)}", where=f"lift {n}", hint=f"lifts are {listed(LIFTS)}")
    arguments = item[names[0]] or {}
    if not isinstance(arguments, Mapping):
        raise LiftError(f"arguments of {names[0]} are {arguments!r}, not a mapping", where=f"lift {n}", hint="write {argument: value}")
    condition = str(item.get("when", ""))
    negated, option = condition.startswith("not "), condition.removeprefix("not ")
    if option and option not in form:
        raise LiftError(f"when: {condition}, but the form has no option {option}", where=f"lift {n}, {names[0]}", hint=f"options are {listed(form)}")
    return not option or bool(form[option]) != negated, names[0], arguments


def _arguments(lift: Lift, given: Mapping[str, Any], params: Mapping[str, int], k: Kernel) -> dict[str, Any]:
    """Check the names and read every value by its annotation."""
    parameters = _parameters(lift)
    if unknown := {str(n) for n in given} - set(parameters):
        raise LiftError(f"unknown argument {listed(unknown)}", where=lift.name, hint=f"arguments are {listed(parameters)}")
    if missing := [n for n, (_, needed) in parameters.items() if needed and n not in given]:
        raise LiftError(f"missing argument {listed(missing)}", where=lift.name, hint=f"arguments are {listed(parameters)}")
    return {n: _value(hint, given[n], f"{lift.name} {n}", params, k) for n, (hint, _) in parameters.items() if n in given}


@cache
def _parameters(lift: Lift) -> Mapping[str, tuple[Any, bool]]:
    """Each parameter's annotation, and whether it must be given."""
    hints = get_type_hints(lift.apply)
    return {n: (hints[n], p.default is p.empty) for n, p in inspect.signature(lift.apply).parameters.items() if n != "k"}


def _value(hint: Any, v: Any, where: str, params: Mapping[str, int], k: Kernel) -> Any:
    if hint is int:
        return _integer(v, where, params)
    if hint == Names and isinstance(v, str | list | tuple):
        return _names(v, k)
    if hint == tuple[int, ...] and isinstance(v, list | tuple):
        return tuple(_integer(x, where, params) for x in v)
    if hint in (Scalar, Scalar | None):
        return simplify(substitute(parse(str(v)), {n: Num(x) for n, x in params.items()}))
    options = get_args(hint) if get_origin(hint) is not None else (hint,)
    if float in options and isinstance(v, int | float) and not isinstance(v, bool):
        return float(v)
    if all(isinstance(o, str) for o in options) and v not in options:
        raise LiftError(f"{v!r} is none of {listed(map(str, options))}", where=where)
    if isinstance(v, bool if bool in options else str):
        return v
    raise LiftError(f"cannot take {v!r}", where=where, hint=f"expected {hint}")


def _integer(v: Any, where: str, params: Mapping[str, int]) -> int:
    value = constant(simplify(substitute(parse(str(v)), {n: Num(x) for n, x in params.items()})))
    if value is None:
        raise LiftError(f"{v!r} is no whole number", where=where, hint=f"tile parameters are {listed(params)}")
    return value


def _names(v: Any, k: Kernel) -> Names:
    """A name or a list; a name that ends in `?` counts only where the kernel has such a definition, loop or array."""
    names = [str(n) for n in ([v] if isinstance(v, str) else v)]
    if not any(n.endswith("?") for n in names):
        return tuple(names)
    present = definitions(k.body) | binds(k.body) | {a.name for a in k.arrays}
    return tuple(n.removesuffix("?") for n in names if not n.endswith("?") or n[:-1] in present)
