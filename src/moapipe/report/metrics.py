"""In: a dataset of the record schema (docs/architecture.md, frozen text 3). Out: derived numbers, one row of METRICS each.

Every function is pure and returns an array along `case`; intervals have the further dim `estimate` (low, value, high), traffic
has `level`. Only valid samples count. A number that cannot be had is NaN, and `explanation` says why in words.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from moapipe.lab.record import parameters
from moapipe.lab.variable import BASELINE, BESIDE, BUILD_AXES, PLAUSIBILITIES, POINT, RUN_AXES, STATUSES, YARDSTICK
from moapipe.lab.verdict import VERDICTS
from moapipe.machine.arrangement import AXES, Arrangement

PARTNER_AXES = POINT
ESTIMATES = ("low", "value", "high")
RESAMPLES = 1000
FEWEST = 6
SAMPLED = ("node", "launch", "sample")
MARK = "median_seconds"  # a dataset that has this variable has all metrics


# ------------------------------------------------------------------ reading the record


def status(ds: xr.Dataset) -> list[str]:
    """What became of each case, in the words of STATUSES."""
    names = {row.code: name for name, row in STATUSES.items()}
    return [names[code] for code in ds["status"].values.tolist()]


def plausibility(ds: xr.Dataset) -> list[str]:
    """Whether each case's penalty is possible, in the words of PLAUSIBILITIES."""
    names = {row.code: name for name, row in PLAUSIBILITIES.items()}
    return [names[code] for code in ds["plausibility"].values.tolist()]


def taken(ds: xr.Dataset) -> xr.DataArray:
    """Where a sample was taken at all: dims case, node, launch, sample."""
    return ds["seconds"].notnull()


def valid(ds: xr.Dataset) -> xr.DataArray:
    """Where a sample was taken and its verdict is `valid`: dims case, node, launch, sample."""
    return taken(ds) & (ds["verdict"] == VERDICTS["valid"].code)


def valid_seconds(ds: xr.Dataset) -> xr.DataArray:
    """Wall seconds of one call, NaN where the sample is not valid: dims case, node, launch, sample."""
    return ds["seconds"].where(valid(ds))


def runs(found: xr.DataArray) -> np.ndarray:
    """What each launch has as an array of case, launch, …: the launches of all nodes, one node after the other."""
    values = found.transpose("case", "node", "launch", ...).values
    return np.asarray(values.reshape(values.shape[0], -1, *values.shape[3:]))


# ------------------------------------------------------------------ intervals


def median_interval(values: np.ndarray, level: float = 0.95, seed: int = 0) -> tuple[float, float, float]:
    """(low, median, high) of a sample matrix, launches along axis 0, NaN where there is no value.

    Two-level bootstrap: launches are drawn with replacement, then samples within each (Kalibera and Jones, Rigorous
    Benchmarking in Reasonable Time, ISMM 2013), so that launch-to-launch variation widens the interval. Deterministic.
    Fewer than six values cannot bound a median at 95 % (2 · 2⁻⁵ > 5 %): the bounds are then NaN.
    """
    matrix = np.atleast_2d(np.asarray(values, dtype=float))
    matrix = matrix[np.isfinite(matrix).any(axis=1)]
    counts = np.isfinite(matrix).sum(axis=1)
    if not counts.sum():
        return (np.nan, np.nan, np.nan)
    median = float(np.nanmedian(matrix))
    if counts.sum() < FEWEST:
        return (np.nan, median, np.nan)
    low, high = np.quantile(_resampled_medians(matrix, counts, seed), [(1 - level) / 2, (1 + level) / 2])
    return (min(float(low), median), median, max(float(high), median))


