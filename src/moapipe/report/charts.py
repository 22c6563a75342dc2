"""In: a dataset. Out: Altair charts, one row of CHARTS each; their Vega-Lite JSON and SVG files.

A chart is a pure function of the dataset. It names its data `rows`: a row with a `case` is a case, one without is a guide line.
One colour a variant over all charts, one shape a target; PyTorch is grey. A note under the title says what is left out, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
import xarray as xr

from moapipe.lab import record
from moapipe.lab.file import write_json, write_text
from moapipe.lab.variable import BASELINE, COPY
from moapipe.report.metrics import enrich, frame, series
from moapipe.report.table import FAIR, seconds, significant

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8B6FD6", "#999933", "#A8456F", "#44AA99")  # Okabe and Ito's, then more that stay apart on white and on black
GREY = "#8A8F98"
PYTORCH = "PyTorch"
SHAPES = {"c": "circle", "fortran": "triangle-up", "cuda": "square", "hip": "diamond", "opencl": "cross", BASELINE: "diamond", COPY: "stroke"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDTH, HEIGHT, COLUMNS = 250, 190, 3
VEGALITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
TIME = "datum.value < 1e-6 ? format(datum.value*1e9, '.3~r') + ' ns' : datum.value < 1e-3 ? format(datum.value*1e6, '.3~r') + ' µs' : " \
       "datum.value < 1 ? format(datum.value*1e3, '.3~r') + ' ms' : format(datum.value, '.3~r') + ' s'"  # fmt: skip
# ticks of a decade, by the decades that the widest panel spans at most
DECADE = ((0.4, (1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)), (1.5, (1, 1.5, 2, 3, 5, 7)), (4, (1, 2, 5)), (np.inf, (1,)))
LEAST = 1.25  # a speed-up panel reaches at least this factor to both sides of 1, so that noise looks like noise
TIPS = ("what", "sizes", "measured", "predicted", "ratio", "against PyTorch")

Rows = list[dict[str, Any]]


# ------------------------------------------------------------------ rows


def rows_of(ds: xr.Dataset) -> pd.DataFrame:
    """`metrics.frame` with what every chart needs: `colour`, `group`, `size`, `line` (one series of growing size) and tooltips."""
    rows = frame(ds)
    rows["colour"] = np.where(rows["target"] == BASELINE, PYTORCH, rows["variant"])
    rows["what"] = rows[["kernel", "form", "variant", "target", "isa", "dtype"]].agg(" · ".join, axis=1)
    rows["sizes"] = rows["label"] + ", " + rows["arrangement"]
    rows["measured"] = [_interval(seconds, *r) for r in rows[["median_seconds", "median_seconds_low", "median_seconds_high"]].to_numpy()]
    rows["predicted"] = rows["predicted_seconds"].map(seconds)
    rows["ratio"] = rows["predicted_over_measured"].map(significant)
    rows["against PyTorch"] = [_interval(significant, *r) for r in rows[["speedup", "speedup_low", "speedup_high"]].to_numpy()]
    rows["group"] = rows[["kernel", "form", "dtype"]].agg(" · ".join, axis=1)
    rows["size"] = rows.get("n", -1)
    rows["line"] = -1 - rows["case"]
    for k, members in enumerate(series(ds) if "n" in ds.variables else []):
        rows.loc[members, "line"] = k
    return rows


def _interval(text: Callable[[float], str], value: float, low: float, high: float) -> str:
    return f"{text(value)} ({text(low)} – {text(high)})" if np.isfinite(low) else text(value)


def _records(rows: pd.DataFrame, *fields: str) -> Rows:
    """The named fields, `case` and the tooltips as JSON values; NaN is null."""
    names = list(dict.fromkeys(["case", "colour", "target", *TIPS, *fields]))
    return [{k: _json(v) for k, v in row.items()} for row in rows[names].to_dict("records")]


def _json(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _positive(rows: pd.DataFrame, *fields: str) -> pd.DataFrame:
    """Rows that a logarithmic axis can show."""
    return rows[(rows[list(fields)] > 0).all(axis=1)]


def _note(rows: pd.DataFrame, shown: pd.DataFrame, unknown: str) -> str:
    """What is shown and what is not: statuses for cases that have no time, `unknown` for those that lack something else."""
    left = rows[~rows["case"].isin(shown["case"])]
    silent = left[left["explanation"] != ""]
    words = []
    if len(silent):
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(Counter(silent["status"]).items()))
        words.append(f"{len(silent)} not measured ({counts})")
    if len(left) > len(silent):
        words.append(f"{len(left) - len(silent)} {unknown}")
    return f"{len(shown)} of {len(rows)} cases shown." + (f" Left out: {'; '.join(words)}." if words else "")


# ------------------------------------------------------------------ marks and axes


def _ticks(rows: pd.DataFrame, *fields: str) -> list[float]:
    """Ticks of a logarithmic axis: as many a decade as the widest panel has room for."""
    found = rows[list(fields)].to_numpy(dtype=float)
    if not found.size:
        return [1.0]
    low, high = int(np.floor(np.log10(found.min()))), int(np.ceil(np.log10(found.max())))
    spans = rows.groupby("panel")[list(fields)].agg(lambda v: np.log10(v.max() / v.min())).to_numpy()
    steps = next(steps for decades, steps in DECADE if spans.max() <= decades)
    return [float(f"{m}e{k}") for k in range(low, high + 1) for m in steps]


def _log_axis(title: str, ticks: list[float], labels: str = "") -> dict[str, Any]:
    written: dict[str, Any] = {"labelExpr": labels} if labels else {"format": "~s"}
    axis = alt.Axis(values=ticks, labelOverlap="greedy", labelSeparation=6, **written)
    return {"title": title, "scale": alt.Scale(type="log", nice=False, padding=8), "axis": axis}


def _size_axis(shown: pd.DataFrame, title: str | None = "n (elements)") -> dict[str, Any]:
    ticks = sorted(set(shown["size"].tolist()))
    axis = alt.Axis(values=ticks, format="~d", labelOverlap="greedy", labelSeparation=4)
    return {"title": title, "scale": alt.Scale(type="log", base=2, nice=False, padding=10), "axis": axis}


@dataclass(frozen=True)
class Look:
    """Encodings that all charts of a dataset share: colour and shape from the whole dataset, so that a variant never changes its own."""

    colour: alt.Color
    shape: alt.Shape


OPACITY = alt.OpacityValue(0.12, condition={"param": "pick", "value": 0.85})
PICK = alt.PointSelectionConfig(type="point", fields=["colour"])  # a click on the legend


def look_of(rows: pd.DataFrame, shown: pd.DataFrame) -> Look:
    """The look of `rows`, with legends that name only what is `shown`."""
    colours = _palette(set(rows["colour"]))
    visible, targets = set(shown["colour"]), sorted(set(shown["target"]))
    domain = [name for name in colours if name in visible]
    return Look(
        alt.Color("colour:N", title="variant", scale=alt.Scale(domain=domain, range=[colours[name] for name in domain])),
        alt.Shape("target:N", title="target", scale=alt.Scale(domain=targets, range=[SHAPES.get(t, "square") for t in targets])),
    )


def _palette(names: set[str]) -> dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(names - {PYTORCH}))} | {PYTORCH: GREY}


def colours(ds: xr.Dataset) -> dict[str, str]:
    """Each variant's colour on every chart of a dataset, PyTorch's too."""
    return _palette(set(ds["variant"].values[ds["target"].values != BASELINE].tolist()))


def _points(look: Look, x: alt.X, y: alt.Y, size: int = 50, where: str = "isValid(datum.case)", name: str = "points") -> alt.Chart:
    tips = [alt.Tooltip(f"{name}:N") for name in TIPS]
    mark = alt.Chart().transform_filter(where).mark_point(filled=True, size=size).properties(name=name)
    return mark.encode(x, y, look.colour, look.shape, OPACITY, tooltip=tips)


def _lines(look: Look, x: alt.X, y: alt.Y, where: str = "isValid(datum.case)") -> alt.Chart:
    dash = alt.StrokeDash("target:N", legend=None, scale=alt.Scale(domain=["c", "fortran"], range=[[1, 0], [5, 3]]))
    return alt.Chart().transform_filter(where).mark_line(strokeWidth=1.6).encode(x, y, look.colour, dash, OPACITY, detail="line:N")


def _guide(mark: str, x: alt.X, y: alt.Y, **style: Any) -> alt.Chart:
    return alt.Chart().transform_filter(f"datum.guide === '{mark}'").mark_line(color=GREY, **{"strokeWidth": 1.2} | style).encode(x, y, detail="guide:N")


def _titled(title: str, note: str, rows: Rows, draw: Callable[[], alt.TopLevelMixin], view: str = "points") -> alt.TopLevelMixin:
    """The chart that `draw` makes, with title, note, data and theme; one sentence instead of an empty chart."""
    heading = alt.TitleParams(title, subtitle=_wrapped(note), anchor="start", offset=14)
    nothing = alt.Chart(alt.InlineData([{}])).mark_text(text="No case has what this chart shows.", color=GREY, fontSize=13).properties(width=WIDTH, height=60)
    pick = alt.TopLevelSelectionParameter(name="pick", select=PICK, bind="legend", views=[view])
    chart = draw().properties(data=alt.NamedData(name="rows"), datasets={"rows": rows}, params=[pick]) if rows else nothing
    return chart.properties(title=heading).configure(**THEME)


def _faceted(*layers: alt.Chart, height: int = HEIGHT) -> alt.FacetChart:
    chart = alt.layer(*layers, data=alt.NamedData(name="rows")).properties(width=WIDTH, height=height)
    return chart.facet(facet=alt.Facet("panel:N", title=None), columns=COLUMNS).resolve_scale(x="independent", y="independent")


THEME: dict[str, Any] = {
    "font": FONT, "background": "#ffffff", "padding": 14, "view": {"stroke": "#d5d9e0"},
    "axis": {"labelColor": "#4a5160", "titleColor": "#2b303b", "gridColor": "#e8ebf0", "domainColor": "#b6bcc8", "tickColor": "#b6bcc8",
             "titleFontWeight": "normal", "titlePadding": 8},
    "title": {"color": "#1c2027", "subtitleColor": "#5d6675", "fontSize": 16, "subtitleFontSize": 11.5, "subtitlePadding": 6},
    "header": {"labelColor": "#2b303b", "labelFontSize": 12, "labelFontWeight": "bold", "title": None},
    "legend": {"labelColor": "#2b303b", "titleColor": "#2b303b", "symbolSize": 80, "orient": "right", "labelLimit": 220},
}  # fmt: skip


def _wrapped(note: str, width: int = 150) -> list[str]:
    lines = [""]
    for word in note.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# ------------------------------------------------------------------ the charts

UNDERIVED = "without a prediction (PyTorch is not derived)"


def predicted(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Predicted against measured time, log-log, a panel for each kernel and dtype; on the line the prediction holds."""
    rows = rows_of(ds)
    rows["panel"] = rows["kernel"] + " · " + rows["dtype"]
    shown = _positive(rows, "median_seconds", "predicted_seconds")
    ticks = _ticks(shown, "median_seconds", "predicted_seconds")
    x = alt.X("median_seconds:Q", **_log_axis("measured time (s)", ticks, TIME))
    y = alt.Y("predicted_seconds:Q", **_log_axis("predicted time (s)", ticks, TIME))
    guides = []
    for panel, group in shown.groupby("panel"):
        both = group[["median_seconds", "predicted_seconds"]].to_numpy()
        for end in (float(both.min()), float(both.max())):
            guides += [{"panel": panel, "guide": "identity", "median_seconds": end, "predicted_seconds": end}]
            guides += [{"panel": panel, "guide": "fair", "median_seconds": end, "predicted_seconds": end / FAIR, "top": end * FAIR}]
    band = alt.Chart().transform_filter("datum.guide === 'fair'").mark_area(color=GREY, opacity=0.18).encode(x, y, alt.Y2("top:Q"))
    look = look_of(rows, shown)
    note = f"{_note(rows, shown, UNDERIVED)} Line: predicted = measured; band: within a factor of {FAIR}."
    data = _records(shown, "panel", "median_seconds", "predicted_seconds") + guides
    title = "Predicted against measured time of one call"
    return _titled(title, note, data, lambda: _faceted(band, _guide("identity", x, y), _points(look, x, y), height=WIDTH))


