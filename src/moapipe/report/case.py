"""In: a dataset and an archive's folder. Out: each case as plain JSON values: what the page's table, panel and charts show.

Numbers keep four digits (raw ones are in data/), NaN becomes null, a link is given only where its file exists.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from moapipe.lab.experiment import BUILD_AXES, GROUP_AXES
from moapipe.lab.variable import BESIDE, LEVELS
from moapipe.lab.verdict import VERDICTS
from moapipe.report.metrics import frame, runs, taken

MOST_SAMPLES = 150  # of one case in the page, evenly thinned; the data folder has them all
PAGE = "index.html"
TEXTS = (*BUILD_AXES, "machine", "label", "arrangement", "status", "explanation", "plausibility", "mechanism", "dnf_hash", "onf_hash", "source_hash")
COUNTS = ("threads", "n", "taken_samples", "valid_samples")
NUMBERS = (
    "median_seconds", "median_seconds_low", "median_seconds_high", "predicted_seconds", "predicted_compute_seconds",
    "predicted_memory_seconds", "predicted_overhead_seconds", "predicted_over_measured", "speedup", "speedup_low", "speedup_high",
    "peak_share", "flop_rate", "exponent", "valid_share", "process_scatter", "launch_scatter", "node_scatter", "error", "error_bound", "baseline_error", "flops", "useful_flops", "exps",
    "loaded_bytes", "stored_bytes", "footprint_read_bytes", "footprint_written_bytes", "private_bytes",
    *(f"{name}_{level}" for name in ("traffic_bytes", "lower_bound_bytes", "traffic_ratio", "achieved_bandwidth", "bandwidth") for level in LEVELS),
)  # fmt: skip


def cases(ds: xr.Dataset, folder: Path) -> list[dict[str, Any]]:
    """One mapping a case, in the order of the dataset; `case` is its index there."""
    rows = frame(ds).to_dict("records")
    seconds, verdicts, was_taken = runs(ds["seconds"]), runs(ds["verdict"]), runs(taken(ds))
    return [_case(i, row, folder) | {"samples": _samples(seconds[i], verdicts[i], was_taken[i])} for i, row in enumerate(rows)]


def _case(index: int, row: dict[str, Any], folder: Path) -> dict[str, Any]:
    texts = {k: str(row[k]) for k in TEXTS}
    counts = {k: int(row[k]) for k in COUNTS if k in row and row[k] >= 0}
    numbers = {k: number(row[k]) for k in NUMBERS if k in row}
    return {"case": index, **texts, **counts, **{k: v for k, v in numbers.items() if v is not None}, "links": links(row, folder)}


def number(value: float) -> float | None:
    """A float with four digits, None for NaN and infinities."""
    return float(f"{value:.4g}") if isfinite(value) else None


def links(row: dict[str, Any], folder: Path) -> dict[str, str]:
    """Name → address relative to the archive, for what is there; PyTorch's cases have the prediction's and the data only."""
    group, build = "/".join(row[a] for a in GROUP_AXES), "/".join(row[a] for a in BUILD_AXES)
    page = f"derivations/{build}/{PAGE}"
    found = {
        "derivation": (page, f"derivations/{build}/derivation.json"),
        "ONF": (f"{page}#onf", f"derivations/{build}/derivation.json"),
        "source": (f"{page}#source", f"derivations/{build}/manifest.json"),
        "validation": (f"{page}#validation", f"validations/{build}/validation.json"),
        "build": (f"{page}#build", f"builds/{build}/build.json"),
        "assembler": (f"builds/{build}/kernel.s", f"builds/{build}/kernel.s"),
        "prediction": (f"predictions/{group}/prediction.json", f"predictions/{group}/prediction.json"),
    }
    shown = found if row["target"] not in BESIDE else {}
    return {name: address for name, (address, file) in shown.items() if (folder / file).is_file()}


def _samples(seconds: np.ndarray, verdicts: np.ndarray, was_taken: np.ndarray) -> list[list[list[Any]]]:
    """For each launch its samples as [index, seconds, verdict], evenly thinned."""
    names = {row.code: name for name, row in VERDICTS.items()}
    step = max(1, -(-int(was_taken.sum()) // MOST_SAMPLES))
    out = []
    for launch in range(len(seconds)):
        kept = np.flatnonzero(was_taken[launch])[::step]
        out.append([[int(k), number(seconds[launch, k]), names[int(verdicts[launch, k])]] for k in kept])
    return [launch for launch in out if launch]