def _resampled_medians(matrix: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    packed = np.sort(matrix, axis=1)[:, : counts.max()]  # NaN goes last
    launch = rng.integers(len(counts), size=(RESAMPLES, len(counts)))
    size = counts[launch][..., None]
    pick = (rng.random((RESAMPLES, len(counts), packed.shape[1])) * size).astype(np.intp)
    drawn = packed[launch[..., None], pick]
    drawn[np.broadcast_to(np.arange(packed.shape[1]), drawn.shape) >= size] = np.nan
    total = size[..., 0].sum(axis=1)
    below, above = (total - 1) // 2, total // 2
    drawn = np.partition(drawn.reshape(RESAMPLES, -1), np.unique([below, above]), axis=1)  # NaN goes last here too
    rows = np.arange(RESAMPLES)
    return 0.5 * (drawn[rows, below] + drawn[rows, above])


def _intervals(matrices: Sequence[np.ndarray | None]) -> xr.DataArray:
    rows = [(np.nan,) * 3 if m is None else median_interval(m) for m in matrices]
    return xr.DataArray(np.array(rows, dtype=float).reshape(-1, 3), dims=("case", "estimate"), coords={"estimate": list(ESTIMATES)})


# ------------------------------------------------------------------ metrics


def valid_share(ds: xr.Dataset) -> xr.DataArray:
    """Valid samples among the taken ones; NaN where none was taken."""
    count = taken(ds).sum(SAMPLED)
    return valid(ds).sum(SAMPLED) / count.where(count > 0)


def median_seconds(ds: xr.Dataset) -> xr.DataArray:
    """Median over launches and valid samples, with its 95 % interval: dims case, estimate."""
    return _intervals(list(runs(valid_seconds(ds))))


def _median(ds: xr.Dataset) -> xr.DataArray:
    flat = np.sort(runs(valid_seconds(ds)).reshape(ds.sizes["case"], -1), axis=1)
    count = np.isfinite(flat).sum(axis=1)  # NaN is sorted last; an empty row yields its NaN
    rows = np.arange(len(flat))
    middle = flat[rows, np.maximum(count - 1, 0) // 2] + flat[rows, np.minimum(count // 2, flat.shape[1] - 1)]
    return xr.DataArray(0.5 * middle, dims="case")


def _scatter(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Standard deviation of what is known along a dim; NaN for fewer than two values."""
    return values.std(dim, ddof=1).where(values.count(dim) > 1)


def _relative(ds: xr.Dataset, scatters: xr.DataArray) -> xr.DataArray:
    """The middle of a case's standard deviations over its median time."""
    others = [d for d in scatters.dims if d != "case"]
    return (scatters.median(others) if others else scatters) / _median(ds)


def process_scatter(ds: xr.Dataset) -> xr.DataArray:
    """Within a process: standard deviation of a launch's valid samples, in the middle launch, over the median time."""
    return _relative(ds, _scatter(valid_seconds(ds), "sample"))


def launch_scatter(ds: xr.Dataset) -> xr.DataArray:
    """Between launches: standard deviation of the medians of a node's launches, on the middle node, over the median time."""
    return _relative(ds, _scatter(valid_seconds(ds).median("sample"), "launch"))


def node_scatter(ds: xr.Dataset) -> xr.DataArray:
    """Between nodes: standard deviation of the medians of the nodes' launches over the median time; NaN on one node."""
    return _relative(ds, _scatter(valid_seconds(ds).median("sample").median("launch"), "node"))


def predicted_over_measured(ds: xr.Dataset) -> xr.DataArray:
    """1 is a perfect prediction; below 1 the machine was slower than predicted."""
    return ds["predicted_seconds"] / _median(ds)


def prediction_error(ds: xr.Dataset) -> xr.DataArray:
    """|predicted − measured| over measured time."""
    return abs(predicted_over_measured(ds) - 1)


def foreseen_error(ds: xr.Dataset) -> xr.DataArray:
    """Median over the launches of |foreseen − measured| over the launch's median time: `prediction_error` of the predictions that were
    made again just before each launch, with the memory as yardsticks found it then. NaN where there were none."""
    found = runs(valid_seconds(ds))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a launch without a valid sample has no median
        medians = np.nanmedian(found, axis=2)
        return xr.DataArray(np.nanmedian(abs(runs(ds["foreseen_seconds"]) / medians - 1), axis=1), dims="case")


def flop_rate(ds: xr.Dataset) -> xr.DataArray:
    """Mathematical operations (what the definition needs, not what the loops execute) over the median time."""
    return ds["useful_flops"] / _median(ds)


def peak_share(ds: xr.Dataset) -> xr.DataArray:
    """`flop_rate` over the measured FMA peak at the case's dtype and threads."""
    return flop_rate(ds) / ds["peak_flops"]


def partners(ds: xr.Dataset) -> np.ndarray:
    """For each case the index of PyTorch's case in the same bench group at the same run axes, or -1; PyTorch and yardsticks have none.

    Where PyTorch offers several functions, the fastest is the one to beat.
    """
    keys = list(zip(*(ds[a].values.tolist() for a in PARTNER_AXES), strict=True))
    torch, medians = ds["target"].values == BASELINE, _median(ds).values
    best: dict[tuple[Any, ...], int] = {}
    for i in sorted(np.flatnonzero(torch), key=lambda i: (np.isnan(medians[i]), medians[i])):
        best.setdefault(keys[i], int(i))
    return np.array([-1 if beside else best.get(k, -1) for k, beside in zip(keys, np.isin(ds["target"].values, BESIDE), strict=True)], dtype=int)


def yardsticks(ds: xr.Dataset) -> np.ndarray:
    """For each case the index of the yardstick with the same kind of store in the same bench group at the same run axes, else of the
    one that only reads, or -1."""
    keys = list(zip(*(ds[a].values.tolist() for a in (*PARTNER_AXES, "stores")), strict=True))
    beside = ds["target"].values == YARDSTICK
    known = {keys[i]: int(i) for i in np.flatnonzero(beside)}
    return np.array([-1 if beside[i] else known.get(k, known.get((*k[:-1], "none"), -1)) for i, k in enumerate(keys)], dtype=int)


def speedup(ds: xr.Dataset) -> xr.DataArray:
    """Median over (launch, sample) of PyTorch's time over ours, with its 95 % interval: dims case, estimate.

    Paired: sample s of launch l on a node of both were taken in turn in one job; a pair counts when both its samples are valid.
    """
    seconds = runs(valid_seconds(ds))
    return _intervals([None if p < 0 else seconds[p] / seconds[i] for i, p in enumerate(partners(ds))])


def yardstick_share(ds: xr.Dataset) -> xr.DataArray:
    """Speed over that of a copy with the same kind of store, or of reading, both in compulsory bytes (footprint) a second, with its
    95 % interval: dims case, estimate. Paired like `speedup`: bandwidth belongs to everybody on the host and changes within minutes.
    """
    seconds = runs(valid_seconds(ds))
    moved = (ds["footprint_read_bytes"] + ds["footprint_written_bytes"]).values
    return _intervals([None if p < 0 or not moved[p] else seconds[p] / seconds[i] * (moved[i] / moved[p]) for i, p in enumerate(yardsticks(ds))])


def exponent(ds: xr.Dataset, size: str = "n") -> xr.DataArray:
    """Local exponent d log t / d log n along each series of cases that differ in `size` alone; 2 is quadratic.

    Central differences in the logarithm, one-sided at the ends. Cases whose other sizes follow `size` (square matrices) form a
    series too.
    """
    out = np.full(ds.sizes["case"], np.nan)
    if size in ds.variables:
        medians = _median(ds).values
        for members in series(ds, size):
            members = [i for i in members if medians[i] > 0]
            if len(members) > 1:
                x, y = np.log(ds[size].values[members].astype(float)), np.log(medians[members])
                out[members] = np.gradient(y, x, edge_order=1)
    return xr.DataArray(out, dims="case")


def series(ds: xr.Dataset, size: str = "n") -> list[list[int]]:
    """Cases that differ in `size` alone, as lists of indices sorted by it, no size twice; cases without `size` are left out."""
    others = [ds[s].values.tolist() for s in parameters(ds) if s != size and s in ds.coords]  # metrics are no coordinates
    n = ds[size].values.tolist()
    fixed = list(zip(*(ds[a].values.tolist() for a in (*BUILD_AXES, *RUN_AXES[1:])), strict=True))

    def group(indices: list[int], key: Callable[[int], tuple[Any, ...]]) -> list[list[int]]:
        found: dict[tuple[Any, ...], dict[int, int]] = {}
        for i in indices:
            found.setdefault(key(i), {}).setdefault(int(n[i]), i)
        return [[m[k] for k in sorted(m)] for m in found.values()]

    exact = group([i for i in range(len(n)) if n[i] > 0], lambda i: (*fixed[i], *(o[i] for o in others)))
    lone = [g[0] for g in exact if len(g) == 1]
    return [g for g in exact if len(g) > 1] + group(
        lone, lambda i: (*fixed[i], *("n" if o[i] == n[i] else o[i] for o in others))
    )


def traffic_ratio(ds: xr.Dataset) -> xr.DataArray:
    """Traffic past each level over the least that any schedule could move: dims case, level; 1 is optimal."""
    return ds["traffic_bytes"] / ds["lower_bound_bytes"].where(ds["lower_bound_bytes"] > 0)


def achieved_bandwidth(ds: xr.Dataset) -> xr.DataArray:
    """Predicted traffic past each level over the median time: dims case, level."""
    return ds["traffic_bytes"] / _median(ds)


def bandwidth_share(ds: xr.Dataset) -> xr.DataArray:
    """`achieved_bandwidth` over the measured ceiling beyond the level: dims case, level."""
    return achieved_bandwidth(ds) / ds["bandwidth"]


@dataclass(frozen=True)
class Metric:
    """A derived number: its unit, its name in words, and the function that makes it from a dataset."""

    name: str
    units: str
    long_name: str
    function: Callable[[xr.Dataset], xr.DataArray]


METRICS = (
    Metric("valid_share", "1", "share of valid samples", valid_share),
    Metric("median_seconds", "s", "median time of one call", median_seconds),
    Metric("process_scatter", "1", "standard deviation within a process over the median", process_scatter),
    Metric("launch_scatter", "1", "standard deviation between launches over the median", launch_scatter),
    Metric("node_scatter", "1", "standard deviation between nodes over the median", node_scatter),
    Metric("predicted_over_measured", "1", "predicted over measured time", predicted_over_measured),
    Metric("prediction_error", "1", "absolute error of the prediction over the measured time", prediction_error),
    Metric("foreseen_error", "1", "the same of predictions with the memory as it was just before each launch", foreseen_error),
    Metric("flop_rate", "s-1", "mathematical operations over time", flop_rate),
    Metric("peak_share", "1", "share of the measured FMA peak", peak_share),
    Metric("speedup", "1", "PyTorch's time over ours, paired", speedup),
    Metric("yardstick_share", "1", "speed over that of only moving data, paired", yardstick_share),
    Metric("exponent", "1", "local exponent of time against n", exponent),
    Metric("traffic_ratio", "1", "traffic over its lower bound", traffic_ratio),
    Metric("achieved_bandwidth", "B s-1", "traffic over time", achieved_bandwidth),
    Metric("bandwidth_share", "1", "share of the measured bandwidth", bandwidth_share),
)


def evaluate(ds: xr.Dataset) -> xr.Dataset:
    """Every row of METRICS; an interval becomes three variables, `name`, `name_low` and `name_high`."""
    out: dict[str, xr.DataArray] = {}
    for m in METRICS:
        array = m.function(ds).reset_coords(drop=True)
        attrs = {"units": m.units, "long_name": m.long_name}
        if "estimate" not in array.dims:
            out[m.name] = array.assign_attrs(attrs)
            continue
        for estimate, suffix in zip(ESTIMATES, ("_low", "", "_high"), strict=True):
            bound = {"_low": ", lower 95 % bound", "_high": ", upper 95 % bound", "": ""}[suffix]
            out[m.name + suffix] = array.sel(estimate=estimate, drop=True).assign_attrs(attrs | {"long_name": m.long_name + bound})
    return xr.Dataset(out)


def enrich(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with every metric as a variable of its own; what has them already stays as it is. For those who read several."""
    return ds if MARK in ds else ds.assign(evaluate(ds)).assign_attrs(ds.attrs)


def explanation(ds: xr.Dataset) -> list[str]:
    """One sentence for each case without a usable time, empty for the others."""
    names = {row.code: name for name, row in VERDICTS.items()}
    found, was_taken, usable = ds["verdict"].values, taken(ds).values, valid(ds).any(SAMPLED).values
    verdicts = [Counter(names[c] for c in found[i][was_taken[i]].tolist()) for i in range(len(found))]
    reasons = ds["reason"].values.tolist()
    return [_explain(*row) for row in zip(status(ds), reasons, verdicts, usable.tolist(), strict=True)]


def _explain(state: str, reason: str, verdicts: Counter[str], usable: bool) -> str:
    if state == "measured" and usable:
        return ""
    words = state.replace("_", " ")
    found = ", ".join(f"{count} × {name.replace('_', ' ')}" for name, count in verdicts.most_common(3))
    return f"{words}: {reason or found or STATUSES[state].text}"


def kind(text: str) -> str:
    """An explanation without its numbers, so that cases which fail alike are told together."""
    return re.sub(r"\d+(\.\d+)?", "…", text)


def frame(ds: xr.Dataset) -> pd.DataFrame:
    """One row a case: axes, sizes, record values, metrics, status and explanation. Levels become columns `name_L1` …"""
    columns: dict[str, Any] = {"case": np.arange(ds.sizes["case"])}
    for name, variable in enrich(ds).variables.items():
        if variable.dims == ("case",):
            columns[str(name)] = variable.values
        elif variable.dims == ("case", "level"):
            columns |= {f"{name}_{level}": variable.values[:, j] for j, level in enumerate(ds["level"].values.tolist())}
    columns["status"] = status(ds)
    columns["plausibility"] = plausibility(ds)
    columns["taken_samples"] = taken(ds).sum(SAMPLED).values
    columns["valid_samples"] = valid(ds).sum(SAMPLED).values
    columns["explanation"] = explanation(ds)
    columns["arrangement"] = [Arrangement(*row).text() for row in zip(*(ds[a].values.tolist() for a in AXES), strict=True)]
    return pd.DataFrame(columns)
