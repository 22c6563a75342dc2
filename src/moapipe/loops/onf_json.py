"""In: a kernel, or the plain lists and dictionaries that JSON can hold. Out: the other of the two, without loss.

A derived loop nest can so be stored beside its source and counted again at other sizes without deriving it.
Scalars: an int is itself, a float {"float": text} (JSON knows no infinity), a variable a string, an operation [name, argument, …],
an element {"of": array, "at": [index, …]}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, number, text
from moapipe.errors import LiftError
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Body, If, Kernel, Loop, Stmt

SCHEMA = 1


def to_json(k: Kernel) -> dict[str, Any]:
    arrays = [{"name": a.name, "shape": [_scalar(s) for s in a.shape], "space": a.space,
               **({} if a.outside is None else {"outside": _scalar(Num(float(a.outside)))}),
               **({"stream": True} if a.stream else {}), **({"becomes": a.becomes} if a.becomes else {}), **({"narrow": True} if a.narrow else {})} for a in k.arrays]
    return {"schema": SCHEMA, "name": k.name, "sizes": list(k.sizes), "arrays": arrays, "body": _body(k.body)}


def from_json(data: Mapping[str, Any]) -> Kernel:
    """Raises LiftError when the text is of another schema or holds something unknown."""
    if data.get("schema") != SCHEMA:
        raise LiftError(f"a loop nest of schema {data.get('schema')}, expected {SCHEMA}", hint="derive the kernel again")
    arrays = tuple(Array(a["name"], tuple(map(_read, a["shape"])), a["space"], _outside(a), a.get("stream", False), a.get("becomes", ""), a.get("narrow", False))
                   for a in data["arrays"])
    return Kernel(data["name"], tuple(data["sizes"]), arrays, _read_body(data["body"]))


def _outside(a: Mapping[str, Any]) -> float | None:
    return float(a["outside"]["float"]) if "outside" in a else None


def _scalar(e: Scalar) -> Any:
    match e:
        case Num(float() as v):
            return {"float": number(v)}
        case Num(v):
            return v
        case Var(name):
            return name
        case Op(name, args):
            return [name, *map(_scalar, args)]
        case Ref(array, index):
            return {"of": array, "at": [_scalar(i) for i in index]}
        case Fold():
            raise LiftError(f"a fold is left in a loop nest: {text(e)}", hint="lower() hoists folds into definitions")
        case _:
            assert_never(e)


def _read(x: Any) -> Scalar:
    match x:
        case int():
            return Num(x)
        case str():
            return Var(x)
        case [str() as name, *args]:
            return Op(name, tuple(map(_read, args)))
        case {"float": str() as v}:
            return Num(float(v))
        case {"of": str() as array, "at": list() as index}:
            return Ref(array, tuple(map(_read, index)))
        case _:
            raise LiftError(f"cannot read the scalar {x!r} of a stored loop nest", hint="derive the kernel again")


def _body(body: Body) -> list[dict[str, Any]]:
    return [_statement(s) for s in body]


def _statement(s: Stmt) -> dict[str, Any]:
    match s:
        case Loop():
            options = {k: v for k, v in (("kind", s.kind), ("schedule", s.schedule), ("mark", s.mark)) if v not in ("serial", "static", "")}
            return {"loop": s.var, "lo": _scalar(s.lo), "hi": _scalar(s.hi), **options, "body": _body(s.body)}
        case If():
            return {"if": _scalar(s.condition), "body": _body(s.body)}
        case Alloc():
            return {"alloc": s.array}
        case Assign() | Accumulate():
            fold = {"fold": s.monoid, **({"atomic": True} if s.atomic else {})} if isinstance(s, Accumulate) else {}
            where = {"where": [_scalar(w) for w in s.where]} if s.where else {}
            ahead = {"ahead": [_scalar(r) for r in s.ahead]} if s.ahead else {}
            return {**fold, "target": _scalar(s.target), "value": _scalar(s.value), **where, "name": s.name, **ahead}
        case _:
            assert_never(s)


def _read_body(body: Sequence[Mapping[str, Any]]) -> Body:
    return tuple(_read_statement(s) for s in body)


def _read_statement(s: Mapping[str, Any]) -> Stmt:
    match s:
        case {"loop": var, "lo": lo, "hi": hi, "body": body}:
            return Loop(var, _read(lo), _read(hi), _read_body(body), s.get("kind", "serial"), s.get("schedule", "static"), s.get("mark", ""))
        case {"if": condition, "body": body}:
            return If(_read(condition), _read_body(body))
        case {"alloc": array}:
            return Alloc(array)
        case {"target": target, "value": value, "name": name}:
            to, where = _read(target), tuple(map(_read, s.get("where", ())))
            ahead = tuple(r for r in map(_read, s.get("ahead", ())) if isinstance(r, Ref))
            if isinstance(to, Ref):
                if "fold" in s:
                    return Accumulate(s["fold"], to, _read(value), where, name, ahead, s.get("atomic", False))
                return Assign(to, _read(value), where, name, ahead)
    raise LiftError(f"cannot read the statement {sorted(s)} of a stored loop nest", hint="derive the kernel again")
