"""In: a bench group on a machine with Nsight Compute. Out: counters.json: what its hardware counters say of one call of each build, with
units, beside what was predicted; and the parser of Nsight Compute's CSV.

Counters are taken in a run of their own, after the times: a profiler replays kernels and slows them down. Clocks stay as they are
(`--clock-control none`; the default locks them to base, which is not what was timed).
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moapipe.errors import LabError
from moapipe.lab import bench
from moapipe.lab.command import command
from moapipe.lab.experiment import BUILD_AXES, Build, Experiment, Group
from moapipe.lab.file import read_json, write_json
from moapipe.lab.launch import launches
from moapipe.lab.place import derived, recorded
from moapipe.lab.plan import Entry, Plan, plan
from moapipe.loops import grid
from moapipe.loops.cost import count
from moapipe.loops.onf_json import from_json
from moapipe.machine import topology
from moapipe.targets.isa import element_bytes

SCHEMA = 1
PROGRAM = "ncu"
LIMIT_S = 300.0
METRICS: Mapping[str, str] = {
    "gpu__time_duration.sum": "time",
    "dram__bytes_read.sum": "DRAM bytes read", "dram__bytes_write.sum": "DRAM bytes written",
    "lts__t_sectors_op_read.sum": "L2 sectors read", "lts__t_sectors_op_write.sum": "L2 sectors written", "lts__t_sectors_op_red.sum": "L2 sectors of atomics",
    "lts__t_sectors_op_atom.sum": "L2 sectors of atomics that return a value",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors loaded", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "sectors stored",
    "smsp__inst_executed_op_global_red.sum": "warp instructions of atomics", "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum": "sectors of atomics",
    "smsp__inst_executed_op_local_ld.sum": "local loads", "smsp__inst_executed_op_local_st.sum": "local stores",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank conflicts", "smsp__inst_executed.sum": "warp instructions",
    "sm__sass_thread_inst_executed_op_dfma_pred_on.sum": "f64 multiply-adds", "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": "f32 multiply-adds",
    "sm__sass_thread_inst_executed_op_dadd_pred_on.sum": "f64 additions", "sm__sass_thread_inst_executed_op_dmul_pred_on.sum": "f64 multiplications",
    "sm__sass_thread_inst_executed_op_fadd_pred_on.sum": "f32 additions", "sm__sass_thread_inst_executed_op_fmul_pred_on.sum": "f32 multiplications",
    "smsp__inst_executed_op_generic_atom_dot_cas.sum": "warp instructions of compare-and-swap", "lts__t_sector_hit_rate.pct": "L2 hits",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": "sectors a load",
    "smsp__average_warp_latency_per_inst_issued.ratio": "warp cycles an instruction",
    **{f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio": f"stall: {words}" for reason, words in {
        "long_scoreboard": "waiting for memory", "lg_throttle": "memory queue full", "short_scoreboard": "waiting for shared memory", "mio_throttle": "shared memory's queue full",
        "barrier": "barrier", "math_pipe_throttle": "arithmetic busy", "wait": "fixed latency", "not_selected": "another warp was chosen"}.items()},
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy", "launch__registers_per_thread": "registers",
}
"""What is asked for, and what it is called here. Names as in Nsight Compute 2020.1 to 2025.3; a device that lacks one says n/a, or refuses
it by name: then it is asked without."""
UNITS: Mapping[str, tuple[str, float]] = {
    "byte": ("B", 1.0), "Kbyte": ("B", 1e3), "Mbyte": ("B", 1e6), "Gbyte": ("B", 1e9), "Tbyte": ("B", 1e12),
    "nsecond": ("s", 1e-9), "usecond": ("s", 1e-6), "msecond": ("s", 1e-3), "second": ("s", 1.0), "ns": ("s", 1e-9), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0),
    "%": ("%", 1.0), "inst": ("1", 1.0), "sector": ("1", 1.0), "": ("1", 1.0), "register/thread": ("1", 1.0), "warp": ("1", 1.0), "request": ("1", 1.0),
}
"""Units as Nsight Compute writes them -> ours and the factor; one that is not listed stays as it is."""


@dataclass(frozen=True)
class Launched:
    """The counters of one launch: {metric: (value, unit)}; what the device does not have is left out."""

    function: str
    metrics: Mapping[str, tuple[float, str]]


def parse(text: str) -> tuple[Launched, ...]:
    """The launches of `ncu --csv --page details`, in order. LabError when there is no table."""
    lines = text.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise LabError("Nsight Compute prints no table", where=PROGRAM, hint=_complaint(lines))
    found: dict[str, tuple[str, dict[str, tuple[float, str]]]] = {}
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        _, metrics = found.setdefault(row["ID"], (row["Kernel Name"].partition("(")[0], {}))
        if row["Metric Name"] in METRICS and (value := _number(row["Metric Value"])) is not None:
            unit, factor = UNITS.get(row["Metric Unit"], (row["Metric Unit"], 1.0))
            metrics[row["Metric Name"]] = (value * factor, unit)
    return tuple(Launched(function, metrics) for function, metrics in found.values())


def _number(text: str) -> float | None:
    """`1,073,741,824` and `43.75`; None for n/a."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _complaint(lines: Sequence[str]) -> str:
    said = next((line for line in lines if line.startswith("==ERROR==")), "")
    if "ERR_NVGPUCTRPERM" in said:
        return "counters need permission here: NVreg_RestrictProfilingToAdminUsers=0, or a site's own way (Slurm: --constraint=perf)"
    return said or "run it by hand to see what it says"


