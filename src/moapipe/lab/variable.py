"""The record's variables: one row each. `lab.record` makes, checks, writes and reads datasets by these tables alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from moapipe.lab import experiment
from moapipe.lab.verdict import VERDICTS
from moapipe.machine import arrangement

SCHEMA = 4                    # raise when a variable changes its meaning
LEVELS = ("L1", "L2", "L3")
MOMENTS = ("before", "after")   # of a launch
NOT_A_PARAMETER = -1          # value of a size coordinate that a kernel lacks

Kind = Literal["text", "integer", "number", "flag"]
Source = Literal["identity", "measured", "predicted", "validated", "judged"]


@dataclass(frozen=True)
class Variable:
    """A row: `dims` of the variable, `kind` of its values, CF `units` and long name, the stage that it comes from."""

    dims: tuple[str, ...]
    kind: Kind
    source: Source
    long_name: str
    units: str = ""
    flags: tuple[tuple[str, int], ...] = ()     # (meaning, value)


@dataclass(frozen=True)
class Status:
    """A row of STATUSES or PLAUSIBILITIES: its CF flag value and one sentence."""

    code: int
    text: str


STATUSES: dict[str, Status] = {
    "measured": Status(0, "At least one sample is valid."),
    "not_run": Status(1, "The stage before it gave nothing, or the run ended before its turn."),
    "refused": Status(2, "The case cannot be run here, by its sizes, its memory or its number of threads."),
    "build_failed": Status(3, "The source did not compile."),
    "gate_failed": Status(4, "The compiled inner loops are not the ones that the derivation promises."),
    "validation_failed": Status(5, "The results are wrong, so nothing was timed."),
    "timed_out": Status(6, "One call took longer than the time box."),
    "all_invalid": Status(7, "Samples were taken and not one is valid; see their verdicts."),
    "crashed": Status(8, "The measuring process ended by itself."),
}

PLAUSIBILITIES: dict[str, Status] = {
    "within": Status(0, "Not slower than the best arrangement by more than the placement of pages can make."),
    "explained": Status(1, "Slower by more than that, and a measurement says why; see `mechanism`."),
    "implausible": Status(2, "Slower by more than that, and no measurement says why."),
}
"""Whether a case's time over that of the best arrangement of its build and sizes is physically possible (report.explain.mark)."""

_CASE = ("case",)
_LAUNCH = ("case", "node", "launch")
_SAMPLE = ("case", "node", "launch", "sample")
_CANARY = ("case", "node", "launch", "moment")
_LEVEL = ("case", "level")


def _text(source: Source, long_name: str) -> Variable:
    return Variable(_CASE, "text", source, long_name)


def _number(dims: tuple[str, ...], source: Source, long_name: str, units: str) -> Variable:
    return Variable(dims, "number", source, long_name, units)


def _flag(dims: tuple[str, ...], long_name: str, codes: dict[str, int], source: Source = "measured") -> Variable:
    return Variable(dims, "flag", source, long_name, "", tuple(codes.items()))


