"""Explanations: each mechanism from a dataset in which it happened, the reference, the passive twin that decides, the ceiling."""

from dataclasses import replace

import pytest

from moapipe.lab.record import Canary, Case, Sample, make, read, write
from moapipe.machine.arrangement import Arrangement
from moapipe.report.explain import MECHANISMS, canaries, comparisons, explain, lines, mark, scatter
from moapipe.report.metrics import frame
from moapipe.report.table import text

BUILD = {"kernel": "k", "form": "f", "variant": "v", "target": "c", "isa": "avx2", "dtype": "f32", "machine": "m", "label": "n=64"}
MS = 1e-3
ONE = Arrangement(1, 1, wait_policy="unset")
TWO = Arrangement(2, 2, wait_policy="unset")
CROWD = replace(ONE, threads=8, believed_cpus=128)


def case(arrangement, seconds, *, verdict="valid", ceiling=8.0, regions=1, **seen):
    """A case of 3 × 20 samples of ten calls; `seen` overrides what a healthy process shows."""
    fields = [a for a in arrangement.__dataclass_fields__]
    wall = 10 * seconds
    busy = min(arrangement.threads, arrangement.cores)
    values = {"cpu_seconds": busy * wall, "involuntary_switches": 0.0, "other_cpu_seconds": 0.0, "wait_seconds": 0.0, "voluntary_switches": 0.0,
              "clock_rate": 4e9, "cpus_used": float(busy), "throttled_periods": 0.0, "misplaced_share": 0.0} | seen
    sample = Sample(seconds, 10, verdict, **values)
    identity = BUILD | {a: getattr(arrangement, a) for a in fields} | {"penalty_ceiling": ceiling, "regions": regions}
    status = "measured" if verdict == "valid" else "all_invalid"
    return Case(identity, {"n": 64}, status, "" if status == "measured" else "invalid", [[sample] * 20] * 3)


def collapse(seconds=64 * MS, rate=250, **seen):
    """Eight threads that spin on one CPU: a switch a slice, seven waiting, no sleep."""
    return case(CROWD, seconds, **{"involuntary_switches": rate * seconds * 10, "wait_seconds": 70 * seconds, "voluntary_switches": 1.0, **seen})


def of(*cases):
    return make(list(cases), {"host": "h"})


