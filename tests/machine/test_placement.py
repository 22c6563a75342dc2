"""Placements as explicit lists of CPUs on machines of many shapes; their reduction against numpy; memory policies and what cannot be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine import machines

from moapipe.algebra.evaluation import meaning_expr
from moapipe.errors import LabError
from moapipe.machine.placement import MAPS, Memory, cpus, definition, derivation, memory, places
from moapipe.machine.topology import HOLE, Topology, from_xml, probe


def of(description: str, allowed=None) -> Topology:
    made = {"gpus": machines.reversed_gpus, "hopper": machines.grace_hopper, "memoryless": machines.memoryless}.get(description)
    return machines.whole(made()) if made else machines.synthetic(description, allowed)


def steps(*runs):
    """(first, count, step) runs as one list."""
    return tuple(first + k * step for first, count, step in runs for k in range(count))


HOLES = [*range(16, 24), *range(40, 48)]
EXPECTED = [
    (machines.MILAN_NPS1, None, "compact", tuple(range(128))),
    (machines.MILAN_NPS1, None, "spread", tuple(64 * s + 8 * l + c for c in range(8) for l in range(8) for s in range(2))),
    (machines.MILAN_NPS1, None, "per_socket", (0, 64)),
    (machines.MILAN_NPS1, None, "per_numa", (0, 64)),
    (machines.MILAN_NPS1, None, "per_l3", steps((0, 16, 8))),
    (machines.MILAN_NPS1, None, "numa:1", tuple(range(64, 128))),
    (machines.MILAN_NPS1, None, "one_core", (0,)),
    (machines.MILAN_NPS4, None, "compact", tuple(range(128))),
    (machines.MILAN_NPS4, None, "spread", tuple(64 * s + 16 * n + 8 * l + c for c in range(8) for l in range(2) for n in range(4) for s in range(2))),
    (machines.MILAN_NPS4, None, "per_numa", steps((0, 8, 16))),
    (machines.MILAN_NPS4, None, "per_l3", steps((0, 16, 8))),
    (machines.MILAN_NPS4, None, "numa:3", tuple(range(48, 64))),
    ("gpus", None, "per_numa", (0, 16, 32, 48)),
    ("gpus", None, "per_socket", (0,)),
    ("gpus", None, "compact", tuple(range(64))),
    ("gpus", None, "spread", tuple(16 * n + 8 * l + c for c in range(8) for l in range(2) for n in range(4))),
    ("gpus", None, "numa:3", tuple(range(48, 64))),
    (machines.XEON_8468, None, "compact", tuple(range(96))),
    (machines.XEON_8468, None, "per_numa", (0, 48)),
    ("hopper", None, "compact", tuple(range(288))),
    ("hopper", None, "spread", tuple(72 * s + c for c in range(72) for s in range(4))),
    ("memoryless", None, "compact", tuple(range(8))),
    ("memoryless", None, "spread", (0, 4, 1, 5, 2, 6, 3, 7)),
    ("memoryless", None, "numa:0", (0, 1, 2, 3)),
    (machines.XEON_8468, None, "per_l3", (0, 48)),
    (machines.XEON_8468, None, "spread", tuple(48 * s + c for c in range(48) for s in range(2))),
    ("hopper", None, "per_numa", (0, 72, 144, 216)),
    ("hopper", None, "numa:3", tuple(range(216, 288))),
    ("memoryless", None, "per_numa", (0, 4)),
    (machines.INTERLEAVED, None, "compact", (0, 2, 4, 6, 1, 3, 5, 7)),
    (machines.INTERLEAVED, None, "spread", tuple(range(8))),
    (machines.INTERLEAVED, None, "numa:1", (1, 3, 5, 7)),
    (machines.SMT, None, "compact", tuple(range(32))),
    (machines.SMT, None, "siblings", tuple(c + 16 * p for c in range(16) for p in range(2))),
    (machines.SMT, None, "per_l3", (0, 4, 8, 12)),
    (machines.SMT, None, "unbound", tuple(range(32))),
    (machines.MILAN_NPS4, HOLES, "compact", tuple(HOLES)),
    (machines.MILAN_NPS4, HOLES, "spread", tuple(c for k in range(8) for c in (16 + k, 40 + k))),
    (machines.MILAN_NPS4, HOLES, "per_numa", (16, 40)),
    (machines.MILAN_NPS4, HOLES, "numa:1", tuple(range(40, 48))),
    (machines.MILAN_NPS4, HOLES, "one_core", (16,)),
    (machines.SMT, [3, 5, 19, 21, 25], "compact", (3, 5, 25, 19, 21)),
]


@pytest.mark.parametrize(("description", "allowed", "name", "expected"), EXPECTED)
def test_placements_are_these_cpus(description, allowed, name, expected):
    assert places(of(description, allowed), name) == expected


@pytest.mark.parametrize("name", [*MAPS, "numa:1"])
@settings(deadline=None)
@given(mask=st.sets(st.integers(0, 31), min_size=1).filter(lambda m: {c // 8 % 2 for c in m} == {0, 1}))
def test_the_reduction_is_what_numpy_says_of_the_expression(name, mask):
    """And no placement names a CPU twice, or one outside the mask."""
    top = of(machines.SMT, mask)
    d = definition(top, name)
    value = meaning_expr(d.definitions[0].expr, {"machine": np.array(top.array).reshape(top.shape)}, {})
    assert places(top, name) == tuple(c for c in value.tolist() if c != HOLE)
    assert set(places(top, name)) <= mask
    assert len(set(places(top, name))) == len(places(top, name)) > 0


@pytest.mark.parametrize("name", ["compact", "siblings", "spread", "unbound"])
@pytest.mark.parametrize("description", [machines.MILAN_NPS1, machines.MILAN_NPS4, machines.XEON_8468, "hopper", "gpus", "memoryless", machines.INTERLEAVED])
def test_whole_machine_placements_use_every_cpu(description, name):
    top = of(description)
    assert sorted(places(top, name)) == list(top.cpus)


@pytest.mark.parametrize(("threads", "expected"), [(1, (0,)), (3, (0, 1, 2)), (99, tuple(range(32)))])
def test_threads_get_the_first_places(threads, expected):
    assert cpus(of(machines.SMT), threads) == expected


def test_no_thread_has_no_place():
    with pytest.raises(LabError, match="0 threads"):
        cpus(of(machines.SMT), 0)


@pytest.mark.parametrize(("name", "message"), [("numa:2", "no memory node number 2 with CPUs"), ("numa:x", "no placement"), ("nearby", "no placement 'nearby'")])
def test_what_is_not_there_is_said(name, message):
    with pytest.raises(LabError, match=message):
        places(of(machines.SMT), name)


def test_a_placement_shows_its_normal_form():
    assert "⟨(t mod 2) (t ⌊÷⌋ 2 mod 4)" in derivation(of(machines.MILAN_NPS4), "spread")


def test_this_machine_places_every_cpu():
    top = probe()
    assert sorted(places(top)) == list(top.cpus)


# ------------------------------------------------------------------ memory


def far() -> Topology:
    rows = ((10, 12, 12, 12, 32, 32, 32, 32), *((12,) * 8 for _ in range(7)))
    xml = machines.synthetic_xml(machines.MILAN_NPS4).replace("</topology>", machines.distances(rows) + "</topology>")
    return machines.whole(xml)


@pytest.mark.parametrize(("name", "expected"), [
    ("owner", Memory("first_touch")), ("one", Memory("first_touch", touchers="one")), ("interleave", Memory("interleave", tuple(range(8)))),
    ("remote", Memory("bind", (7,))), ("node:2", Memory("bind", (2,))),
])
def test_memory_policies(name, expected):
    assert memory(far(), name, (0,)) == expected


def test_memory_of_a_device_can_be_named_and_is_never_remote_by_itself():
    top = of("hopper")
    assert memory(top, "node:12", (0,)) == Memory("bind", (12,))
    assert memory(top, "remote", (0,)) == Memory("bind", (3,))
    assert memory(top, "interleave", (0,)).nodes == (0, 1, 2, 3)


@pytest.mark.parametrize(("top", "name", "message"), [
    (lambda: of("memoryless"), "node:0", "node 0 has no memory"), (lambda: of("memoryless"), "remote", None), (lambda: of("memoryless"), "node:7", "no memory node 7"),
    (lambda: from_xml(machines.synthetic_xml(machines.MILAN_NPS1), range(128), frozenset({0})), "node:1", "not left to this process"),
    (lambda: from_xml(machines.synthetic_xml(machines.MILAN_NPS1), range(64), frozenset({0})), "remote", "no other memory node"),
    (lambda: of(machines.SMT), "nearby", "no memory placement"),
])
def test_memory_that_cannot_be_has_a_reason(top, name, message):
    if message is None:
        assert memory(top(), name, (0,)) == Memory("bind", (1,))
    else:
        with pytest.raises(LabError, match=message):
            memory(top(), name, (0,))


def test_a_restricted_machine_never_gives_an_outside_cpu():
    top = machines.synthetic(machines.MILAN_NPS1, [126, 127])
    assert all(set(places(top, name)) <= {126, 127} for name in MAPS)
