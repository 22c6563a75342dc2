"""In: a kernel, sizes, input arrays. Out: its outputs, with every access and every distinct element counted as it runs.

This is the meaning of the ONF. The loop nest is written as Python text and executed on flat row-major storage, one element
at a time, in the dtype of the inputs. Everything that the kernel does not write before it reads is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from operator import neg
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from moapipe.algebra.function import FUNCS, MONOIDS
from moapipe.algebra.index import evaluate, is_index
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var, references, text
from moapipe.errors import LiftError
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Body, If, Kernel, Leaf, Loop, Space
from moapipe.loops.tally import Access, Touch

Order = Literal["ascending", "descending"]
Event = tuple[str, int, int, bool]

INFIX = ("+", "-", "*")
"""Written as Python operators: on floats they are the IEEE operations that FUNCS names, and faster."""


def _larger(a: Any, b: Any) -> Any:
    return a if a >= b else b if a < b else a + b  # the last: NaN is among them


def _smaller(a: Any, b: Any) -> Any:
    return a if a <= b else b if a > b else a + b


QUICK: dict[str, Callable[..., Any]] = {"max": _larger, "min": _smaller, "neg": neg, "abs": abs}
"""What FUNCS names, NaN included, for one number at a time; numpy takes ten times as long for that."""
NESTED = 16
"""Loops in one function: Python nests at most 20."""


@dataclass(frozen=True)
class Run:
    """What one execution did. `calls` counts scalar functions of data by name, the functions of accumulations among them;
    `undefined` counts loads of elements that nobody had written; `trace` (on request) lists (array, life, offset, is_store)."""

    outputs: dict[str, NDArray[Any]]
    accesses: dict[str, Access]
    footprint: dict[str, Touch]
    calls: dict[str, int]
    undefined: dict[str, int]
    trace: tuple[Event, ...] = ()


def run(
    kernel: Kernel, sizes: Mapping[str, int], inputs: Mapping[str, NDArray[Any]], *, threads: int = 1,
    parallel: Order = "ascending", trace: bool = False,
) -> Run:
    """Execute `kernel`. `inputs` maps each input to an array of its declared shape (rank 0 for scalars), all of one float dtype.

    `parallel` runs the iterations of parallel and thread loops backwards: equal outputs are evidence that they are independent.
    Raises LiftError when an input is missing or has another shape, or when an index leaves its array.
    """
    at = {"threads": threads, **{s: int(sizes[s]) for s in kernel.sizes}}
    given = [np.asarray(inputs[a.name]).dtype for a in kernel.arrays if a.space == "input" and a.name in inputs]
    dtype = np.result_type(*given) if given else np.dtype(np.float64)
    events: list[Event] = []
    cells = {a.name: _Cell(a, tuple(evaluate(s, at) for s in a.shape), dtype, kernel.name, events if trace else None) for a in kernel.arrays}
    for a in kernel.arrays:
        if a.space == "input":
            cells[a.name].fill(_input(kernel, a, cells[a.name].shape, inputs))
        elif a.space in ("output", "workspace"):
            cells[a.name].alloc()
    program = _Program(dtype, parallel)
    counters = program.execute(kernel, at, cells)
    for c in cells.values():
        c.close()
    return Run(
        {c.array.becomes or n: np.array(c.data, dtype).reshape(c.shape) for n, c in cells.items() if c.space == "output" or c.array.becomes},
        program.accesses(counters, kernel),
        {n: c.touch() for n, c in cells.items()},
        program.total(counters, "call"),
        {n: c.undefined for n, c in cells.items() if c.undefined},
        tuple(events),
    )


def _input(k: Kernel, a: Array, shape: tuple[int, ...], inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    if a.name not in inputs:
        raise LiftError(f"input {a.name} is missing", where=k.name)
    value = np.asarray(inputs[a.name])
    if value.shape != shape:
        raise LiftError(f"input {a.name} has shape {value.shape}, expected {shape} = ({', '.join(map(text, a.shape))})", where=k.name)
    return value


class _Cell:
    """Storage of one array: flat elements of its present life, marks on those read and written, how many lives and undefined loads.

    `load(i, j, …)` and `store(value, i, j, …)` are made for its rank, since they are what a run spends its time in.
    """

    def __init__(self, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any], kernel: str, events: list[Event] | None) -> None:
        self.array, self.shape, self.dtype, self.kernel = array, shape, dtype, kernel
        self.data: list[Any] = []
        self.loaded, self.stored = bytearray(), bytearray()
        self.counts = [0, 0]
        self.read = self.written = 0
        make = _accessors(len(shape), events is not None, self.space == "input")
        log = events.append if events is not None else None
        self.load, self.store = make(array.name, self.data, self.loaded, self.stored, self.counts, log, self.outside, self.unborn, *shape)

    @property
    def space(self) -> Space:
        return self.array.space

    def touch(self) -> Touch:
        return Touch(self.space, prod(self.shape), self.counts[1], self.read, self.written)

    @property
    def undefined(self) -> int:
        """Loads of elements that had not been written; an input comes written."""
        return self.counts[0]

    def fill(self, value: NDArray[Any]) -> None:
        """Begin a life with these elements; the storage stays the same objects."""
        self.close()
        flat = value.astype(self.dtype).ravel()
        self.data[:] = flat.tolist() if self.dtype == np.float64 else list(flat)
        self.loaded[:] = self.stored[:] = bytes(len(flat))
        self.counts[1] += 1

    def alloc(self) -> None:
        self.fill(np.full(self.shape, np.nan))

    def close(self) -> None:
        """Add the marks of the life that ends to the totals."""
        self.read += sum(self.loaded)
        self.written += sum(self.stored)

    def entry(self, *index: int) -> int:
        """An element as a whole number for an index; no access, for bounds and conditions are not counted."""
        if not all(0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            self.outside(*index)
        return int(self.data[int(np.ravel_multi_index(index, self.shape)) if index else 0])

    def outside(self, *index: int) -> None:
        name = f"{self.array.name}[{', '.join(map(str, index))}]"
        raise LiftError(f"{name} is outside {self.array.name}[{', '.join(map(str, self.shape))}]", where=self.kernel,
                        hint="an index left its array: a guard is missing, or an extent is not padded")

    def unborn(self) -> None:
        raise LiftError(f"{self.array.name} is used before it is allocated", where=self.kernel)


@cache
def _accessors(rank: int, traced: bool, given: bool) -> Callable[..., tuple[Callable[..., Any], Callable[..., None]]]:
    """A maker of load and store for arrays of one rank: bounds, marks, counts (undefined loads, none where all is `given`; lives), trace."""
    index = ", ".join(f"i{k}" for k in range(rank))
    extents = "".join(f", s{k}" for k in range(rank))
    inside = " and ".join(f"0 <= i{k} < s{k}" for k in range(rank)) or "True"
    offset = "0"
    for k in range(rank):
        offset = f"({offset}) * s{k} + i{k}" if k else "i0"
    lines = [f"def make(name, data, loaded, stored, counts, log, outside, unborn{extents}):"]
    for what, head in (("load", f"def load({index}):"), ("store", f"def store({', '.join(filter(None, ('value', index)))}):")):
        mark = "loaded" if what == "load" else "stored"
        lines += [f"  {head}", f"    if not ({inside}): outside({index})", f"    o = {offset}", f"    try: {mark}[o] = 1", "    except IndexError: unborn()"]
        lines += ["    if not stored[o]: counts[0] += 1"] if what == "load" and not given else []
        lines += [f"    log((name, counts[1], o, {what == 'store'}))"] if traced else []
        lines += ["    return data[o]" if what == "load" else "    data[o] = value"]
    space: dict[str, Any] = {}
    exec(compile("\n".join([*lines, "  return load, store"]), "<storage>", "exec"), space)
    made: Callable[..., tuple[Callable[..., Any], Callable[..., None]]] = space["make"]
    return made


Doing = tuple[Literal["call", "load", "store"], str]
"""A function that is called, or an array that is read or written, once whenever the piece of code around it runs."""


class _Program:
    """Writes the loop nest as Python text. n[k] counts how often the k-th straight piece of code ran, pieces[k] is what it does."""

    def __init__(self, dtype: np.dtype[Any], parallel: Order) -> None:
        self.cast: Callable[[Any], Any] = float if dtype == np.float64 else dtype.type
        self.parallel = parallel
        self.lines: list[str] = []
        self.names: dict[str, Any] = {f"f_{i}": QUICK.get(name, f.meaning) for i, (name, f) in enumerate(FUNCS.items())}
        self.function = {name: f"f_{i}" for i, name in enumerate(FUNCS)}
        self.pieces: list[list[Doing]] = []
        self.constants = self.nested = 0

    def execute(self, kernel: Kernel, at: Mapping[str, int], cells: Mapping[str, _Cell]) -> list[int]:
        parameters = [f"v_{s}" for s in at]
        self.lines.append(f"def main(n, {', '.join(parameters)}):")
        self.body(kernel.body, 1)
        self.names |= {f"a_{n}_{part}": getattr(c, part) for n, c in cells.items() for part in ("load", "store", "alloc", "entry")}
        self.names["T"] = self.cast
        space = dict(self.names)
        exec(compile("\n".join(self.lines), f"<onf {kernel.name}>", "exec"), space)
        counters = [0] * len(self.pieces)
        with np.errstate(all="ignore"):
            space["main"](counters, *at.values())
        return counters

    def total(self, counters: Iterable[int], kind: str) -> dict[str, int]:
        """How often every name was called, loaded or stored."""
        out: dict[str, int] = {}
        for times, piece in zip(counters, self.pieces, strict=True):
            for what, name in piece if times else ():
                if what == kind:
                    out[name] = out.get(name, 0) + times
        return out

    def accesses(self, counters: Iterable[int], kernel: Kernel) -> dict[str, Access]:
        loads, stores = self.total(counters, "load"), self.total(counters, "store")
        return {a.name: Access(a.space, loads.get(a.name, 0), stores.get(a.name, 0)) for a in kernel.arrays}

    def write(self, depth: int, line: str) -> None:
        self.lines.append(" " * depth + line)

    def body(self, body: Body, depth: int) -> None:
        self.write(depth, "pass")
        for s in body:
            match s:
                case Loop():
                    self.loop(s, depth)
                case If():
                    self.write(depth, f"if {self.condition(s.condition)}:")
                    self.body(s.body, depth + 1)
                case Alloc():
                    self.write(depth, f"a_{s.array}_alloc()")
                case Assign() | Accumulate():
                    self.leaf(s, depth)
                case _:
                    assert_never(s)

    def loop(self, s: Loop, depth: int) -> None:
        """A nest of many loops goes on in a function of its own."""
        span = f"range({self.integer(s.lo)}, {self.integer(s.hi)})"
        if s.kind in ("parallel", "thread") and self.parallel == "descending":
            span = f"reversed({span})"
        around, apart = self.nested, self.nested == NESTED
        self.nested = 1 if apart else around + 1
        if apart:
            self.write(depth, f"def loop_{s.var}():")
        self.write(depth + apart, f"for v_{s.var} in {span}:")
        self.body(s.body, depth + apart + 1)
        if apart:
            self.write(depth, f"loop_{s.var}()")
        self.nested = around

    def leaf(self, s: Leaf, depth: int) -> None:
        if s.where:
            self.write(depth, f"if {' and '.join(map(self.integer, s.where))}:")
            depth += 1
        piece: list[Doing] = [("store", s.target.array)]
        value = self.value(s.value, piece)
        index = "".join(f", {self.integer(i)}" for i in s.target.index)
        if isinstance(s, Accumulate):
            function = MONOIDS[s.monoid].function
            piece += [("call", function), ("load", s.target.array)]
            value = self.call(function, [f"a_{s.target.array}_load({index[2:]})", value])
        self.write(depth, f"n[{self.piece(piece)}] += 1")
        self.write(depth, f"a_{s.target.array}_store(T({value}){index})")

    def piece(self, doings: list[Doing]) -> int:
        self.pieces.append(doings)
        return len(self.pieces) - 1

    def condition(self, e: Scalar) -> str:
        """An If's condition: over indices, or (never written by a lift of ours) over data."""
        if is_index(e):
            return self.integer(e)
        piece: list[Doing] = []
        value = self.value(e, piece)
        return f"({self.tick(piece)} and {value})"

    def tick(self, piece: list[Doing]) -> str:
        """An expression that counts one run of a piece and is true."""
        self.names["tick"] = _tick
        return f"tick(n, {self.piece(piece)})"

    def call(self, name: str, args: list[str]) -> str:
        if name in INFIX:
            return f"({args[0]} {name} {args[1]})"
        return f"{self.function[name]}({', '.join(args)})"

    def constant(self, v: int | float) -> str:
        self.constants += 1
        self.names[f"c_{self.constants}"] = self.cast(v)
        return f"c_{self.constants}"

    def value(self, e: Scalar, piece: list[Doing]) -> str:
        """A value in the dtype; `piece` collects the functions of data that it calls, and the arrays that it reads, whenever it is
        evaluated."""
        match e:
            case Num(v):
                return self.constant(v)
            case Var(name):
                return f"T(v_{name})"
            case Ref(array, index):
                piece.append(("load", array))
                return f"a_{array}_load({', '.join(map(self.integer, index))})"
            case Op("select", (c, a, b)) if is_index(c):
                return f"({self.arm(a)} if {self.integer(c)} else {self.arm(b)})"
            case Op(name, args):
                if references(e):
                    piece.append(("call", name))
                return self.call(name, [self.value(a, piece) for a in args])
            case Fold():
                raise LiftError(f"a fold is left in a loop nest: {text(e)}", hint="lower() hoists folds into definitions")
            case _:
                assert_never(e)

    def arm(self, e: Scalar) -> str:
        """One side of a choice over indices: evaluated and counted only where it is taken."""
        piece: list[Doing] = []
        value = self.value(e, piece)
        return f"({self.tick(piece)} and {value})" if piece else value

    def integer(self, e: Scalar) -> str:
        match e:
            case Num(v):
                return repr(int(v))
            case Var(name):
                return f"v_{name}"
            case Op("not", (a,)):
                return f"(not {self.integer(a)})"
            case Op("floor", (Ref(array, index),)):
                return f"a_{array}_entry({', '.join(map(self.integer, index))})"
            case Op("min" | "max" as name, args):
                return f"{name}({', '.join(map(self.integer, args))})"
            case Op(name, (a, b)):
                return f"({self.integer(a)} {name} {self.integer(b)})"
            case _:
                raise LiftError(f"{text(e)} is no integer expression", hint="indices, bounds and guards are made of loop variables and sizes")


def _tick(n: list[int], k: int) -> bool:
    n[k] += 1
    return True
