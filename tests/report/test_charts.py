"""Every chart of CHARTS: drawable, honest about what is left out, units on its axes, the same colours everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from moapipe.lab import record
from moapipe.report import charts, mark, metrics
from moapipe.report.charts import CHARTS, Figure


@pytest.fixture(scope="session")
def documents(dataset: xr.Dataset) -> dict[str, dict[str, Any]]:
    return {figure.name: charts.specification(figure, dataset) for figure in CHARTS}


def nodes(document: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a document but its data."""
    if isinstance(document, dict):
        yield document
        for key, value in document.items():
            if key != "datasets":
                yield from nodes(value)
    elif isinstance(document, list):
        for value in document:
            yield from nodes(value)


def channels(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    for node in nodes(document):
        if "encoding" in node and name in node["encoding"]:
            yield node["encoding"][name]


each = pytest.mark.parametrize("figure", CHARTS, ids=lambda f: f.name)


@each
def test_draws_without_browser_or_network(figure: Figure, documents: dict[str, dict[str, Any]]) -> None:
    drawn = charts.svg(documents[figure.name])
    assert drawn.startswith("<svg") and drawn.count("<path") > 50
    assert "http://" not in drawn.replace("http://www.w3.org/", "")


@each
def test_axis_titles_carry_units(figure: Figure, documents: dict[str, dict[str, Any]]) -> None:
    titles = {c["title"] for axis in "xy" for c in channels(documents[figure.name], axis) if c.get("title")}
    assert titles and all(re.search(r" \([^)]+\)$", t) for t in titles)


@each
def test_a_case_is_drawn_only_with_valid_samples(figure: Figure, documents: dict[str, dict[str, Any]], dataset: xr.Dataset) -> None:
    rows = documents[figure.name]["datasets"]["rows"]
    drawn = {r["case"] for r in rows if "case" in r}
    unusable = {i for i, text in enumerate(metrics.explanation(dataset)) if text}
    assert drawn
    if figure.name != "traffic":  # traffic is predicted: a case need not be measured
        assert not drawn & unusable


@each
def test_the_note_counts_what_is_left_out(figure: Figure, documents: dict[str, dict[str, Any]], dataset: xr.Dataset) -> None:
    document = documents[figure.name]
    note = " ".join(document["title"]["subtitle"])
    shown, total = map(int, re.match(r"(\d+) of (\d+) cases shown", note).groups())  # type: ignore[union-attr]
    assert total == dataset.sizes["case"]
    left = [int(k) for k in re.findall(r"(\d+) (?:not measured|without|are PyTorch's)", note)]
    assert shown + sum(left) == total
    if figure.name != "traffic":
        assert shown == len({r["case"] for r in document["datasets"]["rows"] if "case" in r})


@each
def test_same_dataset_same_document(figure: Figure, documents: dict[str, dict[str, Any]], dataset: xr.Dataset) -> None:
    assert json.dumps(charts.specification(figure, dataset), allow_nan=False) == json.dumps(documents[figure.name], allow_nan=False)


def test_a_variant_has_one_colour_on_all_charts(documents: dict[str, dict[str, Any]]) -> None:
    colours: dict[str, set[str]] = {}
    for document in documents.values():
        for channel in channels(document, "color"):
            for name, colour in zip(channel["scale"]["domain"], channel["scale"]["range"], strict=True):
                colours.setdefault(name, set()).add(colour)
    assert len(colours) >= 7 and all(len(found) == 1 for found in colours.values())
    assert colours[mark.PYTORCH] == {mark.GREY}
    assert len(set().union(*colours.values())) == len(colours)


@each
def test_a_dataset_without_times_says_so(figure: Figure, make: Callable[..., xr.Dataset]) -> None:
    ds = make()
    barren = ds.where(ds["status"] == 2, drop=True).isel(case=[0]).assign_attrs(ds.attrs)
    for name in ("status", "verdict", "threads", *record.parameters(ds)):
        barren[name] = barren[name].astype(ds[name].dtype).assign_attrs(ds[name].attrs)
    barren["traffic_bytes"] = barren["traffic_bytes"] * float("nan")
    document = charts.specification(figure, barren)
    assert "0 of 1 cases shown" in " ".join(document["title"]["subtitle"])
    assert charts.svg(document).startswith("<svg")


@each
def test_a_kernel_without_n_draws_what_it_can(figure: Figure, make: Callable[..., xr.Dataset]) -> None:
    ds = make().drop_vars("n")
    assert charts.svg(charts.specification(figure, ds)).startswith("<svg")


def test_more_variants_than_colours_meet_in_no_panel() -> None:
    """As many kernels as colours, each with as many variants but one, neighbours sharing one of them."""
    many = len(mark.COLOURS)
    members = [(f"kernel{k}", f"variant{k + j if j else k:03}_{j}") for k in range(many) for j in range(many - 1)]
    members += [(f"kernel{k + 1}", name) for k, (kernel, name) in enumerate(members[:: many - 1][:-1])]
    found = mark.palette(members)
    for kernel in {k for k, _ in members}:
        mine = [found[name] for k, name in members if k == kernel]
        assert len(set(mine)) == len(mine)
    assert len(set(found.values())) == many + 1


def test_every_target_has_a_shape_that_fills() -> None:
    assert not {"stroke", "arrow"} & set(mark.SHAPES.values())  # lines: a filled mark of theirs is not seen


def test_the_line_of_perfect_predictions_is_a_diagonal(documents: dict[str, dict[str, Any]]) -> None:
    guides = [r for r in documents["predicted"]["datasets"]["rows"] if "guide" in r]
    for panel in {r["panel"] for r in guides}:
        mine = [r for r in guides if r["panel"] == panel]
        x, y = [r["median_seconds"] for r in mine], [r[k] for r in mine for k in ("predicted_seconds", "top") if r.get(k)]
        assert (min(x), max(x)) == (min(y), max(y))


@pytest.mark.parametrize("name", ["predicted", "speedup", "roofline", "growth", "traffic"])
def test_labels_of_an_axis_do_not_meet_where_all_cases_are_of_one_point(name: str, dataset: xr.Dataset) -> None:
    """An axis of a single value has no width of its own."""
    alike = np.all([dataset[a].values == dataset[a].values[0] for a in ("kernel", "form", "dtype", "label")], axis=0)
    (figure,) = (f for f in CHARTS if f.name == name)
    drawn = charts.svg(charts.specification(figure, dataset.isel(case=alike)))
    axes = re.findall(r'class="mark-text role-axis-label"[^>]*>(.*?)</g>', drawn)
    assert axes
    for axis in axes:
        places = re.findall(r'transform="translate\(([^)]*)\)', axis)
        assert len(set(places)) == len(places), axis


def test_a_panel_of_exponents_has_some(documents: dict[str, dict[str, Any]], dataset: xr.Dataset) -> None:
    assert all("vconcat" in part for part in documents["growth"]["concat"])
    document = charts.specification(next(f for f in CHARTS if f.name == "growth"), dataset.isel(case=(dataset["n"] == 256).values))
    assert document["concat"] and not any("vconcat" in part for part in document["concat"])
    assert charts.svg(document).startswith("<svg")


def test_a_picked_legend_finds_its_view(documents: dict[str, dict[str, Any]]) -> None:
    for document in documents.values():
        names = {node["name"] for node in nodes(document) if str(node.get("name", "")).startswith("points")}
        assert all(set(p["views"]) <= names and p["views"] for p in document["params"])


def test_colours_do_not_repeat() -> None:
    assert len({*mark.COLOURS, mark.GREY}) == len(mark.COLOURS) + 1


def test_write_all_writes_both_forms_of_every_chart(dataset_path: Path, tmp_path: Path) -> None:
    written = charts.write_all(dataset_path, tmp_path / "charts")
    ds = record.read(dataset_path)
    assert {p.name for p in written} == {f"{f.name}.{kind}" for f in CHARTS if f.worth(ds) for kind in ("json", "svg")}
    assert {p.name for p in (tmp_path / "charts").iterdir()} == {p.name for p in written}
    for path in written:
        if path.suffix == ".json":
            assert json.loads(path.read_text())["$schema"].endswith(".json")


@pytest.mark.parametrize("figure", CHARTS, ids=lambda f: f.name)
@pytest.mark.parametrize("lengths", [(64,), (64, 128)], ids=str)
def test_a_single_kernel_draws_every_chart(figure: Figure, lengths: tuple[int, ...], dataset: xr.Dataset) -> None:
    """One panel, one variant, one language: views have other names then."""
    chosen = (dataset["kernel"] == "rmsnorm") & (dataset["dtype"] == "f64") & dataset["n"].isin([4 * n for n in lengths]) & (dataset["target"] != "fortran")
    drawn = charts.svg(charts.specification(figure, dataset.isel(case=chosen.values)))
    assert drawn.startswith("<svg")
