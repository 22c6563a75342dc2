"""In: an archive's folder with its data. Out: its pages: index.html, a page for each build, the published figures, the list of archives.

Every page is one file with everything inside it, and opens from disk: no network, no server. Cases travel as JSON and are drawn on
demand, so that hundreds of them stay quick.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import xarray as xr
from markupsafe import Markup

from moapipe.errors import RecordError
from moapipe.lab.experiment import BUILD_AXES, Build
from moapipe.lab.file import read_json, write_text
from moapipe.lab.transcript import BACKWARDS
from moapipe.lab.variable import BESIDE
from moapipe.report import accuracy, case, chapter, charts, claim, evidence, figure, mark, published, table
from moapipe.report.metrics import kind

TEMPLATES = Path(__file__).parent / "templates"
FILTERS = ("kernel", "form", "variant", "target", "dtype", "status")
PUBLISHED, EVIDENCE = "published.html", "evidence.html"
FILES = (
    ("data/dataset.nc", "the dataset: every raw sample, netCDF4"), ("data/cases.csv", "one row a case, with every metric"),
    ("data/samples.csv", "one row a sample, with its verdict"), ("table.txt", "the table as text"),
    ("environment.json", "host, compilers, every package"), ("calibration.json", "the machine's measured rates"),
    (PUBLISHED, "what the papers claim and measured, beside what our kernels come to"),
    (EVIDENCE, "what is known of each text for a GPU, and whether one ran it"), ("evidence.json", "the same as data"), ("config", "what was asked for"), ("kernels", "the definitions and variants"), ("charts", "charts as SVG and Vega-Lite JSON"),
    ("MANIFEST.sha256", "checksums: sha256sum -c MANIFEST.sha256"),
)  # fmt: skip


def write_pages(folder: Path, ds: xr.Dataset) -> None:
    """Write the page of every build, then index.html, into an archive's folder that already holds its data."""
    known = case.cases(ds, folder)
    for build in sorted({Build(*(c[a] for a in BUILD_AXES)) for c in known if c["target"] not in BESIDE}):
        _write_chapter(folder, chapter.read(folder, build))
    document = _template("index.html").render(
        page=json_block({"cases": known, "filters": FILTERS, "fair": table.FAIR, "colours": mark.colours(ds)}),
        figures=[_figure(folder / "charts" / f"{f.name}.json") for f in charts.CHARTS if (folder / "charts" / f"{f.name}.json").is_file()],
        runtime=Markup(charts.runtime().replace("</script", "<\\/script")),
        facts=facts(ds), accuracy=list(accuracy.rows(accuracy.errors(ds))), ceiling=f"{accuracy.CEILING:.0%}", tiles=tiles(known), missing=_missing(known), axes=FILTERS,
        files=[(name, text) for name, text in FILES if (folder / name).exists() or name.startswith("MANIFEST")],
        title=f"{ds.attrs['experiment']} on {ds.attrs['host']}", experiment=ds.attrs["experiment"], host=ds.attrs["host"], when=when(str(ds.attrs["created"])),
    )  # fmt: skip
    write_text(folder / case.PAGE, document)


def write_published(folder: Path, root: Path) -> None:
    """Write what the papers claim and measured beside what the kernels of `root` come to; nothing where it has none of theirs."""
    claims, figures, device = _published(root, tuple((root / "kernels").glob("*.py")))
    if claims or figures:
        page = _template("published.html").render(claims=claims, figures=figures, device=device, quantity=figure.quantity, bounds=figure.bounds)
        write_text(folder / PUBLISHED, page)


def write_evidence(folder: Path) -> None:
    """Write the page of evidence.json; nothing where an experiment has no texts for GPUs."""
    if (folder / "evidence.json").is_file():
        found = read_json(folder / "evidence.json")
        run = sum(r["gpu"]["status"] == "passed" for r in found["rows"])
        write_text(folder / EVIDENCE, _template("evidence.html").render(found=found, evidence=evidence, run=run))


