"""Lifts that no variant combines, on small kernels: what they make, and that the meaning stays."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from tests.loops.refused import (
    DOUBLE,
    FUSE_I,
    MASKED,
    MAXIMUM,
    MIXED,
    ONLINE,
    PRODUCT,
    RESULT,
    ROWS,
    SAFE,
    SPLIT,
    SPLIT_I,
    SPLIT_J,
    TOTAL,
    WEIGHTS,
    causal,
    fold,
    kernel,
    matmul,
    normal,
    ref,
    softmax,
)

from moapipe.algebra.index import evaluate
from moapipe.algebra.scalar import op, references, text
from moapipe.loops.cost import count
from moapipe.loops.interpret import run
from moapipe.loops.lift import apply_script
from moapipe.loops.onf import Loop, definitions, leaves, onf_hash, show, statements
from moapipe.loops.tally import Counts
from moapipe.loops.traffic import traffic
from moapipe.loops.warp import requests

SIZES = [{"ni": i, "nj": j, "nk": k, "ne": e} for i, j, k, e in ((5, 9, 11, 3), (1, 1, 1, 1), (4, 8, 8, 2), (3, 2, 0, 2), (0, 3, 2, 1))]
def softmax_unsafe():
    """With exp, a factor, and no guard against rows that see nothing."""
    weights = normal("w", "ik", op("exp", op("*", 0.5, op("-", ref("S", "i", "k"), ref("m", "i")))))
    return kernel(MAXIMUM, weights, TOTAL, MIXED, RESULT, outputs=("r",))


def in_place():
    """Scores, masked where k > i or k > 6."""
    inside = op("and", op("<=", "k", "i"), op("<=", "k", 6))
    return kernel(normal("r", "ik", op("*", 2, ref("S", "i", "k"))), normal("s", "ik", op("select", inside, ref("r", "i", "k"), -inf)), MASKED_TOTAL, outputs=("t",))


def triangle():
    """Column sums of exponentials of what is on and below the diagonal."""
    return kernel(MASKED, normal("v", "ik", op("exp2", ref("s", "i", "k"))), normal("c", "k", fold("sum", "i", ref("v", "i", "k"))), outputs=("c",))


def squares():
    """The sum of all squares, an element's rows and columns in two folds."""
    w = ref("w", "i", "k")
    return kernel(normal("w", "ik", op("*", 2, ref("S", "i", "k"))), normal("c", "e", fold("sum", "i", fold("sum", "k", op("*", w, w)))), outputs=("c",))


