"""How far off predictions are: every variant has its row, penalties are held to the same promise, and who was not measured is not judged."""

from dataclasses import replace

import numpy as np
import pytest
from tests.report.test_explain import MS, ONE, TWO, case, of

from moapipe.report import accuracy
from moapipe.report.metrics import frame


def foreseen(c, seconds):
    return replace(c, values={**c.values, "predicted_seconds": seconds})


def test_every_variant_is_judged_by_the_median_of_all_its_cases(dataset) -> None:
    rows, found = frame(dataset), accuracy.errors(dataset)
    ours = rows[rows["target"] != "torch"]
    assert len(found[found["kind"] == "time"]) == len(ours.groupby(["kernel", "variant"]))
    for r in found[found["kind"] == "time"].to_dict("records"):
        mine = ours[(ours["kernel"] == r["kernel"]) & (ours["variant"] == r["variant"])]["prediction_error"].dropna()
        assert (r["cases"], r["median"], r["ninetieth"]) == (len(mine), pytest.approx(mine.median()), pytest.approx(np.quantile(mine, 0.9)))
        assert r["met"] is bool(r["median"] <= accuracy.CEILING)


def test_a_prediction_that_is_far_off_misses_and_a_yardstick_is_not_judged(dataset) -> None:
    far = dataset.assign(predicted_seconds=dataset["predicted_seconds"] * 3)
    assert set(accuracy.errors(far)["met"]) == {False}
    moved = far.assign_coords(target=dataset["target"].where(dataset["target"] == "torch", "yardstick"))
    assert set(accuracy.errors(moved)["met"]) == {None}
    assert {name.split()[1] for name, *_ in accuracy.rows(accuracy.errors(moved))} == {"yardstick"}


def test_a_variant_without_a_valid_measurement_has_a_row_that_says_so(dataset) -> None:
    variant = next(v for v, k, t in zip(*(dataset[a].values.tolist() for a in ("variant", "kernel", "target")), strict=True) if (k, t) == ("rmsnorm", "c"))
    silent = dataset.assign(seconds=dataset["seconds"].where((dataset["variant"] != variant) | (dataset["kernel"] != "rmsnorm")))
    row = next(r for r in accuracy.rows(accuracy.errors(silent)) if r[0] == f"rmsnorm {variant}")
    assert row == (f"rmsnorm {variant}", "time of one call", "0", "–", "–", "–", "not judged")


PENALTIES = {"oversubscription": replace(ONE, threads=8), "placement": replace(TWO, memory="remote"), "waiting": replace(TWO, wait_policy="passive")}


@pytest.mark.parametrize("kind", PENALTIES)
def test_penalties_are_predicted_against_measured(kind) -> None:
    """Four times as slow as the best arrangement of its cores, predicted three times: off by a quarter, though both times are off by half."""
    best = ONE if kind == "oversubscription" else TWO
    found = accuracy.errors(of(foreseen(case(best, MS), 0.5 * MS), foreseen(case(PENALTIES[kind], 4 * MS), 1.5 * MS))).set_index("kind")
    assert set(found.index) == {"time", kind}
    assert (found.loc[kind, "cases"], found.loc[kind, "median"], found.loc[kind, "met"]) == (1, pytest.approx(0.25), True)
    assert found.loc["time", "median"] == pytest.approx((0.5 + 0.625) / 2)


def test_the_table_has_every_row_and_verdict(dataset) -> None:
    found = accuracy.errors(dataset)
    assert accuracy.table(found).row_count == len(found) == len(list(accuracy.rows(found)))
