"""The published programs' loop structures, by hand: what the bounds for many threads at once are tried on.

From the source of the validation paper's artifact (arXiv 2609.33916): which loops are parallel, which arrays are kept, which
loop is outside. No text of it is here.
"""

from __future__ import annotations

from tests.loops.nests import array, loop, ref

from moapipe.algebra.scalar import Ref, Scalar, op, scalar
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Kernel, Loop, Stmt


def dot(target: Ref, name: str, value: Scalar, over: dict[str, str]) -> list[Stmt]:
    """target = Σ value, in a register of its own."""
    body: Stmt = Accumulate("sum", ref("acc"), value, (), name)
    for var, hi in over.items():
        body = loop(var, hi, body)
    return [Alloc("acc"), Assign(ref("acc"), scalar(0.0), (), name), body, Assign(target, ref("acc"), (), name)]


def rows(*body: Stmt) -> Loop:
    return loop("b", "B", loop("r", "N", *body, kind="parallel"), kind="parallel")


def columns(*body: Stmt) -> Loop:
    return loop("b", "B", loop("c", "N", *body, kind="parallel"), kind="parallel")


def softmax_row() -> list[Stmt]:
    """A private row of scores, made weights in place."""
    s, first = ref("row", "c"), lambda v: ref("row", v)
    return [
        Alloc("row"), Alloc("peak"), Alloc("total"), Assign(ref("peak"), scalar(-1e300), (), "peak"),
        loop("c", "N", *dot(s, "scores", op("*", ref("Q", "b", "r", "j"), ref("K", "b", "c", "j")), {"j": "D"}),
             Accumulate("max", ref("peak"), s, (), "peak")),
        Assign(ref("total"), scalar(0.0), (), "total"),
        loop("c1", "N", Assign(first("c1"), op("exp", op("-", first("c1"), ref("peak"))), (), "weights"),
             Accumulate("sum", ref("total"), first("c1"), (), "total")),
    ]


def normalised(*more: Stmt) -> Stmt:
    return loop("c2", "N", Assign(ref("row", "c2"), op("/", ref("row", "c2"), ref("total")), (), "weights"), *more)


def output() -> Stmt:
    return loop("d", "D", *dot(ref("O", "b", "r", "d"), "out", op("*", ref("row", "c3"), ref("V", "b", "c3", "d")), {"c3": "N"}))


def forward() -> Kernel:
    """Every row by its owner; the weights are stored."""
    body = rows(*softmax_row(), normalised(Assign(ref("A", "b", "r", "c2"), ref("row", "c2"), (), "A")), output())
    return kernel("forward", body)


def value_gradient() -> Loop:
    """By columns: the feature loop is outside the row loop."""
    return columns(loop("d", "D", *dot(ref("GV", "b", "c", "d"), "GV", op("*", ref("A", "b", "r", "c"), ref("dO", "b", "r", "d")), {"r": "N"})))


def key_gradient() -> Loop:
    return columns(loop("j", "D", *dot(ref("GK", "b", "c", "j"), "GK", op("*", ref("GS", "b", "r", "c"), ref("Q", "b", "r", "j")), {"r": "N"})))


def score_gradient(target: bool) -> list[Stmt]:
    """A private row of dO·Vᵀ, its correction, and (if `target`) the stored row of score gradients."""
    gs = op("*", ref("A", "b", "r", "c2"), op("-", ref("ga", "c2"), ref("corr")))
    out: list[Stmt] = [
        Alloc("ga"), Alloc("corr"), Assign(ref("corr"), scalar(0.0), (), "corr"),
        loop("c", "N", *dot(ref("ga", "c"), "ga", op("*", ref("dO", "b", "r", "d"), ref("V", "b", "c", "d")), {"d": "D"})),
        loop("c1", "N", Accumulate("sum", ref("corr"), op("*", ref("A", "b", "r", "c1"), ref("ga", "c1")), (), "corr")),
    ]
    return [*out, loop("c2", "N", Assign(ref("GS", "b", "r", "c2"), gs, (), "GS"))] if target else out


