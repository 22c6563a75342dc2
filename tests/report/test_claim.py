"""The papers' closed forms: computed from the definitions, and what each of them assumes."""

from dataclasses import replace
from pathlib import Path

import pytest

from moapipe.algebra import expr as moa
from moapipe.algebra.dnf import Dnf, reduce_definitions
from moapipe.algebra.expr import Definition, Definitions
from moapipe.errors import ConfigError
from moapipe.lab.derive import denotation
from moapipe.report import claim, published
from moapipe.report.published import Claim, Pass

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = published.read().claims


def answer(row: Claim, **changed) -> claim.Answer:
    """The answer for a row of the table, with definitions changed by name of the kernel."""
    return claim.judge(row, *([(f"{p.kernel} {p.form}", changed.get(p.kernel) or claim.normal(p, ROOT)) for p in passes] for passes in (row.passes, row.also)))


def of_kernel(name: str) -> Claim:
    return next(c for c in CLAIMS if [p.kernel for p in c.passes] == [name])


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row.name)
def test_every_published_form_is_computed_from_the_definitions_or_refused_with_a_reason(row):
    found = answer(row)
    d = claim.document(found)
    assert d["because"]
    if found.verdict == "comes out":
        assert d["computed"] == d["claimed"]
        names = d["moved"] + d["off_chip"] + d["on_chip"] + [n for left in d["left_out"].values() for n in left]
        assert set(names) == {x.name for x in found.items}
    else:
        assert not d["computed"]


EXPECTED = {
    "attention, forward": "2·B·N·d_k + 2·B·N·d_v",
    "attention, backward (Algorithm 1)": "B·N^2 + 4·B·N·d_k + 3·B·N·d_v",
    "attention, forward and backward fused (Algorithm 2)": "4·B·N·d_k + 4·B·N·d_v",
    "decode, one token": "B·N·d_k + B·N·d_v + B·d_k + B·d_v",
    "RMSNorm, forward and backward": "4·B·N·d",
    "gated MLP, forward and backward": "",
    "block, forward and backward": "",
}


def test_which_forms_come_out():
    assert {row.name: claim.document(answer(row))["computed"] for row in CLAIMS} == EXPECTED


def test_what_the_forms_leave_out_is_said():
    said = {row.name: claim.document(answer(row)) for row in CLAIMS}
    assert said["decode, one token"]["left_out"]["appended"] == ["k_new", "v_new"]
    assert said["RMSNorm, forward and backward"]["left_out"]["weights"] == ["gamma", "dgamma"]
    mlp = said["gated MLP, forward and backward"]["because"]
    assert "-2·B·N·d + 4·B·N·d_ff is left" in mlp and "5·B·N·d + 2·B·N·d_ff" in mlp and "4nd + 2nd_ff" in mlp
    block = said["block, forward and backward"]["because"]
    assert "10 of the 10 sums of size B·N·d, 2 of the 6 arrays of size B·N·d_ff are moved twice" in block
    assert "U G dH, it is 24·B·N·d + 6·B·N·d_ff" in block
    assert "the form of gated_mlp forward alone" in mlp and "all sums of size B·N·d_ff between are moved twice" in mlp


def test_attention_forward_is_2nd_k_plus_2nd_v_with_everything_between_on_chip():
    d = claim.document(answer(of_kernel("attention_forward")))
    assert (d["verdict"], d["computed"], d["moved"]) == ("comes out", "2·B·N·d_k + 2·B·N·d_v", ["Q", "K", "V", "out"])
    assert "weights" in d["on_chip"] and not d["off_chip"] and d["left_out"] == {"parameter": ["scale"]}


def test_a_changed_definition_changes_the_form():
    """Weights that are returned are moved: n² (B·N² here) appears, and the published form comes out no more."""
    row, dnf = of_kernel("attention_forward"), denotation("attention_forward", "full", ROOT).dnf
    found = answer(row, attention_forward=replace(dnf, outputs=("out", "weights")))
    assert found.verdict == "no assumption gives it" and "-N^2·B is left" not in claim.document(found)["because"]
    assert claim.written(found.compulsory - answer(row).compulsory) == "B·N^2"
    more = row.model_copy(update={"claim": "B*N*N + 2*B*N*d_k + 2*B*N*d_v"})
    assert answer(more, attention_forward=replace(dnf, outputs=("out", "weights"))).verdict == "comes out"


