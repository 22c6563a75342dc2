"""Bench, end to end on a small kernel written by hand: the record, its statuses, what is never timed, and every way to be interrupted."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from moapipe.errors import RecordError
from moapipe.lab import bench as benching
from moapipe.lab import experiment, place, record
from moapipe.lab.experiment import Build, Group
from moapipe.lab.lock import alone
from moapipe.lab.record import Canary
from moapipe.lab.variable import STATUSES
from moapipe.lab.verdict import VERDICTS
from moapipe.machine.arrangement import Arrangement

KERNEL = '''"""y = s·x."""
SIZES = ("n",)
PARAMETERS = {"n": ("n",)}
FORMS = {"plain": {}}


def definitions(form): ...
def inputs(rng, sizes, form): return {"x": rng.standard_normal(sizes["n"]), "s": 2.0}
def reference(xp, x, form): return {"y": x["s"] * x["x"]}
def baseline(torch, x, form): return "mul", lambda: {"y": torch.mul(x["x"], float(x["s"]))}
def error_bound(eps, x, out, form): return {"y": eps}
def useful_flops(sizes, form): return sizes["n"]
def lower_bound(sizes, form, capacity): return 2 * sizes["n"]
'''
SOURCE = """#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
void moa_twice(const double *x, const double *s, double *y, double *work, int64_t n, int64_t threads)
{
    FAULT
#pragma omp parallel for num_threads((int)threads)
    for (int64_t i = 0; i < n; ++i) { work[i % 8] = 0; y[i] = s[0] * x[i]; }
}
"""
FAULTS = {"good": "", "bad": "", "crash": "if (n > 50) abort();", "hang": "if (n > 50) for (;;) { struct timespec t = {1, 0}; nanosleep(&t, 0); }",
          "lazy": "struct timespec t = {0, 30000000}; nanosleep(&t, 0);", "slow": "struct timespec t = {0, 100000000}; nanosleep(&t, 0);",
          "killed": "if (n > 50) raise(SIGKILL);"}
VARIANTS = "\n".join(f"{name}: {{about: {name}, targets: [c]}}" for name in FAULTS)
GROUP = Group("twice", "plain", "f64")


def settings(variants, n=(40,), threads=(1,), baseline="false", box=0.6, yardsticks="[]", more=""):
    return (f"{more}\nisa: avx2\nthreads: {list(threads)}\nlaunches: 3\nsamples: 20\ntime_box_s: {box}\nbaseline: {baseline}\n"
            f"kernels: {{twice: {{targets: [c], dtypes: [f64], variants: {list(variants)}, yardsticks: {yardsticks}, at: [{{n: {list(n)}}}]}}}}\n")


class Repository:
    """A repository whose stages before bench were done by hand."""

    def __init__(self, root):
        self.root = root
        for folder in ("kernels", "config/machines"):
            (root / folder).mkdir(parents=True)
        (root / "kernels/twice.py").write_text(KERNEL)
        (root / "kernels/twice.yaml").write_text(VARIANTS)
        (root / "config/machines/local.yaml").write_text("compilers: {c: {command: gcc}}\n")

    def build(self, variant, passed=True):
        """Derive, build and validate by hand."""
        b = Build("twice", "plain", variant, "c", "avx2", "f64")
        source, library = self.root / place.derived(b) / "kernel.c", self.root / place.built(b, "local") / "kernel.so"
        for path in (source, library, self.root / place.validated(b, "local")):
            path.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(SOURCE.replace("FAULT", FAULTS[variant]))
        subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        manifest = {"symbol": "moa_twice", "dtype": "f64", "sizes": ["n"], "source": "kernel.c", "dnf_hash": "d" * 16, "onf_hash": "e" * 16,
                    "inputs": [{"name": "x", "shape": ["n"]}, {"name": "s", "shape": []}], "outputs": [{"name": "y", "shape": ["n"]}],
                    "workspace": {"elements": "8", "arrays": []}}
        digests = {"source_sha256": digest(source), "library_sha256": digest(library)}
        (source.parent / "manifest.json").write_text(json.dumps(manifest))
        (library.parent / "build.json").write_text(json.dumps({
            "library": str(library.relative_to(self.root)), "compiler": {"version": "gcc 0"}, **digests}))
        (self.root / place.validated(b, "local")).write_text(json.dumps({
            "status": "validated" if passed else "validation_failed", "passed": passed, "reason": "" if passed else "y is wrong", "baseline": "mul",
            **digests}))
        return b

    def experiment(self, **changes):
        (self.root / "config/small.yaml").write_text(settings(**changes))
        e = experiment.read("small", self.root)
        frozen = self.root / place.predicted(e, GROUP)
        frozen.parent.mkdir(parents=True, exist_ok=True)
        frozen.write_text(json.dumps({"prediction_hash": "f" * 64, "cases": []}))
        return e


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(benching, "alone", functools.partial(alone, place=tmp_path / "lock", limit_s=60))
    monkeypatch.setattr(benching, "SLACK_S", 3.0)
    monkeypatch.setattr(benching.canary, "send", lambda *_: (Canary(), 0.0))
    return Repository(tmp_path / "repository")


def outcomes(data):
    names = {row.code: name for name, row in STATUSES.items()}
    return {(str(data["variant"].values[i]), str(data["label"].values[i]), int(data["threads"].values[i])): (names[int(data["status"].values[i])], str(data["reason"].values[i]))
            for i in range(data.sizes["case"])}


def went_through(status):
    """On a noisy machine every sample may be invalid; both are a measurement that went through."""
    return status in ("measured", "all_invalid")


def test_a_record_holds_raw_samples_of_all_participants_with_verdicts(repository):
    repository.build("good")
    data = benching.bench(repository.experiment(variants=["good"], n=(40, 1000), baseline="true"), GROUP, lambda line: None)
    assert sorted(outcomes(data)) == [("good", "n=1000", 1), ("good", "n=40", 1), ("mul", "n=1000", 1), ("mul", "n=40", 1)]
    assert all(went_through(status) for status, _ in outcomes(data).values())
    taken = np.isfinite(data["seconds"].values)
    assert data.sizes["launch"] == 3
    assert (taken.sum(axis=-1) >= 20).all()
    assert ((data["verdict"].values != VERDICTS["not_taken"].code) == taken).all()
    assert (data["calls"].values[taken] >= 1).all()
    assert (data["seconds"].values * data["calls"].values)[taken].min() > 2e-4, "samples last long enough for the clock"
    assert (data["cpu_seconds"].values[taken] > 0).all()
    assert data["target"].values.tolist().count("torch") == 2
    assert json.loads(data.attrs["libraries"])["torch"].startswith("2.")
    assert json.loads(data.attrs["environment"])["threads=1"]["OMP_PROC_BIND"] == "close"
    assert set(data["prediction_hash"].values.tolist()) == {"f" * 64}
    assert record.read(repository.root / "results/small/local/bench/twice/plain/f64/record.nc").identical(data)


def test_yardsticks_take_turns_with_the_builds(repository):
    """They are cases of the group with a target of their own, also where the elements are no whole blocks."""
    repository.build("good")
    data = benching.bench(repository.experiment(variants=["good"], n=(1000,), yardsticks="[copy, stream, read]"), GROUP, lambda line: None)
    assert sorted(outcomes(data)) == [("copy", "n=1000", 1), ("good", "n=1000", 1), ("read", "n=1000", 1), ("stream", "n=1000", 1)]
    assert all(went_through(status) for status, _ in outcomes(data).values())
    assert dict(zip(data["variant"].values, data["target"].values, strict=True)) == {"good": "c"} | dict.fromkeys(("copy", "stream", "read"), "yardstick")
    assert (np.isfinite(data["seconds"].values).sum(axis=(1, 2, 3)) >= 60).all()
    assert np.isnan(data["foreseen_seconds"].values).all(), "nothing was predicted"


def test_a_prediction_is_made_again_with_the_memory_just_before_each_launch(repository, monkeypatch):
    """A copy that was predicted to take 1 ns takes far longer; the new predictions stand in the journal before the build is called."""
    repository.build("good")
    e = repository.experiment(variants=["good"], n=(1000,), yardsticks="[copy]")
    axes = {"machine": "local", "label": "n=1000", "kernel": "twice", "form": "plain", "isa": "avx2", "dtype": "f64", "stores": "plain",
            **dataclasses.asdict(Arrangement(1, 1))}
    rows = [axes | {"variant": "copy", "target": "yardstick", "predicted_seconds": 1e-9, "parts": [[0.0, 1e-9]]},
            axes | {"variant": "good", "target": "c", "predicted_seconds": 5.0, "parts": [[2.0, 3.0]]}]
    frozen = repository.root / place.predicted(e, GROUP)
    frozen.write_text(json.dumps({"prediction_hash": "f" * 64, "cases": rows}))
    written, prepare = [], benching._prepare

    def prepared(job, t, *rest):
        if t.entry.name == "good/c":
            journal = json.loads((repository.root / "results/small/local/bench/twice/plain/f64/journal.json").read_text())
            written.append(sum(map(len, journal["sights"].values())))
        prepare(job, t, *rest)

    monkeypatch.setattr(benching, "_prepare", prepared)
    data = benching.bench(e, GROUP, lambda line: None)
    assert written == [1, 2, 3]
    good, copy = (data.isel(case=data["variant"].values.tolist().index(name)) for name in ("good", "copy"))
    drift = good["memory_drift"].values
    assert (drift > 1).all() and np.isnan(copy["memory_drift"].values).all()
    np.testing.assert_allclose(good["foreseen_seconds"].values, 5.0 + np.maximum(2.0, 3.0 * drift) - 3.0)
    assert good["predicted_seconds"].isnull().all(), "what was frozen before stays where it is"


def test_a_second_run_measures_nothing_and_a_changed_library_measures_again(repository):
    repository.build("good")
    e, said = repository.experiment(variants=["good"]), []
    first = benching.bench(e, GROUP, said.append)
    if "all_invalid" not in [status for status, _ in outcomes(first).values()]:     # what a noisy machine spoiled is measured again
        assert benching.bench(e, GROUP, said.append).identical(first)
        assert "nothing to measure" in said[-1]
    longer = repository.experiment(variants=["good"], n=(40, 60))
    assert benching.bench(longer, GROUP, said.append).sizes["case"] == 2


def test_what_a_noisy_machine_spoiled_is_measured_again(repository, monkeypatch):
    repository.build("good")
    e, said = repository.experiment(variants=["good"], box=0.15), []
    monkeypatch.setattr("moapipe.lab.sampling.judge", lambda diagnosis: "neighbour")
    spoiled = benching.bench(e, GROUP, said.append)
    status, reason = next(iter(outcomes(spoiled).values()))
    assert status == "all_invalid"
    assert "most of them neighbour" in reason
    monkeypatch.setattr("moapipe.lab.sampling.judge", lambda diagnosis: "valid")
    assert next(iter(outcomes(benching.bench(e, GROUP, said.append)).values())) == ("measured", "")
    assert not any("stands" in line for line in said)
    benching.bench(e, GROUP, said.append)
    assert "stands" in said[-1]


def seconds_at(data, label):
    return data["seconds"].values[data["label"].values.tolist().index(label)]


def test_only_the_points_that_noise_spoiled_are_measured_again(repository, monkeypatch):
    repository.build("good")
    e, said = repository.experiment(variants=["good"], n=(40, 60), box=0.15), []
    monkeypatch.setattr("moapipe.lab.sampling.judge", lambda diagnosis: "neighbour" if "n=60" in said[-1] else "valid")
    first = benching.bench(e, GROUP, said.append)
    assert [status for status, _ in outcomes(first).values()] == ["measured", "all_invalid"]
    said.clear()
    monkeypatch.setattr("moapipe.lab.sampling.judge", lambda diagnosis: "valid")
    again = benching.bench(e, GROUP, said.append)
    assert not any("n=40" in line for line in said) and any("n=60" in line for line in said)
    assert [status for status, _ in outcomes(again).values()] == ["measured", "measured"]
    kept, before, other = (np.sort(s[~np.isnan(s)]) for at in ((again, "n=40"), (first, "n=40"), (again, "n=60")) for s in [seconds_at(*at)])
    assert np.array_equal(kept, before) and not np.array_equal(kept, other)


def test_a_record_that_the_workflow_took_away_is_given_back_with_the_same_key_and_kept_with_another(repository):
    """Snakemake removes an output before it runs the job again."""
    repository.build("good")
    e, said = repository.experiment(variants=["good"]), []
    first = benching.bench(e, GROUP, said.append)
    path = repository.root / place.recorded(e, GROUP)
    before = path.read_bytes()
    path.unlink()
    other = repository.experiment(variants=["good"], n=(50,))
    with pytest.raises(KeyboardInterrupt):
        benching.bench(other, GROUP, lambda line: (_ for _ in ()).throw(KeyboardInterrupt))
    assert path.with_name("kept.nc").read_bytes() == before and not path.exists()
    if "all_invalid" not in [status for status, _ in outcomes(first).values()]:
        again = benching.bench(repository.experiment(variants=["good"]), GROUP, said.append)
        assert "nothing to measure" in said[-1] and again.identical(first) and path.read_bytes() == before


def test_a_record_that_was_taken_away_after_it_was_finished_comes_back(repository):
    """A workflow that takes a good job for a failed one removes what it wrote, or puts an older file there."""
    repository.build("good")
    e, said = repository.experiment(variants=["good"]), []
    first = benching.bench(e, GROUP, said.append)
    (repository.root / place.recorded(e, GROUP)).unlink()
    said.clear()
    again = benching.bench(e, GROUP, said.append)
    if "all_invalid" not in [status for status, _ in outcomes(first).values()]:
        assert not any("launch 1 of 3," in line for line in said)
        assert again["seconds"].identical(first["seconds"])


@pytest.mark.parametrize("change", ["validation", "library", "source", "nothing_built"])
def test_nothing_wrong_is_ever_timed(repository, change):
    b = repository.build("bad", passed=change != "validation")
    expected = {"validation": ("validation_failed", "y is wrong"), "library": ("not_run", "the library is not the one that was validated"),
                "source": ("not_run", "the derived source changed after it was validated"), "nothing_built": ("not_run", "it was not built")}
    match change:
        case "library":
            with (repository.root / place.built(b, "local") / "kernel.so").open("ab") as f:
                f.write(b"x")
        case "source":
            (repository.root / place.derived(b) / "kernel.c").write_text("int other;")
        case "nothing_built":
            (repository.root / place.built(b, "local") / "build.json").unlink()
    data = benching.bench(repository.experiment(variants=["bad"]), GROUP, lambda line: None)
    assert list(outcomes(data).values()) == [expected[change]]
    assert not np.isfinite(data["seconds"].values).any()


@pytest.mark.parametrize(("fault", "status", "reason"), [
    ("crash", "crashed", "ended by SIGABRT"), ("hang", "timed_out", "no answer"), ("slow", "timed_out", "has no room for it"),
])
def test_a_faulty_participant_has_a_status_and_the_others_go_on(repository, fault, status, reason):
    repository.build("good")
    repository.build(fault)
    data = benching.bench(repository.experiment(variants=["good", fault], n=(40, 60), box=0.15), GROUP, lambda line: None)
    found = outcomes(data)
    assert found[fault, "n=60", 1][0] == status
    assert reason in found[fault, "n=60", 1][1]
    assert went_through(found["good", "n=40", 1][0])
    assert went_through(found["good", "n=60", 1][0])
    if fault != "slow":
        assert went_through(found[fault, "n=40", 1][0]), "another size of the same build is measured"


def test_more_threads_than_cpus_are_refused(repository):
    repository.build("good")
    many = len(os.sched_getaffinity(0)) + 1
    data = benching.bench(repository.experiment(variants=["good"], threads=(many,)), GROUP, lambda line: None)
    assert next(iter(outcomes(data).values()))[0] == "refused"
    assert "may be used here" in next(iter(outcomes(data).values()))[1]


def test_what_does_not_fit_in_memory_is_refused(repository, monkeypatch):
    repository.build("good")
    monkeypatch.setattr(benching, "free_bytes", lambda: 100.0)
    data = benching.bench(repository.experiment(variants=["good"]), GROUP, lambda line: None)
    assert next(iter(outcomes(data).values())) == ("refused", "it needs 0.0 GiB, and 0.0 GiB are free beside the others")


def test_without_a_frozen_prediction_nothing_is_measured(repository):
    repository.build("good")
    e = repository.experiment(variants=["good"])
    (repository.root / place.predicted(e, GROUP)).unlink()
    with pytest.raises(RecordError, match=r"prediction\.json"):
        benching.bench(e, GROUP, lambda line: None)


def test_settings_of_the_shell_do_not_reach_the_measurement(repository, monkeypatch):
    """OMP_PROC_BIND, exported, once shrank the mask of a parent that had loaded PyTorch, and of all its children."""
    for name, value in (("OMP_NUM_THREADS", "7"), ("OMP_PROC_BIND", "spread"), ("GOMP_CPU_AFFINITY", "0"), ("OMP_WAIT_POLICY", "active")):
        monkeypatch.setenv(name, value)
    repository.build("good")
    threads = min(2, len(os.sched_getaffinity(0)))
    data = benching.bench(repository.experiment(variants=["good"], threads=(threads,)), GROUP, lambda line: None)
    assert all(went_through(status) for status, _ in outcomes(data).values())
    wrong = {VERDICTS["threads_missing"].code, VERDICTS["wrong_cpus"].code}
    assert not wrong & set(data["verdict"].values.ravel().tolist())


# ------------------------------------------------------------------ interruptions

RUN = """
import functools, sys
from pathlib import Path
from moapipe.lab import bench, experiment
from moapipe.lab.lock import alone
from moapipe.lab.record import Canary
bench.alone = functools.partial(alone, place=Path(sys.argv[2]))
root = Path(sys.argv[1])
bench.bench(experiment.read("small", root), experiment.Group("twice", "plain", "f64"), lambda line: print(line, flush=True))
"""


def children(pid):
    """Process ids below `pid`, from /proc."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return {p for p, parent in parents.items() if parent == pid}


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_job_leaves_no_process_no_record_and_loses_no_finished_launch(repository, how):
    repository.build("lazy")
    e = repository.experiment(variants=["lazy"], box=1)
    target = repository.root / place.recorded(e, GROUP)
    arguments = [sys.executable, "-c", RUN, str(repository.root), str(repository.root / "lock")]
    job = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while not (line := job.stdout.readline()).endswith("left\n") and line:
        pass
    assert "launch 2 of 3" in line
    while not (drivers := children(job.pid)) and job.poll() is None:
        time.sleep(0.01)
    assert job.poll() is None, "the launch is over before it could be interrupted"
    job.send_signal(how)
    job.wait(timeout=30)
    job.stdout.close()
    deadline = time.monotonic() + 10
    while any(map(alive, drivers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, drivers))
    assert sorted(p.name for p in target.parent.iterdir()) == ["journal.json"]
    finished = json.loads((target.parent / "journal.json").read_text())["launches"]
    said = []
    data = benching.bench(e, GROUP, said.append)
    assert said[0].endswith("goes on after 1 finished launch")
    assert not any("launch 1 of 3" in line for line in said)
    kept = [s[0] for s in finished["0/threads=1"]["0"]["samples"]]
    assert data["seconds"].values[0, 0, 0, : len(kept)].tolist() == kept
    assert sorted(p.name for p in target.parent.iterdir()) == ["journal.json", "kept.nc", "record.nc"]
