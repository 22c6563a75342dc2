"""The command line: quick to start, one message for each mistake, an exit code that tells which kind it was."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.synthetic import dataset

from moapipe import cli
from moapipe.cli import VERBS, axis, library, measurement, text
from moapipe.errors import ConfigError
from moapipe.lab import experiment, record
from moapipe.lab.place import predicted, recorded
from moapipe.report.metrics import frame

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(sys.executable).parent / "moapipe"
HEAVY = ("numpy", "sympy", "xarray", "pandas", "altair", "torch", "pydantic", "yaml", "netCDF4")


def run(*words: str, cwd: Path = ROOT, **options) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, *words], cwd=cwd, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The kernels and experiments in a folder of their own, so that results land there."""
    for folder in ("kernels", "config"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def imported(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")[-2].split())


def test_help_loads_no_room() -> None:
    assert not imported("import moapipe.cli\nmoapipe.cli.application(None)") & set(HEAVY)


def test_text_stages_load_neither_pytorch_nor_charts() -> None:
    assert not imported("import moapipe.cli.text") & {"torch", "altair", "xarray", "pandas", "netCDF4"}


@pytest.mark.parametrize("verb", ("derive", "show", "build", "validate", "call", "doctor"))
def test_pytorch_is_not_loaded_to_start_a_verb(verb: str) -> None:
    assert "torch" not in imported(f"import moapipe.cli.{VERBS[verb].module}")


def test_help_lists_every_verb() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert all(verb in shown.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, monkeypatch, capsys) -> None:
    """In this process: what a process of its own loads for a verb is another test."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0, shown
    assert f"moapipe {verb}" in shown
    options = {w for w in shown.replace("│", " ").split() if w.startswith("--")}
    assert options >= {"--help"}


def test_options_are_named_as_axes() -> None:
    shown = run("derive", "--help", env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}).stdout
    assert all(f"--{name}" in shown for name in ("form", "variant", "target", "isa", "dtype"))


@pytest.mark.parametrize(("words", "says"), [
    (("show", "atention_forward"), "did you mean 'attention_forward'"),
    (("show", "attention_forward", "--form", "casual"), "did you mean 'causal'"),
    (("show", "attention_forward", "--variant", "onlin"), "did you mean 'online'"),
    (("derive", "attention_forward", "--target", "fotran"), "did you mean 'fortran'"),
    (("derive", "attention_forward", "--dtype", "f16"), "dtype"),
    (("derive", "attention_forward", "--isa", "avx51"), "avx512"),
    (("derive", "attention_forward", "--machine", "lokal"), "No such option"),
    (("show", "attention_forward", "--stage", "cost", "--at", "B=2,n=x,d=64"), "--at B=2,n=2048,d=64"),
    (("show", "attention_forward", "--stage", "cost", "--at", "B=2,n=5"), "set d"),
    (("show", "attention_forward", "--stage", "cost", "--at", "B=2,n=1000000000,d=64"), "count at smaller sizes"),
    (("show", "attention_forward", "--stage", "dnf", "--at", "B=2"), "--stage cost"),
    (("show", "attention_forward", "--stage", "source", "--format", "latex"), "--format text or json"),
    (("chart", "--experiment", "config/smoke.yaml"), "run the stage that makes it"),
    (("call", "attention_forward", "--input", "nowhere.npz", "--output", "x.npz"), "nowhere.npz"),
    (("collect", "--experiment", "config/smok.yaml"), "did you mean 'smoke'"),
    (("predict", "matmul", "--form", "nn", "--dtype", "f16", "--experiment", "config/smoke.yaml"), "its groups"),
    (("table", "config/nothing.yaml"), "nothing"),
], ids=lambda x: " ".join(x) if isinstance(x, tuple) else x)
def test_a_mistake_is_one_message_and_exit_code_2(words: tuple[str, ...], says: str, checkout: Path) -> None:
    done = run(*words, cwd=checkout)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / "results").exists()


def test_an_unexpected_exception_keeps_its_traceback(monkeypatch) -> None:
    monkeypatch.setattr(text, "scan", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["derive", "rmsnorm"])


def test_ctrl_c_is_one_line_and_130(monkeypatch, capsys) -> None:
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(text, "scan", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main(["derive", "rmsnorm"])
    assert end.value.code == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_cancelled_job_and_a_closed_terminal_clear_up_and_say_so_in_one_line(how: signal.Signals) -> None:
    code = ("import os, sys, tempfile\nfrom moapipe import cli\nfrom moapipe.cli import text\n"
            "def scan(*_):\n    with tempfile.TemporaryDirectory() as folder:\n        print(folder, flush=True)\n        os.kill(os.getpid(), int(sys.argv[1]))\n"
            "text.scan = scan\ncli.main(['derive', 'rmsnorm'])")
    done = subprocess.run([sys.executable, "-c", code, str(int(how))], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + how, f"moapipe derive: ended by {how.name}; finished results are kept, nothing is half-written\n")
    assert not Path(done.stdout.strip()).exists()


def test_a_real_ctrl_c_leaves_nothing_half_written(checkout: Path) -> None:
    process = subprocess.Popen([PROGRAM, "derive", "attention_forward", "--variant", "online_tiled"], cwd=checkout, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.9)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode in (0, 130)
    assert "Traceback" not in err or "moapipe" not in err.splitlines()[-1]
    assert not [p for p in (checkout / "results").rglob(".*")]


# ------------------------------------------------------------------ show and call


@pytest.mark.parametrize("stage", text.STAGES)
def test_show_prints_every_stage(stage: str, checkout: Path) -> None:
    plain = run("show", "rmsnorm", "--stage", stage, cwd=checkout)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.strip()
    document = json.loads(run("show", "rmsnorm", "--stage", stage, "--format", "json", cwd=checkout).stdout)
    assert document["kernel"] == "rmsnorm"


@pytest.mark.parametrize("stage", ("definitions", "dnf"))
def test_show_writes_latex(stage: str, checkout: Path) -> None:
    done = run("show", "rmsnorm", "--stage", stage, "--format", "latex", cwd=checkout)
    assert done.returncode == 0
    assert "\\" in done.stdout


def test_costs_are_whole_numbers_with_bytes_among_them(checkout: Path) -> None:
    done = run("show", "attention_forward", "--variant", "online", "--stage", "cost", "--at", "B=2,n=2048,d=64", "--format", "json", cwd=checkout)
    document = json.loads(done.stdout)
    assert document["footprint"]["read_bytes"] == 6_291_456
    for count in ("accesses", "footprint", "traffic"):
        assert all(isinstance(v, int) for v in numbers(document[count])), count


def test_costs_for_a_gpu_count_the_published_atomics_and_say_what_a_device_holds(checkout: Path) -> None:
    words = ("show", "attention_forward_backward", "--variant", "row_parallel_atomic", "--stage", "cost", "--at", "B=2,n=2048,d=64", "--machine", "h200")
    gpu = json.loads(run(*words, "--target", "cuda", "--format", "json", cwd=checkout).stdout)["gpu"]
    assert gpu["atomic_updates"] == 1_073_741_824 and gpu["atomic_instructions"]["full"] == 1_073_741_824 // 32
    assert gpu["threads"] == 4096 and {l["blocks"] for l in gpu["launches"]} == {32}
    assert gpu["device"] == "H200" and gpu["occupancy"][0]["registers"]["64"]["share"] == 0.5
    assert "gpu" not in json.loads(run(*words, "--target", "c", "--format", "json", cwd=checkout).stdout)


def numbers(tree):
    if isinstance(tree, dict):
        for value in tree.values():
            yield from numbers(value)
    elif not isinstance(tree, str | list):
        yield tree


@pytest.mark.parametrize("target", ("reference", "dnf", "onf", "c", "fortran"))
def test_call_runs_every_stage_on_a_users_arrays(target: str, checkout: Path) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 3, n, 5)) for n in (4, 7, 7))
    np.savez(checkout / "in.npz", Q=q, K=k, V=v)
    done = run("call", "attention_forward", "--variant", "online", "--target", target, "--input", "in.npz", "--output", "out.npz", cwd=checkout)
    assert done.returncode == 0, done.stderr
    weights = np.exp(s := q @ k.swapaxes(-1, -2) / np.sqrt(5)) / np.exp(s).sum(-1, keepdims=True)
    with np.load(checkout / "out.npz") as made:
        assert made["out"].shape == (2, 3, 4, 5)
        assert np.allclose(made["out"], weights @ v)


def test_call_says_which_shapes_do_not_conform(checkout: Path) -> None:
    np.savez(checkout / "in.npz", Q=np.ones((1, 2, 3)), K=np.ones((1, 2, 4)), V=np.ones((1, 2, 4)))
    done = run("call", "attention_forward", "--input", "in.npz", "--output", "out.npz", cwd=checkout)
    assert done.returncode == 2
    assert "d_k" in done.stderr and "Traceback" not in done.stderr
    assert not (checkout / "out.npz").exists()


# ------------------------------------------------------------------ options


def test_points_are_read_as_written() -> None:
    assert axis.point("B=2,n=2048, d=64") == {"B": 2, "n": 2048, "d": 64}
    for wrong in ("B", "B=", "B=-1", "B=two", "B=1.5", "B=2,B=2", "B=1,n=2,B=3", "B=9999999999999999"):
        with pytest.raises(ConfigError):
            axis.point(wrong)


@pytest.mark.parametrize("keep_going", (False, True))
def test_a_missing_compiler_is_an_error_or_a_written_reason(keep_going: bool, checkout: Path) -> None:
    empty = checkout / "empty"
    empty.mkdir()
    assert run("derive", "rmsnorm", "--target", "fortran", cwd=checkout).returncode == 0
    done = run("build", "rmsnorm", "--target", "fortran", *["--keep-going"] * keep_going, cwd=checkout, env={**os.environ, "PATH": str(empty)})
    assert done.returncode == (0 if keep_going else 2)
    assert "gfortran is not in PATH" in done.stderr and "apt install gfortran" in done.stderr
    records = list((checkout / "results" / "build").rglob("build.json"))
    assert len(records) == (1 if keep_going else 0)
    if keep_going:
        document = json.loads(records[0].read_text())
        assert document["status"] == "build_failed" and "gfortran" in document["reason"]


def test_bad_results_end_with_1_unless_one_goes_on(capsys) -> None:
    library.bad("it is wrong", keep_going=True)
    with pytest.raises(Exception) as end:
        library.bad("it is wrong", keep_going=False)
    assert end.value.exit_code == 1
    assert capsys.readouterr().err == "it is wrong\n" * 2


def test_a_measured_group_says_how_long_the_others_take(tmp_path, monkeypatch) -> None:
    e = replace(experiment.read("smoke", ROOT), root=tmp_path)
    first, second, *others = experiment.groups(e)
    assert len(others) > 2
    for group in (first, *others):
        for place in (predicted(e, group), recorded(e, group)):
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).touch()
    os.utime(tmp_path / recorded(e, others[0]), (1, 1))
    cases = {g: len(experiment.cases(e, g)) for g in (first, second, others[0])}
    minutes = 60 / cases[first] * (cases[second] + cases[others[0]]) / 60
    assert f"2 of {len(experiment.groups(e))} groups are left, about {minutes:.1f} min" in measurement.remaining(e, first, 60.0)
    for place in (recorded(e, second), recorded(e, others[0])):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    assert measurement.remaining(e, first, 60.0) == ""


def test_datasets_of_several_machines_become_one(tmp_path) -> None:
    """As of two clusters' archives: the machine is a coordinate, and what was not measured somewhere says why."""
    for machine in ("anvil", "delta"):
        record.write(dataset(machine, sizes=(512,)), tmp_path / f"{machine}.nc")
    done = run("join", "anvil.nc", "delta.nc", "--out", "both.nc", cwd=tmp_path)
    assert done.returncode == 0 and "of anvil, delta: both.nc" in done.stdout, done.stderr
    rows = frame(record.read(tmp_path / "both.nc"))
    assert set(rows["machine"]) == {"anvil", "delta"}
    assert (rows.loc[rows["median_seconds"].isna(), "explanation"] != "").all() and rows["median_seconds"].isna().any()
    twice = run("join", "anvil.nc", "both.nc", cwd=tmp_path)
    assert twice.returncode == 2 and "appears 2 times" in twice.stderr


def test_show_costs_prints_the_published_forms_of_all_kernels_or_of_one() -> None:
    everything, one = run("show", "--costs"), run("show", "attention_forward", "--costs", "--format", "json")
    assert "2nd_k + 2nd_v" in everything.stdout and everything.returncode == 0
    assert next(row["computed"] for row in json.loads(one.stdout)) == "2·B·N·d_k + 2·B·N·d_v"
    for words, hint in ((("show", "matmul", "--costs"), "lists those"), (("show",), "show --costs")):
        refused = run(*words)
        assert refused.returncode == 2 and hint in refused.stderr
