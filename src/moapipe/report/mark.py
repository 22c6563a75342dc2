"""In: rows of cases. Out: the parts that charts are made of: rows with tooltips, notes, axes, colours and shapes, points, lines, the theme.

One colour a variant over all charts, one shape a target; PyTorch is grey. A note under the title says what is left out, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr

from moapipe.lab.variable import BASELINE, YARDSTICK
from moapipe.report.metrics import frame, series
from moapipe.report.table import seconds, significant

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8B6FD6", "#999933", "#A8456F", "#44AA99", "#E8465A", "#B07D4B")  # Okabe and Ito's, then more that stay apart on white and on black
GREY = "#8A8F98"
PYTORCH = "PyTorch"
DASHES = {"fortran": [5, 3]}  # all others are drawn through
SHAPES = {"c": "circle", "fortran": "triangle-up", "cuda": "square", "hip": "diamond", "opencl": "cross", BASELINE: "diamond", YARDSTICK: "triangle-down"}
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
    rows["measured"] = [interval_text(seconds, *r) for r in rows[["median_seconds", "median_seconds_low", "median_seconds_high"]].to_numpy()]
    rows["predicted"] = rows["predicted_seconds"].map(seconds)
    rows["ratio"] = rows["predicted_over_measured"].map(significant)
    rows["against PyTorch"] = [interval_text(significant, *r) for r in rows[["speedup", "speedup_low", "speedup_high"]].to_numpy()]
    rows["group"] = rows[["kernel", "form", "dtype"]].agg(" · ".join, axis=1)
    rows["size"] = rows.get("n", -1)
    rows["line"] = -1 - rows["case"]
    for k, members in enumerate(series(ds) if "n" in ds.variables else []):
        rows.loc[members, "line"] = k
    return rows


def interval_text(text: Callable[[float], str], value: float, low: float, high: float) -> str:
    return f"{text(value)} ({text(low)} – {text(high)})" if np.isfinite(low) else text(value)


def records(rows: pd.DataFrame, *fields: str) -> Rows:
    """The named fields, `case` and the tooltips as JSON values; NaN is null."""
    names = list(dict.fromkeys(["case", "colour", "target", *TIPS, *fields]))
    return [{k: plain(v) for k, v in row.items()} for row in rows[names].to_dict("records")]


def plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def positive(rows: pd.DataFrame, *fields: str) -> pd.DataFrame:
    """Rows that a logarithmic axis can show."""
    return rows[(rows[list(fields)] > 0).all(axis=1)]


def left_out(rows: pd.DataFrame, shown: pd.DataFrame, unknown: str) -> str:
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


def log_ticks(rows: pd.DataFrame, *fields: str) -> list[float]:
    """Ticks of a logarithmic axis: as many a decade as the widest panel has room for."""
    found = rows[list(fields)].to_numpy(dtype=float)
    if not found.size:
        return [1.0]
    low, high = int(np.floor(np.log10(found.min()))), int(np.ceil(np.log10(found.max())))
    spans = rows.groupby("panel")[list(fields)].agg(lambda v: np.log10(v.max() / v.min())).to_numpy()
    steps = next(steps for decades, steps in DECADE if spans.max() <= decades)
    return [float(f"{m}e{k}") for k in range(low, high + 1) for m in steps]


def log_axis(title: str, ticks: list[float], labels: str = "") -> dict[str, Any]:
    written: dict[str, Any] = {"labelExpr": labels} if labels else {"format": "~s"}
    axis = alt.Axis(values=ticks, labelOverlap="greedy", labelSeparation=6, **written)
    return {"title": title, "scale": alt.Scale(type="log", nice=False, padding=8), "axis": axis}


def size_axis(shown: pd.DataFrame, title: str | None = "n (elements)") -> dict[str, Any]:
    ticks = sorted(set(shown["size"].tolist()))
    axis = alt.Axis(values=ticks, format="~d", labelOverlap="greedy", labelSeparation=4)
    return {"title": title, "scale": alt.Scale(type="log", base=2, nice=False, padding=10), "axis": axis}


@dataclass(frozen=True)
class Look:
    """Encodings that all charts of a dataset share: colour and shape from the whole dataset, so that a variant never changes its own.
    Dash and shape tell the target in one legend: Vega-Lite makes one of two whose field, title and domain are the same."""

    colour: alt.Color
    shape: alt.Shape
    dash: alt.StrokeDash


OPACITY = alt.OpacityValue(0.12, condition={"param": "pick", "value": 0.85})
PICK = alt.PointSelectionConfig(type="point", fields=["colour"])  # a click on the legend


def look_of(rows: pd.DataFrame, shown: pd.DataFrame) -> Look:
    """The look of `rows`, with legends that name only what is `shown`."""
    colours = palette(zip(rows["kernel"], rows["colour"], strict=True))
    visible, targets = set(shown["colour"]), sorted(set(shown["target"]))
    domain = [name for name in colours if name in visible]
    return Look(
        alt.Color("colour:N", title="variant", scale=alt.Scale(domain=domain, range=[colours[name] for name in domain])),
        alt.Shape("target:N", title="target", scale=alt.Scale(domain=targets, range=[SHAPES.get(t, "square") for t in targets])),
        alt.StrokeDash("target:N", title="target", scale=alt.Scale(domain=targets, range=[DASHES.get(t, [1, 0]) for t in targets])),
    )


def palette(members: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The colour of every variant in `members`, pairs of kernel and variant. Where there are more variants than colours, those of one
    kernel, which meet in a panel, are told apart first, and the colour that is rarest so far comes next."""
    homes: dict[str, set[str]] = {}
    for kernel, name in members:
        homes.setdefault(name, set()).add(kernel)
    found: dict[str, str] = {}
    for name in sorted(homes.keys() - {PYTORCH}):
        near, all_over = Counter(found[other] for other in found if homes[other] & homes[name]), Counter(found.values())
        found[name] = min(COLOURS, key=lambda c: (near[c], all_over[c]))
    return found | {PYTORCH: GREY}