VARIABLES: dict[str, Variable] = {
    "kernel": _text("identity", "kernel"),
    "form": _text("identity", "form of the kernel"),
    "variant": _text("identity", "variant, PyTorch's function, or how a yardstick moves data"),
    "target": _text("identity", "language, torch, or yardstick"),
    "isa": _text("identity", "instruction set that the source was derived for"),
    "dtype": _text("identity", "element type"),
    "machine": _text("identity", "machine"),
    "label": _text("identity", "run axes as text"),
    "threads": Variable(_CASE, "integer", "identity", "number of threads", "1"),
    "cores": Variable(_CASE, "integer", "identity", "CPUs that the threads share", "1"),
    "placement": _text("identity", "index map from threads to CPUs"),
    "memory": _text("identity", "where pages lie"),
    "wait_policy": _text("identity", "how threads wait for each other"),
    "runtime": _text("identity", "OpenMP runtime"),
    "believed_cpus": Variable(_CASE, "integer", "identity", "CPUs that the OpenMP runtime is told of, 0 for the truth", "1"),
    "dnf_hash": _text("identity", "hash of the denotational normal form"),
    "onf_hash": _text("identity", "hash of the operational normal form"),
    "source_hash": _text("identity", "hash of the source text"),
    "prediction_hash": _text("identity", "SHA-256 of the prediction, frozen before measuring"),
    "seconds": _number(_SAMPLE, "measured", "wall time of one call", "s"),
    "calls": _number(_SAMPLE, "measured", "calls that the sample averages over", "1"),
    "verdict": _flag(_SAMPLE, "verdict on the sample", {name: row.code for name, row in VERDICTS.items()}),
    "cpu_seconds": _number(_SAMPLE, "measured", "CPU time of the process during the sample", "s"),
    "involuntary_switches": _number(_SAMPLE, "measured", "involuntary context switches during the sample", "1"),
    "other_cpu_seconds": _number(_SAMPLE, "measured", "CPU time of everybody else, scaled to the sample's length", "s"),
    "wait_seconds": _number(_SAMPLE, "measured", "time that threads were ready to run without a CPU, all together", "s"),
    "voluntary_switches": _number(_SAMPLE, "measured", "voluntary context switches during the sample", "1"),
    "clock_rate": _number(_SAMPLE, "measured", "clock rate after the sample, by a chain of dependent additions", "s-1"),
    "cpus_used": _number(_SAMPLE, "measured", "different CPUs that its threads were on at the end", "1"),
    "throttled_periods": _number(_SAMPLE, "measured", "stops by a quota around the sample", "1"),
    "misplaced_share": _number(_SAMPLE, "measured", "share of pages on another memory node than asked", "1"),
    "host": Variable(("case", "node"), "text", "measured", "name of the host that the node's launches ran on"),
    "canary_region_seconds": _number(_CANARY, "measured", "empty parallel region on all CPUs beside the launch, the median", "s"),
    "canary_stall_seconds": _number(_CANARY, "measured", "the longest of these regions", "s"),
    "canary_bandwidth": _number(_CANARY, "measured", "bandwidth that all CPUs together read with beside the launch", "B s-1"),
    "canary_clock_rate": _number(_CANARY, "measured", "clock rate of the slowest CPU while all run, beside the launch", "s-1"),
    "canary_other_cpus": _number(_CANARY, "measured", "CPUs that others kept busy meanwhile", "1"),
    "status": _flag(_CASE, "what became of the case", {name: row.code for name, row in STATUSES.items()}),
    "reason": _text("measured", "why the case is not measured"),
    "predicted_seconds": _number(_CASE, "predicted", "predicted time of one call", "s"),
    "memory_drift": _number(_LAUNCH, "measured", "time of moving data just before a launch, over the time by calibration", "1"),
    "foreseen_seconds": _number(_LAUNCH, "measured", "predicted time of one call with that memory, frozen before the launch", "s"),
    "predicted_compute_seconds": _number(_CASE, "predicted", "predicted time in the core", "s"),
    "predicted_memory_seconds": _number(_CASE, "predicted", "predicted time of the slowest memory level", "s"),
    "predicted_overhead_seconds": _number(_CASE, "predicted", "predicted time of thread start and barriers", "s"),
    "regions": _number(_CASE, "predicted", "parallel regions of one call", "1"),
    "penalty_ceiling": _number(_CASE, "predicted", "largest factor that the placement of pages alone can make", "1"),
    "flops": _number(_CASE, "predicted", "floating-point operations executed", "1"),
    "useful_flops": _number(_CASE, "predicted", "floating-point operations of the mathematics", "1"),
    "exps": _number(_CASE, "predicted", "exponentials executed", "1"),
    "stores": _text("predicted", "how outputs are stored: plain, stream past the caches, or none"),
    "loaded_bytes": _number(_CASE, "predicted", "bytes loaded by the loops", "B"),
    "stored_bytes": _number(_CASE, "predicted", "bytes stored by the loops", "B"),
    "footprint_read_bytes": _number(_CASE, "predicted", "distinct bytes read", "B"),
    "footprint_written_bytes": _number(_CASE, "predicted", "distinct bytes written", "B"),
    "private_bytes": _number(_CASE, "predicted", "bytes of private scratch", "B"),
    "traffic_bytes": _number(_LEVEL, "predicted", "bytes that pass the level", "B"),
    "lower_bound_bytes": _number(_LEVEL, "predicted", "bytes that must pass the level, whatever the schedule", "B"),
    "peak_flops": _number(_CASE, "predicted", "measured ceiling of fused multiply-adds, two operations each", "s-1"),
    "exp_rate": _number(_CASE, "predicted", "measured ceiling of exponentials", "s-1"),
    "bandwidth": _number(_LEVEL, "predicted", "measured ceiling of what lies beyond the level", "B s-1"),
    "error": _number(_CASE, "validated", "worst validation error", "1"),
    "error_bound": _number(_CASE, "validated", "bound on the validation error", "1"),
    "baseline_error": _number(_CASE, "validated", "error of PyTorch on the same inputs", "1"),
    "plausibility": _flag(_CASE, "whether its time over the best arrangement's can be", {name: row.code for name, row in PLAUSIBILITIES.items()}, "judged"),
    "mechanism": _text("judged", "why it takes longer than the best arrangement, where it does by far"),
}