@lru_cache(maxsize=4)
def _published(root: Path, kernels: tuple[Path, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Once for the kernels that there are: it takes seconds."""
    found = published.read()
    return claim.documents(found.claims, root), figure.rows(found, root), found.device.name


def _write_chapter(folder: Path, page: chapter.Chapter) -> None:
    up = "../" * (len(BUILD_AXES) + 1)
    text = _template("derivation.html").render(page=page, chapter=chapter, up=up, notations=chapter.NOTATIONS, backwards=BACKWARDS, beside=up + "{kind}/" + page.build.path())
    write_text(folder / "derivations" / page.build.path() / case.PAGE, text)


def write_index(archives: Path) -> None:
    """Write the list of all archives below `archives`, newest first. A folder without a readable archive.json is left out."""
    found = []
    for path in archives.glob("*/archive.json"):
        if not path.parent.name.startswith("."):
            with contextlib.suppress(RecordError):
                found.append({**read_json(path), "folder": path.parent.name, "seal": path.parent.name.rpartition("-")[2]})
    found.sort(key=lambda a: (a["created"], a["folder"]), reverse=True)
    write_text(archives / case.PAGE, _template("archives.html").render(archives=[a | {"when": when(a["created"])} for a in found]))


# ------------------------------------------------------------------ what the header says


def when(created: str) -> str:
    """`2026-11-30 04:40 UTC` from an ISO time. Raises RecordError for anything else."""
    try:
        return datetime.fromisoformat(created).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError as e:
        raise RecordError(f"{created!r} is no time", where="attribute created", hint="the dataset is damaged: collect again") from e


def facts(ds: xr.Dataset) -> list[tuple[str, list[str]]]:
    """What, where, with what: (name, lines) from the dataset's attributes; JSON becomes a line an entry."""
    out = []
    for name, label in (("host", "host"), ("topology", "machine"), ("compilers", "compilers"), ("libraries", "libraries"), ("environment", "set for measuring"),
                        ("clock", "clock"), ("moapipe_version", "moapipe"), ("protocol", "protocol")):  # fmt: skip
        lines = list(dict.fromkeys(line for part in str(ds.attrs.get(name, "")).splitlines() for line in _lines(part)))
        if lines:
            out.append((label, lines))
    return out


def _lines(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    match value:
        case dict():
            return [f"{k}: {', '.join(f'{a} {b}' for a, b in v.items()) if isinstance(v, dict) else v}" for k, v in value.items()]
        case list():
            return [str(v) for v in value]
        case _:
            return [text]


def tiles(cases: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The headline: (figure, its unit or whole, what it says)."""
    measured = [c for c in cases if c["status"] == "measured"]
    samples, valid = (sum(c[k] for c in cases) for k in ("taken_samples", "valid_samples"))
    ratios = sorted(max(r, 1 / r) for c in measured if (r := c.get("predicted_over_measured")))
    bounded = [c for c in measured if "speedup_low" in c]
    faster, slower = sum(c["speedup_low"] > 1 for c in bounded), sum(c["speedup_high"] < 1 for c in bounded)
    checked = [c["error"] / c["error_bound"] for c in cases if c.get("error_bound") and "error" in c]
    out = [(str(len(measured)), f"of {len(cases)} cases", "were measured; the others say why not")]
    if samples:
        out.append((f"{100 * valid / samples:.1f} %", f"of {samples:,} samples".replace(",", " "), "are valid, the only ones used"))
    if ratios:
        within = sum(r <= table.FAIR for r in ratios)
        out.append((f"×{table.significant(ratios[len(ratios) // 2])}", "middle prediction", f"{within} of {len(ratios)} within ×{table.FAIR}, the worst ×{table.significant(ratios[-1])}"))
    if bounded:
        out.append((str(faster), f"of {len(bounded)} against PyTorch", f"faster with 95 % confidence; {slower} slower, {len(bounded) - faster - slower} even"))
    if checked:
        out.append((f"{100 * max(checked):.0f} %", "of the error bound", f"is the worst of {len(checked)} validation errors"))
    return out


def _missing(cases: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted(Counter(kind(c["explanation"]) for c in cases if c["explanation"]).items())


# ------------------------------------------------------------------ parts


def _figure(path: Path) -> dict[str, Any]:
    """A chart for the page: the page itself writes title and note."""
    document = read_json(path)
    title = document.pop("title")
    return {"name": path.stem, "title": title["text"], "note": " ".join(title["subtitle"]), "document": json_block(document)}


def json_block(data: Any) -> Markup:
    """JSON that can stand inside a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _inline(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text())


def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["inline"] = _inline
    environment.filters["markup"] = Markup
    return environment
