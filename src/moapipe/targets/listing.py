"""In: an assembler listing and the register tiles of its source. Out: what each tile's innermost loop really does.

This is the assembler gate: a tile that the compiler did not keep in registers is several times slower and looks the same from
outside. Tiles are found by line numbers (`.loc` directives, which -g1 adds without changing an instruction), in the same way
for every language; a good loop has no vector store and exactly the multiply-adds of one step of its fold, at full width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moapipe.errors import TargetError
from moapipe.targets.isa import Isa, isa_named
from moapipe.targets.target import Tile


@dataclass(frozen=True, slots=True)
class Dialect:
    """Patterns of one assembler: `fma` an accumulating instruction on full vectors, `narrow` one on anything less, `store` a
    vector store, `load` a vector load or broadcast, `jump` a branch with its label in group 1."""

    fma: re.Pattern[str]
    narrow: re.Pattern[str]
    store: re.Pattern[str]
    load: re.Pattern[str]
    jump: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction or label, with the source line that it was made for (0 = not from the kernel's own text)."""

    text: str
    source: int


@dataclass(frozen=True, slots=True)
class TileReport:
    """The innermost loops of one tile: instruction counts of the worst one, and what is wrong ("" = nothing)."""

    mark: str
    lines: tuple[int, int]
    instructions: int
    fma: int
    expected: int
    loads: int
    stores: tuple[str, ...]
    problem: str = ""
    hint: str = ""

    @property
    def good(self) -> bool:
        return not self.problem


def dialect(isa: Isa, dtype: str) -> Dialect:
    """x86 in AT&T syntax, or AArch64."""
    kind = "s" if dtype == "f32" else "d"
    if isa.name == "neon":
        lane = "4s" if dtype == "f32" else "2d"
        return Dialect(re.compile(rf"fml[as]\s+v\d+\.{lane}"), re.compile(r"fn?m(?:add|sub|la|ls)\s"),
                       re.compile(r"(?:str|stp|stur|st1)\s+\{?[qv]\d"),
                       re.compile(r"(?:ldr|ldp|ldur|ld1r?)\s+\{?[qvsd]\d"), re.compile(r"(?:b\.?\w*|cbn?z|tbn?z)\s+(?:\S+,\s*)*(\.L\w+)$"))
    register = {64: "zmm", 32: "ymm", 16: "xmm"}[isa.vector_bytes]
    step = r"vfn?m(?:add|sub)\d+" if isa.fma else r"v?(?:add|sub)"
    return Dialect(re.compile(rf"{step}p{kind}\s.*%{register}\d+$"), re.compile(rf"{step}[ps]{kind}\s"),
                   re.compile(r"v?mov\w+\s+%[xyz]mm\d+(?:\{[^}]*\})?,\s*[^%,]*\("),
                   re.compile(r"v?(?:mov|broadcast)\w+\s+[^%]*\(.*\),\s*%[xyz]mm"),
                   re.compile(r"j\w+\s+(\.L\w+)$"))


def parse(listing: str) -> list[Line]:
    """Instructions and labels in order. Lines of included files (headers) count as no source line."""
    own: set[str] = set()
    out: list[Line] = []
    here = 0
    for raw in listing.split("\n"):
        text = raw.split("#")[0].strip() if "#" in raw and not raw.lstrip().startswith(".") else raw.strip()
        if m := re.match(r'\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"', text):
            if not m.group(2).endswith(".h"):
                own.add(m.group(1))
        elif m := re.match(r"\.loc\s+(\d+)\s+(\d+)", text):
            here = int(m.group(2)) if m.group(1) in own else 0
        elif re.match(r"\.?\w+:$", text) or (text and not text.startswith((".", "//"))):
            out.append(Line(re.sub(r"\s+", " ", text), here))
    return out


