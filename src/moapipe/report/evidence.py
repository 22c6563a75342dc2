"""In: rows of lab.evidence.gather. Out: the table of evidence for texts for GPUs: as text, as JSON, as a page of an archive.

A row is a build; its columns are what is known of it. `no` under `GPU` means what it says: it was not run on one.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from moapipe.lab.evidence import WAYS
from moapipe.lab.experiment import BUILD_AXES

COLUMNS = (*WAYS, "compiled", "gpu")
WORDS = {"passed": "yes", "failed": "FAILED", "missing": "missing", "untried": "not tried", "none": "", "no": "no"}
TEXTS = {**{name: way.text for name, way in WAYS.items()}, "compiled": "CUDA and HIP for each architecture, whose code keeps what the loop nest promises; OpenCL by clang and directives by GCC for the host: taken",
         "gpu": "validated on a GPU"}  # fmt: skip
TITLES = {"gpu": "GPU"}
SCHEMA = 1
WIDTH = 200


def document(rows: Sequence[Mapping[str, Any]], experiment: str, machine: str) -> dict[str, Any]:
    """evidence.json."""
    return {"schema": SCHEMA, "experiment": experiment, "machine": machine, "columns": {c: TEXTS[c] for c in COLUMNS}, "rows": [dict(r) for r in rows]}


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """`build column: why` for every piece of evidence against a build."""
    return [f"{'/'.join(r[a] for a in BUILD_AXES)} {c}: {r[c]['detail']}" for r in rows for c in COLUMNS if r[c]["status"] == "failed"]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """For each column how many texts have which answer, in words, and the languages whose texts cannot have one: `258 yes, 2 missing; not
    for opencl`."""
    out = {}
    for c in COLUMNS:
        counts = Counter(WORDS[r[c]["status"]] for r in rows if r[c]["status"] != "none")
        without = dict.fromkeys(r["target"] for r in rows if r[c]["status"] == "none")
        out[c] = "; ".join(filter(None, (", ".join(f"{n} {word}" for word, n in counts.most_common()), f"not for {', '.join(without)}" if without else "")))
    return out


def said(cell: Mapping[str, Any]) -> str:
    """A cell in a word; for what was compiled, the registers by architecture."""
    word = WORDS[cell["status"]]
    codes = ", ".join(f"{c['arch']} {c['registers']}" + (f" ({c['spill_bytes']} B spilt)" if c["spill_bytes"] else "") for c in cell.get("codes", ()))
    return f"{word}: {codes} registers" if codes else word


def text(found: Mapping[str, Any]) -> str:
    """The table, one line a build, and below it what is missing and why something failed."""
    rows = found["rows"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"Evidence for texts for GPUs, {found['experiment']} on {found['machine']}", title_justify="left")
    for name in ("kernel", "form", "variant", "target", "dtype", *COLUMNS):
        table.add_column(TITLES.get(name, name))
    for r in rows:
        table.add_row(*(r[a] for a in ("kernel", "form", "variant", "target", "dtype")), *(said(r[c]) for c in COLUMNS))
    out = io.StringIO()
    Console(file=out, width=WIDTH, no_color=True).print(table)
    missing = dict.fromkeys(f"missing: {c}: {r[c]['detail']}" for r in rows for c in COLUMNS if r[c]["status"] == "missing")
    run = sum(r["gpu"]["status"] == "passed" for r in rows)
    heads = [f"{len(rows)} builds, {run} of them validated on a GPU", *(f"{TITLES.get(c, c)}: {words}" for c, words in summary(rows).items())]
    return out.getvalue() + "\n".join([*heads, *missing, *(f"failed: {f}" for f in failures(rows))]) + "\n"
