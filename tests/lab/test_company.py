"""Threads that share a core, a process that has one CPU: what bench does for more threads than there is room for."""

import functools
import os
import platform
import subprocess
import sys
from itertools import count

import pytest
from tests.lab.test_bench import GROUP, RUN, Repository, outcomes, went_through

from moapipe.lab import bench as benching
from moapipe.lab import experiment, place, record
from moapipe.lab.lock import alone
from moapipe.lab.record import Canary
from moapipe.lab.sampling import HARD, TURN
from moapipe.lab.variable import STATUSES
from moapipe.report.explain import comparisons, explained
from moapipe.report.strain import strained
from moapipe.report.table import text

SENT = (Canary(1e-6 * k, 2e-6, 1e9, 3e9, 0.0) for k in count(1))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(benching, "alone", functools.partial(alone, place=tmp_path / "lock", limit_s=60))
    monkeypatch.setattr(benching, "SLACK_S", 3.0)
    monkeypatch.setattr(benching.canary, "send", lambda *_: (next(SENT), 0.25))
    return Repository(tmp_path / "repository")


def test_on_one_cpu_every_point_of_more_threads_has_its_reason_and_the_table_still_stands(repository):
    """As under `taskset -c 0`: what can be measured is, what cannot says why, and the report is made."""
    repository.build("good")
    repository.experiment(variants=["good"], threads=(1, 2, 4))
    one = min(os.sched_getaffinity(0))
    words = ["taskset", "-c", str(one), sys.executable, "-c", RUN, str(repository.root), str(repository.root / "lock")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    data = record.read(repository.root / place.recorded(experiment.read("small", repository.root), GROUP))
    found = outcomes(data)
    assert went_through(found.pop(("good", "n=40", 1))[0])
    assert found == {("good", "n=40", t): ("refused", f"{t} threads, and 1 CPU may be used here") for t in (2, 4)}
    assert "threads, and" in text(record.collect([data]))


def test_many_threads_on_a_core_are_told_as_threads_per_core_within_the_time_box(repository):
    """A machine of few cores that is asked for 64 threads on one: no case of 64 cores, and no more samples than there is time for."""
    repository.build("good")
    e = repository.experiment(variants=["good"], box=0.6, more="cores: [1]\nthreads_per_core: [64]")
    data = benching.bench(e, GROUP, lambda line: None)
    assert (data["threads"].values.tolist(), data["cores"].values.tolist()) == ([64], [1])
    seconds = data["seconds"] * data["calls"]
    assert seconds.notnull().any() or outcomes(data)["good", "n=40", 64][0] == "timed_out"
    assert all(s <= HARD * 0.2 + TURN * seconds.max().item() for s in seconds.sum("sample").values.ravel())
    assert set(strained(record.collect([data]))["threads_per_core"]) == {64.0}


def test_eight_threads_that_spin_on_one_core_collapse_and_are_explained(repository):
    """The fault of the 535-fold penalty, planted: the runtime believes in 128 CPUs, the threads have one."""
    repository.build("good")
    more = "cores: [1]\nthreads_per_core: [1, 8]\nwait_policies: [unset]\nbelieved_cpus: [0, 128]"
    data = benching.bench(repository.experiment(variants=["good"], box=2.4, more=more), GROUP, lambda line: None)
    data["regions"].values[:] = 1
    found = {(c.case.arrangement.threads, c.case.arrangement.believed_cpus): c for c in comparisons(data)}
    collapsed = (data["threads"] == 8) & (data["believed_cpus"] == 128)
    if data["status"].values[collapsed.values].tolist() == [STATUSES["timed_out"].code]:
        return      # a busy machine makes slices longer still: one call of some microseconds had no room in 0.8 s
    assert found[8, 128].penalty > 30 and found[8, 128].case.seconds > 10 * found[8, 0].case.seconds
    assert explained(found[8, 128]).mechanism == "spinning_at_barriers"


# ------------------------------------------------------------------ canaries, and nodes


def test_a_canary_stands_before_and_after_every_launch(repository):
    repository.build("good")
    data = benching.bench(repository.experiment(variants=["good"], threads=(1,), n=(40, 50)), GROUP, lambda line: None)
    regions = data["canary_region_seconds"]
    assert regions.dims == ("case", "node", "launch", "moment") and regions.sizes["launch"] == 3
    assert regions.notnull().all() and (regions.values[0] == regions.values[1]).all()
    assert regions.values[0, 0, :2, 1].tolist() == regions.values[0, 0, 1:, 0].tolist()
    assert len(set(regions.values[0].ravel().tolist())) == 4


def test_another_node_has_a_record_of_its_own(repository, monkeypatch):
    repository.build("good")
    e = repository.experiment(variants=["good"], more="nodes: 2")
    records = [benching.bench(e, GROUP, lambda line: None, 0)]
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    records.append(benching.bench(e, GROUP, lambda line: None, 1))
    assert place.recorded(e, GROUP, 1).parent.name == "node1" and record.read(repository.root / place.recorded(e, GROUP, 1)).identical(records[1])
    both = record.join(records)
    assert (both.sizes["node"], both.sizes["launch"]) == (2, 3)
    assert both["host"].values[0, 1] == "elsewhere"
