"""The line through a real Slurm on loopback, with the partitions of Anvil and Delta: from sbatch to the archive, and what goes wrong on the way.

Skipped where there is no Slurm or no root; with MOAPIPE_SLURM=required, as in continuous integration, that is a failure.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import PROGRAMS, Checkout
from tests.software import install

from moapipe.lab import record

SCRIPT = Path(__file__).resolve().parent / "slurm.sh"
ACCOUNTS = {"ANVIL_ACCOUNT": "abc", "ANVIL_GPU_ACCOUNT": "abc-gpu", "DELTA_ACCOUNT": "xyz-delta-cpu", "DELTA_GPU_ACCOUNT": "xyz-delta-gpu"}
QUICK = ("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1", "--latency-wait", "5", "--verbose")
LIMIT_S = 900
RECORD = "results/tiny/{}/bench/rmsnorm/forward/f64/record.nc"


@dataclass(frozen=True)
class Site:
    """A running Slurm, what its users' shells hold, and a folder that stands before the system's programs."""

    place: Path
    environment: dict[str, str]
    started: list[subprocess.Popen] = field(default_factory=list)

    def script(self, command: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([SCRIPT, command, self.place, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    def start(self, checkout: Checkout, cluster: str, *words: str, experiment: str = "tiny", status: str = "squeue", **more: str) -> subprocess.Popen:
        """Snakemake with a cluster's profile, in the background; its words go to `run.log`."""
        env = checkout.environment(**{**ACCOUNTS, **self.environment, **more})
        command = [SCRIPT, "run", self.place, PROGRAMS / "snakemake", "--profile", cluster, *words, "--config", f"experiment=config/{experiment}.yaml",
                   *QUICK, "--slurm-status-command", status]
        with (checkout.path / "run.log").open("w") as log:
            self.started.append(subprocess.Popen(command, cwd=checkout.path, env=env, stdout=log, stderr=subprocess.STDOUT))
        return self.started[-1]

    def run(self, checkout: Checkout, cluster: str, *words: str, **options: str) -> tuple[int, str]:
        """The same to its end: exit code and words."""
        code = self.start(checkout, cluster, *words, **options).wait(LIMIT_S)
        return code, (checkout.path / "run.log").read_text()

    def jobs(self) -> list[dict[str, str]]:
        """Every job that has ended, as the controller wrote it down."""
        text = (self.place / "log" / "jobs.txt").read_text()
        return [dict(re.findall(r"(\w+)=(\S*)", row)) for row in text.splitlines()]


