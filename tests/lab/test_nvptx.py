"""Directive texts compiled for a GPU by NVIDIA: the PTX keeps what the loop nest promises, and a text that does not is found."""

from __future__ import annotations

import pytest
from tests.targets.test_directive import KERNELS

from moapipe.errors import LabError
from moapipe.lab import nvptx, offload
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import FAMILIES, names, scan
from moapipe.lab.nvptx import Function, Promise, broken, functions, launches, promise, told
from moapipe.lab.place import root
from moapipe.targets.emit import emit

ROOT = root()
ALL = "c_omp_target"
FEW = frozenset(("attention_forward", "attention_forward_backward"))
VARIANTS = [(k, next(iter(v.forms or scan(k, ROOT).forms)), n) for k in names(ROOT) for n, v in scan(k, ROOT).variants.items() if ALL in v.targets]
ROUTES = [pytest.param(t, way, marks=pytest.mark.skipif(bool(why := offload.missing(t, way)), reason=why))
          for way in nvptx.LISTINGS for t in FAMILIES["directives"] if offload.compiler(t, way)[0]]
GCC = """.visible .func (.param.u32 %value_out) sum (.param.u64 %in_ar0);
.visible .entry k$_omp_fn$0 (.param.u64 %arg)
{
	mov.u32 %r1, %laneid;  // a comment with .local.align 8 .b8 %frame_ar[64];
}
.func k$_omp_fn$0$impl (.param.u64 %in_ar0)
{
	sub.u64 %frame, %sspprev, 96;
	{
	call (%value_in), omp_get_thread_num;
	}
}
.func k_1$constprop$0 (.param.u64 %in_ar0)
{
	.local.align 8 .b8 %simtstack_ar[136];
	.local .align 16 .b8 %frame_ar[32];
	sub.u64 %frame, %sspprev, 16;
	@%r553	atom.cas.b64 %r434, [%r103], %r104, %r436;
}
"""
CLANG = """.weak .entry __omp_offloading_fe00_56_k_l14(
	.param .u64 k_param_0
)
.maxntid 128, 1, 1
{
	.local .align 16 .b8 	__local_depot0[40];
	mov.u32 	%r1, %tid.x;
	atom.global.add.f64 	%fd1, [%rd1], %fd2;
	st.shared.u32 	[%r1], %r2;
}
"""
FOUND = {
    GCC: (Function("k$_omp_fn$0", True, True, 0), Function("k$_omp_fn$0$impl", False, False, 0), Function("k_1$constprop$0", False, False, 48)),
    CLANG: (Function("__omp_offloading_fe00_56_k_l14", True, True, 40),),
}


@pytest.mark.parametrize("listing", FOUND, ids=["gcc", "clang"])
def test_what_a_listing_defines(listing):
    assert functions(listing) == FOUND[listing]
    assert not broken(Promise(1, 1, True, 48), listing)
    assert "atomic instructions: 1" in told(Promise(1, 1, True, 48), listing) and ("compare-and-swap" in told(Promise(1, 1, True, 48), listing)) == (listing == GCC)


@pytest.mark.parametrize(("kept", "says"), [
    (Promise(2, 1, True, 48), "1 kernels where the loop nest has 2 launches"), (Promise(1, 2, True, 48), "leave all lanes but one idle"),
    (Promise(1, 1, False, 48), "1 atomic instructions where the loop nest has none"), (Promise(1, 1, True, 32), "keeps 48 bytes a thread in local memory"),
])  # fmt: skip
def test_every_broken_promise_is_said(kept, says):
    (said,) = broken(kept, GCC)
    assert says in said


@pytest.mark.parametrize("name", KERNELS)
def test_launches_are_those_that_a_text_for_a_gpu_makes(name):
    kernel, _ = KERNELS[name]
    rows = list(emit(kernel, "cuda", "plain", "f64").manifest["launches"])
    flat = [r for r in rows if "launch" in r]
    while rows := [inner for r in rows for inner in r.get("body", ())]:
        flat += [r for r in rows if "launch" in r]
    assert len(list(launches(kernel.body))) == len(flat) and promise(kernel, 8).launches == len(flat)
    assert sum(launches(kernel.body)) == sum(r["integers"][-1] != "1" for r in flat)


@pytest.mark.parametrize(("target", "way"), ROUTES)
def test_the_ptx_of_each_variant_keeps_its_promises(target, way):
    """One form of every variant in f64 for C with OpenMP, of attention's for the others; the atomic one also in f32."""
    builds = [Build(*v, target, "plain", "f64") for v in VARIANTS if target == ALL or v[0] in FEW]
    builds += [Build(*v, target, "plain", "f32") for v in VARIANTS if v[2] == "row_parallel_atomic" and v[0] in FEW]
    found = dict(zip(builds, nvptx.examine(builds, ROOT, way), strict=True))
    assert not {b.path(): e.detail for b, e in found.items() if not e.passed}
    assert all(("atomic instructions: 0" in e.detail) != promise(derive(b, ROOT).schedule.kernel, 8).atomic for b, e in found.items())


FAULTS = {
    "plain sums for atomic ones": ("attention_backward/weights/row_parallel_atomic", "#pragma omp atomic", "", "0 atomic instructions where the loop nest has some"),
    "atomic sums where the owner computes": ("matmul/nn/naive", "C[i * n + j] = alpha", "\n#pragma omp atomic\nC[i * n + j] += alpha", "atomic instructions where the loop nest has none"),
    "lanes that idle": ("decode/step/published", "parallel for simd", "parallel for", "leave all lanes but one idle"),
    "a loop on the host": ("rope/half_split/naive", "#pragma omp target teams distribute", "#pragma omp", "0 kernels where the loop nest has 1"),
    "a large local array": ("attention_forward/full/online", "real scores[4];", "volatile real scores[64];", "512 bytes a thread in local memory where the loop nest has 32"),
}


@pytest.mark.skipif(bool(offload.missing(ALL, "gcc_nvptx")), reason=offload.missing(ALL, "gcc_nvptx"))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_that_breaks_a_promise_is_found(fault):
    names, old, new, says = FAULTS[fault]
    d = derive(Build(*names.split("/"), ALL, "plain", "f64"), ROOT)
    assert old in d.source.text
    listing = nvptx.compiled(d, d.source.text.replace(old, new), "gcc_nvptx")
    assert any(says in x for x in broken(promise(d.schedule.kernel, 8), listing))


def test_a_text_that_does_not_compile_fails_and_a_compiler_that_is_not_here_is_missing(monkeypatch):
    b = Build("matmul", "nn", "naive", ALL, "plain", "f64")

    def refused(*_):
        raise LabError("gcc refuses the text")

    monkeypatch.setattr(offload, "compile_text", refused)
    (found,) = nvptx.examine([b], ROOT, "gcc_nvptx")
    assert found.status == "failed" and "refuses" in found.detail
    monkeypatch.setattr(offload, "beside", lambda command, part: not part)
    assert "apt install" in offload.missing(ALL, "gcc_nvptx")
    monkeypatch.setattr(offload.shutil, "which", lambda name, **_: None)
    monkeypatch.setattr(offload, "beside", lambda command, part: True)
    monkeypatch.setattr(offload, "located", lambda command: command)
    assert "no ptxas" in offload.missing(ALL, "clang_nvptx")