MASKED_TOTAL = normal("t", "i", fold("max", "k", ref("s", "i", "k")))
COLUMNS = normal("c", "k", fold("sum", "i", op("*", ref("w", "i", "k"), ref("S", "i", "k"))))
PAIR = (normal("w", "ik", op("*", 2, ref("S", "i", "k"))), TOTAL, normal("c", "k", fold("sum", "i", op("*", ref("w", "i", "k"), ref("S", "i", "k")))))
TEAM = [
    SPLIT_I, SPLIT_J, ("split", {"axis": "k", "by": 3, "outer": "ko", "inner": "kl"}), ("reorder", {"order": ["io", "jo", "ko", "ir", "jl", "kl"]}),
    ("stage", {"array": "A", "into": "At", "index": ["ir", "kl"], "at": "ko", "fill": 0}), ("fuse", {"axis": "io"}), ("fuse", {"axis": "jo"}), ("contract", {"array": "x"}),
    ("bind", {"axis": "ir", "kind": "thread"}), ("bind", {"axis": "jl", "kind": "thread"}), ("bind", {"axis": "kl", "kind": "thread", "only": "At"}),
    ("place", {"array": "At", "space": "shared"}), ("place", {"array": "x", "space": "register"}),
    ("bind", {"axis": "io", "kind": "parallel"}), ("bind", {"axis": "jo", "kind": "parallel"}),
]
"""A product's rows in blocks of two, its columns in blocks of four; the team of 2 × 4 shares three columns of A at a time."""
FETCHED = [
    SPLIT_I, SPLIT_J, ("split", {"axis": "k", "by": 4, "outer": "ko", "inner": "kl"}), ("reorder", {"order": ["io", "jo", "ko", "ir", "jl", "kl"]}),
    ("stage", {"array": "A", "into": "At", "index": ["ir", "kl"], "at": "ko", "fill": 0}), ("fuse", {"axis": "io"}), ("fuse", {"axis": "jo"}), ("contract", {"array": "x"}),
    ("split", {"axis": "kl", "by": 2, "outer": "kt", "inner": "kv", "only": "At"}), ("fuse", {"axis": ["ir", "kt", "kv"], "only": "At"}), ("vector", {"axis": "kv", "only": "At"}),
    ("bind", {"axis": "ir", "kind": "thread"}), ("bind", {"axis": "jl", "kind": "thread"}), ("bind", {"axis": "kt", "kind": "thread", "only": "At"}),
    ("place", {"array": "At", "space": "shared"}), ("place", {"array": "x", "space": "register"}),
    ("bind", {"axis": "io", "kind": "parallel"}), ("bind", {"axis": "jo", "kind": "parallel"}),
]
"""As TEAM, four columns of A at a time, of which a thread fetches two as one."""
LANES = [
    ("split", {"axis": "k", "by": 8, "outer": "ko", "inner": "kr"}), ("split", {"axis": "kr", "by": 4, "outer": "kt", "inner": "kl"}),
    ("split", {"axis": "j", "by": 1, "outer": "jo", "inner": "one"}),
    ("split_fold", {"definition": "x", "axis": ["kt", "kl"], "into": "p"}), ("split_fold", {"definition": "x", "axis": "kt", "into": "h"}),
    ("spread", {"definition": "h", "axis": "kl", "lane": "km", "into": "q"}), ("reorder", {"order": ["i", "jo", "kt", "km", "kl", "one", "ko"], "only": ["p", "h"]}),
    ("reorder", {"order": ["i", "jo", "kt", "km", "one", "kl"], "only": "q"}), ("fuse", {"axis": ["i", "jo"]}), ("contract", {"array": ["p", "q", "h", "x"]}),
    ("bind", {"axis": "kt", "kind": "thread", "only": ["p", "q", "h"]}), ("bind", {"axis": "kl", "kind": "thread", "only": "p"}),
    ("bind", {"axis": "km", "kind": "thread"}), ("bind", {"axis": "kl", "kind": "warp", "only": "q"}), ("bind", {"axis": "one", "kind": "thread", "only": ["x", "y"]}),
    ("place", {"array": ["p", "q"], "space": "register"}), ("place", {"array": ["h", "x"], "space": "shared"}),
    ("bind", {"axis": "jo", "kind": "parallel"}), ("bind", {"axis": "i", "kind": "parallel"}),
]
"""An element of a product by a team of 2 × 4: each thread folds every eighth term, four lanes fold theirs by halves, one thread the rest."""
SCRIPTS = {
    "accumulate in a temporary": (matmul, [("accumulate_in", {"array": "y", "into": "a"}), ("fuse", {"axis": "i"}), ("contract", {"array": "a"})]),
    "a reader of what is accumulated reads the copy": (lambda: kernel(PRODUCT, DOUBLE, outputs=("x", "y")), [("accumulate_in", {"array": "x", "into": "a"}), ("fuse", {"axis": "i"}), ("contract", {"array": "a"})]),
    "parts of two axes": (matmul, [
        SPLIT, ("split", {"axis": "kl", "by": 2, "outer": "km", "inner": "kn"}), ("split_fold", {"definition": "x", "axis": ["ko", "km"], "into": "p"}),
        ("reorder", {"order": ["ko", "km", "i", "j", "kn"], "only": ["p", "x"]}), ("fuse", {"axis": "ko"}), ("fuse", {"axis": "km"}), ("fuse", {"axis": "i", "only": ["p", "x"]}),
        ("contract", {"array": "p"}),
    ]),
    "parts in order": (matmul, [SPLIT, ("split_fold", {"definition": "x", "axis": "ko", "into": "p"}), ("bind", {"axis": "ko", "kind": "parallel", "only": "p"})]),
    "parts straight into the reader": (matmul, [
        SPLIT, ("clip", {"axis": "kl"}), ("split_fold", {"definition": "x", "axis": "ko", "into": "p"}), ("fold_into", {"definition": "x", "reader": "y"}),
        ("peel_first", {"definition": "y", "axis": "ko"}), ("fuse", {"axis": "i"}),
    ]),
    "the sum with its reader's factor": (matmul, [("fold_into", {"definition": "x", "reader": "y"}), ("reorder", {"order": ["k", "i", "j"]})]),
    "recompute for an owner": (softmax, [
        ("recompute", {"which": ["w", "t"], "readers": "o"}), ("reorder", {"order": ["i", "k", "i2", "e2", "k2", "e"]}), ("fuse", {"axis": "i", "only": ["m", "z", "w", "t"]}),
        ("fuse", {"axis": "i2"}), ("contract", {"array": ["w2"]}),
    ]),
    "a prefix by number": (matmul, [("split_range", {"axis": "k", "at": 3, "rest": "kz"}), ("split_range", {"axis": "i", "at": "nj // 2", "rest": "iz", "only": "y"})]),
    "the rows backwards": (matmul, [("reverse", {"axis": "i"}), ("fuse", {"axis": "i"}), ("contract", {"array": "x"})]),
    "columns first, blocked": (matmul, [
        SPLIT_I, SPLIT_J, ("pad_extent", {"array": "x", "dim": 0, "to": 2}), ("pad_extent", {"array": "x", "dim": 1, "to": 4}),
        ("block", {"array": "x", "dim": 1, "by": 4}), ("layout", {"array": "x", "order": [1, 0, 2]}),
    ]),
    "rows and columns as one": (squares, [("ravel", {"array": "w", "dim": 0}), ("coalesce", {"axis": ["i", "k"], "into": "p", "only": "c"})]),
    "a copy of one row": (matmul, [("stage", {"array": "B", "into": "Bt", "index": ["j", "k"]}), ("stage", {"array": "A", "into": "row", "index": ["k"], "at": "i", "only": "x"})]),
    "an unsafe maximum": (softmax_unsafe, [
        ("reorder", {"order": ["i", "k", "e"]}), ("fuse", {"axis": "i"}), ("online", {"axis": "k", "maximum": "m", "weights": "w", "folds": ["t", "o"]}),
    ]),
    "the rows of a triangle's columns": (lambda: causal(COLUMNS, outputs=("t", "c")), [("reorder", {"order": ["k", "i"]}), ("skip", {"axis": "i", "mask": "s"})]),
    "a private column from its diagonal down": (triangle, [
        ("reorder", {"order": ["k", "i"]}), ("skip", {"axis": "i", "mask": "s"}), ("fuse", {"axis": "k"}), ("contract", {"array": ["s", "v"]}),
    ]),
    "whoever has a term": (matmul, [("reorder", {"order": ["k", "i", "j"], "only": "x"}), ("atomic", {"definition": "x"}), ("bind", {"axis": "k", "kind": "parallel"})]),
    "the owner instead": (lambda: kernel(*(n for n in PAIR), outputs=("t", "c")), [
        ("fuse", {"axis": "i", "only": ["t", "c"]}), ("atomic", {"definition": "c"}), ("own", {"definition": "c", "order": ["k", "i"], "parallel": "k"}), ("bind", {"axis": "i", "kind": "parallel", "only": "t"}),
    ]),
    "only what a mask changes": (in_place, [
        ("alias", {"array": "s", "onto": "r"}), ("hoist_mask", {"definition": "s"}), ("overwrite", {"definition": "s"}), ("clip", {"axis": "k", "only": "s"}),
    ]),
    "what reads a running sum goes after": (lambda: kernel(MAXIMUM, SAFE, WEIGHTS, TOTAL, normal("g", "i", op("*", 2, ref("t", "i"))), MIXED, RESULT, outputs=("r", "g")), [
        *ROWS, ("online", ONLINE)]),
    "streamed": (matmul, [("stream", {"array": "y"})]),
    "once more for every column": (softmax, [
        ("repeat", {"which": ["m", "z", "w", "t"], "axis": "e"}), ("reorder", {"order": ["e", "i", "k"]}), ("fuse", {"axis": "e"}), ("contract", {"array": ["w"]}),
    ]),
    "two tiles of other widths in turn": (lambda: kernel(PRODUCT, DOUBLE, normal("u", "ie", fold("sum", "k", op("*", ref("A", "i", "k"), ref("V", "k", "e")))), outputs=("y", "u")), [
        ("split", {"axis": "j", "by": 4, "outer": "f", "inner": "l"}), ("split", {"axis": "e", "by": 2, "outer": "f", "inner": "l"}), ("stretch", {"axis": "f"}),
        ("reorder", {"order": ["f", "i", "l", "k"]}), ("fuse", {"axis": ["f", "i"]}), ("contract", {"array": "x"}),
    ]),
    "parts of a row that a mask ends": (causal, [
        SPLIT, ("skip", {"axis": "ko", "mask": "s"}), ("split_fold", {"definition": "t", "axis": "ko", "into": "p"}), ("fuse", {"axis": ["i", "ko"], "only": ["p", "t"]}),
        ("contract", {"array": "p"}),
    ]),
    "a tile by a team": (matmul, TEAM),
    "an element by lanes": (matmul, LANES),
    "two elements as one": (matmul, FETCHED),
    "once beside a tile": (lambda: kernel(MAXIMUM, SAFE, WEIGHTS, TOTAL, normal("g", "i", op("*", 2, ref("t", "i"))), MIXED, RESULT, outputs=("r", "g")), [
        ("split", {"axis": "e", "by": 2, "outer": "f", "inner": "l"}), ("once", {"definition": "g", "axis": "f"}), ("stretch", {"axis": "f"}),
        ("repeat", {"which": ["m", "z", "w", "t"], "axis": "f"}), ("reorder", {"order": ["f", "i", "k", "l"]}), ("fuse", {"axis": ["f", "i"]}),
        ("contract", {"array": ["m", "z", "w", "t", "o"]}), ("bind", {"axis": "f", "kind": "parallel"}),
    ]),
    "in half the bytes": (matmul, [("fuse", {"axis": "i"}), ("contract", {"array": "x"}), ("bind", {"axis": "i", "kind": "parallel"}), ("narrow", {})]),
    "in half the bytes, what is added up and read again in whole ones": (lambda: kernel(PRODUCT, DOUBLE, outputs=("x", "y")), [("fuse", {"axis": "i"}), ("narrow", {})]),
    "the line of a result": (matmul, [FUSE_I, ("prefetch_stored", {"array": "y", "definition": "x"})]),
    "asked for ahead": (matmul, [("prefetch", {"array": "A", "definition": "x", "axis": "i", "by": 2}), SPLIT]),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_meaning_stays(name):
    make, script = SCRIPTS[name]
    start = make()
    states = [start, *(s.kernel for s in apply_script(start, [dict([item]) for item in script], {}, {}))]
    assert states[-1] != start
    for sizes in SIZES:
        rng = np.random.default_rng(5)
        x = {a.name: rng.normal(size=[evaluate(e, sizes) for e in a.shape]) for a in start.arrays if a.space == "input"}
        with np.errstate(all="ignore"):
            want = run(start, sizes, x).outputs
            for k in states[1:]:
                got = run(k, sizes, x).outputs
                for o, value in want.items():
                    np.testing.assert_allclose(got[o], value, rtol=1e-12, err_msg=show(k))


def last(name):
    make, script = SCRIPTS[name]
    return apply_script(make(), [dict([item]) for item in script], {}, {})[-1]


def last_of(make, script):
    return apply_script(make(), [dict([item]) for item in script], {}, {})[-1].kernel


def test_what_they_make():
    assert [text(e) for e in last("columns first, blocked").kernel.array("x").shape][1:] == ["(((ni + 1) // 2) * 2)", "4"]
    assert last("streamed").kernel.array("y").stream
    edges = [(s.lo, s.hi) for s in statements(last("only what a mask changes").kernel.body) if isinstance(s, Loop) and s.var == "k"]
    assert {text(lo) for lo, _ in edges} == {"0", "(i + 1)", "7"}
    triangle = last("the rows of a triangle's columns").kernel.body
    assert {text(s.lo) for s in statements(triangle) if isinstance(s, Loop) and s.var == "i"} == {"0", "k"}
    assert "w2" in definitions(last("recompute for an owner").kernel.body)
    assert any(isinstance(s, Loop) and s.kind == "parallel" for s in statements(last("parts in order").kernel.body))
    assert last("streamed").title == "stream(array=y)"
    assert text(last_of(causal, SCRIPTS["parts of a row that a mask ends"][1][:3]).array("p").shape[-1]) == "min(((nk + 3) // 4), (((ni - 1) // 4) + 1))"
    guards = {leaf.target.array: len(leaf.where) for leaf, _, _ in leaves(last("two tiles of other widths in turn").kernel.body)}
    assert guards["y"] == guards["u"] == 1, "a tile's own guard says where its axis ends"
    shared, owned = (last(n).kernel for n in ("whoever has a term", "the owner instead"))
    assert "atomic +=" in show(shared) and "atomic" not in show(owned)
    assert {s.var for s in statements(owned.body) if isinstance(s, Loop) and s.kind == "parallel"} == {"i", "k2"}
    assert "c_start" in definitions(owned.body) and "x_start" in definitions(shared.body)


def test_an_element_is_rounded_once_when_it_is_complete_and_takes_half_the_bytes():
    """Accesses, footprint, sectors and traffic have half the bytes where an array is narrow, and the same where it is not."""
    once, twice = (last(n).kernel for n in ("in half the bytes", "in half the bytes, what is added up and read again in whole ones"))
    assert {a.name for a in once.arrays if a.narrow} == {a.name for a in once.arrays if a.space in ("input", "output")} and "x_copy" not in definitions(once.body)
    assert {a.name: (a.space, a.narrow) for a in twice.arrays if a.name.startswith(("x", "y"))} == {"x": ("output", True), "y": ("output", True), "x_wide": ("workspace", False)}
    stored = [leaf for leaf, _, _ in leaves(twice.body) if leaf.target.array == "x"]
    assert [leaf.name for leaf in stored] == ["x_copy"] and text(stored[0].value) == "x_wide[x_0, x_1]"
    sizes = {"ni": 32, "nj": 64, "nk": 48, "ne": 1}
    wide = last_of(matmul, SCRIPTS["in half the bytes"][1][:-1])
    few, many = (count(k, sizes, 4) for k in (once, wide))
    assert (many.footprint_read_bytes, many.footprint_written_bytes) == (4 * 48 * (32 + 64), 4 * 32 * 64)
    assert (few.footprint_read_bytes, few.footprint_written_bytes) == (many.footprint_read_bytes // 2, many.footprint_written_bytes // 2)
    assert few.private_bytes == many.private_bytes and few.flops == many.flops
    assert many.loaded_bytes - few.loaded_bytes == 2 * sum(a.loads for a in many.accesses.values() if a.space in ("input", "output"))
    assert Counts.from_json(few.to_json()) == few
    rows, columns = ([requests(k, sizes, 4, "inner")[a].loads for k in (once, wide)] for a in ("A", "B"))
    assert 2 * rows[0] == rows[1] and columns[0] == columns[1], "lanes that run along rows ask for half the sectors, lanes that run down columns for as many"
    small, large = (traffic(k, sizes, 4, 1 << 20) for k in (once, wide))
    assert all(2 * small[a].read == large[a].read and 2 * small[a].allocated == large[a].allocated for a in ("A", "B", "y"))


def test_what_is_asked_for_ahead_follows_later_lifts_and_counts_nowhere():
    """The element of two iterations later, in the axes that a later split made; neither an access nor a footprint."""
    k, sizes = last("asked for ahead").kernel, SIZES[0]
    plain = last_of(matmul, [SPLIT])
    (asking,) = [leaf for leaf, _, _ in leaves(k.body) if leaf.ahead]
    (inner,) = [r for r in references(asking.value) if r.array == "A"]
    assert text(asking.ahead[0].index[0]) == "(i + 2)" and asking.ahead[0].index[1] == inner.index[1]
    assert "ahead A[" in show(k) and onf_hash(k) != onf_hash(plain)
    assert count(k, sizes, 8) == count(plain, sizes, 8)
    assert traffic(k, sizes, 8, 64) == traffic(plain, sizes, 8, 64)


def test_what_is_stored_later_is_asked_for_at_its_own_place_unless_it_goes_past_the_caches():
    """The element that the same row stores later; nothing once the array is streamed."""
    k = last("the line of a result").kernel
    assert {(leaf.name, *map(text, leaf.ahead)) for leaf, _, _ in leaves(k.body)} == {("x", "y[i, j]"), ("y",)}
    plain = last_of(matmul, [FUSE_I, ("stream", {"array": "y"})])
    assert onf_hash(last_of(matmul, [*SCRIPTS["the line of a result"][1], ("stream", {"array": "y"})])) == onf_hash(plain)


STRIPS = [
    ("split", {"axis": "k", "by": 2, "outer": "kb", "inner": "kv", "only": "x"}), ("split", {"axis": "j", "by": 4, "outer": "jt", "inner": "jl", "only": "x"}),
    ("reorder", {"order": ["i", "kb", "jt", "kv", "jl"], "only": "x"}), ("split_range", {"axis": "jt", "rest": "jz", "only": "x"}),
    ("bind", {"axis": "jl", "kind": "lane", "only": "x", "within": "jt"}),
]  # fmt: skip


@pytest.mark.parametrize("by", [1, 3])
def test_tiles_of_a_strip_ask_for_its_lines_in_the_order_in_which_they_lie(by):
    """Tiles of 2 rows and 4 columns jump from row to row; what they ask for is the strip `by` strips later, from its start to its end."""
    width, strip = 12, 2
    k = last_of(matmul, [*STRIPS, ("prefetch", {"array": "B", "definition": "x", "axis": "kb", "by": by, "rows": "kv"})])
    (leaf, rest) = [q for q, _, _ in leaves(k.body) if q.ahead]
    (asked,) = leaf.ahead
    at = [{"kb": strip, "jt": jt, "kv": kv, "jl": jl} for jt in range(width // 4) for kv in range(2) for jl in range(4)]
    read = [evaluate(r.index[0], x) * width + evaluate(r.index[1], x) for x in at for r in references(leaf.value) if r.array == "B"]
    assert text(rest.ahead[0].index[1]) == "(jl + (jz * 4))", "outside of lanes each element asks for its own"
    first = (strip + by) * 2 * width
    assert [evaluate(asked.index[0], x) * width + evaluate(asked.index[1], x) for x in at] == list(range(first, first + 2 * width))
    assert sorted(read) != read and sorted(r + by * 2 * width for r in read) == list(range(first, first + 2 * width))
