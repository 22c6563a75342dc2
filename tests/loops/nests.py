"""Small loop nests built by hand: what the interpreter and the cost model are tried on before any kernel file exists."""

from __future__ import annotations

from math import inf

from moapipe.algebra.index import add, ceil_div, floor_div, minimum, multiply
from moapipe.algebra.scalar import Like, Ref, Scalar, Var, op, scalar
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, If, Kernel, Loop, Stmt


def ref(array: str, *index: Like) -> Ref:
    return Ref(array, tuple(scalar(i) for i in index))


def array(name: str, space: str, *shape: Like) -> Array:
    return Array(name, tuple(scalar(s) for s in shape), space)  # type: ignore[arg-type]


def loop(var: str, hi: Like, *body: Stmt, lo: Like = 0, kind: str = "serial") -> Loop:
    return Loop(var, scalar(lo), scalar(hi), tuple(body), kind)  # type: ignore[arg-type]


def nest(axes: dict[str, Like], *body: Stmt) -> Stmt:
    """A perfect nest, outermost first."""
    out = tuple(body)
    for var, hi in reversed(axes.items()):
        out = (loop(var, hi, *out),)
    return out[0]


def _definition(name: str, axes: dict[str, Like], value: Scalar, monoid: str = "", fold: dict[str, Like] | None = None) -> list[Stmt]:
    """The naive nests of one definition: assign, or the unit and then the fold."""
    target = ref(name, *axes)
    if not monoid:
        return [nest(axes, Assign(target, value, (), name))]
    unit = scalar({"sum": 0.0, "max": -inf}[monoid])
    return [nest(axes, Assign(target, unit, (), name)), nest({**axes, **(fold or {})}, Accumulate(monoid, target, value, (), name))]


def naive_attention(causal: bool) -> Kernel:
    """One nest a definition: scores, mask, row maxima, weights, row sums, weighted sums, output."""
    row, square, feature = {"h": "H", "i": "n"}, {"h": "H", "i": "n", "j": "m"}, {"h": "H", "i": "n", "c": "d"}
    masked = "T" if causal else "S"
    body = _definition("S", square, op("*", ref("Q", "h", "i", "l"), ref("K", "h", "j", "l")), "sum", {"l": "d"})
    if causal:
        body += _definition("T", square, op("select", op("<=", "j", "i"), ref("S", "h", "i", "j"), -inf))
    body += _definition("M", row, ref(masked, "h", "i", "j"), "max", {"j": "m"})
    body += _definition("P", square, op("exp", op("-", ref(masked, "h", "i", "j"), ref("M", "h", "i"))))
    body += _definition("L", row, ref("P", "h", "i", "j"), "sum", {"j": "m"})
    body += _definition("A", feature, op("*", ref("P", "h", "i", "j"), ref("V", "h", "j", "c")), "sum", {"j": "m"})
    body += _definition("O", feature, op("/", ref("A", "h", "i", "c"), ref("L", "h", "i")))
    work = [array(x, "workspace", "H", "n", "m") for x in (("S", "T", "P") if causal else ("S", "P"))]
    work += [array("M", "workspace", "H", "n"), array("L", "workspace", "H", "n"), array("A", "workspace", "H", "n", "d")]
    arrays = [array("Q", "input", "H", "n", "d"), array("K", "input", "H", "m", "d"), array("V", "input", "H", "m", "d"),
              array("O", "output", "H", "n", "d"), *work]
    return Kernel("naive_attention", ("H", "n", "m", "d"), tuple(arrays), tuple(body))


def row_attention() -> Kernel:
    """The published forward: every row has a private row of scores; the normalised weights are stored."""
    s, q = ref("s", "j"), op("*", ref("Q", "h", "i", "l"), ref("K", "h", "j", "l"))
    row: list[Stmt] = [
        Alloc("s"), Alloc("peak"), Alloc("total"),
        loop("j", "n", Assign(s, scalar(0.0), (), "s"), loop("l", "d", Accumulate("sum", s, q, (), "s"))),
        Assign(ref("peak"), scalar(-inf), (), "peak"), loop("j1", "n", Accumulate("max", ref("peak"), ref("s", "j1"), (), "peak")),
        Assign(ref("total"), scalar(0.0), (), "total"),
        loop("j2", "n", Assign(ref("s", "j2"), op("exp", op("*", ref("scale"), op("-", ref("s", "j2"), ref("peak")))), (), "s"),
             Accumulate("sum", ref("total"), ref("s", "j2"), (), "total")),
        loop("j3", "n", Assign(ref("W", "h", "i", "j3"), op("/", ref("s", "j3"), ref("total")), (), "W")),
        loop("c", "d", Assign(ref("O", "h", "i", "c"), scalar(0.0), (), "O"),
             loop("j4", "n", Accumulate("sum", ref("O", "h", "i", "c"), op("*", ref("W", "h", "i", "j4"), ref("V", "h", "j4", "c")), (), "O"))),
    ]
    arrays = [array("Q", "input", "H", "n", "d"), array("K", "input", "H", "n", "d"), array("V", "input", "H", "n", "d"), array("scale", "input"),
              array("O", "output", "H", "n", "d"), array("W", "workspace", "H", "n", "n"), array("s", "private", "n"),
              array("peak", "private"), array("total", "private")]
    return Kernel("row_attention", ("H", "n", "d"), tuple(arrays), (loop("h", "H", loop("i", "n", *row, kind="parallel"), kind="parallel"),))