def query_gradient(*more: Stmt) -> Loop:
    gs = ref("GS", "b", "r", "c")
    return rows(loop("j0", "D", Assign(ref("GQ", "b", "r", "j0"), scalar(0.0), (), "GQ")),
                loop("c", "N", loop("j", "D", Accumulate("sum", ref("GQ", "b", "r", "j"), op("*", gs, ref("K", "b", "c", "j")), (), "GQ"), *more)))


def gradients_by_rows(weights: str, *more: Stmt) -> list[Stmt]:
    """A private row of dO·Vᵀ, its correction, then GQ by its owner and GK from every row."""
    gs = op("*", ref(weights, *(("b", "r") if weights == "A" else ()), "c2"), op("-", ref("ga", "c2"), ref("corr")))
    body = (Alloc("gs"), Assign(ref("gs"), gs, (), "gs"),
            loop("j", "D", Accumulate("sum", ref("GQ", "b", "r", "j"), op("*", ref("gs"), ref("K", "b", "c2", "j")), (), "GQ"),
                 Accumulate("sum", ref("GK", "b", "c2", "j"), op("*", ref("gs"), ref("Q", "b", "r", "j")), (), "GK")))
    return [*more, loop("j0", "D", Assign(ref("GQ", "b", "r", "j0"), scalar(0.0), (), "GQ")), loop("c2", "N", *body)]


def row_parallel_backward() -> Kernel:
    """v2: GV by columns, then everything else by rows, GK by atomics."""
    return kernel("row_parallel_backward", value_gradient(), rows(*score_gradient(False), *gradients_by_rows("A")))


def row_parallel_fused() -> Kernel:
    """v2: one pass by rows, GV and GK by atomics, no array of N² elements."""
    gv = Accumulate("sum", ref("GV", "b", "c", "d"), op("*", ref("row", "c"), ref("dO", "b", "r", "d")), (), "GV")
    ga = loop("c", "N", Assign(ref("ga", "c"), scalar(0.0), (), "ga"),
              loop("d", "D", Accumulate("sum", ref("ga", "c"), op("*", ref("dO", "b", "r", "d"), ref("V", "b", "c", "d")), (), "ga"), gv))
    corr = loop("c1", "N", Accumulate("sum", ref("corr"), op("*", ref("row", "c1"), ref("ga", "c1")), (), "corr"))
    row = [normalised(), output(), Alloc("ga"), Alloc("corr"), ga, Assign(ref("corr"), scalar(0.0), (), "corr"), corr]
    return kernel("row_parallel_fused", rows(*softmax_row(), *row, *gradients_by_rows("row")))


def split_passes() -> Kernel:
    """v3: four passes; GK by atomics from the rows."""
    atomic = Accumulate("sum", ref("GK", "b", "c", "j"), op("*", ref("GS", "b", "r", "c"), ref("Q", "b", "r", "j")), (), "GK")
    return kernel("split_passes", forward().body[0], value_gradient(), rows(*score_gradient(True)), query_gradient(atomic))


def split_passes_owner() -> Kernel:
    """v4: five passes, no atomics."""
    return kernel("split_passes_owner", forward().body[0], value_gradient(), rows(*score_gradient(True)), query_gradient(), key_gradient())


def kernel(name: str, *body: Stmt) -> Kernel:
    spaces = {"Q": "input", "K": "input", "V": "input", "dO": "input", "O": "output", "GV": "output", "GQ": "output", "GK": "output"}
    arrays: list[Array] = [array(x, space, "B", "N", "D") for x, space in spaces.items()]
    arrays += [array("A", "workspace", "B", "N", "N"), array("GS", "workspace", "B", "N", "N")]
    arrays += [array("row", "private", "N"), array("ga", "private", "N"), array("acc", "register"), array("peak", "register"),
               array("total", "register"), array("corr", "register"), array("gs", "register")]
    return Kernel(name, ("B", "N", "D"), tuple(arrays), tuple(body))