# ------------------------------------------------------------------ taking them


def take(e: Experiment, group: Group, say: Callable[[str], None] = print) -> Path | None:
    """Counters of every build of the group that a GPU measures, written beside its record; None where there is no Nsight Compute or nothing
    to count. What goes wrong with one build is its `reason`."""
    if shutil.which(PROGRAM) is None or e.machine.device is None:
        return None
    planned = plan(e, group, topology.probe())
    due = [x for x in planned.entries if x.gpu_threads and not x.status]
    if not due:
        return None
    say(f"{group.path()}: counters of {len(due)} cases")
    path = (e.root / recorded(e, group)).with_name("counters.json")
    write_json(path, {"schema": SCHEMA, "group": group.path(), "metrics": dict(METRICS), "cases": list(_cases(e, planned, due))})
    return path


def _cases(e: Experiment, planned: Plan, due: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    for x in due:
        head = {**{a: x.values[a] for a in BUILD_AXES}, "label": x.point.label, "predicted": _predicted(e, x)}
        try:
            yield {**head, "reason": "", "launches": [asdict(l) for l in _profiled(e, planned, x)]}
        except (LabError, subprocess.TimeoutExpired) as error:
            yield {**head, "reason": str(error), "launches": []}


def _profiled(e: Experiment, planned: Plan, x: Entry) -> tuple[Launched, ...]:
    """One call under Nsight Compute: the measuring process, told to warm up twice; the first call's launches are counted."""
    assert x.library is not None and planned.manifest is not None
    with tempfile.TemporaryDirectory(prefix="moapipe-") as folder:
        bench.write_inputs(e, planned.group, x.point, planned.manifest, Path(folder))
        script = bench.preparation(x, planned.manifest, Path(folder)) + "\nwarm 0\n"
        words = command(x, e, planned.group)
        return asked(lambda metrics: _output((*profiler(x.library.manifest, x, metrics), *words), script))


def asked(profile: Callable[[Sequence[str]], str]) -> tuple[Launched, ...]:
    """What `profile` prints for metrics, without those that it refuses by name. LabError when it prints no table for another reason."""
    metrics = tuple(METRICS)
    while True:
        text = profile(metrics)
        refused = {m for line in text.splitlines() if line.startswith("==ERROR==") for m in metrics if re.search(rf"(?<![\w.]){re.escape(m)}(?![\w.])", line)}
        if not refused:
            return parse(text)
        metrics = tuple(m for m in metrics if m not in refused)


def _output(words: Sequence[str], script: str) -> str:
    """Numbers are written as in the locale C: elsewhere points may group digits."""
    return subprocess.run(words, input=script, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False, timeout=LIMIT_S).stdout


def profiler(manifest: Mapping[str, Any], x: Entry, metrics: Sequence[str] = tuple(METRICS)) -> tuple[str, ...]:
    """How Nsight Compute is called for the launches of one call."""
    once = len(launches(manifest, x.point.sizes, x.gpu_threads))
    return (PROGRAM, "--csv", "--page", "details", "--print-units", "base", "--clock-control", "none", "--target-processes", "all",
            "--kernel-name", "regex:^moa_", "--launch-count", str(once), "--metrics", ",".join(metrics))


def _predicted(e: Experiment, x: Entry) -> dict[str, Any]:
    """What was counted of the loop nest: the same names as `--stage cost`."""
    b = Build(*(x.values[a] for a in BUILD_AXES))
    nest = from_json(read_json(e.root / derived(b) / "cost.json")["onf"])
    return grid.account(nest, count(nest, x.point.sizes, element_bytes(b.dtype)), x.gpu_threads)
