"""Nsight Compute's CSV is read with its units; its refusals are said; what is asked for has a name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moapipe.errors import LabError
from moapipe.lab import counter
from moapipe.lab.counter import METRICS, parse

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
ROW = '"{id}","2357","python3.11","127.0.0.1","{kernel}(const double *, double *, long)","1","7","(128, 1, 1)","(32, 1, 1)","0","9.0","Command line profiler metrics","{name}","{unit}","{value}"'
SAMPLE = "\n".join([
    'ready 0.12 {"name": "NVIDIA H200"}', "done 0.13", "==PROF== Connected to process 2357 (/usr/bin/python3.11)", '==PROF== Profiling "moa_matmul_1_grid": 0%....100% - 9 passes',
    "done 0.20 2 0.001", "==PROF== Disconnected from process 2357", HEAD,
    ROW.format(id=0, kernel="moa_matmul_1_grid", name="gpu__time_duration.sum", unit="nsecond", value="1,234,567"),
    ROW.format(id=0, kernel="moa_matmul_1_grid", name="dram__bytes_read.sum", unit="Mbyte", value="6.29"),
    ROW.format(id=0, kernel="moa_matmul_1_grid", name="smsp__inst_executed_op_global_red.sum", unit="inst", value="1,073,741,824"),
    ROW.format(id=0, kernel="moa_matmul_1_grid", name="sm__warps_active.avg.pct_of_peak_sustained_active", unit="%", value="43.75"),
    ROW.format(id=0, kernel="moa_matmul_1_grid", name="lts__t_sectors_op_red.sum", unit="sector", value="n/a"),
    ROW.format(id=0, kernel="moa_matmul_1_grid", name="nobody__asked.sum", unit="inst", value="1"),
    ROW.format(id=1, kernel="moa_matmul_2_grid", name="dram__bytes_read.sum", unit="byte", value="128"),
    ROW.format(id=1, kernel="moa_matmul_2_grid", name="launch__registers_per_thread", unit="register/thread", value="62"),
])  # fmt: skip


def test_values_come_with_their_units_by_launch():
    first, second = parse(SAMPLE)
    assert (first.function, second.function) == ("moa_matmul_1_grid", "moa_matmul_2_grid")
    assert first.metrics == {
        "gpu__time_duration.sum": (pytest.approx(1.234567e-3), "s"), "dram__bytes_read.sum": (6.29e6, "B"),
        "smsp__inst_executed_op_global_red.sum": (1_073_741_824.0, "1"), "sm__warps_active.avg.pct_of_peak_sustained_active": (43.75, "%"),
    }
    assert second.metrics == {"dram__bytes_read.sum": (128.0, "B"), "launch__registers_per_thread": (62.0, "1")}


@pytest.mark.parametrize(("text", "hint"), [
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "counters need permission"), ("==ERROR== Failed to find metric x", "Failed to find metric"), ("", "by hand")])
def test_a_refusal_is_said(text, hint):
    with pytest.raises(LabError, match="no table") as found:
        parse(text)
    assert hint in found.value.hint


def test_an_unknown_unit_stays_as_it_is():
    (found,) = parse("\n".join([HEAD, ROW.format(id=0, kernel="f", name="gpu__time_duration.sum", unit="fortnight", value="2")]))
    assert found.metrics["gpu__time_duration.sum"] == (2.0, "fortnight")


def test_clocks_are_left_alone_and_one_call_is_counted():
    entry = SimpleNamespace(point=SimpleNamespace(sizes={"n": 5}), gpu_threads=256)
    none = {"symbol": "moa_x", "inputs": [], "outputs": [], "workspace": {"arrays": []}}
    manifest = {**none, "launches": [{"for": "i", "from": "0", "to": "n", "body": [{"launch": "moa_x_1_grid", "blocks": "(threads + 127) // 128", "block": 128, "buffers": [], "integers": []}]}]}
    words = counter.profiler(manifest, entry)
    assert words[words.index("--clock-control") + 1] == "none" and words[words.index("--launch-count") + 1] == "5"
    assert set(words[words.index("--metrics") + 1].split(",")) == set(METRICS) and len(set(METRICS.values())) == len(METRICS)


def test_a_metric_that_the_device_refuses_is_left_out():
    """Nsight Compute ends with the first name that it does not know; it is asked again without."""
    unknown, asked = {"dram__bytes_read.sum", "launch__registers_per_thread"}, []

    def profile(metrics):
        asked.append(set(metrics))
        refused = next((m for m in metrics if m in unknown), None)
        return f"==ERROR== Failed to find metric {refused}" if refused else SAMPLE

    assert [l.function for l in counter.asked(profile)] == ["moa_matmul_1_grid", "moa_matmul_2_grid"]
    assert len(asked) == 3 and asked[-1] == set(METRICS) - unknown


def test_numbers_are_printed_as_in_english():
    """In other locales points may group digits: 2.508.800 bytes would be two and a half."""
    assert counter._output(("sh", "-c", "echo $LC_ALL"), "") == "C\n"
