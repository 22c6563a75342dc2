"""Loop nests built by hand from the frozen nodes: everything that lifts may hand to an emitter, in small kernels."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tests.loops.nests import array, loop, ref

from moapipe.algebra.function import FUNCS
from moapipe.algebra.index import add, ceil_div, multiply, subtract
from moapipe.algebra.scalar import Num, Scalar, Var, op
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, If, Kernel, Loop, Stmt

SUM, MAX = "sum", "max"


def row_sums(v: int) -> Kernel:
    """Guarded lanes: y[i, j] = exp2(-|x[i, j]|), r[i] = Σ_j x, m[i] = max_j x, over any number of columns."""
    j = add(multiply("jo", 2 * v), "l")
    inside = op("<", j, "m")
    x = ref("x", "i", j)
    tail = (loop("l", 2 * v, Assign(ref("y", "i", j), op("exp2", op("neg", op("abs", x))), (inside,), "y"), kind="lane"),
            loop("l2", 2 * v, Accumulate(SUM, ref("r", "i"), ref("x", "i", add(multiply("jo", 2 * v), "l2")),
                                         (op("<", add(multiply("jo", 2 * v), "l2"), "m"),), "r"), kind="lane"))
    body = (loop("i", "n", Assign(ref("r", "i"), Num(0.0), (), "r"), loop("jo", ceil_div("m", 2 * v), *tail),
                 Assign(ref("m_", "i"), Num(-inf), (), "m_"), loop("k", "m", Accumulate(MAX, ref("m_", "i"), ref("x", "i", "k"), (), "m_")),
                 kind="parallel"),)
    return Kernel("row_sums", ("n", "m"), (array("x", "input", "n", "m"), array("y", "output", "n", "m"), array("r", "output", "n"),
                                           array("m_", "output", "n")), body)


def product(mr: int, v: int, nv: int = 2) -> Kernel:
    """C = A·B: both operands packed by blocks with zeros past the edge, a register tile, guarded write-back."""
    w = mr_w = nv * v
    i, j = add(multiply("io", mr), "ii"), add(multiply("jo", w), "ji")
    pack_b = loop("jo", ceil_div("n", w), loop("k", "p", loop("ji", w, Assign(ref("Bt", "jo", "k", "ji"), op(
        "select", op("<", j, "n"), ref("B", "k", j), 0.0), (), "B"), kind="lane")), kind="parallel")
    tile = ref("T", "r", "l")
    rows = lambda s, kind="unroll": loop("r", mr, loop("l", mr_w, s, kind="lane"), kind=kind)  # noqa: E731
    fold = Loop("k", Num(0), Var("p"), (rows(Accumulate(SUM, tile, op("*", ref("At", "k", "r"), ref("Bt", "jo", "k", "l")), (), "C")),), mark="product")
    body: list[Stmt] = [
        Alloc("At"), loop("k0", "p", loop("ii", mr, Assign(ref("At", "k0", "ii"), op("select", op("<", i, "m"), ref("A", i, "k0"), 0.0), (), "A"))),
        loop("jo", ceil_div("n", w), Alloc("T"), rows(Assign(tile, Num(0.0), (), "C")), fold, rows(Assign(
            ref("C", add(multiply("io", mr), "r"), add(multiply("jo", w), "l")), op("*", tile, ref("alpha")),
            (op("<", add(multiply("io", mr), "r"), "m"), op("<", add(multiply("jo", w), "l"), "n")), "C"))),
    ]
    arrays = (array("A", "input", "m", "p"), array("B", "input", "p", "n"), array("alpha", "input"), array("C", "output", "m", "n"),
              array("Bt", "workspace", ceil_div("n", w), "p", w), array("At", "private", "p", mr), array("T", "register", mr, w))
    return Kernel("product", ("m", "n", "p"), arrays, (pack_b, loop("io", ceil_div("m", mr), *body, kind="parallel")))


def masked_rows(v: int, width: int) -> Kernel:
    """Softmax numerators of a causal tile: in-place mask, horizontal maximum, a wide lane loop of exp2, its row sums.

    `o`[i] is the first visible column of the last query: a signed number of rows and columns between (bottom-right alignment).
    """
    j, gap = Var("j"), subtract("m", "n")
    masked = (op("<=", j, add("i", gap)), op("<", j, "m"))
    s, d = ref("S", "j"), add("i", gap)
    steps: tuple[Stmt, ...] = (
        Alloc("S"), Alloc("M"), Alloc("L"),
        loop("j0", width, Assign(ref("S", "j0"), op("select", op("<", "j0", "m"), ref("x", "i", "j0"), 0.0), (), "S"), kind="lane"),
        If(op("<", d, width), (loop("j", width, Assign(s, op("select", op("and", *masked), s, -inf), (), "S"), kind="lane"),)),
        Assign(ref("M"), Num(-inf), (), "M"), loop("j1", width, Accumulate(MAX, ref("M"), ref("S", "j1"), (), "M"), kind="lane"),
        Assign(ref("M"), op("select", op("==", ref("M"), -inf), 0.0, ref("M")), (), "M"),
        loop("j2", width, Assign(ref("S", "j2"), op("exp2", op("-", op("*", 1.4375, ref("S", "j2")), op("*", 1.4375, ref("M")))), (), "S"), kind="lane"),
        Assign(ref("L"), Num(0.0), (), "L"), loop("j3", width, Accumulate(SUM, ref("L"), ref("S", "j3"), (), "L"), kind="lane"),
        loop("j4", "m", Assign(ref("y", "i", "j4"), ref("S", "j4"), (), "y")),
        Assign(ref("z", "i"), ref("L"), (), "z"),
    )
    arrays = (array("x", "input", "n", "m"), array("y", "output", "n", "m"), array("z", "output", "n"), array("S", "private", width),
              array("M", "private"), array("L", "private"))
    return Kernel("masked_rows", ("n", "m"), arrays, (Loop("i", Num(0), Var("n"), steps, "parallel", "dynamic"),))


def triangle() -> Kernel:
    """Lower bounds, a triangular inner parallel loop (not collapsible), floor division and remainder of negative numbers."""
    below = op("//", op("-", op("*", "i", 3), "n"), 4)
    body = loop("i", "n", loop("j", "i", Accumulate(SUM, ref("y", "i", "j"), op("*", ref("x", "i"), 0.5), (), "y"), kind="parallel"),
                loop("k", "n", Assign(ref("y", "i", "k"), op("+", ref("x", "k"), op("%", op("-", "k", "n"), 3)), (op("<", below, "k"),), "y"), lo="i"),
                kind="parallel")
    zero = loop("i0", "n", loop("j0", "n", Assign(ref("y", "i0", "j0"), Num(0.0), (), "y"), kind="parallel"), kind="parallel")
    return Kernel("triangle", ("n",), (array("x", "input", "n"), array("y", "output", "n", "n")), (zero, body))


def chosen(v: int) -> Kernel:
    """Two statements for V lanes, each with a guard that all lanes share."""
    first = Assign(ref("y", "i", "l"), op("*", ref("x", "l"), 2.0), (op("<=", "i", 1),), "y")
    more = Accumulate(SUM, ref("y", "i", "l"), ref("x", "l"), (op("<", 1, "i"), op("<", "i", 4)), "y")
    zero = loop("l0", v, Assign(ref("y", "i", "l0"), Num(1.0), (), "y"), kind="lane")
    body = loop("i", "n", zero, loop("l", v, first, more, kind="lane"), kind="parallel")
    return Kernel("chosen", ("n",), (array("x", "input", v), array("y", "output", "n", v)), (body,))


def paired() -> Kernel:
    """Rows of a triangle for two heads, dealt from both ends."""
    terms = loop("j", add("i", 1), Accumulate(SUM, ref("y", "h", "i"), op("*", ref("x", "j"), add("h", 1)), (), "y"))
    rows = Loop("i", Num(0), Var("n"), (Assign(ref("y", "h", "i"), Num(0.0), (), "y"), terms), "parallel", "paired")
    body = loop("h", 2, rows, kind="parallel")
    return Kernel("paired", ("n",), (array("x", "input", "n"), array("y", "output", 2, "n")), (body,))


def panels(v: int) -> Kernel:
    """A serial loop around two parallel ones that hand on through the workspace, a condition, then a serial tail."""
    body = (
        loop("p", "n", loop("i", "n", Assign(ref("W", "i"), op("+", ref("x", "i"), "p"), (), "W"), kind="parallel"),
             loop("i2", "n", Accumulate(MAX, ref("y", "i2"), ref("W", subtract(subtract("n", 1), "i2")), (), "y"), kind="parallel")),
        If(op("<", 2, "n"), (loop("i3", "n", Assign(ref("y", "i3"), op("*", ref("y", "i3"), 2.0), (), "y"), kind="parallel"),)),
        loop("i4", "n", Accumulate(SUM, ref("t"), ref("y", "i4"), (), "t")),
    )
    start = (loop("i5", "n", Assign(ref("y", "i5"), Num(-inf), (), "y")), Assign(ref("t"), Num(0.0), (), "t"))
    arrays = (array("x", "input", "n"), array("y", "output", "n"), array("t", "output"), array("W", "workspace", "n"))
    return Kernel("panels", ("n",), arrays, (*start, *body))


def copied(v: int) -> Kernel:
    """A streaming output: y = 2·x, rows of whole vectors, the next row asked for ahead."""
    at = add(multiply("jo", v), "l")
    leaf = Assign(ref("y", "i", at), op("*", ref("x", "i", at), 2.0), (), "y", (ref("x", add("i", 1), at),))
    y = Array("y", (Var("n"), multiply("m", v)), "output", stream=True)
    body = loop("i", "n", loop("jo", "m", loop("l", v, leaf, kind="lane")), kind="parallel")
    return Kernel("copied", ("n", "m"), (array("x", "input", "n", multiply("m", v)), y), (body,))


def packed(edge: int) -> Kernel:
    """Three transposing copies: rows first from a lower bound, columns first and scaled, and one that a guard keeps scalar."""
    i = add(multiply("io", edge), "r")
    first = loop("i", "n", loop("j", "m", Assign(ref("t", "j", "i"), ref("x", "i", "j"), (), "t")), lo=2)
    start = loop("i0", op("min", 2, "n"), loop("j0", "m", Assign(ref("t", "j0", "i0"), Num(0.0), (), "t")))
    blocks = loop("io", op("//", "n", edge), loop("j1", "m", loop("r", edge, Assign(
        ref("p", "io", "j1", "r"), op("*", op("*", ref("f"), 3.0), ref("x", i, "j1")), (), "p"))), kind="parallel")
    guarded = loop("i2", "n", loop("j2", "m", Assign(ref("g", "j2", "i2"), ref("x", "i2", "j2"), (op("<=", "j2", "i2"),), "g")))
    unset = loop("i3", "n", loop("j3", "m", Assign(ref("g", "j3", "i3"), Num(-1.0), (), "g")))
    arrays = (array("x", "input", "n", "m"), array("f", "input"), array("t", "output", "m", "n"),
              array("p", "output", op("//", "n", edge), "m", edge), array("g", "output", "m", "n"))
    return Kernel("packed", ("n", "m"), arrays, (start, first, blocks, unset, guarded))


def shared() -> Kernel:
    """Sums that all iterations of a parallel loop add to: s[j] = Σ_i x[i, j], t[j] = Σ_i 2·x[i, j] where j < i, indivisibly."""
    zero = loop("j0", "m", *(Assign(ref(a, "j0"), Num(0.0), (), a) for a in ("s", "t")), kind="parallel")
    x = ref("x", "i", "j")
    update = [Accumulate(SUM, ref("s", "j"), x, (), "s", (), True), Accumulate(SUM, ref("t", "j"), op("*", 2.0, x), (op("<", "j", "i"),), "t", (), True)]
    body = (zero, loop("i", "n", loop("j", "m", *update), kind="parallel"))
    return Kernel("shared", ("n", "m"), (array("x", "input", "n", "m"), array("s", "output", "m"), array("t", "output", "m")), body)


def functions(names: Iterable[str], kind: str, v: int) -> Kernel:
    """Functions of FUNCS on every element of a, b (and a condition on them), in lane loops or serial ones: y0, y1, … in order."""
    i = add(multiply("io", 2 * v), "l")
    size, body, arrays = multiply("n", 2 * v), [], []
    for k, name in enumerate(names):
        leaf = Assign(ref(f"y{k}", i), applied(name, ref("a", i), ref("b", i), i), (), f"y{k}")
        body.append(loop("io", "n", loop("l", 2 * v, leaf, kind=kind), kind="parallel"))
        arrays.append(array(f"y{k}", "output", size))
    return Kernel("functions", ("n",), (array("a", "input", size), array("b", "input", size), *arrays), tuple(body))


def applied(name: str, a: Scalar, b: Scalar, i: Scalar) -> Scalar:
    """A value that uses the function; conditions choose between values, integer functions take the index."""
    match name:
        case "select":
            return op("select", op("<", a, b), a, op("neg", b))
        case "<" | "<=" | "==":
            return op("select", op(name, a, b), a, op("+", b, 1.0))
        case "and" | "or":
            return op("select", op(name, op("<", a, b), op("<", 0.0, a)), a, 0.0)
        case "not":
            return op("select", op("not", op("<", a, b)), a, 0.0)
        case "//" | "%":
            return op("+", a, op(name, op("-", i, 5), 3))
        case _:
            return op(name, *(a, b)[: FUNCS[name].arity])
