"""In: a dataset. Out: the table that a run ends with, on the terminal and as text: one line a case, one row of COLUMNS a column.

Below it stand the predictions' accuracy, a line a variant, and the reason of every case that has no time.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isfinite, isnan, log
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moapipe.lab import record
from moapipe.lab.file import write_text
from moapipe.lab.variable import BESIDE
from moapipe.lab.verdict import MOSTLY
from moapipe.machine.arrangement import AXES
from moapipe.report import accuracy as accuracies
from moapipe.report.metrics import frame, kind

Row = dict[str, Any]
WIDTH = 160
ROOMY = 100  # columns of a terminal from which on there is room for intervals
NARROW = 150  # below it, what a bench group shares stands in a heading of its own
GROUP = ("kernel", "form", "dtype")
FAIR = 1.25  # a prediction within this factor of the measurement is shown calm


def seconds(value: float) -> str:
    """Three significant digits and the unit that fits: `1.23 ms`; a dash for NaN."""
    if not isfinite(value):
        return "–"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.9995 * scale:
            return f"{significant(value / scale)} {unit}"
    return f"{significant(value / 1e-9)} ns"


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits without an exponent; whole numbers beyond that keep all their digits."""
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "–"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - int(np.floor(np.log10(abs(rounded)))))}f}"


def _against(row: Row) -> Text:
    if isnan(row["speedup"]):
        return Text("–", "dim")
    low, high = row["speedup_low"], row["speedup_high"]
    style = "green" if low >= 1 else "red" if high < 1 else ""
    return Text(f"{significant(row['speedup'])}×", style)


def _bounds(row: Row) -> Text:
    known = isfinite(row["speedup_low"])
    return Text(f"{significant(row['speedup_low'])}–{significant(row['speedup_high'])}" if known else "–", "" if known else "dim")


def _ratio(row: Row) -> Text:
    value = row["predicted_over_measured"]
    off = isfinite(value) and max(value, 1 / value) > FAIR
    return Text(significant(value), "yellow" if off else "")


def _verdict(row: Row) -> Text:
    if row["status"] != "measured":
        return Text(row["status"].replace("_", " "), "red")
    if row["plausibility"] == "implausible":
        return Text("implausible", "red")
    return Text(f"{row['valid_samples']}/{row['taken_samples']} valid", "" if row["valid_share"] > MOSTLY else "yellow")


@dataclass(frozen=True)
class Column:
    """A column: its header, its cell for a row of `metrics.frame`, how it is aligned, and whether it may fold or be left out."""

    header: str
    cell: Callable[[Row], str | Text]
    justify: Literal["left", "right"] = "left"
    folds: bool = False
    roomy: bool = False


