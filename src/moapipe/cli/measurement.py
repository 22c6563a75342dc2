"""The verbs that measure this machine and what runs on it: calibrate, predict, bench."""

from __future__ import annotations

import time

from moapipe.cli import axis
from moapipe.lab import bench as benching
from moapipe.lab import calibrate as calibrating
from moapipe.lab import counter, experiment, forecast, module
from moapipe.lab.experiment import Experiment, Group
from moapipe.lab.lock import alone
from moapipe.lab.place import calibrated, predicted, recorded, root


def calibrate(machine: axis.Machine = "local") -> None:
    """Measure this machine's rates, alone on it: multiply-adds, exponentials, bandwidth of every level, parallel regions, clock."""
    module.enter(experiment.machine_file(machine, root()), machine, ["c"])
    with alone(f"calibrate {machine}", say):
        for line in calibrating.lines(calibrating.calibrate(machine, root())):
            say(line)
    say(f"calibrated {machine}: {calibrated(machine)}")


def predict(
    kernel: axis.Kernel, form: axis.Form, dtype: axis.Dtype, experiment_name: axis.ExperimentName = "config/smoke.yaml", machine: axis.OnMachine = "",
) -> None:
    """Predict every case of a bench group from its loop nests and the calibration, and freeze it: prediction.json."""
    e = experiment.read(experiment_name, root(), machine)
    group = axis.group_of(e, kernel, form, dtype)
    forecast.forecast(e, group)
    say(f"predicted {group.path()}: {predicted(e, group)}")


def bench(
    kernel: axis.Kernel, form: axis.Form, dtype: axis.Dtype, experiment_name: axis.ExperimentName = "config/smoke.yaml", machine: axis.OnMachine = "",
    node: axis.Node = 0,
) -> None:
    """Measure a bench group: every variant and language and PyTorch in turn, each in its own process, alone on the machine.

    A record of the very same libraries, prediction and run axes is kept as it is.
    """
    e = experiment.read(experiment_name, root(), machine)
    group = axis.group_of(e, kernel, form, dtype)
    module.enter(e.machine, e.file.machine, sorted({b.target for b in experiment.builds(e, group)}))
    begin = time.monotonic()
    benching.bench(e, group, say, node)
    if not node:
        counter.take(e, group, say)
    say(f"measured {group.path()}: {recorded(e, group, node)}{remaining(e, group, time.monotonic() - begin)}")


def remaining(e: Experiment, group: Group, seconds: float) -> str:
    """How many groups of the stage are still to be measured, and how long that takes when a case takes as long as in this one."""
    left = [g for g in experiment.groups(e) if _is_due(e, g)]
    if not left:
        return ""
    cases = {g: len(experiment.cases(e, g)) for g in (group, *left)}
    minutes = seconds / cases[group] * sum(cases[g] for g in left) / 60
    return f"; {len(left)} of {len(experiment.groups(e))} groups are left, about {minutes:.1f} min"


def _is_due(e: Experiment, group: Group) -> bool:
    """No record, or one that is older than its prediction."""
    prediction = e.root / predicted(e, group)
    records = [e.root / recorded(e, group, node) for node in range(e.file.nodes)]
    return any(not r.is_file() or (prediction.is_file() and r.stat().st_mtime < prediction.stat().st_mtime) for r in records)


def say(line: str) -> None:
    """A line of progress, at once: people watch it, and it goes through a pipe into the log."""
    print(line, flush=True)
