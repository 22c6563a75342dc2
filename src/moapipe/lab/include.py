"""In: a variant's lifts with includes among them. Out: the same lifts written out, and the included variants' parameters.

A kernel is often made of others: a gated MLP of products, a block of norms, products and attention. An item

    - include: {kernel: matmul, variant: tiled, form: nn, rename: {i: t, A: X, product: U, C: U}, tag: _g, only: [U], without: [fold_into]}

stands for that variant's lifts with its names renamed, all others tagged, lifts without `only` kept to the definitions in `only`
(as far as a lift can be), and the named lifts left out. `outer` are axes around all of it: they stand in front of every order, and
what is fused is fused over them first, and the dimensions of an array that are said by number come behind theirs until it is
contracted; `copies` says which of them a staged copy, or the parts of a fold, have. `form` decides the included script's own `when`; the item's `when` stays
on every lift. Without `kernel`, another variant of the same kernel is meant; nothing need then be renamed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import Field

from moapipe.errors import ConfigError
from moapipe.lab.document import Strict, parse
from moapipe.loops.lift import LIFTS
from moapipe.loops.lift.scope import Names

Lifts = tuple[dict[str, Any], ...]


class Include(Strict):
    """The arguments of an include."""

    kernel: str = ""
    variant: str
    form: str = ""
    rename: dict[str, str] = Field(default={})
    tag: str = ""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    copies: dict[str, tuple[str, ...]] = Field(default={})


def includes(lifts: Sequence[Mapping[str, Any]], where: str) -> tuple[Include, ...]:
    """Every include of a variant, in order."""
    return tuple(_read(item, where) for item in lifts if "include" in item)


def _read(item: Mapping[str, Any], where: str) -> Include:
    return parse(Include, item["include"], f"{where}: include")


def written_out(lifts: Sequence[Mapping[str, Any]], find: Callable[[Include], tuple[Lifts, Mapping[str, Any]]], where: str) -> Lifts:
    """The lifts without includes. `find` gives an include's lifts, themselves written out, and the options of its form."""
    out: list[dict[str, Any]] = []
    for item in lifts:
        if "include" not in item:
            out.append(dict(item))
            continue
        asked = _read(item, where)
        script, options = find(asked)
        own: set[str] = set()
        around: dict[str, int] = {}
        outer = {"when": item["when"]} if "when" in item else {}
        for lift in script:
            if asked.form and not _wanted(lift, options, where):
                continue
            kept = {k: v for k, v in lift.items() if k != "when" or not asked.form}
            if outer and "when" in kept:
                raise ConfigError(f"include of {asked.variant}: a condition inside a condition", where=where, hint="give the include a form")
            if not set(kept) & set(asked.without):
                made = {k: _renamed(k, _behind(k, v or {}, asked, around), asked, own) if k in LIFTS else v for k, v in kept.items()}
                out += ({"fuse": {"axis": axis, "only": made["fuse"]["only"]}, **outer} for axis in _around(kept, asked) if _apart(made, out, axis))
                out.append({**made, **outer})
    return tuple(out)


def _around(lift: Mapping[str, Any], asked: Include) -> tuple[str, ...]:
    """The axes around what a lift fuses: their own around staged copies, all of them around several definitions."""
    names = _several((lift.get("fuse") or {}).get("only", []))
    own = [asked.copies[n] for n in names if n in asked.copies]
    if names and len(own) == len(names):
        return own[0]
    return asked.outer if len(names) > 1 else ()


def _apart(lift: Mapping[str, Any], before: Sequence[Mapping[str, Any]], axis: str) -> bool:
    """Are the loops over an outer axis around what a lift fuses not fused yet? Once some of it is, what lifts make of it is inside too."""
    fused = (_several(b["fuse"].get("only", [])) for b in before if "fuse" in b and b["fuse"]["axis"] == axis)
    return not any(set(_several(lift["fuse"]["only"])) & set(names) for names in fused)


def _several(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _wanted(lift: Mapping[str, Any], options: Mapping[str, Any], where: str) -> bool:
    """Does the included form want this lift?"""
    condition = str(lift.get("when", ""))
    option = condition.removeprefix("not ")
    if option and option not in options:
        raise ConfigError(f"when: {condition}, but the included form has no option {option}", where=where, hint=f"options are {', '.join(options)}")
    return not option or bool(options[option]) != condition.startswith("not ")


def _renamed(lift: str, arguments: Mapping[str, Any], asked: Include, own: set[str]) -> dict[str, Any]:
    """A lift's arguments with its names renamed or tagged; numbers and words of the language stay. `own` are axes that the script
    itself made, and gets those that this lift makes: nobody else has them, so lifts on them need no definitions."""
    hints = get_type_hints(LIFTS[lift].apply)
    out = {n: _names(v, asked) if hints.get(n) in (str, Names) else v for n, v in arguments.items()}
    where = {"stage": "index", "split_fold": "axis"}.get(lift)
    if where and arguments.get("into") in asked.copies:
        out[where] = [*asked.copies[arguments["into"]], *_several(out[where])]
    if "order" in out and hints["order"] == Names:
        out["order"] = [*asked.outer, *out["order"]]
    shared = lift == "reorder" or not set(_several(arguments.get("axis", []))) <= own
    if asked.only and shared and "only" in inspect.signature(LIFTS[lift].apply).parameters and "only" not in out:
        out["only"] = list(asked.only)
    own |= {str(arguments[n]) for n in ("outer", "inner", "rest") if n in arguments}
    return out


def _behind(lift: str, arguments: Mapping[str, Any], asked: Include, around: dict[str, int]) -> Mapping[str, Any]:
    """A lift's arguments with the dimensions of its array behind those of the axes around it: all of them, for a staged copy those that
    `copies` say, for a contracted array none. `around` are the copies and the contracted arrays so far."""
    n = around.get(str(arguments.get("array")), len(asked.outer))
    match lift:
        case "stage":
            around[str(arguments["into"])] = len(asked.copies.get(str(arguments["into"]), ()))
        case "contract":
            around |= {name.removesuffix("?"): 0 for name in _several(arguments["array"])}
        case "block" | "pad_extent" if n:
            return {**arguments, "dim": f"{arguments['dim']} + {n}"}
        case "layout" if n:
            return {**arguments, "order": [*range(n), *(f"{d} + {n}" for d in arguments["order"])]}
    return arguments


def _names(v: Any, asked: Include) -> Any:
    if isinstance(v, list | tuple):
        return list(dict.fromkeys(_names(x, asked) for x in v))
    name = str(v)
    bare = name.removesuffix("?")
    return asked.rename.get(bare, bare + asked.tag if bare else bare) + name[len(bare):]
