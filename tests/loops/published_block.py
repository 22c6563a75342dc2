"""The published block's eleven launches, by hand: which arrays each reads and writes in which loops (full-block program of the
validation paper's artifact, arXiv 2609.33916; kernels are named there by source line). No text of it is here.

Sizes: B sequences of N tokens, D features, F of the MLP. Scalar formulas are replaced by products of what they read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from tests.loops.nests import array, loop, ref

from moapipe.algebra.scalar import Ref, Scalar, op, scalar
from moapipe.loops.onf import Accumulate, Alloc, Assign, Kernel, Loop, Stmt

LINES = (132, 141, 154, 178, 187, 206, 239, 254, 258, 288, 307)
TOKENS = ("X", "Z1", "Q", "K", "V", "R1", "Z2", "Y", "GY", "GX", "GR1", "GZ1", "GZ2", "GQ", "GK", "GV")


def of(*refs: Ref) -> Scalar:
    """A value that reads these."""
    return reduce(lambda a, b: op("*", a, b), refs)


def at(name: str, feature: str, token: str = "t") -> Ref:
    return ref(name, "b", token, feature)


def add(target: Ref, *refs: Ref) -> Accumulate:
    return Accumulate("sum", target, of(*refs), (), target.array)


def share(target: Ref, *refs: Ref) -> Accumulate:
    """An update that tokens share."""
    return replace(add(target, *refs), atomic=True)


def put(target: Ref, *refs: Ref) -> Assign:
    return Assign(target, of(*refs) if refs else scalar(0.0), (), target.array)


def tokens(*body: Stmt) -> Loop:
    return loop("b", "B", loop("t", "N", *body, kind="parallel"), kind="parallel")


def sequences(*body: Stmt) -> Loop:
    return loop("b", "B", *body, kind="parallel")


def norm(x: str, gamma: str, r: str, z: str) -> Loop:
    root = ref(r, "b", "t")
    return tokens(Alloc("acc"), put(ref("acc")), loop("d", "D", add(ref("acc"), at(x, "d"), at(x, "d"))), put(root, ref("acc")),
                  loop("e", "D", put(at(z, "e"), ref(gamma, "e"), at(x, "e"), root)))


def norm_gradient(x: str, gamma: str, r: str, gz: str, gx: str, g_gamma: str) -> Loop:
    root = ref(r, "b", "t")
    return tokens(Alloc("acc"), put(ref("acc")), loop("d", "D", add(ref("acc"), at(gz, "d"), ref(gamma, "d"), at(x, "d"), root)),
                  loop("e", "D", add(at(gx, "e"), at(gz, "e"), ref(gamma, "e"), at(x, "e"), ref("acc"), root), share(ref(g_gamma, "e"), at(gz, "e"), at(x, "e"))))


def product(target: Ref, over: str, size: str, *refs: Ref) -> list[Stmt]:
    return [Alloc("acc"), put(ref("acc")), loop(over, size, add(ref("acc"), *refs)), put(target, ref("acc"))]


def attention() -> Loop:
    row, exps = ref("row", "c"), loop("c1", "N", put(ref("row", "c1"), ref("row", "c1")), add(ref("acc"), ref("row", "c1")))
    return sequences(loop("t", "N", Alloc("row"), loop("c", "N", *product(row, "j", "D", at("Q", "j"), at("K", "j", "c"))), Alloc("acc"), put(ref("acc")), exps,
                          loop("c2", "N", put(ref("row", "c2"), ref("row", "c2")), put(ref("A", "b", "t", "c2"), ref("row", "c2"))),
                          loop("d", "D", *products("c3", "N", ("acc", (ref("row", "c3"), at("V", "d", "c3")))), put(at("R1", "d"), ref("acc"), at("X", "d")))))


def attention_gradient() -> Loop:
    columns = loop("c", "N", loop("d", "D", *product(at("GV", "d", "c"), "t", "N", ref("A", "b", "t", "c"), at("GR1", "d"))))
    rows = loop("t1", "N", Alloc("row"), loop("c1", "N", *product(ref("row", "c1"), "d1", "D", at("GR1", "d1", "t1"), at("V", "d1", "c1"))),
                loop("c2", "N", loop("j", "D", add(at("GQ", "j", "t1"), ref("A", "b", "t1", "c2"), ref("row", "c2"), at("K", "j", "c2")),
                                     add(at("GK", "j", "c2"), ref("A", "b", "t1", "c2"), ref("row", "c2"), at("Q", "j", "t1")))))
    return sequences(columns, rows)


def products(over: str, size: str, *of_each: tuple[str, tuple[Ref, ...]]) -> list[Stmt]:
    """Several products over one loop, each in a register."""
    start = [x for name, _ in of_each for x in (Alloc(name), put(ref(name)))]
    return [*start, loop(over, size, *(add(ref(name), *refs) for name, refs in of_each))]


def mlp() -> Loop:
    u, v = (("u", (at("Z2", "d"), ref("Wg", "d", "f"))), ("v", (at("Z2", "d"), ref("Wu", "d", "f"))))
    up = loop("f", "F", *products("d", "D", u, v), put(at("U", "f"), ref("u")), put(at("Vg", "f"), ref("v")), put(at("H", "f"), ref("u"), ref("v")))
    down = loop("d2", "D", *products("f1", "F", ("acc", (at("H", "f1"), ref("Wd", "f1", "d2")))), put(at("Y", "d2"), ref("acc"), at("R1", "d2")))
    return tokens(up, down)


def mlp_gradient() -> Loop:
    gates = loop("f", "F", *product(ref("gh"), "d", "D", at("GY", "d"), ref("Wd", "f", "d")), put(ref("gv", "f"), ref("gh"), at("U", "f")),
                 put(ref("gu", "f"), ref("gh"), at("U", "f"), at("Vg", "f")))
    down = loop("f1", "F", loop("d1", "D", share(ref("GWd", "f1", "d1"), at("H", "f1"), at("GY", "d1"))))
    up = loop("d2", "D", loop("f2", "F", share(ref("GWg", "d2", "f2"), at("Z2", "d2"), ref("gu", "f2")), share(ref("GWu", "d2", "f2"), at("Z2", "d2"), ref("gv", "f2"))))
    back = loop("d3", "D", *product(at("GZ2", "d3"), "f3", "F", ref("gu", "f3"), ref("Wg", "d3", "f3"), ref("gv", "f3"), ref("Wu", "d3", "f3")))
    return tokens(Alloc("gu"), Alloc("gv"), Alloc("gh"), gates, down, up, back, loop("d4", "D", put(at("GR1", "d4"), at("GY", "d4"))))


def projection() -> Loop:
    each = [(f"a{x}", (at("Z1", "d"), ref(f"W{x}", "d", "e"))) for x in "QKV"]
    return tokens(loop("e", "D", *products("d", "D", *each), *(put(at(x, "e"), ref(f"a{x}")) for x in "QKV")))


def projection_gradient() -> Loop:
    weights = loop("d", "D", loop("e", "D", *(share(ref(f"GW{x}", "d", "e"), at("Z1", "d"), at(f"G{x}", "e")) for x in "QKV")))
    back = loop("d1", "D", Alloc("acc"), put(ref("acc")), loop("e1", "D", *(add(ref("acc"), at(f"G{x}", "e1"), ref(f"W{x}", "d1", "e1")) for x in "QKV")), put(at("GZ1", "d1"), ref("acc")))
    return tokens(weights, back)


def block() -> Kernel:
    """One statement a launch, in the order of LINES."""
    copy = loop("b", "B", loop("t", "N", loop("d", "D", put(at("GX", "d"), at("GR1", "d")), kind="parallel"), kind="parallel"), kind="parallel")
    body = (norm("X", "g1", "r1", "Z1"), projection(), attention(), norm("R1", "g2", "r2", "Z2"), mlp(), mlp_gradient(),
            norm_gradient("R1", "g2", "r2", "GZ2", "GR1", "Gg2"), copy, attention_gradient(), projection_gradient(),
            norm_gradient("X", "g1", "r1", "GZ1", "GX", "Gg1"))
    arrays = [array(x, "workspace", "B", "N", "D") for x in TOKENS] + [array(x, "workspace", "B", "N", "F") for x in ("U", "Vg", "H")]
    arrays += [array(x, "workspace", "B", "N") for x in ("r1", "r2")] + [array("A", "workspace", "B", "N", "N")]
    arrays += [array(x, "workspace", "D") for x in ("g1", "g2", "Gg1", "Gg2")] + [array(f"{g}W{x}", "workspace", "D", "D") for g in ("", "G") for x in "QKV"]
    arrays += [array(f"{g}W{x}", "workspace", "D", "F") for g in ("", "G") for x in "gu"] + [array(f"{g}Wd", "workspace", "F", "D") for g in ("", "G")]
    arrays += [array("row", "private", "N"), array("gu", "private", "F"), array("gv", "private", "F"), *(array(x, "register") for x in ("gh", "acc", "u", "v", "aQ", "aK", "aV"))]
    return Kernel("block", ("B", "N", "D", "F"), tuple(arrays), body)
