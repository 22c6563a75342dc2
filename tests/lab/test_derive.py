"""Derivations: one normal form a form, one loop nest for both languages, tile parameters, refusals, and the files."""

import time
from dataclasses import replace
from itertools import groupby

import pytest

from moapipe.errors import ConfigError, LiftError
from moapipe.lab.derive import derive, parameters, tiny_tiles
from moapipe.lab.experiment import Build, all_builds
from moapipe.lab.file import read_json
from moapipe.lab.kernel import Variant, load
from moapipe.lab.place import root
from moapipe.lab.transcript import STYLES, document, edited, markdown, write
from moapipe.loops.onf import show
from moapipe.loops.onf_json import from_json
from moapipe.targets.isa import ISAS, tile_parameters

ROOT = root()
KERNELS = ("attention_forward", "matmul", "rmsnorm")
ALL = all_builds(ROOT, "avx512", KERNELS)
TILED = Build("attention_forward", "causal_lse", "online_tiled", "c", "avx512", "f64")
SMALL = Build("rmsnorm", "forward", "row", "fortran", "avx2", "f32")


@pytest.fixture(scope="module")
def everything():
    """Every derivation there is, from nothing, and the CPU seconds that all took."""
    load.__globals__["_load"].cache_clear()
    start = time.process_time()
    found = [derive(b, ROOT) for b in ALL]
    return found, time.process_time() - start


def test_one_normal_form_a_form_and_one_nest_for_every_language(everything):
    for (_kernel, _form), derivations in groupby(everything[0], key=lambda d: (d.build.kernel, d.build.form)):
        found = list(derivations)
        assert len({d.denotation.hash for d in found}) == 1
        nests = {}
        for d in found:
            nests.setdefault((d.build.variant, d.build.dtype), set()).add(d.schedule.hash)
        assert all(len(hashes) == 1 for hashes in nests.values())
    assert len({d.denotation.hash for d in everything[0]}) == len({(b.kernel, b.form) for b in ALL})


