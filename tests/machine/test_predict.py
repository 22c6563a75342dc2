"""The time model on counts and rates chosen so that every answer can be worked out by hand."""

import json
from dataclasses import replace

import pytest

from moapipe.errors import LabError
from moapipe.loops.tally import Counts, Region
from moapipe.loops.traffic import Traffic
from moapipe.machine.predict import predict, work_seconds
from moapipe.machine.rate import Bandwidth, Calibration, Rates, at

RATES = Rates(fma={1: 200.0, 2: 400.0}, tile={1: 100.0, 2: 200.0}, vector={1: 50.0, 2: 100.0}, exp={1: 10.0, 2: 20.0}, start={1: 0.25, 2: 0.5},
              chain={1: 2.0, 2: 2.0}, link={1: 1.0, 2: 1.0}, ahead={1: 4.0, 2: 4.0}, fold={1: 0.5, 2: 0.5})
MACHINE = Calibration(
    machine="m", isa="avx2", topology="two cores", clock=1.0, lanes={"f64": 4}, capacity={"L1": 64, "L2": 256}, sharers={"L1": {1: 1, 2: 1}, "L2": {1: 1, 2: 1}},
    rates={"f64": RATES},
    bandwidth={
        "L1": Bandwidth({1: 80.0, 2: 160.0}, {1: 80.0, 2: 160.0}, {1: 80.0, 2: 160.0}, {1: 8.0, 2: 16.0}),
        "L2": Bandwidth({1: 40.0, 2: 80.0}, {1: 40.0, 2: 80.0}, {1: 40.0, 2: 80.0}, {1: 4.0, 2: 8.0}),
        "memory": Bandwidth({1: 20.0, 2: 20.0}, {1: 10.0, 2: 10.0}, {1: 16.0, 2: 16.0}, {1: 2.0, 2: 2.0}),
    },
    region={1: 0.0, 2: 0.5}, provenance={},
)


def counts(work, regions=(), threads=1):
    return Counts("k", {}, 8, threads, (), {}, {}, {}, work, regions)


def test_work_is_divided_by_the_rate_of_its_kind():
    assert work_seconds({"tile": {"fma": 300}}, MACHINE, "f64", 1) == 3
    assert work_seconds({"vector": {"+": 100, "exp2": 20}}, MACHINE, "f64", 1) == 2 + 2
    assert work_seconds({"vector": {"+": 100, "exp2": 20}}, MACHINE, "f64", 2) == 1 + 1


def test_a_tile_takes_its_own_rate_and_the_time_between_two():
    """300 multiply-adds elsewhere run at the peak; 4 starts on 2 threads are 2 one after the other."""
    assert work_seconds({"vector": {"fma": 300}}, MACHINE, "f64", 1) == 1.5
    assert work_seconds({"tile": {"fma": 300, "start": 4}}, MACHINE, "f64", 1) == 3 + 1
    assert work_seconds({"tile": {"fma": 300, "start": 4}}, MACHINE, "f64", 2) == 1.5 + 1


def test_loads_and_stores_pass_at_the_nearest_bandwidth():
    assert work_seconds({"vector": {"load": 5, "store": 5}}, MACHINE, "f64", 1) == 80 / 80
    assert work_seconds({"scalar": {"load": 5, "store": 5}}, MACHINE, "f64", 1) == 4 * 80 / 80
    far = replace(MACHINE, bandwidth={"memory": MACHINE.bandwidth["memory"]})
    assert work_seconds({"vector": {"load": 5}}, far, "f64", 1) == 0


