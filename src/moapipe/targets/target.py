"""In: nothing. Out: the record type that a language is, and the records that the walker hands to it.

A language is data: signs, templates and four small functions that put a procedure, a parallel region, the entry point and the
file together. `emit` walks every kernel the same way and asks the record only how things are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from moapipe.algebra.scalar import Scalar
from moapipe.loops.onf import Kernel, Kind, Schedule
from moapipe.targets.isa import ARITHMETIC, Isa, element_bytes

LEVELS = {"or": 1, "and": 2, "not": 3, "<": 4, "<=": 4, "==": 4, "+": 5, "-": 5, "neg": 5, "*": 6, "/": 6}
"""How tightly a sign binds, the same in C and Fortran; anything else is an atom."""
ATOM = 9


class Text(NamedTuple):
    """A written expression: its text, how tightly its outermost sign binds, and whether it is a vector of V lanes."""

    text: str
    level: int = ATOM
    vector: bool = False

    def at(self, level: int) -> str:
        """The text, in parentheses when it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Unit:
    """What one file is written for."""

    isa: Isa
    dtype: str

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return element_bytes(self.dtype)

    @property
    def lanes(self) -> int:
        """V."""
        return self.isa.lanes(self.dtype)


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array that a procedure receives: identifier, written extents (outermost first), whether it is stored to, whether its elements
    are narrower than values."""

    name: str
    extents: tuple[str, ...]
    written: bool
    narrow: bool = False


@dataclass(frozen=True, slots=True)
class Local:
    """A local variable: a `vector` of V lanes, an `array` of elements with extents, a `scalar` element, an `index` (64-bit)
    or a `limit`, an integer as wide as an element."""

    kind: Literal["vector", "array", "scalar", "index", "limit"]
    name: str
    extents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Procedure:
    """The body of a parallel loop, or a run of serial statements: a function of its own, so that every array is known not to
    overlap the others (an outlined parallel region loses that). `indices` are its loop variables, `shared` the arrays of its team."""

    name: str
    arrays: tuple[Parameter, ...]
    integers: tuple[str, ...]
    locals: tuple[Local, ...]
    indices: tuple[str, ...]
    lines: tuple[str, ...]
    shared: tuple[Local, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a procedure under parallel loops (identifier, lo, hi; outermost first; none = serial), whose iterations are `trips`
    in number. `team`: threads that run an iteration together; 0 for one thread an iteration."""

    procedure: Procedure
    loops: tuple[tuple[str, str, str], ...]
    schedule: Schedule
    arguments: tuple[str, ...]
    streams: bool                                # writes past the caches: needs a fence before the barrier
    private: bool                                # uses the thread's slice of the workspace
    trips: Scalar
    team: int


@dataclass(frozen=True, slots=True)
class Launch:
    """How a call runs on a GPU: the function, how many blocks of `block` threads, its arguments (buffers, then integers, all of them
    identifiers), and last the number of threads that share the iterations."""

    function: str
    blocks: Scalar
    block: int
    buffers: tuple[str, ...]
    integers: tuple[str, ...]
    threads: Scalar


