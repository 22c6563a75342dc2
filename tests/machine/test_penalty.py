"""What locality makes of a prediction: the matrix, the barriers, the ceiling; and the calibration's JSON and back."""

import json
from dataclasses import replace

import pytest
from tests.machine import machines

from moapipe.machine.arrangement import Arrangement
from moapipe.machine.locality import Locality, barrier_key
from moapipe.machine.penalty import MARGIN, ceiling, memory_factor, placed, region_seconds
from moapipe.machine.predict import Prediction
from moapipe.machine.seating import arrange

NODES = range(8)


def matrix(near=40e9, far=10e9):
    """Eight nodes: what each reads from its own, and from any other."""
    return {f"{i}/{j}": near if i == j else far for i in NODES for j in NODES}


KNOWN = Locality(bandwidth=matrix(), latency={k: 1e-7 if v == 40e9 else 2.5e-7 for k, v in matrix().items()},
                 barrier={"threads=8 cores=1": 6e-5, "threads=8 cores=1 believed_cpus=128": 0.064, "threads=2": 5e-7})
PREDICTION = Prediction(1.1e-3, 4e-4, 1e-3, 1e-4, "L3", {"L2": 1 << 22, "L3": 1 << 25}, {"L2": 1e11, "L3": (1 << 25) / 1e-3}, moving={"L2": 4e-5, "L3": 1e-3})


def nps4():
    return machines.synthetic(machines.MILAN_NPS4)


def factor(known=KNOWN, **asked):
    top = nps4()
    return memory_factor(arrange(Arrangement(**asked), top), top, known)


@pytest.mark.parametrize(("asked", "expected"), [
    ({"threads": 128, "cores": 128}, 1.0),                                                       # everybody its own
    ({"threads": 16, "cores": 16, "memory": "node:0"}, 1.0),                                     # one node's threads on their node
    ({"threads": 16, "cores": 16, "memory": "node:7"}, 4.0),                                     # and on a far one
    ({"threads": 128, "cores": 128, "memory": "one"}, 8.0),                                      # eight nodes' readers take from one
    ({"threads": 16, "cores": 16, "memory": "interleave"}, 3.625),                               # an eighth near, the rest far
])
def test_memory_is_as_much_slower_as_the_matrix_says(asked, expected):
    assert factor(**asked) == pytest.approx(expected)


def test_without_a_matrix_nothing_is_slower():
    assert factor(Locality(), threads=16, cores=16, memory="node:7") == 1.0


def test_the_ceiling_is_that_of_all_nodes_on_one():
    assert ceiling(nps4(), KNOWN) == pytest.approx(8.0)
    assert ceiling(nps4(), replace(KNOWN, latency={k: 1e-6 if v > 1e-7 else 1e-7 for k, v in KNOWN.latency.items()})) == pytest.approx(10.0)
    assert ceiling(machines.synthetic("pack:1 [numa(memory=1073741824)] core:4 pu:1"), KNOWN) == 1.0
    assert MARGIN * ceiling(nps4(), KNOWN) < 15


@pytest.mark.parametrize(("asked", "expected"), [
    (Arrangement(8, 1, believed_cpus=128), 0.064),
    (Arrangement(8, 1, memory="interleave"), 6e-5),               # a barrier does not know where pages lie
    (Arrangement(8, 1, placement="one_core"), 6e-5),              # not measured there: as compact
    (Arrangement(2, 2, believed_cpus=64), 5e-7),                  # a belief that does no harm
    (Arrangement(3, 3), 1e-6),
])
def test_a_region_is_as_long_as_its_barrier(asked, expected):
    assert region_seconds(asked, KNOWN, 1e-6) == expected


def test_a_prediction_under_an_arrangement():
    top = nps4()
    far = placed(PREDICTION, 1, arrange(Arrangement(16, 16, memory="node:7"), top), top, KNOWN)
    assert (far.memory, far.slowest, far.compute) == (pytest.approx(4e-3), "L3", 4e-4)
    assert far.seconds == pytest.approx(4e-3 + far.overhead)
    collapsed = placed(PREDICTION, 3, arrange(Arrangement(8, 1, believed_cpus=128), top), top, KNOWN)
    assert collapsed.overhead == pytest.approx(3 * 0.064)
    usual = placed(PREDICTION, 2, arrange(Arrangement(5, 5), top), top, KNOWN)
    assert usual == replace(PREDICTION, seconds=usual.seconds)
    assert usual.seconds == pytest.approx(PREDICTION.seconds)


def test_the_key_of_a_barrier_leaves_memory_out():
    assert barrier_key(Arrangement(2, 2, memory="one")) == barrier_key(Arrangement(2, 2))


def test_json_and_back():
    known = replace(KNOWN, topology=nps4(), clock={1: 4.2e9, 128: 3.4e9})
    assert Locality.from_json(json.loads(json.dumps(known.to_json()))) == known
    assert Locality.from_json({}) == Locality()