def test_nothing_overlaps_across_a_barrier():
    """A region that moves three quarters and one that computes: 3 s of 4 s of traffic, then 5 s of work beside the last second."""
    work = {"tile": {"fma": 500}}
    c = counts(work, (Region(1, 8, "static", 1.0, {}), Region(1, 8, "static", 1.0, work)))
    whole, first, second = ({"L2": {"a": Traffic(n, 0, 0)}} for n in (80, 120, 40))
    p = predict(c, whole, MACHINE, "f64", alone=(first, second))
    assert (p.compute, p.memory, p.seconds) == (5.0, 4.0, 3.0 + 5.0)
    assert predict(c, whole, MACHINE, "f64", alone=(second, first)).seconds == 1.0 + 5.0
    idle = {"L2": {"a": Traffic(0, 0, 0)}}
    assert predict(c, idle, MACHINE, "f64", alone=(idle, idle)).seconds == 5.0


def test_scalar_work_runs_one_lane_at_a_time():
    assert work_seconds({"scalar": {"+": 100}}, MACHINE, "f64", 1) == 4 * work_seconds({"vector": {"+": 100}}, MACHINE, "f64", 1)


def test_a_chain_waits_but_for_what_is_done_beside_the_next_fold():
    """80 multiply-adds, 4 at once, are 20 steps of 2 s; four of each of two folds are behind the processor when it begins the next."""
    assert work_seconds({"chain 4": {"fma": 80, "chain": 80}}, MACHINE, "f64", 1) == 20 * 2
    assert work_seconds({"chain 4": {"fma": 80, "chain": 80, "start": 2}}, MACHINE, "f64", 1) == (20 - 8) * 2
    assert work_seconds({"chain 4": {"+": 80, "link": 80}}, MACHINE, "f64", 2) == 20 / 2
    assert work_seconds({"chain 4": {"fma": 80, "chain": 80, "start": 5}}, MACHINE, "f64", 1) == 80 / 200


def test_a_chain_of_short_folds_takes_the_time_of_its_work_one_lane_at_a_time_where_it_is_narrow():
    narrow, wide = (work_seconds({place: {"+": 100, "link": 100, "start": 100}}, MACHINE, "f64", 1) for place in ("chain 1", "chain 4"))
    assert narrow == 4 * wide == work_seconds({"scalar": {"+": 100}}, MACHINE, "f64", 1)


def test_lanes_become_one_number_at_a_rate_of_their_own():
    assert work_seconds({"fold": {"+": 100, "start": 25}}, MACHINE, "f64", 1) == 2 + 25 * 0.5


def test_lines_that_meet_come_one_after_the_other():
    """100 bytes of one column of pages at 2 a second; over ten slots, ten at a time; where the walk goes over all slots, as one reads."""
    met, spread, stream = (predict(counts({}), {"L2": {"a": Traffic(100, 0, 0, m)}}, MACHINE, "f64").memory for m in (100.0, 10.0, 0.0))
    assert (met, spread, stream) == (50.0, 5.0, 5.0)
    assert predict(counts({}), {"L1": {"a": Traffic(100, 0, 0, 100.0)}}, MACHINE, "f64").memory == 25.0


def test_choices_cost_nothing_and_divisions_cost_more_than_additions():
    assert work_seconds({"vector": {"select": 10**6}}, MACHINE, "f64", 1) == 0
    assert work_seconds({"vector": {"/": 10}}, MACHINE, "f64", 1) > work_seconds({"vector": {"+": 10}}, MACHINE, "f64", 1)


@pytest.mark.parametrize("busiest, seconds", [(0.5, 3.0), (0.75, 4.5), (1.0, 6.0)])
def test_a_region_takes_as_long_as_its_busiest_thread(busiest, seconds):
    work = {"tile": {"fma": 600}}
    p = predict(counts(work, (Region(1, 8, "static", busiest, work),), threads=2), {}, MACHINE, "f64")
    assert p.compute == seconds and p.overhead == 0.5 and p.seconds == seconds + 0.5


def test_work_outside_of_regions_runs_on_one_thread():
    p = predict(counts({"tile": {"fma": 600}}, (Region(1, 8, "static", 0.5, {"tile": {"fma": 400}}),), threads=2), {}, MACHINE, "f64")
    assert p.compute == 400 / 200 + 200 / 100