def roofline(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Rate against intensity at the last memory level, under the measured ceilings of its dtype, a panel for each kernel and dtype."""
    rows = rows_of(ds)
    rows["panel"] = rows["kernel"] + " · " + rows["dtype"]
    level = str(ds["level"].values[-1])
    rows["intensity"] = rows["useful_flops"] / rows[f"traffic_bytes_{level}"]
    shown = _positive(rows, "intensity", "flop_rate", "peak_flops", f"bandwidth_{level}")
    guides = [g for _, group in shown.groupby(["panel", "threads"]) for g in _roof(group, level)]
    wide = pd.concat([shown, pd.DataFrame(guides)]) if guides else shown
    x = alt.X("intensity:Q", **_log_axis(f"operations per byte past {level} (FLOP/B)", _ticks(wide, "intensity"), "format(datum.value, '~r')"))
    y = alt.Y("flop_rate:Q", **_log_axis("operations per second (FLOP/s)", _ticks(wide, "flop_rate")))
    name = alt.Chart().transform_filter("datum.guide === 'name'").mark_text(align="right", baseline="top", fontSize=10.5, color="#6b7280")
    look = look_of(rows, shown)
    note = f"{_note(rows, shown, UNDERIVED)} Operations are those of the mathematics, traffic is predicted, ceilings are measured."
    data = _records(shown, "panel", "intensity", "flop_rate") + guides
    roof = _guide("roof", x, y, strokeWidth=1.5).encode(detail="threads:N")
    return _titled("Roofline", note, data, lambda: _faceted(roof, name.encode(x, y, text="text:N"), _points(look, x, y)))


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
    shown = _positive(rows, "median_seconds", "size")
    look = look_of(rows, shown)
    note = f"{_note(rows, shown, 'without n')} Lower panels: local exponent of time in n; 2 is quadratic."
    data = _records(shown, "panel", "size", "line", "median_seconds", "exponent")
    panels = shown.groupby("panel", sort=True)
    return _titled(
        "Time against n, with local exponents", note, data,
        lambda: alt.concat(*(_growth_panel(k, str(panel), group, look) for k, (panel, group) in enumerate(panels)), columns=COLUMNS, spacing=26),
        view="points0_0",  # Altair adds the place in the concatenation
    )  # fmt: skip


def _growth_panel(k: int, panel: str, group: pd.DataFrame, look: Look) -> alt.VConcatChart:
    bare, full = alt.X("size:Q", **_size_axis(group, None)), alt.X("size:Q", **_size_axis(group))
    time = alt.Y("median_seconds:Q", **_log_axis("time (s)", _ticks(group, "median_seconds"), TIME))
    low, high = min(0.0, np.floor(group["exponent"].min(skipna=True))), max(3.0, np.ceil(group["exponent"].max(skipna=True)))
    scale = alt.Scale(domain=[low, high] if np.isfinite([low, high]).all() else [0, 3], nice=False)
    power = alt.Y("exponent:Q", title="exponent (1)", scale=scale, axis=alt.Axis(tickCount=4, format="d"))
    here, known = f"datum.panel === '{panel}'", f"datum.panel === '{panel}' && isValid(datum.exponent)"
    upper = alt.layer(_lines(look, bare, time, here), _points(look, bare, time, 40, here, f"points{k}")).properties(width=WIDTH, height=HEIGHT)
    lower = alt.layer(_lines(look, full, power, known), _points(look, full, power, 30, known, f"powers{k}")).properties(width=WIDTH, height=70)
    return alt.vconcat(upper.properties(title=_panel_title(panel)), lower, spacing=8)


def speedup(ds: xr.Dataset) -> alt.TopLevelMixin:
    """PyTorch's time over ours against n, paired, with 95 % intervals, a panel for each kernel, form and dtype."""
    rows = rows_of(ds)
    rows["panel"] = rows["group"]
    shown = _positive(rows, "speedup", "size")
    guides = [
        {"panel": panel, "guide": guide, "size": int(n), "speedup": factor}
        for panel, group in shown.groupby("panel")
        for guide, factor in (("even", 1.0), ("least", LEAST), ("least", 1 / LEAST))
        for n in (group["size"].min(), group["size"].max())
    ]
    look = look_of(rows, shown)
    note = _note(rows, shown, "are PyTorch's own, or have no partner in their job") + " Above 1× is faster than PyTorch. Bars: 95 % interval of the paired ratio."
    data = _records(shown, "panel", "size", "line", "speedup", "speedup_low", "speedup_high") + guides
    panels = pd.concat([shown, pd.DataFrame(guides)]).groupby("panel", sort=True) if guides else []
    return _titled(
        "Speed-up against PyTorch", note, data,
        lambda: alt.concat(*(_speedup_panel(k, str(panel), group, look) for k, (panel, group) in enumerate(panels)), columns=COLUMNS, spacing=26),
        view="points0_0" if len(panels) > 1 else "points0",  # altair numbers the views of several panels
    )  # fmt: skip


def _speedup_panel(k: int, panel: str, group: pd.DataFrame, look: Look) -> alt.LayerChart:
    here = f"datum.panel === '{panel}'"
    x = alt.X("size:Q", **_size_axis(group))
    y = alt.Y("speedup:Q", **_log_axis("PyTorch's time over ours (1)", _ticks(group, "speedup"), "format(datum.value, '~r') + '×'"))
    bars = alt.Chart().transform_filter(f"{here} && isValid(datum.speedup_low)").mark_rule(strokeWidth=2)
    chart = alt.layer(
        _guide("even", x, y).transform_filter(here),
        _guide("least", x, y, opacity=0).transform_filter(here),
        _lines(look, x, y, f"{here} && isValid(datum.case)"),
        bars.encode(x, alt.Y("speedup_low:Q"), alt.Y2("speedup_high:Q"), look.colour, OPACITY),
        _points(look, x, y, 40, f"{here} && isValid(datum.case)", f"points{k}"),
    )
    return chart.properties(width=WIDTH, height=HEIGHT, title=_panel_title(panel))


def _panel_title(panel: str) -> alt.TitleParams:
    return alt.TitleParams(panel, fontSize=12, color="#2b303b", anchor="middle", offset=6)


def traffic(ds: xr.Dataset) -> alt.TopLevelMixin:
    """Traffic past each level against the least that any schedule moves, a panel for each kernel and level; languages share a point."""
    rows = rows_of(ds)
    long = pd.concat([_at_level(rows, str(level)) for level in ds["level"].values], ignore_index=True)
    known = _positive(long, "bound", "moved")
    shown = known.drop_duplicates(["kernel", "form", "variant", "isa", "dtype", "sizes", "level", "moved"])
    x = alt.X("bound:Q", **_log_axis("lower bound (B)", _ticks(shown, "bound")))
    y = alt.Y("moved:Q", **_log_axis("traffic (B)", _ticks(shown, "bound", "moved")))
    ends = [(panel, float(end)) for panel, group in shown.groupby("panel") for end in (group["bound"].min(), group["bound"].max())]
    guides = [{"panel": panel, "guide": "identity", "bound": end, "moved": end} for panel, end in ends]
    dtype = alt.Shape("dtype:N", title="dtype", scale=alt.Scale(range=["circle", "square", "diamond", "cross"]))
    points = _points(look_of(rows, shown), x, y).encode(dtype)
    note = f"{_note(rows, known.drop_duplicates('case'), UNDERIVED)} On the line no schedule could move less; both are predicted."
    data = _records(shown, "panel", "dtype", "bound", "moved") + guides
    return _titled("Traffic against its lower bound", note, data, lambda: _faceted(_guide("identity", x, y), points))


def _at_level(rows: pd.DataFrame, level: str) -> pd.DataFrame:
    panel = rows["kernel"] + " · past " + level
    return rows.assign(panel=panel, level=level, bound=rows[f"lower_bound_bytes_{level}"], moved=rows[f"traffic_bytes_{level}"])


@dataclass(frozen=True)
class Figure:
    """A chart: its file name, and the function that makes it; the function's first line is its caption."""

    name: str
    function: Callable[[xr.Dataset], alt.TopLevelMixin]


CHARTS = (
    Figure("predicted", predicted),
    Figure("speedup", speedup),
    Figure("roofline", roofline),
    Figure("growth", growth),
    Figure("traffic", traffic),
)


# ------------------------------------------------------------------ files


def specification(figure: Figure, ds: xr.Dataset) -> dict[str, Any]:
    """The chart as a Vega-Lite document."""
    document: dict[str, Any] = figure.function(ds).to_dict()
    return document


def svg(document: dict[str, Any]) -> str:
    """The drawn chart, without network or browser."""
    return str(vl_convert.vegalite_to_svg(document, vl_version=VEGALITE))


def runtime() -> str:
    """The JavaScript that draws Vega-Lite documents in a page: Vega, Vega-Lite and Vega-Embed as `window.vegaEmbed`, nothing else."""
    return f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;', vl_version=VEGALITE)}}})();"


def write_all(dataset: Path, out: Path) -> tuple[Path, ...]:
    """Write every chart of a `dataset.nc` as `<name>.json` and `<name>.svg` into `out`; each file whole or not at all."""
    ds = enrich(record.read(dataset))
    written = []
    for figure in CHARTS:
        document = specification(figure, ds)
        write_json(out / f"{figure.name}.json", document)
        write_text(out / f"{figure.name}.svg", svg(document))
        written += [out / f"{figure.name}.json", out / f"{figure.name}.svg"]
    return tuple(written)
