"""Processes that work for another end with it, however it ends; a lock is explained, and not taken from a run that lives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import ROOT, Checkout

from moapipe.lab import tether

SLEEPER = "import time; from moapipe.lab import tether; tether.{}; print(__import__('os').getpid(), flush=True); time.sleep(600)"
RUN = """
import os, subprocess, sys
os.environ["MOAPIPE_RUN"] = str(os.getpid())
subprocess.run(["bash", "-c", '"$0" -c "$1" | cat; :', sys.executable, sys.argv[1]])
"""


def ends(process: int, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("how", "parent"), [
    ("to_parent()", "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"),
    ("to_run(__import__('os').environ)", RUN),
])  # fmt: skip
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_ends_with_whom_it_works_for(how: str, parent: str, sent: signal.Signals) -> None:
    job = SLEEPER.format(how)
    other = subprocess.Popen([sys.executable, "-c", parent, job], stdout=subprocess.PIPE, text=True)
    mine = int(other.stdout.readline())
    assert not ends(mine, 0.3)
    other.send_signal(sent)
    other.wait(20)
    assert ends(mine)
    other.stdout.close()


@pytest.mark.parametrize("named", ["", "none", "1234567890", str(2**22 - 1)])
def test_a_run_that_is_not_above_a_job_ends_nothing(named: str) -> None:
    done = subprocess.run([sys.executable, "-c", "import os, time; from moapipe.lab import tether; tether.to_run(os.environ); time.sleep(0.3); print('whole')"],
                          env={**os.environ, tether.RUN: named}, capture_output=True, text=True, check=False)
    assert done.stdout == "whole\n", done.stderr


@pytest.mark.parametrize("native", sorted(p.name for p in (ROOT / "src/moapipe/lab/native").glob("*.c") if "int main(" in p.read_text()))
def test_every_program_of_ours_ends_with_its_parent(native: str) -> None:
    assert "prctl(PR_SET_PDEATHSIG, SIGKILL);" in (ROOT / "src/moapipe/lab/native" / native).read_text()


# ------------------------------------------------------------------ the lock of a run


@pytest.mark.parametrize(("words", "lives"), [
    ("snakemake --cores 1", True), ("-m snakemake --cores 1", True), ("-u -m snakemake", True), ("snakemake -n", False), ("-m snakemake --unlock", False), ("other snakemake", False),
])  # fmt: skip
def test_a_run_is_known_however_it_was_started(words: str, lives: bool, tmp_path: Path) -> None:
    for name in ("snakemake", "snakemake.py", "other"):
        (tmp_path / name).write_text("print('begun', flush=True); import time; time.sleep(600)\n")
    with subprocess.Popen([sys.executable, *words.split()], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        try:
            assert tether.living(tmp_path) == ((process.pid,) if lives else ())
        finally:
            process.kill()


@pytest.fixture
def other(clean: Checkout, tmp_path: Path):
    """A process that looks like a run in the checkout; with it, the checkout is locked."""
    lock = clean.path / ".snakemake" / "locks" / "0.output.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text("results/derive/rmsnorm/forward/row/c/avx2/f64/manifest.json\n")
    program = tmp_path / "snakemake"
    program.write_text("print('begun', flush=True); import time; time.sleep(600)\n")
    process = subprocess.Popen([sys.executable, program], cwd=clean.path, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    lock.unlink(missing_ok=True)


def test_the_lock_of_a_run_that_lives_stays_and_that_of_a_dead_one_goes(other: subprocess.Popen, clean: Checkout) -> None:
    told = clean.snakemake("--unlock")
    assert told.returncode == 1 and f"process {other.pid}" in told.stdout and tether.locked(clean.path)
    other.kill()
    other.wait()
    assert "make unlock" in tether.advice(clean.path)
    assert clean.snakemake("--unlock").returncode == 0 and not tether.locked(clean.path)


def test_a_run_that_stops_at_a_lock_says_what_to_do(other: subprocess.Popen, clean: Checkout) -> None:
    told = clean.snakemake("--cores", "1", "derivations")
    assert told.returncode == 1 and f"process {other.pid}" in told.stdout
    other.kill()
    other.wait()
    told = clean.snakemake("--cores", "1", "derivations")
    assert told.returncode == 1 and "hint: if it was killed: make unlock" in told.stdout
    assert "make unlock" not in clean.snakemake("-n").stdout
