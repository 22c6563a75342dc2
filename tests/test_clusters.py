"""Anvil and Delta without a Slurm: what would be submitted, what it costs, and every refusal that a person may meet."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.cli import parse_args
from snakemake.iocontainers import ResourceList
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from tests.conftest import PROGRAMS, Checkout
from tests.software import compilers, install

import snakemake_logger_plugin_moapipe as plugin
from moapipe.errors import ConfigError, LabError
from moapipe.lab import experiment, module, request, slurm
from moapipe.lab.cluster import Ask
from moapipe.lab.experiment import Experiment, Group, machine_file

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = {"anvil": ("ANVIL_ACCOUNT", "ANVIL_GPU_ACCOUNT"), "delta": ("DELTA_ACCOUNT", "DELTA_GPU_ACCOUNT")}
KINDS = ("prepare", "measure", "measure_gpu")
LINES = {
    ("anvil", "prepare"): "-A cpu-time -p shared -t 10 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
    ("anvil", "measure"): "-A cpu-time -p wholenode -t 15 --mem 240000 --ntasks=1 --cpus-per-task=128 --exclusive",
    ("anvil", "measure_gpu"): "-A gpu-time -p gpu -t 15 --mem 120000 --ntasks=1 --cpus-per-task=32 --exclusive --gpus-per-node=1",
    ("delta", "prepare"): "-A cpu-time -p cpu -t 10 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
    ("delta", "measure"): "-A cpu-time -p cpu -t 15 -C scratch --mem 240000 --ntasks=1 --cpus-per-task=128 --exclusive",
    ("delta", "measure_gpu"):
        "-A gpu-time -p gpuA100x4 -t 15 -C scratch --mem 60000 --ntasks=1 --cpus-per-task=16 --exclusive --gpus-per-node=1 --gpu-bind=closest",
}


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, gpu in CLUSTERS.values():
        monkeypatch.setenv(cpu, "cpu-time")
        monkeypatch.setenv(gpu, "gpu-time")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on a cluster, without accounts."""
    for name in ("RCAC_CLUSTER", "LMOD_SYSTEM_NAME", "SNAKEMAKE_PROFILE", "MODULESHOME", module.MARK, *(v for pair in CLUSTERS.values() for v in pair)):
        monkeypatch.delenv(name, raising=False)


def on(cluster: str, name: str = "smoke") -> Experiment:
    return experiment.read(name, ROOT, cluster)


# ------------------------------------------------------------------ what is submitted