def test_all_variants_derive_in_seconds(everything):
    """The promise is 5 s on a quiet machine; CPU time does not see neighbours, and other machines are slower."""
    assert everything[1] < 20


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_variant_derives_for_every_machine_with_usual_and_tiny_tiles(isa, dtype):
    ends = {form for k in KERNELS for form in (next(iter(load(k, ROOT).forms)), [*load(k, ROOT).forms][-1])}
    for b in (b for b in all_builds(ROOT, isa, KERNELS, ("c",), (dtype,)) if b.form in ends):
        usual, tiny = derive(b, ROOT), derive(b, ROOT, tiny=True)
        assert usual.denotation.hash == tiny.denotation.hash
        assert usual.schedule.params["V"] == tiny.schedule.params["V"] == ISAS[isa].lanes(dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_tiny_tiles_are_tiles(isa, dtype):
    tiny, usual = tiny_tiles(isa, dtype), tile_parameters(isa, dtype)
    assert tiny.keys() == usual.keys() and all(tiny[k] <= usual[k] for k in usual)
    assert tiny["W"] == tiny["NV"] * tiny["V"] and tiny["Br"] % tiny["MR"] == 0
    assert tiny["Bc"] % tiny["W"] == tiny["Bc"] % tiny["Bq"] == tiny["Bq"] % tiny["Br"] == 0


def test_parameters_are_expressions_in_what_stands_before_them():
    v = Variant(about="", targets=("c",), params={"L": "4*V", "M": "L + MR", "V2": 2}, tiny={"L": "V"})
    p = parameters(v, "avx512", "f64")
    assert (p["L"], p["M"], p["V2"]) == (32, 32 + p["MR"], 2)
    assert parameters(v, "avx512", "f64", tiny=True)["M"] == 8 + tiny_tiles("avx512", "f64")["MR"]
    with pytest.raises(ConfigError) as e:
        parameters(Variant(about="", targets=("c",), params={"L": "4*VV"}), "avx512", "f64")
    assert "did you mean 'V'?" in e.value.hint


@pytest.mark.parametrize(("change", "hint"), [
    ({"kernel": "atention_forward"}, "attention_forward"), ({"form": "casual"}, "causal"), ({"variant": "online_tilled"}, "online_tiled"), ({"target": "rust"}, "fortran")])
def test_a_name_that_does_not_exist(change, hint):
    with pytest.raises(ConfigError) as e:
        derive(replace(TILED, **change), ROOT)
    assert hint in e.value.hint


@pytest.mark.parametrize(("old", "new", "error", "said"), [
    ("laws: [base2]", "laws: [base3]", ConfigError, "no law 'base3'"),
    ("- split: {axis: d,", "- splitt: {axis: d,", LiftError, "unknown lift splitt"),
    ("- split: {axis: d, by: V,", "- split: {axis: zz, by: V,", LiftError, "zz"),
])
def test_a_wrong_variant_says_build_lift_and_place(tmp_path, old, new, error, said):
    (tmp_path / "kernels").mkdir()
    for name in ("attention_forward.py", "attention_forward.yaml"):
        text = (ROOT / "kernels" / name).read_text()
        (tmp_path / "kernels" / name).write_text(text.replace(old, new))
    with pytest.raises(error) as e:
        derive(Build("attention_forward", "full", "row_scratch", "c", "avx512", "f64"), tmp_path)
    assert said in str(e.value) and "row_scratch" in str(e.value)


def test_an_edited_kernel_is_derived_anew(tmp_path):
    (tmp_path / "kernels").mkdir()
    for name in ("rmsnorm.py", "rmsnorm.yaml"):
        (tmp_path / "kernels" / name).write_text((ROOT / "kernels" / name).read_text())
    before = derive(SMALL, tmp_path)
    assert derive(SMALL, tmp_path).denotation is before.denotation
    path = tmp_path / "kernels/rmsnorm.py"
    path.write_text(path.read_text().replace("(1, 1), gamma, scaled", "(1, 1), gamma, x"))
    assert derive(SMALL, tmp_path).denotation.hash != before.denotation.hash


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("b", [TILED, SMALL], ids=Build.path)
def test_the_files_hold_the_whole_line_and_the_same_bytes(tmp_path, b):
    d = derive(b, ROOT)
    write(d, tmp_path / "one")
    load.__globals__["_load"].cache_clear()  # the second derivation starts from the files again
    again = derive(b, ROOT)
    assert again is not d and again.denotation is not d.denotation
    write(again, tmp_path / "two")
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert files == sorted(["cost.json", "derivation.json", "derivation.md", "manifest.json", d.source.manifest["source"]])
    for name in files:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes()
        assert str(ROOT).encode() not in content
    cost, manifest = read_json(tmp_path / "one/cost.json"), read_json(tmp_path / "one/manifest.json")
    assert from_json(cost["onf"]) == d.schedule.kernel and set(cost["closed_forms"]) >= {"loads", "stores", "calls"}
    assert manifest["dnf_hash"] == d.denotation.hash and manifest["onf_hash"] == cost["onf_hash"] == d.schedule.hash
    assert [i["name"] for i in manifest["inputs"]] == [x.name for x in d.denotation.definitions.inputs]


def test_the_derivation_shows_every_step_in_every_style():
    d = derive(TILED, ROOT)
    data, text = document(d), markdown(d)
    assert len(data["steps"]) == len(d.denotation.steps) and len(data["lifts"]) == len(d.schedule.lifts) > 40
    for step in data["steps"]:
        assert step["text"] and all(step[side][style] for side in ("before", "after") for style in STYLES)
    assert [law["law"] for law in data["laws"]] == list(load("attention_forward", ROOT).variant("online_tiled").laws)
    for law in data["laws"]:
        assert law["before"]["moa"] != law["after"]["moa"] and law["text"]
    for lift in d.schedule.lifts:
        assert f": {lift.title}\n" in text
    assert show(d.schedule.naive).rstrip() in text and show(d.schedule.kernel).rstrip() in text
    nest = data["naive"]["onf"]
    for lift, x in zip(data["lifts"], d.schedule.lifts, strict=True):
        nest = edited(nest, lift["edits"])
        assert nest == show(x.kernel)
    assert nest == data["onf"]["text"]
    assert d.denotation.hash in text and d.schedule.hash in text and "$$" in text and "Ω⟨2 2⟩" in text


def test_only_changed_definitions_stand_in_a_law():
    for law in document(derive(TILED, ROOT))["laws"]:
        assert len(law["before"]["moa"]) < len(derive(TILED, ROOT).denotation.dnf.normals)