def tiled_scores(rows: int, columns: int, causal: bool) -> Kernel:
    """Scores in tiles: keys packed first, tiles above the diagonal skipped, edge tiles masked, tails guarded.

    R[h, i] = Σ_j S[h, i, j] over the visible j, through a private tile T and a private copy of the query block.
    """
    i, j = add(multiply("io", rows), "ii"), add(multiply("jo", columns), "ji")
    inside, pack = op("<", i, "n"), add(multiply("po", columns), "pi")
    tiles: Scalar = ceil_div("n", columns)
    if causal:
        tiles = minimum(tiles, add(floor_div(add(multiply("io", rows), rows - 1), columns), 1))
    packed = ref("Kt", "h", "po", "l", "pi")
    tile, query = ref("T", "ii", "ji"), ref("Qt", "ii", "l")
    edge = op("not", op("<=", add(multiply("jo", columns), columns - 1), multiply("io", rows)))
    visit: list[Stmt] = [
        Alloc("T"), nest({"ii": rows, "ji": columns}, Assign(tile, scalar(0.0), (), "S")),
        nest({"ii": rows, "l": "d", "ji": columns}, Accumulate("sum", tile, op("*", query, ref("Kt", "h", "jo", "l", "ji")), (), "S")),
    ]
    if causal:
        visit.append(If(edge, (nest({"ii": rows, "ji": columns}, Assign(tile, op("select", op("<=", j, i), tile, 0.0), (), "S")),)))
    clipped = minimum(columns, op("-", "n", multiply("jo", columns)))
    visit.append(nest({"ii": rows, "ji": clipped}, Accumulate("sum", ref("R", "h", i), tile, (inside,), "R")))
    body = (
        nest({"h": "H", "po": ceil_div("n", columns), "l": "d", "pi": columns},
             Assign(packed, ref("K", "h", pack, "l"), (op("<", pack, "n"),), "K")),
        nest({"h": "H", "po": ceil_div("n", columns), "l": "d", "pi": columns},
             Assign(packed, scalar(0.0), (op("<=", "n", pack),), "K")),
        nest({"h": "H", "io": ceil_div("n", rows)}, Alloc("Qt"),
             nest({"ii": rows, "l": "d"}, Assign(query, ref("Q", "h", i, "l"), (inside,), "Q")),
             nest({"ii": rows, "l": "d"}, Assign(query, scalar(0.0), (op("not", inside),), "Q")),
             nest({"ii": rows}, Assign(ref("R", "h", i), scalar(0.0), (inside,), "R")),
             loop("jo", tiles, *visit)),
    )
    arrays = (array("Q", "input", "H", "n", "d"), array("K", "input", "H", "n", "d"), array("R", "output", "H", "n"),
              array("Kt", "workspace", "H", ceil_div("n", columns), "d", columns), array("Qt", "private", rows, "d"),
              array("T", "private", rows, columns))
    return Kernel("tiled_scores", ("H", "n", "d"), arrays, body)


def catenation() -> Kernel:
    """C = A # B through one choice over the index, and every third element of it, reversed, twice in blocked layout."""
    i = Var("i")
    joined = op("select", op("<", i, "n"), op("exp", ref("A", i)), ref("B", op("-", i, "n")))
    strided = Assign(ref("D", op("//", "k", 4), op("%", "k", 4)), ref("C", op("-", op("-", op("+", "n", "m"), 1), op("*", "k", 3))), (), "D")
    arrays = (array("A", "input", "n"), array("B", "input", "m"), array("C", "output", op("+", "n", "m")),
              array("D", "output", op("+", op("//", op("+", "n", "m"), 4), 1), 4))
    body = (loop("i", op("+", "n", "m"), Assign(ref("C", i), joined, (), "C")), loop("r", 2, loop("k", op("//", op("+", "n", "m"), 3), strided)))
    return Kernel("catenation", ("n", "m"), arrays, body)


NESTS: dict[str, Kernel] = {
    "naive_attention": naive_attention(False), "naive_attention_causal": naive_attention(True), "row_attention": row_attention(),
    "tiled_scores": tiled_scores(4, 8, False), "tiled_scores_causal": tiled_scores(4, 8, True), "tiled_scores_uneven": tiled_scores(6, 4, True),
    "catenation": catenation(),
}


def sizes_for(k: Kernel, n: int, d: int = 3) -> dict[str, int]:
    """H = 2, d features, n rows, and a few keys more than rows."""
    return {s: {"H": 2, "d": d, "n": n, "m": n + 2}[s] for s in k.sizes}
