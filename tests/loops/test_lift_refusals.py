"""Every lift that is not legal, or that matches nothing, says so: array, axis, what was found. No refusal is without a test."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.loops.refused import (
    DOUBLE,
    FUSE_I,
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
    STAGE,
    TILE,
    TOTAL,
    WEIGHTS,
    Z,
    after,
    causal,
    fold,
    growing,
    grown,
    guarded,
    in_registers,
    in_strips,
    innermost,
    kept_alive,
    kernel,
    matmul,
    moved,
    normal,
    on_data,
    overwritten,
    peeking,
    ragged,
    ref,
    retarget,
    retarget_first,
    reversed_use,
    shared_loop,
    shift,
    softmax,
    tail,
    tile_of,
    transposed,
    triangle,
    updated,
)

from moapipe.algebra.scalar import Num, op
from moapipe.errors import LiftError
from moapipe.loops import lift as lifts
from moapipe.loops.lift import LIFTS, apply_script
from moapipe.loops.onf import Accumulate, Assign, Kernel

SOURCES = sorted(Path(lifts.__file__).parent.glob("*.py"))

SPLIT_K = ("split", {"axis": "k", "by": 4, "outer": "ko", "inner": "kl"})
COPIED = (SPLIT_I, SPLIT_J, SPLIT_K, ("reorder", {"order": ["io", "jo", "ko", "ir", "jl", "kl"]}),
          ("stage", {"array": "A", "into": "At", "index": ["ir", "kl"], "at": "ko", "fill": 0}), ("fuse", {"axis": "io"}), ("fuse", {"axis": "jo"}))
SCALED = normal("o", "ie", fold("sum", "k", op("*", ref("w", "i", "k"), op("*", ref("g", "i"), ref("V", "k", "e")))))
PARTS = (("split", {"axis": "k", "by": 4, "outer": "ko", "inner": "kl"}), *(("split_fold", {"definition": f, "axis": "ko", "into": f"p{f}"}) for f in "mto"))
REBASE = {"axis": "ko", "maximum": "m", "part": "pm", "weights": "w", "folds": ["pt", "po"], "shift": "z"}

CASES: list[tuple[Callable[[], Kernel], str, dict, str]] = [
    # the script itself
    (matmul, "spilt", {}, "unknown lift spilt"),
    (matmul, "split", {"axis": "i", "by": 2, "outer": "o", "iner": "r"}, "unknown argument iner"),
    (matmul, "split", {"axis": "i", "by": 2, "outer": "o"}, "missing argument inner"),
    (matmul, "split", ["i", 2], "not a mapping"),
    (matmul, "split", {"axis": "i", "by": "MR", "outer": "o", "inner": "r"}, "'MR' is no whole number"),
    *((matmul, "split", {"axis": "i", "by": by, "outer": "o", "inner": "r"}, "lift 1, split.*cannot read index expression") for by in ("2*", "", "1//0", "4%0", 1.5, True, None, [1], 10**30)),
    (matmul, "split", {"axis": "i", 1: 2}, "unknown argument 1"),
    (matmul, "layout", {"array": "C", "order": 3}, "cannot take 3"),
    (matmul, "bind", {"axis": "i", "kind": "paralel"}, "'paralel' is none of"),
    (matmul, "fuse", {"axis": 3}, "cannot take 3"),
    (matmul, "fuse", {"axis": "i", "only": ["x", "nothing"]}, "nothing: no such definition"),
    # split
    (matmul, "split", {"axis": "i", "by": 0, "outer": "o", "inner": "r"}, "split i: the tile size is 0"),
    (matmul, "split", {"axis": "i", "by": 2, "outer": "i", "inner": "r"}, "names i, r are not new"),
    (matmul, "split", {"axis": "q", "by": 2, "outer": "o", "inner": "r"}, "split q: no loop q"),
    (after(matmul, FUSE_I), "split", {"axis": "i", "by": 2, "outer": "o", "inner": "r", "only": "x"}, "the loop holds x, y, not only x"),
    (after(matmul, FUSE_I, ("bind", {"axis": "i", "kind": "parallel"})), "split", {"axis": "i", "by": 2, "outer": "o", "inner": "r"}, "bound to parallel"),
    # coalesce
    (matmul, "coalesce", {"axis": "i", "into": "c"}, "coalesce i: two axes become one, found 1"),
    (matmul, "coalesce", {"axis": ["i", "j"], "into": "nk", "only": "y"}, "coalesce nk: the name is taken"),
    (matmul, "coalesce", {"axis": ["q", "k"], "into": "c"}, "no loop q"),
    (matmul, "coalesce", {"axis": ["i", "k"], "into": "c", "only": "x"}, "a loop over k is not alone inside of i"),
    (matmul, "coalesce", {"axis": ["i", "j"], "into": "c", "only": "y"}, "is no function of i·nj . j"),
    (after(matmul, ("bind", {"axis": "j", "kind": "parallel"})), "coalesce", {"axis": ["i", "j"], "into": "c", "only": "y"}, "coalesce j: found parallel 0..nj"),
    (after(causal, ("skip", {"axis": "k", "mask": "s"})), "coalesce", {"axis": ["i", "k"], "into": "c", "only": "s"}, "the extent .* of k changes with i"),
    # reorder
    (after(matmul, FUSE_I, ("fuse", {"axis": "j"})), "reorder", {"order": ["j", "i"], "only": "y"}, "no perfect nest"),
    (matmul, "reorder", {"order": ["j", "i"], "only": "x"}, "reorder x: axes k are not in the order"),
    (after(causal, ("skip", {"axis": "k", "mask": "s"})), "reorder", {"order": ["k", "i"], "only": "s"}, "the bound .* of k needs i outside"),
    (retarget(matmul, "x", value=op("+", ref("x", "j", "i"), 1)), "reorder", {"order": ["j", "i", "k"], "only": "x"}, "x reads .'x'. while writing it"),
    (retarget(matmul, "y", target=ref("y", "i", 0)), "reorder", {"order": ["j", "i"], "only": "y"}, "y stores y again for every j"),
    # stretch
    (matmul, "stretch", {"axis": "i", "only": "nothing"}, "nothing: no such definition"),
    (matmul, "stretch", {"axis": "i"}, "no loops over i that end at different places"),
    (after(causal, ("skip", {"axis": "k", "mask": "s"})), "stretch", {"axis": "k"}, "the end .* of k does not come from sizes"),
    # once
    (after(matmul, FUSE_I), "once", {"definition": "y", "axis": "e"}, "y shares its nest"),
    (matmul, "once", {"definition": "y", "axis": "j"}, "y has a loop j"),
    # vector
    (matmul, "vector", {"axis": "q"}, "vector q: no serial loop q"),
    (matmul, "vector", {"axis": "i", "only": "y"}, "i runs from 0 to ni around"),
    (after(matmul, SPLIT_K), "vector", {"axis": "kl", "only": "x"}, "0 leaves copy elements along kl"),
    (after(matmul, *COPIED, ("split", {"axis": "ir", "by": 2, "outer": "it", "inner": "iv", "only": "At"}), ("reorder", {"order": ["it", "kl", "iv"], "only": "At"}),
           ("fuse", {"axis": ["it", "kl", "iv"], "only": "At"})), "vector", {"axis": "iv", "only": "At"}, "is not unit-stride in iv"),
    (after(matmul, *COPIED, ("split", {"axis": "kl", "by": 3, "outer": "kt", "inner": "kv", "only": "At"}), ("fuse", {"axis": ["ir", "kt", "kv"], "only": "At"})),
     "vector", {"axis": "kv", "only": "At"}, "begins at .*, which need not be a multiple of 3"),
    (after(retarget(after(matmul, *COPIED, ("split", {"axis": "kl", "by": 2, "outer": "kt", "inner": "kv", "only": "At"}), ("fuse", {"axis": ["ir", "kt", "kv"], "only": "At"})), "At", only=Assign, where=())),
     "vector", {"axis": "kv", "only": "At"}, "what else runs over kv may run beside the copy of A"),
    (after(retarget(after(matmul, *COPIED[:4], ("stage", {"array": "A", "into": "At", "index": ["ir", "kl"], "at": "ko"}), ("split", {"axis": "kl", "by": 2, "outer": "kt", "inner": "kv", "only": "At"})),
                    "At", where=(op("<", 0, "kv"),))), "vector", {"axis": "kv", "only": "At"}, "the guard .* is no bound from above"),
    (after(matmul, ("stage", {"array": "B", "into": "Bt", "index": ["k", "j"], "only": "x"}), ("split", {"axis": "j", "by": 2, "outer": "jo", "inner": "jv", "only": "Bt"})),
     "vector", {"axis": "jv", "only": "Bt"}, "is no memory of the team"),
    # spread
    (matmul, "spread", {"definition": "x", "axis": "i", "lane": "l", "into": "w"}, "x is no fold over i alone"),
    (matmul, "spread", {"definition": "x", "axis": "k", "lane": "l", "into": "w"}, "k ends at nk, which is no number"),
    # fuse
    (matmul, "fuse", {"axis": ["i", "k"]}, "no two sibling loops over k"),
    (matmul, "fuse", {"axis": "k"}, "no two sibling loops over k"),
    (matmul, "fuse", {"axis": "j"}, "no two sibling loops over j"),
    (matmul, "fuse", {"axis": "k", "only": ["x", "y"]}, "no two sibling loops over k"),
    (after(softmax, FUSE_I), "fuse", {"axis": "k", "only": ["m", "w"]}, "z stands between m and w"),
    (after(matmul, ("split_range", {"axis": "i", "at": 3, "rest": "z", "only": "y"})), "fuse", {"axis": "i"}, "the loops of x and y differ: serial 0..ni against"),
    (shift(1), "fuse", {"axis": "i"}, "fuse x i: x is complete only after the whole loop over i"),
    # split_range and clip
    (after(matmul, FUSE_I), "split_range", {"axis": "i", "at": 3, "rest": "z", "only": "x"}, "the loop holds x, y, not only x"),
    (matmul, "split_range", {"axis": "q", "rest": "z"}, "split_range q: no loop q"),
    (matmul, "clip", {"axis": "q"}, "clip q: no loop q"),
    (after(matmul, SPLIT_I, ("split", {"axis": "ir", "by": 1, "outer": "i1", "inner": "i2", "only": "x"}), ("fuse", {"axis": "io"})), "clip", {"axis": "io"}, "have different guards on io"),
    (guarded(op("<", op("*", "i", "i"), "ni")), "clip", {"axis": "i"}, "the guard .* is not affine in i"),
    # reverse and bind
    (matmul, "reverse", {"axis": "q"}, "no loop q"),
    (matmul, "reverse", {"axis": "k"}, "reverse x k: iterations over k share x"),
    (matmul, "bind", {"axis": "k", "kind": "thread"}, "race: iterations over k share x"),
    (matmul, "bind", {"axis": "j", "kind": "thread"}, "bind j: thread needs a constant extent"),
    (matmul, "bind", {"axis": "k", "kind": "parallel"}, "race: iterations over k share x\n.*hint: privatise it.*accumulate_in.*recompute"),
    (matmul, "bind", {"axis": "q", "kind": "parallel"}, "bind q: no serial loop q"),
    (matmul, "bind", {"axis": "j", "kind": "unroll"}, "bind j: unroll needs a constant extent, found 0 <= j < nj"),
    (after(matmul, SPLIT_J), "bind", {"axis": "jl", "kind": "lane", "only": "y"}, "bind y jl: lanes cannot be guarded one by one: .* < nj"),
    (after(matmul, SPLIT_J, ("pad_extent", {"array": "x", "dim": 1, "to": 4}), ("pad_extent", {"array": "x", "dim": 0, "to": 4})), "bind", {"axis": "jo", "kind": "lane"}, "constant extent"),
    (innermost(2), "bind", {"axis": "i", "kind": "lane"}, "a lane loop must be innermost"),
    (innermost(4, strided=True), "bind", {"axis": "c", "kind": "lane"}, "bind x c: x\\[c, i\\] is not unit-stride in c"),
    # online
    (softmax, "online", ONLINE, "online m k: no sibling loops over k with the fold m"),
    (after(lambda: softmax(normal("z", "i", op("+", Z, ref("u", "i"))), before=normal("u", "i", fold("max", "k", op("*", 2, ref("S", "i", "k"))))), *ROWS), "online", ONLINE, "is not exp2"),
    (after(lambda: kernel(MAXIMUM, SAFE, WEIGHTS, normal("v", "ik", ref("w", "i", "k")), TOTAL, MIXED, RESULT, outputs=("r", "v")), *ROWS), "online", ONLINE, "v reads w and is not listed in folds"),
    (after(lambda: kernel(MAXIMUM, SAFE, WEIGHTS, TOTAL, normal("g", "i", ref("t", "i")), SCALED, RESULT, outputs=("r", "g")), *ROWS), "online", ONLINE, "g reads t between the loops, which use g"),
    (after(lambda: kernel(MAXIMUM, SAFE, WEIGHTS, TOTAL, MIXED, RESULT, normal("v", "i", ref("w", "i", 0)), outputs=("r", "v")), *ROWS), "online", ONLINE, "w is read by v after the loop"),
    (after(softmax, *ROWS, ("split_range", {"axis": "k", "at": 3, "rest": "kz", "only": "o"})), "online", ONLINE, "different bounds"),
    (after(lambda: softmax(normal("m", "i", fold("sum", "k", ref("S", "i", "k")))), *ROWS), "online", ONLINE, "m is no max-fold"),
    (after(lambda: softmax(normal("t", "i", fold("sum", "k", op("*", ref("w", "i", "k"), ref("z", "i"))))), *ROWS), "online", ONLINE, "t reads z before it is complete"),
    (after(lambda: softmax(normal("t", "i", fold("sum", "k", op("+", ref("w", "i", "k"), 1)))), *ROWS), "online", ONLINE, "t is no sum linear in w"),
    (after(lambda: softmax(normal("w", "ik", op("exp2", op("*", ref("S", "i", "k"), ref("z", "i"))))), *ROWS), "online", ONLINE, "w is not exp2"),
    (after(lambda: softmax(normal("w", "ik", op("exp2", op("-", op("+", ref("S", "i", "k"), ref("c", "i")), ref("z", "i")))), before=normal("c", "i", fold("sum", "k", ref("S", "i", "k")))), *ROWS), "online", ONLINE, "c is complete only after"),
    (after(lambda: softmax(normal("o", "e", fold("sum", "k", op("*", ref("w", 0, "k"), ref("V", "k", "e")))), normal("r", "ie", ref("o", "e"))), ("reorder", {"order": ["k", "i", "e"]})), "online", ONLINE, "o has no axis i of the maximum"),
    (retarget_first(after(softmax, *ROWS), "t", value=Num(1.0)), "online", ONLINE, "t does not start at 0"),
    # other places to fold
    (after(matmul, FUSE_I), "accumulate_in", {"array": "x", "into": "a"}, "no nest of its own writes x"),
    (after(matmul, FUSE_I), "recompute", {"which": "x", "readers": "y"}, "fused with others"),
    (matmul, "split_fold", {"definition": "y", "axis": "k", "into": "p"}, "y is no initialisation and one fold"),
    (matmul, "split_fold", {"definition": "x", "axis": "i", "into": "p"}, "x does not fold over i"),
    (softmax, "repeat", {"which": ["m"], "axis": "q"}, "no loop q from 0"),
    (after(softmax, FUSE_I), "repeat", {"which": ["m"], "axis": "e"}, "fused with others"),
    (softmax, "repeat", {"which": ["m", "w"], "axis": "e"}, "t, z reads m, w and has no e"),
    # rebase
    (after(softmax, *PARTS), "rebase", REBASE | {"part": "pt"}, "m is no fold of pt over ko"),
    (retarget(after(softmax, *PARTS), "z", target=ref("z", 0)), "rebase", REBASE, "is not at the index of"),
    (after(lambda: softmax(normal("w", "ik", op("exp2", op("*", ref("S", "i", "k"), ref("z", "i"))))), *PARTS), "rebase", REBASE, "w is not exp2"),
    (after(softmax, *PARTS), "rebase", REBASE | {"folds": ["pt"]}, "po is no sum linear in w"),
    (after(softmax, *PARTS), "rebase", REBASE | {"folds": ["pt", "po", "t"]}, "r does not add t over ko"),
    (after(lambda: softmax(normal("r", "ie", op("+", ref("o", "i", "e"), op("/", ref("z", "i"), ref("t", "i"))))), *PARTS), "rebase", REBASE, "r reads z too"),
    # decide
    (causal, "decide", {"definition": "s"}, "no choice in s is proved to be made"),
    (growing, "split_fold", {"definition": "x", "axis": "k", "into": "p"}, "the number of parts .* changes"),
    (softmax, "fold_into", {"definition": "m", "reader": "z"}, "m is no sum from 0 that z alone reads"),
    (lambda: kernel(PRODUCT, normal("y", "ij", op("exp2", ref("x", "i", "j"))), outputs=("y",)), "fold_into", {"definition": "x", "reader": "y"}, "is not a·x"),
    (after(lambda: kernel(PRODUCT, DOUBLE, normal("u", "ij", ref("y", "i", "j")), outputs=("y", "u")), ("fuse", {"axis": "i", "only": ["y", "u"]})), "fold_into", {"definition": "x", "reader": "y"}, "y shares its nest"),
    (overwritten, "fold_into", {"definition": "x", "reader": "y"}, "overwritten later"),
    (after(matmul, ("fold_into", {"definition": "x", "reader": "y"}), ("split", {"axis": "k", "by": 2, "outer": "ko", "inner": "kl"})), "peel_first", {"definition": "y", "axis": "ko"}, "no sum over ko alone"),
    (after(causal, ("skip", {"axis": "k", "mask": "s"})), "peel_first", {"definition": "t", "axis": "k"}, "the end .* of k changes"),
    (retarget(matmul, "x", where=(op("<", "i", 3),), only=Accumulate), "peel_first", {"definition": "x", "axis": "k"}, "guards that its initialisation lacks"),
    (after(softmax, FUSE_I), "privatise", {"definition": "t", "lane": "k", "at": "e"}, "no loop e writes t"),
    (after(softmax, SPLIT, FUSE_I), "privatise", {"definition": "t", "lane": "i", "at": "ko"}, "t is no sum over i in this loop"),
    (retarget_first(after(softmax, SPLIT, FUSE_I), "t", value=Num(1.0)), "privatise", {"definition": "t", "lane": "kl", "at": "ko"}, "t does not start at 0"),
    (updated(op("+", ref("t", "i"), 1)), "privatise", {"definition": "t", "lane": "kl", "at": "ko"}, "updates it by .*, which is no sum and no scaling"),
    (updated(op("+", ref("t", "i"), 1), target=ref("z", "i")), "privatise", {"definition": "t", "lane": "kl", "at": "ko"}, "reads t in the loop"),
    # who folds
    (matmul, "atomic", {"definition": "y"}, "atomic y: y has 0 folds, one is needed"),
    (softmax, "atomic", {"definition": "m"}, "m is a max into workspace m"),
    (after(matmul, SPLIT_J, ("pad_extent", {"array": "x", "dim": 1, "to": 4}), ("stage", {"array": "B", "into": "Bt", "index": ["jo", "k", "jl"], "fill": 0}), ("pad", {"axis": "jl", "only": "x"}), ("reorder", {"order": ["i", "jo", "k", "jl"], "only": "x"}), ("bind", {"axis": "jl", "kind": "lane", "only": "x"})), "atomic", {"definition": "x"}, "lanes jl have no atomic update"),
    (after(matmul, SPLIT_J, ("pad_extent", {"array": "x", "dim": 1, "to": 4}), ("stage", {"array": "B", "into": "Bt", "index": ["jo", "k", "jl"], "fill": 0}), ("pad", {"axis": "jl", "only": "x"}), ("reorder", {"order": ["i", "jo", "k", "jl"], "only": "x"}), ("atomic", {"definition": "x"})), "bind", {"axis": "jl", "kind": "lane", "only": "x"}, "the update of x is atomic: lanes have none"),
    (after(softmax, ("fuse", {"axis": "i", "only": ["w", "t"]})), "own", {"definition": "t", "order": ["i", "k"], "parallel": "i"}, "own t w: w is made in the nest that t leaves"),
    (after(softmax, ("reorder", {"order": ["i", "k", "e"], "only": ["t", "o"]}), ("fuse", {"axis": "i", "only": ["t", "o", "r"]})), "own", {"definition": "o", "order": ["e", "k", "i"], "parallel": "e"}, "others touch o in the nest that o leaves"),
    (retarget(matmul, "x", value=op("+", ref("x", "j", "i"), 1), only=Accumulate), "own", {"definition": "x", "order": ["j", "i", "k"], "parallel": "j"}, "x reads .'x'. while writing it"),
    (matmul, "own", {"definition": "x", "order": ["k", "i", "j"], "parallel": "k"}, "own x k: race: iterations over k share x"),
    # storage
    (matmul, "contract", {"array": "y"}, "contract y: y is an output"),
    (matmul, "contract", {"array": "x"}, "contract x: no loop encloses all accesses of x"),
    (reversed_use, "contract", {"array": "x"}, "contract x i: x is read before it is assigned"),
    (moved(ref("x", op("-", "i", 1))), "contract", {"array": "x"}, "contract x i: x\\[\\(i - 1\\)\\]|is read at"),
    (moved(ref("x", op("*", "i", 2))), "contract", {"array": "x"}, "is not in the iteration of i"),
    (triangle, "contract", {"array": "x"}, "its extent would change with i"),
    (softmax, "alias", {"array": "w", "onto": "m"}, "alias w m: workspace w.* does not fit workspace m"),
    (transposed, "alias", {"array": "u", "onto": "x"}, "needs x\\[j, i\\], which may be overwritten already"),
    (peeking, "alias", {"array": "u", "onto": "x"}, "v reads x at another place"),
    (kept_alive, "alias", {"array": "u", "onto": "x"}, "x is still used by v after u is stored"),
    (matmul, "ravel", {"array": "x", "dim": 1}, "ravel x: no dimensions 1 and 2, x has 2"),
    (matmul, "ravel", {"array": "A", "dim": 0}, "A is an input"),
    (matmul, "block", {"array": "x", "dim": 2, "by": 2}, "block x: no dimension 2, x has 2"),
    (matmul, "block", {"array": "x", "dim": 0, "by": 2}, "index i does not fall into blocks of 2"),
    (matmul, "layout", {"array": "x", "order": [0, 0]}, "does not permute its 2 dimensions"),
    (matmul, "pad_extent", {"array": "x", "dim": 5, "to": 2}, "no dimension 5"),
    (matmul, "stream", {"array": "x"}, "stream x: x is an workspace"),
    (matmul, "prefetch", {"array": "A", "definition": "x", "axis": "j"}, "prefetch A j: x reads no element of A that changes with j"),
    (matmul, "prefetch", {"array": "A", "definition": "q", "axis": "i"}, "prefetch q: no such definition"),
    (matmul, "prefetch", {"array": "A", "definition": "x", "axis": "i", "by": 0}, "prefetch A i: by = 0"),
    (matmul, "prefetch_stored", {"array": "y", "definition": "x"}, "prefetch_stored y: no other definition stores to it at the loops around x"),
    (after(matmul, FUSE_I), "prefetch_stored", {"array": "x", "definition": "x"}, "prefetch_stored x: no other definition stores"),
    (after(matmul, FUSE_I), "prefetch_stored", {"array": "y", "definition": "q"}, "prefetch_stored q: no such definition"),
    (after(matmul, FUSE_I, ("stream", {"array": "y"})), "prefetch_stored", {"array": "y", "definition": "x"}, "it is stored past the caches"),
    (in_strips, "prefetch", {"array": "B", "definition": "x", "axis": "k", "rows": "ir"}, "prefetch B ir: ir does not count the rows of B\\[k, "),
    (in_strips, "prefetch", {"array": "B", "definition": "x", "axis": "k", "rows": "k"}, "prefetch B k: k does not count the rows of B\\[k, "),
    (matmul, "layout", {"array": "q", "order": [0]}, "no array q"),
    (matmul, "place", {"array": "x", "space": "shared"}, "x is workspace, not one iteration's own"),
    (after(matmul, FUSE_I, ("contract", {"array": "x"})), "place", {"array": "x", "space": "shared"}, "its extent nj is no number"),
    (grown, "narrow", {}, "narrow C0: C0 stores a computed value in C0"),
    (after(lambda: kernel(PRODUCT, DOUBLE, outputs=("x", "y")), ("stage", {"array": "A", "into": "x_wide", "index": ["i", "k"]})), "narrow", {}, "narrow x_wide: the name is taken"),
    # stage and fill
    (matmul, "stage", {**STAGE, "only": "y"}, "stage B: y does not read B"),
    (lambda: kernel(normal("y", "i", op("+", ref("A", "i", 0), ref("A", "i", 1))), outputs=("y",)), "stage", {"array": "A", "into": "At", "index": ["i"]}, "read at several indices: A\\[i, 0\\], A\\[i, 1\\]"),
    (matmul, "stage", {**STAGE, "index": ["k"]}, "axes j are neither in the layout nor fixed at the root"),
    (in_registers, "stage", {"array": "x_tile", "into": "q", "index": ["jl"]}, "x_tile lives in registers"),
    (after(matmul, FUSE_I), "stage", {"array": "x", "into": "xt", "index": ["i", "j"]}, "x is written in the nest that reads it"),
    (after(matmul, FUSE_I), "stage", {"array": "x", "into": "xt", "index": ["j"], "at": "i"}, "x is written inside the loop i"),
    (matmul, "stage", {**STAGE, "index": ["k", "e"]}, "x has no loop e"),
    (matmul, "stage", {**STAGE, "into": "x"}, "stage x: the name is taken"),
    (after(causal, ("skip", {"axis": "k", "mask": "s"})), "stage", {"array": "S", "into": "St", "index": ["k", "i"]}, "the bound .* of k needs i"),
    (ragged, "stage", {"array": "A", "into": "At", "index": ["i", "k"]}, "the extent .* of k changes with i"),
    (matmul, "fill", {"definition": "y", "value": 0}, "fill y : it is no assignment with a guard"),
    (after(matmul, SPLIT_I), "fill", {"definition": "y", "value": 0}, "y is an output, or has several writers"),
    (after(matmul, SPLIT_I), "fill", {"definition": "x", "value": 0}, "x has 2 leaves, one is needed"),
    (after(causal, SPLIT), "fill", {"definition": "w", "value": 0}, "leaves w, whose extent is nk"),
    (retarget(after(causal, SPLIT), "w", value=op("*", 2, ref("w", "i", op("+", op("*", "ko", 4), "kl")))), "fill", {"definition": "w", "value": 0}, "w reads what it writes"),
    # edges
    (after(causal, SPLIT), "mask", {"definition": "w", "axis": "kl", "value": 0, "name": "z"}, "z is no guarded select"),
    (matmul, "mask", {"definition": "x", "axis": "k", "value": 0, "name": "q"}, "x has no guard on k"),
    (after(matmul, SPLIT_I), "pad", {"axis": "ir", "only": "y"}, "y is an output: it has no room past the edge"),
    (matmul, "pad", {"axis": "q"}, "pad q: no loop over it"),
    (after(matmul, SPLIT_I), "pad", {"axis": "ir"}, "leaves x, whose extent is ni"),
    (tail(4), "pad", {"axis": "kl"}, "the sum t would see .* past the edge, not 0.0"),
    (tail(op('min', 4, 'nk'), False), "pad", {"axis": "kl"}, "t reads w further than w stores it"),
    (after(matmul, ("split", {"axis": "k", "by": 4, "outer": "ko", "inner": "kl"}), ("stage", {"array": "A", "into": "At", "index": ["i", "ko", "kl"], "fill": 0}), ("stage", {"array": "B", "into": "Bt", "index": ["ko", "kl", "j"]})), "pad", {"axis": "kl", "only": "x"}, "x reads Bt further than Bt stores it"),
    (matmul, "hoist_mask", {"definition": "y"}, "y is no unguarded in-place select"),
    (on_data, "hoist_mask", {"definition": "y"}, "is no affine comparison"),
    (matmul, "overwrite", {"definition": "y"}, "y is no in-place select"),
    (causal, "overwrite", {"definition": "s"}, "s is no in-place select"),
    (matmul, "bind", {"axis": "k", "kind": "unroll", "schedule": "paired"}, "paired is for parallel loops from 0, found unroll"),
    (matmul, "skip", {"axis": "k", "mask": "y"}, "y is no select\\(condition, value, number\\)"),
    (causal, "skip", {"axis": "q", "mask": "s"}, "skip q: no loop over it"),
    (lambda: causal(weights=normal("w", "ik", op("+", ref("s", "i", "k"), 1))), "skip", {"axis": "k", "mask": "s"}, "t over k is no identity where s is -inf"),
    (lambda: causal(normal("u", "i", op("+", ref("w", "i", 0), 1)), outputs=("t", "u")), "skip", {"axis": "k", "mask": "s"}, "u uses all of w"),
    (lambda: causal(outputs=("t", "w")), "skip", {"axis": "k", "mask": "s"}, "w is an output"),
    (after(causal, ("split", {"axis": "k", "by": 4, "outer": "ko", "inner": "kl", "only": "t"}), ("split", {"axis": "k", "by": 2, "outer": "ko", "inner": "kl", "only": ["s", "m", "w"]})), "skip", {"axis": "ko", "mask": "s"}, "t reads tiles of"),
    (after(lambda: causal(normal("v", "k", ref("S", 0, "k")), outputs=("t", "v")), ("reorder", {"order": ["k", "i"]}), ("fuse", {"axis": "k", "only": ["s", "v"]})), "skip", {"axis": "k", "mask": "s", "over": "i"}, "v is not masked and shares the loop"),
    (shared_loop, "skip", {"axis": "k", "mask": "s"}, "end at different places"),
    # register tiles
    (matmul, "register_tile", {"definition": "y", "lane": "j", "fold": "k"}, "no fold of y in a perfect nest over j × k"),
    (tile_of(1.0, twice=True), "register_tile", {"definition": "x", "lane": "j", "fold": "k"}, "x has 2 such nests"),
    (after(matmul, SPLIT_J), "register_tile", {**TILE, "lane": "jl", "rows": []}, "guards are left"),
    (matmul, "register_tile", TILE, "the extent of i is ni, not a constant"),
    (tile_of(1.0), "register_tile", {"definition": "x", "lane": "j", "fold": "i"}, "must move with .* and not with i"),
    (tile_of(1.0, bound=op('+', 'j', 1)), "register_tile", {"definition": "x", "lane": "j", "fold": "k"}, "the bound .* of k needs j"),
    (tile_of(ref('x', 'j', 'i')), "register_tile", {"definition": "x", "lane": "j", "fold": "k"}, "while writing it"),
    (tile_of(ref('A', 'j', 'k')), "register_tile", {"definition": "x", "lane": "j", "fold": "k"}, "A\\[j, k\\] is not unit-stride in j"),
    (matmul, "sink_scale", {"array": "x"}, "no nest x ← x·y"),
]


def test_a_condition_names_an_option_of_the_form():
    item = {"fuse": {"axis": "i"}, "when": "causal"}
    with pytest.raises(LiftError, match="lift 1, fuse: when: causal, but the form has no option causal"):
        apply_script(matmul(), [item], {}, {"lse": True})
    assert apply_script(matmul(), [item], {}, {"causal": None}) == ()
    assert len(apply_script(matmul(), [{**item, "when": "not causal"}], {}, {"causal": None})) == 1


def test_a_refusal_can_be_asked_for():
    """The derivation then shows what the next lift is the answer to; the loop nest stays."""
    race = {"bind": {"axis": "k", "kind": "parallel"}, "refused": "race"}
    tried, done = apply_script(matmul(), [race, {"fuse": {"axis": "i"}}], {}, {})
    assert tried.kernel == matmul() and "race: iterations over k share x" in tried.refusal and not done.refusal
    with pytest.raises(LiftError, match="lift 1, bind x k: race"):
        apply_script(matmul(), [{**race, "refused": "another reason"}], {}, {})
    with pytest.raises(LiftError, match=r"lift 1, fuse: the script says that it is refused .race., but it is legal"):
        apply_script(matmul(), [LEGAL], {}, {})


LEGAL = {"fuse": {"axis": "i"}, "refused": "race"}


@pytest.mark.parametrize(("make", "lift", "arguments", "message"), CASES, ids=[f"{n} {l}" for n, (_, l, _, _) in enumerate(CASES)])
def test_refusals(make, lift, arguments, message):
    with pytest.raises(LiftError, match=f"(?s){message}"):
        apply_script(make(), [{lift: arguments}], {}, {})


def raising_lines():
    """(file, line) of every statement that raises a refusal."""
    return {
        (path.name, node.lineno)
        for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and getattr(node.exc.func, "id", "") in ("refusal", "LiftError")
    }  # fmt: skip


def raised_at(make, item):
    """(file, line) of the statement that raised, inside the lifts."""
    try:
        apply_script(make(), [item], {}, {})
    except LiftError as e:
        inner = e.__cause__ or e
        frames = [f for f in traceback.extract_tb(inner.__traceback__) if Path(f.filename) in SOURCES]
        return (Path(frames[-1].filename).name, frames[-1].lineno)
    return None


def test_every_refusal_is_tested():
    covered = {raised_at(make, {lift: arguments}) for make, lift, arguments, _ in CASES}
    covered |= {raised_at(matmul, item) for item in ({"fuse": {"axis": "i"}, "when": "causal"}, LEGAL)} | {("script.py", line) for line in rewrapped()}
    missing = sorted(raising_lines() - covered)
    assert not missing, f"no test reaches {missing}"


def rewrapped():
    """The line that adds the item's number to a refusal: every case passes it."""
    path = next(p for p in SOURCES if p.name == "script.py")
    return [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise) and node.cause is not None]


def test_lifts_are_documented():
    for row in LIFTS.values():
        assert row.text.endswith(".") and len(row.text) > 40
