"""What the emitters refuse, each with the place and a hint; and that every function of FUNCS is written in every language."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.loops.nests import array, loop, ref
from tests.loops.test_lift_alone import last
from tests.targets import tiles
from tests.targets.compiled import build, call, compiler

from moapipe.algebra.function import FUNCS
from moapipe.algebra.index import add, multiply
from moapipe.algebra.scalar import Num, Op, Var, op
from moapipe.errors import MoapipeError, TargetError
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Kernel
from moapipe.targets.emit import emit
from moapipe.targets.expression import COMPARISONS, JUNCTIONS
from moapipe.targets.listing import check
from moapipe.targets.table import TARGETS, flags, target_named

X = (array("x", "input", "n", 8), array("y", "output", "n", 8))
COPY = Assign(ref("y", "i", "l"), ref("x", "i", "l"), (), "y")


def kernel(*body, arrays=X):
    return Kernel("k", ("n",), tuple(arrays), tuple(body))


def tile(shape, leaf):
    return kernel(loop("i", "n", Alloc("t"), loop("l", 8, leaf, kind="lane")), arrays=(*X, Array("t", shape, "register")))


def team(rows):
    """A team of 32 threads a row stores one shared element each, of 4 in 64 rows and of all in 128."""
    store = Assign(ref("s", "r", multiply("t", 4)), Num(0.0), (), "s")
    nest = loop("r", rows if rows == 64 else 8, loop("t", 32, store, kind="thread"), kind="thread")
    return kernel(loop("i", "n", Alloc("s"), nest, kind="parallel"), arrays=(*X, array("s", "shared", rows, 128)))


BAD = {
    "a lane loop of 6": (kernel(loop("i", "n", loop("l", 6, COPY, kind="lane"))), "lane loop l runs from 0 to 6; lanes are whole vectors of 4"),
    "a lane loop from 4": (kernel(loop("i", "n", loop("l", 8, COPY, lo=4, kind="lane"))), "lane loop l runs from 4 to 8"),
    "a lane loop of n": (kernel(loop("i", 8, loop("l", "n", COPY, kind="lane"))), "lane loop l runs from 0 to n, which are no numbers"),
    "an unroll loop of n": (kernel(loop("i", "n", loop("l", 8, COPY), kind="unroll")), "unroll loop i runs from 0 to n"),
    "a lane with a stride": (kernel(loop("i", "n", loop("l", 4, Assign(ref("y", "i", "l"), ref("x", "i", multiply("l", 2)), (), "y"), kind="lane"))),
                             r"lane l is not unit-stride in x\[i, \(l \* 2\)\]"),
    "a lane in the first index": (kernel(loop("l", 4, loop("i", 8, Assign(ref("y", "l", "i"), Num(0.0), (), "y")), kind="lane")), "lane l is not unit-stride"),
    "registers of no whole vector": (tile((Num(6),), Assign(ref("t", "l"), Num(0.0))), "last extent of register array t is no multiple of V = 4"),
    "registers of n": (tile((Var("n"),), Assign(ref("t", "l"), Num(0.0))), "register array t has extents n, expected numbers"),
    "registers with an address": (tile((Num(8), Num(8)), Assign(ref("t", "i", "l"), Num(0.0))), r"register array t is indexed by i in t\[i, l\]"),
    "a private array that grows with a loop": (
        kernel(loop("i", "n", Alloc("p"), loop("l", 8, Assign(ref("p", "l"), Num(0.0)))), arrays=(*X, array("p", "private", "i"))),
        "extent i of p uses .*which no caller knows"),
    "a streaming workspace": (kernel(loop("i", "n", loop("l", 8, COPY)), arrays=(*X, Array("w", (Num(4),), "workspace", stream=True))),
                              "w is workspace and asks for streaming stores"),
    "an index that is a value": (kernel(loop("i", "n", Assign(ref("y", "i", ref("x", "i", 0)), Num(0.0)))), r"x\[i, 0\] is no integer expression"),
    "NaN": (kernel(loop("i", "n", Assign(ref("y", "i", 0), Num(float("nan"))))), "NaN is no literal"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BAD)
def test_what_no_language_writes(name, target):
    bad, message = BAD[name]
    with pytest.raises(MoapipeError, match=message) as e:
        emit(bad, target, "plain", "f32")
    assert isinstance(e.value, TargetError)


@pytest.mark.parametrize("target", [t for t, row in TARGETS.items() if row.team])
@pytest.mark.parametrize(("extent", "message"), [
    (128, "a team shares 65,536 bytes in s; there are 49,152"), (64, "a team has 2,048 threads; at most 1,024 run together"),
])
def test_what_a_language_gives_a_team(extent, message, target):
    with pytest.raises(TargetError, match=message):
        emit(team(extent), target, "plain", "f32")


@pytest.mark.parametrize("target", [t for t, row in TARGETS.items() if not row.team])
def test_a_language_without_teams_says_so(target):
    with pytest.raises(TargetError, match="its iterations are run by teams of threads"):
        emit(last("a tile by a team").kernel, target, "plain", "f64")


@pytest.mark.parametrize("call", [lambda: target_named("basic"), lambda: emit(kernel(), "c", "mmx", "f32"), lambda: emit(kernel(), "c", "avx2", "f16"),
                                  lambda: flags("c", "mmx", "f32"), lambda: flags("c", "avx2", "f16"), lambda: check("", (), "mmx", "f32")])
def test_unknown_names(call):
    with pytest.raises(TargetError, match="choose one of"):
        call()


WRITTEN_BY_SIGNS = COMPARISONS | JUNCTIONS | {"+", "-", "*", "/", "neg"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCS)
def test_every_function_has_a_template(name, target):
    row = target_named(target)
    known = {"//", "%"} & set(row.integer) if name in ("//", "%") else (set(row.signs) | {"neg"} if name in WRITTEN_BY_SIGNS else set(row.scalar))
    assert name in known, f"{target} cannot write {name}: add a template to its record"


def test_a_function_without_a_vector_form_runs_lane_by_lane():
    text = emit(tiles.functions(["log"], "lane", 8), "c", "avx2", "f32").text
    assert "LOG(a[" in text
    assert "for (int64_t lane = 0; lane < 8; lane++)" in text


@pytest.mark.parametrize("target", [t for t in TARGETS if not (TARGETS[t].device or TARGETS[t].offloads) and compiler(t)])
def test_names_that_differ_by_case_or_are_words_of_the_language(target, tmp_path):
    arrays = (array("q", "input", "Int"), array("Q", "input", "Int"), array("int", "output", "Int"), array("vec", "private", 4))
    total = op("+", ref("q", "i"), ref("Q", "i"))
    body = loop("i", "Int", Alloc("vec"), Assign(ref("vec", 0), total, (), "v"), loop("I", 1, Assign(ref("int", "i"), ref("vec", 0), (), "o")))
    source = emit(Kernel("words", ("Int",), arrays, (body,)), target, "plain", "f64")
    q, big = np.arange(3.0), 10 * np.arange(3.0)
    got = call(build(source, target, "plain", "f64", tmp_path), source.manifest, {"Int": 3}, {"q": q, "Q": big}, "f64")
    assert got["int"].tolist() == [0, 11, 22]


def test_long_names_of_fortran_are_refused_or_wrapped():
    many = tuple(array(f"input_number_{i}", "input", "n") for i in range(40))
    total = ref(many[0].name, "i")
    for a in many[1:]:
        total = op("+", total, ref(a.name, "i"))
    source = emit(Kernel("wide", ("n",), (*many, array("y", "output", "n")), (loop("i", "n", Assign(ref("y", "i"), total, (), "y")),)), "fortran", "plain", "f32")
    assert max(map(len, source.text.split("\n"))) <= 120
    name = "x" * 130
    with pytest.raises(TargetError, match="cannot wrap"):
        emit(Kernel("k", ("n",), (array(name, "input", "n"), array("y", "output", "n")), (loop("i", "n", Assign(ref("y", "i"), ref(name, "i"), (), "y")),)),
             "fortran", "plain", "f32")


def test_a_mask_that_is_not_affine_runs_lane_by_lane():
    i = add(multiply("io", 16), "l")
    leaf = Assign(ref("y", i), op("select", op("<", op("%", i, 3), 1), ref("x", i), 0.0), (), "y")
    k = Kernel("k", ("n",), (array("x", "input", multiply("n", 16)), array("y", "output", multiply("n", 16))), (loop("io", "n", loop("l", 16, leaf, kind="lane")),))
    assert "lane < 16" in emit(k, "c", "avx512", "f32").text


def test_an_accumulation_of_a_select_keeps_its_condition():
    """Fortran evaluates both arms of merge: arms that may lie outside become guarded leaves, for accumulations too."""
    c = op("<", "i", 3)
    leaf = Accumulate("sum", ref("y", 0, 0), Op("select", (c, ref("x", "i", 0), Num(1.0))), (), "y")
    text = emit(kernel(loop("i", "n", leaf)), "fortran", "plain", "f64").text
    assert "merge" not in text
    assert text.count("a_y(0, 0) = a_y(0, 0) +") == 2


def test_sizes_of_the_workspace_count_threads():
    k = replace(tiles.product(2, 2), sizes=("m", "n", "p"))
    work = emit(k, "c", "plain", "f64").manifest["workspace"]
    assert "threads" in work["elements"]
    assert [a["offset"] for a in work["arrays"]] == ["0", "0"]
