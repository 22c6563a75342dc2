"""What we owe: every bar finds its cases, is met or missed by its floor, and is not judged without a measurement."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from moapipe.lab import experiment
from moapipe.report import bar
from moapipe.report.accuracy import errors
from moapipe.report.metrics import METRICS, frame

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", bar.BARS, ids=lambda b: f"{b.metric}-{b.floor:.2f}-{b.text[:12]}")
def test_every_bar_reads_a_column_that_there_is(row: bar.Bar, dataset) -> None:
    rows = bar.with_languages(frame(dataset))
    assert row.metric in rows
    assert set(row.where) <= set(rows)
    assert row.floor > 0


@pytest.mark.parametrize("row", bar.BARS, ids=lambda b: f"{b.metric}-{b.floor:.2f}-{b.text[:12]}")
def test_every_bar_has_a_case_in_the_experiment(row: bar.Bar) -> None:
    """A renamed variant must not silence a promise."""
    e = experiment.read("config/bars.yaml", ROOT)
    found = [c for g in experiment.groups(e) for c in experiment.cases(e, g)]
    at = [{**c.point.at, **{a: getattr(c.build, a) for a in ("kernel", "form", "variant", "target", "dtype")}} for c in found if not c.reason]
    assert any(all(case.get(axis) in values for axis, values in row.where.items()) for case in at)


def test_a_bar_is_met_from_its_floor_on(dataset, monkeypatch) -> None:
    rows = bar.with_languages(frame(dataset))
    mine = rows[(rows["target"] == "c") & np.isfinite(rows["peak_share"])].iloc[0]
    where = {a: (mine[a],) for a in ("kernel", "form", "variant", "target", "dtype", "label", "threads")}
    value = float(mine["peak_share"])
    for floor, met in ((value, True), (np.nextafter(value, 2), False)):
        monkeypatch.setattr(bar, "BARS", (bar.Bar("share", "peak_share", floor, where),))
        assert [o.met for o in bar.judge(dataset)] == [met]


def test_without_a_valid_measurement_nothing_is_judged(dataset, monkeypatch) -> None:
    monkeypatch.setattr(bar, "BARS", (bar.Bar("share", "peak_share", 0.1, {"target": ("c",)}),))
    silent = dataset.copy()
    silent["seconds"] = silent["seconds"] * np.nan
    outcomes = bar.judge(silent)
    assert outcomes and {o.met for o in outcomes} == {None}
    assert "no valid measurement" in bar.text(outcomes, errors(silent))


def test_a_share_of_a_yardstick_is_owed_where_there_are_some(dataset) -> None:
    assert not (dataset["target"] == "yardstick").any() and all(o.bar.metric != "yardstick_share" for o in bar.judge(dataset))
    beside = dataset.assign_coords(target=dataset["target"].where(dataset["target"] != "torch", "yardstick"))
    assert any(o.bar.metric == "yardstick_share" for o in bar.judge(beside))


def test_languages_are_compared_on_one_loop_nest(dataset) -> None:
    shared = dataset.copy()
    shared["onf_hash"] = dataset["onf_hash"].copy(data=np.where(dataset["target"] == "torch", "", "0123456789abcdef"))
    rows = bar.with_languages(frame(shared))
    c = rows[rows["target"] == "c"]
    assert np.allclose(c["against_c"].dropna(), 1.0)
    fortran = rows[(rows["target"] == "fortran") & np.isfinite(rows["against_c"])]
    assert len(fortran) > 10
    for row in fortran.to_dict("records"):
        same = c[(c[list(bar.SAME)] == [row[a] for a in bar.SAME]).all(axis=1)]
        assert row["against_c"] == pytest.approx(float(same["median_seconds"].iloc[0]) / row["median_seconds"])
    assert rows.loc[rows["target"] == "torch", "against_c"].isna().all()


def test_another_instruction_set_is_reported_not_judged(dataset, monkeypatch) -> None:
    monkeypatch.setattr(bar, "BARS", (bar.Bar("share", "peak_share", 0.01, {"target": ("c",)}),))
    other = dataset.assign_coords(isa=dataset["isa"].where(dataset["isa"] != "avx512", "avx2"))
    assert {o.met for o in bar.judge(other)} == {None}
    assert all(dataclasses.is_dataclass(o) for o in bar.judge(other))


def test_metrics_that_bars_read_are_rows_of_metrics() -> None:
    names = {m.name for m in METRICS}
    assert {b.metric.removesuffix("_low").removesuffix("_L3") for b in bar.BARS} <= names | {"against_c"}