def test_the_slowest_level_counts_and_overlaps_with_work():
    past = {"L1": {"a": Traffic(400, 0, 0)}, "L2": {"a": Traffic(60, 20, 20)}}
    p = predict(counts({"tile": {"fma": 300}}), past, MACHINE, "f64")
    assert (p.slowest, p.memory, p.compute, p.seconds) == ("L1", 10.0, 3.0, 10.0)
    assert p.traffic == {"L1": 400, "L2": 100} and p.bandwidth == {"L1": 40.0, "L2": 12.5}


def test_nothing_passes_a_cache_that_still_holds_the_call_before():
    past = {"L1": {"a": Traffic(400, 0, 0)}, "L2": {"a": Traffic(400, 0, 0)}}
    cold, warm = (predict(counts({"tile": {"fma": 300}}), past, MACHINE, "f64", kept=kept) for kept in ((), {"L2"}))
    assert (cold.slowest, cold.seconds, cold.moving) == ("L2", 20.0, {"L1": 10.0, "L2": 20.0})
    assert (warm.slowest, warm.seconds, warm.moving) == ("L1", 10.0, {"L1": 10.0, "L2": 0.0})
    assert warm.traffic == cold.traffic


def test_streaming_stores_are_not_fetched_first():
    past = {"L2": {"out": Traffic(0, 160, 160)}}
    assert predict(counts({}), past, MACHINE, "f64").memory == 320 / 10
    assert predict(counts({}), past, MACHINE, "f64", streamed=frozenset({"out"})).memory == 160 / 16


@pytest.mark.parametrize("streamed, copying, fetched", [((), 10.0, 2), (("out",), 16.0, 1)], ids=["plain", "streaming"])
@pytest.mark.parametrize("reading", [5.0, 20.0])
@pytest.mark.parametrize("arrays", range(5))
def test_what_a_copy_would_not_fetch_comes_as_fast_as_one_reads(streamed, copying, fetched, reading, arrays):
    """Element by element from some arrays into one: one is a copy, none stores only, more lie between a copy and reading alone."""
    found = replace(MACHINE.bandwidth["memory"], read={1: reading})
    past = {"L2": {"out": Traffic(0, 100, 100), **{f"in{k}": Traffic(100, 0, 0) for k in range(arrays)}}}
    p = predict(counts({}), past, replace(MACHINE, bandwidth={**MACHINE.bandwidth, "memory": found}), "f64", streamed=frozenset(streamed))
    copy = 100 * (1 + fetched) / copying if arrays else 100 * fetched / copying
    assert p.memory == pytest.approx(max(copy + max(0, arrays - 1) * 100 / reading, 100 * (arrays + fetched - 1) / reading))


def test_more_work_never_takes_less_time():
    small, large = ({"tile": {"fma": n}, "vector": {"exp2": n}} for n in (10, 11))
    assert predict(counts(small), {}, MACHINE, "f64").seconds < predict(counts(large), {}, MACHINE, "f64").seconds


def test_threads_beyond_the_measured_ones_get_the_largest_measured_rate():
    assert at(RATES.fma, 3) == at(RATES.fma, 2) == 400


def test_calibration_survives_json():
    assert Calibration.from_json(json.loads(json.dumps(MACHINE.to_json()))) == MACHINE


@pytest.mark.parametrize("damage", [{"schema": 0}, {"rates": {"f64": {"fma": {}}}}, {"clock": None}])
def test_a_damaged_calibration_is_refused(damage):
    with pytest.raises(LabError, match="moapipe calibrate"):
        Calibration.from_json({**MACHINE.to_json(), **damage})


def test_a_missing_part_is_refused():
    data = replace(MACHINE).to_json()
    del data["region"]
    with pytest.raises(LabError, match="incomplete"):
        Calibration.from_json(data)
