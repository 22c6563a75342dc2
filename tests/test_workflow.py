"""The line as Snakemake walks it: every experiment plans from a clean state, content alone decides what runs again, nothing is lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import Checkout

from moapipe.lab import experiment, kernel, record
from moapipe.lab.variable import STATUSES
from moapipe.lab.verdict import VERDICTS

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = sorted(p.stem for p in (ROOT / "config").glob("*.yaml"))
RECORD = "results/tiny/local/bench/rmsnorm/forward/f64/record.nc"
BENCH = ("bench", "rmsnorm", "--form", "forward", "--dtype", "f64", "--experiment", "config/tiny.yaml")
REPORT = {"collect", "chart", "archive", "all"}
MEASURE = {"predict", "bench", *REPORT}
BUILD = {"build", "validate", "bench", *REPORT}


# ------------------------------------------------------------------ plans


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_plans_from_a_clean_state(name: str, clean) -> None:
    e = experiment.read(name, clean.path)
    jobs = clean.planned(f"config/{name}.yaml")
    builds, texts, groups = experiment.builds(e), experiment.texts(e), len(experiment.groups(e))
    assert jobs.pop("total") == sum(jobs.values())
    every = len({*builds, *texts})
    expected = {"derive": every, "build": every, "validate": len(builds), "emulate": len({(b.kernel, b.form, b.dtype) for b in texts}), "calibrate": 1, "predict": groups, "bench": groups,
                "collect": 1, "chart": 1, "evidence": int(bool(texts)), "archive": 1, "all": 1}  # fmt: skip
    assert jobs == {stage: n for stage, n in expected.items() if n}


def test_a_run_on_a_gpu_is_planned_without_one(clean) -> None:
    """`make bench-gpu`, dry: with the machine's file of a GPU every text for it is validated and measured there."""
    e = experiment.read("gpu", clean.path, "h200")
    assert len(experiment.builds(e)) == len(experiment.texts(e)) > 0 and not experiment.builds(experiment.read("gpu", clean.path, "local"))
    jobs = clean.planned("config/gpu.yaml", "machine=h200")
    assert (jobs["validate"], jobs["bench"]) == (len(experiment.builds(e)), len(experiment.groups(e)))


def test_a_group_on_three_nodes_is_three_jobs_and_one_dataset(clean) -> None:
    three = clean.path / "config" / "three.yaml"
    three.write_text("nodes: 3\nkernels: {rmsnorm: {variants: [row], targets: [c], dtypes: [f64], at: [{n: 4, d: 4}]}}\n")
    try:
        jobs = clean.planned("config/three.yaml")
        assert (jobs["predict"], jobs["bench"], jobs["collect"]) == (1, 3, 1)
    finally:
        three.unlink()


def test_evidence_is_planned_for_every_text_for_a_gpu(clean) -> None:
    e = experiment.read("evidence", clean.path)
    known = {b.kernel for b in experiment.all_builds(clean.path, "plain", kernel.names(clean.path), tuple(t for t in kernel.TARGETS if t not in experiment.HOST_TARGETS))}
    assert {b.kernel for b in experiment.texts(e)} == known and not experiment.builds(e)


def test_a_machine_with_nothing_for_gpus_loses_nothing_else(clean, tmp_path: Path) -> None:
    """No nvcc, hipcc, Oclgrind, PoCL, clang or cupy: every module loads, the smoke test is planned whole, and `doctor` says what is missing and
    what that leaves out, as notices."""
    names = ("bash", "sh", "env", "tee", "gcc", "g++", "gfortran", "as", "ld", "make", "git", "uname", "which", "lstopo-no-graphics", "lstopo", "numactl", "perf", "lscpu")
    (tmp_path / "bin").mkdir()
    for name, found in ((n, shutil.which(n)) for n in names):
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "cupy.py").write_text("raise ImportError('no cupy')")
    bare = clean.environment(PATH=f"{tmp_path / 'bin'}", OCL_ICD_VENDORS=str(tmp_path / "none"), PYTHONPATH=f"{clean.path / 'src'}{os.pathsep}{tmp_path / 'none'}")
    assert not [p for p in ("nvcc", "hipcc", "oclgrind", "clang", "clang-19", "ncu") if shutil.which(p, path=bare["PATH"])]
    modules = " ".join(".".join(p.relative_to(clean.path / "src").with_suffix("").parts) for p in (clean.path / "src" / "moapipe").rglob("*.py") if p.stem[0] != "_")
    loaded = clean.run("python", "-c", f"import importlib\nfor m in '{modules}'.split(): importlib.import_module(m)", env=bare)
    assert loaded.returncode == 0, loaded.stdout
    plan = clean.run("snakemake", "-n", "--config", "experiment=config/smoke.yaml", env=bare)
    assert plan.returncode == 0 and "bench" in plan.stdout, plan.stdout
    said = clean.moapipe("doctor", env=bare).stdout
    for topic, loss in {"compiler of cuda": "not compiled", "compiler of hip": "not compiled", "compiler of opencl": "not compiled", "oclgrind": "no evidence",
                        "pocl": "no evidence", "offload": "no evidence", "mutants": "no evidence"}.items():
        assert re.search(rf"^! {topic} .*{loss}", said, re.MULTILINE), said


