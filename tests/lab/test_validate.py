"""Validation: right kernels pass, and every planted mistake is caught, named, and keeps the build from being timed."""

import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from moapipe.algebra.index import subtract
from moapipe.algebra.scalar import Num, Ref, op, references
from moapipe.errors import ConfigError, LabError
from moapipe.lab import build as building
from moapipe.lab.buffer import aligned, guarded
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build, Compiler, all_builds, native_isa
from moapipe.lab.file import read_json, write_json, write_text
from moapipe.lab.kernel import load, names
from moapipe.lab.oracle import compare, truth
from moapipe.lab.place import built, derived, root, validated
from moapipe.lab.scenario import Scenario, edges, scenarios
from moapipe.lab.validate import one, require, run_cases, validate
from moapipe.lab.worker import Reply
from moapipe.loops.onf import Accumulate, Assign, Loop, definitions, map_statements
from moapipe.targets.emit import emit

KERNELS = ("attention_forward", "matmul", "rmsnorm")
ALL = all_builds(root(), native_isa(), names(root()), ("c", "fortran"))
# of three kernels every form and variant once, languages and dtypes in turn
SOME = [b for k, b in enumerate(b for b in ALL if b.kernel in KERNELS) if k % 4 == (k // 4) % 4]
# a build's languages one after the other: they share the truths of their cases
TOGETHER = sorted(ALL, key=lambda b: replace(b, target="").path())
BASE = Build("attention_forward", "causal_lse", "online", "c", native_isa(), "f64")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """This repository's kernels with a results folder of its own."""
    here = tmp_path_factory.mktemp("checkout")
    for room in ("kernels", "config"):
        (here / room).symlink_to(root() / room)
    return here


def make(b, here):
    d = derive(b, here)
    write_text(here / derived(b) / d.source.manifest["source"], d.source.text)
    write_json(here / derived(b) / "manifest.json", d.manifest)
    return building.require(building.build(b, here))


def passes(b, here, level):
    make(b, here)
    v = validate(b, here, level=level)
    assert v.passed, v.reason
    assert v.worst.ratio <= 1 and len(v.cases) > 5
    return v


@pytest.mark.parametrize("b", SOME, ids=Build.path)
def test_builds_pass(checkout, b):
    passes(b, checkout, "fast")


@pytest.mark.slow
@pytest.mark.parametrize("b", TOGETHER, ids=Build.path)
def test_every_build_passes_the_whole_matrix(checkout, b):
    passes(b, checkout, "full")


# ------------------------------------------------------------------ planted in the loop nest


def leaves_of(name, change):
    """Replace the leaves of a definition; `change` gives the new leaf, or None to drop it."""

    def go(s):
        if isinstance(s, Assign | Accumulate) and s.name == name:
            new = change(s)
            return () if new is None else (new,)
        return (s,)

    return lambda k: replace(k, body=map_statements(k.body, go))


def loops_of(var, change, only=""):
    """Change the loops over a variable (those that hold a definition)."""

    def go(s):
        wanted = isinstance(s, Loop) and s.var == var and (not only or only in definitions(s.body))
        return (change(s),) if wanted else (s,)

    return lambda k: replace(k, body=map_statements(k.body, go))


def shifted(leaf, axis=-1):
    index = list(leaf.target.index)
    index[axis] = op("+", index[axis], 1)
    return replace(leaf, target=Ref(leaf.target.array, tuple(index)))


def uses(leaf, array):
    return any(r.array == array for r in references(leaf.value))


PLANTED = {
    "missing mask": (leaves_of("masked", lambda s: None), "beyond the bound"),
    "mask off by one": (loops_of("kl", lambda s: replace(s, lo=op("+", s.lo, 1)), only="masked"), "beyond the bound"),
    "wrong scale": (leaves_of("scores", lambda s: replace(s, value=op("*", s.value, 1 + 1e-9))), "beyond the bound"),
    "key tail off by one": (loops_of("kl", lambda s: replace(s, hi=subtract(s.hi, 1)), only="scores_sum"), "beyond the bound"),
    "missing rescale": (leaves_of("mixed", lambda s: None if uses(s, "peak_scale") else s), "beyond the bound"),
    "sum never started": (leaves_of("total", lambda s: None if s.value == Num(0.0) else s), "not a number"),
    "unwritten row": (loops_of("q", lambda s: replace(s, hi=subtract(s.hi, 1))), "never written"),
    "written past the end": (leaves_of("lse", shifted), "written after its buffer|outside its buffers"),
    "written before the start": (leaves_of("lse", lambda s: shifted(replace(s, target=Ref("lse", (s.target.index[0], op("-", s.target.index[1], 2)))))),
                                 "written before its buffer"),
}  # fmt: skip


def compiled(text, manifest, b, here, name):
    folder = Path("planted") / name.replace(" ", "_")
    write_text(here / folder / manifest["source"], text)
    quick = Compiler(command="gcc" if b.target == "c" else "gfortran", flags=("-O1",))
    made = building.compile_source(b, manifest, here, folder / manifest["source"], folder, "local", quick, gated=False)
    return here / building.require(made).library


def caught(text, manifest, b, here, name, limit_s=60.0):
    """The reasons that validation gives for a planted kernel."""
    kernel = load(b.kernel, here)
    found = scenarios(kernel, b.variant, manifest["params"], "fast", tiny=False)
    cases = run_cases(kernel, b, compiled(text, manifest, b, here, name), manifest, found, limit_s=limit_s)
    return [c.reason for c in cases if c.reason]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_caught(checkout, name):
    plant, said = PLANTED[name]
    d = derive(BASE, checkout)
    wrong = plant(d.schedule.kernel)
    assert wrong != d.schedule.kernel
    reasons = caught(emit(wrong, "c", BASE.isa, "f64").text, d.manifest, BASE, checkout, name)
    assert reasons and any(any(s in r for s in said.split("|")) for r in reasons)


def test_the_same_path_passes_without_a_mistake(checkout):
    d = derive(BASE, checkout)
    assert caught(d.source.text, d.manifest, BASE, checkout, "right") == []


def test_a_planted_mistake_in_fortran_is_caught(checkout):
    b = replace(BASE, target="fortran", dtype="f32")
    d = derive(b, checkout)
    wrong = leaves_of("scores", lambda s: replace(s, value=op("*", s.value, 1 + 1e-3)))(d.schedule.kernel)
    assert any("beyond the bound" in r for r in caught(emit(wrong, "fortran", b.isa, "f32").text, d.manifest, b, checkout, "fortran"))


# ------------------------------------------------------------------ planted in the text


SABOTAGE = {
    "crash": ("*(volatile int *)8 = 1;", "SIGSEGV"),
    "abort": ("__builtin_trap();", "SIGILL"),
    "exit": ("_Exit(7);", "status 7"),
    "hang": ("for (volatile int i = 0;; i++) {}", "hangs"),
    "sleep": ("for (;;) sleep(1);", "hangs"),
    "input changed": ("((double *)V)[0] = 0; if (q_len * kv_len * batch * d_v == 0) return;", "an input was changed"),
    "threads matter": ("if (threads > 1 && batch * q_len > 0) { lse[0] = threads; return; }", "differ between 1 and 2 threads"),
    "subnormals vanish": ("__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);", "floating-point mode was changed"),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_sabotage_is_caught(checkout, name):
    if name == "subnormals vanish" and platform.machine() != "x86_64":
        pytest.skip("the mode register of x86")
    d = derive(BASE, checkout)
    statement, said = SABOTAGE[name]
    head, body = d.source.text.split(f"void {d.manifest['symbol']}(")
    arguments, rest = body.split("{", 1)
    text = f"{head}void _Exit(int);\nunsigned sleep(unsigned);\nvoid {d.manifest['symbol']}({arguments}{{ {statement}{rest}"
    reasons = caught(text, d.manifest, BASE, checkout, name, limit_s=2)
    assert any(said in r for r in reasons), reasons


SLOW = """
import sys
from pathlib import Path
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load
from moapipe.lab.place import root
from moapipe.lab.scenario import Scenario
from moapipe.lab.validate import one
from moapipe.lab.worker import Worker
b, s = Build(*sys.argv[2:]), Scenario((("rows", 3), ("d", 5)), "plain", 0, (1,))
kernel, manifest = load(b.kernel, root()), derive(b, root()).manifest
with Worker(Path(sys.argv[1]), manifest, limit_s=1.5) as worker:
    for _ in range(2):
        print(one(kernel, b, manifest, worker, s).reason or "right", flush=True)
"""


def test_time_in_which_everything_stands_still_is_no_hang(checkout):
    """A machine that is frozen, suspended or busy with others wrongs no kernel: validation and its worker are stopped for longer than the
    limit, in the middle of a call."""
    b = Build("rmsnorm", "forward", "row", "c", native_isa(), "f64")
    d = derive(b, checkout)
    head, body = d.source.text.split(f"void {d.manifest['symbol']}(")
    arguments, rest = body.split("{", 1)
    spin = "clock_t begin = clock(); while (clock() - begin < CLOCKS_PER_SEC / 2) {}"
    text = f"{head}#include <time.h>\nvoid {d.manifest['symbol']}({arguments}{{ {spin} {rest}"
    library = compiled(text, d.manifest, b, checkout, "slow")
    words = [sys.executable, "-c", SLOW, str(library), b.kernel, b.form, b.variant, b.target, b.isa, b.dtype]
    with subprocess.Popen(words, cwd=checkout, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "right\n"
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "right\n"


# ------------------------------------------------------------------ what is written down


def test_a_failed_build_and_a_wrong_one_are_written_down_and_refused(checkout):
    b = replace(BASE, variant="row_scratch", form="full")
    make(b, checkout)
    record = checkout / built(b, "local") / "build.json"
    document = read_json(record)
    write_json(record, {**document, "status": "gate_failed", "reason": "3 vector stores"})
    v = validate(b, checkout)
    stored = read_json(checkout / validated(b, "local"))
    assert (v.status, stored["passed"], stored["reason"]) == ("gate_failed", False, "3 vector stores")
    with pytest.raises(LabError, match="3 vector stores"):
        require(v)
    write_json(record, {**document, "source_sha256": "0" * 64})
    assert "changed after it was built" in validate(b, checkout).reason


def test_validation_json_says_what_was_seen(checkout):
    b = replace(BASE, form="full", variant="online_tiled")
    v = passes(b, checkout, "fast")
    stored = read_json(checkout / validated(b, "local"))
    assert stored["passed"] and stored["baseline"] == "scaled_dot_product_attention" and stored["status"] == "validated"
    assert 0 < stored["error"] <= stored["error_bound"] and stored["baseline_error"] > 0
    assert {c["tiles"] for c in stored["cases"]} == {"usual", "tiny"} and len(stored["cases"]) == len(v.cases)
    assert stored["library_sha256"] == read_json(checkout / built(b, "local") / "build.json")["library_sha256"]


# ------------------------------------------------------------------ its parts


def test_scenarios_reach_every_edge(checkout):
    kernel = load("attention_forward", checkout)
    params = derive(replace(BASE, variant="online_tiled"), checkout).schedule.params
    found = scenarios(kernel, "online_tiled", params, "full", tiny=False)
    sizes = [dict(s.sizes) for s in found]
    edge = {1, 2, *(n for t in ("V", "MR", "Br", "Bq", "Bc") for n in (params[t] - 1, params[t] + 1, 2 * params[t] + 1))}
    for axis in ("q_len", "kv_len"):
        assert edge <= {s[axis] for s in sizes}
    for axis in ("d_k", "d_v"):
        assert {1, 3, 40, 64, 96, 128} <= {s[axis] for s in sizes}
    for axis in kernel.sizes:
        assert any(s[axis] == 0 for s in sizes)
    assert sum(s["q_len"] > s["kv_len"] for s in sizes) > 5 and sum(s["q_len"] < s["kv_len"] for s in sizes) > 5
    assert {s.kind for s in found} == {"plain", "logits of ±100", "logits of ±700"}
    assert edges("B", (8,)) == (1, 2, 3)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_stress_reaches_the_logits_that_it_names(checkout, dtype):
    kernel = load("attention_forward", checkout)
    s = Scenario((("batch", 1), ("q_len", 5), ("kv_len", 7), ("d_k", 3), ("d_v", 2)), "logits of ±700", 0)
    x = truth(kernel, "full", dtype, s).inputs
    assert np.abs(x["scale"] * (x["Q"] @ x["K"].swapaxes(-1, -2))).max() == pytest.approx(700, rel=1e-5)


def test_narrow_inputs_are_rounded_and_a_narrow_output_may_err_by_one_rounding_more(checkout):
    """To nearest it is within its bound, cut off it is not; a scalar stays what it is."""
    kernel, s = load("matmul", checkout), Scenario((("m", 30), ("n", 40), ("k", 20)), "plain", 1)
    t, wide = truth(kernel, "nn", "bf16", s, frozenset("ABC"), beside=True), truth(kernel, "nn", "f32", s, beside=False)
    assert all(v.dtype == np.float32 for v in t.inputs.values()) and t.inputs["alpha"] == wide.inputs["alpha"]
    for name in "AB":
        assert (t.inputs[name] == wide.inputs[name].astype(bfloat16)).all() and (t.inputs[name] != wide.inputs[name]).any()
    true = t.outputs["C"].astype(np.float32)
    nearest, cut = true.astype(bfloat16), (true.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert 0.5 < compare(t, "C", nearest).ratio <= 1 < compare(t, "C", cut).ratio
    assert t.baseline["C"].dtype == np.float32 and (t.baseline["C"] == t.baseline["C"].astype(bfloat16)).all()


@pytest.mark.parametrize(("function", "body", "says"), [
    ("baseline", "return nosuch", "baseline fails: NameError"),
    ("baseline", "return 'a call', lambda: {'C': inputs['nosuch']}", "baseline fails: KeyError"),
    ("baseline", "raise RuntimeError('an axis of length 0')", ""),
    ("baseline", "return 'a call', lambda: {'C': inputs['A'][10**6]}", ""),
    ("error_bound", "return {}", "error_bound gives"),
])
def test_what_pytorch_refuses_is_left_out_and_a_mistake_in_the_file_is_not(tmp_path, function, body, says):
    (tmp_path / "kernels").mkdir()
    for name in ("matmul.py", "matmul.yaml"):
        (tmp_path / "kernels" / name).write_text((root() / "kernels" / name).read_text())
    arguments = {"baseline": "torch, inputs, form", "error_bound": "eps, inputs, outputs, form"}[function]
    with (tmp_path / "kernels" / "matmul.py").open("a") as f:
        f.write(f"\n\ndef {function}({arguments}):\n    {body}\n")
    kernel, s = load("matmul", tmp_path), Scenario((("m", 3), ("n", 4), ("k", 2)), "plain", 1)
    if says:
        with pytest.raises(ConfigError, match=says):
            truth(kernel, "nn", "f64", s)
    else:
        assert truth(kernel, "nn", "f64", s).baseline == {}


def test_an_oracle_is_wider_than_its_build_and_bounds_hold_for_pytorch(checkout):
    for name in KERNELS:
        kernel = load(name, checkout)
        s = Scenario(tuple((size, 37) for size in kernel.sizes), "plain", 1)
        for form in kernel.forms:
            t = truth(kernel, form, "f32", s)
            assert all(v.dtype == np.float64 for v in t.outputs.values()) and t.baseline
            for output, value in t.baseline.items():
                e = compare(t, output, value)
                assert e.ratio < 1 and e.wrong == 0 and 0 < e.baseline < 1e-5
        assert all(v.dtype == np.longdouble for v in truth(kernel, form, "f64", s).outputs.values())


def test_a_row_that_sees_nothing_is_zero_with_log_sum_exp_of_minus_infinity(checkout):
    kernel = load("attention_forward", checkout)
    s = Scenario((("batch", 1), ("q_len", 5), ("kv_len", 2), ("d_k", 3), ("d_v", 2)), "plain", 0)
    t = truth(kernel, "causal_bottom_right_lse", "f64", s)
    assert not t.outputs["out"][0, :3].any() and t.outputs["out"][0, 3:].all()
    assert np.isneginf(t.outputs["lse"][0, :3]).all() and np.isfinite(t.outputs["lse"][0, 3:]).all()
    found = np.array(t.outputs["lse"], np.float64)
    assert compare(t, "lse", found).ratio < 1
    found[0, 0] = -1e30  # a finite sentinel is not −∞
    assert compare(t, "lse", found).place == (0, 0)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("elements", [0, 1, 15, 16, 1000])
def test_buffers_are_aligned_poisoned_and_watched(elements, dtype):
    b = guarded(elements, dtype)
    assert not elements or b.data.ctypes.data % 64 == aligned(elements, dtype).ctypes.data % 64 == 0
    assert b.data.size == elements and np.isnan(b.data).all() and b.trespassed() == ""
    b.before[-1] = 0
    assert "before its buffer" in b.trespassed()


@pytest.mark.parametrize("target", ["c", "fortran"])
def test_sums_in_no_fixed_order_pass(checkout, target):
    passes(Build("attention_backward", "weights", "row_parallel_atomic", target, native_isa(), "f64"), checkout, "fast")


class Liar:
    """A worker whose kernel is right with one thread, and with two off by `error`."""

    def __init__(self, kernel, form, s, error):
        self.outputs, self.error, self.calls = truth(kernel, form, "f64", s).outputs, error, []

    def run(self, task):
        self.calls.append(task.threads)
        return Reply({n: np.asarray(v, np.float64).ravel() + self.error * (2 in task.threads) for n, v in self.outputs.items()}, ())


@pytest.mark.parametrize("promised", [True, False])
@pytest.mark.parametrize("error", [1e-18, 1.0])
def test_a_variant_that_does_not_promise_equal_bits_is_compared_for_every_number_of_threads(promised, error):
    file = load("rmsnorm", root())
    file = replace(file, variants={"row": file.variant("row").model_copy(update={"deterministic": promised})})
    s = Scenario((("rows", 3), ("d", 5)), "plain", 0, (1, 2, 3))
    worker, b = Liar(file, "forward", s, error), Build("rmsnorm", "forward", "row", "c", native_isa(), "f64")
    found = one(file, b, derive(b, root()).manifest, worker, s)
    assert worker.calls == ([(1, 2, 3)] if promised else [(1,), (2,), (3,)])
    assert bool(found.reason) == (error == 1.0) and [e.output for e in found.errors] == ["z", "rinv"]