ARRANGEMENT = "arrangement"     # a column only where it differs
COLUMNS = (
    Column("kernel", lambda r: r["kernel"], folds=True),
    Column("form", lambda r: r["form"], folds=True),
    Column("variant", lambda r: r["variant"], folds=True),
    Column("target", lambda r: r["target"]),
    Column("dtype", lambda r: r["dtype"]),
    Column("n", lambda r: str(r["n"]) if r.get("n", -1) >= 0 else "–", "right"),
    Column(ARRANGEMENT, lambda r: r["arrangement"], folds=True),
    Column("predicted", lambda r: seconds(r["predicted_seconds"]), "right"),
    Column("measured", lambda r: seconds(r["median_seconds"]), "right"),
    Column("ratio", _ratio, "right"),
    Column("against PyTorch", _against, "right"),
    Column("95 % interval", _bounds, "right", roomy=True),
    Column("verdict", _verdict),
)


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows as people read them: a bench group at one size together, PyTorch and yardsticks first, then by variant and target."""
    key = [c for c in ("kernel", "form", "dtype", "n", "label", *AXES) if c in rows]
    ours = rows.assign(_ours=~rows["target"].isin(BESIDE))
    return ours.sort_values([*key, "_ours", "variant", "target"], kind="stable").drop(columns="_ours").reset_index(drop=True)


def tables(rows: pd.DataFrame, width: int = WIDTH) -> list[Table]:
    """The rich table of a `metrics.frame` for a terminal of `width` columns: names fold, numbers never. A narrow terminal gets a
    table for each bench group, its kernel, form and dtype as the title."""
    one = rows["arrangement"].nunique() < 2
    columns = [c for c in COLUMNS if (width >= ROOMY or not c.roomy) and not (one and c.header == ARRANGEMENT)]
    if width >= NARROW:
        return [_table("Predicted and measured time of one call", ordered(rows), columns)]
    columns = [c for c in columns if c.header not in GROUP]
    return [_table(" · ".join(map(str, key)), group, columns) for key, group in ordered(rows).groupby(list(GROUP), sort=False)]


def _table(title: str, rows: pd.DataFrame, columns: list[Column]) -> Table:
    look = {"title_style": "bold", "title_justify": "left", "header_style": "bold", "box": box.SIMPLE_HEAD, "pad_edge": False}
    out = Table(title=title, padding=(0, 1, 0, 0), **look)
    records = rows.to_dict("records")
    cells = [[column.cell(row) for column in columns] for row in records]
    for j, column in enumerate(columns):
        longest = max((len(row[j]) for row in cells), default=0)
        word = max(map(len, column.header.split()))
        out.add_column(column.header, justify=column.justify, overflow="fold", min_width=None if column.folds else max(longest, word))
    for i, row in enumerate(records):
        last = i + 1 == len(records) or any(row[a] != records[i + 1][a] for a in GROUP)
        out.add_row(*cells[i], end_section=last)
    return out


def accuracy(rows: pd.DataFrame) -> str:
    """Predicted against measured in a sentence: the middle and the worst factor, either way. Empty without a pair."""
    ratios = rows.loc[np.isfinite(rows["predicted_over_measured"]) & (rows["predicted_over_measured"] > 0)]
    if ratios.empty:
        return ""
    factors = ratios["predicted_over_measured"].map(lambda r: exp(abs(log(r))))
    worst = ratios.loc[factors.idxmax()]
    name = " ".join(str(worst[a]) for a in ("kernel", "form", "variant", "target", "dtype", "label"))
    within = f"{(factors <= FAIR).sum()} of {len(factors)} predictions are within a factor of {FAIR}"
    middle = f"the middle one is off by ×{significant(float(factors.median()))}, the worst by ×{significant(float(factors.max()))} ({name})"
    return f"{within}; {middle}."


def missing(rows: pd.DataFrame) -> list[str]:
    """One line for every kind of explanation: how many cases, and which (the first three by name)."""
    lines = []
    silent = rows[rows["explanation"] != ""]
    for text, group in silent.groupby(silent["explanation"].map(kind), sort=True):
        names = [" ".join(str(r[a]) for a in ("kernel", "form", "variant", "target", "dtype", "label")) for _, r in group.head(3).iterrows()]
        more = f" and {len(group) - 3} more" if len(group) > 3 else ""
        reason = group["explanation"].iloc[0] if group["explanation"].nunique() == 1 else text
        lines.append(f"{len(group)} × {reason} ({'; '.join(names)}{more})")
    return lines


def _print(ds: xr.Dataset, console: Console) -> None:
    rows = frame(ds)
    for table in tables(rows, console.width):
        console.print(table)
    if line := accuracy(rows):
        console.print(line, highlight=False)
        console.print(accuracies.table(accuracies.errors(ds)))
    if reasons := missing(rows):
        console.print("Not measured:", style="bold")
        for line in reasons:
            console.print(f"  {line}", highlight=False, markup=False)


def text(ds: xr.Dataset) -> str:
    """The table as plain text, the same bytes for the same dataset."""
    out = io.StringIO()
    _print(ds, Console(file=out, width=WIDTH, no_color=True, force_terminal=False, legacy_windows=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_table(dataset: Path, console: Console | None = None) -> None:
    """Print the table of a `dataset.nc`; raises RecordError when it is missing or damaged."""
    _print(record.read(dataset), console or Console(width=None if sys.stdout.isatty() else WIDTH))


def write_table(dataset: Path, out: Path) -> None:
    """Write the table of a `dataset.nc` as text, whole or not at all."""
    write_text(out, text(record.read(dataset)))
