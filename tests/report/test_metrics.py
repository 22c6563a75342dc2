"""Every metric against a number worked out by hand or by brute force on the synthetic dataset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from moapipe.lab import record
from moapipe.lab.record import Case, Sample
from moapipe.lab.variable import STATUSES
from moapipe.report import metrics
from moapipe.report.accuracy import errors
from moapipe.report.metrics import METRICS

YARDSTICKS = [m for m in METRICS if m.function in (metrics.yardstick_share, metrics.foreseen_error)]
NODES = [m for m in METRICS if m.function is metrics.node_scatter]
NAMES = {"kernel": "k", "form": "plain", "isa": "avx512", "dtype": "f64", "machine": "m", "threads": 2}


def case(times: list[list[float | None]], target: str = "c", **more: object) -> Case:
    """A case with these times (None: an invalid sample of a thousand seconds); `n` and others in `more` are sizes or variables."""
    launches = [[Sample(1000.0 if t is None else t, 1, "neighbour" if t is None else "valid") for t in launch] for launch in times]
    sizes = {k: v for k, v in more.items() if k in ("n", "m", "d")}
    values = NAMES | {"variant": "v", "target": target, "label": " ".join(f"{k}={v}" for k, v in sizes.items())}
    return Case(values | {k: v for k, v in more.items() if k not in sizes}, sizes, "measured", "", launches)  # type: ignore[arg-type]


def data(*cases: Case) -> xr.Dataset:
    return record.make(cases, {})


def test_only_valid_samples_count() -> None:
    ds = data(case([[1.0, None, 3.0], [2.0, None]]))
    assert metrics.valid_share(ds).item() == 0.6
    assert metrics.median_seconds(ds).sel(estimate="value").item() == 2.0


def test_an_even_number_of_samples_has_the_mean_of_the_middle_two_as_median() -> None:
    ds = data(case([[1.0, 2.0], [4.0, 8.0]], n=1), case([[5.0]], n=2))
    assert metrics.flop_rate(ds.assign(useful_flops=("case", [6.0, 10.0]))).values.tolist() == [2.0, 2.0]


def test_fewer_than_six_values_have_no_interval() -> None:
    low, value, high = metrics.median_interval(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]))
    assert value == 3.0 and np.isnan(low) and np.isnan(high)
    low, value, high = metrics.median_interval(np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))
    assert low < value < high


def test_no_value_gives_no_median() -> None:
    assert np.isnan(metrics.median_interval(np.full((3, 4), np.nan))).all()


def test_interval_is_reproducible_and_does_not_see_the_padding() -> None:
    values = np.random.default_rng(3).lognormal(size=(3, 20))
    padded = np.pad(values, ((0, 2), (0, 7)), constant_values=np.nan)
    assert metrics.median_interval(values) == metrics.median_interval(values) == metrics.median_interval(padded)


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        offsets = rng.normal(0, 0.5, (8, 1))
        low, _, high = metrics.median_interval(10 + offsets + rng.normal(0, 1.0, (8, 20)), seed=trial)
        hits += low <= 10 <= high
    assert hits >= 176  # 95 % of 200 is 190; few launches cost some coverage, ignoring them would leave about 130


def test_launches_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.01, (3, 40))
    low, _, high = metrics.median_interval(1 + noise)
    low_shifted, _, high_shifted = metrics.median_interval(1 + noise + np.array([[-0.1], [0.0], [0.1]]))
    assert high - low < 0.02
    assert low_shifted < 0.92 and high_shifted > 1.08


def test_speedup_is_paired_by_launch_and_sample() -> None:
    drift = np.linspace(1, 3, 12)  # both slow down together: the ratio is 2 all the time, the medians' interval is wide
    ours, theirs = [(drift[:6]).tolist(), (drift[6:]).tolist()], [(2 * drift[:6]).tolist(), (2 * drift[6:]).tolist()]
    ds = data(case(ours, n=8), case(theirs, "torch", n=8, variant="sdpa", isa="native"))
    found = metrics.speedup(ds)
    assert np.allclose(found.values[0], 2.0)
    assert np.isnan(found.values[1]).all()


def test_a_pair_needs_both_samples_valid() -> None:
    ds = data(case([[1.0, None, 1.0]], n=8), case([[2.0, 50.0, None]], "torch", n=8, variant="sdpa"))
    assert metrics.speedup(ds).sel(estimate="value").values[0] == 2.0


@pytest.mark.parametrize("change", [{"n": 9}, {"threads": 4}, {"dtype": "f32"}, {"form": "causal"}, {"machine": "other"}, {"kernel": "x"}])
def test_no_comparison_crosses_a_bench_group(change: dict[str, object]) -> None:
    ds = data(case([[1.0] * 6], n=8), case([[2.0] * 6], "torch", **({"n": 8, "variant": "sdpa"} | change)))
    assert metrics.partners(ds).tolist() == [-1, -1]


def test_the_fastest_of_pytorchs_functions_is_the_one_to_beat() -> None:
    ds = data(case([[1.0] * 6]), case([[4.0] * 6], "torch", variant="math"), case([[3.0] * 6], "torch", variant="flash"))
    assert metrics.partners(ds).tolist() == [2, -1, -1]


@pytest.mark.parametrize("power", [1, 2, 3])
def test_exponent_of_a_power_law_is_its_power(power: int) -> None:
    ds = data(*(case([[1e-6 * n**power]], n=n, d=64) for n in (64, 512, 128)), case([[7.0]], n=64, d=128))
    found = metrics.exponent(ds).values
    assert np.allclose(found[:3], power) and np.isnan(found[3])


def test_sizes_that_follow_n_form_a_series_with_it() -> None:
    square = [case([[float(n**3)]], n=n, m=n) for n in (8, 16)]
    panels = [case([[float(n**2)]], n=n, m=32) for n in (64, 128)]
    assert np.allclose(metrics.exponent(data(*square, *panels)).values, [3, 3, 2, 2])


def test_unknown_size_gives_no_exponent() -> None:
    assert np.isnan(metrics.exponent(data(case([[1.0]], m=4), case([[2.0]], m=8))).values).all()


def test_traffic_and_bandwidth_are_per_level() -> None:
    levels = {"traffic_bytes": {"L1": 600.0, "L2": 60.0}, "lower_bound_bytes": {"L1": 300.0, "L2": 60.0}, "bandwidth": {"L1": 1e3, "L2": 1e2}}
    ds = data(case([[2.0]], **levels))
    assert metrics.traffic_ratio(ds).values[0, :2].tolist() == [2.0, 1.0]
    assert metrics.achieved_bandwidth(ds).values[0, :2].tolist() == [300.0, 30.0]
    assert metrics.bandwidth_share(ds).values[0, :2].tolist() == [0.3, 0.3]
    assert np.isnan(metrics.traffic_ratio(ds).values[0, 2])


def spread_of(process: float, launch: float, node: float) -> xr.Dataset:
    """Eight nodes, twelve launches on each, forty samples in each, scattered at each of the three levels around 1 s."""
    rng = np.random.default_rng(5)
    records = []
    for host in range(8):
        here = 1 + node * rng.standard_normal()
        times = [(here + launch * rng.standard_normal() + process * rng.standard_normal(40)).tolist() for _ in range(12)]
        records.append(record.make([case(times)], {"host": f"node{host}", "created": str(host)}))
    return record.join(records)


SPREADS = {"process_scatter": (0.02, 0.001, 0.001), "launch_scatter": (0.001, 0.02, 0.001), "node_scatter": (0.001, 0.001, 0.02)}


@pytest.mark.parametrize("name", SPREADS)
def test_the_three_variances_are_told_apart(name: str) -> None:
    found = metrics.evaluate(spread_of(*SPREADS[name]))
    assert 0.01 < found[name].item() < 0.03
    assert all(found[other].item() < 0.01 for other in SPREADS if other != name)


def test_launches_of_all_nodes_count_alike() -> None:
    ds = record.join([record.make([case(times)], {"host": h, "created": h}) for h, times in (("a", [[1.0] * 4, [2.0] * 4]), ("b", [[3.0] * 4]))])
    assert metrics.runs(ds["seconds"]).shape == (1, 4, 4)
    assert metrics.median_seconds(ds).sel(estimate="value").item() == 2.0
    assert metrics.valid_share(ds).item() == 1.0


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_every_metric_has_a_unit_and_one_number_a_case(metric: metrics.Metric, dataset: xr.Dataset) -> None:
    found = metric.function(dataset)
    assert found.dims[0] == "case" and found.sizes["case"] == dataset.sizes["case"]
    assert set(found.dims) <= {"case", "estimate", "level"}
    assert metric.units and metric.long_name
    if metric not in (*YARDSTICKS, *NODES):      # the dataset has none of them; tests of theirs do
        assert np.isfinite(found.values).any()


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_metrics_stay_quiet_on_a_dataset_without_times(metric: metrics.Metric) -> None:
    ds = data(Case(NAMES | {"variant": "v", "target": "c", "label": "n=4"}, {"n": 4}, "refused", "too large for this machine"))
    assert np.isnan(metric.function(ds).values).all()


def test_evaluate_names_units_and_bounds(dataset: xr.Dataset) -> None:
    out = metrics.evaluate(dataset)
    assert out["speedup_low"].attrs == {"units": "1", "long_name": "PyTorch's time over ours, paired, lower 95 % bound"}
    ok = out["speedup"].notnull()
    assert ok.any() and bool(((out["speedup_low"] <= out["speedup"]) & (out["speedup"] <= out["speedup_high"])).where(ok, True).all())


@pytest.mark.parametrize("status", STATUSES)
def test_missing_is_explained_and_measured_is_not(status: str, dataset: xr.Dataset) -> None:
    rows = metrics.frame(dataset).query("status == @status")
    assert len(rows)
    if status == "measured":
        assert (rows["explanation"] == "").all() and rows["median_seconds"].notna().all()
    else:
        assert rows["explanation"].str.startswith(status.replace("_", " ") + ": ").all() and rows["median_seconds"].isna().all()


def test_frame_has_one_row_a_case_and_a_column_a_level(make: Callable[..., xr.Dataset]) -> None:
    ds = make()
    rows = metrics.frame(ds)
    assert len(rows) == ds.sizes["case"]
    assert {"traffic_ratio_L1", "traffic_ratio_L3", "label", "n", "machine", "valid_samples"} <= set(rows.columns)
    assert (rows["valid_samples"] <= rows["taken_samples"]).all()


def test_an_enriched_dataset_has_the_same_frame(dataset: xr.Dataset) -> None:
    rich = metrics.enrich(dataset)
    assert metrics.enrich(rich) is rich
    pd.testing.assert_frame_equal(metrics.frame(rich), metrics.frame(dataset))
    assert rich.attrs == dataset.attrs and not set(metrics.evaluate(dataset)) & set(dataset.variables)


def test_a_share_of_a_yardstick_pairs_the_same_kind_of_store(dataset) -> None:
    """Ours against the copy of the same turns and stores, in compulsory bytes; not against the other kind, and no copy against itself."""
    mine = dataset.isel(case=np.flatnonzero((dataset["kernel"] == "rmsnorm") & (dataset["target"] == "c") & (dataset["dtype"] == "f64"))[:1])
    copies = [mine.assign_coords(target=("case", ["yardstick"]), variant=("case", [way])).assign(seconds=mine["seconds"] * factor, stores=("case", [stores]))
              for way, stores, factor in (("copy", "plain", 0.5), ("stream", "stream", 0.1))]
    ours = mine.assign(stores=("case", ["plain"]), footprint_read_bytes=mine["footprint_read_bytes"] * 2)
    joined = xr.concat([ours, *copies], dim="case")
    bytes_of = (joined["footprint_read_bytes"] + joined["footprint_written_bytes"]).values
    shares = metrics.yardstick_share(joined).sel(estimate="value").values
    assert shares[0] == pytest.approx(0.5 * bytes_of[0] / bytes_of[1])
    assert np.isnan(shares[1:]).all()
    assert (metrics.partners(joined) == -1).all()


def test_without_a_copy_a_share_is_that_of_reading(dataset) -> None:
    mine = dataset.isel(case=np.flatnonzero((dataset["kernel"] == "rmsnorm") & (dataset["target"] == "c") & (dataset["dtype"] == "f64"))[:1])
    reading = mine.assign_coords(target=("case", ["yardstick"]), variant=("case", ["read"])).assign(seconds=mine["seconds"] * 0.25, stores=("case", ["none"]))
    shares = metrics.yardstick_share(xr.concat([mine, reading], dim="case")).sel(estimate="value").values
    assert shares[0] == pytest.approx(0.25) and np.isnan(shares[1])


def test_a_launch_is_held_against_the_prediction_made_just_before_it() -> None:
    """Launches of 1 and 2 s foreseen as 1.1 and 1.5: errors of 0.1 and 0.25; the calibrated 4 s are off by 3 and 1."""
    sights = {"foreseen_seconds": [1.1, 1.5, 7.0], "memory_drift": [1.0, 2.0, 2.0], "predicted_seconds": 4.0}
    ds = data(case([[1.0, 1.0], [2.0, 2.0], [None]], n=4, **sights), case([[1.0]], n=5, predicted_seconds=2.0))
    assert metrics.foreseen_error(ds).values[0] == pytest.approx(0.175) and np.isnan(metrics.foreseen_error(ds).values[1])
    row = errors(ds).iloc[0]
    assert (row["kind"], row["cases"], row["median"]) == ("time", 2, pytest.approx((0.175 + 1.0) / 2))
    assert row["calibrated"] == pytest.approx(abs(4.0 / 1.5 - 1))
