"""Bad input and bad luck, through the command line: one clear message each, nothing half-written, nothing lost, nothing wrong timed."""

import json
import re
import resource
from pathlib import Path

import pytest

from moapipe.lab import record
from moapipe.lab.variable import STATUSES

RECORD = Path("results/tiny/local/bench/rmsnorm/forward/f64/record.nc")
GROUP = ("rmsnorm", "--form", "forward", "--dtype", "f64", "--experiment", "config/tiny.yaml")
OF = ("--experiment", "config/tiny.yaml")
BUILD = ("rmsnorm", "--form", "forward", "--variant", "row", "--target", "c", "--isa", "avx2", "--dtype", "f64")
WRITERS = {
    "derive": BUILD, "build": BUILD, "validate": BUILD, "predict": GROUP, "bench": GROUP, "collect": OF, "chart": OF, "archive": OF,
}
LITTLE = 300


def full_disk() -> None:
    """No file of this process may grow beyond LITTLE bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE, LITTLE))


def whole(done, *says: str) -> None:
    assert "Traceback" not in done.stdout, done.stdout
    assert all(word in done.stdout for word in says), done.stdout


@pytest.mark.parametrize("verb", WRITERS)
def test_a_full_disk_is_one_message_and_loses_nothing(verb: str, line) -> None:
    if verb == "bench":
        (line.path / RECORD).unlink()
    if verb == "archive":
        line.edit("results/tiny/local/table.txt", "rmsnorm", "RMSNORM")
        line.edit("kernels/rmsnorm.yaml", "about: ", "about: In short, ")
    before = line.files()
    done = line.moapipe(verb, *WRITERS[verb], preexec_fn=full_disk)
    assert done.returncode in (1, 2), done.stdout
    whole(done)
    assert re.search(r"File too large|too large|signal 25|SIGXFSZ", done.stdout), done.stdout
    after = line.files()
    assert not [name for name in set(after) - set(before) if "/." in name]
    changed = {name for name in before if after.get(name) != before[name]}
    assert all("results/build/" in name for name in changed), changed  # the compiler removes what it is about to make


def test_a_truncated_record_is_named_and_the_dataset_stays(line) -> None:
    path = line.path / RECORD
    path.write_bytes(path.read_bytes()[:2000])
    before = line.files()
    done = line.moapipe("collect", *OF)
    assert done.returncode == 2
    whole(done, "record.nc", "cut short", "hint")
    assert line.files() == before


@pytest.mark.parametrize("verb", ("chart", "archive", "table"))
def test_a_truncated_dataset_is_named(verb: str, line) -> None:
    path = line.path / "results/tiny/local/dataset.nc"
    path.write_bytes(path.read_bytes()[:-500])
    before = line.files()
    done = line.moapipe(verb, *(["config/tiny.yaml"] if verb == "table" else OF))
    assert done.returncode == 2
    whole(done, "dataset.nc", "cut short")
    assert line.files() == before


@pytest.mark.parametrize("file", ("prediction.json", "validation.json", "build.json", "manifest.json"))
def test_damaged_json_is_named(file: str, line) -> None:
    path = next(p for p in (line.path / "results").rglob(file) if "archives" not in p.parts)
    path.write_text(path.read_text()[:40])
    verb, words = {"prediction.json": ("collect", OF), "validation.json": ("collect", OF), "build.json": ("validate", BUILD), "manifest.json": ("build", BUILD)}[file]
    done = line.moapipe(verb, *words)
    assert done.returncode == 2
    whole(done, file, "damaged")


def test_a_changed_archive_does_not_verify(line) -> None:
    place = next((line.path / "results/archives").glob("tiny-*"))
    (place / "index.html").chmod(0o644)
    (place / "index.html").write_text("nothing")
    done = line.moapipe("archive", "--verify", str(place))
    assert done.returncode == 1
    whole(done, "changed: index.html")


def test_a_kernel_that_computes_the_wrong_thing_is_never_timed(line) -> None:
    line.edit("kernels/rmsnorm.py", '/ moa.size("d") + eps', '/ moa.size("d") + eps + eps')
    done = line.snakemake("--cores", "2", "dataset")
    assert done.returncode == 0, done.stdout
    whole(done, "validation failed", "rinv")
    data = record.read(line.path / RECORD)
    ours = data.isel(case=(data["target"] != "torch").values)
    assert (ours["status"] == STATUSES["validation_failed"].code).all()
    assert ours["seconds"].isnull().all()
    assert all(ours["reason"].values != "")
    table = line.moapipe("table", "config/tiny.yaml")
    assert table.returncode == 1
    whole(table, "validation failed")


def test_an_illegal_lift_says_which_array_stands_in_the_way(line) -> None:
    line.edit("kernels/rmsnorm.yaml", "    - bind: {axis: t, kind: parallel}", "    - bind: {axis: ct, kind: parallel}")
    before = line.files()
    done = line.moapipe("derive", *BUILD)
    assert done.returncode == 2
    whole(done, "lift")
    assert line.files() == before


def test_a_source_that_does_not_compile_is_a_status_with_the_compilers_words(line) -> None:
    line.edit("config/machines/local.yaml", "{command: gcc,", "{command: gcc, flags: [-fno-such-flag],")
    done = line.snakemake("--cores", "2", "dataset")
    assert done.returncode == 0, done.stdout
    whole(done, "build failed", "-fno-such-flag")
    build = json.loads(next((line.path / "results/build").rglob("build.json")).read_text())
    assert build["status"] == "build_failed"
    assert line.moapipe("table", "config/tiny.yaml").returncode == 1
