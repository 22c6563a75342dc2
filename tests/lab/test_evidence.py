"""Evidence for texts for GPUs: what runs is judged, what is missing is said, and a wrong text or a wrong count is found."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from moapipe.errors import LabError
from moapipe.lab import evidence, opencl
from moapipe.lab.derive import derive
from moapipe.lab.evidence import WAYS, emulate, failed, gather
from moapipe.lab.experiment import Build
from moapipe.lab.file import write_json
from moapipe.lab.place import built, emulated, root, validated
from moapipe.report import evidence as report

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
PLAIN = Build("matmul", "nn", "naive", "cuda", "plain", "f64")
SHARED = Build("attention_backward", "weights", "row_parallel_atomic", "hip", "plain", "f32")


@pytest.fixture
def checkout(tmp_path):
    for name in ("kernels", "config"):
        (tmp_path / name).symlink_to(root() / name)
    return tmp_path


@pytest.mark.parametrize("b", [PLAIN, SHARED], ids=lambda b: b.path())
def test_the_shim_passes_a_right_text_with_counts(b, checkout):
    document = emulate(b, checkout)
    (row,) = document["evidence"]
    assert (row["kind"], row["status"]) == ("shim", "passed") and not failed(document) and (checkout / emulated(b, "local")).is_file()
    assert "accesses" in row["detail"] and "usual tiles" in row["detail"] and ("0 atomics" in row["detail"]) == (b is PLAIN)


FAULTS = {"two threads own one element": ("item += threads", "item += 1", "races"), "reads past the end": ("A[", "A[m * k + ", "outside")}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_text_fails_with_what_is_wrong(fault, checkout, monkeypatch):
    old, new, says = FAULTS[fault]

    def mutated(b, where, *, tiny=False):
        d = derive(b, where, tiny=tiny)
        assert old in d.source.text
        return replace(d, source=replace(d.source, text=d.source.text.replace(old, new)))

    monkeypatch.setattr(evidence, "derive", mutated)
    assert any(says in f for f in failed(emulate(PLAIN, checkout)))


def test_a_count_that_is_not_the_texts_fails(checkout, monkeypatch):
    monkeypatch.setattr(evidence, "atomics", lambda *_: ())
    assert any("atomics, counted 0" in f for f in failed(emulate(SHARED, checkout)))


def test_what_is_not_installed_is_missing_and_not_failed(checkout, monkeypatch):
    monkeypatch.setattr(opencl, "RUNTIMES", {name: replace(r, program=r.program and "no-such-program", library="no-such-library") for name, r in opencl.RUNTIMES.items()})
    document = emulate(replace(PLAIN, target="opencl"), checkout)
    assert {e["kind"]: e["status"] for e in document["evidence"]} == {"oclgrind": "missing", "pocl": "missing"} and not failed(document)
    assert all("apt install" in e["detail"] for e in document["evidence"])


def test_no_way_for_a_language_is_an_error(checkout):
    with pytest.raises(LabError, match="nothing runs texts of fortran"):
        emulate(replace(PLAIN, target="fortran"), checkout)


CODE = {"arch": "sm_90", "file": "kernel.sm_90.cubin", "sha256": "", "dialect": "sass", "functions": [
    {"name": "f", "registers": 40, "spill_bytes": 8, "stack_bytes": 16, "shared_bytes": 1024}], "counts": {"atomic": 2}, "broken": []}  # fmt: skip


def test_the_table_says_what_there_is_and_never_more(checkout):
    """Nothing tried; then compiled, emulated and refused a GPU; then really validated on one."""
    b = PLAIN
    (row,) = gather([b], checkout, "local")
    assert {c: row[c]["status"] for c in (*WAYS, "compiled", "gpu")} == {**dict.fromkeys(WAYS, "none"), "shim": "untried", "compiled": "untried", "gpu": "no"}
    write_json(checkout / built(b, "local") / "build.json", {"status": "built", "reason": "", "compiler": {"version": "12"}, "device": [CODE]})
    write_json(checkout / validated(b, "local"), {"passed": False, "reason": "no GPU", "device": "", "cases": []})
    write_json(checkout / emulated(b, "local"), {"evidence": [{"kind": "shim", "status": "failed", "detail": "3 races on C"}]})
    (row,) = gather([b], checkout, "local")
    text = report.text(report.document([row], "gpu", "local"))
    assert row["gpu"]["status"] == "no" and "0 of them validated on a GPU" in text and "sm_90 40 (8 B spilt) registers" in text
    assert report.failures([row]) == [f"{b.path()} shim: 3 races on C"] and "failed: " in text
    write_json(checkout / validated(b, "local"), {"passed": True, "reason": "", "device": "NVIDIA H200", "cases": [1, 2]})
    (row,) = gather([b], checkout, "local")
    assert row["gpu"] == {"status": "passed", "detail": "NVIDIA H200: 2 cases right"} and "1 of them validated on a GPU" in report.text(report.document([row], "gpu", "local"))


def test_the_page_shows_every_column(checkout):
    from moapipe.report import site  # noqa: PLC0415  loads charts

    write_json(checkout / "evidence.json", report.document(gather([PLAIN, SHARED], checkout, "local"), "gpu", "local"))
    site.write_evidence(checkout)
    page = (checkout / site.EVIDENCE).read_text()
    assert all(f">{'GPU' if c == 'gpu' else c}</th>" in page for c in report.COLUMNS) and "0 of them validated on a GPU" in page
