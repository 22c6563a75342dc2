"""What is around a GPU, without one: a stand-in on numpy launches, guards, times and answers; a machine without any says so."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from moapipe.errors import LabError
from moapipe.lab import bench as benching
from moapipe.lab import experiment, forecast, gpu, transcript
from moapipe.lab import plan as planning
from moapipe.lab import validate as validating
from moapipe.lab.buffer import aligned
from moapipe.lab.build import Built
from moapipe.lab.derive import derive
from moapipe.lab.doctor import examine
from moapipe.lab.experiment import Build, Group
from moapipe.lab.file import sha256, write_json
from moapipe.lab.launch import launches
from moapipe.lab.place import built, derived, predicted, root
from moapipe.lab.sampling import parse
from moapipe.lab.variable import STATUSES
from moapipe.loops.cost import count
from moapipe.loops.lift.narrow import narrow
from moapipe.loops.onf import Kernel
from moapipe.targets.simt import ELEMENTS

B = Build("matmul", "nn", "naive", "cuda", "plain", "f64")
HALF = replace(B, dtype="bf16")
GROUP = Group("matmul", "nn", "f64")
STAND_IN = Path(__file__).with_name("cupy_stand_in.py")
EXPERIMENT = "isa: plain\nmachine: h200\nthreads: [1]\nlaunches: 3\nsamples: 20\ntime_box_s: 0.3\nbaseline: {baseline}\nkernels: {{matmul: {{forms: [nn], variants: [naive], targets: [cuda], dtypes: [f64], at: [{{m: 5, n: 6, k: 7}}]}}}}\n"
WRONG = {"": "", "wrong": "    C[:] += 1\n", "beside": "    C.base[0] = 1\n", "refused": "    raise RuntimeError('an illegal memory access was encountered')\n"}


def stand_in_binary(manifest, fault=""):
    """The launch of matmul's naive text, on numpy, with its sizes taken from where the manifest puts them."""
    (launch,) = manifest["launches"]
    names = launch["integers"]
    m, n, k = (names.index(s) for s in ("m", "n", "k"))
    return (f"def {launch['launch']}(grid, block, args):\n    {', '.join(launch['buffers'])}, *ints = args\n"
            f"    assert grid[0] * block[0] >= ints[-1] > 0 and all(str(i.dtype) == 'int64' for i in ints)\n"
            f"    import ml_dtypes\n    A, B, alpha, C = (x.view({{2: ml_dtypes.bfloat16, 4: 'f4', 8: 'f8'}}[x.itemsize]) for x in (A, B, alpha, C))\n"
            f"    m, n, k = (int(ints[i]) for i in ({m}, {n}, {k}))\n    A, B = (x.reshape(s).astype(alpha.dtype) for x, s in ((A, (m, k)), (B, (k, n))))\n"
            f"    C[:] = alpha[0] * (A @ B).ravel()\n" + WRONG[fault])  # fmt: skip


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A machine with a stand-in for an H200, here and in the processes that are started."""
    folder = tmp_path / "python"
    folder.mkdir()
    shutil.copy(STAND_IN, folder / "cupy.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    gpu.here.cache_clear()
    yield
    sys.modules.pop("cupy", None)
    gpu.here.cache_clear()


@pytest.fixture
def repository(tmp_path):
    """A repository with the build derived, and built as if for an H200; and the same in half the bytes."""
    here = tmp_path / "repository"
    (here / "config").mkdir(parents=True)
    (here / "kernels").symlink_to(root() / "kernels")
    (here / "config" / "machines").symlink_to(root() / "config" / "machines")
    (here / "config" / "one.yaml").write_text(EXPERIMENT.format(baseline="false"))
    for b in (B, HALF):
        d = derive(b, here)
        transcript.write(d, here / derived(b))
        write_binary(here, d.manifest, b=b)
    return here


def write_binary(here, manifest, fault="", b=B):
    place = here / built(b, "h200")
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.sm_90.cubin").write_text(stand_in_binary(manifest, fault))
    code = {"arch": "sm_90", "file": "kernel.sm_90.cubin", "sha256": sha256(place / "kernel.sm_90.cubin"), "dialect": "sass", "functions": [], "counts": {}, "broken": []}
    source = sha256(here / derived(b) / manifest["source"])
    write_json(place / "build.json", Built(b, "h200", "built", "", {"command": "nvcc", "version": "13"}, (), source, "", "", (), (code,)).document())


# ------------------------------------------------------------------ without a device


def test_a_machine_without_cupy_or_without_a_gpu_says_so(device, monkeypatch, repository):
    h200 = experiment.machine_file("h200", repository).device
    assert gpu.absent(h200) == "" and gpu.here()["name"] == "Stand-in H200"
    assert "the GPU here is Stand-in H200 (sm_90), the machine's file describes A100" in gpu.absent(experiment.machine_file("anvil", repository).device)
    assert "describes no device" in gpu.absent(None)
    monkeypatch.setattr(import_module("cupy").cuda.runtime, "count", 0)
    assert gpu.found() == {"missing": "no GPU"}
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "cupy cannot be imported" in gpu.found()["missing"]
    with pytest.raises(LabError, match="cupy cannot be imported"):
        gpu.function(Path("kernel.cubin"), {})


def test_nothing_but_a_gpus_process_loads_cupy():
    code = "import sys; from moapipe.lab import gpu, bench, validate, plan, forecast, doctor; print('cupy' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "False"]


def test_doctor_says_what_is_missing_and_what_that_leaves_out(monkeypatch):
    """A machine with nothing for GPUs on its PATH: notices, never wrong; where a file describes a GPU that is not here, that is wrong."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("moapipe.lab.doctor.binary.disassembler", lambda: "")
    from moapipe.lab import doctor, opencl  # noqa: PLC0415

    monkeypatch.setattr(opencl, "missing", lambda runtime: f"no {runtime}: apt install it")
    place = doctor.Place(root(), "local", experiment.machine_file("local", root()))
    found = {f.topic: f for f in doctor._gpu(place)}
    assert {f.severity for f in found.values()} <= {"notice", "fine"} and found["GPU"].severity == "fine"
    for topic, says in {"compiler of cuda": "not compiled", "compiler of hip": "not compiled", "compiler of opencl": "not compiled", "cuobjdump": "PTX", "shim": "no evidence"}.items():
        assert says in found[topic].text and found[topic].severity == "notice"
    gpu.here.cache_clear()
    monkeypatch.setattr(gpu, "found", lambda: {})
    described = doctor.Place(root(), "h200", experiment.machine_file("h200", root()))
    monkeypatch.setattr(gpu, "here", lambda: {"missing": "no GPU"})
    (wrong,) = (f for f in doctor._gpu(described) if f.severity == "wrong")
    assert wrong.topic == "GPU" and "no GPU" in wrong.text and examine is doctor.examine