def test_planning_loads_no_heavy_room() -> None:
    code = "import sys; from moapipe.lab import experiment, kernel; print(*{m.split('.')[0] for m in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "sympy", "xarray", "pandas", "torch", "altair", "typer", "snakemake"} & set(found)


def test_planning_reads_files_once_however_many_builds(monkeypatch) -> None:
    """What makes a plan of 500 builds quick: files and code are digested once, then a build costs a hash."""
    read: list[str] = []
    original = kernel._tree
    monkeypatch.setattr(kernel, "_tree", lambda path, where: read.append(str(path)) or original(path, where))
    e = experiment.read("models", ROOT)
    builds = experiment.builds(e)
    experiment.derive_digest(e, builds[0])
    first = len(read)
    for build in builds:
        experiment.derive_digest(e, build)
    assert len(read) == first


def test_five_hundred_builds_are_planned(clean, tmp_path) -> None:
    """One kernel with as many variants as that takes, planned from a clean state, for a cluster too."""
    shutil.copytree(clean.path, tmp_path / "moapipe", symlinks=True)
    many, variants = Checkout(tmp_path / "moapipe"), 125
    file = many.path / "kernels/rmsnorm.yaml"
    block = file.read_text().split("row_stream:")[0].split("row:", 1)[1]
    file.write_text("".join(f"row{k}:{block}" for k in range(variants)))
    (many.path / "config/many.yaml").write_text("about: many\nisa: avx2\nkernels: {rmsnorm: {at: [{n: 64, d: 96}]}}\n")
    jobs = many.planned("config/many.yaml")
    assert (jobs["derive"], jobs["build"], jobs["validate"], jobs["bench"]) == (4 * variants, 4 * variants, 4 * variants, 2)


def test_an_unknown_key_is_one_message(clean, tmp_path) -> None:
    wrong = clean.path / "config" / "wrong.yaml"
    wrong.write_text("abuot: x\nkernels: {rmsnorm: {at: [{n: 4, d: 4}]}}\n")
    try:
        done = clean.snakemake("-n", experiment="config/wrong.yaml")
        assert done.returncode == 1
        assert done.stdout.count("unknown key abuot") == 1 and "did you mean 'about'" in done.stdout
        assert "Traceback" not in done.stdout
        told = clean.moapipe("predict", "rmsnorm", "--form", "forward", "--dtype", "f64", "--experiment", "config/wrong.yaml")
        assert told.returncode == 2 and "Traceback" not in told.stdout
    finally:
        wrong.unlink()


# ------------------------------------------------------------------ reruns


def test_a_run_ends_in_a_table_and_a_page(finished) -> None:
    done = finished.moapipe("table", "config/tiny.yaml")
    assert done.returncode == 0, done.stdout
    assert all(word in done.stdout for word in ("rmsnorm", "rms_norm", "predicted", "measured", "valid"))
    page = Path(done.stdout.rsplit("page: ", 1)[1].strip())
    assert page.is_file()
    assert finished.moapipe("archive", "--verify", str(page.parent)).returncode == 0


def test_every_job_has_a_log(finished) -> None:
    logs = {p.relative_to(finished.path / "results/logs").parts[0] for p in (finished.path / "results/logs").rglob("*.log")}
    assert logs == {"derive", "build", "validate", "tiny"}
    mine = {p.name.removesuffix(".log") for p in (finished.path / "results/logs/tiny").glob("*.log")}
    assert mine == {"collect", "chart", "archive"}
    assert all(p.read_text().strip() for p in (finished.path / "results/logs").rglob("*.log"))


def test_a_second_run_does_nothing(line) -> None:
    before = line.files()
    assert line.planned() == {}
    done = line.snakemake("--cores", "2")
    assert done.returncode == 0 and "Nothing to be done" in done.stdout
    assert line.files() == before


