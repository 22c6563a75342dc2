"""In: a dataset. Out: Altair charts, one row of CHARTS each; their Vega-Lite JSON and SVG files.

A chart is a pure function of the dataset. It names its data `rows`: a row with a `case` is a case, one without is a guide line.
One colour a variant over all charts, one shape a target; PyTorch is grey. A note under the title says what is left out, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
import xarray as xr

from moapipe.lab import record
from moapipe.lab.file import write_json, write_text
from moapipe.report import strain
from moapipe.report.mark import (
    COLUMNS,
    GREY,
    HEIGHT,
    LEAST,
    OPACITY,
    TIME,
    VEGALITE,
    WIDTH,
    Look,
    Rows,
    dots,
    faceted,
    guide,
    left_out,
    log_axis,
    log_ticks,
    look_of,
    positive,
    records,
    rows_of,
    size_axis,
    titled,
    traces,
)
from moapipe.report.metrics import enrich
from moapipe.report.table import FAIR

# ------------------------------------------------------------------ the charts

UNDERIVED = "without a prediction (PyTorch is not derived)"


def predicted(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Predicted against measured time, log-log, a panel for each kernel and dtype; on the line the prediction holds."""
    rows = rows_of(ds)
    rows["panel"] = rows["kernel"] + " · " + rows["dtype"]
    shown = positive(rows, "median_seconds", "predicted_seconds")
    guides = [g for panel, group in shown.groupby("panel") for g in _agreement(str(panel), group)]
    look = look_of(rows, shown)
    note = f"{left_out(rows, shown, UNDERIVED)} Line: predicted = measured; band: within a factor of {FAIR}."
    data = records(shown, "panel", "median_seconds", "predicted_seconds") + guides
    panels = pd.concat([shown, pd.DataFrame(guides)]).groupby("panel", sort=True) if guides else []
    return titled(
        "Predicted against measured time of one call", note, data,
        lambda: alt.concat(*(_predicted_panel(k, str(panel), group, look) for k, (panel, group) in enumerate(panels)), columns=COLUMNS, spacing=26),
    )  # fmt: skip


def _agreement(panel: str, group: pd.DataFrame) -> Rows:
    """The diagonal and the band of one panel, cut so that both axes reach equally far: from the least of its times to the largest and a
    fair factor more to both sides."""
    both = group[["median_seconds", "predicted_seconds"]].to_numpy()
    low, high = float(both.min()) / FAIR, float(both.max()) * FAIR
    line = [{"panel": panel, "guide": "identity", "median_seconds": end, "predicted_seconds": end} for end in (low, high)]
    corners = sorted({low, low * FAIR, high / FAIR, high})
    band = [{"panel": panel, "guide": "fair", "median_seconds": t, "predicted_seconds": max(low, t / FAIR), "top": min(high, t * FAIR)} for t in corners]
    return [*line, *band]


def _predicted_panel(k: int, panel: str, group: pd.DataFrame, look: Look) -> alt.LayerChart:
    here, ticks = f"datum.panel === '{panel}'", log_ticks(group, "median_seconds", "predicted_seconds")
    x = alt.X("median_seconds:Q", **log_axis("measured time (s)", ticks, TIME))
    y = alt.Y("predicted_seconds:Q", **log_axis("predicted time (s)", ticks, TIME))
    band = alt.Chart().transform_filter(f"{here} && datum.guide === 'fair'").mark_area(color=GREY, opacity=0.18).encode(x, y, alt.Y2("top:Q"))
    marks = dots(look, x, y, where=f"{here} && isValid(datum.case)", name=f"points{k}")
    chart = alt.layer(band, guide("identity", x, y).transform_filter(here), marks)
    return chart.properties(width=WIDTH, height=WIDTH, title=_panel_title(panel))