PLANTED = {
    "quota": [case(TWO, MS), case(replace(TWO, placement="spread"), 3 * MS, verdict="throttled", throttled_periods=2.0)],
    "spinning_at_barriers": [case(ONE, 0.1 * MS), collapse(), case(replace(CROWD, wait_policy="passive"), 0.15 * MS, voluntary_switches=140.0)],
    "neighbours": [case(TWO, MS), case(replace(TWO, placement="spread"), 3 * MS, verdict="neighbour", other_cpu_seconds=0.02)],
    "frequency": [case(TWO, MS), case(replace(TWO, placement="spread"), 2.1 * MS, clock_rate=1.9e9)],
    "sleeping_at_barriers": [case(TWO, 0.01 * MS), case(replace(TWO, wait_policy="passive"), 0.04 * MS, voluntary_switches=20.0)],
    "yielding_at_barriers": [case(replace(ONE, runtime="libomp"), 0.01 * MS), case(replace(ONE, threads=8, runtime="libomp"), 0.06 * MS, involuntary_switches=360.0, wait_seconds=4e-3)],
    "serialisation": [case(replace(TWO, threads=4, cores=4), MS), case(replace(TWO, threads=4, cores=4, placement="one_core"), 3.9 * MS, cpus_used=1.0,
                                                                      cpu_seconds=39 * MS, wait_seconds=0.12)],
    "memory_locality": [case(TWO, MS), case(replace(TWO, memory="remote"), 2.4 * MS)],
    "unexplained": [case(TWO, MS), case(replace(TWO, placement="spread"), 40 * MS)],
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_mechanism_is_named_from_what_was_seen(name):
    found = explain(of(*PLANTED[name]))
    assert [e.mechanism for e in found] == [name]
    assert found[0].because


def test_every_mechanism_is_planted():
    assert set(PLANTED) == {*MECHANISMS, "unexplained"}


def test_passive_waiting_decides_and_is_told():
    found = explain(of(*PLANTED["spinning_at_barriers"]))[0]
    assert found.comparison.penalty == pytest.approx(640)
    assert "passive waiting brings 640× to 1.5×" in found.because
    assert "memory locality is ruled out, it can make 8× here" in found.because


def test_what_passive_waiting_does_not_cure_is_not_spinning():
    found = explain(of(case(ONE, 0.1 * MS), collapse(), case(replace(CROWD, wait_policy="passive"), 60 * MS)))
    assert "spinning_at_barriers" not in {e.mechanism for e in found}


BESIDE = {"verdict": "neighbour", "other_cpu_seconds": 0.02}
AMONG_NEIGHBOURS = {
    "passive waiting cures it": ("spinning_at_barriers", [collapse(rate=30, **BESIDE), case(replace(CROWD, wait_policy="passive"), 0.15 * MS, voluntary_switches=140.0)]),
    "passive waiting was disturbed too": ("spinning_at_barriers", [collapse(**BESIDE), case(replace(CROWD, wait_policy="passive"), 40 * MS, voluntary_switches=140.0, **BESIDE)]),
    "nobody tried passive waiting": ("spinning_at_barriers", [collapse(**BESIDE)]),
    "they sleep": ("sleeping_at_barriers", [case(replace(ONE, threads=2, wait_policy="passive"), 0.3 * MS, voluntary_switches=20.0, involuntary_switches=200.0, **BESIDE)]),
    "they yield": ("yielding_at_barriers", [case(replace(ONE, threads=2), 0.3 * MS, involuntary_switches=800.0, **BESIDE)]),
    "they do not share cores": ("neighbours", [case(replace(ONE, placement="spread"), 64 * MS, involuntary_switches=160.0, wait_seconds=0.5, **BESIDE)]),
}


@pytest.mark.parametrize("name", AMONG_NEIGHBOURS)
def test_threads_that_share_cores_by_design_wait_for_each_other_whoever_else_is_there(name):
    mechanism, cases = AMONG_NEIGHBOURS[name]
    assert explain(of(case(ONE, 0.1 * MS), *cases))[0].mechanism == mechanism


def test_a_penalty_above_the_ceiling_is_not_memory():
    found = explain(of(case(TWO, MS), case(replace(TWO, memory="remote"), 20 * MS)))[0]
    assert found.mechanism == "unexplained"
    assert "memory locality is ruled out" in found.because


def test_the_reference_has_as_many_cores_and_no_planted_fault():
    c = {x.case.arrangement: x for x in comparisons(of(case(ONE, 2 * MS), case(TWO, MS), collapse()))}
    assert c[CROWD].reference.arrangement == ONE
    assert c[TWO].reference.arrangement == TWO


MARKS = {"within": ([case(TWO, MS), case(replace(TWO, memory="remote"), 2.4 * MS)], "memory_locality"),
         "explained": (PLANTED["spinning_at_barriers"], "spinning_at_barriers"),
         "implausible": ([case(TWO, MS), case(replace(TWO, memory="remote"), 20 * MS)], "unexplained")}


@pytest.mark.parametrize("name", MARKS)
def test_what_no_placement_of_pages_can_make_is_flagged_in_the_dataset_until_it_is_explained(name, tmp_path):
    cases, mechanism = MARKS[name]
    write(mark(of(*cases)), tmp_path / "d.nc")
    rows = frame(read(tmp_path / "d.nc"))
    assert rows["plausibility"].tolist()[:2] == ["within", name]
    assert rows["mechanism"].tolist()[:2] == ["", mechanism]


def test_a_flagged_case_stands_out_in_the_table():
    assert "implausible" in text(mark(of(*MARKS["implausible"][0])))
    assert "implausible" not in text(mark(of(*MARKS["explained"][0])))


def test_what_nobody_explains_is_not_flagged():
    """On a machine with one memory node the ceiling is 1: a penalty under 2 is no finding."""
    assert set(frame(mark(of(case(TWO, MS, ceiling=1.0), case(replace(TWO, placement="spread"), 1.9 * MS, ceiling=1.0))))["plausibility"]) == {"within"}


def test_a_ceiling_that_nobody_knows_flags_nothing():
    unknown = of(case(TWO, MS, ceiling=float("nan")), case(replace(TWO, memory="remote"), 20 * MS, ceiling=float("nan")))
    assert set(frame(mark(unknown))["plausibility"]) == {"within"}


def test_the_three_variances_are_said():
    assert scatter(of(case(TWO, MS), case(ONE, MS))) == (
        "Standard deviation over the median time, in the middle of 2 cases on 1 node: 0.00% within a process, 0.00% between launches.")


def test_what_the_canaries_met_is_said():
    quiet, loud = Canary(1e-6, 2e-6, 1e10, 4e9, 0.0), Canary(5e-6, 2e-6, 4e9, 3e9, 0.7)
    said = canaries(of(replace(case(TWO, MS), canaries=[(quiet, quiet), (quiet, loud), (quiet, quiet)])))
    assert said == ("Canaries before and after launches, the worst over the middle one: an empty region took 5, memory gave 0.4, the clock ran at 0.75; "
                    "others kept up to 0.7 CPUs busy.")
    assert canaries(of(case(TWO, MS))) == ""


def test_nothing_to_explain_is_said_and_counts_are_summed():
    assert list(lines(explain(of(case(ONE, MS))))) == ["No case takes more than 2 times as long as the best arrangement of its build and sizes."]
    assert list(lines(explain(of(*PLANTED["quota"]))))[-1] == "1 penalties above 2×: 1 quota"
