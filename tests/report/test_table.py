"""The table of a run: what stands in it, that it never cuts a number, and that it explains what is missing."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import xarray as xr
from rich.console import Console

from moapipe.errors import RecordError
from moapipe.report import metrics, table


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.2345, "1.23 s"), (0.9999, "1.00 s"), (0.012345, "12.3 ms"), (9.999e-4, "1.00 ms"), (456e-6, "456 µs"), (7e-9, "7.00 ns"), (1234.0, "1230 s"), (math.nan, "–")],
)
def test_seconds_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert table.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.99951, "1.00"), (12.34, "12.3"), (0.01234, "0.0123"), (123456.0, "123000"), (math.inf, "–")])
def test_significant_digits(value: float, text: str) -> None:
    assert table.significant(value) == text


def test_every_column_and_every_case_stands_in_the_text(dataset: xr.Dataset) -> None:
    found = table.text(dataset)
    for name in ("kernel", "form", "variant", "target", "dtype", "n", "predicted", "measured", "ratio", "against PyTorch", "verdict"):
        assert re.search(rf"\b{name}\b", found.splitlines()[2])
    assert len(re.findall(r"valid *$|failed *$|run *$|refused *$|crashed *$|out *$|invalid *$", found, re.M)) >= dataset.sizes["case"]
    assert "…" not in found


@pytest.mark.parametrize("width", [72, 80, 100, 149, 150, 200])
def test_no_number_is_cut_at_any_width(width: int, dataset: xr.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    rows = metrics.frame(dataset)
    console = Console(width=width, no_color=True)
    for part in table.tables(rows, width):
        console.print(part)
    lines = capsys.readouterr().out
    assert max(map(len, lines.splitlines())) <= width
    for value in rows["median_seconds"].dropna():
        assert table.seconds(value) in lines


def test_every_missing_case_has_its_reason_below_the_table(dataset: xr.Dataset) -> None:
    found = table.text(dataset).split("Not measured:")[1]
    for explanation in metrics.explanation(dataset):
        assert explanation in found


def test_accuracy_names_the_worst_prediction(dataset: xr.Dataset) -> None:
    rows = metrics.frame(dataset)
    rows.loc[rows.index[rows["predicted_over_measured"].notna()][3], "predicted_over_measured"] = 0.2
    assert "the worst by ×5.00" in table.accuracy(rows)


def test_accuracy_of_nothing_is_silence(dataset: xr.Dataset) -> None:
    assert table.accuracy(metrics.frame(dataset).query("target == 'torch'")) == ""


def test_written_text_is_what_is_printed(dataset: xr.Dataset, dataset_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_table(dataset_path, tmp_path / "table.txt")
    table.print_table(dataset_path)
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert (tmp_path / "table.txt").read_text().rstrip("\n") == printed.rstrip("\n")


def test_a_damaged_dataset_is_one_clear_error(tmp_path: Path, dataset_path: Path) -> None:
    cut = tmp_path / "dataset.nc"
    cut.write_bytes(dataset_path.read_bytes()[:5000])
    with pytest.raises(RecordError, match="cut short"):
        table.print_table(cut)


def test_cases_that_fail_alike_are_told_in_one_line(dataset: xr.Dataset) -> None:
    rows = metrics.frame(dataset).head(4).assign(explanation=["all invalid: all 60 samples", "all invalid: all 77 samples", "", "refused: too large"])
    lines = table.missing(rows)
    assert len(lines) == 2
    assert lines[0].startswith("2 × all invalid: all … samples (") and lines[1].startswith("1 × refused: too large (")
