"""A clean run is valid: what counts as one, when it is repeated, and that it holds 20 times of 20 on this machine."""

from collections import Counter

import pytest

from moapipe.lab import rehearsal
from moapipe.lab.place import root
from moapipe.lab.record import Canary
from moapipe.lab.rehearsal import TRIES, Rehearsal, rehearsed

QUIET, BUSY, STALLED = Canary(1e-6, 2e-6, 1e9, 3e9, 0.0), Canary(1e-6, 2e-6, 1e9, 3e9, 0.4), Canary(1e-6, 8e-3, 1e9, 3e9, 0.0)
GOOD, BAD, SEEN = Counter(valid=20), Counter(valid=19, wrong_cpus=1), Counter(valid=15, neighbour=5)
SCRIPTS = {
    "all valid": ([GOOD] * 3, [QUIET] * 6, Rehearsal(3, 3, 0, 0, ())),
    "a fault of ours": ([GOOD, BAD, GOOD], [QUIET] * 6, Rehearsal(3, 2, 0, 0, ("19 valid, 1 wrong_cpus",))),
    "disturbed once": ([BAD, GOOD, GOOD, GOOD], [QUIET, BUSY, *[QUIET] * 6], Rehearsal(3, 3, 1, 0, ())),
    "a stall before": ([BAD, GOOD, GOOD, GOOD], [STALLED, *[QUIET] * 7], Rehearsal(3, 3, 1, 0, ())),
    "a neighbour in between": ([SEEN, GOOD, GOOD, GOOD], [QUIET] * 8, Rehearsal(3, 3, 1, 0, ())),
    "never alone": ([BAD] * TRIES + [GOOD] * 2, [BUSY] * 2 * TRIES + [QUIET] * 4, Rehearsal(3, 2, 3, 1, ())),
    "valid among others": ([GOOD] * 3, [BUSY] * 6, Rehearsal(3, 3, 0, 0, ())),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_disturbed_runs_are_repeated_and_others_count(name):
    runs, probes, expected = SCRIPTS[name]
    left, probed = iter(runs), iter(probes)
    assert rehearsed(lambda: next(left), lambda: next(probed), 3) == expected


def test_it_is_said_in_a_sentence():
    assert str(Rehearsal(20, 17, 2, 2, ("19 valid, 1 wrong_cpus",))) == (
        "17 of 20 clean runs are valid; 2 disturbed ones were repeated; 2 never had the machine to themselves in 4 tries; "
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
