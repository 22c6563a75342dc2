"""The watch: others' CPU time from readings before and after, over a window long enough for the kernel's ticks."""

import pytest

from moapipe.lab.watch import TICK_S, WINDOW_S, Watch, busy_seconds


def readings(*rows):
    w = Watch()
    for at, busy, own, stops in rows:
        w.add(at, busy, own, stops)
    return w


def test_busy_time_leaves_idle_out_and_counts_stolen_time():
    assert busy_seconds("cpu  100 10 20 5000 300 1 2 7 0 0\ncpu0 1 1 1 1\n") == pytest.approx(140 * TICK_S)
    assert busy_seconds("intr 5\n") == 0.0


def test_without_others_nothing_is_left():
    w = readings((0.0, 10.0, 5.0, 0), (1.0, 12.0, 7.0, 0))
    assert w.around(0.4, 0.5) == (0.0, 1.0, 0)


def test_others_are_what_we_did_not_use():
    w = readings((0.0, 10.0, 5.0, 0), (1.0, 12.5, 7.0, 0))
    assert w.around(0.4, 0.5) == (0.5, 1.0, 0)


def test_the_window_grows_to_the_nearer_side_until_it_is_long_enough():
    w = readings(*((k * 0.1, 2.0 * k * 0.1, 0.1 * k, 0) for k in range(20)))
    others, window, _ = w.around(1.01, 1.02)
    assert WINDOW_S <= window <= WINDOW_S + 0.11
    assert others == pytest.approx(window)


def test_a_neighbour_far_away_in_time_does_not_count():
    rows = [(k * 0.1, 0.1 * k, 0.1 * k, 0) for k in range(30)] + [(3.0 + k * 0.1, 3.0 + 0.3 * k, 3.0 + 0.1 * k, 0) for k in range(10)]
    w = readings(*rows)
    assert w.around(0.51, 0.52)[0] == pytest.approx(0.0, abs=1e-9)
    assert w.around(3.51, 3.52)[0] > 0.5


def test_a_stop_by_a_quota_is_pinned_to_its_reading():
    w = readings((0.0, 0, 0, 0), (0.1, 0, 0, 0), (0.2, 0, 0, 3), (0.3, 0, 0, 3), (0.9, 0, 0, 3))
    assert w.around(0.11, 0.12)[2] == 3
    assert w.around(0.21, 0.22)[2] == 0


def test_no_readings_know_nothing():
    assert Watch().around(1.0, 2.0) == (0.0, 0.0, 0)


def test_the_machine_s_own_reading_counts_this_process_as_ours():
    w = Watch()
    w.read(0.0)
    sum(range(2_000_000))
    w.read(0.0)
    assert w.own[1] > w.own[0]
    assert w.busy[1] >= w.busy[0] >= 0
