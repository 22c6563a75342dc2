"""The archive's pages in a real browser, from disk, without network: nothing fails, everything can be found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import xarray as xr

from moapipe.lab import record
from moapipe.lab.experiment import BUILD_AXES
from moapipe.lab.file import write_json
from moapipe.report import case, chapter, charts, metrics, site

CHROMIUM = Path("/usr/bin/chromium")
api = pytest.importorskip("playwright.sync_api")
browsing = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium")


# ------------------------------------------------------------------ without a browser


class Links(HTMLParser):
    """Addresses and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [found[k] or "" for k in ("href", "src") if k in found]
        if found.get("id"):
            self.ids.add(str(found["id"]))


def targets(page: Path) -> Iterator[tuple[str, Path, str]]:
    """(address, file, fragment) of everything that a page points to, its cases' links too."""
    text = page.read_text()
    addresses = Links(text).addresses
    if 'id="page">' in text:
        data = json.loads(text.split('id="page">')[1].split("</script>")[0])
        addresses += [a for c in data["cases"] for a in c["links"].values()]
    for address in addresses:
        place, fragment = urldefrag(address)
        if not place.startswith("data:"):
            yield address, (page.parent / unquote(place)) if place else page, fragment


def test_every_link_of_every_page_resolves(archive_folder: Path) -> None:
    pages = sorted(archive_folder.rglob("index.html"))
    assert len(pages) == 1 + 6
    known = {page.resolve(): Links(page.read_text()).ids for page in pages}
    for page in pages:
        for address, file, fragment in targets(page):
            assert file.exists(), f"{page}: {address}"
            if fragment and "=" not in fragment:
                assert fragment in known[file.resolve()], f"{page}: {address}"


def test_pages_ask_for_nothing_from_outside(archive_folder: Path) -> None:
    for page in archive_folder.rglob("index.html"):
        assert not [a for a in Links(page.read_text()).addresses if "//" in a]


def test_every_case_of_the_dataset_is_in_the_page(archive_folder: Path) -> None:
    ds = record.read(archive_folder / "data" / "dataset.nc")
    found = case.cases(ds, archive_folder)
    assert [c["case"] for c in found] == list(range(ds.sizes["case"]))
    assert all(("median_seconds" in c) != bool(c["explanation"]) for c in found)
    written = [c for c in found if c["target"] != "torch" and c["variant"] != "unwritten"]
    assert written and all(set(c["links"]) == {"derivation", "ONF", "source", "validation", "build", "assembler", "prediction"} for c in written)
    assert all(c["links"] == {} for c in found if c["target"] == "torch")


def test_many_samples_are_thinned_evenly(make: Callable[..., xr.Dataset], tmp_path: Path) -> None:
    ds = make(launches=4, samples=200).isel(case=[0])
    drawn = case.cases(ds, tmp_path)[0]["samples"]
    assert sum(map(len, drawn)) <= case.MOST_SAMPLES and len(drawn) == 4
    assert {later[0] - earlier[0] for launch in drawn for earlier, later in pairwise(launch)} == {6}


def test_json_cannot_end_its_script() -> None:
    text = str(site.json_block({"x": "</script><!--\u2028"}))
    assert "<" not in text and "\u2028" not in text
    assert json.loads(text) == {"x": "</script><!--\u2028"}


@pytest.mark.parametrize("markup", ["<mi>x", "", "<mi>&nope;</mi>"])
def test_a_formula_that_is_no_xml_is_shown_in_glyphs(markup: str) -> None:
    html = chapter.formula({"mathml": markup, "moa": "a < b", "ascii": "a", "latex": "a"})
    assert "<math" not in html and '<code class="mathml">a &lt; b</code>' in html


def test_a_gradients_steps_stand_apart_from_the_reduction() -> None:
    side = {"mathml": "<mi>x</mi>", "moa": "x", "ascii": "x", "latex": "x"}
    document = {"steps": [{"definition": d, "law": law, "before": side, "after": side} for d, law in (("z", "psi"), ("z", "saved"), ("dx", "chain rule"))]}
    reduction, adjoint = ([(name, [s["law"] for s in steps]) for name, steps in part] for part in chapter.steps(document))
    assert (reduction, adjoint) == ([("z", ["psi"])], [("z", ["saved"]), ("dx", ["chain rule"])])


def test_changes_mark_new_lines_strike_old_ones_and_leave_out_the_rest() -> None:
    before = "\n".join(f"line {k}" for k in range(30))
    html = chapter.changes(before, before.replace("line 15", "fresh < line    # scores"))
    assert "<del>line 15</del>\n<ins>fresh &lt; line<i>    # scores</i></ins>" in html
    assert "line 12" in html and "line 11" not in html and "line 19" not in html


def test_headline_counts(dataset: xr.Dataset, tmp_path: Path) -> None:
    figures = site.tiles(case.cases(dataset, tmp_path))
    measured = sum(s == "measured" for s in metrics.status(dataset))
    assert figures[0][:2] == (str(measured), f"of {dataset.sizes['case']} cases")
    assert len(figures) == 5
    assert site.tiles([]) == [("0", "of 0 cases", "were measured; the others say why not")]


