"""In: a dataset. Out: the charts of arrangements: what each costs against the best one, and what threads that share cores cost.

Filled marks are measured, open ones predicted from the calibrated barriers and bandwidths before anything ran.
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from moapipe.report.explain import references
from moapipe.report.mark import (
    OPACITY,
    Look,
    dots,
    faceted,
    guide,
    left_out,
    log_axis,
    look_of,
    positive,
    records,
    rows_of,
    titled,
)

FACTOR = "format(datum.value, '~r') + '×'"
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3], [10, 2], [3, 1]]


def arranged(ds: xr.Dataset) -> bool:
    """Whether a dataset has several arrangements to compare."""
    return len({tuple(row) for row in zip(*(ds[a].values.tolist() for a in ("threads", "cores", "placement", "memory", "wait_policy")), strict=True)}) > 1


def shared(ds: xr.Dataset) -> bool:
    """Whether threads share cores somewhere."""
    return bool((ds["threads"] > ds["cores"]).any()) and bool((ds["cores"] > 0).any())


def strained(ds: xr.Dataset) -> pd.DataFrame:
    """`rows_of` with `penalty` and `predicted_penalty`: time over that of the reference of report.explain, measured and predicted."""
    rows = rows_of(ds)
    reference = references(ds)
    for name, source in (("penalty", "median_seconds"), ("predicted_penalty", "predicted_seconds")):
        rows[name] = rows[source].to_numpy() / rows[source].to_numpy()[reference]
    rows["threads_per_core"] = rows["threads"] / rows["cores"].where(rows["cores"] > 0, rows["threads"])
    told = rows["believed_cpus"].map(lambda n: f", believes in {n} CPUs" if n else "")
    rows["how"] = (rows["wait_policy"].replace("", "short") + " waiting" + told).astype(str)
    return rows


def penalty(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Time over that of the best arrangement of the same build and sizes, an arrangement a line, predicted beside measured."""
    rows = strained(ds)
    rows["panel"] = rows["kernel"] + " · " + rows["form"] + " · " + rows["dtype"]
    shown = positive(rows, "penalty")
    both = shown.assign(predicted_penalty=shown["predicted_penalty"].fillna(shown["penalty"]))
    axis = log_axis("time over the best arrangement's (1)", _decades(both), FACTOR)
    x, foreseen = alt.X("penalty:Q", **axis), alt.X("predicted_penalty:Q", **axis)
    y = alt.Y("arrangement:N", title="arrangement (threads and pages)", axis=alt.Axis(labelLimit=420, titleAngle=0, titleAlign="right", titleX=-6, titleY=-8))
    look = look_of(rows, shown)
    note = left_out(rows, shown, "without a reference") + " Filled: measured; open: predicted."
    data = records(shown, "panel", "arrangement", "penalty", "predicted_penalty")
    height = 16 * max(4, shown["arrangement"].nunique())
    return titled("What each arrangement of threads and pages costs", note, data,
                  lambda: faceted(_open(look, foreseen, y), dots(look, x, y), height=height))


def oversubscription(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Time over one thread a core against threads per core, a panel for each runtime and size: cores are held, threads raised."""
    rows = strained(ds)
    rows["panel"] = rows["kernel"] + " · " + rows["dtype"] + " · " + rows["label"] + " · " + rows["runtime"] + " · " + rows["cores"].map(lambda n: f"{n} core{'s' * (n != 1)}")
    shown = positive(rows, "penalty", "threads_per_core")
    both = shown.assign(predicted_penalty=shown["predicted_penalty"].fillna(shown["penalty"]))
    ticks = sorted({float(t) for t in shown["threads_per_core"]})
    x = alt.X("threads_per_core:Q", title="threads per core (1)", scale=alt.Scale(type="log", base=2, padding=10), axis=alt.Axis(values=ticks, format="~r"))
    axis = log_axis("time over one thread a core (1)", _decades(both), FACTOR)
    y, foreseen = alt.Y("penalty:Q", **axis), alt.Y("predicted_penalty:Q", **axis)
    look = look_of(rows, shown)
    hows = sorted(set(shown["how"]))
    dash = alt.StrokeDash("how:N", title="threads that wait", scale=alt.Scale(domain=hows, range=[DASHES[k % len(DASHES)] for k in range(len(hows))]))
    traces = alt.Chart().transform_filter("isValid(datum.case)").mark_line(strokeWidth=1.6).encode(x, y, look.colour, dash, OPACITY, detail="target:N")
    guides = [{"panel": panel, "guide": "even", "threads_per_core": t, "penalty": 1.0} for panel in set(shown["panel"]) for t in (ticks[0], ticks[-1])]
    note = left_out(rows, shown, "without a reference") + " Filled: measured; open: predicted."
    data = records(shown, "panel", "how", "threads_per_core", "penalty", "predicted_penalty") + guides
    return titled("Threads that share cores", note, data,
                  lambda: faceted(guide("even", x, y), traces, _open(look, x, foreseen), dots(look, x, y)))


def _decades(rows: pd.DataFrame) -> list[float]:
    """Ticks 1, 2, 5 of every decade that penalties reach: some panels span a factor, some five decades; labels that touch are left out."""
    most = np.nanmax([1.0, *rows["penalty"], *rows["predicted_penalty"]])
    return [float(f"{m}e{k}") for k in range(-1, int(np.ceil(np.log10(most))) + 1) for m in (1, 2, 5)]


def _open(look: Look, x: alt.X, y: alt.Y) -> alt.Chart:
    """Open marks where a prediction is known."""
    known = alt.Chart().transform_filter("isValid(datum.case) && isValid(datum.predicted_penalty)")
    return known.mark_point(filled=False, size=90, strokeWidth=1.4).encode(x, y, look.colour, look.shape, OPACITY)
