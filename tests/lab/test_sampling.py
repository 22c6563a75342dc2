"""Sampling: parsing, how many calls and samples, the median's interval against its definition, stopping."""

import random
from dataclasses import replace
from math import isnan

import pytest

from moapipe.lab.record import Sample
from moapipe.lab.sampling import FEWEST, FLOOR, HARD, MOST, SAMPLE_S, TURN, Frame, Rule, calls_for, judged, parse, rejudged, spread
from moapipe.lab.watch import Watch

LINE = ["10.5", "0.002", "0.0039", "0.0", "1", "2", "2", "2", "4.2e+09", "0,1"]
FRAME = Frame(2, frozenset({0, 1}), 4.2e9, Watch())
RULE = Rule(20, 0.02, 1.0)


def samples(n, verdict="valid", seconds=1e-3):
    return [Sample(seconds, 1, verdict)] * n


def test_a_line_of_the_driver_is_read_whole():
    s = parse(LINE, 4)
    assert (s.calls, s.start, s.seconds, s.cpu_seconds, s.wait_seconds) == (4, 10.5, 0.002, 0.0039, 0.0)
    assert (s.involuntary, s.voluntary, s.threads, s.active, s.clock, s.cpus) == (1, 2, 2, 2, 4.2e9, (0, 1))


def test_what_the_kernel_does_not_say_is_unknown():
    s = parse(["1", "1", "1", "-1", "0", "0", "2", "0", "4e9", "-"], 1)
    assert isnan(s.wait_seconds)
    assert s.cpus == ()


def test_a_judged_sample_is_of_one_call():
    s = judged(parse(LINE, 4), FRAME)
    assert (s.seconds, s.calls, s.verdict, s.cpu_seconds) == (0.0005, 4, "valid", 0.0039)


def test_the_clock_is_judged_against_the_launch_s_best():
    slow = replace(parse(LINE, 4), clock=3e9)
    assert judged(slow, replace(FRAME, clock=0.0)).verdict == "valid"
    assert [s.verdict for s in rejudged([slow, parse(LINE, 4)], FRAME, 4.2e9)] == ["slow_clock", "valid"]


@pytest.mark.parametrize("seconds", [1e-7, 1.3e-6, 1e-4, 1.9e-3, 5.0])
def test_a_sample_is_long_enough_and_no_longer_than_needed(seconds):
    calls = calls_for(seconds)
    assert calls * seconds >= SAMPLE_S or calls == 1
    assert (calls - 1) * seconds < SAMPLE_S


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = random.Random(3)
    for n in (FEWEST, 9, 20, 60):
        covered = 0
        for _ in range(600):
            values = sorted(rng.lognormvariate(0, 0.4) for _ in range(n))
            half = spread(values) * values[n // 2]
            low = next(v for v in values if any(abs(w - v - half) < 1e-12 for w in values))
            covered += low <= 1.0 <= low + half
        assert covered / 600 > 0.93, n


def test_few_values_bound_nothing():
    assert spread([1.0] * (FEWEST - 1)) == float("inf")
    assert spread([1.0] * FEWEST) == 0.0


@pytest.mark.parametrize(("taken", "spent", "enough"), [
    (samples(19), 0.0, False),
    (samples(20), 0.0, True),                                                   # all alike
    (samples(10) + samples(10, seconds=2e-3), 0.5, False),                      # still wide, time left
    (samples(10) + samples(10, seconds=2e-3), 1.0, True),                       # wide, and no time left
    (samples(20, "neighbour"), 0.5, False),                                     # nothing valid yet
    (samples(20, "neighbour"), 1.0, True),
    (samples(15) + samples(5, "neighbour"), 0.5, False),                        # too few valid ones
    (samples(12), 1.5, False),                                                  # the least number comes before the box
    (samples(FLOOR), float(HARD), True),                                        # ... until it is spent several times
    (samples(FLOOR - 1), 100.0, False),
    (samples(20 * MOST, "neighbour"), 0.0, True),
])
def test_when_a_launch_has_enough(taken, spent, enough):
    assert RULE.enough(taken, spent) is enough


@pytest.mark.parametrize(("count", "seconds", "spent", "expected"), [
    (0, 1e-3, 0.0, TURN), (0, 2.5, 0.0, 1), (30, 0.4, 0.0, 2), (30, 0.4, 0.9, 1), (5, 0.4, 2.0, TURN), (0, 100.0, 0.0, 1),
])
def test_a_turn_fits_the_time_that_is_left(count, seconds, spent, expected):
    assert RULE.next_turn(count, seconds, spent) == expected