# ------------------------------------------------------------------ calls


def test_a_launch_is_given_what_the_manifest_says(device, repository):
    manifest = derive(B, repository).manifest
    call = gpu.function(repository / built(B, "h200") / "kernel.sm_90.cubin", manifest)
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal(5 * 7), rng.standard_normal(7 * 6), np.full(5 * 6, np.nan)
    call([a, b, np.full(1, 2.0), c], np.empty(0), [{"m": 5, "n": 6, "k": 7}[s] for s in manifest["sizes"]], 130)
    np.testing.assert_allclose(c.reshape(5, 6), 2 * a.reshape(5, 7) @ b.reshape(7, 6))
    (l,) = launches(manifest, {"m": 5, "n": 6, "k": 7}, 130)
    assert (l.blocks, l.block, l.integers[-1]) == (2, 128, 130) and not launches(manifest, {"m": 5, "n": 6, "k": 7}, 0)


@pytest.mark.parametrize(("at", "array"), [({"m": ELEMENTS + 1, "n": 1, "k": 1}, "A has"), ({"m": 1, "n": 2**16, "k": 2**15}, "B has"), ({"m": 2**16, "n": 2**15, "k": 1}, "C has")])
def test_an_array_that_32_bits_cannot_count_is_refused(repository, at, array):
    """An array of the caller's, and one in the workspace."""
    manifest = derive(B, repository).manifest
    assert launches(manifest, {"m": ELEMENTS, "n": 1, "k": 1}, 1)
    with pytest.raises(LabError, match=array) as e:
        launches(manifest, at, 1)
    assert "share the batch out" in e.value.hint
    scratch = {**manifest, "workspace": {"elements": "m * n * n", "arrays": [{"name": "W", "elements": "m * n * n"}]}}
    with pytest.raises(LabError, match="W has 2,147,483,648 elements"):
        launches(scratch, {"m": 2**11, "n": 2**10, "k": 1}, 1)