def mlp(*, saves_u: bool) -> tuple[Dnf, Dnf]:
    """h = (x·w)·2, y = h·v by rows, and its gradients; u is saved or not."""
    x, w, v, g = moa.array("x", "t", "d"), moa.array("w", "d", "f"), moa.array("v", "f", "d"), moa.array("g", "t", "d")
    u = Definition("u", ("i", "j"), moa.inner("+", "*", x, w, index="k"))
    h = Definition("h", ("i", "j"), u.array * 2)
    y = Definition("y", ("i", "c"), moa.inner("+", "*", h.array, v, index="l"))
    forward = Definitions(("t", "d", "f"), (x, w, v), (u, h, y), ("y", "u") if saves_u else ("y",))
    saved = moa.array("u", "t", "f")
    gh = Definition("gh", ("i", "j"), moa.inner("+", "*", g, moa.transpose(v), index="c"))
    gu = Definition("gu", ("i", "j"), gh.array * saved if saves_u else gh.array)
    gx = Definition("gx", ("i", "k"), moa.inner("+", "*", gu.array, moa.transpose(w), index="l"))
    gw = Definition("gw", ("k", "j"), moa.inner("+", "*", moa.transpose(x), gu.array, index="m"))
    backward = Definitions(("t", "d", "f"), (x, w, v, g, *((saved,) if saves_u else ())), (gh, gu, gx, gw), ("gx", "gw"))
    return reduce_definitions("mlp", forward)[0], reduce_definitions("mlp_backward", backward)[0]


def judged(form: str, *, saves_u: bool = True) -> claim.Answer:
    row = Claim(name="mlp", text=form, claim=form, passes=(Pass(kernel="mlp", form="forward"), Pass(kernel="mlp", form="backward")),
                letters={"t": "B*N"}, source="x")
    return claim.judge(row, list(zip(("forward", "backward"), mlp(saves_u=saves_u), strict=True)))


@pytest.mark.parametrize(("form", "words"), [
    ("4*B*N*d", ("the passes are one call", "weights are not counted")),
    ("4*B*N*d + 3*d*f", ("the passes are one call", "everything else between stays on chip")),
    ("5*B*N*d + 2*B*N*f", ("each pass by itself", "weights are not counted")),
    ("4*B*N*d + 8*B*N*f", ("the passes are one call", "twice, out and in")),
    ("4*B*N*d + 2*B*N*f", ("all sums of size B·N·f between are moved once",)),
    ("4*B*N*d + 4*B*N*f", ("the passes are one call", "all arrays of size B·N·f between are moved once")),
    ("5*B*N*d + 5*B*N*f", ("each pass by itself", "all arrays of size B·N·f between are moved once")),
])  # fmt: skip
def test_the_simplest_assumption_is_found(form, words):
    found = judged(form)
    assert found.verdict == "comes out" and found.scheme and found.scheme.consistent
    d = claim.document(found)
    assert all(w in d["because"] for w in words) and d["computed"] == d["claimed"]


def test_a_form_that_takes_some_arrays_of_a_size_and_leaves_others_is_not_consistent():
    d = claim.document(judged("4*B*N*d + 3*B*N*f"))
    assert d["verdict"] == "no consistent assumption gives it"
    assert "3 of the 4 arrays of size B·N·f are moved once" in d["because"] and "u gh, it is 4·B·N·d + 2·B·N·f" in d["because"]


def test_a_form_of_one_pass_only_is_named():
    d = claim.document(judged("2*B*N*d + 2*B*N*f", saves_u=False))
    assert d["verdict"] == "no assumption gives it" and "of forward alone" in d["because"] and "-2·B·N·d + 2·B·N·f is left" in d["because"]


def test_a_source_that_is_not_listed_is_refused(tmp_path):
    wrong = tmp_path / "published.yaml"
    wrong.write_text(published.FILE.read_text().replace("source: paper1", "source: paper9", 1))
    with pytest.raises(ConfigError, match="paper9"):
        published.read(wrong)
