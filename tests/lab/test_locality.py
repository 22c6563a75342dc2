"""Locality is really measured; which barriers; no figure is compared with a time."""

import pytest
from tests.machine import machines

from moapipe.lab import locality
from moapipe.lab.place import root
from moapipe.machine.locality import barrier_key
from moapipe.machine.seating import arrange
from moapipe.machine.topology import probe


@pytest.fixture
def few(monkeypatch):
    """A part of the barriers, so that the test is short."""
    monkeypatch.setattr(locality, "barriers", lambda top: list(every(top))[:4])


every = locality.barriers


def test_every_figure_is_measured(few):
    top = probe()
    found = locality.measure(top, root(), "local")
    assert found.topology == top
    assert set(found.clock) == {1, top.cores}
    assert all(v > 0 for figures in (found.barrier, found.bandwidth, found.latency, found.clock) for v in figures.values())
    nodes = [n.id for n in top.nodes if n.bytes and n.allowed]
    assert set(found.bandwidth) == set(found.latency) == {f"{top.home(cpus[0])}/{n}" for cpus in top.domains("numa") for n in nodes}
    assert {barrier_key(a) for a in every(top)} >= set(found.barrier) != set()


def test_barriers_hold_cores_and_raise_threads():
    top = machines.synthetic(machines.MILAN_NPS4)
    asked = list(every(top))
    shared = [a for a in asked if a.threads > a.cores]
    assert {a.cores for a in shared} == {1, 2, 4, 8, 16, 32, 64, 128}
    assert {a.threads // a.cores for a in shared} == {2, 4, 8}
    assert not [a for a in shared if arrange(a, top).reason]
    assert {a.placement for a in asked} == set(locality.PLACEMENTS)


def test_what_cannot_be_measured_says_why(tmp_path):
    top = probe()
    first = next(a for a in every(top) if a.threads == 1)
    with pytest.raises(locality.LabError, match="usage"):
        locality.figures(locality.program("locality", root()), ("dance", "1"), arrange(first, top), root(), "local")
