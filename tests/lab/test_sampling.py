"""Sampling: parsing, how many calls and samples, the median's interval against its definition, stopping."""

import random
from dataclasses import replace
from math import isnan

import pytest

from moapipe.lab.record import Sample
from moapipe.lab.sampling import FEWEST, FLOOR, HARD, MOST, SAMPLE_S, TURN, Frame, Placed, Rule, calls_for, judged, parse, rejudged, spread
from moapipe.lab.watch import Watch
from moapipe.machine.arrangement import Arrangement
from moapipe.machine.placement import Memory
from moapipe.machine.seating import Arranged

LINE = ["10.5", "0.002", "0.0039", "0.0", "1", "2", "2", "2", "4.2e+09", "0/0/0,1/-1/1", "0-1", "1"]
FRAME = Frame(Arranged(Arrangement(2, 2), (0, 1), (0, 1)), 4.2e9, Watch())
RULE = Rule(20, 0.02, 1.0)


def samples(n, verdict="valid", seconds=1e-3):
    return [Sample(seconds, 1, verdict)] * n


def test_a_line_of_the_driver_is_read_whole():
    s = parse(LINE, 4)
    assert (s.calls, s.start, s.seconds, s.cpu_seconds, s.wait_seconds) == (4, 10.5, 0.002, 0.0039, 0.0)
    assert (s.involuntary, s.voluntary, s.threads, s.active, s.clock, s.cpus) == (1, 2, 2, 2, 4.2e9, ((0, 1), (0, -1), (0, 1)))
    assert (s.mask, s.widest) == ({0, 1}, 1)


def test_what_the_kernel_does_not_say_is_unknown():
    s = parse(["1", "1", "1", "-1", "0", "0", "2", "0", "4e9", "-", "-", "0"], 1)
    assert isnan(s.wait_seconds)
    assert (s.cpus, s.mask) == ((), frozenset())


def test_a_judged_sample_is_of_one_call():
    s = judged(parse(LINE, 4), FRAME, Placed())
    assert (s.seconds, s.calls, s.verdict, s.cpu_seconds) == (0.0005, 4, "valid", 0.0039)


def test_the_clock_is_judged_against_the_launch_s_best():
    slow = replace(parse(LINE, 4), clock=3e9)
    assert judged(slow, replace(FRAME, clock=0.0), Placed()).verdict == "valid"
    assert [s.verdict for s in rejudged([slow, parse(LINE, 4)], FRAME, 4.2e9, Placed())] == ["slow_clock", "valid"]


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


@pytest.mark.parametrize(("words", "memory", "expected"), [
    (["1", "0.9", "0:90,1:10"], Memory("first_touch"), 0.1),
    (["1", "-1", "0:90,1:10"], Memory("first_touch"), None),
    (["1", "0.5", "0:100"], Memory("first_touch", touchers="one"), 0.0),
    (["1", "0.5", "0:75,1:25"], Memory("first_touch", touchers="one"), 0.25),
    (["1", "0.5", "0:50,1:50"], Memory("interleave", (0, 1)), 0.0),
    (["1", "0.5", "0:80,1:20"], Memory("interleave", (0, 1)), 0.3),
    (["1", "0.5", "0:80,1:20"], Memory("bind", (1,)), 0.8),
    (["1", "1", "-"], Memory("bind", (1,)), None),
])
def test_the_share_of_pages_that_lie_elsewhere(words, memory, expected):
    found = Placed.of(words).misplaced(memory)
    assert isnan(found) if expected is None else found == pytest.approx(expected)


def test_misplaced_pages_and_a_second_runtime_are_judged():
    far = replace(FRAME, arranged=replace(FRAME.arranged, memory=Memory("bind", (1,))))
    assert judged(parse(LINE, 4), far, Placed(1, 1.0, {0: 9, 1: 1})).verdict == "wrong_memory"
    assert judged(parse(LINE, 4), FRAME, Placed(2)).verdict == "two_runtimes"
