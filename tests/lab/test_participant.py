"""Participants: the driver's buffers and protocol on a kernel that checks them, masks, scrubbed settings, what dies how."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from moapipe.errors import LabError
from moapipe.lab.derive import denotation
from moapipe.lab.kernel import names, scan
from moapipe.lab.participant import BINDING_FAILED, Participant, Trouble, inside, leaked, scrubbed
from moapipe.lab.place import root
from moapipe.lab.program import program
from moapipe.lab.runtime import settings

CHECK = """#include <math.h>
#include <stdint.h>
#include <stdlib.h>
void check(const TYPE *a, const TYPE *b, const TYPE *one, TYPE *y, TYPE *z, TYPE *work, int64_t m, int64_t n, int64_t threads)
{
    const void *all[] = {a, b, one, y, z, work};
    for (int i = 0; i < 6; ++i)
        if ((uintptr_t)all[i] % 64) abort();
    for (int64_t i = 0; i < m; ++i)
        if (a[i] != (TYPE)i) abort();
    for (int64_t i = 0; i < n; ++i)
        if (b[i] != (TYPE)-i) abort();
    if (*one != 1 || threads != 2) abort();
    for (int64_t i = 0; i < m; ++i) y[i] = 1;
    z[n - 1] = work[n * threads - 1] = 1;
}
"""
TYPES = {"f32": ("float", np.float32), "f64": ("double", np.float64)}


@pytest.fixture(scope="module")
def driver():
    return program("driver", root())


@pytest.fixture(params=TYPES)
def checking(request, tmp_path, driver):
    """A driver with a kernel that aborts unless its arguments are right, and the command that makes them so."""
    name, dtype = TYPES[request.param]
    m, n = 300_000, 7
    (tmp_path / "check.c").write_text(CHECK)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f"-DTYPE={name}", str(tmp_path / "check.c"), "-o", str(tmp_path / "check.so")], check=True)
    for file, values in (("a", np.arange(m)), ("b of two words", -np.arange(n)), ("one", np.ones(1))):
        values.astype(dtype).tofile(tmp_path / file)
    prepare = "\n".join([f"prepare 3 2 {2 * n} 2", f"input {m} {tmp_path / 'a'}", f"input {n} {tmp_path / 'b of two words'}", f"input 1 {tmp_path / 'one'}",
                         f"output {m}", f"output {n}", f"size {m}", f"size {n}"])
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with Participant("check", [str(driver), str(tmp_path / "check.so"), "check", request.param, "2"], settings(2, cpus), cpus) as p:
        yield p, prepare


def test_a_kernel_gets_its_arguments_aligned_and_in_order(checking):
    p, prepare = checking
    assert p.ready(30) == []
    for _ in range(2):                          # a second case frees the first
        assert p.ask(prepare, 30) == ([], [])
        _, (calls, fastest) = p.ask("warm 0.001", 30)
        assert int(calls) >= 2
        assert float(fastest) > 0
        rows, _ = p.ask("turn 3 4", 30)
        assert [len(r) for r in rows] == [12] * 4
        assert [float(r[0]) for r in rows] == sorted(float(r[0]) for r in rows)
    assert p.cpu_seconds > 0


def test_a_kernel_gets_as_many_arguments_as_any_kernel_file_has(driver, tmp_path):
    """Every count from the most that a kernel has down; a call that drops or swaps one aborts."""
    kernels = [denotation(name, next(iter(scan(name, root()).forms)), root()).dnf for name in names(root())]
    most = max(len(d.inputs) + len(d.outputs) + len(d.sizes) + 2 for d in kernels)
    for count in range(most, most - 3, -1):
        sizes = range(1, count - 2)
        given, wrong = "".join(f"int64_t s{k}, " for k in sizes), " || ".join(f"s{k} != {k}" for k in sizes)
        (tmp_path / "many.c").write_text(f"#include <stdint.h>\n#include <stdlib.h>\nvoid many(double *y, double *work, {given}int64_t threads)\n"
                                         f"{{ if ({wrong} || threads != 1) abort(); *y = *work = 1; }}\n")
        subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "many.c"), "-o", str(tmp_path / f"many{count}.so")], check=True)
        with Participant("x", [str(driver), str(tmp_path / f"many{count}.so"), "many", "f64", "1"], {}, inside(sorted(os.sched_getaffinity(0)))) as p:
            assert p.ready(30) == []
            p.ask("\n".join([f"prepare 0 1 1 {len(sizes)}", "output 1", *(f"size {k}" for k in sizes)]), 30)
            p.ask("warm 0.001", 30)


@pytest.mark.parametrize(("command", "message"), [
    ("dance", "unknown command: dance"), ("prepare 1", "cannot prepare"), ("prepare 100 1 0 0", "cannot prepare"),
    ("prepare 1 0 0 0\ninput 5 /nowhere", "cannot open /nowhere"), ("prepare 1 0 0 0\ninput 5 /dev/null", "is shorter than"),
    ("prepare 1 0 0 0\noutput 5", "expected an input"), (f"prepare 0 1 0 0\noutput {1 << 46}", "no memory"),
])
def test_a_wrong_command_is_an_answer(checking, command, message):
    p, _ = checking
    p.ready(30)
    with pytest.raises(Trouble) as found:
        p.ask(command, 30)
    assert found.value.status == "refused"
    assert message in found.value.reason


@pytest.mark.parametrize(("library", "symbol", "message"), [("/nowhere.so", "x", "cannot open shared object"), ("libm.so.6", "no_such_function", "undefined symbol")])
def test_a_library_that_cannot_be_loaded_says_so(driver, library, symbol, message):
    with Participant("x", [str(driver), library, symbol, "f64", "1"], {}, inside(sorted(os.sched_getaffinity(0)))) as p, pytest.raises(Trouble) as found:
        p.ready(30)
    assert message in found.value.reason


def child(source, environment=None, cpus=None):
    mine = sorted(os.sched_getaffinity(0))
    return Participant("child", [sys.executable, "-c", source], environment or {}, cpus or mine)


def test_children_get_the_mask_and_ours_stays():
    mine = os.sched_getaffinity(0)
    one = [max(mine)]
    with child("import os; print('ready', 0, *sorted(os.sched_getaffinity(0)), flush=True); input()", cpus=one) as p:
        assert p.ready(30) == [str(max(mine))]
    assert os.sched_getaffinity(0) == mine


def test_settings_of_the_shell_are_scrubbed_and_ours_are_set(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("SLURM_CPU_BIND_LIST", "0x1")
    with child("import os; print('ready', 0, *sorted(k for k in os.environ if k.startswith(('OMP', 'SLURM'))), flush=True)", settings(2, (0, 1))) as p:
        assert p.ready(30) == ["OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND"]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_PRELOAD", "SLURM_CPU_BIND"])
def test_every_kind_of_setting_is_scrubbed(name):
    assert scrubbed({name: "1", "PATH": "/bin"}) == {"PATH": "/bin"}
    assert leaked({name: "1", "PATH": "/bin"}) == {name: "1"}


def test_places_name_every_cpu_once():
    assert settings(3, (4, 6, 9))["OMP_PLACES"] == "{4},{6},{9}"


@pytest.mark.parametrize(("source", "status", "reason"), [
    ("import time; time.sleep(600)", "timed_out", "no answer"),
    ("import sys; sys.exit('a bad start')", "crashed", "ended with status 1: a bad start"),
    ("import os; os.kill(os.getpid(), 11)", "crashed", "ended by SIGSEGV"),
    ("print('error too bad')", "refused", "too bad"),
])
def test_what_goes_wrong_is_a_status_with_a_reason(source, status, reason):
    with child(source) as p, pytest.raises(Trouble) as found:
        p.ready(1.0 if status == "timed_out" else 30)
    assert (found.value.status, reason in found.value.reason) == (status, True)


def test_the_end_of_a_participant_is_the_end_of_its_children(tmp_path):
    note = tmp_path / "pid"
    source = f"import subprocess; p = subprocess.Popen(['sleep', '600']); f = open({str(note)!r}, 'w'); f.write(str(p.pid)); f.close(); print('ready 0', flush=True); p.wait()"
    with child(source) as p:
        p.ready(30)
    grandchild = int(note.read_text())
    for _ in range(200):
        try:
            if ") Z" in Path(f"/proc/{grandchild}/stat").read_text():
                break
        except OSError:
            break
        time.sleep(0.01)
    else:
        pytest.fail("a grandchild lives on")


@pytest.mark.parametrize("line", ["libgomp: Number of places reduced from 96 to 8 because some places didn't contain any usable logical CPUs",
                                  "libgomp: Invalid value for environment variable OMP_PLACES", "OMP: Warning #192: Using granularity=core instead"])
def test_runtimes_that_do_not_take_the_binding_are_noticed(line):
    assert BINDING_FAILED.search(line)
    with child(f"import sys; print({line!r}, file=sys.stderr, flush=True); print('ready 0', flush=True); input()") as p:
        p.ready(30)
        assert p.complaint() == line


def test_no_cpu_of_ours_is_a_clear_error():
    with pytest.raises(LabError, match="none of the CPUs"):
        inside([100_000])
