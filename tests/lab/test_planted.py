"""Faults planted for real: the verdict names each, and a clean run is valid. Only what this machine can show is shown."""

import contextlib
import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from moapipe.lab import canary
from moapipe.lab.participant import Participant
from moapipe.lab.place import root
from moapipe.lab.program import program
from moapipe.lab.runtime import environment, missing, settings
from moapipe.lab.sampling import Frame, Placed, parse, rejudged
from moapipe.lab.watch import Watch
from moapipe.machine.arrangement import Arrangement
from moapipe.machine.seating import Arranged, arrange
from moapipe.machine.topology import MASK, probe

SOURCE = """#include <stdint.h>
void work(const double *x, double *y, double *scratch, int64_t n, int64_t threads)
{
    (void)scratch;
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t i = 0; i < n; ++i) {
        double s = x[i];
        for (int k = 0; k < 200; ++k) s = s * 0.999 + 1e-3;
        y[i] = s;
    }
}
"""
N = 4000
SAMPLES = 20
NOISE = {"neighbour", "cpu_starved", "preempted", "slow_clock"}      # what others on this machine may do to a clean run
needs_two = pytest.mark.skipif(len(MASK) < 2, reason="one CPU may be used here")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    (folder / "work.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", str(folder / "work.c"), "-o", str(folder / "work.so")], check=True)
    (folder / "x").write_bytes(bytes(8 * N))
    return folder


@functools.cache
def bound(threads: int) -> Arranged:
    return arrange(Arrangement(threads, threads), probe())


def run(library, arranged, variables=None, mask=None, samples=SAMPLES):
    """Measure as bench does, with some variables set or the mask changed; gives the verdicts and what the runtime complained of."""
    set_ = environment(arranged, root(), "local") if variables is None else variables
    watch, command = Watch(), [str(program("driver", root())), str(library / "work.so"), "work", "f64", str(arranged.asked.threads)]
    with Participant("planted", command, set_, mask or arranged.mask) as p:
        p.ready(30)
        p.ask(f"prepare 1 1 1 1\ninput {N} {library / 'x'}\noutput {N}\nsize {N}", 30)
        placed = Placed.of(p.ask("placed", 30)[1])
        p.ask("warm 0.02", 30)
        seen = []
        watch.read(p.cpu_seconds)
        while len(seen) < samples:
            rows, _ = p.ask("turn 3 4", 120)
            seen += [parse(row, 3) for row in rows]
            watch.read(p.cpu_seconds)
        found = rejudged(seen, Frame(arranged, 0.0, watch), max(s.clock for s in seen), placed)
        return Counter(s.verdict for s in found), p.complaint()


def settings_of(threads, **changed):
    return settings(threads, bound(threads).places) | changed


@needs_two
def test_a_mask_of_one_core(library):
    verdicts, complaint = run(library, bound(2), settings_of(2), mask=bound(2).mask[:1])
    assert set(verdicts) == {"narrow_mask"}
    assert complaint.startswith("libgomp: Number of places reduced")


@needs_two
@pytest.mark.parametrize("variables", [{"OMP_PLACES": "{CPU}"}, {"GOMP_CPU_AFFINITY": "CPU", "OMP_PLACES": ""}], ids=" ".join)
def test_places_that_fold_all_threads_to_one(library, variables):
    cpu = str(bound(2).places[0])
    set_ = {k: v.replace("CPU", cpu) for k, v in (settings_of(2) | variables).items() if v}
    assert set(run(library, bound(2), set_)[0]) == {"narrow_mask"}


@needs_two
def test_a_place_outside_of_the_plan(library):
    other = bound(2).places[1]
    assert set(run(library, bound(1), settings(1, [other]), mask=bound(2).mask)[0]) == {"wrong_cpus"}


@needs_two
def test_threads_that_were_to_be_bound_and_roam(library):
    """Every sample that noise leaves is told; up to three retries where it leaves none."""
    for _ in range(4):
        verdicts, _ = run(library, bound(2), settings(2, (), bound=False))
        assert set(verdicts) <= {"wrong_cpus"} | NOISE
        if verdicts["wrong_cpus"]:
            return
    pytest.fail(f"their places were not missed: {dict(verdicts)}")


@needs_two
def test_fewer_threads_than_asked(library):
    assert set(run(library, bound(2), settings_of(2, OMP_THREAD_LIMIT="1"))[0]) == {"threads_missing"}


