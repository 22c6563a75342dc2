"""In: a dataset of config/bars.yaml. Out: every ratio that we owe beside its floor, one row of BARS each, and whether it is met.

Ratios are made within one run, so they carry over to another day. The floors are for two threads on a quiet machine with AVX-512;
on another instruction set the same figures are reported and not judged.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from rich import box
from rich.console import Console
from rich.table import Table

from moapipe.lab.variable import RUN_AXES, YARDSTICK
from moapipe.report import accuracy
from moapipe.report.accuracy import VERDICTS
from moapipe.report.metrics import frame

JUDGED = "avx512"
WIDTH = 140
SAME = ("kernel", "form", "variant", "isa", "dtype", "machine", *RUN_AXES)
OURS: Mapping[str, tuple[Any, ...]] = {"kernel": ("attention_forward",), "variant": ("online_tiled",), "target": ("c",)}
LONG = (2048, 4096)
NORMS = ("rmsnorm", "layernorm", "rmsnorm_backward", "layernorm_backward")


@dataclass(frozen=True)
class Bar:
    """A promise: for all cases with one of the values in `where`, the column `metric` is at least `floor`."""

    text: str
    metric: str
    floor: float
    where: Mapping[str, tuple[Any, ...]]


def _attention(text: str, metric: str, form: str, n: tuple[int, ...], floors: Mapping[str, float]) -> tuple[Bar, ...]:
    return tuple(Bar(text, metric, floor, {**OURS, "form": (form,), "dtype": (dtype,), "n": n}) for dtype, floor in floors.items())


def _gradients(kernel: str, variant: str, form: str, floors: Mapping[str, float]) -> tuple[Bar, ...]:
    ours = {"kernel": (kernel,), "variant": (variant,), "target": ("c",), "form": (form,), "n": (1024, 2048)}
    return tuple(Bar("against PyTorch", "speedup", floor, {**ours, "dtype": (dtype,)}) for dtype, floor in floors.items())


BARS: tuple[Bar, ...] = (
    Bar("never slower than PyTorch (95 % bound)", "speedup_low", 1.0, {**OURS, "form": ("full", "causal"), "n": (512, 1024, 2048, 4096)}),
    *_attention("against PyTorch", "speedup", "full", (1024,), {"f32": 1.2, "f64": 1.4}),
    *_attention("against PyTorch", "speedup", "causal", (1024,), {"f32": 1.4, "f64": 1.8}),
    *_attention("against PyTorch", "speedup", "full", LONG, {"f32": 1.2, "f64": 1.6}),
    *_attention("against PyTorch", "speedup", "causal", LONG, {"f32": 1.3, "f64": 1.6}),
    *_attention("share of the measured FMA peak", "peak_share", "full", LONG, {"f32": 0.80, "f64": 0.74}),
    *_gradients("attention_backward", "one_pass", "full", {"f32": 1.4, "f64": 1.9}),
    *_gradients("attention_backward", "one_pass", "causal", {"f32": 1.6, "f64": 2.2}),
    *_gradients("attention_forward_backward", "row_block", "full", {"f32": 1.5, "f64": 2.0}),
    *_gradients("attention_forward_backward", "row_block", "causal", {"f32": 1.5, "f64": 2.0}),
    Bar("Fortran's speed over C's, same loop nest", "against_c", 1 / 1.08, {"kernel": ("attention_forward", "matmul"), "variant": ("online_tiled", "tiled"), "target": ("fortran",)}),
    Bar("share of the measured FMA peak", "peak_share", 0.85, {"kernel": ("matmul",), "variant": ("tiled",), "target": ("c",)}),
    Bar("share of a copy with the same kind of store", "yardstick_share", 0.80, {"kernel": NORMS, "target": ("c",)}),
    Bar("share of only reading", "yardstick_share", 0.80, {"kernel": ("decode",), "target": ("c",)}),
    Bar("against PyTorch", "speedup", 1.0, {"kernel": ("gated_mlp", "block_published", "block", "block_forward_backward"), "variant": ("tiled",), "target": ("c",)}),
)


@dataclass(frozen=True)
class Outcome:
    """A bar at one case. `met` is None where it is not judged: no valid measurement, or another instruction set."""

    bar: Bar
    case: str
    value: float
    met: bool | None


def judge(ds: xr.Dataset) -> tuple[Outcome, ...]:
    """Every bar at every case that it speaks of, in the order of BARS. Where an experiment has no yardsticks, nobody owes a share of them."""
    rows = with_languages(frame(ds))
    owed = [bar for bar in BARS if bar.metric != "yardstick_share" or (rows["target"] == YARDSTICK).any()]
    return tuple(outcome for bar in owed for outcome in _outcomes(bar, rows))


def with_languages(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `against_c`: the C build's median over this one's, where both have the same loop nest and run axes."""
    key = [*SAME, "onf_hash"]
    c = rows[rows["target"] == "c"].drop_duplicates(key).set_index(key)["median_seconds"]
    own = pd.MultiIndex.from_frame(rows[key])
    return rows.assign(against_c=np.asarray(c.reindex(own), dtype=float) / rows["median_seconds"].to_numpy(dtype=float))


def _outcomes(bar: Bar, rows: pd.DataFrame) -> Iterator[Outcome]:
    for row in rows.to_dict("records"):
        if all(row[axis] in values for axis, values in bar.where.items()):
            value = float(row[bar.metric])
            judged = row["isa"] == JUDGED and not isnan(value)
            yield Outcome(bar, " ".join(str(row[a]) for a in ("kernel", "form", "variant", "target", "dtype", "label")), value, value >= bar.floor if judged else None)


def text(outcomes: tuple[Outcome, ...], errors: pd.DataFrame) -> str:
    """The outcomes as a table, the predictions' as another, and their sum in one line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="What we owe", title_justify="left")
    for header, justify in (("case", "left"), ("promise", "left"), ("floor", "right"), ("found", "right"), ("", "left")):
        table.add_column(header, justify=justify)  # type: ignore[arg-type]
    for o in outcomes:
        found = "no valid measurement" if isnan(o.value) else f"{o.value:.3f}"
        table.add_row(o.case, o.bar.text, f"{o.bar.floor:.3f}", found, VERDICTS[o.met])
    out = io.StringIO()
    Console(file=out, width=WIDTH, no_color=True).print(*[table] * bool(outcomes), accuracy.table(errors))
    count = Counter([*(o.met for o in outcomes), *errors["met"]])
    return out.getvalue() + ", ".join(f"{count[met]} {VERDICTS[met].lower()}" for met in VERDICTS)