BUILD_AXES = (*experiment.BUILD_AXES, "machine")
BASELINE, YARDSTICK = "torch", "yardstick"
BESIDE = (BASELINE, YARDSTICK)
"""Targets of participants that are measured beside the builds and are none: PyTorch, and what only moves data."""
RUN_AXES = ("label", *arrangement.AXES)
SHARED = ("useful_flops", "lower_bound_bytes", "peak_flops", "exp_rate")
"""Predicted variables that all participants of a group have in common at a point, PyTorch too, which has no prediction of its own.
A yardstick has its own: it does none of the kernel's work."""
POINT = ("kernel", "form", "dtype", "machine", *RUN_AXES)
KEY = (*BUILD_AXES, *RUN_AXES)                  # no two cases of a dataset share it

ATTRIBUTES: dict[str, str] = {
    "Conventions": "CF version",
    "schema": "version of these tables",
    "protocol": "version of the way of measuring",
    "moapipe_version": "version of the program",
    "experiment": "name of the experiment",
    "host": "host name",
    "topology": "the machine in one line",
    "compilers": "compilers' own version lines, JSON",
    "libraries": "versions of libraries, PyTorch's BLAS among them, JSON",
    "environment": "variables set for the measuring processes, JSON",
    "clock": "clock and its resolution",
    "key": "digest of all that the measurement depends on: builds, prediction, points, rules",
    "created": "time of making, UTC",
}

DTYPES: dict[Kind, type] = {"text": str, "integer": np.int64, "number": np.float64, "flag": np.int8}


def fill(name: str) -> object:
    """The value of a variable where nothing is known: empty text, 0, NaN, `not_taken`, `not_run` or `within`."""
    match VARIABLES[name].kind:
        case "text":
            return ""
        case "integer":
            return 0
        case "number":
            return float("nan")
        case "flag":
            return {"verdict": VERDICTS["not_taken"].code, "status": STATUSES["not_run"].code, "plausibility": PLAUSIBILITIES["within"].code}[name]


def attributes(name: str) -> dict[str, object]:
    """The CF attributes of a variable."""
    row = VARIABLES[name]
    out: dict[str, object] = {"long_name": row.long_name}
    if row.units:
        out["units"] = row.units
    if row.flags:
        out["flag_values"] = np.array([code for _, code in row.flags], dtype=np.int8)
        out["flag_meanings"] = " ".join(meaning for meaning, _ in row.flags)
    return out