def test_tensors_of_another_library_are_taken_as_they_are_and_never_copied_where_a_call_writes(device, repository):
    module = gpu.Module.load(repository / built(B, "h200") / "kernel.sm_90.cubin", derive(B, repository).manifest)

    class Tensor:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = aligned(4, "f64")
    x[:] = range(4)
    assert np.shares_memory(module.buffer("A", Tensor(x)), x) and not np.shares_memory(module.buffer("A", x), x)
    assert not np.shares_memory(got := module.buffer("A", Tensor(x[1:])), x) and got.tolist() == [1, 2, 3]  # 8 bytes off an access of 16
    updated = replace(module, manifest={**module.manifest, "inputs": [{**a, "becomes": "C"} if a["name"] == "A" else a for a in module.manifest["inputs"]]})
    for m, name in ((module, "C"), (updated, "A")):
        assert np.shares_memory(m.buffer(name, Tensor(x)), x)
        with pytest.raises(LabError, match=f"{name} begins 8 bytes behind a multiple of 16, and the call writes to it"):
            m.buffer(name, Tensor(x[1:]))


@pytest.mark.parametrize(("fault", "says"), [("beside", "C: elements beside its buffer were written"), ("refused", "an illegal memory access")])
def test_a_trespass_and_a_failing_launch_are_said(fault, says, device, repository):
    manifest = derive(B, repository).manifest
    write_binary(repository, manifest, fault)
    call = gpu.function(repository / built(B, "h200") / "kernel.sm_90.cubin", manifest)
    with pytest.raises(LabError, match=says):
        call([np.ones(4), np.ones(4), np.ones(1), np.ones(4)], np.empty(0), [2, 2, 2], 128)


@pytest.mark.parametrize(("b", "fault"), [*((B, f) for f in WRONG), (HALF, ""), (HALF, "wrong")], ids=lambda x: getattr(x, "dtype", x) or "right")
def test_a_build_is_validated_on_the_device_before_anything_is_timed(b, fault, device, repository):
    write_binary(repository, derive(b, repository).manifest, fault, b)
    found = validating.validate(b, repository, "h200")
    assert found.passed == (not fault) and found.device == "Stand-in H200"
    assert {"wrong": "beyond the bound", "beside": "beside its buffer", "refused": "illegal memory access", "": ""}[fault] in found.reason


def test_without_a_device_a_build_is_not_validated(repository, monkeypatch):
    monkeypatch.setattr(gpu, "here", lambda: {"missing": "no GPU"})
    found = validating.validate(B, repository, "h200")
    assert not found.passed and "no GPU" in found.reason and found.device == ""


# ------------------------------------------------------------------ the protocol


def served(repository):
    return gpu.kernel(repository / built(B, "h200") / "kernel.sm_90.cubin", derive(B, repository).manifest, 1024)


def test_the_drivers_protocol_with_cold_caches_before_each_call(device, repository, tmp_path):
    process, calls, flushes = served(repository), [], []
    for name, size in (("A", 4), ("B", 4), ("alpha", 1)):
        np.ones(size).tofile(tmp_path / f"{name}.bin")
    lines = ["memory first_touch all -", "prepare 3 1 0 3 128", *(f"input {n} {tmp_path}/{name}.bin" for name, n in (("A", 4), ("B", 4), ("alpha", 1))), "output 4", "size 2", "size 2", "size 2",
             "placed", "warm 0", "turn 3 2", "nonsense", "turn 1 1"]  # fmt: skip
    out = io.StringIO()
    flush, prepare = process.flush, process.prepare
    process.flush = lambda: (flushes.append(len(calls)), flush())

    def prepared(s, rows, threads):
        answer = prepare(s, rows, threads)
        call = s.call
        s.call = lambda: (calls.append(threads), call())
        return answer

    process.prepare = prepared
    gpu.serve(process, iter(lines), out)
    said = out.getvalue().splitlines()
    assert [l.split()[0] for l in said] == ["done", "done", "done", "done", "sample", "sample", "done", "error"] and "unknown command: nonsense" in said[-1]
    assert calls == [128] * len(flushes) and flushes == list(range(len(calls))) and len(calls) == 2 + 1 + 3 * 2
    samples = [parse(l.split()[1:], 3) for l in said if l.startswith("sample ")]
    assert all(s.seconds > 0 and s.threads == 1 and s.clock == 0 for s in samples)


