"""In: an experiment, a stage of the line. Out: threads and Slurm resources of the stage's jobs, and what a list of jobs costs at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from moapipe.lab import experiment
from moapipe.lab.cluster import MEASURING, UNSET, Ask, Cluster, Kind
from moapipe.lab.experiment import Experiment, Group

GROUPED = ("bench", "validate")    # stages whose jobs depend on what their group holds
SLACK = 2.0     # a launch may spend a few times its share of the time box on samples that a neighbour spoilt; interrupted ones go on


def ask(e: Experiment, stage: str, group: Group | None = None) -> Ask | None:
    """What a job of a stage asks of the experiment's cluster; None where there is none. A bench asks for its cases' time boxes."""
    c = e.machine.cluster
    if c is None:
        return None
    kind = _kind(e, c, stage, group)
    r = c.requests[kind]
    box = sum(e.file.time_box_s for case in experiment.cases(e, group) if not case.reason) if group and stage in MEASURING else 0.0
    limit = int(60 * c.partitions[r.partition].hours)
    return Ask(c, kind, min(limit, r.minutes + ceil(SLACK * box / 60)))


def _kind(e: Experiment, c: Cluster, stage: str, group: Group | None) -> Kind:
    """A group with device code is checked and measured where GPUs are."""
    device = group is not None and any(build.target not in experiment.HOST_TARGETS for build, _ in experiment.asked(e, group))
    if device and stage in GROUPED and "measure_gpu" in c.requests:
        return "measure_gpu"
    return "measure" if stage in MEASURING else "prepare"


def threads(e: Experiment, here: Callable[[], int]) -> int:
    """Cores of what measures, for Snakemake where it runs the job itself: all that are `here` (asked late: on a cluster nobody says how many
    that are, and the job's CPUs stand in its resources)."""
    return 1 if e.machine.cluster else here()


def resources(e: Experiment, stage: str, group_of: Any = None) -> dict[str, Any]:
    """A rule's resources: empty without a cluster. With `group_of` (wildcards -> Group) each is a function of the wildcards."""
    if e.machine.cluster is None:
        return {}
    if group_of is None:
        asked = ask(e, stage)
        assert asked is not None
        return dict(asked.resources())

    def later(name: str) -> Any:
        def value(wildcards: Any) -> str | int:
            asked = ask(e, stage, group_of(wildcards))
            assert asked is not None
            return asked.resources().get(name, "")
        return value

    names = {name for kind in e.machine.cluster.requests for name in Ask(e.machine.cluster, kind, 1).resources()}
    return {name: later(name) for name in sorted(names)}


# ------------------------------------------------------------------ what it costs

STAGES = ("derive", "build", "validate", "emulate", "calibrate", "predict", "bench", "collect", "chart", "evidence", "archive")


@dataclass
class Sum:
    """Jobs of one stage and what they take at most."""

    jobs: int = 0
    node_hours: float = 0.0
    units: float = 0.0
    where: set[str] = field(default_factory=set)


def preview(e: Experiment, jobs: Iterable[tuple[str, Group | None]]) -> str:
    """Jobs, node-hours and service units by stage, and the accounts that pay, for `jobs` that are to run; empty when there are none, or no
    cluster."""
    c = e.machine.cluster
    if c is None:
        return ""
    rows: dict[str, Sum] = {}
    accounts: dict[str, str] = {}
    for stage, group in sorted(jobs, key=lambda job: STAGES.index(job[0])):
        asked = ask(e, stage, group)
        assert asked is not None
        row = rows.setdefault(stage, Sum())
        row.jobs, row.node_hours, row.units = row.jobs + 1, row.node_hours + asked.node_hours, row.units + asked.units
        row.where.add(asked.request.partition)
        accounts[c.accounts[asked.request.account]] = asked.account
    if not rows:
        return ""
    return "\n".join((f"\nOn {e.file.machine}, at most (jobs end earlier, time limits are set so that they may not):", *_table(rows), *_paid(c, accounts)))


def _table(rows: Mapping[str, Sum]) -> Iterable[str]:
    yield f"{'stage':<12}{'jobs':>6}{'node-hours':>12}{'service units':>15}  partition"
    total = Sum(*(sum(getattr(r, k) for r in rows.values()) for k in ("jobs", "node_hours", "units")))
    for name, r in (*rows.items(), ("all", total)):
        yield f"{name:<12}{r.jobs:>6}{r.node_hours:>12.2f}{r.units:>15.1f}  {', '.join(sorted(r.where))}".rstrip()


def _paid(c: Cluster, accounts: Mapping[str, str]) -> Iterable[str]:
    for variable, name in sorted(accounts.items()):
        yield f"account not set: export {variable}=… first (`{c.balance}` lists yours)" if name == UNSET else f"account {name} ({variable})"


def obstacle(e: Experiment, stages: Iterable[tuple[str, Group | None]], environment: Mapping[str, str]) -> str:
    """Why these jobs must not be submitted from here, with what to do; empty when they may."""
    c = e.machine.cluster
    if c is None:
        return ""
    if name := c.elsewhere(environment):
        return f"this is not {e.file.machine}: {name}\n  hint: take the profile of this cluster; `moapipe doctor` names the machine"
    unset = {c.accounts[a.request.account] for a in (ask(e, s, g) for s, g in stages) if a is not None and a.account == UNSET}
    if unset:
        return f"account not set, so nothing is submitted\n  hint: export {' '.join(f'{v}=…' for v in sorted(unset))} (`{c.balance}` lists yours) and start again"
    return ""
