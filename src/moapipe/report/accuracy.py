"""In: a dataset. Out: how far off the predictions of every variant were, one row a variant and a kind of KINDS, with the verdict.

The promise is that the median absolute error is at most CEILING, for every variant, over all its cases: languages, forms, dtypes, sizes.
Penalties (time over that of the best arrangement of the same build and sizes, `report.explain`) are held to it too, predicted against measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

import numpy as np
import pandas as pd
import xarray as xr
from rich import box
from rich.table import Table

from moapipe.lab.variable import BASELINE, YARDSTICK
from moapipe.report.explain import references
from moapipe.report.metrics import frame

CEILING = 0.25
KINDS = {
    "time": "time of one call",
    "oversubscription": "penalty of more threads than cores",
    "placement": "penalty of where threads or pages lie",
    "waiting": "penalty of how threads wait, or of fewer threads",
}
VERDICTS = {True: "met", False: "MISSED", None: "not judged"}
VARIANT = ("kernel", "variant", "target")


def errors(ds: xr.Dataset) -> pd.DataFrame:
    """One row for each variant and kind that it has cases of: `kernel`, `variant`, `target` (`yardstick` or empty), `kind`, the number of
    `cases` with a prediction and a valid measurement, the `median` and `ninetieth` percentile of their errors, the median `calibrated`, and
    whether the promise is `met`: None where nobody was measured, and for a yardstick, whose prediction is the bandwidth that its own loop
    was calibrated with, so that its error says how much the memory has changed since.

    The error of a time is that of the last prediction before measuring: with the memory as it was found just before each launch where that was
    looked at, which `calibrated` is without; elsewhere `prediction_error`. A penalty's is |predicted ÷ measured − 1|.
    """
    rows = _penalties(ds, frame(ds))
    rows = rows[rows["target"] != BASELINE]
    rows = rows.assign(target=rows["target"].where(rows["target"] == YARDSTICK, ""))
    foreseen = np.isfinite(rows["foreseen_error"])
    times = rows.assign(kind="time", error=rows["foreseen_error"].where(foreseen, rows["prediction_error"]), calibrated=rows["prediction_error"].where(foreseen))
    penalties = rows[rows["kind"] != ""].assign(calibrated=np.nan)
    grouped = pd.concat([times, penalties]).groupby([*VARIANT, "kind"], sort=True)
    found = grouped["error"].agg(cases="count", median="median", ninetieth=lambda x: x.quantile(0.9))
    found = found.assign(calibrated=grouped["calibrated"].median()).reset_index()
    judged = (found["target"] == "") & (found["cases"] > 0)
    met = [bool(m <= CEILING) if j else None for m, j in zip(found["median"], judged, strict=True)]
    return found.assign(met=pd.Series(met, dtype=object))


def _penalties(ds: xr.Dataset, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the `error` of each case's penalty, and its `kind`: empty for what is its own reference, or has none."""
    reference = references(ds)
    best = rows.iloc[reference].reset_index(drop=True)
    measured, predicted = (rows[name] / best[name] for name in ("median_seconds", "predicted_seconds"))
    elsewhere = (rows["placement"] != best["placement"]) | (rows["memory"] != best["memory"])
    kind = np.select([reference == np.arange(len(rows)), rows["cores"].between(1, rows["threads"] - 1), elsewhere], ["", "oversubscription", "placement"], "waiting")
    return rows.assign(kind=kind, error=abs(predicted / measured - 1))


def table(found: pd.DataFrame) -> Table:
    """`errors` for a terminal."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"How far off the predictions are: median error at most {CEILING:.0%}", title_justify="left")
    for header in ("variant", "prediction of"):
        out.add_column(header)
    for header in ("cases", "median", "90th percentile", "as calibrated"):
        out.add_column(header, justify="right")
    out.add_column("")
    for row in rows(found):
        out.add_row(*row)
    return out


def rows(found: pd.DataFrame) -> Iterable[tuple[str, ...]]:
    """The rows of `errors` as words."""
    for r in found.to_dict("records"):
        name = " ".join(filter(None, (r["kernel"], r["target"], r["variant"])))
        shares = ("–" if isnan(r[key]) else f"{r[key]:.1%}" for key in ("median", "ninetieth", "calibrated"))
        yield name, KINDS[r["kind"]], str(r["cases"]), *shares, VERDICTS[r["met"]]
