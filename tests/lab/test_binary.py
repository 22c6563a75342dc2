"""What a GPU's compiler made is read as it stands, and held to what the loop nest promised; texts that break a promise fail the gate."""

from __future__ import annotations

import json
import shutil

import pytest

from moapipe.lab import binary, transcript
from moapipe.lab import build as building
from moapipe.lab.binary import Function, broken, counts, from_metadata, from_ptxas
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build, Compiler, machine_file
from moapipe.lab.file import read_json
from moapipe.lab.place import built, derived, root
from moapipe.targets.table import TARGETS

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z8k_2_gridPKdPdl' for 'sm_90'
ptxas info    : Function properties for _Z8k_2_gridPKdPdl
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 26752 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 162.079 ms
ptxas info    : Compiling entry function 'k_1_grid' for 'sm_90'
ptxas info    : Function properties for k_1_grid
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compiling entry function 'k_1_grid' for 'sm_80'
ptxas info    : Used 31 registers, used 0 barriers
"""
METADATA = """	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .name:           Q
    .group_segment_fixed_size: 1024
    .name:           _ZL8k_1_gridPdl
    .private_segment_fixed_size: 48
    .sgpr_count:     28
    .vgpr_count:     19
    .vgpr_spill_count: 3
...

	.end_amdgpu_metadata