# ------------------------------------------------------------------ in a browser


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    with api.sync_playwright() as p:
        engine = p.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield engine
        engine.close()


@pytest.fixture
def visit(browser: object, archive_folder: Path) -> Iterator[Callable[..., object]]:
    """Open a page of the archive; afterwards there must have been no request to outside, no error and no warning."""
    pages, outside, complaints = [], [], []

    def go(where: str = "index.html", folder: Path = archive_folder, **options: object) -> object:
        page = browser.new_page(**({"viewport": {"width": 1280, "height": 900}} | options))  # type: ignore[attr-defined]
        page.on("request", lambda r: outside.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(f"file://{folder}/{where}")
        pages.append(page)
        return page

    yield go
    for page in pages:
        page.close()
    assert outside == [] and complaints == []


def texts(page: object, selector: str) -> list[str]:
    return [t.strip() for t in page.locator(selector).all_inner_texts()]  # type: ignore[attr-defined]


@browsing
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((1280, "dark"), (400, "light")))])
def test_everything_draws_and_fits(scheme: str, width: int, visit: Callable[..., object], archive_folder: Path) -> None:
    page = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    assert "example" in page.title()
    drawn = [c.name for c in charts.CHARTS if (archive_folder / "charts" / f"{c.name}.json").is_file()]
    assert len(drawn) > 3
    for name in drawn:
        page.locator(f"#figure-{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{name} svg.marks path", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ("rgb(251, 251, 249)" if scheme == "light" else "rgb(20, 23, 28)")


@browsing
def test_filters_and_text_narrow_the_table_and_the_charts(visit: Callable[..., object], archive_folder: Path) -> None:
    rows = metrics.frame(record.read(archive_folder / "data" / "dataset.nc"))
    chosen = rows[(rows["status"] == "measured") & (rows["variant"] == "tiled")].iloc[0]
    page = visit()
    every = page.locator("#cases tbody tr").count()
    page.select_option("[data-filter=kernel]", "matmul")
    page.select_option("[data-filter=target]", chosen["target"])
    assert set(texts(page, "#cases tbody td:nth-child(1)")) == {"matmul"} and set(texts(page, "#cases tbody td:nth-child(4)")) == {chosen["target"]}
    page.fill("#q", f"tiled n={chosen['n']}")
    assert page.locator("#cases tbody tr").count() == 1 and texts(page, "#count") == [f"1 of {every} cases"]
    page.locator("#figure-predicted").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('#figure-predicted .mark-symbol.role-mark path').length === 1")
    page.fill("#q", "no such case")
    assert page.locator("#none").is_visible()
    page.wait_for_selector("#figure-predicted .empty")
    page.click("#reset")
    assert page.locator("#cases tbody tr").count() == every


@browsing
def test_a_click_on_a_header_sorts_up_then_down_then_not(visit: Callable[..., object]) -> None:
    page = visit()
    unsorted = texts(page, "#cases tbody td:nth-child(8)")
    seconds = "[...document.querySelectorAll('#cases tbody tr')].map(r => cases[r.dataset.case].median_seconds)"
    for direction, order in (("ascending", 1), ("descending", -1)):
        page.click("[data-sort=median_seconds]")
        found = [s for s in page.evaluate(seconds) if s is not None]
        assert found == sorted(found, key=lambda s: order * s)
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == direction
        assert page.evaluate(seconds)[-1] is None  # unknown stands last, both ways
    page.click("[data-sort=median_seconds]")
    assert texts(page, "#cases tbody td:nth-child(8)") == unsorted


@browsing
def test_the_keyboard_reaches_a_case_and_leaves_it(visit: Callable[..., object]) -> None:
    page = visit()
    page.locator("#cases tbody tr:nth-child(2) a").focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open]").count() == 1 and "case=1" in page.url
    page.keyboard.press("ArrowRight")
    assert "case=2" in page.url
    page.keyboard.press("Escape")
    page.wait_for_function("!location.hash.includes('case')")  # a dialog says that it was closed a moment later
    assert page.locator("dialog[open]").count() == 0


@browsing
def test_a_case_shows_time_prediction_samples_validation_and_counts(visit: Callable[..., object], archive_folder: Path) -> None:
    ds = record.read(archive_folder / "data" / "dataset.nc")
    rows = metrics.frame(ds)
    chosen = rows[(rows["status"] == "measured") & (rows["variant"] == "tiled")].iloc[0]
    page = visit(f"index.html#case={chosen['case']}")
    text = page.inner_text("dialog")
    for part in ("measured", "predicted", "compute", "memory", "overhead", "Worst error", "Traffic", "footprint read", chosen["onf_hash"]):
        assert part.lower() in text.lower()
    assert page.locator("svg.samples .dot").count() == chosen["valid_samples"]
    assert page.locator("svg.samples .bad").count() == chosen["taken_samples"] - chosen["valid_samples"]


