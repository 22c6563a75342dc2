"""The line through a real Slurm on loopback, with the partitions of Anvil and Delta: from sbatch to the archive, and what goes wrong on the way.

On Delta all goes well, with device code beside C. On Anvil one run after the other meets a node that dies in the middle of a bench,
a job that is cancelled, and accounting that is wrong or late. Skipped where there is no Slurm or no root; with MOAPIPE_SLURM=required,
as in continuous integration, that is a failure.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import PROGRAMS, RATES, ROOT, Checkout, fresh
from tests.software import install

from moapipe.lab import record
from moapipe.lab.cluster import Ask
from moapipe.lab.experiment import machine_file
from moapipe.lab.variable import STATUSES

SCRIPT, HASTY = (Path(__file__).resolve().parent / name for name in ("slurm.sh", "hasty.py"))
ACCOUNTS = {"ANVIL_ACCOUNT": "abc", "ANVIL_GPU_ACCOUNT": "abc-gpu", "DELTA_ACCOUNT": "xyz-delta-cpu", "DELTA_GPU_ACCOUNT": "xyz-delta-gpu"}
LIMIT_S = 600
SMALL = """about: one kernel, small; a bench long enough to be interrupted
nodes: NODES
isa: avx2
time_box_s: 6
samples: 1000
baseline: false
kernels:
  rmsnorm: {variants: [row], targets: [TARGETS], dtypes: [f64], at: [{n: 64, d: 96}]}
"""
TARGETS = {"anvil": "c", "delta": "c, cuda"}
JOBS = {"anvil": 1, "delta": 2}      # that measure the group: on Delta one after the other, on the only node of the kind
GROUP = "bench/rmsnorm/forward/f64"
SACCT = """#!/bin/bash
# accounting as the executor asks for it, out of what the controller knows; `mode` makes it late, or wrong about a good bench. It is there
# from the start: when the controller is slow to answer once, the executor asks sacct even where it was told to ask squeue
for word; do [ "$last" = --name ] && name=$word; last=$word; done
[ -n "$name" ] || exit 0
case $(cat {place}/mode) in
right) squeue -h --states=all --name "$name" -o '%i|%T' ;;
late) echo x >> {place}/calls; [ $(wc -l < {place}/calls) -gt 4 ] || exit 0; squeue -h --states=all --name "$name" -o '%i|%T' ;;
wrong) squeue -h --states=all --name "$name" -o '%i|%T|%k' | sed -E '/rule_bench/s/COMPLETED/FAILED/; s/[|][^|]*$//' ;;
esac
"""


@dataclass(frozen=True)
class Site:
    """A running Slurm, what its users' shells hold, and a folder `bin` that stands before the system's programs."""

    place: Path
    environment: dict[str, str]
    started: list[subprocess.Popen] = field(default_factory=list)

    def script(self, command: str, *words: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run([SCRIPT, command, self.place, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)

    def start(self, checkout: Checkout, cluster: str, status: str = "squeue") -> subprocess.Popen:
        """Snakemake with a cluster's profile, in the background; its words go to `run.log`."""
        command = [SCRIPT, "run", self.place, sys.executable, HASTY, "--profile", cluster, "--config", "experiment=config/small.yaml", "--latency-wait", "5",
                   "--verbose", "--slurm-init-seconds-before-status-checks", "1", "--slurm-status-command", status]
        with (checkout.path / "run.log").open("w") as log:
            env = checkout.environment(**ACCOUNTS, **self.environment)
            self.started.append(subprocess.Popen(command, cwd=checkout.path, env=env, stdout=log, stderr=subprocess.STDOUT))
        return self.started[-1]

    def jobs(self) -> list[dict[str, str]]:
        """Every job that has ended, as the controller wrote it down."""
        text = (self.place / "log" / "jobs.txt").read_text()
        return [dict(re.findall(r"(\w+)=(\S*)", row)) for row in text.splitlines()]


def said(checkout: Checkout) -> str:
    return (checkout.path / "run.log").read_text()