"""
LISTINGS = {
    "sass": "/*0c60*/  @!P0 RED.E.ADD.F64.RN.STRONG.GPU [R2.64], R4 ;\n BAR.SYNC 0x0 ;\n LDG.E.128.CONSTANT R4, [R2.64] ;\n LDG.E.64 R4 ;\n STL.64 [R1], R2 ;\n"
            " SHFL.BFLY PT, R4 ;\n ATOMG.E.CAS.STRONG.GPU PT, R4 ;\n LDS.64 R2 ;  // STL in a comment\n",
    "ptx": "red.global.add.f64 [%rd1], %fd1;\nbar.sync 0;\nld.global.nc.v2.f64 {%fd1, %fd2}, [%rd1];\nld.global.f64 %fd1, [%rd1];\nst.local.f64 [%SP], %fd1;\n"
           "shfl.sync.bfly.b32 %r1;\natom.global.cas.b64 %rd2;\nld.shared.f64 %fd1;  // st.local\n",
    "gcn": "global_atomic_add_f64 v[0:1], v[2:3], off\ns_barrier\nglobal_load_dwordx4 v[0:3], v[4:5], off\nglobal_load_dwordx2 v[0:1], v[4:5], off\n"
           "buffer_store_dword v0, off, s[0:3], 0 offset:4\nds_bpermute_b32 v0\nglobal_atomic_cmpswap_x2 v[0:1]\nds_read_b64 v[0:1] // scratch_load_\n",
}  # fmt: skip
NONE = {name: 0 for name in binary.CLASSES["sass"]}
PROMISE = {"atomic": False, "barrier": False, "shuffle": False, "vector": 0, "shared": 0}


def test_what_ptxas_says():
    assert from_ptxas(PTXAS, "sm_90") == (Function("k_1_grid", 30, 0, 0, 0), Function("k_2_grid", 255, 24, 20, 26752))
    assert from_ptxas(PTXAS, "sm_80") == (Function("k_1_grid", 31, 0, 0, 0),)


def test_what_metadata_says():
    assert from_metadata(METADATA) == (Function("k_1_grid", 19, 48, 12, 1024),)
    assert from_metadata("no metadata") == ()


@pytest.mark.parametrize("dialect", LISTINGS)
def test_instructions_are_counted_by_class_and_comments_are_not(dialect):
    assert counts(LISTINGS[dialect], dialect) == {"atomic": 2, "compare and swap": 1, "barrier": 1, "shuffle": 1, "local": 1, "global": 2, "vector": 1, "shared": 1}
    assert set(binary.CLASSES[dialect]) == set(NONE)


@pytest.mark.parametrize(("promise", "found", "function", "says"), [
    ({"atomic": True}, {}, {}, "0 atomic instructions where the loop nest has some"), ({}, {"atomic": 3}, {}, "3 atomic instructions where the loop nest has none"),
    ({"barrier": True}, {}, {}, "0 barrier"), ({}, {"barrier": 1}, {}, "1 barrier"), ({"shuffle": True}, {}, {}, "0 shuffle"),
    ({"atomic": True}, {"atomic": 2, "compare and swap": 2}, {}, "2 compare-and-swap loops"), ({}, {}, {"stack_bytes": 8}, "8 bytes a thread in local memory"),
    ({}, {}, {"spill_bytes": 4}, "4 of them spilt"), ({"shared": 64}, {}, {"shared_bytes": 32}, "32 bytes of shared memory where the loop nest has 64"),
])  # fmt: skip
def test_every_broken_promise_is_said(promise, found, function, says):
    row = Function(**{"name": "f", "registers": 32, "stack_bytes": 0, "spill_bytes": 0, "shared_bytes": 0, **function})
    (said,) = broken(PROMISE | promise, [row], NONE | found)
    assert says in said
    assert not broken(PROMISE, [Function("f", 32, 0, 0, 0)], NONE)


H200 = machine_file("h200", root()).device
LAUNCHES = {"launches": [{"launch": "f", "block": 256}, {"for": "i", "body": [{"launch": "g", "block": 1024}]}]}


@pytest.mark.parametrize(("function", "says"), [
    (Function("f", 255, 0, 0, 232448), ""), (Function("f", 32, 0, 0, 232449), "f: H200 has too few shared memory"), (Function("g", 64, 0, 0, 0), ""),
    (Function("g", 65, 0, 0, 0), "g: H200 has too few registers for a block of 1,024 threads with 65"), (Function("f", 256, 0, 0, 0), "256 registers a thread, H200 has 255"),
])
def test_a_block_that_the_device_cannot_start_fails_the_gate(function, says):
    found = binary.oversized(H200, LAUNCHES, [function])
    assert (not found) if not says else says in found[0]


# ------------------------------------------------------------------ real compilers

ATOMIC = ("attention_backward", "weights", "row_parallel_atomic")
FAULTS = {
    "a plain sum for an atomic one": ("atomicAdd(&", "plain_add(&", "0 atomic instructions where the loop nest has some"),
    "a text that does not compile": ("atomicAdd(&", "atomicSubtract(&", "refuses the source"),
}


@pytest.fixture
def checkout(tmp_path):
    for name in ("kernels", "config"):
        (tmp_path / name).symlink_to(root() / name)
    return tmp_path


def compiled(here, target, change=("", ""), dtype="f64", names=ATOMIC):
    b = Build(*names, target, "plain", dtype)
    d = derive(b, here)
    transcript.write(d, here / derived(b))
    source = derived(b) / d.manifest["source"]
    text = d.source.text.replace(*change)
    if "plain_add" in text:
        text = text.replace("typedef real stored;", "typedef real stored;\nstatic __device__ void plain_add(stored *at, real v) { *at += v; }")
    (here / source).write_text(text)
    row = TARGETS[target]
    return building.compile_source(b, d.manifest, here, source, built(b, "local"), "local", Compiler(command=row.compiler)), b


@pytest.mark.parametrize(("target", "dtype", "names"), [("cuda", "f64", ATOMIC), ("hip", "f64", ATOMIC), ("cuda", "bf16", ATOMIC), ("cuda", "bf16", ("gated_mlp", "forward", "shared"))])
def test_a_device_binary_for_each_architecture_keeps_the_nests_promises(target, dtype, names, checkout):
    if shutil.which(TARGETS[target].compiler) is None:
        pytest.skip(f"no {TARGETS[target].compiler}")
    made, b = compiled(checkout, target, dtype=dtype, names=names)
    building.require(made)
    folder = checkout / built(b, "local")
    assert [c["arch"] for c in made.device] == [arch for arch, _ in TARGETS[target].architectures] and made.library == ""
    manifest = read_json(checkout / derived(b) / "manifest.json")
    for c in made.device:
        assert (folder / c["file"]).is_file() and (folder / f"kernel.{c['arch']}.{c['dialect']}").is_file()
        assert {f["name"] for f in c["functions"]} == {l["launch"] for l in manifest["launches"]} and not c["broken"]
        assert (c["counts"]["atomic"] > 0) == (names == ATOMIC) and all(0 < f["registers"] <= 255 for f in c["functions"])
    building.write_json(folder / "build.json", made.document())
    assert json.dumps(building.read(folder / "build.json").device, sort_keys=True) == json.dumps(made.document()["device"], sort_keys=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_that_breaks_a_promise_fails(fault, checkout, monkeypatch):
    """Without a disassembler, so that PTX is read too."""
    monkeypatch.setattr(binary, "disassembler", lambda: "")
    old, new, says = FAULTS[fault]
    made, _ = compiled(checkout, "cuda", (old, new))
    assert made.status in ("gate_failed", "build_failed") and says in made.reason
    assert made.status == "build_failed" or made.device[0]["dialect"] == "ptx"
