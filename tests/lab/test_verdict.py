"""Verdicts: each reason from the disturbance that it names, none from a healthy sample, and causes before symptoms."""

from dataclasses import replace
from math import nan

import pytest

from moapipe.lab.verdict import THRESHOLDS, VERDICTS, Diagnosis, judge

HEALTHY = Diagnosis(
    wall_seconds=2e-3, cpu_seconds=3.99e-3, wait_seconds=0.0, threads=2, threads_seen=2, threads_active=2, cpus=frozenset({0, 1}),
    cpus_seen=((0, 1), (0, 1), (0, 1)), mask=frozenset({0, 1}), widest=1, bound=True, shared=False, runtimes=1, misplaced=0.0, involuntary_switches=0, other_cpu_seconds=0.004, window_seconds=0.5, tick_seconds=0.01, throttled_periods=0, clock_ratio=1.0,
)

HARM = {
    "threads_missing": {"threads_seen": 1},
    "two_runtimes": {"runtimes": 2},
    "narrow_mask": {"mask": frozenset({1})},
    "wrong_cpus": {"cpus_seen": ((0, 1), (1, 1), (0, 1))},
    "wrong_memory": {"misplaced": 0.4},
    "throttled": {"throttled_periods": 1},
    "cpu_starved": {"wait_seconds": 2e-4},
    "preempted": {"wait_seconds": 4e-5, "involuntary_switches": 3},
    "neighbour": {"other_cpu_seconds": 0.1},
    "slow_clock": {"clock_ratio": 0.8},
}


def test_a_healthy_sample_is_valid():
    assert judge(HEALTHY) == "valid"


@pytest.mark.parametrize("name", [n for n, row in VERDICTS.items() if row.holds])
def test_each_reason_comes_from_its_own_disturbance(name):
    assert judge(replace(HEALTHY, **HARM[name])) == name


@pytest.mark.parametrize("harmless", [
    {"involuntary_switches": 40},                                     # kernel threads ran for microseconds: nobody waited
    {"wait_seconds": 6e-5},                                           # three per cent of the wall time
    {"other_cpu_seconds": 0.02},                                      # two ticks of rounding in half a second
    {"window_seconds": 0.0, "other_cpu_seconds": 0.0},                # no reading yet
    {"clock_ratio": 0.93},                                            # a turbo step
    {"threads_active": 1, "cpus_seen": ((0,),) * 3, "cpu_seconds": 2e-3},    # a kernel that is serial at this size
    {"cpus_seen": (), "mask": frozenset(), "widest": 0, "threads_active": 0},                           # threads that ended before one could look
    {"wait_seconds": nan},                                            # a kernel without scheduler statistics
    {"threads": 1, "threads_active": 1, "cpus": frozenset({5}), "cpus_seen": ((5,), (-1,), (5,)), "mask": frozenset({5}), "cpu_seconds": 2e-3},
    {"threads": 4, "threads_seen": 4, "threads_active": 4, "cpus_seen": ((0, 1, 0, 1),) * 3, "shared": True, "wait_seconds": 1e-3,
     "involuntary_switches": 9},                                      # more threads than CPUs were asked for
    {"bound": False, "cpus_seen": ((0, 0), (1, 1), (1, 0)), "widest": 2},     # the operating system may do that with unbound threads
    {"misplaced": nan}, {"misplaced": 0.1},                           # nobody knows; pages on the borders of shares
])
def test_what_does_no_harm_is_valid(harmless):
    assert judge(replace(HEALTHY, **harmless)) == "valid"


@pytest.mark.parametrize(("disturbance", "expected"), [
    ({"cpus_seen": ((0, 1), (0, 7), (0, 1))}, "wrong_cpus"),
    ({"mask": frozenset({0, 1, 2})}, "wrong_cpus"),
    ({"widest": 2}, "wrong_cpus"),
    ({"bound": False, "cpus_seen": ((0, 7),) * 3}, "wrong_cpus"),
    ({"wait_seconds": nan, "cpu_seconds": 3.4e-3}, "cpu_starved"),
    ({"wait_seconds": nan, "involuntary_switches": 9}, "preempted"),
    ({"wait_seconds": 9e-4, "involuntary_switches": 9, "other_cpu_seconds": 0.4}, "cpu_starved"),
    ({"throttled_periods": 2, "wait_seconds": 9e-4}, "throttled"),
])
def test_causes_come_before_symptoms(disturbance, expected):
    assert judge(replace(HEALTHY, **disturbance)) == expected


def test_spin_collapse_is_seen_although_its_spread_is_tiny():
    """Two threads that spin on one CPU: 8 ms a region, a switch a scheduler slice, every sample alike."""
    collapse = replace(HEALTHY, wall_seconds=8e-3, cpu_seconds=8e-3, wait_seconds=8e-3, involuntary_switches=2, cpus_seen=((0, 0),) * 3)
    assert judge(collapse) == "wrong_cpus"
    assert judge(replace(collapse, cpus_seen=((0, 1),) * 3)) == "cpu_starved"


def test_every_threshold_has_its_reason():
    assert all(len(t.reason.split()) > 5 and t.value > 0 for t in THRESHOLDS.values())