@dataclass(frozen=True, slots=True)
class Entry:
    """The function of the ABI: parameters in order, constants computed first (identifier, written expression), then lines.
    `private`: serial statements use private arrays, those of the first thread. `updated`: inputs that are written in place.
    `extents`: elements of every buffer and of `work`, as written expressions. `narrow`: buffers whose elements are narrower than values."""

    symbol: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    constants: tuple[tuple[str, str], ...]
    indices: tuple[str, ...]
    private: bool
    lines: tuple[str, ...]
    updated: frozenset[str]
    extents: Mapping[str, str]
    narrow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Team:
    """How threads that run an iteration together are written: the wait for each other, a thread's number among them, a constant {0}
    of the value {1}, the fold {0} of the values {1} that {2} lanes hold (empty: a lane cannot read its neighbours' registers, and
    `prepare` moves them into shared memory); the fetch of V elements from the address {0} as one, `got`, and its element {0}; what a compiler takes of one team in this form: bytes of arrays of constant extents, threads."""

    barrier: str
    thread: str
    constant: str
    across: str = ""
    fetch: str = ""
    element: str = ""
    shared_bytes: int = 48 * 1024
    threads: int = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """One language.

    lanes      `vectors`: a lane loop becomes V-wide vectors, an unroll loop is expanded, a register array is named variables;
               `loops`: all three stay loops and arrays, and the compiler vectorises them
    indexing   `flat`: one offset, row-major; `nested`: all indices, innermost first
    lazy       `select` evaluates only the arm that it chooses
    strips     functions that a lane loop computes as a block, by a procedure
    scalar, vector, integer   templates {0} {1} {2} of the functions on elements, on vectors and on integers;
               a missing vector function makes its lane loop a scalar loop; `blend` in scalar is a
               select whose condition is on data, both of whose arms are computed
    atomic     lines that add the value {1} to the place {0} indivisibly
    prepare    rewrites the loop nest into what the language can write
    compiler, flags   how a build calls it
    environment   variables that the compiler must see, NAME=value
    device     for a GPU: the file that a build makes and the flag that asks for it; empty = text for the host's processor
    architectures   GPUs to compile for: their name, which the file's name gets, and the flag that asks for it; empty: one file for all
    listing    for a GPU: the dialect of the listing that the compiler writes (lab/binary.py), and its flags
    launch     for a GPU: how a call is launched, which the manifest tells to whoever launches without the text's own entry point
    team       for a GPU: how thread loops are written; a language without refuses them
    compilers  for directives: each compiler that takes the text, and its flags
    dtypes     rows of DTYPES in which the language holds the caller's arrays
    hints      lines before an unroll or lane loop of this extent
    storage    templates of an argument's address: given {0}; {0} at offset {1} of the workspace, or of the thread's slice
    """

    name: str
    source: str
    lanes: Literal["vectors", "loops"]
    indexing: Literal["flat", "nested"]
    lazy: bool
    strips: Mapping[str, str]
    fold_case: bool
    prefixes: Mapping[str, str]
    reserved: frozenset[str]
    signs: Mapping[str, str]
    scalar: Mapping[str, str]
    vector: Mapping[str, str]
    integer: Mapping[str, str]
    narrow: str
    cast: str
    element: str
    exclusive: bool
    address: str
    comment: str
    assign: str
    atomic: tuple[str, ...]
    loop: tuple[str, str]
    stride: str
    branch: tuple[str, str, str]
    hints: Callable[[Kind, int], tuple[str, ...]]
    storage: Mapping[str, str]
    prepare: Callable[[Kernel, Unit], Kernel]
    literal: Callable[[float, Unit], Text]
    procedure: Callable[[Call, Unit], tuple[str, ...]]
    region: Callable[[tuple[Call, ...]], tuple[str, ...]]
    entry: Callable[[Entry], tuple[str, ...]]
    file: Callable[[str, Unit, tuple[str, ...]], str]
    compiler: str
    flags: tuple[str, ...]
    device: tuple[str, str] | None = None
    architectures: tuple[tuple[str, str], ...] = ()
    listing: tuple[str, tuple[str, ...]] | None = None
    launch: Callable[[Call], Launch] | None = None
    team: Team | None = None
    environment: tuple[str, ...] = ()
    compilers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    dtypes: tuple[str, ...] = ARITHMETIC

    @property
    def offloads(self) -> bool:
        """Directives move the loops to a device, which is the host's processor where there is no other."""
        return bool(self.compilers)


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile in the text: its mark, accumulator rows × columns, lanes, the vector multiply-adds of one step of its fold
    loop, and the first and last source line of that loop (counted from 1)."""

    mark: str
    rows: int
    columns: int
    vector: int
    fma: int
    lines: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's text, its register tiles, and its part of the manifest."""

    text: str
    tiles: tuple[Tile, ...]
    manifest: dict[str, object]


def indent(lines: tuple[str, ...], depth: int = 1) -> tuple[str, ...]:
    """The lines, `depth` levels further in."""
    return tuple("    " * depth + line if line else line for line in lines)