@browsing
@pytest.mark.parametrize(("link", "shows"), [("derivation", "ψ-reduction"), ("ONF", "parallel"), ("source", "#include"), ("validation", "3.3e-16"), ("build", "gcc -O3")])
def test_from_a_case_to_its_evidence(link: str, shows: str, visit: Callable[..., object], archive_folder: Path) -> None:
    ds = record.read(archive_folder / "data" / "dataset.nc")
    rows = metrics.frame(ds)
    chosen = rows[(rows["variant"] == "online_tiled") & (rows["target"] == "c")].iloc[0]
    page = visit(f"index.html#case={chosen['case']}")
    page.click(f"dialog .links a:text-is('{link}')")
    page.wait_for_selector("main section")
    assert shows in page.inner_text("main")
    page.click(".kicker a")
    page.wait_for_selector("#cases tbody tr")
    assert set(texts(page, "#cases tbody td:nth-child(3)")) == {"online_tiled"}


@browsing
def test_formulas_in_every_notation(visit: Callable[..., object]) -> None:
    page = visit("derivations/attention_forward/causal/online_tiled/c/avx512/f64/index.html")
    first = page.locator("#dnf .formula").last
    assert first.locator("math").is_visible() and page.locator("math mi").count() > 100
    for notation, sign in (("moa", "ψ"), ("ascii", "["), ("latex", "\\")):
        page.check(f"input[value={notation}]", force=True)
        assert not first.locator("math").is_visible()
        assert sign in first.inner_text()


@browsing
def test_a_build_without_derivation_says_so(visit: Callable[..., object]) -> None:
    page = visit("derivations/matmul/nn/unwritten/c/avx512/f64/index.html")
    assert "was not derived" in page.inner_text("main")


@browsing
def test_the_reason_of_a_missing_case_leads_to_it(visit: Callable[..., object], archive_folder: Path) -> None:
    page = visit()
    first = page.locator("[data-status]").first
    reason = max(first.inner_text().split("…"), key=len).strip()
    first.click()
    assert page.locator("#cases tbody tr").count() >= 1
    page.locator("#cases tbody tr").first.click()
    assert reason in page.inner_text("dialog")


@browsing
def test_the_switch_between_light_and_dark_redraws_charts(visit: Callable[..., object]) -> None:
    page = visit(color_scheme="light")
    page.locator("#figure-predicted").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-predicted svg.marks path", state="attached")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    page.wait_for_function("[...document.querySelectorAll('#figure-predicted svg text')].some(t => t.getAttribute('fill') === '#e6e9ef')")


@browsing
def test_the_list_of_archives_leads_to_the_archive(visit: Callable[..., object], archive_folder: Path) -> None:
    page = visit("index.html", folder=archive_folder.parent)
    page.click("h2 a")
    page.wait_for_selector("#cases tbody tr")
    assert archive_folder.name in unquote(page.url)


@browsing
def test_five_hundred_cases_stay_quick(visit: Callable[..., object], make: Callable[..., xr.Dataset], tmp_path: Path) -> None:
    ds = make(samples=7)
    parts = [ds.assign_coords(threads=("case", [t] * ds.sizes["case"], ds["threads"].attrs)) for t in (1, 2, 4)]
    record.write(xr.concat(parts, dim="case", data_vars="minimal", coords="minimal", compat="override"), tmp_path / "dataset.nc")
    many = record.read(tmp_path / "dataset.nc")
    write_json(tmp_path / "charts" / "predicted.json", charts.specification(charts.CHARTS[0], many))
    assert many.sizes["case"] >= 500
    site.write_pages(tmp_path, many)
    page = visit(folder=tmp_path)
    work = "(f => { const t = performance.now(); f(); return performance.now() - t; })"
    typed = page.evaluate(f"{work}(() => {{ state.q = 'tiled'; update(); }})")
    opened = page.evaluate(f"{work}(() => open(100))")
    assert typed < 500 and opened < 500  # milliseconds; on an idle core both take about 10
    assert page.evaluate("document.querySelectorAll('*').length") < 6000


def test_archive_pages_name_their_build(archive_folder: Path) -> None:
    for page in archive_folder.glob("derivations/**/index.html"):
        axes = page.relative_to(archive_folder / "derivations").parts[:-1]
        assert len(axes) == len(BUILD_AXES) and all(a in page.read_text() for a in axes)


def test_the_published_figures_are_a_page_of_their_own(tmp_path):
    site.write_published(tmp_path, Path(__file__).resolve().parents[2])
    page = (tmp_path / site.PUBLISHED).read_text()
    assert "2nd_k + 2nd_v" in page and "142.3 MB" in page and "https://" not in page
    assert page.count("<tr>") - 1 == page.count("<b>holds</b>") + page.count("<b>misses</b>")


def test_without_kernels_there_is_no_such_page(tmp_path):
    site.write_published(tmp_path, tmp_path)
    assert not (tmp_path / site.PUBLISHED).exists()
