"""Kernels that lifts refuse: a product, a softmax, a masked softmax, and nests made by hand, each with one fault."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from moapipe.algebra.dnf import Dnf, Normal
from moapipe.algebra.scalar import Fold, Num, Ref, Var, op, scalar
from moapipe.loops.lift import apply_script
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Kernel, Loop, map_statements
from moapipe.loops.share import lower


def ref(array, *index):
    return Ref(array, tuple(scalar(i) for i in index))


def normal(name, axes, value):
    return Normal(name, tuple((v, Var(f"n{v}")) for v in axes), value)


def fold(monoid, var, body):
    return Fold(monoid, var, Num(0), Var(f"n{var}"), body)


SIZES = ("ni", "nj", "nk", "ne")
INPUTS = tuple((a, tuple(Var(f"n{v}") for v in axes)) for a, axes in (("A", "ik"), ("B", "kj"), ("S", "ik"), ("V", "ke"), ("C0", "ij")))
Z = op("select", op("==", ref("m", "i"), -inf), 0, ref("m", "i"))


def kernel(*normals, outputs):
    return lower(Dnf("case", SIZES, INPUTS, outputs, normals))


PRODUCT = normal("x", "ij", fold("sum", "k", op("*", ref("A", "i", "k"), ref("B", "k", "j"))))
DOUBLE = normal("y", "ij", op("*", 2, ref("x", "i", "j")))
MAXIMUM = normal("m", "i", fold("max", "k", ref("S", "i", "k")))
SAFE = normal("z", "i", Z)
WEIGHTS = normal("w", "ik", op("exp2", op("-", ref("S", "i", "k"), ref("z", "i"))))
TOTAL = normal("t", "i", fold("sum", "k", ref("w", "i", "k")))
MIXED = normal("o", "ie", fold("sum", "k", op("*", ref("w", "i", "k"), ref("V", "k", "e"))))
RESULT = normal("r", "ie", op("/", ref("o", "i", "e"), ref("t", "i")))
MASKED = normal("s", "ik", op("select", op("<=", "k", "i"), ref("S", "i", "k"), -inf))


def grown():
    """A buffer that is scaled in place."""
    body = (Loop("i", Num(0), Var("ni"), (Assign(ref("C0", "i"), op("*", 2, ref("C0", "i")), (), "C0"),)),)
    return Kernel("grown", SIZES, (Array("C0", (Var("ni"),), "input", becomes="C"),), body)


def matmul():
    return kernel(PRODUCT, DOUBLE, outputs=("y",))


def softmax(*instead, before=None):
    """The softmax, some of its definitions replaced by namesakes, another one before them."""
    by = {n.name: n for n in (MAXIMUM, SAFE, WEIGHTS, TOTAL, MIXED, RESULT)} | {n.name: n for n in instead}
    return kernel(*([before] if before else []), *by.values(), outputs=("r",))


def causal(*more, outputs=("t",), weights=None):
    """Masked scores s of S, their maximum, weights and total."""
    m = normal("m", "i", fold("max", "k", ref("s", "i", "k")))
    w = weights or normal("w", "ik", op("exp2", op("-", ref("s", "i", "k"), ref("z", "i"))))
    return kernel(MASKED, m, SAFE, w, TOTAL, *more, outputs=outputs)


def after(make, *script):
    """A kernel after some lifts."""
    return lambda: ([make(), *(s.kernel for s in apply_script(make(), [dict([item]) for item in script], {}, {}))])[-1]


def retarget(make, name, only=Assign | Accumulate, **change):
    """A kernel with the leaves of a definition changed."""

    def edit(s):
        return (replace(s, **change),) if isinstance(s, only) and s.name == name else (s,)

    def build():
        k = make()
        return Kernel(k.name, k.sizes, k.arrays, map_statements(k.body, edit))

    return build


def shift(by):
    """y[i] = x[i] + x[i - by]: x is read at two places."""
    return lambda: kernel(
        normal("x", "i", op("*", 2, ref("A", "i", 0))), normal("y", "i", op("+", ref("x", "i"), ref("x", op("-", "i", by)))), outputs=("y",)
    )


def hand(*body, arrays):
    """A kernel of hand-made nests; arrays are `name: (space, shape…)`."""
    return Kernel("case", SIZES, tuple(Array(n, tuple(scalar(e) for e in shape), space) for n, (space, *shape) in arrays.items()), tuple(body))


def loops(axes, *body):
    """Nested loops from 0, outermost first."""
    for var, hi in reversed(axes.items()):
        body = (Loop(var, Num(0), scalar(hi), tuple(body)),)
    return body[0]


def store(target, value, name=""):
    return Assign(target, scalar(value), (), name or target.array)


def add(target, value, name=""):
    return Accumulate("sum", target, scalar(value), (), name or target.array)


X = {"x": ("workspace", "ni"), "y": ("output", "ni"), "a": ("input", "ni")}
XX = {"x": ("workspace", "ni", "ni"), "u": ("workspace", "ni", "ni"), "y": ("output", "ni", "ni"), "v": ("output", "ni", "ni")}


def innermost(extent, *, strided=False):
    """A loop i of constant extent around another loop; or x[c, i] with c innermost."""
    x = ref("x", "c", "i") if strided else ref("x", "i", "c")
    return lambda: hand(loops({"i": extent, "c": extent}, store(x, 1.0)), arrays={"x": ("output", 4, 4)})


def retarget_first(make, name, **change):
    """The first leaf of a definition changed."""

    def build():
        k, done = make(), []

        def edit(s):
            if isinstance(s, Assign) and s.name == name and not done:
                done.append(s)
                return (replace(s, **change),)
            return (s,)

        return Kernel(k.name, k.sizes, k.arrays, map_statements(k.body, edit))

    return build


def overwritten():
    """What x folds is stored again before y is made."""
    row = {"i": "ni"}
    return hand(
        loops(row, store(ref("u", "i"), 1.0)), loops(row, store(ref("x", "i"), 0.0)), loops({**row, "k": "nk"}, add(ref("x", "i"), ref("u", "i"))),
        loops(row, store(ref("u", "i"), 2.0, "later")), loops(row, store(ref("y", "i"), ref("x", "i"))), arrays={**X, "u": ("workspace", "ni")},
    )  # fmt: skip


def growing():
    """A sum over k < i², which no size bounds as it stands."""
    x = ref("x", "i")
    return hand(loops({"i": "ni"}, store(x, 0.0)), loops({"i": "ni", "k": op("*", "i", "i")}, add(x, 1.0)), loops({"i": "ni"}, store(ref("y", "i"), x)), arrays=X)


def updated(value, target=None):
    """A sum t over (ko, kl) whose accumulator meets another update in the loop ko."""
    t = ref("t", "i")
    other = store(target or t, value, "other")
    return lambda: hand(
        loops({"i": "ni"}, store(t, 0.0), loops({"ko": "nk"}, loops({"kl": 4}, add(t, ref("S", "i", "kl"))), other), store(ref("y", "i"), t)),
        arrays={"S": ("input", "ni", 4), "t": ("workspace", "ni"), "z": ("workspace", "ni"), "y": ("output", "ni")},
    )


def reversed_use():
    return hand(loops({"i": "ni"}, store(ref("y", "i"), ref("x", "i")), store(ref("x", "i"), 1.0)), arrays=X)


def moved(read):
    """y[i] reads x elsewhere than in the iteration that stores x[i]."""
    return lambda: hand(loops({"i": "ni"}, store(ref("x", "i"), 1.0), store(ref("y", "i"), read)), arrays=X)


def guarded(where):
    return lambda: hand(loops({"i": "ni"}, Assign(ref("y", "i"), Num(1.0), (where,), "y")), arrays=X)


def triangle(**arrays):
    """x[i, j] for j <= i, then y from it, in one loop i."""
    inner = Loop("j", Num(0), op("+", "i", 1), (store(ref("x", "i", "j"), 1.0),))
    return hand(loops({"i": "ni"}, inner, store(ref("y", "i"), ref("x", "i", 0))), arrays={"x": ("workspace", "ni", "ni"), "y": ("output", "ni"), **arrays})


def elementwise(*middle):
    """x, then u from it, then y from u."""
    both = {"i": "ni", "j": "ni"}
    return hand(loops(both, store(ref("x", "i", "j"), 1.0)), *middle, loops(both, store(ref("y", "i", "j"), ref("u", "i", "j"))), arrays=XX)


def over(*body):
    return loops({"i": "ni", "j": "ni"}, *body)


def peeking():
    """Another reader looks at x elsewhere before u takes its place."""
    return elementwise(over(store(ref("v", "i", "j"), ref("x", "j", "i"))), over(store(ref("u", "i", "j"), ref("x", "i", "j"))))


def transposed():
    return elementwise(over(store(ref("u", "i", "j"), ref("x", "j", "i"))))


def kept_alive():
    return elementwise(over(store(ref("u", "i", "j"), ref("x", "i", "j"))), over(store(ref("v", "i", "j"), ref("x", "i", "j"))))


def in_registers():
    """A register tile that another definition reads."""
    tile = ref("x_tile", "jl")
    lanes = Loop("jl", Num(0), Num(4), (store(tile, 0.0, "x"),), "lane")
    return hand(Alloc("x_tile"), lanes, loops({"jl": 4}, store(ref("y", "jl"), tile)), arrays={"x_tile": ("register", 4), "y": ("output", 4)})


def ragged():
    """A fold over k < i + 1, whose operand would need a ragged copy."""
    k = Loop("k", Num(0), op("+", "i", 1), (add(ref("x", "i"), ref("A", "i", "k")),))
    return hand(loops({"i": "ni"}, store(ref("x", "i"), 0.0)), loops({"i": "ni"}, k), arrays={"A": ("input", "ni", "ni"), "x": ("output", "ni")})


def tail(bound, guard=True):
    """w[kl] for kl < bound, then its sum over kl < 4, guarded by kl < nk."""
    where = (op("<", "kl", "nk"),)
    w = Loop("kl", Num(0), scalar(bound), (Assign(ref("w", "kl"), Num(1.0) if guard else Num(0.0), where, "w"),))
    t = loops({"kl": 4}, Accumulate("sum", ref("t"), ref("w", "kl"), where, "t"))
    return lambda: hand(Alloc("w"), Alloc("t"), w, store(ref("t"), 0.0), t, store(ref("y"), ref("t")), arrays={"w": ("private", 4), "t": ("private",), "y": ("output",)})


def on_data():
    mask = store(ref("x", "i"), op("select", op("==", ref("a", "i"), 0), ref("x", "i"), 0.0), "y")
    return hand(loops({"i": "ni"}, store(ref("x", "i"), 1.0)), loops({"i": "ni"}, mask), arrays={"x": ("workspace", "ni"), "a": ("input", "ni")})


def shared_loop():
    """Two masked folds in one loop k that end at different places: one reads the row i, the other the row i + 1."""
    base = causal()
    later = add(ref("t", "i"), ref("w", op("+", "i", 1), "k"))

    def edit(s):
        return (s, later) if isinstance(s, Accumulate) and s.name == "t" else (s,)

    return Kernel(base.name, base.sizes, base.arrays, map_statements(base.body, edit))


def tile_of(value, target=None, bound="nk", twice=False):
    """x[i, j] += value over (i, j < 4, k)."""
    target = target or ref("x", "i", "j")
    nest = loops({"i": "ni", "j": 4}, Loop("k", Num(0), scalar(bound), (add(target, value),)))
    arrays = {"A": ("input", "nj", "nk"), "x": ("workspace", "ni", 4), "y": ("output",)}
    return lambda: hand(nest, *([nest] if twice else []), store(ref("y"), ref("x", 0, 0)), arrays=arrays)


SPLIT = ("split", {"axis": "k", "by": 4, "outer": "ko", "inner": "kl"})
SPLIT_I = ("split", {"axis": "i", "by": 2, "outer": "io", "inner": "ir"})
SPLIT_J = ("split", {"axis": "j", "by": 4, "outer": "jo", "inner": "jl"})
in_strips = after(matmul, SPLIT_I, SPLIT_J, ("reorder", {"order": ["io", "ir", "jo", "k", "jl"]}), ("split_range", {"axis": "jo", "rest": "jz"}), ("bind", {"axis": "jl", "kind": "lane", "within": "jo"}))
FUSE_I = ("fuse", {"axis": "i"})
ROWS = (("reorder", {"order": ["i", "k", "e"]}), FUSE_I)
ONLINE = {"axis": "k", "maximum": "m", "weights": "w", "folds": ["t", "o"], "shift": "z"}
STAGE = {"array": "B", "into": "Bt", "index": ["k", "j"]}
TILE = {"definition": "x", "rows": ["i"], "lane": "j", "fold": "k"}
