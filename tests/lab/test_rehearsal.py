"""A clean run is valid: what counts as one, when it is repeated, and that it holds 20 times of 20 on this machine."""

from collections import Counter

import pytest

from moapipe.lab import rehearsal
from moapipe.lab.place import root
from moapipe.lab.record import Canary
from moapipe.lab.rehearsal import TRIES, Rehearsal, rehearsed

QUIET, BUSY, STALLED = Canary(1e-6, 2e-6, 1e9, 3e9, 0.0), Canary(1e-6, 2e-6, 1e9, 3e9, 0.4), Canary(1e-6, 8e-3, 1e9, 3e9, 0.0)
GOOD, BAD, SEEN = Counter(valid=20), Counter(valid=19, wrong_cpus=1), Counter(valid=15, neighbour=5)
PASSED, SHORT = Counter(valid=19, preempted=1), Counter(valid=18, preempted=1, cpu_starved=1)
SCRIPTS = {
    "all valid": ([GOOD] * 3, [QUIET] * 6, Rehearsal(3, 3, 0, 0, (), "60 valid")),
    "a fault of ours": ([GOOD, BAD, GOOD], [QUIET] * 6, Rehearsal(3, 2, 0, 0, ("19 valid, 1 wrong_cpus",), "40 valid")),
    "a sample of 20": ([GOOD, PASSED, GOOD], [QUIET] * 6, Rehearsal(3, 3, 0, 0, (), "1 preempted, 59 valid")),
    "two of 20": ([GOOD, SHORT, GOOD, GOOD], [QUIET] * 8, Rehearsal(3, 3, 1, 0, (), "60 valid")),
    "two of 20 every time": ([GOOD, *[SHORT] * TRIES, GOOD], [QUIET] * 12, Rehearsal(3, 2, 3, 0, ("1 cpu_starved, 1 preempted, 18 valid",), "40 valid")),
    "disturbed once": ([BAD, GOOD, GOOD, GOOD], [QUIET, BUSY, *[QUIET] * 6], Rehearsal(3, 3, 1, 0, (), "60 valid")),
    "a stall before": ([BAD, GOOD, GOOD, GOOD], [STALLED, *[QUIET] * 7], Rehearsal(3, 3, 1, 0, (), "60 valid")),
    "a neighbour in between": ([SEEN, GOOD, GOOD, GOOD], [QUIET] * 8, Rehearsal(3, 3, 1, 0, (), "60 valid")),
    "never alone": ([BAD] * TRIES + [GOOD] * 2, [BUSY] * 2 * TRIES + [QUIET] * 4, Rehearsal(3, 2, 3, 1, (), "40 valid")),
    "valid among others": ([GOOD] * 3, [BUSY] * 6, Rehearsal(3, 3, 0, 0, (), "60 valid")),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_disturbed_runs_are_repeated_and_others_count(name):
    runs, probes, expected = SCRIPTS[name]
    left, probed = iter(runs), iter(probes)
    assert rehearsed(lambda: next(left), lambda: next(probed), 3) == expected


def test_it_is_said_in_a_sentence():
    assert str(Rehearsal(20, 17, 2, 2, ("19 valid, 1 wrong_cpus",), "1 preempted, 339 valid")) == (
        "17 of 20 clean runs are valid (1 preempted, 339 valid); 2 disturbed ones were repeated; 2 never had the machine to themselves in 4 tries; "
        "not valid on a quiet machine: 19 valid, 1 wrong_cpus")


def test_a_run_for_real():
    """On a busy machine it is repeated, and perhaps given up; it is no fault of ours."""
    found = rehearsal.rehearse(root(), "local", runs=1)
    assert found.runs == 1 and not found.faults


@pytest.mark.slow
def test_a_clean_run_is_valid_20_times_of_20():
    found = rehearsal.rehearse(root(), "local")
    assert not found.faults, str(found)
    if found.given_up:
        pytest.skip(str(found))
    assert found.valid == 20
