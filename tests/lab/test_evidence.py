"""Evidence for texts for GPUs: what runs is judged, what is missing is said, and a wrong text or a wrong count is found."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from moapipe.errors import LabError
from moapipe.lab import derive as derivation
from moapipe.lab import evidence, experiment, opencl, trial
from moapipe.lab.derive import derive
from moapipe.lab.evidence import WAYS, emulate, gather, shown
from moapipe.lab.experiment import Build, Group
from moapipe.lab.file import read_json, write_json
from moapipe.lab.place import built, emulated, root, validated
from moapipe.report import evidence as report

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
PLAIN = Build("matmul", "nn", "naive", "cuda", "plain", "f64")
SHARED = Build("attention_backward", "weights", "row_parallel_atomic", "hip", "plain", "f32")
ONE = """isa: plain
threads: [1]
baseline: false
kernels:
  matmul: {forms: [nn], variants: [naive], targets: [c, cuda, hip], dtypes: [f64], at: [{m: 1, n: 1, k: 1}]}
"""
GROUP = Group("matmul", "nn", "f64")


@pytest.fixture
def one(tmp_path):
    """An experiment with one kernel for two languages of GPUs, and one that is none."""
    (tmp_path / "kernels").symlink_to(root() / "kernels")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "machines").symlink_to(root() / "config" / "machines")
    (tmp_path / "config" / "one.yaml").write_text(ONE)
    return experiment.read("one", tmp_path)


def showed(b: Build) -> dict[str, trial.Evidence]:
    return {x.kind: x for x in shown([b], root())[0]}


HALVES = [Build(*names, "cuda", "plain", "bf16") for names in (
    ("matmul", "nn", "shared"), ("rmsnorm", "forward", "row_team"), ("attention_forward", "causal", "online_shared"), ("attention_backward", "weights", "row_parallel_atomic"),
    ("decode", "step", "published"),
)]  # fmt: skip
"""Elements in half the bytes: tiles in shared memory, folds by lanes, an online softmax, atomic sums, lengths and caches in place."""


@pytest.mark.parametrize("b", [PLAIN, SHARED, *HALVES], ids=lambda b: b.path())
def test_the_shim_passes_a_right_text_with_counts(b):
    (row,) = trial.examine([b], root(), "shim")
    assert row.passed and "accesses" in row.detail and "usual tiles" in row.detail and (" 0 atomics" in row.detail) == ("atomic" not in b.variant)


def test_sums_that_are_rounded_in_between_are_beyond_the_bound(monkeypatch):
    """Kept in the output itself: what the lift `narrow` does not do."""
    monkeypatch.setattr("moapipe.loops.lift.narrow._widened", lambda k, a: k)
    derivation._schedule.cache_clear()
    try:
        (row,) = trial.examine([Build("gated_mlp", "forward", "published", "cuda", "plain", "bf16")], root(), "shim")
    finally:
        derivation._schedule.cache_clear()
    assert row.status == "failed" and "beyond the bound" in row.detail


FAULTS = {"two threads own one element": ("item += threads", "item += 1", "races"), "reads past the end": ("A[", "A[m * k + ", "outside")}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_text_fails_with_what_is_wrong(fault, monkeypatch):
    old, new, says = FAULTS[fault]

    def mutated(b, where, *, tiny=False):
        d = derive(b, where, tiny=tiny)
        assert old in d.source.text
        return replace(d, source=replace(d.source, text=d.source.text.replace(old, new)))

    monkeypatch.setattr(trial, "derive", mutated)
    row = showed(PLAIN)["shim"]
    assert row.status == "failed" and says in row.detail


def test_a_count_that_is_not_the_texts_fails(monkeypatch):
    monkeypatch.setattr("moapipe.lab.emulation.atomics", lambda *_: ())
    assert "atomics, counted 0" in showed(SHARED)["shim"].detail


def test_what_is_not_installed_is_missing_and_not_failed(monkeypatch):
    monkeypatch.setattr(opencl, "RUNTIMES", {name: replace(r, program=r.program and "no-such-program", library="no-such-library") for name, r in opencl.RUNTIMES.items()})
    found = showed(replace(PLAIN, target="opencl"))
    assert {k: e.status for k, e in found.items()} == dict.fromkeys(("oclgrind", "pocl", "mutants"), "missing")
    assert all("apt install" in e.detail for e in found.values())


def test_no_way_for_a_language_is_an_error():
    with pytest.raises(LabError, match="nothing runs texts of fortran"):
        shown([replace(PLAIN, target="fortran")], root())


def test_a_group_goes_together_and_hip_is_what_cuda_is_under_the_shim(one, monkeypatch):
    """One file a group, a row a text; what the shim cannot tell apart is run once."""
    compiled = []
    monkeypatch.setattr("moapipe.lab.emulation.compile_text", lambda *a, original=evidence.emulation.compile_text: compiled.append(a) or original(*a))
    monkeypatch.setattr("moapipe.lab.mutant.planted", lambda d: iter(()))
    document = emulate(one, GROUP)
    assert [r["target"] for r in document["texts"]] == ["cuda", "hip"] and document["texts"][0]["evidence"] == document["texts"][1]["evidence"]
    assert len(compiled) == sum(not e.whole for e in trial.EXTENTS["shim"]) and read_json(one.root / emulated(one, GROUP)) == document


CODE = {"arch": "sm_90", "file": "kernel.sm_90.cubin", "sha256": "", "dialect": "sass", "functions": [
    {"name": "f", "registers": 40, "spill_bytes": 8, "stack_bytes": 16, "shared_bytes": 1024}], "counts": {"atomic": 2}, "broken": []}  # fmt: skip


def test_the_table_says_what_there_is_and_never_more(one):
    """Nothing tried; then compiled, emulated and refused a GPU; then really validated on one."""
    place, machine = one.root, one.file.machine
    row, _ = gather(one)
    assert {c: row[c]["status"] for c in (*WAYS, "compiled", "gpu")} == {**dict.fromkeys(WAYS, "none"), "shim": "untried", "mutants": "untried", "compiled": "untried", "gpu": "no"}
    write_json(place / built(PLAIN, machine) / "build.json", {"status": "built", "reason": "", "compiler": {"version": "12"}, "device": [CODE]})
    write_json(place / validated(PLAIN, machine), {"passed": False, "reason": "no GPU", "device": "", "cases": []})
    tried = {**{a: getattr(PLAIN, a) for a in experiment.BUILD_AXES}, "evidence": [{"kind": "shim", "status": "failed", "detail": "3 races on C"}]}
    write_json(place / emulated(one, GROUP), {"texts": [tried]})
    row, other = gather(one)
    text = report.text(report.document([row], "gpu", "local"))
    assert row["gpu"]["status"] == "no" and "0 of them validated on a GPU" in text and "sm_90 40 (8 B spilt) registers" in text
    assert report.failures([row]) == [f"{PLAIN.path()} shim: 3 races on C"] and "failed: " in text and other["shim"]["status"] == "untried"
    write_json(place / validated(PLAIN, machine), {"passed": True, "reason": "", "device": "NVIDIA H200", "cases": [1, 2]})
    assert report.summary([row, other]) == {**dict.fromkeys(WAYS, "not for cuda, hip"), "shim": "1 FAILED, 1 not tried", "mutants": "2 not tried", "compiled": "1 yes, 1 not tried", "gpu": "2 no"}
    row, _ = gather(one)
    assert row["gpu"] == {"status": "passed", "detail": "NVIDIA H200: 2 cases right"} and "1 of them validated on a GPU" in report.text(report.document([row], "gpu", "local"))


def test_the_page_shows_every_column(one):
    from moapipe.report import site  # noqa: PLC0415  loads charts

    write_json(one.root / "evidence.json", report.document(gather(one), "gpu", "local"))
    site.write_evidence(one.root)
    page = (one.root / site.EVIDENCE).read_text()
    heads = [page.rindex(f">{'GPU' if c == 'gpu' else c}</th>") for c in report.COLUMNS]
    assert heads == sorted(heads) and "0 of them validated on a GPU" in page
