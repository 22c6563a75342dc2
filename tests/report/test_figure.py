"""The papers' own measurements: every figure is predicted from a kernel of ours, and the verdict says what is true."""

from pathlib import Path

import pytest

from moapipe.errors import ConfigError
from moapipe.report import figure, published
from moapipe.report.published import Figure

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = published.read()
ROWS = {r["name"]: r for r in figure.rows(PUBLISHED, ROOT)}
MISSES = {"forward, DRAM read"}
"""What our predictions do not reach; each has its reason in the file."""


@pytest.mark.parametrize("name", [f.name for f in PUBLISHED.figures])
def test_every_figure_has_our_prediction_and_a_verdict_that_is_owed(name):
    row = ROWS[name]
    assert 0 <= row["low"] <= row["middle"] <= row["high"] and row["verdict"]
    assert row["held"] == (name not in MISSES)
    assert row["held"] or row["note"]


def test_the_forward_writes_what_was_measured_and_not_what_the_paper_predicted():
    row = ROWS["forward, DRAM written"]
    assert row["middle"] == pytest.approx(142.3e6, rel=0.10) and row["published"] == pytest.approx(69.2e6, rel=0.01)


def test_the_published_counts_of_atomics_are_exact():
    assert [ROWS[f"{x}, atomic updates"]["low"] for x in ("backward", "fused")] == [536_870_912, 1_073_741_824]


def test_the_bounds_hold_the_published_traffic_and_the_middles_its_ratio():
    v3, v4 = (ROWS[f"{x}, DRAM moved"] for x in ("fused with one atomic fold (v3)", "fused without atomics (v4)"))
    assert v3["low"] <= 45.6007e9 <= v3["high"] and v4["low"] <= 89.8333e9 <= v4["high"]
    assert v4["middle"] / v3["middle"] == pytest.approx(1.97, rel=0.05)
    assert v3["published"] < v3["low"] / 500
    assert ROWS["v3, pass that walks rows, DRAM read"]["high"] == pytest.approx(0.27e9, rel=0.05)


def test_the_cold_reads_of_the_published_block_are_within_a_quarter():
    block = [r for name, r in ROWS.items() if name.startswith("block, ")]
    assert len(block) >= 4 and all(r["middle"] == pytest.approx(r["measured"], rel=0.25) for r in block)


def made(**changed) -> Figure:
    base = PUBLISHED.figures[0].model_dump()
    return Figure(**(base | changed))


@pytest.mark.parametrize(("share", "within", "held", "words"), [
    (1.0, 0.0, True, "equal"), (1.25, 0.0, False, "not equal, -20.0%"), (1.0, None, True, "within the bounds"),
    (1.25, None, False, "outside the bounds by -20.0%"), (0.8, None, False, "outside the bounds by +25.0%"),
    (1.05, 0.1, True, "-4.8%, owed 10%"), (1.25, 0.1, False, "-20.0%, owed 10%"),
])  # fmt: skip
def test_the_verdict_follows_the_numbers(share, within, held, words):
    """`share`: what was measured, of what we predict."""
    figures = (made(measured=share * ROWS["forward, DRAM written"]["low"], within=within),)
    (row,) = figure.rows(PUBLISHED.model_copy(update={"figures": figures}), ROOT)
    assert (row["held"], row["verdict"]) == (held, words)


def test_a_ratio_is_that_of_the_middles_and_lies_between_its_bounds():
    one = made(name="a", quantity="moved")
    other = made(name="b", quantity="moved", at={"B": 2, "n": 1024, "d": 64}, over="a")
    row = figure.rows(PUBLISHED.model_copy(update={"figures": (one, other)}), ROOT)[1]
    assert row["unit"] == "" and 0.25 < row["low"] <= row["middle"] <= row["high"] < 0.3


def test_a_launch_is_one_statement_of_the_nest():
    whole, part = (figure.rows(PUBLISHED.model_copy(update={"figures": (made(launch=x),)}), ROOT)[0] for x in ("out", "nothing of that name"))
    assert whole["low"] == ROWS["forward, DRAM written"]["low"] and part["high"] == 0


def test_a_kernel_that_is_not_here_is_left_out(tmp_path):
    (tmp_path / "kernels").mkdir()
    assert figure.rows(PUBLISHED, tmp_path) == []


def test_the_table_says_what_misses():
    text = figure.text(ROWS.values(), PUBLISHED.device.name)
    assert f"{len(ROWS) - len(MISSES)} of {len(ROWS)} hold" in text and all(f"missed: {name}" in text for name in MISSES)


def test_a_ratio_to_an_unknown_figure_is_refused(tmp_path):
    wrong = tmp_path / "published.yaml"
    wrong.write_text(published.FILE.read_text().replace("    quantity: read", "    quantity: read\n    over: nothing", 1))
    with pytest.raises(ConfigError, match="nothing"):
        published.read(wrong)


@pytest.mark.parametrize(("value", "unit", "text"), [
    (142.332928e6, "B", "142.3 MB"), (45.6007e9, "B", "45.6 GB"), (12, "B", "12 B"), (536870912, "updates", "536,870,912"), (1.97, "", "1.970"), (None, "B", "–"),
])  # fmt: skip
def test_quantities_are_written_with_their_unit(value, unit, text):
    assert figure.quantity(value, unit) == text
