"""Experiments: builds, groups, points, refusals, errors, and that reading one stays cheap."""

import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from tests.machine import machines

from moapipe.errors import ConfigError
from moapipe.lab import experiment
from moapipe.lab.experiment import Build, Group
from moapipe.machine.seating import settled

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(p.stem for p in (ROOT / "config").glob("*.yaml"))


def edit(repository, old, new):
    path = repository / "config/small.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_groups_and_builds(repository):
    e = experiment.read("small", repository)
    assert experiment.groups(e) == tuple(Group("toy", f, t) for f, t in product(("full", "causal"), ("f32", "f64")))
    assert [b.path() for b in experiment.builds(e, Group("toy", "full", "f64"))] == [
        "toy/full/plain/c/avx512/f64", "toy/full/plain/fortran/avx512/f64", "toy/full/tiled/c/avx512/f64"]
    assert len(experiment.builds(e)) == 12 and len(set(experiment.builds(e))) == 12


def test_a_language_that_does_not_hold_a_dtype_is_refused_and_has_no_text_in_it(repository):
    edit(repository, "    at:", "    dtypes: [bf16]\n    at:")
    e, gpu = experiment.read("small", repository), experiment.read("evidence", ROOT)
    cases = experiment.cases(e, Group("toy", "full", "bf16"))
    assert not experiment.builds(e) and {c.reason for c in cases if c.build.variant == "plain" and c.build.target == "c"} == {"c holds no numbers in bf16; cuda can"}
    by_dtype = {d: {b.target for b in experiment.texts(gpu) if b.dtype == d} for d in ("f32", "bf16")}
    assert by_dtype["bf16"] == {"cuda"} < by_dtype["f32"]
    of = {d: [b.path().removesuffix(d) for b in experiment.texts(gpu) if (b.target, b.dtype) == ("cuda", d)] for d in ("f32", "bf16")}
    assert sorted(of["f32"]) == sorted(of["bf16"])


def test_a_build_and_its_path_are_one_thing():
    b = Build("toy", "full", "plain", "c", "avx512", "f64")
    assert Build.of(b.path()) == b
    with pytest.raises(ConfigError, match="names no build"):
        Build.of("toy/full")


def test_points_are_the_product_of_each_grid_with_threads(repository):
    points = experiment.points(experiment.read("small", repository), "toy")
    assert [(p.label, p.threads) for p in points[:4]] == [("d=2 n=4", 1), ("d=2 n=4", 2), ("d=2 n=8", 1), ("d=2 n=8", 2)]
    assert points[4].sizes == {"rows": 3, "columns": 5, "depth": 1} and len(points) == 8


def test_what_is_not_run_is_refused_with_a_reason(repository):
    e = experiment.read("small", repository)
    cases = experiment.cases(e, Group("toy", "full", "f32"))
    assert len(cases) == 3 * 8
    refused = {(c.build.variant, c.point.label): c.reason for c in cases if c.reason}
    assert refused == {("plain", "d=2 n=8"): "small limits plain to n <= 4"}
    edit(repository, "    at:", "    variants: [tiled]\n    at:")
    e = experiment.read("small", repository)
    assert {c.reason for c in experiment.cases(e, Group("toy", "full", "f32")) if c.build.target == "fortran"} == {"tiled of toy is not written for fortran"}
    assert [b.target for b in experiment.builds(e, Group("toy", "full", "f32"))] == ["c"]


