"""A checkout to try the whole line in: the repository's own files in a folder of their own, with one small experiment run to its archive."""

import fcntl
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from moapipe.machine.rate import Bandwidth, Calibration, Rates

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
CARRIED = ("Snakefile", "workflow", "config", "kernels", "profiles", "anvil", "delta", "src")
TINY = """about: one kernel, small
isa: avx2
time_box_s: 0.3
kernels:
  rmsnorm: {variants: [row], targets: [c], dtypes: [f64], at: [{n: 64, d: 96}]}
"""
SAME = {1: 1e9, 2: 2e9}
RATES = Calibration(
    machine="local", isa="avx2", topology="rates made up for tests", clock=1e9, lanes={"f32": 8, "f64": 4}, capacity={"L1": 32 << 10, "L2": 1 << 20},
    sharers={"L1": {1: 1, 2: 1}, "L2": {1: 1, 2: 1}}, rates={t: Rates(SAME, SAME, SAME, SAME, *[{1: 0.0, 2: 0.0}] * 5) for t in ("f32", "f64")},
    bandwidth={level: Bandwidth(SAME, SAME, SAME, SAME) for level in ("L1", "L2", "memory")}, region={1: 1e-6, 2: 1e-6}, provenance={"compiler": "none"},
)


FIRST = ("test_workflow.py", "test_lift_meaning.py", "test_cost_kernels.py", "test_slurm.py", "test_variants.py", "test_fault.py", "test_validate.py",
         "test_emulation.py", "test_determinism.py", "test_bench.py")
"""Files that take longest. They are begun first, so that no worker is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in the order in which they stand."""
    place = {name: k for k, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))


def pytest_configure() -> None:
    """Where Ctrl-C is ignored (`nohup … &`), children inherit that; the tests that interrupt one need it to listen.

    Cycles are looked for seldom: tests keep the states of derivations, acyclic trees by the million, and going through them again and
    again took 40 % of the time of a derivation. (lab.derive turns the collector off for the same reason.)
    """
    gc.set_threshold(100_000, 50, 50)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Checkout:
    """A folder that holds the repository's files; `source` is the package that its processes import."""

    path: Path

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.path / "src"), **more}

    def run(self, program: str, *words: str, **options) -> subprocess.CompletedProcess:
        """A program of this environment, in the checkout; its two outputs are one text in `stdout` unless asked otherwise."""
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": self.environment(), "text": True, **options}
        return subprocess.run([PROGRAMS / program, *words], cwd=self.path, check=False, **given)

    def moapipe(self, *words: str, **options) -> subprocess.CompletedProcess:
        return self.run("moapipe", *words, **options)

    def snakemake(self, *words: str, experiment: str = "config/tiny.yaml", settings: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
        return self.run("snakemake", *words, "--config", f"experiment={experiment}", *settings)

    def planned(self, experiment: str = "config/tiny.yaml", *settings: str) -> dict[str, int]:
        """Jobs by rule that Snakemake would run now."""
        done = self.snakemake("-n", experiment=experiment, settings=settings)
        assert done.returncode == 0, done.stdout
        table = re.search(r"^job +count\n[- ]+\n((?:\w+ +\d+\n)+)", done.stdout, re.MULTILINE)
        return {name: int(n) for name, n in (line.split() for line in table[1].splitlines())} if table else {}

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that must be there."""
        path = self.path / file
        text = path.read_text()
        assert old in text, f"{file} no longer has {old!r}"
        path.write_text(text.replace(old, new, 1))

    def files(self) -> dict[str, bytes]:
        """Every file below results, hidden ones too."""
        return {p.relative_to(self.path).as_posix(): p.read_bytes() for p in sorted((self.path / "results").rglob("*")) if p.is_file()}


def fresh(path: Path) -> Checkout:
    """A checkout without results."""
    path.mkdir()
    for name in CARRIED:
        source = ROOT / name
        if source.is_symlink():
            (path / name).symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, path / name)
    (path / "config" / "tiny.yaml").write_text(TINY)
    return Checkout(path)


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout without results; leave it so."""
    return fresh(tmp_path_factory.mktemp("clean") / "moapipe")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose small experiment ran to its archive on rates that are made up; leave it as it is. Workers of one call of
    pytest share it: the first that asks makes it, the others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "finished" / "whole").exists():
            shutil.rmtree(shared / "finished", ignore_errors=True)
            (shared / "finished").mkdir()
            walked(shared / "finished" / "moapipe")
            (shared / "finished" / "whole").touch()
    return Checkout(shared / "finished" / "moapipe")


def walked(path: Path) -> Checkout:
    """A checkout whose small experiment ran to its archive."""
    out = fresh(path)
    place = out.path / "results" / "calibrate" / "local"
    place.mkdir(parents=True)
    (place / "calibration.json").write_text(json.dumps(RATES.to_json()))
    done = out.snakemake("--cores", "2")
    assert done.returncode == 0, done.stdout
    return out


@pytest.fixture
def line(finished: Checkout, tmp_path: Path) -> Checkout:
    """A copy of `finished`, dates and Snakemake's notes included, to break."""
    shutil.copytree(finished.path, tmp_path / "moapipe", symlinks=True)
    return Checkout(tmp_path / "moapipe")
