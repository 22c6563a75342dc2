"""Two builds whose counters were made up: what accounts for the time between them is found, and what does not is said."""

from __future__ import annotations

import pytest

from moapipe.lab.experiment import machine_file
from moapipe.lab.place import root
from moapipe.report.contrast import QUANTITIES, contrast, contrasts, counted, lines

A100 = machine_file("anvil", root()).device
EVERY = sorted({m for metrics in QUANTITIES.values() for m in metrics})
STALL = "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio"


def build(name, seconds, launches=1, label="n=2048", **changed):
    """A case whose every metric is a thousand in each launch, but for those that are changed (by the beginning of their names)."""
    def metrics():
        values = dict.fromkeys(EVERY, 1000.0)
        for start, value in changed.items():
            values |= {m: value for m in EVERY if m.startswith(start)}
        return {m: (v, "1") for m, v in values.items()} | {"gpu__time_duration.sum": (seconds / launches, "s"), STALL: (changed.get("stall", 1.0), "1")}
    return counted({"variant": name, "target": "cuda", "label": label, "launches": [{"function": "f", "metrics": metrics()} for _ in range(launches)]}, seconds)


def verdicts(found):
    return {f.quantity: f.verdict for f in found.findings}


def test_atomics_that_double_as_the_time_does_account_for_it():
    found = contrast(build("separate", 1.0), build("fused", 2.0, smsp__inst_executed_op_global_red=2000.0, stall=9.0))
    assert (found.slow.name, found.fast.name, found.ratio) == ("fused/cuda", "separate/cuda", 2.0)
    told = verdicts(found)
    assert told.pop("warp instructions of atomics") == "accounts for it" and set(told.values()) == {"does not account for it"}
    assert found.findings[0].quantity == "warp instructions of atomics" and found.findings[0].share == pytest.approx(1.0)
    text = "\n".join(lines([found]))
    assert "takes 2 times as long" in text and "stall: memory queue full: 9 warps an issue against 1" in text


def test_bytes_are_judged_by_the_memorys_rate_and_not_by_their_ratio():
    """A hundred times the bytes, which the memory moves in a thousandth of the gap."""
    slow = build("column", 1.0, dram__bytes=1e8)
    assert verdicts(contrast(slow, build("row", 0.1, dram__bytes=1e6), A100))["DRAM bytes"] == "does not account for it"
    assert verdicts(contrast(slow, build("row", 0.1, dram__bytes=1e6)))["DRAM bytes"] == "accounts for it"
    heavy = build("column", 1.0, dram__bytes=0.7e12)
    assert verdicts(contrast(heavy, build("row", 0.1, dram__bytes=1e9), A100))["DRAM bytes"] == "accounts for it"


def test_what_shrinks_while_the_time_grows_speaks_against_it():
    found = contrast(build("a", 3.0, smsp__inst_executed=100.0), build("b", 1.0))
    assert verdicts(found)["warp instructions"] == "speaks against it" and found.findings[-1].share < 0


def test_a_part_is_called_a_part():
    assert verdicts(contrast(build("a", 8.0, smsp__inst_executed=2000.0), build("b", 1.0)))["warp instructions"] == "part of it"


def test_launches_are_summed_and_a_hole_is_no_sum():
    two = build("a", 1.0, launches=2)
    assert two.sums["warp instructions"] == 2000.0
    hole = counted({"variant": "a", "target": "cuda", "label": "", "launches": [{"function": "f", "metrics": {}}]}, 1.0)
    assert all(v is None for v in hole.sums.values()) and not contrast(hole, build("b", 9.0)).findings


def test_only_builds_at_the_same_sizes_whose_times_differ_are_contrasted():
    cases = [build("a", 1.0), build("b", 1.01), build("c", 2.0), build("d", 9.0, label="n=4096")]
    assert [(c.slow.name[0], c.fast.name[0]) for c in contrasts(cases)] == [("c", "a"), ("c", "b")]
    assert contrast(cases[0], cases[1]) is None
