"""A stored loop nest is the loop nest."""

from __future__ import annotations

import json
from math import inf

import pytest
from tests.loops.nests import NESTS, array, loop, ref

from moapipe.algebra.scalar import Fold, Num, Var, op, scalar
from moapipe.errors import LiftError
from moapipe.loops.onf import Accumulate, Alloc, Array, Assign, Kernel, Loop, onf_hash
from moapipe.loops.onf_json import from_json, to_json


def everything():
    body = (Alloc("t"), Loop("i", scalar(1), op("min", "n", 8), (loop("v", 4, Accumulate("max", ref("t", "v"), op("neg", 0.1), (op("<", "i", "n"),), "t"),
            kind="lane"),), "parallel", "dynamic", "scores"), Assign(ref("C"), scalar(-inf), (), "C", (ref("u"),)), Accumulate("sum", ref("C"), scalar(1), (), "C", (), True))
    return Kernel("all", ("n",), (Array("C", (), "output", stream=True), Array("t", (Num(4),), "private", -inf), Array("u", (), "workspace", 0.0), Array("v", (Num(2),), "input", narrow=True)), body)


@pytest.mark.parametrize("kernel", [*NESTS.values(), everything()], ids=[*NESTS, "everything"])
def test_round_trip(kernel):
    again = from_json(json.loads(json.dumps(to_json(kernel), allow_nan=False)))
    assert again == kernel and onf_hash(again) == onf_hash(kernel)


@pytest.mark.parametrize(("change", "message"), [
    ({"schema": 0}, "schema 0, expected 1"), ({"body": [{"goto": "x"}]}, r"statement \['goto'\]"),
    ({"body": [{"if": {"of": 3}, "body": []}]}, "cannot read the scalar"), ({"body": [{"target": "x", "value": 1, "name": ""}]}, "cannot read the statement")])
def test_damage_is_told(change, message):
    with pytest.raises(LiftError, match=message):
        from_json({**to_json(NESTS["catenation"]), **change})


def test_a_fold_is_no_loop_nest():
    k = Kernel("k", (), (array("C", "output"),), (Assign(ref("C"), Fold("sum", "i", Num(0), Num(3), Var("i")), (), "C"),))
    with pytest.raises(LiftError, match="fold is left"):
        to_json(k)
