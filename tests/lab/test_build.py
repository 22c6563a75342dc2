"""Builds: what is recorded, what a missing or refusing compiler says, and that a failing gate fails the build."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from moapipe.errors import ConfigError, LabError, RecordError
from moapipe.lab import build as building
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build, machine_file, native_isa
from moapipe.lab.file import read_json, sha256, write_json, write_text
from moapipe.lab.place import built, derived, root
from moapipe.targets.table import TARGETS

TILED = Build("matmul", "nn", "tiled", "c", native_isa(), "f64")


@pytest.fixture
def checkout(tmp_path) -> Path:
    """This repository's kernels, a copy of its machines, a results folder of its own, and one derived build."""
    (tmp_path / "kernels").symlink_to(root() / "kernels")
    shutil.copytree(root() / "config", tmp_path / "config")
    put(TILED, tmp_path)
    return tmp_path


def put(b, here):
    d = derive(b, here)
    write_text(here / derived(b) / d.source.manifest["source"], d.source.text)
    write_json(here / derived(b) / "manifest.json", d.manifest)
    return here / derived(b) / d.source.manifest["source"]


@pytest.mark.parametrize("target", ["c", "fortran"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_build_records_how_it_was_made_and_passes_the_gate(checkout, target, dtype):
    b = replace(TILED, target=target, dtype=dtype)
    source = put(b, checkout)
    r = building.require(building.build(b, checkout))
    folder = checkout / built(b, "local")
    assert sorted(p.name for p in folder.iterdir()) == ["build.json", "kernel.s", "kernel.so"]
    assert r.source_sha256 == sha256(source) and r.library_sha256 == sha256(folder / "kernel.so")
    assert r.compiler["version"].lower().startswith(("gcc", "gnu fortran")) and len(r.commands) == 2
    assert r.tiles and all(t["problem"] == "" and t["fma"] % t["expected"] == 0 and not t["stores"] for t in r.tiles)
    assert building.read(folder / "build.json") == replace(r, tiles=tuple(read_json(folder / "build.json")["tiles"]))
    for content in ((folder / "build.json").read_bytes(), (folder / "kernel.s").read_bytes()):
        assert str(checkout).encode() not in content


@pytest.mark.slow
def test_tiles_between_exponentials_stay_in_registers(checkout):
    """The polynomial's constants, kept in vector registers around the tiles that follow, once took one accumulator's place."""
    b = Build("attention_forward_backward", "causal", "row_block", "fortran", native_isa(), "f32")
    put(b, checkout)
    assert building.require(building.build(b, checkout)).tiles


def test_a_source_beside_its_library_is_left_alone(checkout):
    """Validation compiles tiny tiles so; what an earlier build left there goes."""
    d, folder = derive(TILED, checkout), Path("beside")
    write_text(checkout / folder / "kernel.c", d.source.text)
    write_text(checkout / folder / "kernel.sm_90.cubin", "old")
    compiler = building.find(machine_file("local", checkout), "c", "local")
    made = building.compile_source(TILED, d.manifest, checkout, folder / "kernel.c", folder, "local", compiler, gated=False)
    assert building.require(made).source_sha256 == sha256(checkout / folder / "kernel.c")
    assert sorted(p.name for p in (checkout / folder).iterdir()) == ["kernel.c", "kernel.s", "kernel.so"]


def test_the_recorded_commands_make_the_same_library(checkout):
    r = building.require(building.build(TILED, checkout))
    before = (checkout / r.library).read_bytes()
    (checkout / r.library).unlink()
    for command in r.commands:
        subprocess.run(command, shell=True, cwd=checkout, check=True, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PWD": str(checkout)})
    assert (checkout / r.library).read_bytes() == before


def test_nothing_is_derived(checkout):
    with pytest.raises(LabError, match="nothing is derived"):
        building.build(replace(TILED, form="nt"), checkout)


def test_a_missing_compiler_says_what_to_do(checkout):
    path = checkout / "config/machines/local.yaml"
    path.write_text("modules: [gcc/11]\ncompilers: {c: {command: no-such-gcc, package: gcc-12}}\n")
    with pytest.raises(LabError, match="no-such-gcc is not in PATH") as e:
        building.build(TILED, checkout)
    assert "apt install gcc-12" in e.value.hint and "module load gcc/11" in e.value.hint
    r = building.unbuilt(TILED, checkout, "local", str(e.value))
    stored = building.read(checkout / built(TILED, "local") / "build.json")
    assert stored == r and stored.status == "build_failed" and "no-such-gcc" in stored.reason


@pytest.mark.parametrize(("text", "hint"), [
    ("compilers: {c: {comand: gcc}}", "did you mean 'command'?"), ("compilers: {rust: {command: rustc}}", "expected 'c', 'fortran',"), ("compiler: {}", "did you mean 'compilers'?")])
def test_a_wrong_machine_file_teaches(checkout, text, hint):
    (checkout / "config/machines/local.yaml").write_text(text)
    with pytest.raises(ConfigError) as e:
        machine_file("local", checkout)
    assert hint in e.value.hint


def test_a_source_that_does_not_compile_is_recorded_and_leaves_no_library(checkout):
    source = put(TILED, checkout)
    building.build(TILED, checkout)
    source.write_text(source.read_text() + "\nint broken(\n")
    r = building.build(TILED, checkout)
    assert r.status == "build_failed" and "kernel.c:" in r.reason and "error" in r.reason and r.library == ""
    assert sorted(p.name for p in (checkout / built(TILED, "local")).iterdir()) == ["build.json"]
    with pytest.raises(LabError, match="refuses the source"):
        building.require(r)


def test_a_failing_gate_fails_the_build(checkout):
    """Without optimisation the accumulators live in memory."""
    path = checkout / "config/machines/local.yaml"
    path.write_text("compilers: {c: {command: gcc, flags: [-O0]}}\n")
    r = building.build(TILED, checkout)
    assert r.status == "gate_failed" and "register tile product" in r.reason and "source lines" in r.reason
    assert r.library == "" and not (checkout / built(TILED, "local") / "kernel.so").exists()
    assert (checkout / built(TILED, "local") / "kernel.s").is_file()  # to look at
    assert any(t["problem"] for t in r.tiles)


def test_a_damaged_record_is_no_build(checkout):
    path = checkout / built(TILED, "local") / "build.json"
    write_text(path, "{")
    with pytest.raises(RecordError, match="damaged"):
        building.read(path)


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.device], ids=lambda t: t.name)
def test_a_text_for_a_gpu_compiles_to_a_device_binary(checkout, target):
    if shutil.which(target.compiler) is None:
        pytest.skip(f"no {target.compiler}")
    assert target.name in derive(TILED, checkout).denotation.kernel.variant("naive").targets
    b = Build("matmul", "nn", "naive", target.name, TILED.isa, "f64")
    put(b, checkout)
    r = building.require(building.build(b, checkout))
    assert r.library == "" and list((checkout / built(b, "local")).glob(f"kernel*.{target.device[0].partition('.')[2]}"))