def submitted(log: str) -> dict[str, str]:
    """What sbatch was told, by rule or group, from the account on."""
    return {name: rest.strip() for name, rest in re.findall(r"^sbatch call: .*?--comment '?(?:rule_)?(\w+?)(?:_wildcards\S*)? (.*?) -D ", log, re.MULTILINE)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("slurm")
    environment = {**os.environ, "PORT": str(17000 + os.getpid() % 1000 * 10)}  # two sessions on a machine do not meet
    start = partial(subprocess.run, [SCRIPT, "start", place], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    done = start() if os.getuid() == 0 else None
    if done is None or done.returncode:
        why = f"no Slurm to test with: {done.stdout.strip() if done else 'it wants root'}"
        if os.environ.get("MOAPIPE_SLURM") == "required":
            pytest.fail(why)
        pytest.skip(why)
    (place / "bin").mkdir()
    software = install(tmp_path_factory.mktemp("software") / "site")
    out = Site(place, {**software, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"})
    try:
        yield out
    finally:
        for process in out.started:
            process.kill()
        subprocess.run([SCRIPT, "stop", place], check=True)


def prepared(finished: Checkout, place: Path) -> Checkout:
    """A checkout whose only results are rates, for both clusters."""
    shutil.copytree(finished.path, place, symlinks=True, ignore=shutil.ignore_patterns("results", ".snakemake"))
    rates = (finished.path / "results/calibrate/local/calibration.json").read_text()
    for cluster in ("anvil", "delta"):
        (place / "results/calibrate" / cluster).mkdir(parents=True)
        (place / "results/calibrate" / cluster / "calibration.json").write_text(rates.replace('"local"', f'"{cluster}"'))
    tiny = (place / "config/tiny.yaml").read_text()
    (place / "config/device.yaml").write_text(tiny.replace("targets: [c]", "targets: [c, cuda]"))
    return Checkout(place)


@pytest.fixture(scope="module")
def walked(site: Site, finished: Checkout, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checkout, str]]:
    """The small experiment to its archive on both clusters at once: checkout and Snakemake's words."""
    checkouts = {c: prepared(finished, tmp_path_factory.mktemp(c) / "moapipe") for c in ("anvil", "delta")}
    running = {c: site.start(checkout, c) for c, checkout in checkouts.items()}
    codes = {c: process.wait(LIMIT_S) for c, process in running.items()}
    logs = {c: (checkout.path / "run.log").read_text() for c, checkout in checkouts.items()}
    assert codes == {"anvil": 0, "delta": 0}, "\n".join(logs.values())[-5000:]
    return {c: (checkouts[c], logs[c]) for c in checkouts}


LINES = {
    "anvil": {
        "prepare_build_derive_validate": "-A abc  -p shared -t 30 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "predict": "-A abc  -p shared -t 10 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "bench": "-A abc  -p wholenode -t 16 --mem 240000 --ntasks=1 --cpus-per-task=128 --exclusive",
        "report_archive_chart_collect": "-A abc  -p shared -t 30 --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
    },
    "delta": {
        "prepare_build_derive_validate": "-A xyz-delta-cpu  -p cpu -t 30 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "predict": "-A xyz-delta-cpu  -p cpu -t 10 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
        "bench": "-A xyz-delta-cpu  -p cpu -t 16 -C scratch --mem 240000 --ntasks=1 --cpus-per-task=128 --exclusive",
        "report_archive_chart_collect": "-A xyz-delta-cpu  -p cpu -t 30 -C scratch --mem-per-cpu 1800 --ntasks=1 --cpus-per-task=1",
    },
}
NODES = {"anvil": {"shared": "a000", "wholenode": "a001"}, "delta": {"cpu": "cn001"}}


@pytest.mark.parametrize("cluster", LINES)
def test_it_runs_to_the_archive_through_sbatch(cluster: str, walked, site: Site) -> None:
    checkout, log = walked[cluster]
    assert submitted(log) == LINES[cluster]
    assert log.index(f"On {cluster}, at most") < log.index("sbatch call")
    page = checkout.path / (checkout.path / f"results/tiny/{cluster}/archive.txt").read_text().strip() / "index.html"
    assert page.is_file()
    mine = [j for j in site.jobs() if j["WorkDir"] == str(checkout.path)]
    assert {j["Partition"]: j["NodeList"] for j in mine} == NODES[cluster] and {j["JobState"] for j in mine} == {"COMPLETED"}
    data = record.read(checkout.path / RECORD.format(cluster))
    assert data.attrs["host"] == {"anvil": "a001", "delta": "cn001"}[cluster]
    assert set(data["machine"].values) == {cluster}


@pytest.mark.parametrize("cluster", LINES)
def test_a_second_run_submits_nothing(cluster: str, walked) -> None:
    checkout, _ = walked[cluster]
    done = checkout.run("snakemake", "--profile", cluster, "-n", "--config", "experiment=config/tiny.yaml", env=checkout.environment(**ACCOUNTS))
    assert done.returncode == 0 and "Nothing to be done" in done.stdout, done.stdout


def test_the_shells_own_settings_do_not_reach_a_measurement(walked) -> None:
    """Slurm hands the login shell's environment on (--export=ALL), and Snakemake sets OMP_NUM_THREADS itself."""
    checkout, _ = walked["anvil"]
    environment = record.read(checkout.path / RECORD.format("anvil")).attrs["environment"]
    assert '"OMP_NUM_THREADS": "1"' in environment and "128" not in re.findall(r'"OMP_NUM_THREADS": "(\d+)"', environment)


@pytest.mark.parametrize(("cluster", "line"), (
    ("anvil", "-A abc-gpu  -p gpu -t 16 --mem 120000 --ntasks=1 --cpus-per-task=32 --exclusive --gpus-per-node=1"),
    ("delta", "-A xyz-delta-gpu  -p gpuA100x4 -t 16 -C scratch --mem 60000 --ntasks=1 --cpus-per-task=16 --exclusive --gpus-per-node=1 --gpu-bind=closest"),
))
def test_device_code_goes_to_the_gpu_partition(cluster: str, line: str, walked, site: Site) -> None:
    checkout, _ = walked[cluster]
    code, log = site.run(checkout, cluster, "benchmarks", experiment="device")
    assert code == 0, log[-3000:]
    assert submitted(log)["bench"] == line
    assert site.jobs()[-1]["Partition"] == {"anvil": "gpu", "delta": "gpuA100x4"}[cluster]


def test_a_login_node_measures_nothing(walked, site: Site) -> None:
    """This host answers to the controller and is none of its nodes; the same command is fine in a job."""
    checkout, _ = walked["anvil"]
    words = [SCRIPT, "run", site.place, PROGRAMS / "moapipe", "calibrate"]
    done = subprocess.run(words, cwd=checkout.path, env=checkout.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 2 and "is a login node" in done.stdout
