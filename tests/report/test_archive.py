"""Archives: whole or not at all, immutable, verifiable with and without this program, never made twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from moapipe.errors import RecordError
from moapipe.lab import record
from moapipe.report import archive, site
from moapipe.report.archive import MAKING, MANIFEST, Material


@pytest.fixture
def own(material: Material, tmp_path: Path) -> Material:
    """A copy of the furnished root without archives, to change."""
    root = tmp_path / "root"
    shutil.copytree(material.root, root, ignore=shutil.ignore_patterns("archives"))
    return Material(root, material.experiment, material.machine, (root / "config" / "example.yaml",))


@pytest.fixture
def copy(archive_folder: Path, tmp_path: Path) -> Path:
    """A writable copy of the archive under its own name."""
    target = tmp_path / archive_folder.name
    shutil.copytree(archive_folder, target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def left(material: Material) -> list[str]:
    folder = material.root / "results" / "archives"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_name_says_what_where_when_and_its_content(archive_folder: Path) -> None:
    assert archive_folder.name.startswith("example-local-20261130T044000Z-")
    assert len(archive_folder.name.rpartition("-")[2]) == 8


@pytest.mark.parametrize(
    "name",
    ["index.html", "archive.json", "environment.json", "calibration.json", "table.txt", "data/dataset.nc", "data/cases.csv", "data/samples.csv", "charts/speedup.svg",
     "config/example.yaml", "kernels/matmul.py", "kernels/matmul.yaml", "predictions/matmul/nn/f64/prediction.json",
     *(f"derivations/matmul/nn/tiled/fortran/avx512/f64/{f}" for f in ("index.html", "derivation.json", "derivation.md", "manifest.json", "cost.json", "kernel.f90")),
     *(f"builds/matmul/nn/tiled/c/avx512/f64/{f}" for f in ("build.json", "kernel.s")), "validations/matmul/nn/tiled/c/avx512/f64/validation.json"],
)  # fmt: skip
def test_has_everything(name: str, archive_folder: Path) -> None:
    assert (archive_folder / name).stat().st_size > 0


def test_has_no_binary_and_nothing_writable(archive_folder: Path) -> None:
    files = [p for p in archive_folder.rglob("*") if p.is_file()]
    assert not [p for p in files if p.suffix == ".so"]
    assert not [p for p in files if p.stat().st_mode & 0o222]


def test_data_is_the_dataset_itself(archive_folder: Path, material: Material) -> None:
    assert (archive_folder / "data" / "dataset.nc").read_bytes() == (material.here / "dataset.nc").read_bytes()


def test_samples_are_all_there_with_verdicts(archive_folder: Path) -> None:
    ds, rows = record.read(archive_folder / "data" / "dataset.nc"), pd.read_csv(archive_folder / "data" / "samples.csv")
    assert len(rows) == int(ds["seconds"].notnull().sum())
    pick = rows.iloc[len(rows) // 2]
    assert np.isclose(ds["seconds"].values[pick["case"], 0, pick["launch"], pick["sample"]], pick["seconds"], rtol=1e-12)
    assert set(rows["host"]) == set(ds["host"].values.ravel().tolist())
    assert {"valid", "preempted"} <= set(rows["verdict"])


def test_environment_names_host_compilers_and_packages(archive_folder: Path) -> None:
    found = json.loads((archive_folder / "environment.json").read_text())
    assert found["measured"]["host"] == "node17.cluster.example"
    assert found["measured"]["compilers"]["c"].startswith("gcc")
    assert any(p.startswith("numpy==") for p in found["archived"]["packages"])


def test_verifies_here_and_with_sha256sum(archive_folder: Path) -> None:
    assert archive.verify(archive_folder) == []
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", MANIFEST], cwd=archive_folder, check=True)


def test_verifies_under_a_relative_path(archive_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(archive_folder)
    assert archive.verify(Path()) == []


def test_same_content_is_not_archived_twice(own: Material) -> None:
    first = archive.make(own)
    stamp = (first / "index.html").stat().st_mtime_ns
    assert archive.make(own) == first
    assert (first / "index.html").stat().st_mtime_ns == stamp
    assert left(own) == [first.name, "index.html"]


def test_other_content_gets_another_name_and_the_list_has_both(own: Material) -> None:
    first = archive.make(own)
    (own.root / "config" / "example.yaml").write_text("about: another\n")
    second = archive.make(own)
    assert first != second and archive.verify(first) == archive.verify(second) == []
    listed = (own.root / "results" / "archives" / "index.html").read_text()
    assert first.name in listed and second.name in listed


def test_list_is_newest_first_and_survives_a_damaged_archive(tmp_path: Path) -> None:
    about = {"experiment": "x", "host": "h", "kernels": ["k"], "cases": 1, "measured": 1, "samples": 1, "valid_samples": 1, "accuracy": ""}
    for name, created in (("a-1", "2026-01-01T00:00:00Z"), ("b-2", "2026-03-01T00:00:00Z"), ("c-3", "2026-02-01T00:00:00+00:00")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "archive.json").write_text(json.dumps(about | {"created": created}))
    (tmp_path / "d-4").mkdir()
    (tmp_path / "d-4" / "archive.json").write_text("{")
    site.write_index(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert text.index("b-2/index.html") < text.index("c-3/index.html") < text.index("a-1/index.html")
    assert "d-4" not in text


@pytest.mark.parametrize("name", ["data/dataset.nc", "index.html", "derivations/matmul/nn/tiled/c/avx512/f64/kernel.c"])
def test_a_changed_byte_is_found(name: str, copy: Path) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(bytes(content))
    assert archive.verify(copy) == [f"changed: {name}"]


def test_missing_and_extra_files_are_found(copy: Path) -> None:
    (copy / "table.txt").unlink()
    (copy / "charts" / "note.txt").write_text("new")
    (copy / "charts" / "link").symlink_to(copy / "index.html")
    assert archive.verify(copy) == ["missing: table.txt", "extra: charts/link", "extra: charts/note.txt"]


def test_a_file_replaced_by_a_link_is_found(copy: Path) -> None:
    (copy / "table.txt").rename(copy.parent / "elsewhere.txt")
    (copy / "table.txt").symlink_to(copy.parent / "elsewhere.txt")
    assert archive.verify(copy) == ["changed: table.txt"]


def test_a_manifest_that_was_rewritten_to_match_is_found(copy: Path) -> None:
    (copy / "table.txt").write_text("forged\n")
    lines = [f"{archive.sha256(copy / 'table.txt')}  table.txt" if line.endswith("  table.txt") else line for line in (copy / MANIFEST).read_text().splitlines()]
    (copy / MANIFEST).write_text("\n".join(lines) + "\n")
    assert archive.verify(copy) == [f"changed: {MANIFEST}, or the folder's name, whose end should be its hash: -{archive.sha256(copy / MANIFEST)[:8]}"]


def test_an_archive_under_another_name_says_which_name_it_should_have(copy: Path) -> None:
    [problem] = archive.verify(copy.rename(copy.with_name("renamed")))
    assert "the folder's name" in problem and problem.endswith(copy.name[-9:])


def test_a_damaged_or_missing_manifest_is_found(copy: Path) -> None:
    (copy / MANIFEST).write_text((copy / MANIFEST).read_text() + "not a checksum\n")
    assert any("is not a checksum" in p for p in archive.verify(copy))
    (copy / MANIFEST).unlink()
    assert archive.verify(copy)[0].startswith(f"missing: {MANIFEST}")


def test_a_damaged_archive_of_the_same_content_is_not_silently_kept(own: Material) -> None:
    place = archive.make(own)
    (place / "table.txt").chmod(0o644)
    (place / "table.txt").write_text("changed")
    with pytest.raises(RecordError, match=r"exists but is damaged: changed: table\.txt"):
        archive.make(own)


def test_a_full_disk_leaves_nothing_and_says_so(own: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(RecordError, match="No space left on device"):
        archive.make(own)
    assert left(own) == []


def test_any_failure_leaves_nothing(own: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, ds: xr.Dataset) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site, "write_pages", fail)
    with pytest.raises(KeyboardInterrupt):
        archive.make(own)
    assert left(own) == []


def test_a_killed_run_leaves_no_archive_and_the_next_one_clears_up(own: Material) -> None:
    script = "import os, signal, sys, pathlib\nfrom moapipe.report import archive, site\n" \
             "site.write_pages = lambda folder, ds: os.kill(os.getpid(), signal.SIGKILL)\n" \
             "archive.make(archive.Material(pathlib.Path(sys.argv[1]), 'example', 'local'))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script, str(own.root)], check=False)
    assert done.returncode == -signal.SIGKILL
    half = left(own)
    assert len(half) == 1 and half[0].startswith(MAKING)
    whole = archive.make(own)
    assert left(own) == [whole.name, "index.html"]


def test_another_runs_workplace_is_left_alone(own: Material) -> None:
    folder = own.root / "results" / "archives"
    busy = folder / f"{MAKING}{socket.gethostname()}-{os.getppid()}"
    far = folder / f"{MAKING}another-host-1"
    for place in (busy, far):
        place.mkdir(parents=True)
    archive.make(own)
    assert busy.exists() and far.exists()


def test_without_a_dataset_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        archive.make(Material(tmp_path, "example", "local"))
    assert not (tmp_path / "results" / "archives").exists()
