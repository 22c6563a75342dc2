"""Two builds whose counters were made up, as data and as Nsight Compute prints them: what accounts for the time between them is found,
and what does not is said."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from moapipe.lab.counter import parse
from moapipe.lab.experiment import machine_file
from moapipe.lab.place import root
from moapipe.report.contrast import INSTRUCTIONS, LATENCY, QUANTITIES, contrast, contrasts, counted, lines

A100 = machine_file("anvil", root()).device
EVERY = sorted({m for metrics in QUANTITIES.values() for m in metrics})
STALL = "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio"
NSIGHT = Path(__file__).parent / "nsight"


def build(name, seconds, launches=1, label="n=2048", **changed):
    """A case whose every metric is ten million in each launch, but for those that are changed (by the beginning of their names); its warps
    wait for `stall` cycles an instruction where the memory's queue is full, and for one for other reasons."""
    def metrics():
        values = dict.fromkeys(EVERY, 1e7)
        for start, value in changed.items():
            values |= {m: value for m in EVERY if m.startswith(start)}
        return {m: (v, "1") for m, v in values.items()} | {STALL: (changed.get("stall", 1.0), "1"), LATENCY: (changed.get("stall", 1.0) + 1.0, "1")}
    return counted({"variant": name, "target": "cuda", "label": label, "launches": [{"function": "f", "metrics": metrics()} for _ in range(launches)]}, seconds)


def verdicts(found):
    return {f.quantity: f.verdict for f in found.findings}


def test_atomics_that_double_as_the_time_does_account_for_it():
    found = contrast(build("separate", 1.0), build("fused", 2.0, smsp__inst_executed_op_global_red=2e7, stall=9.0))
    assert (found.slow.name, found.fast.name, found.ratio) == ("fused/cuda", "separate/cuda", 2.0)
    told = verdicts(found)
    assert told.pop("warp instructions of atomics") == told.pop("stall: memory queue full") == "accounts for it" and set(told.values()) == {"does not account for it"}
    assert [f.share for f in found.findings[:2]] == [pytest.approx(1.0)] * 2
    text = "\n".join(lines([found]))
    assert "takes 2 times as long" in text and "stall: memory queue full: 90,000,000 against 10,000,000 warp cycles, accounts for it" in text


def test_bytes_are_judged_by_the_memorys_rate_and_not_by_their_ratio():
    """A hundred times the bytes, which the memory moves in a thousandth of the gap."""
    slow = build("column", 1.0, dram__bytes=1e8)
    assert verdicts(contrast(slow, build("row", 0.1, dram__bytes=1e6), A100))["DRAM bytes"] == "does not account for it"
    assert verdicts(contrast(slow, build("row", 0.1, dram__bytes=1e6)))["DRAM bytes"] == "accounts for it"
    heavy = build("column", 1.0, dram__bytes=0.7e12)
    assert verdicts(contrast(heavy, build("row", 0.1, dram__bytes=1e9), A100))["DRAM bytes"] == "accounts for it"


def test_what_shrinks_while_the_time_grows_speaks_against_it():
    found = contrast(build("a", 3.0, smsp__inst_executed=1e6), build("b", 1.0))
    assert verdicts(found)["warp instructions"] == "speaks against it" and found.findings[-1].share < 0


def test_a_part_is_called_a_part():
    assert verdicts(contrast(build("a", 8.0, smsp__inst_executed=2e7), build("b", 1.0)))["warp instructions"] == "part of it"


def test_launches_are_summed_and_a_hole_is_no_sum():
    two = build("a", 1.0, launches=2)
    assert two.sums["warp instructions"] == 2e7 and two.cycles == 4e7
    hole = counted({"variant": "a", "target": "cuda", "label": "", "launches": [{"function": "f", "metrics": {}}]}, 1.0)
    assert all(v is None for v in (*hole.sums.values(), *hole.stalls.values())) and not contrast(hole, build("b", 9.0)).findings
    assert "not counted for both: DRAM bytes" in "\n".join(lines([contrast(hole, build("b", 9.0))]))


def test_only_builds_at_the_same_sizes_whose_times_differ_are_contrasted():
    cases = [build("a", 1.0), build("b", 1.01), build("c", 2.0), build("d", 9.0, label="n=4096")]
    assert [(c.slow.name[0], c.fast.name[0]) for c in contrasts(cases)] == [("c", "a"), ("c", "b")]
    assert contrast(cases[0], cases[1]) is None


def test_a_handful_of_anything_accounts_for_nothing():
    """Forty spills where there were none: an endless ratio, and even one after the other they take no time."""
    found = verdicts(contrast(build("a", 2.0, smsp__inst_executed_op_local=40.0), build("b", 1.0, smsp__inst_executed_op_local=0.0)))
    assert found["local memory instructions"] == "does not account for it"


def test_waiting_accounts_for_nothing_where_warps_do_not_wait_more():
    found = contrast(build("a", 2.0, stall=1.0), build("b", 1.0, stall=1.0))
    assert not [f for f in found.findings if f.quantity.startswith("stall")] and "nothing that was counted accounts for it" in "\n".join(lines([found]))


def test_two_languages_of_one_loop_nest_are_said_to_be_that():
    """As in the published comparison of C and Fortran, but of one loop nest: here one of the compilers makes more instructions."""
    cases = [counted({"variant": "online", "target": t, "label": "n=2048", "launches": [{"function": "f", "metrics": {m: (v, "1") for m in EVERY}}]}, s)
             for t, v, s in (("c_omp_target", 2e7, 2.0), ("fortran_omp_target", 1e7, 1.0))]
    (found,) = contrasts(cases)
    assert "one loop nest in two languages" in next(lines([found])) and verdicts(found)["warp instructions"] == "accounts for it"


# ------------------------------------------------------------------ as Nsight Compute prints them


def recorded(name: str):
    """A recording as lab.counter makes a case of it; seconds are those without the profiler, here the same."""
    launches = parse((NSIGHT / f"{name}.csv").read_text())
    case = {"variant": name, "target": "cuda", "label": "B=2 n=2048 d=64", "launches": [asdict(l) for l in launches]}
    return counted(case, sum(l.metrics["gpu__time_duration.sum"][0] for l in launches))


def test_the_fused_program_is_slower_for_its_atomics():
    """The published figures: twice the atomics, 610 against 310 ms; bytes and instructions do not account for it, spills neither."""
    (found,) = contrasts([recorded("separate"), recorded("fused")], A100)
    assert (found.slow.name, round(found.ratio, 3)) == ("fused/cuda", round(612 / 310, 3))
    assert found.slow.sums["warp instructions of atomics"] == 1_073_741_824 and found.fast.sums["warp instructions of atomics"] == 536_870_912
    assert found.fast.sums["DRAM bytes"] == 6_291_456 + 2_097_152 + 9_437_184 + 6_291_456
    told = verdicts(found)
    assert {q for q, v in told.items() if v == "accounts for it"} == {"warp instructions of atomics", "sectors of atomics", "stall: memory queue full"}
    assert told["DRAM bytes"] == told["local memory instructions"] == told["warp instructions"] == told["stall: waiting for memory"] == "does not account for it"


def test_a_recording_has_its_units_and_knows_what_the_device_does_not_count():
    first, second = parse((NSIGHT / "separate.csv").read_text())
    assert first.metrics["gpu__time_duration.sum"] == (pytest.approx(0.042), "s") and second.metrics["lts__t_sector_hit_rate.pct"] == (97.31, "%")
    assert "sm__sass_thread_inst_executed_op_ffma_pred_on.sum" not in first.metrics and first.metrics[INSTRUCTIONS] == (9e8, "1")