def submitted(log: str) -> dict[str, str]:
    """What sbatch was told, by rule or group, from the account on."""
    return {name: rest.strip() for name, rest in re.findall(r"^sbatch call: .*?--comment '?(?:rule_)?(\w+?)(?:_wildcards\S*)? (.*?) -D ", log, re.MULTILINE)}


def accounting(site: Site, mode: str) -> None:
    """A sacct that stands before the system's."""
    program = site.place / "bin" / "sacct"
    program.write_text(SACCT.format(place=site.place / "bin"))
    program.chmod(0o755)
    (site.place / "bin" / "mode").write_text(mode)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("slurm")
    (place / "bin").mkdir()
    software = install(tmp_path_factory.mktemp("software") / "site")
    out = Site(place, {**software, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"})
    port = str(17000 + os.getpid() % 1000 * 10)          # two sessions on a machine do not meet
    done = out.script("start", env={**os.environ, "PORT": port}) if os.getuid() == 0 else None
    if done is None or done.returncode:
        why = f"no Slurm to test with: {done.stdout.strip() if done else 'it wants root'}"
        if os.environ.get("MOAPIPE_SLURM") == "required":
            pytest.fail(why)
        pytest.skip(why)
    accounting(out, "right")
    try:
        yield out
    finally:
        for process in out.started:
            process.kill()
            process.wait()
        assert out.script("stop").returncode == 0


def prepared(place: Path, cluster: str) -> Checkout:
    """A checkout whose only results are rates, and an earlier record that nobody can read."""
    out = fresh(place)
    rates = out.path / "results/calibrate" / cluster / "calibration.json"
    rates.parent.mkdir(parents=True)
    rates.write_text(json.dumps(RATES.to_json()).replace('"local"', f'"{cluster}"'))
    (out.path / "config/small.yaml").write_text(SMALL.replace("TARGETS", TARGETS[cluster]).replace("NODES", str(JOBS[cluster])))
    folder(out, cluster).mkdir(parents=True)
    for name in ("record.nc", "kept.nc"):
        (folder(out, cluster) / name).write_bytes(OLD)
    return out


def folder(checkout: Checkout, cluster: str) -> Path:
    return checkout.path / f"results/small/{cluster}/{GROUP}"


OLD = b"the record of an earlier run"


# ------------------------------------------------------------------ both clusters, from sbatch to the archive


@dataclass(frozen=True)
class Step:
    """A run of Snakemake: what was to happen in it, its exit code and words, what the bench said, the bench's files afterwards."""

    code: int
    log: str
    bench: str
    files: dict[str, bytes]

    @property
    def launches(self) -> int:
        """Finished ones in the journal."""
        return sum(any(rows) for rows in json.loads(self.files["journal.json"])["launches"].values())


@dataclass(frozen=True)
class Walk:
    """A cluster's checkout and all runs in it until one ended well."""

    checkout: Checkout
    steps: tuple[Step, ...]


def step(site: Site, checkout: Checkout, cluster: str, happens: Callable[[], object] | None = None, during: int = 0, status: str = "squeue") -> Step:
    """One run; once launch `during` of the bench has begun, something happens."""
    log = checkout.path / f"results/logs/small/{GROUP}.log"
    log.unlink(missing_ok=True)
    process = site.start(checkout, cluster, status)
    if happens is not None:
        deadline = time.monotonic() + LIMIT_S
        while not (log.is_file() and f"launch {during} of 3" in log.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, said(checkout)[-3000:]
            time.sleep(0.1)
        happens()
    code = process.wait(LIMIT_S)
    files = {p.name: p.read_bytes() for p in folder(checkout, cluster).iterdir() if p.is_file()}
    return Step(code, said(checkout), log.read_text() if log.is_file() else "", files)


@pytest.fixture(scope="module")
def walks(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Walk]:
    """Both clusters to their archives: Delta while Anvil prepares; on Anvil one thing after the other goes wrong."""
    delta, anvil = (prepared(tmp_path_factory.mktemp(c) / "moapipe", c) for c in ("delta", "anvil"))
    well = step(site, delta, "delta")
    died = step(site, anvil, "anvil", lambda: site.script("fail", "a001"), 2)
    assert site.script("revive", "a001").returncode == 0
    cancelled = step(site, anvil, "anvil", lambda: site.script("run", "scancel", "--partition=wholenode", "--user=root"), 3)
    accounting(site, "wrong")
    denied = step(site, anvil, "anvil", status="sacct")
    accounting(site, "late")
    late = step(site, anvil, "anvil", status="sacct")
    return {"delta": Walk(delta, (well,)), "anvil": Walk(anvil, (died, cancelled, denied, late))}


LINES = {
    "anvil": {
        "prepare_build_derive": "-A abc  -p shared -t 20 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "validate": "-A abc  -p shared -t 10 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "predict": "-A abc  -p shared -t 10 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "bench": "-A abc  -p wholenode -t 16 --mem 240000 --ntasks=1 --cpus-per-task=128 --exclusive",
        "report_archive_chart_collect": "-A abc  -p shared -t 30 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
    },
    "delta": {
        "prepare_build_derive": "-A xyz-delta-cpu  -p cpu -t 20 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=2",
        "emulate": "-A xyz-delta-cpu  -p cpu -t 10 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "evidence": "-A xyz-delta-cpu  -p cpu -t 10 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "validate": "-A xyz-delta-gpu  -p gpuA100x4 -t 15 -C scratch --mem 60000 --ntasks=1 --cpus-per-task=16 --exclusive --gpus-per-node=1 --gpu-bind=closest",
        "predict": "-A xyz-delta-cpu  -p cpu -t 10 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "bench": "-A xyz-delta-gpu  -p gpuA100x4 -t 16 -C scratch --mem 60000 --ntasks=1 --cpus-per-task=16 --exclusive --gpus-per-node=1 --gpu-bind=closest",
        "report_archive_chart_collect": "-A xyz-delta-cpu  -p cpu -t 30 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
    },
}
NODES = {"anvil": {"shared": "a000", "wholenode": "a001"}, "delta": {"cpu": "cn001", "gpuA100x4": "gpua001"}}
HOSTS = {"anvil": "a001", "delta": "gpua001"}


@pytest.mark.parametrize("cluster", LINES)
def test_it_runs_to_the_archive_through_sbatch(cluster: str, walks: dict[str, Walk], site: Site) -> None:
    checkout, steps = walks[cluster].checkout, walks[cluster].steps
    assert steps[-1].code == 0, steps[-1].log[-3000:]
    assert {k: v for s in steps for k, v in submitted(s.log).items()} == LINES[cluster]
    assert steps[0].log.index(f"On {cluster}, at most") < steps[0].log.index("sbatch call")
    here = checkout.path / f"results/small/{cluster}"
    assert (checkout.path / (here / "archive.txt").read_text().strip() / "index.html").is_file()
    mine = [j for j in site.jobs() if j["WorkDir"] == str(checkout.path)]
    assert {j["Partition"]: j["NodeList"] for j in mine} == NODES[cluster]
    data = record.read(here / "dataset.nc")
    assert set(data["machine"].values) == {cluster}
    assert set(data["host"].values.ravel().tolist()) == {HOSTS[cluster]} and data.sizes["launch"] == 3 * JOBS[cluster]


@pytest.mark.parametrize("cluster", LINES)
def test_a_second_run_submits_nothing(cluster: str, walks: dict[str, Walk]) -> None:
    checkout = walks[cluster].checkout
    done = checkout.run("snakemake", "--profile", cluster, "-n", "--config", "experiment=config/small.yaml", env=checkout.environment(**ACCOUNTS))
    assert done.returncode == 0 and "Nothing to be done" in done.stdout, done.stdout


def test_the_shells_own_settings_do_not_reach_a_measurement(walks: dict[str, Walk]) -> None:
    """Slurm hands the login shell's environment on (--export=ALL), and Snakemake sets OMP_NUM_THREADS itself."""
    environment = record.read(folder(walks["anvil"].checkout, "anvil") / "record.nc").attrs["environment"]
    assert '"OMP_NUM_THREADS": "1"' in environment and "128" not in re.findall(r'"OMP_NUM_THREADS": "(\d+)"', environment)


@pytest.mark.parametrize("kind", ("prepare", "measure", "measure_gpu"))
@pytest.mark.parametrize("cluster", LINES)
def test_the_controller_takes_every_request(cluster: str, kind: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags that tests/test_clusters.py asserts as text, through the controller's own checks; it refuses more than its partition has."""
    for name, value in ACCOUNTS.items():
        monkeypatch.setenv(name, value)
    asked = Ask(machine_file(cluster, ROOT).cluster, kind, 10)
    given, request = asked.resources(), asked.request
    memory = f"--mem={request.memory_mb}" if request.memory_mb else f"--mem-per-cpu={request.memory_mb_per_core}"
    words = [f"--account={given['slurm_account']}", f"--partition={request.partition}", memory, *str(given.get("slurm_extra", "")).split(),
             *([f"--constraint={request.constraint}"] if request.constraint else [])]
    done = site.script("run", "sbatch", "--test-only", f"--cpus-per-task={request.cores}", *words, "--wrap=true")
    assert done.returncode == 0 and "to start at" in done.stdout, done.stdout
    more = site.script("run", "sbatch", "--test-only", "--cpus-per-task=129", *words, "--wrap=true")
    assert more.returncode != 0, more.stdout


def test_a_login_node_measures_nothing(walks: dict[str, Walk], site: Site) -> None:
    """This host answers to the controller and is none of its nodes; the same command is fine in a job."""
    checkout = walks["anvil"].checkout
    done = site.script("run", str(PROGRAMS / "moapipe"), "calibrate", cwd=checkout.path, env=checkout.environment())
    assert done.returncode == 2 and "is a login node" in done.stdout


# ------------------------------------------------------------------ what goes wrong


def whole(step: Step, launches: int) -> None:
    """The old record is kept as it was, beside a journal of what is finished, and nothing is half-written."""
    assert step.code == 1, step.log[-3000:]
    assert set(step.files) == {"kept.nc", "journal.json"}
    assert step.files["kept.nc"] == OLD
    assert step.launches == launches


def test_a_dead_node_costs_what_was_not_finished(walks: dict[str, Walk]) -> None:
    died, then, *_ = walks["anvil"].steps
    whole(died, 1)
    assert "goes on after 1 finished launch\n" in then.bench and "launch 1 of 3" not in then.bench


def test_a_cancelled_job_costs_what_was_not_finished(walks: dict[str, Walk]) -> None:
    _, cancelled, then, _ = walks["anvil"].steps
    whole(cancelled, 2)
    assert "goes on after 2 finished launches" in then.bench and "launch 2 of 3" not in then.bench


def test_accounting_that_denies_a_good_job_costs_a_check_not_data(walks: dict[str, Walk]) -> None:
    """The run fails; the next one finds the measurement there. A busy machine may have spoilt it: then it is measured again."""
    *_, denied, then = walks["anvil"].steps
    assert denied.code == 1 and "measured rmsnorm/forward/f64" in denied.bench, denied.log[-3000:]
    assert denied.files["kept.nc"] == denied.files["record.nc"] != OLD
    assert spoilt(walks) or not then.bench or "nothing to measure" in then.bench
    assert spoilt(walks) or then.files["record.nc"] == denied.files["record.nc"]


def test_late_accounting_costs_nothing(walks: dict[str, Walk], site: Site) -> None:
    late = walks["anvil"].steps[-1]
    assert late.code == 0, late.log[-3000:]
    assert len((site.place / "bin" / "calls").read_text().split()) > 4


def test_after_all_that_nothing_is_lost_or_twice_there(walks: dict[str, Walk]) -> None:
    checkout = walks["anvil"].checkout
    data = record.read(checkout.path / "results/small/anvil/dataset.nc")
    assert data.sizes["case"] == 1 and data.sizes["launch"] == 3
    assert (data["seconds"].notnull().sum("sample") >= 3).all()
    assert {p.name for p in folder(checkout, "anvil").iterdir()} == {"record.nc", "kept.nc", "journal.json"}


def spoilt(walks: dict[str, Walk]) -> bool:
    """A busy machine: no sample is valid, so that the points are measured again."""
    data = record.read(folder(walks["anvil"].checkout, "anvil") / "record.nc")
    return STATUSES["all_invalid"].code in data["status"].values