@pytest.mark.parametrize(("old", "new", "message", "hint"), [
    ("threads:", "thread:", "unknown key thread", "did you mean 'threads'?"),
    ("    limits:", "    limit:", "unknown key kernels.toy.limit", "did you mean 'limits'?"),
    ("  toy:", "  toi:", "no kernel 'toi'", "did you mean 'toy'?"),
    ("d: 2}", "D: 2}", "no size parameter of toy 'D'", "known: n, d, rows, columns, depth"),
    (", d: 2}", "}", "at: d not set", "toy needs n, d"),
    ("n: [4, 8]", "n: [4, -8]", "kernels.toy.at.0.n", ""),
    ("isa: avx512", "isa: avx513", "no instruction set 'avx513'", "did you mean 'avx512'?"),
    ("isa: avx512", "isa: avx512\nlaunches: 2", "launches", ""),
    ("isa: avx512", "isa: avx512\nmachine: locale", "cannot read it", "did you mean 'local'?"),
    ("{plain: {n: 4}}", "{plane: {n: 4}}", "no variant of toy 'plane'", "did you mean 'plain'?"),
    ("    at:", "    forms: [casual]\n    at:", "no form of toy 'casual'", "did you mean 'causal'?"),
    ("n: [4, 8]", 'n: "8"', "kernels.toy.at.0.n: should be a valid integer, or should be a list; found '8'", "without quotes"),
    ("n: [4, 8]", 'n: ["8"]', "kernels.toy.at.0.n", ""),
    ("n: [4, 8]", "n: true", "kernels.toy.at.0.n", ""),
    ("n: [4, 8]", "n: []", "kernels.toy.at.0.n", ""),
    ("n: [4, 8]", f"n: {10**15}", "kernels.toy.at.0.n", ""),
    ("isa: avx512", "isa: avx512\ntime_box_s: .inf", "time_box_s: should be a finite number", ""),
    *(("isa: avx512", f"isa: avx512\n{axis}: []", axis, "") for axis in ("placements", "memories", "wait_policies", "runtimes", "believed_cpus")),
    *(("    at:", f"    {axis}: []\n    at:", f"kernels.toy.{axis}", "") for axis in ("targets", "dtypes")),
    *(("    at:", f"    {axis}: [{v}, {v}]\n    at:", f"{axis}: {v} is named twice", "dataset")
      for axis, v in (("targets", "c"), ("dtypes", "f32"), ("variants", "plain"), ("forms", "full"), ("yardsticks", "copy"))),
    ("    at:", "    dtypes: [f32, bf16]\n    yardsticks: [copy]\n    at:", "yardsticks move no bf16", "they move f32, f64"),
    ("    at:", "    dtypes: [bf61]\n    at:", "kernels.toy.dtypes.0", ""),
])
def test_a_wrong_experiment_teaches(repository, old, new, message, hint):
    edit(repository, old, new)
    with pytest.raises(ConfigError) as e:
        experiment.read("small", repository)
    assert message in str(e.value) and hint in e.value.hint


def test_no_such_experiment(repository):
    with pytest.raises(ConfigError) as e:
        experiment.read("smal", repository)
    assert "did you mean 'small'?" in e.value.hint


@pytest.mark.parametrize(("flags", "isa"), [
    ("fpu avx avx2 fma avx512f avx512dq avx512bw avx512vl avx512cd", "avx512"), ("avx2 fma avx512f", "avx2"), ("avx2", "plain"), ("sse2", "plain")])
def test_native_isa_is_the_widest_that_runs(tmp_path, monkeypatch, flags, isa):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert experiment.native_isa(tmp_path / "cpuinfo") == isa


def test_native_isa_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert experiment.native_isa() == "neon"
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert experiment.native_isa(tmp_path / "none") == "plain"


def test_the_machine_file_decides_before_the_processor(repository):
    (repository / "config/machines/local.yaml").write_text("isa: avx2\ncompilers: {c: {command: gcc}}\n")
    edit(repository, "isa: avx512", "isa: auto")
    assert experiment.read("small", repository).isa == "avx2"


@pytest.mark.parametrize("name", ["../../etc/passwd", "config/machines/local.yaml", "/local", ""])
def test_a_machine_is_named_by_one_word(repository, name):
    with pytest.raises(ConfigError, match="is no name of a machine"):
        experiment.machine_file(name, repository)