EDITS = {
    "a comment in a kernel's Python": ("kernels/rmsnorm.py", "SIZES = ", "# a remark\nSIZES = ", set()),
    "a kernel's docstring": ("kernels/rmsnorm.py", '"""PyTorch returns no rinv."""', '"""PyTorch gives no rinv back."""', set()),
    "what a variant is about": ("kernels/rmsnorm.yaml", "about: ", "about: In short, ", set()),
    "a comment in the engine": ("src/moapipe/loops/cost.py", "import heapq", "import heapq  # a remark", set()),
    "a chart's title": ("src/moapipe/report/charts.py", "Traffic against its lower bound", "Traffic and its bound", {"chart", "archive", "all"}),
    "a variant's tile": ("kernels/rmsnorm.yaml", "{L: 4*V}", "{L: 2*V}", {"derive", *BUILD, *MEASURE}),
    "the engine's code": ("src/moapipe/loops/cost.py", "LISTED = 1 << 17", "LISTED = 1 << 16", {"derive", *BUILD, *MEASURE}),
    "a size of the experiment": ("config/tiny.yaml", "n: 64", "n: 65", MEASURE),
    "a number of threads": ("config/tiny.yaml", "time_box_s", "threads: [1, 2]\ntime_box_s", MEASURE),
    "the time box": ("config/tiny.yaml", "0.3", "0.4", MEASURE),
    "a compiler's flags": ("config/machines/local.yaml", "{command: gcc,", "{command: gcc, flags: [-g1],", BUILD),
}


@pytest.mark.parametrize("what", EDITS)
def test_content_decides_what_runs_again(what: str, line) -> None:
    file, old, new, expected = EDITS[what]
    line.edit(file, old, new)
    assert set(line.planned()) - {"total"} == expected


def calm(path: Path) -> None:
    """The record as a quiet machine would have made it: one that has a case without a valid sample is measured again."""
    data = record.read(path)
    taken = data["seconds"].notnull()
    data["verdict"] = data["verdict"].where(~taken, VERDICTS["valid"].code).astype("int8").assign_attrs(data["verdict"].attrs)
    data["status"] = data["status"].copy(data=[STATUSES["measured"].code] * data.sizes["case"]).astype("int8").assign_attrs(data["status"].attrs)
    data["reason"] = data["reason"].copy(data=[""] * data.sizes["case"])
    record.write(data, path)


def test_an_engine_change_that_leaves_the_text_keeps_the_measurement(line) -> None:
    calm(line.path / RECORD)
    shutil.copy2(line.path / RECORD, line.path / RECORD.replace("record.nc", "kept.nc"))  # written again, it would have another second in it
    before = (line.path / RECORD).read_bytes()
    line.edit("src/moapipe/loops/cost.py", "LISTED = 1 << 17", "LISTED = 1 << 18")
    done = line.snakemake("--cores", "2", "benchmarks")
    assert done.returncode == 0, done.stdout
    assert "nothing to measure" in done.stdout
    assert (line.path / RECORD).read_bytes() == before
    assert set(line.planned()) - {"total"} == REPORT


# ------------------------------------------------------------------ interruptions


def started(line, *words: str) -> subprocess.Popen:
    line.edit("config/tiny.yaml", "0.3", "6")
    command = [Path(sys.executable).parent / "moapipe", *words]
    return subprocess.Popen(command, cwd=line.path, env=line.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def until(process: subprocess.Popen, word: str) -> None:
    for text in process.stdout:
        if word in text:
            time.sleep(0.3)
            return
    raise AssertionError(f"it ended without {word!r}: {process.stderr.read()}")


def measuring(line) -> list[str]:
    """Processes that run a program or a library of this checkout."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if any(str(line.path) in w for w in words):
                found.append(" ".join(words))
    return found


@pytest.mark.parametrize("how", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
def test_an_interrupted_bench_loses_nothing_and_goes_on(how: signal.Signals, line) -> None:
    finished_record = (line.path / RECORD).read_bytes()
    assert line.moapipe("predict", *BENCH[1:]).returncode == 0
    process = started(line, *BENCH)
    until(process, "launch 2 of 3")
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode in {signal.SIGINT: (130,), signal.SIGTERM: (143, -signal.SIGTERM), signal.SIGKILL: (-signal.SIGKILL,)}[how]
    assert "Traceback" not in err
    assert how is not signal.SIGINT or len(err.strip().splitlines()) == 1
    assert (line.path / RECORD).read_bytes() == finished_record
    deadline = time.monotonic() + 10
    while measuring(line) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not measuring(line)
    again = line.moapipe(*BENCH)
    assert again.returncode == 0, again.stdout
    assert "goes on after 1 finished launch" in again.stdout
    data = record.read(line.path / RECORD)
    assert data.sizes["launch"] == 3


def test_snakemake_killed_in_a_bench_goes_on_where_it_was(line) -> None:
    line.edit("config/tiny.yaml", "0.3", "6")
    command = [Path(sys.executable).parent / "snakemake", "--cores", "2", "--config", "experiment=config/tiny.yaml"]
    process = subprocess.Popen(command, cwd=line.path, env=line.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    until(process, "launch 2 of 3")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    unlocked = line.snakemake("--unlock")
    assert unlocked.returncode == 0, unlocked.stdout
    again = line.snakemake("--cores", "2", "benchmarks")
    assert again.returncode == 0, again.stdout
    assert "goes on after 1 finished launch" in again.stdout