def colours(ds: xr.Dataset) -> dict[str, str]:
    """Each variant's colour on every chart of a dataset, PyTorch's too."""
    ours = ds["target"].values != BASELINE
    return palette(zip(ds["kernel"].values[ours].tolist(), ds["variant"].values[ours].tolist(), strict=True))


def dots(look: Look, x: alt.X, y: alt.Y, size: int = 50, where: str = "isValid(datum.case)", name: str = "points") -> alt.Chart:
    tips = [alt.Tooltip(f"{name}:N") for name in TIPS]
    mark = alt.Chart().transform_filter(where).mark_point(filled=True, size=size).properties(name=name)
    return mark.encode(x, y, look.colour, look.shape, OPACITY, tooltip=tips)


def traces(look: Look, x: alt.X, y: alt.Y, where: str = "isValid(datum.case)") -> alt.Chart:
    return alt.Chart().transform_filter(where).mark_line(strokeWidth=1.6).encode(x, y, look.colour, look.dash, OPACITY, detail="line:N")


def guide(mark: str, x: alt.X, y: alt.Y, **style: Any) -> alt.Chart:
    return alt.Chart().transform_filter(f"datum.guide === '{mark}'").mark_line(color=GREY, **{"strokeWidth": 1.2} | style).encode(x, y, detail="guide:N")


def titled(title: str, note: str, rows: Rows, draw: Callable[[], alt.TopLevelMixin]) -> alt.TopLevelMixin:
    """The chart that `draw` makes, with title, note, data and theme; one sentence instead of an empty chart."""
    heading = alt.TitleParams(title, subtitle=wrapped(note), anchor="start", offset=14)
    nothing = alt.Chart(alt.InlineData([{}])).mark_text(text="No case has what this chart shows.", color=GREY, fontSize=13).properties(width=WIDTH, height=60)
    pick = alt.TopLevelSelectionParameter(name="pick", select=PICK, bind="legend", views=["points"])
    chart = draw().properties(data=alt.NamedData(name="rows"), datasets={"rows": rows}, params=[pick]) if rows else nothing
    return chart.properties(title=heading).configure(**THEME)


def faceted(*layers: alt.Chart, height: int = HEIGHT) -> alt.FacetChart:
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


def wrapped(note: str, width: int = 150) -> list[str]:
    lines = [""]
    for word in note.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