def test_importing_is_light():
    """The Snakefile imports this module: no array library, no torch, no computer algebra."""
    code = "import sys, moapipe.lab.experiment; print([m for m in ('numpy', 'torch', 'xarray', 'sympy', 'netCDF4', 'pandas') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_five_hundred_builds_are_listed_at_once(repository):
    names = [f"k{i:02}" for i in range(42)]
    for name in names:
        for end in ("py", "yaml"):
            (repository / f"kernels/{name}.{end}").write_text((repository / f"kernels/toy.{end}").read_text())
    (repository / "config/large.yaml").write_text("isa: avx2\nkernels:\n" + "".join(f"  {n}: {{at: [{{n: 4, d: 2}}]}}\n" for n in names))
    start = time.process_time()
    e = experiment.read("large", repository)
    assert len({experiment.derive_digest(e, b) for b in experiment.builds(e)}) == 2
    assert len(experiment.builds(e)) == 504
    assert time.process_time() - start < 5


def test_digest_of_a_run_follows_cases_and_sampling_only(repository):
    def now():
        e = experiment.read("small", repository)
        return [experiment.run_digest(e, g) for g in experiment.groups(e)]

    before = now()
    edit(repository, "isa: avx512", "# a comment\nabout: prose\nisa: avx512")
    assert now() == before
    edit(repository, "threads: [1, 2]", "threads: [1]")
    assert not set(now()) & set(before)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_experiment_of_the_repository_reads(name):
    e = experiment.read(name, ROOT)
    only_emulated = "measures nothing" in e.file.about
    assert bool(experiment.builds(e)) is not only_emulated
    for g in experiment.groups(e):
        cases = experiment.cases(e, g)
        assert any(not c.reason or (only_emulated and "emulated" in c.reason) for c in cases)


# ------------------------------------------------------------------ arrangements


def sweep(repository, lines):
    """The experiment with other run axes beside the sizes."""
    text = (repository / "config/small.yaml").read_text().replace("threads: [1, 2]\n", lines)
    (repository / "config/swept.yaml").write_text(text)
    return experiment.read("swept", repository)


def test_cores_are_held_and_threads_raised(repository):
    e = sweep(repository, "cores: [2]\nthreads_per_core: [0.5, 1, 8]\nwait_policies: [passive, active]\n")
    found = {(a.threads, a.cores, a.wait_policy) for a in experiment.arrangements(e)}
    assert found == {(t, 2, w) for t in (1, 2, 16) for w in ("passive", "active")}


def test_arrangements_are_settled_on_the_machine_and_not_before(repository):
    e = sweep(repository, "threads: [all]\nplacements: [per_l3, each_numa]\nmemories: [owner, each_node]\n")
    group = experiment.groups(e)[0]
    before = experiment.run_digest(e, group)
    small, large = (machines.synthetic(m) for m in (machines.MILAN_NPS1, machines.MILAN_NPS4))
    counts = [len(experiment.arrangements(e, partial(settled, top=top))) for top in (small, large)]
    assert counts == [(1 + 2) * (1 + 2), (1 + 8) * (1 + 8)]
    assert experiment.run_digest(e, group) == before
    threads = {p.threads for p in experiment.points(e, "toy", partial(settled, top=large)) if p.arrangement.placement == "per_l3"}
    assert threads == {16}


@pytest.mark.parametrize(("lines", "message"), [
    ("placements: [nearby]\n", "nearby"), ("memories: [there]\n", "there"), ("wait_policies: [never]\n", "never"), ("runtimes: [libfoo]\n", "libfoo"),
    ("cores: [1]\n", "cores and threads_per_core belong together"), ("threads_per_core: [2]\n", "cores and threads_per_core belong together"),
    ("believed_cpus: [-1]\n", "believed_cpus"), ("threads: [some]\n", "threads"),
])
def test_what_is_no_arrangement_is_refused(repository, lines, message):
    with pytest.raises(ConfigError, match=message):
        sweep(repository, lines)