def line(ask: Ask) -> str:
    """What the Slurm executor would hand to sbatch, from the account on; Snakemake itself counts one thread."""
    given = ask.resources()
    job = SimpleNamespace(resources=ResourceList(fromdict=given), threads=1)
    validate_slurm_extra(job)
    account, partition = f"-A {given['slurm_account']}", f"-p {given['slurm_partition']}"
    params = {"run_uuid": "x", "slurm_logfile": "x", "comment_str": "x", "account": account, "partition": partition, "workdir": ""}
    return get_submit_command(job, params).partition("--comment x ")[2]


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_submitted_line_is_what_the_site_wants(cluster: str, kind: str) -> None:
    c = machine_file(cluster, ROOT).cluster
    found = line(Ask(c, kind, c.requests[kind].minutes))
    assert found == LINES[cluster, kind]
    assert len(re.findall(r"--mem\b|--mem-per-cpu", found)) == 1
    assert re.findall(r"--cpus-per-task=(\d+)", found) == [str(c.requests[kind].cores)]
    assert ("--exclusive" in found) == (kind != "prepare")
    assert ("--gpus-per-node" in found) == (kind == "measure_gpu")


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_only_what_measures_has_a_node_to_itself(cluster: str) -> None:
    e = on(cluster)
    group = experiment.groups(e)[0]
    alone = {s for s in request.STAGES if request.ask(e, s, group if s == "bench" else None).request.exclusive}
    assert alone == {"calibrate", "bench"}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_bench_may_take_as_long_as_its_time_boxes(cluster: str) -> None:
    e = on(cluster, "models")
    for group in experiment.groups(e):
        boxes = sum(e.file.time_box_s for c in experiment.cases(e, group) if not c.reason) / 60
        asked = request.ask(e, "bench", group)
        assert boxes < asked.minutes <= 60 * asked.partition.hours


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_group_with_device_code_goes_where_gpus_are(cluster: str) -> None:
    e = on(cluster)
    work = e.file.kernels["rmsnorm"].model_copy(update={"targets": ("c", "cuda")})
    e.file.kernels["rmsnorm"] = work
    assert request.ask(e, "bench", Group("rmsnorm", "forward", "f64")).kind == "measure_gpu"
    assert request.ask(e, "bench", Group("matmul", "nn", "f64")).kind == "measure"


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_profile_decides_the_executor(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """profiles/default is read after --profile and would silently win: an executor there ran cluster jobs on the login node."""
    monkeypatch.chdir(ROOT)
    _, found = parse_args(["--profile", cluster, "--config", "experiment=config/models.yaml"])
    assert found.executor == "slurm"
    assert found.cores is None and not found.default_resources
    assert found.keep_incomplete and found.rerun_incomplete
    assert [Path(p).name for p in found.configfile] == ["machine.yaml"]
    _, plain = parse_args(["--cores", "2"])
    assert plain.executor is None


def test_the_default_profile_holds_nothing_of_a_machine() -> None:
    text = "".join(p.read_text() for p in (ROOT / "profiles/default").glob("*.yaml"))
    keys = set(re.findall(r"^([\w-]+):", text, re.MULTILINE))
    assert keys
    assert not keys & {"executor", "cores", "jobs", "resources", "default-resources", "set-resources", "set-threads", "config", "configfile", "local-cores"}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_links_at_the_root_lead_to_the_profiles(cluster: str) -> None:
    assert (ROOT / cluster).is_symlink() and (ROOT / cluster).readlink() == Path("profiles") / cluster


# ------------------------------------------------------------------ a dry run


def plain(checkout: Checkout, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """Snakemake in a checkout, its own words only."""
    return checkout.run("snakemake", *words, env=checkout.environment(**environment))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_dry_run_lists_jobs_and_costs_without_slurm(cluster: str, clean: Checkout) -> None:
    done = plain(clean, "--profile", cluster, "-n")
    assert done.returncode == 0, done.stdout
    assert f"Using profiles {cluster}" in done.stdout
    assert re.search(r"^bench +\d+$", done.stdout, re.MULTILINE)
    assert re.search(r"^bench +\d+ +[\d.]+ +[\d.]+  (wholenode|cpu)$", done.stdout, re.MULTILINE)
    assert f"account not set: export {CLUSTERS[cluster][0]}=" in done.stdout


def test_a_dry_run_names_the_accounts_and_keeps_the_machine_beside_another_experiment(clean: Checkout) -> None:
    done = plain(clean, "--profile", "delta", "-n", "--config", "experiment=config/tiny.yaml", DELTA_ACCOUNT="xyz-delta-cpu")
    assert done.returncode == 0, done.stdout
    assert "account xyz-delta-cpu (DELTA_ACCOUNT)" in done.stdout and "On delta, at most" in done.stdout


def test_a_local_dry_run_speaks_of_no_cluster(clean: Checkout) -> None:
    done = plain(clean, "-n")
    assert done.returncode == 0 and "service units" not in done.stdout


@pytest.mark.parametrize(("cluster", "stage", "node_hours", "units"), (
    ("anvil", "calibrate", 0.25, 32.0), ("anvil", "derive", 1 / 6 / 128, 1 / 6), ("delta", "calibrate", 0.25, 32.0),
))
def test_the_preview_counts_service_units(cluster: str, stage: str, node_hours: float, units: float) -> None:
    asked = request.ask(on(cluster), stage)
    assert asked.node_hours == pytest.approx(node_hours) and asked.units == pytest.approx(units)


@pytest.mark.parametrize(("cluster", "units"), (("anvil", 4.0), ("delta", 4.0)))
def test_a_gpu_node_is_charged_by_its_gpus(cluster: str, units: float) -> None:
    c = machine_file(cluster, ROOT).cluster
    assert Ask(c, "measure_gpu", 60).units == units


# ------------------------------------------------------------------ refusals


def test_without_an_account_nothing_is_submitted(clean: Checkout) -> None:
    done = plain(clean, "--profile", "anvil", "--config", "experiment=config/tiny.yaml")
    assert done.returncode == 1
    assert "account not set, so nothing is submitted" in done.stdout and "export ANVIL_ACCOUNT=" in done.stdout
    assert "Traceback" not in done.stdout and not (clean.path / "results").exists()


def test_a_profile_of_another_cluster_is_refused(clean: Checkout) -> None:
    done = plain(clean, "--profile", "anvil", "--config", "experiment=config/tiny.yaml", RCAC_CLUSTER="bell", ANVIL_ACCOUNT="abc")
    assert done.returncode == 1 and "this is not anvil: RCAC_CLUSTER=bell" in done.stdout


def test_from_another_directory_it_says_where_to_start(clean: Checkout, tmp_path: Path) -> None:
    for words in (("--profile", "anvil"), ("--profile=anvil", "--snakefile", str(clean.path / "Snakefile"))):
        done = subprocess.run([PROGRAMS / "snakemake", *words, "-n"], cwd=tmp_path, env=clean.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 1
        assert f"cd {clean.path} && snakemake --profile anvil" in done.stdout and f"{tmp_path} has no anvil" in done.stdout
    done = subprocess.run([PROGRAMS / "snakemake", "-n", "--snakefile", clean.path / "Snakefile"], cwd=tmp_path, env=clean.environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 1 and f"cd {clean.path}" in done.stdout


def test_the_way_that_it_names_works_from_anywhere(clean: Checkout, tmp_path: Path) -> None:
    words = ["--directory", clean.path, "--snakefile", clean.path / "Snakefile", "--profile", clean.path / "profiles" / "anvil", "-n"]
    done = subprocess.run([PROGRAMS / "snakemake", *words], cwd=tmp_path, env=clean.environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0 and "On anvil, at most" in done.stdout


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "anvil").mkdir()
    found = plugin.advice("anvil", tmp_path, ROOT, ())
    assert f"{tmp_path / 'anvil'} is in the way" in found and "hint" in found
    assert not plugin.advice("anvil", ROOT, ROOT, ())
    assert not plugin.advice("mine", tmp_path, ROOT, ())


def test_a_folder_in_the_place_of_the_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "profiles/anvil").mkdir(parents=True)
    (tmp_path / "profiles/anvil/config.v9+.yaml").write_text("executor: slurm\n")
    (tmp_path / "anvil").mkdir()
    assert "git checkout anvil" in plugin.advice("anvil", tmp_path, tmp_path, ())


def test_a_profile_in_the_users_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "user/anvil").mkdir(parents=True)
    (tmp_path / "user/anvil/profile.yaml").write_text("executor: slurm\n")
    assert not plugin.advice("anvil", tmp_path, ROOT, (tmp_path / "user",))
    (tmp_path / "anvil").mkdir()
    assert plugin.advice("anvil", tmp_path, ROOT, (tmp_path / "user",))


@pytest.mark.parametrize(("words", "environment", "expected"), (
    (["snakemake", "--profile", "anvil", "-n"], {}, ["anvil"]), (["snakemake", "--profile=delta"], {"SNAKEMAKE_PROFILE": "anvil"}, ["delta"]),
    (["snakemake", "-n"], {"SNAKEMAKE_PROFILE": "anvil"}, ["anvil"]), (["snakemake", "--cores", "2"], {}, []),
))
def test_the_profile_that_is_asked_for(words: list[str], environment: dict[str, str], expected: list[str]) -> None:
    assert list(plugin.asked(words, environment)) == expected


# ------------------------------------------------------------------ login nodes


@pytest.mark.parametrize(("known", "host", "measures"), (
    ((), "laptop", True), (("a000", "a001"), "login03", False), (("a000", "a001"), "a001", True), (("cn001",), "cn001.delta.ncsa.illinois.edu", True),
))
def test_a_host_that_is_no_node_of_its_cluster_measures_nothing(known, host: str, measures: bool) -> None:
    if measures:
        slurm.measurable(frozenset(known), host)
    else:
        with pytest.raises(LabError, match="login node"):
            slurm.measurable(frozenset(known), host)


@pytest.mark.parametrize(("sinfo", "refused"), (("echo a000 a000", True), ("echo 'sinfo: error: no controller' >&2; exit 1", False), ("sleep 60", False)))
def test_programs_alone_prove_nothing(sinfo: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sinfo"
    program.write_text(f"#!/bin/sh\n{sinfo}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")     # a shell inside an allocation may still run on the login node
    monkeypatch.setattr(slurm, "PATIENCE_S", 0.3)
    assert bool(slurm.nodes()) == refused


def test_calibrate_is_refused_on_a_login_node(clean: Checkout, tmp_path: Path) -> None:
    program = tmp_path / "sinfo"
    program.write_text("#!/bin/sh\necho a000 a000\n")
    program.chmod(0o755)
    done = clean.moapipe("calibrate", env=clean.environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert done.returncode == 2 and "is a login node" in done.stdout and "hint" in done.stdout


# ------------------------------------------------------------------ modules and compilers

BUILD = ("rmsnorm", "--variant", "row", "--isa", "avx2", "--machine", "anvil")


def test_a_build_runs_with_its_modules(finished: Checkout, line: Checkout, tmp_path: Path) -> None:
    done = line.moapipe("build", *BUILD, env=line.environment(**install(tmp_path / "site")))
    assert done.returncode == 0, done.stdout
    made = next((line.path / "results/build").rglob("anvil/build.json"))
    assert '"version": "gcc (GCC) 11.2.0"' in made.read_text()


def test_a_misspelt_module_stops_the_build(line: Checkout, tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    line.edit("config/machines/anvil.yaml", "gcc/11.2.0]", "gcc/11.2.O]")
    done = line.moapipe("build", *BUILD, "--keep-going", env=line.environment(**site))
    assert done.returncode == 2
    assert "modules not loaded: gcc/11.2.O" in done.stdout and "unknown module gcc/11.2.O" in done.stdout and "module spider" in done.stdout


def test_a_module_with_another_compiler_stops_the_build(line: Checkout, tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    compilers(tmp_path / "site/gcc/11.2.0", "8.5.0")
    done = line.moapipe("build", *BUILD, "--keep-going", env=line.environment(**site))
    assert done.returncode == 2 and "expected gcc 11.2.0, found gcc (GCC) 8.5.0" in done.stdout
    assert not list((line.path / "results/build").rglob("anvil/build.json"))


def test_a_module_that_does_not_load_is_one_message() -> None:
    with pytest.raises(LabError, match=r"modules not loaded: gcc/0\.0"):
        module.loaded(["gcc/0.0"])


# ------------------------------------------------------------------ what docs/clusters.md promises


def test_every_acceptance_scenario_names_tests_that_exist() -> None:
    """Thirteen rows, each with at least one test."""
    rows = re.findall(r"^\| (\d+) \| .*? \| (.*) \|$", (ROOT / "docs/clusters.md").read_text(), re.MULTILINE)
    assert [int(n) for n, _ in rows] == list(range(1, 14))
    for number, where in rows:
        named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", where)
        assert named, number
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


# ------------------------------------------------------------------ a machine file that is not right

WRONG = {
    "two memory flags": ("memory_mb_per_core: 1800", "memory_mb_per_core: 1800, memory_mb: 1000", "set one of memory_mb"),
    "no memory flag": ("cores: 1, memory_mb_per_core: 1800", "cores: 1", "set one of memory_mb"),
    "a partition that is not there": ("partition: wholenode", "partition: whole", "did you mean 'wholenode'"),
    "more cores than a node has": ("cores: 128, memory_mb: 240000", "cores: 256, memory_mb: 240000", "at most 128 cores"),
    "an account that is not there": ("account: cpu, cores: 1,", "account: cup, cores: 1,", "did you mean 'cpu'"),
    "the login node's instructions": ("isa: avx2", "isa: auto", "the login node's"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_cluster_teaches(what: str, tmp_path: Path) -> None:
    old, new, says = WRONG[what]
    text = (ROOT / "config/machines/anvil.yaml").read_text()
    assert old in text
    (tmp_path / "config/machines").mkdir(parents=True)
    (tmp_path / "config/machines/anvil.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(says)):
        try:
            machine_file("anvil", tmp_path)
        except ConfigError as error:
            raise ConfigError(str(error)) from None
