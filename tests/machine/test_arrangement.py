"""Sweeps from lists, arrangements on machines: explicit CPUs and masks, what a machine cannot do with its reason."""

import pytest
from tests.machine import machines

from moapipe.machine.arrangement import ALL, MEMORIES, PLACEMENTS, Arrangement, Sweep
from moapipe.machine.placement import MAPS, Memory
from moapipe.machine.seating import arrange, settled

NPS4, SMT = machines.MILAN_NPS4, machines.SMT


def on(description, **asked):
    top = machines.synthetic(description)
    return [(a, arrange(a, top)) for a in settled(Arrangement(**asked), top)]


@pytest.mark.parametrize(("asked", "places"), [
    ({"threads": 3}, (0, 1, 2)),
    ({"threads": 3, "placement": "spread"}, (0, 64, 16)),
    ({"threads": ALL, "placement": "per_l3"}, tuple(range(0, 128, 8))),
    ({"threads": ALL, "placement": "per_numa"}, tuple(range(0, 128, 16))),
    ({"threads": 8, "cores": 1}, (0,)),
    ({"threads": 8, "cores": 2, "placement": "numa:3"}, (48, 49)),
    ({"threads": 8, "placement": "one_core"}, (0,)),
    ({"threads": 1, "cores": 2}, (0,)),
])
def test_places_and_masks(asked, places):
    ((_, found),) = on(NPS4, **asked)
    assert (found.reason, found.places, found.mask) == ("", places, places)


def test_unbound_threads_may_run_everywhere_unless_they_share_cores():
    ((_, free),), ((_, shared),) = on(NPS4, threads=4, placement="unbound"), on(NPS4, threads=4, cores=2, placement="unbound")
    assert (free.bound, free.mask, free.shared) == (False, tuple(range(128)), False)
    assert (shared.mask, shared.shared) == ((0, 1), True)


@pytest.mark.parametrize(("description", "count"), [(machines.MILAN_NPS1, 2), (NPS4, 8), (machines.XEON_8468, 2)])
def test_one_file_gives_as_many_domains_as_the_machine_has(description, count):
    found = on(description, threads=ALL, placement="each_numa", memory="each_node")
    assert len(found) == count * count
    assert {a.placement for a, _ in found} == {f"numa:{k}" for k in range(count)}
    assert {r.memory.nodes for _, r in found} == {(k,) for k in range(count)}
    assert not any(r.reason for _, r in found)


@pytest.mark.parametrize(("description", "asked", "reason"), [
    (SMT, {"threads": 33}, "33 threads, and 32 CPUs may be used here"),
    (SMT, {"threads": 8, "placement": "per_l3"}, "8 threads, and 4 CPUs may be used here by per_l3"),
    (SMT, {"threads": 99, "cores": 40}, "40 cores, and 32 CPUs may be used here"),
    (SMT, {"threads": 2, "placement": "numa:5"}, "no memory node number 5 with CPUs of ours"),
    (SMT, {"threads": 2, "memory": "node:9"}, "no memory node 9"),
    ("pack:1 [numa(memory=1073741824)] core:2 pu:1", {"threads": 2, "memory": "remote"}, "no other memory node"),
])
def test_what_a_machine_cannot_do_has_a_reason(description, asked, reason):
    ((_, found),) = on(description, **asked)
    assert found.reason == reason


def test_memory_follows_the_threads():
    ((_, found),) = on(NPS4, threads=2, placement="numa:7", memory="interleave")
    assert found.memory == Memory("interleave", tuple(range(8)))


def test_threads_of_a_shared_place_are_neighbours():
    ((_, found),) = on(NPS4, threads=8, cores=2)
    assert [found.cpu_of(t) for t in range(8)] == [0] * 4 + [1] * 4
    ((_, odd),) = on(NPS4, threads=5, cores=2)
    assert [odd.cpu_of(t) for t in range(5)] == [0, 0, 0, 1, 1]


def test_cores_are_held_and_threads_raised():
    sweep = Sweep(cores=(1, 2), threads_per_core=(0.5, 1, 2, 8))
    assert list(sweep.counts()) == [(1, 1), (2, 1), (8, 1), (1, 2), (2, 2), (4, 2), (16, 2)]


def test_a_sweep_is_every_combination_once():
    found = Sweep(threads=(1, 2, 2), placements=("compact", "spread"), wait_policies=("passive", "active")).arrangements()
    assert len(found) == len(set(found)) == 8
    assert found[0] == Arrangement(1, wait_policy="passive")


def test_the_text_names_what_is_not_usual():
    assert Arrangement(2).text() == "threads=2"
    assert Arrangement(8, 1, "one_core", believed_cpus=128).text() == "threads=8 cores=1 placement=one_core believed_cpus=128"


@pytest.mark.parametrize("table", [PLACEMENTS, MEMORIES])
def test_rows_say_what_they_are(table):
    assert all(len(text.split()) >= 3 for text in table.values())
    assert set(MAPS) == set(PLACEMENTS)


def test_one_word_gives_every_node():
    top = machines.whole(machines.grace_hopper())
    found = [a.memory for a in settled(Arrangement(2, memory="each_node"), top)]
    assert found == [f"node:{n}" for n in (0, 1, 2, 3, 4, 12, 20, 28)]
    assert [a.placement for a in settled(Arrangement(2, placement="each_numa"), top)] == [f"numa:{k}" for k in range(4)]