@pytest.mark.parametrize("b", [B, HALF], ids=lambda b: b.dtype)
def test_a_group_is_measured_on_the_device_in_the_usual_record(b, device, repository):
    assert validating.validate(b, repository, "h200").passed
    (repository / "config" / "one.yaml").write_text(EXPERIMENT.format(baseline="false").replace("f64", b.dtype))
    e, group = experiment.read("one", repository), replace(GROUP, dtype=b.dtype)
    write_json(repository / predicted(e, group), {"prediction_hash": "x", "cases": []})
    data = benching.bench(e, group, lambda _: None)
    assert data.sizes["case"] == 1 and str(data["target"].values[0]) == "cuda" and data["threads"].values.tolist() == [1]
    assert np.isfinite(data["seconds"].values).sum() >= 9 and data["status"].values[0] in {STATUSES[s].code for s in ("measured", "all_invalid")}  # by the neighbours


def test_pytorch_takes_part_by_each_of_its_ways(device, repository):
    assert validating.validate(B, repository, "h200").passed
    (repository / "config" / "one.yaml").write_text(EXPERIMENT.format(baseline="true"))
    e = experiment.read("one", repository)
    write_json(repository / predicted(e, GROUP), {"prediction_hash": "x", "cases": []})
    made = planning.plan(e, GROUP, benching.topology.probe())
    assert [(x.name, x.backend, x.gpu_threads) for x in made.entries] == [("naive/cuda", None, 128), ("torch", "", 0)]
    entry = replace(made.entries[1], values={**made.entries[1].values, "variant": "scaled_dot_product_attention"})
    ways = planning._on_device(entry)
    assert [x.backend for x in ways] == ["", *gpu.BACKENDS] and len({x.values["variant"] for x in ways}) == len(ways) == len({x.name for x in ways})


def test_what_the_device_has_no_room_for_is_refused(device, repository, monkeypatch):
    assert validating.validate(B, repository, "h200").passed
    e = experiment.read("one", repository)
    small = replace(e, machine=e.machine.model_copy(update={"device": e.machine.device.model_copy(update={"memory_bytes": 100})}))
    write_json(repository / predicted(e, GROUP), {"prediction_hash": "x", "cases": []})
    (entry,) = planning.plan(small, GROUP, benching.topology.probe()).entries
    assert entry.status == "refused" and "on the device" in entry.reason


def test_predictions_of_a_device_follow_its_data_sheet():
    e = experiment.read("gpu", root(), "h200")
    nest: Kernel = derive(B, root()).schedule.kernel
    point = next(p for p in experiment.points(e, "matmul"))
    row, half = forecast._on_device(nest, point, 8, e.machine.device, "f64"), forecast._on_device(narrow(nest), point, 4, e.machine.device, "bf16")
    assert half["traffic_bytes"]["L2"] < row["traffic_bytes"]["L2"] and half["footprint_read_bytes"] == row["footprint_read_bytes"] / 4 and half["peak_flops"] == 67e12
    flops = count(nest, point.sizes, 8).flops
    assert row["predicted_compute_seconds"] == flops / 34e12 and row["predicted_memory_seconds"] == row["traffic_bytes"]["L2"] / 4.8e12
    assert row["predicted_seconds"] == max(row["predicted_compute_seconds"], row["predicted_memory_seconds"]) and row["traffic_bytes"]["L2"] >= 3 * 8 * 1024 * 1024


def test_a_process_that_finds_no_gpu_answers_with_an_error(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    words = [sys.executable, "-m", "moapipe.lab.gpu", "kernel", str(tmp_path / "none.cubin"), str(tmp_path / "manifest.json"), "1024"]
    assert subprocess.run(words, capture_output=True, text=True, check=False, input="").stdout.startswith("error ")