@needs_two
def test_two_runtimes_in_one_process(library):
    if reason := missing(Arranged(Arrangement(2, 2, runtime="libomp"))):
        pytest.skip(reason)
    real = (Path(environment(arrange(Arrangement(2, 2, runtime="libomp"), probe()), root(), "local")["LD_LIBRARY_PATH"].split(":")[0]) / "libgomp.so.1").resolve()
    assert set(run(library, bound(2), settings_of(2, LD_PRELOAD=str(real)))[0]) == {"two_runtimes"}


@needs_two
def test_llvms_runtime_alone_in_place_of_gnus(library):
    asked = arrange(Arrangement(2, 2, runtime="libomp"), probe())
    if reason := missing(asked):
        pytest.skip(reason)
    assert set(run(library, asked)[0]) <= {"valid"} | NOISE


@needs_two
def test_leaked_settings_change_nothing(library, monkeypatch):
    for name, value in {"OMP_NUM_THREADS": "1", "OMP_PLACES": "{0}", "OMP_PROC_BIND": "primary", "OMP_THREAD_LIMIT": "1", "GOMP_CPU_AFFINITY": "0",
                        "SLURM_CPU_BIND_LIST": "0x1", "LD_PRELOAD": "/nowhere.so"}.items():
        monkeypatch.setenv(name, value)
    assert set(run(library, bound(2))[0]) <= {"valid"} | NOISE


@needs_two
def test_a_neighbour_that_burns_cpu(library):
    burn = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in MASK]
    try:
        verdicts, _ = run(library, bound(2))
    finally:
        for b in burn:
            b.kill()
            b.wait()
    assert sum(verdicts[name] for name in NOISE) >= SAMPLES * 3 // 4


@needs_two
def test_the_canary_meets_a_neighbour_that_burns_cpu():
    burn = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in MASK]
    try:
        found = [canary.send(probe(), root(), "local")[0] for _ in range(3)]
    finally:
        for b in burn:
            b.kill()
            b.wait()
    assert max(c.other_cpus for c in found) > 0.2 and max(c.stall_seconds for c in found) > 1e-3
    assert all(c.bandwidth > 1e7 and c.clock_rate > 1e7 and c.region_seconds > 0 for c in found)


HERE = f"""
import sys; sys.path[:0] = [{str(root())!r}]
from pathlib import Path
from moapipe.lab import participant
from tests.lab import test_planted as t
"""


def child(source, **variables):
    done = subprocess.run([sys.executable, "-c", HERE + source], capture_output=True, text=True, env=os.environ | variables, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_two
def test_pytorch_imported_under_a_binding_does_not_reach_the_children(library):
    """Loading PyTorch shrinks the mask of its process to one core; the verdict sees that children still have all."""
    found = child(f"import os, torch\nprint(len(os.sched_getaffinity(0)))\nprint(*t.run(Path({str(library)!r}), t.bound(2))[0])", OMP_PROC_BIND="close")
    width, verdicts = found.splitlines()
    if int(width) > 1:
        pytest.skip("this PyTorch leaves the mask alone")
    assert set(verdicts.split()) <= {"valid"} | NOISE


@needs_two
def test_a_quota_of_the_control_group(library):
    """Version 1 or 2, where a group can be made."""
    group = next((g for g in (Path("/sys/fs/cgroup/cpu/moapipe-planted"), Path("/sys/fs/cgroup/moapipe-planted")) if os.access(g.parent, os.W_OK)), None)
    if group is None:
        pytest.skip("no control group can be made here")
    try:
        group.mkdir(exist_ok=True)
        first = group / "cpu.cfs_quota_us"
        (first if first.exists() else group / "cpu.max").write_text("10000" if first.exists() else "10000 100000")
    except OSError as e:
        pytest.skip(f"no quota can be set here: {e}")
    try:
        source = f"import os\nPath({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\nprint(*(f'{{k}}={{v}}' for k, v in t.run(Path({str(library)!r}), t.bound(2), samples=60)[0].items()))"
        verdicts = dict(row.split("=") for row in child(source).split())
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    assert int(verdicts.get("throttled", 0)) >= 10, verdicts


def test_a_clean_run_is_valid_every_time(library):
    """20 of 20 while the neighbour probe is quiet; up to three retries otherwise."""
    for _ in range(4):
        verdicts, complaint = run(library, bound(min(2, len(bound(1).mask) and len(MASK))))
        assert set(verdicts) <= {"valid"} | NOISE
        assert not complaint
        if set(verdicts) == {"valid"}:
            return
    pytest.skip(f"the machine is not quiet: {dict(verdicts)}")