def innermost(lines: Sequence[Line], tile: Tile, d: Dialect) -> list[tuple[Line, ...]]:
    """The loops (label to backward branch) that hold the tile's multiply-adds and no smaller loop that does."""
    labels = {l.text[:-1]: i for i, l in enumerate(lines) if l.text.endswith(":")}
    hits = [i for i, l in enumerate(lines) if tile.lines[0] <= l.source <= tile.lines[1] and d.narrow.match(l.text)]
    spans = []
    for i, l in enumerate(lines):
        m = d.jump.match(l.text)
        if m and (start := labels.get(m.group(1), i)) < i and any(start < h < i for h in hits):
            spans.append((start, i))
    inner = [s for s in spans if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [tuple(x for x in lines[a: b + 1] if not x.text.endswith(":")) for a, b in inner]


def check(listing: str, tiles: Sequence[Tile], isa: str, dtype: str) -> list[TileReport]:
    """One report a tile; `listing` must have been made with the flags of the build, `-S` and `-g1`."""
    lines, d = parse(listing), dialect(isa_named(isa), dtype)
    return [_report(t, innermost(lines, t, d), d) for t in tiles]


def _report(tile: Tile, loops: list[tuple[Line, ...]], d: Dialect) -> TileReport:
    if not loops:
        return TileReport(tile.mark, tile.lines, 0, 0, tile.fma, 0, (), "no loop with its multiply-adds is in the listing",
                          "was the listing made from this source, with -g1 and with optimisation?")
    reports = [_loop_report(tile, loop, d) for loop in loops]
    return next((r for r in reports if not r.good), reports[0])


def _loop_report(tile: Tile, loop: tuple[Line, ...], d: Dialect) -> TileReport:
    texts = [l.text for l in loop]
    fma, narrow = sum(bool(d.fma.match(t)) for t in texts), [t for t in texts if d.narrow.match(t) and not d.fma.match(t)]
    stores = tuple(t for t in texts if d.store.match(t))
    problem = hint = ""
    if stores:
        problem = f"{len(stores)} vector stores in the loop, the first is `{stores[0]}`: the accumulators do not stay in registers"
        hint = "take fewer rows (MR) or vectors (NV); in Fortran, does the compiler know the !GCC$ directives before the loops?"
    elif narrow:
        problem = f"{len(narrow)} multiply-adds are not on full vectors, the first is `{narrow[0]}`"
        hint = "does the tile's width divide into whole vectors? Plain loops need -mprefer-vector-width=512 on AVX-512"
    elif fma == 0 or fma % tile.fma:
        problem = f"{fma} vector multiply-adds in the loop, expected {tile.fma} = {tile.rows}·{tile.columns}/{tile.vector}"
        hint = "the compiler kept an inner loop or split the tile: are its rows and columns constants?"
    return TileReport(tile.mark, tile.lines, len(loop), fma, tile.fma, sum(bool(d.load.match(t)) for t in texts), stores, problem, hint)


def gate(listing: str, tiles: Sequence[Tile], isa: str, dtype: str) -> list[TileReport]:
    """`check`, and TargetError for the first tile that fails: what was found, what was expected, what to change."""
    reports = check(listing, tiles, isa, dtype)
    for r in reports:
        if not r.good:
            raise TargetError(r.problem, where=f"tile {r.mark} (source lines {r.lines[0]}-{r.lines[1]})", hint=r.hint)
    return reports


def tiles_of(manifest: Mapping[str, object]) -> tuple[Tile, ...]:
    """The tiles that a manifest lists."""
    rows = manifest["tiles"]
    assert isinstance(rows, list)
    return tuple(_tile(row) for row in rows)


def _tile(row: Mapping[str, object]) -> Tile:
    def number(key: str) -> int:
        v = row[key]
        if not isinstance(v, int):
            raise TargetError(f"tile entry {key} is {v!r}, expected a whole number", where="manifest")
        return v

    lines = row["lines"]
    if not (isinstance(lines, list) and len(lines) == 2):
        raise TargetError(f"tile entry lines is {lines!r}, expected [first, last]", where="manifest")
    return Tile(str(row["mark"]), number("rows"), number("columns"), number("vector"), number("fma"), (int(lines[0]), int(lines[1])))