def roofline(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Rate against intensity at the last memory level, under the measured ceilings of its dtype, a panel for each kernel and dtype."""
    rows = rows_of(ds)
    rows["panel"] = rows["kernel"] + " · " + rows["dtype"]
    level = str(ds["level"].values[-1])
    rows["intensity"] = rows["useful_flops"] / rows[f"traffic_bytes_{level}"]
    shown = positive(rows, "intensity", "flop_rate", "peak_flops", f"bandwidth_{level}")
    guides = [g for _, group in shown.groupby(["panel", "threads"]) for g in _roof(group, level)]
    wide = pd.concat([shown, pd.DataFrame(guides)]) if guides else shown
    x = alt.X("intensity:Q", **log_axis(f"operations per byte past {level} (FLOP/B)", log_ticks(wide, "intensity"), "format(datum.value, '~r')"))
    y = alt.Y("flop_rate:Q", **log_axis("operations per second (FLOP/s)", log_ticks(wide, "flop_rate")))
    name = alt.Chart().transform_filter("datum.guide === 'name'").mark_text(align="right", baseline="top", fontSize=10.5, color="#6b7280")
    look = look_of(rows, shown)
    note = f"{left_out(rows, shown, UNDERIVED)} Operations are those of the mathematics, traffic is predicted, ceilings are measured."
    data = records(shown, "panel", "intensity", "flop_rate") + guides
    roof = guide("roof", x, y, strokeWidth=1.5).encode(detail="threads:N")
    return titled("Roofline", note, data, lambda: faceted(roof, name.encode(x, y, text="text:N"), dots(look, x, y)))


def _roof(group: pd.DataFrame, level: str) -> Rows:
    """The roof of one panel and number of threads: a corner and both ends, and the ceilings' names above it."""
    peak, bandwidth = float(group["peak_flops"].iloc[0]), float(group[f"bandwidth_{level}"].iloc[0])
    panel, threads = str(group["panel"].iloc[0]), int(group["threads"].iloc[0])
    ridge = peak / bandwidth
    low, high = min(float(group["intensity"].min()), ridge) / 2, max(float(group["intensity"].max()), ridge) * 4
    ends = ((low, low * bandwidth), (ridge, peak), (high, peak))
    roof = [{"panel": panel, "guide": "roof", "threads": threads, "intensity": i, "flop_rate": r} for i, r in ends]
    text = f"{peak / 1e9:.0f} GFLOP/s · {bandwidth / 1e9:.0f} GB/s · {threads} thread{'s' if threads != 1 else ''}"
    return [*roof, {"panel": panel, "guide": "name", "intensity": high, "flop_rate": peak * 1.9, "text": text}]


def growth(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Time against n with the local exponent d log t / d log n below, a panel for each kernel, form and dtype."""
    rows = rows_of(ds)
    rows["panel"] = rows["group"]
    shown = positive(rows, "median_seconds", "size")
    look = look_of(rows, shown)
    note = f"{left_out(rows, shown, 'without n')} Lower panels: local exponent of time in n; 2 is quadratic."
    data = records(shown, "panel", "size", "line", "median_seconds", "exponent")
    panels = shown.groupby("panel", sort=True)
    return titled(
        "Time against n, with local exponents", note, data,
        lambda: alt.concat(*(_growth_panel(k, str(panel), group, look) for k, (panel, group) in enumerate(panels)), columns=COLUMNS, spacing=26),
    )  # fmt: skip


def _growth_panel(k: int, panel: str, group: pd.DataFrame, look: Look) -> alt.VConcatChart | alt.LayerChart:
    bare, full = alt.X("size:Q", **size_axis(group, None)), alt.X("size:Q", **size_axis(group))
    time = alt.Y("median_seconds:Q", **log_axis("time (s)", log_ticks(group, "median_seconds"), TIME))
    here, known = f"datum.panel === '{panel}'", f"datum.panel === '{panel}' && isValid(datum.exponent)"
    alone = not group["exponent"].notna().any()   # no series has two sizes: there is nothing to show below
    x = full if alone else bare
    upper = alt.layer(traces(look, x, time, here), dots(look, x, time, 40, here, f"points{k}")).properties(width=WIDTH, height=HEIGHT)
    upper = upper.properties(title=_panel_title(panel))
    if alone:
        return upper
    low, high = min(0.0, np.floor(group["exponent"].min())), max(3.0, np.ceil(group["exponent"].max()))
    power = alt.Y("exponent:Q", title="exponent (1)", scale=alt.Scale(domain=[low, high], nice=False), axis=alt.Axis(tickCount=4, format="d"))
    lower = alt.layer(traces(look, full, power, known), dots(look, full, power, 30, known, f"powers{k}")).properties(width=WIDTH, height=70)
    return alt.vconcat(upper, lower, spacing=8)


def speedup(ds: xr.Dataset) -> alt.TopLevelMixin:
    """PyTorch's time over ours against n, paired, with 95 % intervals, a panel for each kernel, form and dtype."""
    rows = rows_of(ds)
    rows["panel"] = rows["group"]
    shown = positive(rows, "speedup", "size")
    guides = [
        {"panel": panel, "guide": guide, "size": int(n), "speedup": factor}
        for panel, group in shown.groupby("panel")
        for guide, factor in (("even", 1.0), ("least", LEAST), ("least", 1 / LEAST))
        for n in (group["size"].min(), group["size"].max())
    ]
    look = look_of(rows, shown)
    note = left_out(rows, shown, "are PyTorch's own, or have no partner in their job") + " Above 1× is faster than PyTorch. Bars: 95 % interval of the paired ratio."
    data = records(shown, "panel", "size", "line", "speedup", "speedup_low", "speedup_high") + guides
    panels = pd.concat([shown, pd.DataFrame(guides)]).groupby("panel", sort=True) if guides else []
    return titled(
        "Speed-up against PyTorch", note, data,
        lambda: alt.concat(*(_speedup_panel(k, str(panel), group, look) for k, (panel, group) in enumerate(panels)), columns=COLUMNS, spacing=26),
    )  # fmt: skip


def _speedup_panel(k: int, panel: str, group: pd.DataFrame, look: Look) -> alt.LayerChart:
    here = f"datum.panel === '{panel}'"
    x = alt.X("size:Q", **size_axis(group))
    y = alt.Y("speedup:Q", **log_axis("PyTorch's time over ours (1)", log_ticks(group, "speedup"), "format(datum.value, '~r') + '×'"))
    bars = alt.Chart().transform_filter(f"{here} && isValid(datum.speedup_low)").mark_rule(strokeWidth=2)
    chart = alt.layer(
        guide("even", x, y).transform_filter(here),
        guide("least", x, y, opacity=0).transform_filter(here),
        traces(look, x, y, f"{here} && isValid(datum.case)"),
        bars.encode(x, alt.Y("speedup_low:Q"), alt.Y2("speedup_high:Q"), look.colour, OPACITY),
        dots(look, x, y, 40, f"{here} && isValid(datum.case)", f"points{k}"),
    )
    return chart.properties(width=WIDTH, height=HEIGHT, title=_panel_title(panel))


def _panel_title(panel: str) -> alt.TitleParams:
    return alt.TitleParams(panel, fontSize=12, color="#2b303b", anchor="middle", offset=6)


def traffic(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Traffic past each level against the least that any schedule moves, a panel for each kernel and level; languages share a point."""
    rows = rows_of(ds)
    long = pd.concat([_at_level(rows, str(level)) for level in ds["level"].values], ignore_index=True)
    known = positive(long, "bound", "moved")
    shown = known.drop_duplicates(["kernel", "form", "variant", "isa", "dtype", "sizes", "level", "moved"])
    ends = [(str(panel), end) for panel, group in shown.groupby("panel") for end in _reach(group["bound"])]
    guides = [{"panel": panel, "guide": "identity", "bound": end, "moved": end} for panel, end in ends]
    wide = pd.concat([shown, pd.DataFrame(guides)]) if guides else shown
    x = alt.X("bound:Q", **log_axis("lower bound (B)", log_ticks(wide, "bound")))
    y = alt.Y("moved:Q", **log_axis("traffic (B)", log_ticks(wide, "bound", "moved")))
    dtype = alt.Shape("dtype:N", title="dtype", scale=alt.Scale(range=["circle", "square", "diamond", "cross"]))
    points = dots(look_of(rows, shown), x, y).encode(dtype)
    note = f"{left_out(rows, known.drop_duplicates('case'), UNDERIVED)} On the line no schedule could move less; both are predicted."
    data = records(shown, "panel", "dtype", "bound", "moved") + guides
    return titled("Traffic against its lower bound", note, data, lambda: faceted(guide("identity", x, y), points))


def _reach(values: pd.Series) -> tuple[float, float]:
    """The least and the largest of some values, and at least a decade: a panel of one value has an axis, too, with a tick on it."""
    middle = float(np.sqrt(values.min() * values.max()))
    return min(float(values.min()), middle / np.sqrt(10)), max(float(values.max()), middle * np.sqrt(10))


def _at_level(rows: pd.DataFrame, level: str) -> pd.DataFrame:
    panel = rows["kernel"] + " · past " + level
    return rows.assign(panel=panel, level=level, bound=rows[f"lower_bound_bytes_{level}"], moved=rows[f"traffic_bytes_{level}"])


@dataclass(frozen=True)
class Figure:
    """A chart: its file name, the function that makes it, whose first line is its caption, and whether a dataset is worth it."""

    name: str
    function: Callable[[xr.Dataset], alt.TopLevelMixin]
    worth: Callable[[xr.Dataset], bool] = lambda ds: True


CHARTS = (
    Figure("predicted", predicted),
    Figure("speedup", speedup),
    Figure("roofline", roofline),
    Figure("growth", growth),
    Figure("traffic", traffic),
    Figure("penalty", strain.penalty, strain.arranged),
    Figure("oversubscription", strain.oversubscription, strain.shared),
)


# ------------------------------------------------------------------ files


def specification(figure: Figure, ds: xr.Dataset) -> dict[str, Any]:
    """The chart as a Vega-Lite document. Its selection lives in the first view of points, whose name Altair has numbered by then."""
    document: dict[str, Any] = figure.function(ds).to_dict()
    for param in document.get("params", []):
        param["views"] = re.findall(r'"name": "(points\w*)"', json.dumps(document))[:1]
    return document


def svg(document: dict[str, Any]) -> str:
    """The drawn chart, without network or browser."""
    return str(vl_convert.vegalite_to_svg(document, vl_version=VEGALITE))


@cache
def runtime() -> str:
    """The JavaScript that draws Vega-Lite documents in a page: Vega, Vega-Lite and Vega-Embed as `window.vegaEmbed`, nothing else."""
    return f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;', vl_version=VEGALITE)}}})();"


def write_all(dataset: Path, out: Path) -> tuple[Path, ...]:
    """Write every chart that a `dataset.nc` is worth as `<name>.json` and `<name>.svg` into `out`; each file whole or not at all."""
    ds = enrich(record.read(dataset))
    written = []
    for figure in (f for f in CHARTS if f.worth(ds)):
        document = specification(figure, ds)
        write_json(out / f"{figure.name}.json", document)
        write_text(out / f"{figure.name}.svg", svg(document))
        written += [out / f"{figure.name}.json", out / f"{figure.name}.svg"]
    return tuple(written)
